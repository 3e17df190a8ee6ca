"""HTML in which text cannot become markup: every plain string is escaped, whoever wrote it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

VOID = frozenset({"img", "input", "br", "meta", "rect", "path", "line", "circle"})  # elements without content
UNSAFE_IN_SCRIPT = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(tag: str, *content: object, **attributes: object) -> Markup:
    """An element; content that is not :class:`Markup` is escaped, and so are the values of attributes.

    `class_` stands for the attribute `class` and `aria_label` for `aria-label`; one that is True has no value, one that
    is None or False is left out.

    Example:
        >>> element("p", "a < b", element("br"), id="x", hidden=True)
        '<p id="x" hidden>a &lt; b<br></p>'
    """
    opening = "".join([f"<{tag}", *(_attribute(name, value) for name, value in attributes.items()), ">"])
    return Markup(opening if tag in VOID else f"{opening}{joined(content)}</{tag}>")


def joined(content: Iterable[object]) -> Markup:
    """Everything one after the other, escaped where it is not :class:`Markup`; None is nothing.

    Example:
        >>> joined(["<b>", Markup("<i>"), None])
        '&lt;b&gt;<i>'
    """
    return Markup("".join(_escaped(part) for part in content if part is not None))


def table(
    caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]], numbers: Iterable[int] = ()
) -> Markup:
    """A table whose first column names the rows, in a frame that scrolls where the window is too narrow.

    Args:
        caption: what it says.
        columns: names above them.
        rows: a cell a column.
        numbers: columns that are aligned to the right.
    """
    aligned = set(numbers)
    kind = ["number" if column in aligned else None for column in range(len(columns))]
    head = [element("th", name, scope="col", class_=kind[column]) for column, name in enumerate(columns)]
    body = [
        element(
            "tr",
            element("th", row[0], scope="row"),
            *(element("td", cell, class_=kind[1 + at]) for at, cell in enumerate(row[1:])),
        )
        for row in rows
    ]
    whole = element(
        "table", element("caption", caption), element("thead", element("tr", *head)), element("tbody", *body)
    )
    return element("div", whole, class_="scroll", tabindex="0", role="group", aria_label=caption)


class Section(NamedTuple):
    """A part of the page: its name in addresses, its heading, and what it holds."""

    name: str
    title: str
    content: Markup

    def markup(self) -> Markup:
        heading = element("h2", self.title, id=f"{self.name}-title")
        return element("section", heading, self.content, id=self.name, aria_labelledby=f"{self.name}-title")

    def extended(self, *content: object) -> Section:
        """The same with more at its end."""
        return self._replace(content=joined([self.content, *content]))


def section(name: str, title: str, *content: object) -> Section:
    return Section(name, title, joined(content))


def figure(picture: Markup, caption: object) -> Markup:
    return element("figure", picture, element("figcaption", caption))


def percent(share: float) -> str:
    """Two digits behind the point; a dash for what is not known.

    Example:
        >>> percent(0.5), percent(float("nan"))
        ('50.00 %', '–')
    """
    return "–" if share != share else f"{100 * share:.2f} %"


def script_json(data: object) -> Markup:
    r"""Data for a script element: JSON that cannot end the element.

    Example:
        >>> print(script_json("</script>"))
        "\u003c/script\u003e"
    """
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Markup(text.translate(UNSAFE_IN_SCRIPT))


def page(title: str, summary: str, sections: Sequence[Section], data: Mapping[str, Any]) -> bytes:
    """The whole file.

    Args:
        title: of the window, and the first heading.
        summary: a line below it.
        sections: in their order.
        data: what the script reads.
    """
    links = [element("li", element("a", part.title, href=f"#{part.name}")) for part in sections]
    parts = {
        "title": element("title", title),
        "style": Markup(_template("page.css")),
        "header": joined([element("h1", title), element("p", summary)]),
        "contents": element("ul", *links),
        "main": joined(part.markup() for part in sections),
        "data": script_json(data),
        "script": Markup(_template("page.js")),
    }
    whole = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match.group(1)], _template("page.html"))
    return whole.encode("utf-8", errors="replace")


def _template(name: str) -> str:
    return resources.files("vicinal.report.page").joinpath(name).read_text(encoding="utf-8")


def _escaped(part: object) -> str:
    return str(part) if isinstance(part, Markup) else html.escape(str(part), quote=True)


def _attribute(name: str, value: object) -> str:
    name = name.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{html.escape(str(value), quote=True)}"'
