"""The parity report: an exported model compared with the model that it was exported from."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from vicinal.data.table import Table
from vicinal.evaluation import Resampling, ResultsTable, compare_models, count_query_classes, evaluate
from vicinal.export.graph import ExportGraph
from vicinal.export.settings import ExportSettings
from vicinal.utils.arrays import Floats
from vicinal.utils.console import aligned
from vicinal.utils.errors import InputError, one_line

METRICS = ("recall@1", "mAP@R")
BEFORE, AFTER = "before", "after"
REMEDIES = {
    "fp16": "use fp32, or a larger tolerance",
    "int8": "use --fp16 (half the size, nearly no loss), more or other calibration images, or a larger tolerance",
}
BATCHES = (1, 2, 5)
SPEED_BATCH = 16
SPEED_SECONDS = 1.0
CLOCK = time.perf_counter


@dataclass(frozen=True)
class Differences:
    """How much vectors of two models differ.

    Attributes:
        num_images: number of vectors.
        largest: the largest difference of a component.
        mean: the mean difference of a component.
        percentile_99: of the largest difference of each vector.
        smallest_cosine: the smallest cosine similarity between the two vectors of an image.
    """

    num_images: int
    largest: float
    mean: float
    percentile_99: float
    smallest_cosine: float

    @classmethod
    def of(cls, before: Floats, after: Floats) -> Differences:
        """Compare unit vectors [n, dim], row by row.

        Example:
            >>> Differences.of(np.eye(2), np.eye(2)).largest
            0.0
        """
        difference = np.abs(before.astype(np.float64) - after)
        cosines = np.einsum("nd,nd->n", before, after, dtype=np.float64)
        percentile = float(np.percentile(difference.max(axis=1), 99))
        return cls(len(before), float(difference.max()), float(difference.mean()), percentile, float(cosines.min()))


@dataclass(frozen=True)
class ParityReport:
    """An exported model beside the one that it was exported from.

    Attributes:
        settings: of the export.
        fingerprint: of the model, and of the refiner if there is one.
        backbone: of the model.
        images: `check images`, or `images of random pixels`.
        vectors: how much they differ.
        results: the metrics of both models, `before` and `after`, with confidence intervals; None without labels.
        num_bytes: of the weights of the model, and of all files of the exported one.
        images_per_second: of both, from pixels in memory, on the CPU of this machine; empty if not measured.
        machine: processor, threads and versions.
        is_refined: whether a refiner is part of the export.
    """

    settings: ExportSettings
    fingerprint: str
    backbone: str
    images: str
    vectors: Differences
    results: ResultsTable | None
    num_bytes: dict[str, int]
    images_per_second: dict[str, float]
    machine: dict[str, Any]
    is_refined: bool = False

    @property
    def losses(self) -> dict[str, float]:
        """Metric -> the loss of the export, negative for a gain; empty without labels."""
        if self.results is None:
            return {}
        differences = self.results.overall(AFTER)["difference"]
        return {metric: -float(differences[metric]) for metric in METRICS}

    def check(self) -> None:
        """Raise InputError if the export loses more than its settings allow.

        Vectors of a refiner are judged without the 1 % that differ most: where two neighbors are equally near, rounding
        decides which of them takes part.
        """
        settings, limit = self.settings, self.settings.limit
        if not np.isfinite(self.vectors.largest):
            raise InputError(f"the export gives vectors that are not finite in {settings.precision}; use fp32")
        if settings.precision == "fp32":
            found = self.vectors.percentile_99 if self.is_refined else self.vectors.largest
            if found > limit:
                raise InputError(
                    f"the vectors of the export differ by up to {found:.2g} from those of the model, "
                    f"more than the tolerance {limit:g}; nothing was written"
                )
        for metric, loss in self.losses.items():
            if settings.precision != "fp32" and loss > limit:
                raise InputError(
                    f"the export in {settings.precision} loses {100 * loss:.2f} points of {metric}, more than the "
                    f"tolerance {100 * limit:g}; nothing was written: {REMEDIES[settings.precision]}"
                )

    def to_dict(self) -> dict[str, Any]:
        """The report for JSON."""
        return {
            "fingerprint": self.fingerprint,
            "backbone": self.backbone,
            "refined": self.is_refined,
            "settings": {**asdict(self.settings), "tolerance": self.settings.limit},
            "images": self.images,
            "vectors": asdict(self.vectors),
            "metrics": self.metrics(),
            "num_bytes": self.num_bytes,
            "images_per_second": self.images_per_second,
            "machine": self.machine,
        }

    def metrics(self) -> dict[str, dict[str, Any]] | None:
        """Metric -> values and intervals before and after, and their difference; None without labels."""
        if self.results is None:
            return None
        before, after = (self.results.overall(model) for model in (BEFORE, AFTER))
        return {
            metric: {
                BEFORE: _interval(before.loc[metric], "value", "low", "high"),
                AFTER: _interval(after.loc[metric], "value", "low", "high"),
                "difference": _interval(after.loc[metric], "difference", "difference_low", "difference_high"),
            }
            for metric in METRICS
        }

    def to_markdown(self) -> str:
        """The report as a page of Markdown."""
        settings, speeds = self.settings, self.images_per_second
        size = {name: f"{number / 1e6:,.2f} MB" for name, number in self.num_bytes.items()}
        rows: list[tuple[str, ...]] = [("", BEFORE, AFTER, "difference")]
        for metric, values in (self.metrics() or {}).items():
            rows.append((metric, *(_percent(values[key]) for key in (BEFORE, AFTER, "difference"))))
        rows.append(("size", size[BEFORE], size[AFTER], f"{self.num_bytes[AFTER] / self.num_bytes[BEFORE]:.2f} x"))
        if speeds:
            ratio = f"{speeds[AFTER] / speeds[BEFORE]:.2f} x"
            rows.append(("images per second", f"{speeds[BEFORE]:,.0f}", f"{speeds[AFTER]:,.0f}", ratio))
        head, *body = ("| " + " | ".join(row) + " |" for row in rows)
        table = "\n".join([head, "|---|---|---|---|", *body])
        return f"""# {self.backbone} as {settings.format}, {settings.precision}

