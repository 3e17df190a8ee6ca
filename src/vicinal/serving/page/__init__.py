"""The page of the service: static files, which share the style sheet and the choice of colors of the report's pages."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable

OF_REPORT = ("page.css", "theme.js")  # files of `vicinal.report.page`
SUFFIXES = (".html", ".css", ".js")


def page_file(name: str) -> Traversable | None:
    """Return a file of the page; None if it has no file of that name.

    Args:
        name: `index.html`, or what the page asks for below `static/`.

    Example:
        >>> page_file("app.js").name, page_file("page.css").name, page_file("../app.py")
        ('app.js', 'page.css', None)
    """
    if name in OF_REPORT:
        return resources.files("vicinal.report.page").joinpath(name)
    own = {file.name: file for file in resources.files(__name__).iterdir() if file.name.endswith(SUFFIXES)}
    return own.get(name)
