"""Images as a network sees them: the rows of a table, read, transformed and put into batches."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset

from vicinal.console import log, track
from vicinal.data.decoding import convert_image, read_image
from vicinal.data.table import Table
from vicinal.data.transforms import ImageTransform
from vicinal.errors import InputError
from vicinal.seeds import mixed_seed

Batch = dict[str, torch.Tensor]


class UnreadableImageError(InputError):
    """An image cannot be read; one line, though torch puts a whole traceback before what a loading process raises."""

    def __init__(self, message: str) -> None:
        super().__init__(message.rstrip().splitlines()[-1].removeprefix(f"{__name__}.{type(self).__name__}: "))


class ImageDataset:
    """The images of a table, ready to be read.

    Args:
        table: with paths.
        transform: how images become tensors; its `channels` also say whether they are read as RGB or grey.
        cache: decode every image now and keep it in memory: a byte a pixel if grey, four if RGB.
        on_error: `raise` at an image that cannot be read; or `skip`: read every image now, and leave those out.

    Raises:
        InputError: an image cannot be read, with row and path; or none can.

    Attributes:
        table: the rows that can be read; the numbers of rows elsewhere in this class refer to it.
        skipped: the rows of the given table that were left out.

    Example:
        >>> import pandas as pd, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("L", (9, 9)).save(f"{folder}/a.png")
        ...     table = Table(pd.DataFrame({"path": ["a.png", "lost.png"]}), root=folder)
        ...     dataset = ImageDataset(table, ImageTransform(size=8), on_error="skip")
        ...     batch = TestBatches(dataset, batch=4)[0]
        >>> dataset.skipped, batch["images"].shape, batch["rows"]
        ([1], torch.Size([1, 3, 8, 8]), tensor([0]))
    """

    def __init__(
        self,
        table: Table,
        transform: ImageTransform,
        cache: bool = False,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        if on_error not in ("raise", "skip"):
            raise InputError(f"on_error is {on_error!r}; it can be raise or skip")
        self.table = table
        self.transform = transform
        self.skipped: list[int] = []
        self._paths = table.paths
        self._images: list[Image.Image] | None = None
        if cache or on_error == "skip":
            self._read_all(cache, skip=on_error == "skip")

    def __len__(self) -> int:
        return len(self.table)

    def read(self, row: int) -> Image.Image:
        """The decoded image of a row, of mode RGB or L; do not change it, it may be kept for the next call.

        Raises:
            UnreadableImageError: it cannot be read, with row and path.
        """
        if self._images is not None:
            return self._images[row]
        try:
            return read_image(self._paths[row], self.transform.channels)
        except InputError as error:
            raise UnreadableImageError(f"row {row}: {error}") from None

    def _read_all(self, keep: bool, skip: bool) -> None:
        def attempt(row: int) -> Image.Image | InputError | None:
            try:
                image = self.read(row)
            except InputError as error:
                return error
            return image if keep else None

        results: list[Image.Image | InputError | None] = []
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            try:
                for result in track(pool.map(attempt, range(len(self))), "reading images", total=len(self)):
                    if isinstance(result, InputError) and not skip:
                        raise result
                    results.append(result)
            except BaseException:  # an unreadable image, or Ctrl-C: do not read all the others first
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        self._leave_out({row: result for row, result in enumerate(results) if isinstance(result, InputError)})
        if keep:
            self._images = [result for result in results if isinstance(result, Image.Image)]

    def _leave_out(self, errors: dict[int, InputError]) -> None:
        if not errors:
            return
        first = next(iter(errors.values()))
        if len(errors) == len(self):
            raise InputError(f"none of the {len(self)} images can be read; {first}")
        log(f"left out {len(errors)} of {len(self)} images that cannot be read; {first}")
        self.skipped = list(errors)
        self.table = self.table.take([row for row in range(len(self)) if row not in errors])
        self._paths = self.table.paths


class TrainBatches(Dataset[Batch]):
    """The batches of one epoch, in their training view; item `i` is the `i`-th.

    An item is a function of `seed` and `i` alone, whichever process makes it and whatever was made before: a run can go
    on in the midst of an epoch, and any number of loading processes gives the same batches. The training loop reads
    them by `DataLoader(batches, batch_size=None, sampler=range(first, len(batches)))`.

    Args:
        dataset: the images, with labels.
        plan: the rows of each batch, as a sampler of :mod:`vicinal.data.samplers` yields them.
        seed: of the random views; put run, epoch and process in.

    An item is a dictionary of `images` float32 `[b, channels, size, size]`, `labels` int64 `[b]`, `rows` int64 `[b]`.
    """

    def __init__(self, dataset: ImageDataset, plan: Sequence[Sequence[int]], seed: tuple[int, ...]) -> None:
        self.dataset = dataset
        self.plan = plan
        self.seed = seed
        self.view = dataset.transform.train()
        self.labels = torch.from_numpy(dataset.table.labels)

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, index: int) -> Batch:
        rows = self.plan[index]
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed, which would also touch the generators of the accelerators.
            torch.default_generator.manual_seed(mixed_seed(*self.seed, index % len(self)))
            images = _stacked(self.dataset, rows, self.view)
        numbers = torch.tensor(rows)
        return {"images": images, "labels": self.labels[numbers], "rows": numbers}


class TestBatches(Dataset[Batch]):
    """All images in the order of the table, in their test view; the last batch may be smaller.

    Args:
        dataset: the images.
        batch: how many make a batch.

    An item is a dictionary of `images` float32 `[b, channels, size, size]`, `rows` int64 `[b]` and, if the table has
    labels, `labels` int64 `[b]`.
    """

    __test__ = False  # no test case, whatever its name makes pytest think

    def __init__(self, dataset: ImageDataset, batch: int) -> None:
        if batch < 1:
            raise InputError(f"batch is {batch}; it must be at least 1")
        self.dataset = dataset
        self.batch = batch
        self.view = dataset.transform.test()
        self.labels = torch.from_numpy(dataset.table.labels) if dataset.table.has("label") else None

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.batch)

    def __getitem__(self, index: int) -> Batch:
        first = range(len(self))[index] * self.batch
        rows = range(first, min(first + self.batch, len(self.dataset)))
        item = {"images": _stacked(self.dataset, rows, self.view), "rows": torch.tensor(rows)}
        return item if self.labels is None else {**item, "labels": self.labels[first : rows.stop]}


def _stacked(dataset: ImageDataset, rows: Sequence[int], view: nn.Module) -> torch.Tensor:
    return torch.stack([view(dataset.read(row)) for row in rows])


__all__ = ["Batch", "ImageDataset", "ImageTransform", "TestBatches", "TrainBatches", "convert_image", "read_image"]
