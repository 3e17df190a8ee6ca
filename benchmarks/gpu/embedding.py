"""From JPEG files to embeddings of ViT-B/16: images a second, and where the time goes; and images augmented a second.

The floors are the network on images that are on the device, and reading alone. The trace is that of a few batches by
torch.profiler: `trace.json.gz`, for chrome://tracing or https://ui.perfetto.dev.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.rows import Key, Measurement, Numbers
from benchmarks.gpu.timing import Settings, device_times, measured, seconds_of, spread
from benchmarks.gpu.two_stage import network
from benchmarks.images import QUALITY, picture
from vicinal.data import ImageTransform
from vicinal.data.images.augmentation import AugmentationSampler, augment
from vicinal.models import Embedder
from vicinal.models.inputs import image_batches

WIDTH, HEIGHT = 500, 375
NUM_FILES, NUM_IMAGES, NUM_TRACED, BATCH_SIZE = 128, 16_384, 2_048, 256
SMALL_NUM_FILES, SMALL_NUM_IMAGES, SMALL_BATCH_SIZE = 3, 12, 4
TRACE = "trace.json.gz"


def measurements(settings: Settings) -> Iterator[Measurement]:
    """The floors, the whole, and a trace."""
    size = f"{SMALL_NUM_IMAGES if settings.small else NUM_IMAGES:,} images of {WIDTH} x {HEIGHT}"
    runs: dict[str, Callable[[Settings], Numbers]] = {
        "network on images on the device": _measure_network,
        "reading alone": _measure_reading,
        "files to embeddings": _measure_embedding,
        "flip and color jitter on the device": _measure_augmentation,
    }
    for who, run in runs.items():
        yield Measurement(Key("embedding", "images a second", who, size), partial(run, settings), limit=180)
    key = Key("embedding", "where the time goes", "trace", size)
    yield Measurement(key, partial(_trace, settings, settings.folder / TRACE), limit=180)


def _measure_network(settings: Settings) -> Numbers:
    batch_size, _ = _sizes(settings)
    model = network(settings).eval()
    images = torch.randn(batch_size, 3, *[model.transform.size] * 2, device=settings.device)

    def run() -> None:
        with torch.inference_mode(), torch.autocast(settings.device.type, torch.bfloat16):
            model(images)

    return _with_rate(measured(run, settings), batch_size)


def _measure_augmentation(settings: Settings) -> Numbers:
    batch_size, _ = _sizes(settings)
    transform = ImageTransform(flip=0.5, color_jitter=0.4)
    sampler = AugmentationSampler(transform)
    pixels = torch.randint(0, 256, (batch_size, 3, 224, 224), dtype=torch.uint8).to(settings.device)
    parameters = torch.stack([sampler.draw() for _ in pixels]).to(settings.device)
    return _with_rate(measured(lambda: augment(pixels, parameters, transform), settings), batch_size)


def _measure_reading(settings: Settings) -> Numbers:
    batch_size, paths = _sizes(settings)
    batches = _batches(network(settings), paths, batch_size, settings)
    seconds = seconds_of(lambda: [None for _ in batches], settings.device)
    return _with_rate(spread([1000 * seconds]), len(paths))


def _measure_embedding(settings: Settings) -> Numbers:
    batch_size, paths = _sizes(settings)
    model = network(settings)
    options: dict[str, Any] = {"batch_size": batch_size, "precision": "bf16", "progress": False}
    model.embed(paths[:batch_size], **options)
    seconds = seconds_of(lambda: model.embed(paths, num_workers=_workers(settings), **options), settings.device)
    return _with_rate(spread([1000 * seconds]), len(paths))


def _trace(settings: Settings, path: Path) -> Numbers:
    """Milliseconds by what they are for, over some batches; what overlaps counts in each."""
    batch_size, paths = _sizes(settings)
    model, paths = network(settings), paths[:NUM_TRACED]
    waits: list[float] = []
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (settings.device.type == "cuda")
    model.embed(paths[:batch_size], batch_size=batch_size, precision="bf16", progress=False)
    with profile(activities=activities) as profiler:
        batches = _timed(_batches(model, paths, batch_size, settings), waits)
        with model.embedding_function("bf16") as embed_batch:
            total = 1000 * seconds_of(lambda: [embed_batch(each) for each in batches], settings.device)
    profiler.export_chrome_trace(str(path))
    copies, kernels = device_times(profiler)
    first, later = waits[0], sum(waits[1:])
    rest = max(0.0, total - first - later - copies - kernels)
    times = {"first images": first, "waits for images": later, "copies": copies, "network": kernels, "rest": rest}
    return {**_with_rate(spread([total]), len(paths)), "times": times}


def _timed(batches: Iterable[Tensor], waits: list[float]) -> Iterator[Tensor]:
    """The batches; how long each was waited for is added to `waits`, in milliseconds."""
    iterator, end = None, object()
    while True:
        started = time.perf_counter()
        iterator = iterator or iter(batches)
        batch: Any = next(iterator, end)
        waits.append(1000 * (time.perf_counter() - started))
        if batch is end:
            return
        yield batch


def _batches(model: Embedder, paths: list[str], batch_size: int, settings: Settings) -> Iterable[Tensor]:
    """As :meth:`Embedder.embed` reads them."""
    return image_batches(paths, model.transform, batch_size, _workers(settings), device=settings.device)[0]


def _sizes(settings: Settings) -> tuple[int, list[str]]:
    """The batch size, and the paths of the images."""
    num_files, number = (SMALL_NUM_FILES, SMALL_NUM_IMAGES) if settings.small else (NUM_FILES, NUM_IMAGES)
    files = _files(num_files)
    return SMALL_BATCH_SIZE if settings.small else BATCH_SIZE, (files * -(-number // len(files)))[:number]


@lru_cache(maxsize=1)
def _files(number: int) -> list[str]:
    """JPEG files, in a folder that is deleted when this process ends."""
    _files.folder = tempfile.TemporaryDirectory()  # type: ignore[attr-defined]
    paths = [Path(_files.folder.name, f"{i}.jpg") for i in range(number)]  # type: ignore[attr-defined]
    for i, path in enumerate(paths):
        picture(WIDTH, HEIGHT, i).save(path, quality=QUALITY)
    return [str(path) for path in paths]


def _workers(settings: Settings) -> int:
    return 0 if settings.small else min(16, os.cpu_count() or 1)


def _with_rate(numbers: Numbers, images: int) -> Numbers:
    return {**numbers, "images_per_s": 1000 * images / numbers["ms"]}
