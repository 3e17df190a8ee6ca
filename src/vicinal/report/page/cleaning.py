"""The page about the findings in a dataset, on which the user decides about each."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vicinal.analysis import Findings
from vicinal.data.cleaning_decisions import decided_rows
from vicinal.data.table import Table
from vicinal.report.page.common import sizes_figure
from vicinal.report.page.frames import ImageFrames, Thumbnails, entry, entry_list, frame_list
from vicinal.report.page.markup import (
    Markup,
    Section,
    document,
    element,
    header_line,
    percent,
    relative_paths,
    section,
    table,
    tall,
    without_home,
)
from vicinal.utils.console import counted
from vicinal.utils.files import write_bytes

MAX_ENTRIES = 40  # of a section
MAX_IMAGES = 60  # of a section that is one gallery
MAX_IN_GROUP = 12
NUM_NEIGHBORS = 3  # shown beside an image, which makes four: a row on a phone
NUM_MEMBERS = 8  # of a cluster
MAX_CLASSES = 200
TITLES = {
    "broken": "Broken files",
    "exact_duplicate": "Exact duplicates",
    "near_duplicate": "Near duplicates",
    "label_error": "Probable label errors",
    "small_class": "Class sizes",
    "outlier": "Outliers",
    "uninformative": "Little information",
    "new_class": "Clusters",
}
COUNTED = {"small_class": "Classes of one image", "new_class": "Clusters that may be new classes"}
LEADS = {
    "broken": "Files that cannot be read; they have no embedding and are in no other section.",
    "exact_duplicate": "Files of the same content.",
    "near_duplicate": "Images with similar embeddings and, if there are image files, similar pixels: re-encoded, "
    "resized or cropped. A group is connected by pairs.",
    "label_error": "Images whose neighbors vote for another class as confidently as they do for images of that class "
    "(confident learning), the least confident first. Beside each its nearest neighbors.",
    "outlier": "Images in a much sparser region than their neighbors (local outlier factor), beside their nearest "
    "neighbors.",
    "uninformative": "Images of few gray values, such as blank ones, glyphs and logos.",
}
KEYS = (
    (("j", "k"), "next and previous image; on an image also ← and →, and ↓ and ↑ from row to row"),
    (("x", "d"), "drop"),
    (("r",), "relabel"),
    (("c",), "keep: it is correct"),
    (("u",), "undo the decision"),
    (("Enter",), "enlarge; the keys above decide about the enlarged image too"),
)


class ReviewFrames(ImageFrames):
    """Frames of images that are decided about, whose rows are kept by their numbers."""

    def __init__(self, thumbnails: Thumbnails, table: Table) -> None:
        super().__init__(thumbnails, table)
        self.rows: dict[int, int] = {}

    def frame(self, row: int, kind: str, mark: str, text: str) -> Markup:
        self.rows.setdefault(self.thumbnails.number(self.table, row), row)
        return super().frame(row, kind, mark, text)


def write_cleaning_page(
    path: str | Path,
    findings: Findings,
    *,
    title: str = "Findings",
    folder: str | None = None,
    decisions: str | Path | None = None,
) -> None:
    """Write a page about findings: duplicates, label errors, outliers, clusters and more, to be looked through.

    It is one HTML file that opens from disk without a network, as that of :func:`write_page`. Images are marked to be
    dropped, relabeled or kept, by buttons or by keys, which the page explains. The browser remembers the marks and
    saves them as `decisions.csv`, which :func:`~vicinal.data.apply_decisions` turns into a new table.

    Args:
        path: the file, such as `cleaning.html`; it is replaced as a whole.
        findings: as :func:`~vicinal.analysis.find_problems` returns them; of many, the first are shown.
        title: of the page.
        folder: the folder in which the paths of `decisions.csv` begin; None: the innermost folder of all images of the
            table. If these were selected from a larger table, it is that of all its images.
        decisions: a file of earlier decisions, as the page saves it, which the page starts with. Decisions about images
            that are no longer in the table are left out.

    Raises:
        InputError: the file of decisions cannot be read, or a decision is invalid.
        OSError: the file cannot be written.

    Example:
        >>> import tempfile
        >>> from vicinal.analysis import find_problems
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog"]}))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_cleaning_page(f"{folder}/cleaning.html", find_problems(np.eye(3)[[0, 0, 1]], table))
        ...     "Near duplicates" in Path(f"{folder}/cleaning.html").read_text(encoding="utf-8")
        True
    """
    thumbnails = Thumbnails()
    frames = ReviewFrames(thumbnails, findings.table)
    found = {
        "Files": [
            measured_section(frames, findings, "broken"),
            duplicates_section(frames, findings, "exact_duplicate"),
            duplicates_section(frames, findings, "near_duplicate"),
        ],
        "Labels": [neighbors_section(frames, findings, "label_error"), class_sizes_section(findings)],
        "Images": [neighbors_section(frames, findings, "outlier"), measured_section(frames, findings, "uninformative")],
        "Structure": [clusters_section(frames, findings)],
    }
    present = [part for parts in found.values() for part in parts if part is not None]
    groups: dict[str, list[Section | None]] = {"Review": [overview_section(findings, present)], **found}
    images = thumbnails.encoded()
    line = header_line(counted(len(findings.table), "image"), *thumbnails.notes())
    data = {"images": images, "review": _review_data(frames, findings, folder, decisions)}
    write_bytes(
        path,
        document(without_home(title), line, groups, data, style="review.css", scripts=["decisions.js", "review.js"]),
    )


def _review_data(
    frames: ReviewFrames, findings: Findings, folder: str | None, decisions: str | Path | None
) -> dict[str, object]:
    """The data of the review's script; images are named by their paths below the folder of all of them."""
    table = findings.table
    names = relative_keys(table, folder)
    images = {number: {"row": row, "path": names[row]} for number, row in frames.rows.items()}
    suggestions = _suggestions(frames, findings)
    decisions_by_row = {} if decisions is None else decided_rows(table, Path(decisions), ignore_missing=True)
    decided = [(number, decisions_by_row[row].action, decisions_by_row[row].new_label)
               for number, row in frames.rows.items() if row in decisions_by_row]  # fmt: skip
    digest = hashlib.sha256(json.dumps([images, suggestions, decided], sort_keys=True).encode()).hexdigest()
    has_labels = table.has("label")
    return {
        "key": digest[:16],
        "hasLabels": has_labels,
        "labels": [str(name) for name in table.classes] if has_labels else [],
        "images": images,
        "suggestions": suggestions,
        "decided": decided,
    }


