"""From JPEG files to tensors of 224 x 224 pixels: images a second on one core, beside torchvision's ImageFolder.

    taskset -c 0 python -m benchmarks.images                       # 500 x 375 and 4,000 x 3,000 pixels
    taskset -c 0 python -m benchmarks.images --sizes 1600x1200 --images 20
    python -m benchmarks.images --augmentation --sizes 500x375    # what flip and color jitter cost a worker

The JPEGs are generated: colors at four scales and grain, as many bytes per pixel as photos have. ImageFolder reads them
with the transforms of torchvision's own examples, with the interpolation of ours; the exact path is ours with
`transform.fast: false`. The competitors take turns, round after round; ratios are the median of the rounds' own ratios.
Files are in the cache of the operating system, and everything runs in one thread. Seconds are those of the processor,
so that what it does for others does not count.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder

from benchmarks.table import markdown_table, print_machine, print_table, take_turns
from vicinal.data import ImageDataset, ImageTransform, Table, TrainBatches
from vicinal.data.batches.image_dataset import PixelBatches
from vicinal.data.images.augmentation import augment
from vicinal.data.images.image_ops import normalized

BATCH_SIZE, QUALITY = 10, 90
SCALES = {4: 0.5, 16: 0.25, 64: 0.15, 256: 0.1}  # cells across the image: their part of the color


def picture(width: int, height: int, seed: int) -> Image.Image:
    """Colors at several scales, with grain."""
    rng = np.random.default_rng(seed)
    pixels = rng.normal(0, 3, (height, width, 1)).astype(np.float32)
    for cells, part in SCALES.items():
        colors = rng.integers(0, 256, (max(2, cells * height // width), cells, 3), dtype=np.uint8)
        large = Image.fromarray(colors).resize((width, height), Image.Resampling.BICUBIC)
        pixels = pixels + part * np.asarray(large, dtype=np.float32)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def peer(folder: Path, train: bool) -> Callable[[], object]:
    """ImageFolder with the transforms of torchvision's examples."""
    mode = transforms.InterpolationMode.BICUBIC
    crop = (
        [transforms.RandomResizedCrop(224, scale=(0.2, 1.0), interpolation=mode), transforms.RandomHorizontalFlip()]
        if train
        else [transforms.Resize(256, interpolation=mode), transforms.CenterCrop(224)]
    )
    transform = ImageTransform()
    steps = [*crop, transforms.ToTensor(), transforms.Normalize(transform.mean, transform.std)]
    images = ImageFolder(str(folder), transforms.Compose(steps))
    rows = range(len(images))

    def run() -> None:
        for start in rows[::BATCH_SIZE]:
            torch.stack([images[row][0] for row in rows[start : start + BATCH_SIZE]])

    return run


def ours(folder: Path, train: bool, fast: bool) -> Callable[[], object]:
    """The batches that a run trains on, or those that embeddings are computed from, normalized as the embedder does."""
    dataset = ImageDataset(Table.from_folder(folder), ImageTransform(resize=256, fast=fast))
    plan = [list(range(len(dataset)))[start : start + BATCH_SIZE] for start in range(0, len(dataset), BATCH_SIZE)]
    training, testing = TrainBatches(dataset, plan, seed=(0,)), PixelBatches(dataset, plan)

    def run() -> None:
        for number in range(len(plan)):
            _ = normalized(training[number]["images"] if train else testing[number][0], dataset.transform)

    return run


@contextmanager
def pictures(width: int, height: int, num_images: int) -> Iterator[Path]:
    """A folder of JPEGs of two classes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(num_images):
            path = folder / f"class{number % 2}" / f"{number}.jpg"
            path.parent.mkdir(exist_ok=True)
            picture(width, height, number).save(path, quality=QUALITY)
        yield folder


def measure_augmentation(width: int, height: int, num_images: int, rounds: int) -> None:
    """Print the cost of augmentation in a worker, and on a CPU for the part left to the device."""
    kinds = {
        "random crop": ImageTransform(flip=0.0),
        "random crop, flip": ImageTransform(),
        "random crop, flip, color jitter 0.4": ImageTransform(color_jitter=0.4),
        "the same, `fast: false`": ImageTransform(color_jitter=0.4, fast=False),
    }
    with pictures(width, height, num_images) as folder:
        rows = [[name, *augmentation_costs(folder, transform, rounds)] for name, transform in kinds.items()]
    print(f"\n{width:,} x {height:,} pixels, CPU time per image, lowest - highest of {rounds} rounds:\n")
    columns = ["", "`workers`: in a worker", "`device`: in a worker", "`device`: the rest, on a CPU"]
    print(markdown_table(columns, rows))


def augmentation_costs(folder: Path, transform: ImageTransform, rounds: int) -> list[str]:
    dataset = ImageDataset(Table.from_folder(folder), transform)
    plan = [list(range(len(dataset)))]
    by_workers = TrainBatches(dataset, plan, seed=(0,))
    for_device = TrainBatches(dataset, plan, (0,), "device")
    batch = for_device[0]
    competitors: dict[str, Callable[[], object]] = {
        "workers": lambda: by_workers[0],
        "device": lambda: for_device[0],
    }
    if "augmentation" in batch:
        competitors["rest"] = lambda: augment(batch["images"], batch["augmentation"], transform)
    costs = take_turns(competitors, rounds, time.process_time)
    cells = [[1000 * seconds / len(dataset) for seconds in each] for each in costs.values()]
    return [*(f"{min(each):.2f} - {max(each):.2f} ms" for each in cells), *["nothing"] * (3 - len(cells))]


def measure(width: int, height: int, num_images: int, rounds: int) -> None:
    """Print the tables of one size, in training and in tests."""
    with pictures(width, height, num_images) as folder:
        kilobytes = sum(path.stat().st_size for path in folder.rglob("*.jpg")) / num_images / 1000
        for train, view in ((True, "random crop, flip"), (False, "resize to 256, center crop")):
            competitors = {
                "ImageFolder": peer(folder, train),
                "vicinal": ours(folder, train, fast=True),
                "vicinal, exact": ours(folder, train, fast=False),
            }
            seconds = take_turns(competitors, rounds, time.process_time)
            title = f"{width:,} x {height:,} pixels, {kilobytes:,.0f} kB, {view}:"
            print_table(title, seconds, num_images, "images", base="ImageFolder")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["500x375", "4000x3000"], metavar="WIDTHxHEIGHT")
    parser.add_argument("--images", type=int, help="images per size (default: about 50 million pixels, 10 to 200)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--augmentation", action="store_true", help="the cost of augmentation, in workers and out")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print_machine()
    print(f"torchvision {torchvision.__version__}, Pillow {PIL.__version__}")
    for size in arguments.sizes:
        width, height = map(int, size.split("x"))
        number = arguments.images or min(200, max(10, 50_000_000 // (width * height)))
        (measure_augmentation if arguments.augmentation else measure)(width, height, number, arguments.rounds)


if __name__ == "__main__":
    main()
