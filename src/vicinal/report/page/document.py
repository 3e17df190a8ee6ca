"""The file that a page is: its template with style, script, sections and data in it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from vicinal.report.page.markup import Markup, Section, element, joined

SCRIPTS = ("page.js", "map.js")
UNSAFE_IN_SCRIPT = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def document(
    title: str, summary: str, groups: Mapping[str, Sequence[Section | None]], data: Mapping[str, Any]
) -> bytes:
    """The whole file.

    Args:
        title: of the window, and the first heading.
        summary: a line below it.
        groups: name -> sections, in their order; those that are None are left out, and so are groups of none.
        data: what the script reads.
    """
    there = {name: [part for part in parts if part is not None] for name, parts in groups.items()}
    there = {name: parts for name, parts in there.items() if parts}
    parts = {
        "title": element("title", title),
        "style": Markup(_template("page.css")),
        "header": joined([element("h1", title), element("p", summary)]),
        "contents": joined(_contents(name, group) for name, group in there.items()),
        "main": joined(part.markup() for group in there.values() for part in group),
        "data": script_json(data),
        "script": Markup("\n".join(map(_template, SCRIPTS))),
    }
    whole = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match.group(1)], _template("page.html"))
    return whole.encode("utf-8", errors="replace")


def script_json(data: object) -> Markup:
    r"""Data for a script element: JSON that cannot end the element.

    Example:
        >>> print(script_json("</script>"))
        "\u003c/script\u003e"
    """
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Markup(text.translate(UNSAFE_IN_SCRIPT))


def _contents(name: str, sections: Sequence[Section]) -> Markup:
    """The part of the navigation that leads to a group of sections."""
    links = [element("li", element("a", part.title, href=f"#{part.name}")) for part in sections]
    return joined([element("p", name), element("ul", *links, aria_label=name)])


def _template(name: str) -> str:
    return resources.files("vicinal.report.page").joinpath(name).read_text(encoding="utf-8")
