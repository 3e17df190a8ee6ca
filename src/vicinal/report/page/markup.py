"""HTML in which text cannot become markup: every plain string is escaped, whoever wrote it."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import NamedTuple

VOID = frozenset({"img", "input", "br", "meta", "link", "hr"})  # elements of HTML without an end; SVG has none of them


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
    caption: str, columns: Sequence[object], rows: Iterable[Sequence[object]], numbers: Iterable[int] = ()
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
    body = [_row(row, kind) for row in rows]
    whole = element(
        "table", element("caption", caption), element("thead", element("tr", *head)), element("tbody", *body)
    )
    return element("div", whole, class_="scroll", tabindex="0", role="group", aria_label=caption)


def facts(pairs: Iterable[tuple[object, object]]) -> Markup:
    """Names, each with what it has beside it.

    Example:
        >>> facts([("queries", 5)])
        '<dl class="facts"><div><dt>queries</dt><dd>5</dd></div></dl>'
    """
    entries = [element("div", element("dt", name), element("dd", value)) for name, value in pairs]
    return element("dl", *entries, class_="facts")


def tall(content: Markup) -> Markup:
    """A long table in a frame of limited height."""
    return element("div", content, class_="tall")


def figure(picture: Markup, caption: object, numbers: Markup | None = None) -> Markup:
    """A chart with what is to be seen below it and, to be unfolded, the numbers that it draws."""
    unfolded = None if numbers is None else element("details", element("summary", "The numbers"), tall(numbers))
    return element("figure", picture, element("figcaption", caption), unfolded)


class Section(NamedTuple):
    """A part of the page: its name in addresses, its heading, and what it holds."""

    name: str
    title: str
    content: Markup

    def markup(self) -> Markup:
        heading = element("h2", self.title, id=f"{self.name}-title")
        return element("section", heading, self.content, id=self.name, aria_labelledby=f"{self.name}-title")


def section(name: str, title: str, lead: str, *content: object) -> Section:
    """A section that begins with a sentence that says what is to be seen in it."""
    return Section(name, title, joined([element("p", lead, class_="lead"), *content]))


def note(text: str) -> Markup:
    return element("p", text, class_="note")


def percent(share: float) -> str:
    """Two digits behind the point; a dash for what is not known.

    Example:
        >>> percent(0.5), percent(float("nan"))
        ('50.00 %', '–')
    """
    return "–" if share != share else f"{100 * share:.2f} %"


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun.

    Example:
        >>> counted(1, "query", "queries"), counted(1200, "image")
        ('1 query', '1,200 images')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _row(row: Sequence[object], kind: Sequence[str | None]) -> Markup:
    cells = [element("td", cell, class_=kind[1 + at]) for at, cell in enumerate(row[1:])]
    return element("tr", element("th", row[0], scope="row"), *cells)


def _escaped(part: object) -> str:
    return str(part) if isinstance(part, Markup) else html.escape(str(part), quote=True)


def _attribute(name: str, value: object) -> str:
    name = name.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{html.escape(str(value), quote=True)}"'
