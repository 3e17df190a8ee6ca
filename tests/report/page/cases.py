"""Evaluated sets for tests of pages, and a reader of what was written."""

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from PIL import Image
from sklearn.datasets import load_digits

from vicinal.data import Table
from vicinal.evaluation import Evaluation, ResultsTable, evaluate
from vicinal.report.page.comparison import EvaluatedEmbeddings

VOID = {"img", "input", "br", "meta", "link", "hr", "wbr"}


class Case(NamedTuple):
    vectors: np.ndarray
    table: Table
    evaluation: Evaluation


def digits_case(folder: Path, images: int = 200) -> Case:
    """Handwritten digits as little PNG files, and their pixels as embeddings."""
    digits = load_digits()
    paths = []
    for number, pixels in enumerate(digits.images[:images]):
        paths.append(str(folder / f"{number}.png"))
        Image.fromarray((pixels * 15.9).astype(np.uint8)).resize((32, 32)).save(paths[-1])
    table = Table(pd.DataFrame({"path": paths, "label": [f"digit {label}" for label in digits.target[:images]]}))
    vectors = digits.data[:images].astype(np.float32)
    return Case(vectors, table, evaluate(vectors, table))


def case_of(vectors: object, labels: object, **columns: object) -> Case:
    """A set without images."""
    array = np.asarray(vectors, dtype=np.float32)
    table = Table(pd.DataFrame({"label": labels, **columns}))
    return Case(array, table, evaluate(array, table, recall_at=[1]))


def with_interval(evaluation: Evaluation, name: str = "recall@1", low: float = 0.9, high: float = 0.95) -> ResultsTable:
    """The results of an evaluation, with a confidence interval of one metric."""
    intervals = pd.DataFrame({"low": [low], "high": [high]}, index=[name])
    return replace(evaluation.to_results(intervals=intervals), confidence_level=0.95)


def write_run(folder: Path) -> Path:
    folder.mkdir()
    (folder / "recipe.yaml").write_text("loss:\n  margin: 0.1  # </pre><script>\n", encoding="utf-8")
    (folder / "log.csv").write_text(
        "step,epoch,loss,lr model\n" + "".join(f"{n},0,{3 / n},0.1\n" for n in range(1, 9)) + "9,"
    )
    (folder / "metrics.csv").write_text("step,epoch,recall@1,mAP@R\n4,1,0.5,0.3\n8,2,0.75,0.4\n")
    frame = pd.DataFrame({"label": [1, 1, 2, 2], "split": ["train", "train", "test", "test"]})
    Table(frame).save(folder / "table.parquet")
    return folder


Bounds = dict[str, tuple[float, float]]


def results_of(
    sets: dict[str, EvaluatedEmbeddings],
    intervals: dict[str, Bounds] | None = None,
    differences: dict[str, Bounds] | None = None,
    confidence_level: float = 0.95,
) -> ResultsTable:
    """The results of all sets, with the given intervals of values and of differences."""
    tables = []
    for name, each in sets.items():
        low_high = frame_of((intervals or {}).get(name, {}), "low", "high")
        apart = frame_of((differences or {}).get(name, {}), "difference_low", "difference_high")
        tables.append(each.evaluation.to_results(name, intervals=low_high, differences=apart))
    return replace(ResultsTable.concat(tables), confidence_level=confidence_level)


def frame_of(bounds: Bounds, *columns: str) -> pd.DataFrame:
    return pd.DataFrame.from_dict(bounds, orient="index", columns=list(columns), dtype=float)


class Page(HTMLParser):
    """What a written page holds.

    Attributes:
        elements: every element, with its attributes.
        words: all text outside scripts and styles; spaces that do not break are plain ones.
        data: what the script reads.
        unclosed: elements that were opened and not closed, or closed and not opened.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.unclosed: list[str] = []
        self.words = ""
        self.data: dict[str, Any] = {}
        self.feed(self.source)
        self.close()
        self.unclosed += self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()
        else:
            self.unclosed.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script" and dict(self.elements[-1][1]).get("id") == "page-data":
            self.data = json.loads(data)
        elif not self.open or self.open[-1] not in ("script", "style"):
            self.words += data.replace("\N{NO-BREAK SPACE}", " ")

    def all(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        """The attributes of every element of a kind that has these values."""
        return [
            attributes
            for name, attributes in self.elements
            if name == tag and all(attributes.get(key.rstrip("_")) == value for key, value in wanted.items())
        ]

    @property
    def sections(self) -> list[str | None]:
        return [attributes.get("id") for attributes in self.all("section")]


def draw_pictures(folder: Path, number: int) -> list[str]:
    """Draw smooth pictures, no two alike, and return their paths."""
    rng = np.random.default_rng(number)
    folder.mkdir(exist_ok=True)
    for each in range(number):
        pixels = rng.integers(0, 255, (6, 6, 3)).astype(np.uint8)
        Image.fromarray(pixels).resize((64, 48), Image.Resampling.BICUBIC).save(folder / f"{each}.png")
    return [f"{folder}/{each}.png" for each in range(number)]
