"""The whole file of a page: its template with style, scripts, sections and data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from importlib import resources

from vicinal.report.page.markup import Markup, Section, render

SCRIPTS = ("page.js", "map.js")


def document(
    title: str, summary: str, groups: Mapping[str, Sequence[Section | None]], data: Mapping[str, object]
) -> bytes:
    """Make the file.

    Args:
        title: of the window, and the first heading.
        summary: a line below it, which ends with the date.
        groups: name -> sections in their order. Sections that are None are left out, and groups without sections.
        data: what the scripts read, as JSON.
    """
    present = {name: [part for part in parts if part is not None] for name, parts in groups.items()}
    whole = render(
        "page.html",
        title=title,
        summary=summary,
        date=date.today().isoformat(),
        groups={name: parts for name, parts in present.items() if parts},
        data=data,
        style=_source("page.css"),
        scripts=[_source(name) for name in SCRIPTS],
    )
    return whole.encode("utf-8", errors="replace")


def _source(name: str) -> Markup:
    return Markup(resources.files("vicinal.report.page").joinpath(name).read_text(encoding="utf-8"))