def relative_keys(table: Table, folder: str | None) -> list[str]:
    """The keys of images below the folder of all of them, or below `folder`; without paths, the numbers of the rows."""
    if not table.has("path"):
        return [f"row {row}" for row in range(len(table))]
    short = relative_paths([*table.paths, folder and os.path.join(folder, "image")])[:-1]
    pairs = zip(table.paths, short, table.image_keys, strict=True)
    return [f"{name}{key.removeprefix(path)}" for path, name, key in pairs]


def _suggestions(frames: ReviewFrames, findings: Findings) -> dict[str, list[tuple[int, str, str]]]:
    """Section -> the suggestions: the number of the image, the action, and the new label."""
    numbers = {row: number for number, row in frames.rows.items()}
    lines = findings.to_frame().query("suggestion != ''")
    suggestions: dict[str, list[tuple[int, str, str]]] = {}
    for each in lines.itertuples():
        if each.row in numbers:
            action = (numbers[each.row], str(each.suggestion), str(each.suggested_label))
            suggestions.setdefault(anchor(str(each.finding)), []).append(action)
    return suggestions


def overview_section(findings: Findings, sections: Sequence[Section]) -> Section:
    """The numbers of findings with links, and instructions."""
    counts, links = findings.counts, {part.name: part.title for part in sections}
    shown = [(name, number) for name, number in counts.items() if anchor(name) in links]
    rows = [(_link(name), f"{number:,}") for name, number in shown if number]
    keys = [(_keys(names), meaning) for names, meaning in KEYS]
    lead = (
        "Look through the galleries and mark what to drop (✕) or to relabel (✎). The browser remembers the marks. Save "
        "them as decisions.csv; this command makes the new table of them. No image file is deleted."
    )
    help_text = element("details", element("summary", "Keys"), table("Keys", ["key", "what it does"], keys))
    command = element("pre", "vicinal data SOURCE --apply decisions.csv --out new.csv")
    return section("overview", "What was found", lead, command, table("Findings", ["", "number"], rows, [1]),
                   element("div", help_text, class_="by-keys"))  # fmt: skip


