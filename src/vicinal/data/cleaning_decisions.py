"""Decisions about images, such as those made on the pages of `vicinal clean` and `vicinal identify`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from vicinal.data.table import Table
from vicinal.data.table_files import INTEGER, read_csv
from vicinal.utils.arguments import shown
from vicinal.utils.errors import InputError, one_line


class Vocabulary(NamedTuple):
    """The words of a file's column `decision`, which may be empty; the words that need a name; and its column."""

    decisions: tuple[str, ...]
    naming: tuple[str, ...]
    name_column: str


CLEANING = Vocabulary(("drop", "relabel", "keep"), ("relabel",), "new_label")
IDENTIFYING = Vocabulary(("same", "new", "not sure"), ("same", "new"), "identity")


class Decision(NamedTuple):
    """A decision about an image, and the file and line that it comes from."""

    action: str
    new_label: str
    where: str


def apply_decisions(table: Table, decisions: str | Path) -> Table:
    r"""Drop and relabel the images of a table as a file says; files of images are left where they are.

    The file is a CSV file with the columns `decision` (`drop`, `relabel`, `keep` or empty), `new_label` for those that
    are relabeled, and `path`: the path of an image, or its end, such as `owl/1.jpg`; a path relative to the common
    folder of all images takes precedence. Rows of one image are told apart by `row`, the row number from 0, which a
    table without paths needs instead. Further columns are ignored, so that the file may be that of
    `vicinal clean --csv`.

    Args:
        table: the images.
        decisions: the file.

    Returns:
        The table without the dropped rows; relabeled ones have their new label, and no coarse label is changed.

    Raises:
        InputError: The file cannot be read, an image is not in the table or is ambiguous, there are several decisions
            about it, a decision is unknown, a new label is missing, or no image would be left; the message names the
            line.

    Example:
        >>> import tempfile
        >>> table = Table(pd.DataFrame({"path": ["/photos/1.jpg", "/photos/2.jpg"], "label": ["owl", "owl"]}))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "d.csv").write_text("path,decision,new_label\n2.jpg,relabel,kiwi\n1.jpg,keep,\n")
        ...     apply_decisions(table, f"{folder}/d.csv").frame["label"].tolist()
        ['owl', 'kiwi']
    """
    path = Path(decisions)
    decided = decided_rows(table, path)
    frame = table.frame.copy()
    dropped = [row for row, each in decided.items() if each.action == "drop"]
    relabeled = {row: each for row, each in decided.items() if each.action == "relabel"}
    if len(dropped) == len(table):
        raise InputError(f"{path}: every image of the table is dropped; keep at least one")
    if relabeled:
        frame["label"] = _new_labels(table, relabeled)
    return Table(frame.drop(index=dropped))


def decided_rows(
    table: Table, path: Path, ignore_missing: bool = False, vocabulary: Vocabulary = CLEANING
) -> dict[int, Decision]:
    """Read a file as :func:`apply_decisions` does; returns the decision by the row of each image that has one.

    With `ignore_missing`, decisions about images that are not in the table are left out.
    """
    frame = read_csv(path)
    needed, name_column = ("decision", "path" if table.has("path") else "row"), vocabulary.name_column
    for column in (*needed, "row", name_column):
        count = list(frame.columns).count(column)
        if count > 1 or (not count and column in needed):
            raise InputError(
                f"{path}: {count or 'no'} columns are named {column}; decisions need the columns path (or row) and "
                "decision, each once"
            )
    actions = frame["decision"].str.strip().str.lower()
    if vocabulary is CLEANING:
        _check_no_label_alone(frame.assign(decision=actions), path)
    frame = frame.assign(decision=actions)[actions != ""]
    labels = frame[name_column] if name_column in frame else pd.Series("", index=frame.index)
    images = frame["path" if table.has("path") else "row"]
    rows = frame["row"] if "row" in frame else pd.Series("", index=frame.index)
    find = _Finder(table)
    decided: dict[int, Decision] = {}
    for line, image, row_text, action, label in zip(frame.index, images, rows, frame["decision"], labels, strict=True):
        where = f"{path}, line {line}"
        name = label.strip() if action in vocabulary.naming else ""
        decision = _checked(Decision(action, name, where), vocabulary)
        if ignore_missing and not find.knows(image):
            continue
        row = find(image, row_text, where)
        if row in decided and decided[row][:2] != decision[:2]:
            raise InputError(
                f"{where}: another decision about {one_line(image, 300)} than in {decided[row].where}; "
                "remove one of them"
            )
        decided[row] = decision
    return decided


