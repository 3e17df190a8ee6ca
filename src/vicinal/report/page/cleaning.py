"""The page of findings about images: galleries to look through, and decisions that the browser saves as a CSV file."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from vicinal.analysis import Findings
from vicinal.data.table import Table
from vicinal.report.page.cleaning_sections import (
    anchor,
    class_sizes_section,
    clusters_section,
    duplicates_section,
    label_errors_section,
    measured_section,
    outliers_section,
    overview_section,
)
from vicinal.report.page.document import document
from vicinal.report.page.frames import ImageFrames
from vicinal.report.page.header import header_line
from vicinal.report.page.markup import Markup, Section
from vicinal.report.page.paths import relative_paths, without_home
from vicinal.report.page.thumbnails import Thumbnails
from vicinal.utils.files import write_bytes
from vicinal.utils.wording import counted


class ReviewFrames(ImageFrames):
    """Frames of images that are decided about.

    Attributes:
        rows: the rows of the images by their numbers.
    """

    def __init__(self, thumbnails: Thumbnails, table: Table) -> None:
        super().__init__(thumbnails, table)
        self.rows: dict[int, int] = {}

    def frame(self, row: int, kind: str, mark: str, text: str) -> Markup:
        self.rows.setdefault(self.thumbnails.number(self.table, row), row)
        return super().frame(row, kind, mark, text)


def write_cleaning_page(
    path: str | Path, findings: Findings, *, title: str = "Findings", folder: str | None = None
) -> None:
    """Write a page about findings: duplicates, label errors, outliers, clusters and more, to be looked through.

    It is one HTML file that opens from disk without a network, as that of :func:`write_page`. Images are marked to be
    dropped, relabeled or kept, by buttons or by keys, which the page explains. The browser remembers the marks and
    saves them as `decisions.csv`, which :func:`~vicinal.data.apply_decisions` turns into a new table.

    Args:
        path: the file, such as `cleaning.html`; it is replaced as a whole.
        findings: as :func:`~vicinal.analysis.find_problems` returns them; of many, the first are shown.
        title: of the page.
        folder: that in which the paths of `decisions.csv` begin; None: the innermost that all images of the table are
            in. If these were selected from a larger table, it is that of all its images.

    Raises:
        OSError: the file cannot be written.

    Example:
        >>> import tempfile
        >>> import numpy as np, pandas as pd
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
        "Labels": [label_errors_section(frames, findings), class_sizes_section(findings)],
        "Images": [outliers_section(frames, findings), measured_section(frames, findings, "uninformative")],
        "Structure": [clusters_section(frames, findings)],
    }
    present = [part for parts in found.values() for part in parts if part is not None]
    groups: dict[str, list[Section | None]] = {"Review": [overview_section(findings, present)], **found}
    images = thumbnails.encoded()
    line = header_line(counted(len(findings.table), "image"), *thumbnails.notes())
    data = {"images": images, "review": _review_data(frames, findings, folder)}
    write_bytes(path, document(without_home(title), line, groups, data, style="review.css", script="review.js"))


def _review_data(frames: ReviewFrames, findings: Findings, folder: str | None) -> dict[str, object]:
    """What the script of the review reads; images are named by their paths below the folder of all of them."""
    table = findings.table
    names = _relative_keys(table, folder)
    images = {number: {"row": row, "path": names[row]} for number, row in frames.rows.items()}
    suggestions = _suggestions(frames, findings)
    digest = hashlib.sha256(json.dumps([images, suggestions], sort_keys=True).encode()).hexdigest()
    has_labels = table.has("label")
    return {
        "key": digest[:16],
        "hasLabels": has_labels,
        "labels": [str(name) for name in table.classes] if has_labels else [],
        "images": images,
        "suggestions": suggestions,
    }


def _relative_keys(table: Table, folder: str | None) -> list[str]:
    """The relative path of each image, and its bounding box, if it has one."""
    if not table.has("path"):
        return [f"row {row}" for row in range(len(table))]
    short = relative_paths([*table.paths, folder and os.path.join(folder, "image")])[:-1]
    pairs = zip(table.paths, short, table.image_keys, strict=True)
    return [f"{name}{key.removeprefix(path)}" for path, name, key in pairs]


def _suggestions(frames: ReviewFrames, findings: Findings) -> dict[str, list[tuple[int, str, str]]]:
    """Section -> the number of each image that something is suggested about, the action, and the new label."""
    numbers = {row: number for number, row in frames.rows.items()}
    lines = findings.to_frame().query("suggestion != ''")
    suggestions: dict[str, list[tuple[int, str, str]]] = {}
    for each in lines.itertuples():
        if each.row in numbers:
            action = (numbers[each.row], str(each.suggestion), str(each.suggested_label))
            suggestions.setdefault(anchor(str(each.finding)), []).append(action)
    return suggestions