def measured_section(frames: ImageFrames, findings: Findings, name: str) -> Section | None:
    """A gallery of images, each with the value by which it was found."""
    frame = findings.broken if name == "broken" else findings.uninformative
    if frame.empty:
        return None
    images = []
    for each in frame.head(MAX_IMAGES).itertuples():
        words = "broken", "cannot be read"
        if name == "uninformative":
            words = f"{each.entropy:.2f} bits", f"entropy {each.entropy:.2f}"
        images.append(frames.frame(int(each.row), "plain", *words))
    entries = [entry("", frame_list(images))]
    return _section(name, len(frame), "image", entries, _errors(findings) if name == "broken" else None)


def duplicates_section(frames: ImageFrames, findings: Findings, name: str) -> Section | None:
    """Groups of duplicates; those with different labels first, then those in several splits."""
    frame = findings.exact_duplicates if name == "exact_duplicate" else findings.near_duplicates
    if frame.empty:
        return None
    order = frame.groupby("group")[["is_contradiction", "is_leak"]].first()
    order = order.sort_values(["is_contradiction", "is_leak"], ascending=False, kind="stable")
    entries = []
    for group in order.index[:MAX_ENTRIES]:
        members = frame[frame["group"] == group]
        images = [_duplicate(frames, each) for each in members.head(MAX_IN_GROUP).itertuples()]
        entries.append(entry(_group_text(members), frame_list(images)))
    number = len(order)
    extra = [counted(int(order[column].sum()), "group") + words for column, words in
             (("is_contradiction", " with different labels"), ("is_leak", " in several splits"))
             if order[column].any()]  # fmt: skip
    return _section(name, number, "group", entries, None, ", ".join(extra), side_by_side=True)


def neighbors_section(frames: ImageFrames, findings: Findings, name: str) -> Section | None:
    """Each label error or outlier, with its nearest neighbors."""
    found = findings.label_errors if name == "label_error" else findings.outliers
    if found.empty:
        return None
    texts = {
        "label_error": "{0.label} → {0.suggested_label} · {0.self_confidence:.0%} of the votes are for its label, "
        "{0.probability:.0%} for the other",
        "outlier": "outlier factor {0.outlier_factor:.1f}",
    }
    entries = [
        entry(texts[name].format(each), _with_neighbors(frames, findings, int(each.row)))
        for each in found.head(MAX_ENTRIES).itertuples()
    ]
    return _section(name, len(found), "image", entries, side_by_side=True)


def clusters_section(frames: ImageFrames, findings: Findings) -> Section | None:
    """The clusters that may be new classes first, then the largest, each with its representative and some members."""
    summary = findings.clusters.summary
    if summary.empty:
        return None
    has_labels = findings.table.has("label")
    entries = []
    for each in summary.sort_values("is_candidate", ascending=False, kind="stable").head(MAX_ENTRIES).itertuples():
        members = np.flatnonzero(findings.clusters.assignments == each.cluster)
        members = members[members != each.representative][: NUM_MEMBERS - 1].tolist()
        text = counted(each.num_images, "image")
        if has_labels:
            text += f" · {percent(each.label_fraction)} {each.label}" + " · candidate" * bool(each.is_candidate)
        images = [frames.frame(int(each.representative), "query", "center", "representative of the cluster")]
        images += [frames.frame(row, "plain", "", "member of the cluster") for row in members]
        entries.append(entry(text, frame_list(images)))
    lead = "Dense groups of images, whatever their labels, each with its most central image. "
    lead += (
        "A candidate for a new class has no label that more than half of its images have; candidates come first. "
        if has_labels else "Each may be a class. "
    )  # fmt: skip
    lead += _shown_of_total(len(entries), len(summary), "cluster")
    return section(anchor("new_class"), TITLES["new_class"], lead, entry_list(entries))