def _check_no_label_alone(frame: pd.DataFrame, path: Path) -> None:
    """Refuse a new label if the decision is not to relabel."""
    if "new_label" not in frame:
        return
    is_alone = (frame["new_label"].astype(str).str.strip() != "") & (frame["decision"] != "relabel")
    for line, action in frame["decision"][is_alone].head(1).items():
        raise InputError(
            f"{path}, line {line}: a new_label, but decision is {shown(action)}; make it relabel, or empty both"
        )


def _checked(decision: Decision, vocabulary: Vocabulary) -> Decision:
    if decision.action not in vocabulary.decisions:
        raise InputError(
            f"{decision.where}: decision is {shown(decision.action)}; it can be {', '.join(vocabulary.decisions)} or "
            "empty"
        )
    if decision.action in vocabulary.naming and not decision.new_label:
        raise InputError(f"{decision.where}: {decision.action}, but no {vocabulary.name_column}; give one")
    return decision


class _Finder:
    """Finds the row of an image by its path or the last part of it, or by its number."""

    def __init__(self, table: Table) -> None:
        self._size = len(table)
        self._keys: Sequence[str] | None = table.image_keys if table.has("path") else None
        self._folder = common_folder(table.paths) if table.has("path") else None
        self._rows: dict[str, list[int]] = {}
        for row, key in enumerate(self._keys or ()):
            self._rows.setdefault(_name(key), []).append(row)

    def __call__(self, image: str, row: str, where: str) -> int:
        """The row of an image; if several rows have the same image, `row` decides."""
        if self._keys is None:
            if not INTEGER.fullmatch(image) or not 0 <= int(image) < self._size:
                raise InputError(f"{where}: row is {shown(image)}; the table has {self._size} rows, numbered from 0")
            return int(image)
        candidates = self._candidates(os.path.expanduser(image))
        name = one_line(image, 300)
        if not candidates:
            raise InputError(f"{where}: {name} is not in the table; give the table that the decisions are about")
        if len(candidates) == 1:
            return candidates[0]
        if INTEGER.fullmatch(row) and int(row) in candidates and len({self._keys[each] for each in candidates}) == 1:
            return int(row)
        raise InputError(f"{where}: {name} may be {len(candidates)} images of the table; give its whole path, and row")

    def knows(self, image: str) -> bool:
        """Whether an image is in the table."""
        return self._keys is None or bool(self._candidates(os.path.expanduser(image)))

    def _candidates(self, image: str) -> list[int]:
        """The rows whose path, or path below the folder of all images, is that of the image, or else ends with it."""
        keys = self._keys or ()
        rows = [row for row in self._rows.get(_name(image), ()) if _ends_with(keys[row], image)]
        whole = os.path.join(self._folder or "", image.removeprefix("./"))
        return [row for row in rows if keys[row] == whole] or rows


def common_folder(paths: Sequence[str]) -> str | None:
    """The innermost folder that all paths are in; None without one."""
    try:
        return os.path.commonpath({os.path.dirname(path) for path in paths})
    except ValueError:
        return None


def _name(key: str) -> str:
    return key.replace("\\", "/").rpartition("/")[2]


def _ends_with(key: str, image: str) -> bool:
    key, image = (each.replace("\\", "/") for each in (key, image))
    return key == image or key.endswith(f"/{image.removeprefix('./')}")


def _new_labels(table: Table, relabeled: dict[int, Decision]) -> pd.Series:
    """The labels after the change; text unless all are integers."""
    if not table.has("label"):
        raise InputError(f"{next(iter(relabeled.values())).where}: relabel, but the table has no labels")
    labels = table.frame["label"].astype(object)
    is_integer = isinstance(table.classes[0], (int, np.integer))
    for row, decision in relabeled.items():
        if is_integer and not INTEGER.fullmatch(decision.new_label):
            raise InputError(
                f"{decision.where}: new_label is {shown(decision.new_label)}, but the table's labels are integers"
            )
        labels[row] = int(decision.new_label) if is_integer else decision.new_label
    return labels.astype(table.frame["label"].dtype)
