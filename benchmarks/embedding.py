"""What shards, and Ray, cost over a loop in one process that reads images, embeds them and keeps the vectors.

    python -m benchmarks.embedding                       # ResNet-50 at 224 pixels
    python -m benchmarks.embedding --images 96 --rounds 2

The three take turns on the same JPEGs, model and batches, each with all threads. What is measured are the last three
quarters of the images, which leaves out what happens once: loading the model, and starting Ray and its workers; that is
in the column "start". The goal is a time of at most 1.05 times that of the loop. Seconds of the processor, of all
processes together, are measured too, since they say more on a machine that is not idle.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("RAY_worker_niceness", "0")  # as that of the others, which matters on a machine that is not idle

import numpy as np
import psutil
import torch

from benchmarks.images import picture
from benchmarks.table import print_machine
from vicinal.data import ImageDataset, Table
from vicinal.data.batches.image_dataset import EmbeddedBatch
from vicinal.data.shard_manifest import ShardManifest
from vicinal.models import Embedder
from vicinal.workflows import EmbeddingReader, embed_on_ray, embed_shard
from vicinal.workflows.shards import ShardJob

QUARTERS = 4
PROCESS = psutil.Process()


@dataclass(frozen=True)
class Clock:
    """Seconds on the wall, and of the processor by this process and those that it started."""

    wall: float
    processor: float

    @classmethod
    def now(cls) -> Clock:
        """Read both."""
        seconds = 0.0
        for process in (PROCESS, *PROCESS.children(recursive=True)):
            with suppress(psutil.Error):  # it has ended meanwhile
                times = process.cpu_times()
                seconds += times.user + times.system
        return cls(time.perf_counter(), seconds)

    def __sub__(self, other: Clock) -> Clock:
        return Clock(self.wall - other.wall, self.processor - other.processor)


@dataclass(frozen=True)
class Measured:
    """What the last three quarters of the images took, and the seconds on the wall of what happens once."""

    steady: Clock
    start: float

    @classmethod
    def of(cls, started: Clock, quarter: Clock, ended: Clock) -> Measured:
        """From when everything started, a quarter of the images was embedded, and all were."""
        steady = ended - quarter
        return cls(steady, (ended - started).wall - steady.wall * QUARTERS / (QUARTERS - 1))


def loop(model: str, images: str, folder: Path, batch_size: int) -> Measured:
    """What one writes by hand."""
    started = Clock.now()
    embedder = Embedder.from_pretrained(model).eval()
    dataset = ImageDataset(Table.from_folder(images), embedder.transform)
    transform, parts, times = embedder.transform.test(), [], []
    with torch.inference_mode():
        for start in range(0, len(dataset), batch_size):
            rows = range(start, min(start + batch_size, len(dataset)))
            parts.append(embedder(torch.stack([dataset.load(row, transform) for row in rows])).numpy())
            times.append(Clock.now())
    np.save(folder / "vectors.npy", np.concatenate(parts))
    return Measured.of(started, times[len(times) // QUARTERS - 1], Clock.now())


def shards(
    embed: Callable[..., object], model: str, images: str, folder: Path, batch_size: int, part_size: int
) -> Measured:
    """A shard of four parts; the clock is read as batches arrive, which with Ray is not in their order."""
    started, times, complete = Clock.now(), [], ShardJob.complete

    def timed(embedded: Iterator[EmbeddedBatch]) -> Iterator[EmbeddedBatch]:
        for batch in embedded:
            times.append(Clock.now())
            yield batch

    def timed_job(job: ShardJob, embedded: Iterator[EmbeddedBatch]) -> ShardManifest:
        manifest = complete(job, timed(embedded))
        times.append(Clock.now())  # before Ray's processes end, whose seconds would be lost
        return manifest

    with patch.object(ShardJob, "complete", timed_job):
        embed(EmbeddingReader(model=model, batch_size=batch_size), images, folder, part_size=part_size)
    return Measured.of(started, times[len(times) // QUARTERS - 1], times[-1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print_machine()
    part_size = given.images // QUARTERS
    with tempfile.TemporaryDirectory() as name:
        model, images = f"{name}/model", Path(name, "images")
        Embedder(given.backbone, dim=512, pretrained=False).save_pretrained(model)
        images.mkdir()
        for number in range(given.images):
            picture(500, 375, number).save(images / f"{number:05d}.jpg", quality=90)
        competitors: dict[str, Callable[..., Measured]] = {
            "loop": loop,
            "--shard 1/1": partial(shards, partial(embed_shard, shard=1, num_shards=1), part_size=part_size),
            "--ray local": partial(shards, embed_on_ray, part_size=part_size),
        }
        found: dict[str, list[Measured]] = {each: [] for each in competitors}
        for turn in range(given.rounds):
            for each, run in competitors.items():
                folder = Path(name, f"{turn} {each.replace('/', ' of ')}")
                folder.mkdir()
                found[each].append(run(model=model, images=str(images), folder=folder, batch_size=given.batch_size))
    _print(found, given.images * (QUARTERS - 1) / QUARTERS)


def _print(found: dict[str, list[Measured]], images: float) -> None:
    print("\n| | images/s, median | lowest - highest | time / loop | processor / loop | start, s |")
    print("|---|---|---|---|---|---|")
    for name, runs in found.items():
        pairs = [(mine.steady, other.steady) for mine, other in zip(runs, found["loop"], strict=True)]
        rates = sorted(images / mine.wall for mine, _ in pairs)
        ratio = statistics.median(mine.wall / other.wall for mine, other in pairs)
        processor = statistics.median(mine.processor / other.processor for mine, other in pairs)
        start = statistics.median(run.start for run in runs)
        spread = f"{rates[0]:.1f} - {rates[-1]:.1f}"
        print(f"| {name} | {statistics.median(rates):.1f} | {spread} | {ratio:.3f} | {processor:.3f} | {start:.1f} |")


if __name__ == "__main__":
    main()
