"""HTML of a page: text that is not marked as HTML is escaped, by Jinja2 in templates and by markupsafe elsewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from importlib import resources
from pathlib import Path, PurePath
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup as Markup
from markupsafe import escape

from vicinal.data.table import Table
from vicinal.utils.console import counted

VOID = frozenset({"img", "input", "br", "meta", "link", "hr", "wbr"})  # elements without an end tag
TEMPLATES = Environment(
    loader=PackageLoader("vicinal.report.page"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
STYLE = "page.css"
SCRIPTS = ("theme.js", "matching_patches.js", "page.js", "map.js")


def header_line(*parts: str | None) -> str:
    """The parts that are known, in a line."""
    return " · ".join(part for part in parts if part)


def splits_text(table: Table) -> str | None:
    """The splits of the images; None if the table has none."""
    if not table.has("split"):
        return None
    names = table.splits
    return f"{'split' if len(names) == 1 else 'splits'} {', '.join(names)}"


def model_text(backbone: str | None, dim: int) -> str:
    """The backbone, if it is known, and the dimension of its embeddings."""
    return ", ".join([*([backbone] if backbone else []), f"{dim:,} dimensions"])


def left_out_text(num_files: int) -> str | None:
    """How many files were left out, because they are unreadable or not images; None if no file was."""
    return f"{counted(num_files, 'file')} left out" if num_files else None


def without_home(text: str) -> str:
    """Replace the home folder by `~`, wherever a path in the text begins with it."""
    home = str(Path.home())
    if len(home) < 2:  # the root folder
        return text
    return re.sub(rf"(?<![\w./~-]){re.escape(home)}(?![\w-]|\.\w)", "~", text)


def relative_paths(paths: Sequence[str | None]) -> list[str | None]:
    """Make paths relative to the folder that all of them are in; None stays None."""
    short = [path and without_home(path) for path in paths]
    try:
        common = os.path.commonpath([os.path.dirname(path) for path in short if path])
    except ValueError:  # no paths, or some relative and some absolute
        return short
    return [path and str(PurePath(path).relative_to(common)) for path in short]


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Names of things that may be paths, without the folder that all are in; they stay different from each other.

    Example:
        >>> short_names(["/runs/birds/old", "/runs/birds/new"])
        {'/runs/birds/old': 'old', '/runs/birds/new': 'new'}
    """
    short = [str(path) for path in relative_paths(names)]
    if len(set(short)) < len(names):
        short = [without_home(name) for name in names]
    return dict(zip(names, short, strict=True))


def render(template: str, **values: object) -> Markup:
    """Fill in a template of the folder `templates`; values that are not :class:`~markupsafe.Markup` are escaped."""
    return Markup(TEMPLATES.get_template(template).render(values))


def element(tag: str, *content: object, **attributes: object) -> Markup:
    """An HTML element; content that is not :class:`~markupsafe.Markup` is escaped, and so are all attribute values.

    `class_` stands for the attribute `class` and `aria_label` for `aria-label`. An attribute that is True has no value;
    one that is None or False is left out.
    """
    opening = Markup("<{}{}>").format(tag, joined(_attribute(*each) for each in attributes.items()))
    return opening if tag in VOID else Markup("{}{}</{}>").format(opening, joined(content), tag)


def joined(content: Iterable[object]) -> Markup:
    """The parts one after the other, escaped if they are not :class:`~markupsafe.Markup`; None is left out."""
    return Markup("").join(escape(part) for part in content if part is not None)


def table(
    caption: str, columns: Sequence[object], rows: Iterable[Sequence[object]], numbers: Iterable[int] = ()
) -> Markup:
    """A table whose first column names the rows; it scrolls sideways in a narrow window.

    `numbers` are the indices of the columns that are aligned to the right.
    """
    aligned = set(numbers)
    classes = ["number" if column in aligned else None for column in range(len(columns))]
    head = [element("th", name, scope="col", class_=kind) for name, kind in zip(columns, classes, strict=True)]
    body = [
        element("tr", element("th", breakable(name), scope="row"), *map(_cell, cells, classes[1:]))
        for name, *cells in rows
    ]
    whole = element(
        "table", element("caption", caption), element("thead", element("tr", *head)), element("tbody", *body)
    )
    return element("div", whole, class_="scroll", tabindex="0", role="group", aria_label=caption)


def facts(pairs: Iterable[tuple[object, object]]) -> Markup:
    """A list of names with their values."""
    entries = [element("div", element("dt", name), element("dd", value)) for name, value in pairs]
    return element("dl", *entries, class_="facts")


def tall(content: Markup) -> Markup:
    """A long table, in a frame of limited height."""
    return element("div", content, class_="tall")


def fold(title: str, *content: object) -> Markup:
    """Content below a heading that is unfolded by a click on it."""
    return element("details", element("summary", element("h3", title)), *content, class_="fold")


def breakable(text: object) -> Markup:
    """Text that a browser may break after underscores and dots too, as names of classes and files have them.

    Example:
        >>> print(breakable("black_footed"))
        black_<wbr>footed
    """
    parts = [text] if isinstance(text, Markup) else re.split(r"(?<=[_./])(?=[^\W\d])", str(text))
    return element("wbr").join(map(escape, parts))


def figure(chart: Markup, caption: object, numbers: Markup | None = None) -> Markup:
    """A chart with its caption and, to be unfolded, a table of the numbers that it shows."""
    unfolded = None if numbers is None else element("details", element("summary", "The numbers"), tall(numbers))
    return element("figure", chart, element("figcaption", caption), unfolded)


class Section(NamedTuple):
    """A section of the page; links lead to its name."""

    name: str
    title: str
    content: Markup


def section(name: str, title: str, lead: str, *content: object) -> Section:
    """A section that begins with a sentence about its content."""
    return Section(name, title, joined([element("p", lead, class_="lead"), *content]))


def note(text: str) -> Markup:
    """A paragraph of small print."""
    return element("p", text, class_="note")


def percent(fraction: float) -> str:
    """A fraction in percent with two digits after the point and a space that does not break; a dash for NaN."""
    return "–" if fraction != fraction else f"{100 * fraction:.2f}\N{NO-BREAK SPACE}%"


def _cell(content: object, class_: str | None) -> Markup:
    return element("td", breakable(content), class_=class_)


def _attribute(name: str, value: object) -> Markup | None:
    name = name.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return None
    return Markup(" {}").format(name) if value is True else Markup(' {}="{}"').format(name, str(value))


def document(
    title: str,
    summary: str,
    groups: Mapping[str, Sequence[Section | None]],
    data: Mapping[str, object],
    style: str | None = None,
    scripts: Sequence[str] = (),
) -> bytes:
    """Make the file. Sections that are None are left out, and so are groups without sections.

    Below the title is the summary, which ends with the date. `data`, as JSON, is for the scripts; `style` and `scripts`
    are names of files of this page alone.
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
        scripts=[_source(name) for name in (*SCRIPTS, *scripts)],
    )
    return whole.encode("utf-8", errors="replace")


def _source(name: str) -> Markup:
    return Markup(resources.files("vicinal.report.page").joinpath(name).read_text(encoding="utf-8"))