{self._vectors_text()}

{table}

{self._metrics_text()}Speed is that of the CPU of this machine, {SPEED_BATCH} images at a time from pixels in memory: \
{self.machine["processor"]}, {self.machine["threads"]} threads, {self.machine["versions"]}.
"""

    def __str__(self) -> str:
        rows = [["", BEFORE, AFTER]]
        for metric, values in (self.metrics() or {}).items():
            rows.append([metric, _percent(values[BEFORE]), _percent(values[AFTER])])
        rows.append(["size in MB", *(f"{self.num_bytes[name] / 1e6:.2f}" for name in (BEFORE, AFTER))])
        if self.images_per_second:
            rows.append(["images per second", *(f"{self.images_per_second[name]:,.0f}" for name in (BEFORE, AFTER))])
        return f"{self._vectors_text()}\n{aligned(rows)}"

    def _vectors_text(self) -> str:
        found = self.vectors
        return (
            f"Vectors of {found.num_images:,} {self.images} differ by {found.largest:.2g} at most and "
            f"{found.mean:.2g} on average; the smallest cosine similarity is {found.smallest_cosine:.6f}."
        )

    def _metrics_text(self) -> str:
        if self.results is None:
            return "The images have no labels, so that no metrics could be compared.\n\n"
        level = round(100 * (self.results.confidence_level or 0))
        return f"In brackets {level} % confidence intervals, from resampled {self.results.resample_by}.\n\n"


def compare(before: Floats, after: Floats, table: Table | None, seed: int) -> ResultsTable | None:
    """The metrics of vectors before and after an export; None without labels.

    Intervals are from resampled classes, or from queries if there is one class only.
    """
    if table is None or not table.has("label") or not np.isfinite(after).all():
        return None
    evaluations = {
        name: evaluate(vectors, table, recall_at=[1]) for name, vectors in ((BEFORE, before), (AFTER, after))
    }
    is_several = count_query_classes(evaluations[BEFORE], table) > 1
    return compare_models(evaluations, table, Resampling("classes" if is_several else "queries", seed=seed))


def check_shapes(graph: ExportGraph, infer: Callable[[Floats], Floats], sizes: Sequence[tuple[int, int]]) -> float:
    """The largest difference between a network and its export on random images, for several batch and image sizes."""
    largest = 0.0
    for height, width in sizes:
        for number in BATCHES:
            images = graph.example(number, height, width)
            with torch.inference_mode():
                expected = graph(images).numpy()
            try:
                found = infer(images.numpy())
            except Exception as error:  # runtimes raise errors of their own
                shape = f"a batch of {number}, {height} x {width} px"
                raise InputError(f"the export fails for {shape} ({one_line(error, 200)})") from error
            if found.shape != expected.shape:
                raise InputError(f"the export gives {list(found.shape)} for {number} images; nothing was written")
            largest = float(np.maximum(largest, np.abs(found - expected).max()))  # NaN, if there is one
    return largest


def speeds(models: Mapping[str, Callable[[], Floats]]) -> dict[str, float]:
    """Images per second of several models, which take turns so that other load of the machine slows all of them.

    From the median of at least three calls, or as many as the slowest makes in about a second, after a warm-up.
    """
    if not models:
        return {}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    num_images = {name: len(embed()) for name, embed in models.items()}
    while min(map(len, seconds.values())) < 3 or max(map(sum, seconds.values())) < SPEED_SECONDS:
        for name, embed in models.items():
            start = CLOCK()
            embed()
            seconds[name].append(CLOCK() - start)
    return {name: num_images[name] / statistics.median(each) for name, each in seconds.items()}


def machine(runtime: str) -> dict[str, Any]:
    """The processor, the number of torch's threads, and the versions of torch and of a runtime."""
    from importlib.metadata import version

    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", runtime))
    return {
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "versions": versions,
    }


def _interval(row: Any, *columns: str) -> list[float]:
    return [float(row[column]) for column in columns]


def _percent(interval: Sequence[float]) -> str:
    value, low, high = (100 * each for each in interval)
    return f"{value:.2f} % [{low:.2f}, {high:.2f}]"
