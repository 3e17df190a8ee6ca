"""Lists of pairs, such as LFW's: two images, and whether they are of the same class."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from vicinal.data.table import Table
from vicinal.data.table_files import read_csv
from vicinal.evaluation.verification import PairsEvaluation, evaluate_pairs
from vicinal.retrieval.scores import UnitVectors, pair_scores
from vicinal.utils.arrays import Booleans, Floats, Integers
from vicinal.utils.errors import InputError, one_line
from vicinal.workflows.embedded_table import EmbeddedTable

COLUMNS = ("a", "b", "same")
SAME = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True)
class PairList:
    """Pairs of images, and whether they are of the same class; relative paths of images start from the root."""

    path: Path  # for messages
    root: Path
    frame: pd.DataFrame  # the columns a and b (paths, or row numbers) and perhaps fold; its index holds the lines
    is_same: Booleans  # [pairs]

    @classmethod
    def read(cls, path: str | Path, root: str | Path | None = None) -> PairList:
        """Read a .csv file with the columns `a`, `b`, `same` (1 or 0, true or false, yes or no) and perhaps `fold`."""
        path = Path(path)
        frame = read_csv(path)
        missing = [column for column in COLUMNS if column not in frame]
        if missing:
            raise InputError(f"{path}: no column {missing[0]!r}; a list of pairs has the columns a, b, same")
        values = [SAME.get(str(value).strip().lower()) for value in frame["same"]]
        if None in values:
            line = values.index(None)
            value = one_line(repr(str(frame["same"].iloc[line])), 80)
            raise InputError(f"{path}, line {frame.index[line]}: same is {value}; use 1 or 0")
        return cls(path, path.parent if root is None else Path(root), frame, np.array(values, bool))

    def images(self) -> Table:
        """The table of all images of the list, each once."""
        if self._has_row_numbers():
            raise InputError(f"{self.path} names rows by number; give the source of the embeddings")
        paths = pd.unique(pd.concat([self.frame["a"], self.frame["b"]]))
        return Table(pd.DataFrame({"path": [str(self._full(path)) for path in paths]}))

    def rows(self, table: Table) -> tuple[Integers, Integers]:
        """The rows of the table that hold the images of each pair, both int64 [pairs]."""
        if self._has_row_numbers():
            known = {str(row): row for row in range(len(table))}
        elif table.has("path"):
            known = {path: row for row, path in reversed([*enumerate(table.paths)])}
        else:
            raise InputError(f"the images have no paths to match those in {self.path}; give row numbers")
        first, second = (self._find(column, known) for column in ("a", "b"))
        return first, second

    def _find(self, column: str, known: dict[str, int]) -> Integers:
        is_number = self._has_row_numbers()
        keys = [str(each) if is_number else self._full(each) for each in self.frame[column]]
        found = [known.get(key) for key in keys]
        if None in found:
            row = found.index(None)
            line, name = self.frame.index[row], one_line(keys[row], 200)
            raise InputError(f"{self.path}, line {line}: {name} is not among the {len(known):,} images; --root says "
                             "where relative paths start")  # fmt: skip
        return np.array(found, np.int64)

    def _full(self, path: str) -> str:
        return os.path.abspath(os.path.join(self.root, path))

    def _has_row_numbers(self) -> bool:
        return bool(self.frame[["a", "b"]].apply(lambda column: column.str.fullmatch("[0-9]{1,12}").all()).all())

    def evaluate(self, embedded: EmbeddedTable) -> PairsEvaluation:
        """Evaluate the cosine similarities of the pairs, see :func:`vicinal.evaluation.evaluate_pairs`."""
        folds = self.frame["fold"].to_numpy() if "fold" in self.frame else None
        try:
            return evaluate_pairs(_similarities(embedded.vectors, *self.rows(embedded.table)), self.is_same, folds)
        except InputError as error:
            raise InputError(str(error) if str(self.path) in str(error) else f"{self.path}: {error}") from None


def _similarities(vectors: Floats, first: Integers, second: Integers) -> Floats:
    unit, order = UnitVectors(vectors, "embedding"), np.argsort(first, kind="stable")
    similarities = np.empty(len(first), np.float32)
    similarities[order] = pair_scores(unit, unit, first[order], second[order])
    return similarities
