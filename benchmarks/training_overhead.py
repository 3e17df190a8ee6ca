"""What our trainer and `embed` cost over the loops that one would write by hand, on the same model, data and loss.

    python -m benchmarks.training_overhead

Goals: training at most 3 % slower than a bare PyTorch loop, `embed` at least 0.97 of the images a second of a bare
timm loop.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import timm
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from benchmarks.glyphs import glyphs
from benchmarks.table import print_machine, print_table, take_turns
from vicinal.data import ClassBalancedBatchSampler, Table
from vicinal.losses import MultiSimilarityLoss
from vicinal.models import Embedder
from vicinal.training import Recipe, Trainer
from vicinal.utils.run_folder import RunFolder

SIZE, BATCH, PER_CLASS, DIM = 64, 64, 4, 128
RECIPE = f"""
model: {{backbone: resnet10t, dim: {DIM}, pretrained: false}}
transform: {{size: {SIZE}, resize: {SIZE}, scale: [0.6, 1.0]}}
data: {{source: digits, cache: true}}
batch_size: {BATCH}
samples_per_class: {PER_CLASS}
optimizer: {{name: adamw, lr: 0.0001}}
schedule: {{name: constant}}
epochs: 1000
accelerator: cpu
"""


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """What one writes by hand: pictures, labels, a transform."""

    def __init__(self, table: Table, transform: Callable[[Image.Image], torch.Tensor], cache: bool) -> None:
        self.paths, self.labels, self.transform = table.paths, table.labels.tolist(), transform
        self.pictures = [self._open(path) for path in self.paths] if cache else None

    @staticmethod
    def _open(path: str) -> Image.Image:
        with Image.open(path) as picture:
            return picture.convert("RGB")

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        picture = self.pictures[row] if self.pictures else self._open(self.paths[row])
        return self.transform(picture), self.labels[row]


def bare_training(table: Table) -> Callable[[], None]:
    """An epoch of a bare PyTorch loop."""
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(SIZE, (0.6, 1.0), interpolation=v2.InterpolationMode.BICUBIC),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    pictures = Pictures(table, transform, cache=True)
    sampler = ClassBalancedBatchSampler(table.labels, BATCH, PER_CLASS)
    model, loss = Embedder("resnet10t", dim=DIM, pretrained=False), MultiSimilarityLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4)

    def epoch() -> None:
        model.train()
        for images, labels in DataLoader(pictures, batch_sampler=sampler):
            value = loss(model(images), labels)
            value.backward()
            optimizer.step()
            optimizer.zero_grad()

    return epoch


def our_training(recipe: Recipe, table: Table, folder: Path) -> Callable[[], None]:
    """An epoch of the trainer, with its logs, its checks and its checkpoint."""
    trainer = Trainer(recipe, table, RunFolder(folder / "run"))
    trainer.start()

    def epoch() -> None:
        with trainer.watching():
            trainer.train_epoch()
        trainer.progress.epoch += 1
        trainer.progress.steps_in_epoch = 0
        trainer.save()

    return epoch


def training_floor(steps: int) -> Callable[[], None]:
    """The network alone: forward, backward and optimizer on ready tensors."""
    model = Embedder("resnet10t", dim=DIM, pretrained=False)
    optimizer, images = torch.optim.AdamW(model.parameters(), lr=1e-4), torch.randn(BATCH, 3, SIZE, SIZE)

    def epoch() -> None:
        for _ in range(steps):
            model(images).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    return epoch


def bare_embedding(table: Table, batch_size: int) -> Callable[[], None]:
    """A bare timm loop, with timm's own model and transform."""
    model = timm.create_model("resnet10t", pretrained=False, num_classes=DIM).eval()
    transform = timm.data.create_transform((3, SIZE, SIZE), interpolation="bicubic", crop_pct=1.0)
    pictures = Pictures(table, transform, cache=False)

    def run() -> None:
        with torch.inference_mode():
            parts = [model(images) for images, _ in DataLoader(pictures, batch_size=batch_size)]
        torch.cat(parts).numpy()

    return run


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print_machine()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "recipe.yaml").write_text(RECIPE)
        recipe = Recipe.load(folder / "recipe.yaml")
        table = glyphs(folder, num_classes=64, samples_per_class=16, size=SIZE)
        table = Table(table.frame.assign(split="train"))
        training = {
            "bare loop": bare_training(table),
            "vicinal": our_training(recipe, table, folder),
            "floor: network on ready tensors": training_floor(len(table) // BATCH),
        }
        seconds = take_turns(training, arguments.rounds)
        print_table(f"training, resnet10t, {SIZE} px, batch {BATCH}", seconds, len(table), "images", "bare loop")
        model = Embedder("resnet10t", dim=DIM, pretrained=False, transform=recipe.settings.transform)
        ready = torch.randn(len(table), 3, SIZE, SIZE)
        embedding = {
            "bare timm loop": bare_embedding(table, 64),
            "vicinal": lambda: model.embed(table, progress=False),
            "floor: network on ready tensors": lambda: model.embed(ready, progress=False),
        }
        seconds = take_turns(embedding, arguments.rounds)
        print_table(f"embedding, resnet10t, {SIZE} px, batch 64", seconds, len(table), "images", "bare timm loop")


if __name__ == "__main__":
    main()
