"""The whole file of a page: its template with style, scripts, sections and data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from importlib import resources

from vicinal.report.page.markup import Markup, Section, joined, render

STYLE = "page.css"
SCRIPTS = ("theme.js", "page.js", "map.js")


def document(
    title: str,
    summary: str,
    groups: Mapping[str, Sequence[Section | None]],
    data: Mapping[str, object],
    style: str | None = None,
    script: str | None = None,
) -> bytes:
    """Make the file.

    Args:
        title: of the window, and the first heading.
        summary: a line below it, which ends with the date.
        groups: name -> sections in their order. Sections that are None are left out, and groups without sections.
        data: what the scripts read, as JSON.
        style: the name of a style sheet of this page alone.
        script: the name of a script of this page alone.
    """
    present = {name: [part for part in parts if part is not None] for name, parts in groups.items()}
    whole = render(
        "page.html",
        title=title,
        summary=summary,
        date=date.today().isoformat(),
        groups={name: parts for name, parts in present.items() if parts},
        data=data,
        style=joined(_source(name) for name in (STYLE, style) if name),
        scripts=[_source(name) for name in (*SCRIPTS, script) if name],
    )
    return whole.encode("utf-8", errors="replace")


def _source(name: str) -> Markup:
    return Markup(resources.files("vicinal.report.page").joinpath(name).read_text(encoding="utf-8"))