def class_sizes_section(findings: Findings) -> Section | None:
    """A histogram of the class sizes and a table of the smallest classes."""
    sizes = findings.class_sizes
    if sizes.empty:
        return None
    shown = sizes.head(MAX_CLASSES)
    caption = f"The {len(shown)} smallest of {len(sizes):,} classes" if len(shown) < len(sizes) else "All classes"
    lines = [[str(cells[0]), *(f"{number:,}" for number in cells[1:])] for cells in shown.itertuples(index=False)]
    columns = ["class", "images", *sizes.columns[2:]]
    lead = "How many images the classes have, the smallest first. A class of one image has no positive pair."
    numbers = tall(table(caption, columns, lines, range(1, len(columns))))
    return section(
        anchor("small_class"), TITLES["small_class"], lead, sizes_figure(findings.table.class_counts), numbers
    )


def _section(
    name: str,
    number: int,
    noun: str,
    entries: Sequence[Markup],
    extra: Markup | None = None,
    words: str = "",
    side_by_side: bool = False,
) -> Section:
    shown = MAX_IMAGES if len(entries) == 1 and noun == "image" else MAX_ENTRIES
    text = f"{LEADS[name]} {_shown_of_total(min(shown, number), number, noun)}"
    text += f" {words}." if words else ""
    gallery = entry_list(entries, side_by_side=side_by_side)
    return section(anchor(name), TITLES[name], text, gallery, extra)


def anchor(name: str) -> str:
    """The name of the section about a finding, as links have it."""
    return name.replace("_", "-")


def _shown_of_total(shown: int, number: int, noun: str = "image") -> str:
    return f"{counted(number, noun)}" + (f", of which {shown} are shown." if shown < number else ".")


def _link(name: str) -> Markup:
    return element("a", COUNTED.get(name, TITLES[name]), href=f"#{anchor(name)}")


def _keys(names: Sequence[str]) -> Markup:
    return element("span", *(element("kbd", name) for name in names))


def _errors(findings: Findings) -> Markup:
    paths, shown = findings.table.paths, findings.broken.head(MAX_IMAGES)
    lines = [
        [paths[int(each.row)].rpartition("/")[2], str(each.error).removeprefix(f"{paths[int(each.row)]}: ")]
        for each in shown.itertuples()
    ]
    return element("details", element("summary", "What is wrong"), tall(table("Files", ["file", "error"], lines)))


def _group_text(members: pd.DataFrame) -> str:
    first = members.iloc[0]
    words = [counted(len(members), "image")]
    words += [f"{MAX_IN_GROUP} shown"] * (len(members) > MAX_IN_GROUP)
    words += ["different labels"] * bool(first["is_contradiction"]) + ["several splits"] * bool(first["is_leak"])
    words += ["taken at different times, a burst"] * bool(first.get("is_burst", False))
    return " · ".join(words)


def _duplicate(frames: ImageFrames, member: Any) -> Markup:
    kind = "mismatch" if member.is_contradiction else "plain"
    table = frames.table
    where = f" {table.frame['split'].iloc[member.row]}" if table.has("split") and member.is_leak else ""
    return frames.frame(int(member.row), kind, f"{member.similarity:.3f}{where}", f"similarity {member.similarity:.3f}")


def _with_neighbors(frames: ImageFrames, findings: Findings, row: int) -> Markup:
    rows, neighbors = findings.embedded_rows, findings.neighbors
    at = neighbors.index(int(np.searchsorted(rows, row)))
    nearest = zip(rows[neighbors.ids[at, :NUM_NEIGHBORS]].tolist(), neighbors.scores[at].tolist(), strict=False)
    shown = [frames.neighbor(row, other, rank, score) for rank, (other, score) in enumerate(nearest, 1)]
    return frame_list([frames.frame(row, "query", "image", "image"), *shown])
