"""Batch samplers: random batches, and batches balanced over classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from vicinal.data.batches.balanced_batches import DRAWS, ClassSampling, rows_by_class
from vicinal.utils.arrays import Integers
from vicinal.utils.console import counted, log
from vicinal.utils.errors import InputError


class EpochBatchSampler(ABC):
    """Base class of batch samplers whose batches depend on a seed and the epoch only.

    Iteration yields the rows of this process in each batch of the epoch. Together the processes get the batches that
    one process would get.
    """

    def __init__(self, batch_size: int, num_batches: int | None, seed: int, rank: int, world_size: int) -> None:
        if num_batches is not None and num_batches < 1:
            raise InputError(f"num_batches is {num_batches}; it must be at least 1, or None")
        if not 0 <= rank < world_size or seed < 0:
            raise InputError(
                f"rank is {rank} of {world_size}, seed {seed}; rank must be from 0 to {world_size - 1}, seed not "
                "negative"
            )
        self.batch_size, self.num_batches = batch_size, num_batches
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self.epoch = 0

    @abstractmethod
    def __len__(self) -> int:
        """The number of batches in an epoch."""

    @abstractmethod
    def _draw_batches(self, rng: np.random.Generator) -> Integers:
        """The rows of all batches of an epoch, `[batches, batch_size]`."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.epoch = epoch

    def _draw_epoch(self) -> Integers:
        return self._draw_batches(np.random.default_rng([self.seed, self.epoch]))

    def __iter__(self) -> Iterator[list[int]]:
        batches = self._draw_epoch()
        local_size = self.batch_size // self.world_size
        yield from batches[:, self.rank * local_size : (self.rank + 1) * local_size].tolist()


class RandomBatchSampler(EpochBatchSampler):
    """Batches of images in random order. Each image comes at most once per pass; an incomplete last batch is dropped.

    Args:
        num_images: The number of images.
        batch_size: Images per batch, over all processes.
        num_batches: Batches per epoch, from as many passes over the images as needed; None: those of one pass.
        seed: The seed of the random order, which also depends on the epoch; not negative.
        rank: The number of this process.
        world_size: The number of processes; each gets an equal part of every batch.

    Raises:
        InputError: A batch is larger than the dataset or cannot be divided evenly among the processes.

    Example:
        >>> [len(batch) for batch in RandomBatchSampler(10, batch_size=4)]
        [4, 4]
    """

    def __init__(
        self,
        num_images: int,
        batch_size: int,
        *,
        num_batches: int | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        _check_divisible("batch_size", batch_size, world_size)
        super().__init__(batch_size, num_batches, seed, rank, world_size)
        if batch_size > num_images:
            raise InputError(f"batch_size is {batch_size}, but there are {num_images} images; use a smaller batch")
        self.num_images = num_images

    def __len__(self) -> int:
        return self.num_batches or self.num_images // self.batch_size

    def _draw_batches(self, rng: np.random.Generator) -> Integers:
        per_pass = self.num_images // self.batch_size
        passes = [rng.permutation(self.num_images)[: per_pass * self.batch_size] for _ in range(0, len(self), per_pass)]
        return np.concatenate(passes).reshape(-1, self.batch_size)[: len(self)]


class ClassBalancedBatchSampler(EpochBatchSampler):
    """Batches of `samples_per_class` images of each of `batch_size / samples_per_class` classes.

    No class comes to a batch twice, and within a class no image is repeated before all have been drawn, except to
    complete the last group. How often a class is drawn depends on `class_sampling`:

    - `by_size`: in proportion to its number of images, so that every image is drawn equally often in the long run. A
      class with more than its part of the images is drawn less often, since it comes to a batch once at most.
    - `uniform`: the classes of each batch are drawn at random, and all are equally likely.
    - `exhaustive`: until it is exhausted. Every class is divided into groups of `samples_per_class` images, and each
      group is used once per epoch; leftover images of a class are not. The classes are put in random order, and each
      batch takes a group of each of the first classes that have groups left, until these are too few for a batch. The
      batches are then put in random order. The published code of Smooth-AP, RS@k and ROADMAP does this. The more
      classes a batch has, the more images an epoch leaves out: if it has all classes, the epoch ends when the smallest
      one is exhausted.

    With `by_size` and `uniform`, an epoch has about as many images as the dataset; with `exhaustive`, never more.

    Args:
        labels: The labels of the images, `[n]`, integers or names.
        batch_size: Images per batch, over all processes.
        samples_per_class: Images of each class in a batch.
        class_sampling: How often a class is drawn: `by_size`, `uniform` or `exhaustive`.
        num_batches: Batches per epoch; None: as many as said above.
        small_classes: What to do with classes of fewer than `samples_per_class` images: `drop` them, or draw their
            images with replacement (`replace`).
        seed: The seed of the random order, which also depends on the epoch; not negative.
        rank: The number of this process.
        world_size: The number of processes; each gets an equal number of whole classes of every batch.
        class_names: The names of the classes for messages, in sorted order of the labels; by default the labels.

    Raises:
        InputError: A batch does not consist of whole classes, needs more classes than there are, or cannot be divided
            evenly among the processes.

    Attributes:
        dropped_classes: The names of the classes that are dropped.
        replaced_classes: The names of the classes whose images are drawn with replacement.

    Example:
        >>> sampler = ClassBalancedBatchSampler(labels=[0, 0, 1, 1, 2, 2, 2, 3], batch_size=4, samples_per_class=2)
        >>> sampler.dropped_classes, len(sampler)
        ([3], 1)
    """

    def __init__(
        self,
        labels: npt.ArrayLike,
        batch_size: int,
        samples_per_class: int,
        *,
        class_sampling: ClassSampling = "by_size",
        num_batches: int | None = None,
        small_classes: Literal["drop", "replace"] = "drop",
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        class_names: Sequence[object] | None = None,
    ) -> None:
        if samples_per_class < 1 or batch_size % samples_per_class:
            raise InputError(
                f"batch_size is {batch_size}, samples_per_class {samples_per_class}; batch_size must be a multiple of "
                "samples_per_class"
            )
        if small_classes not in ("drop", "replace"):
            raise InputError(f"small_classes is {small_classes!r}; it can be drop or replace")
        if class_sampling not in DRAWS:
            raise InputError(f"class_sampling is {class_sampling!r}; it can be {', '.join(DRAWS)}")
        _check_divisible("classes per batch", batch_size // samples_per_class, world_size)
        super().__init__(batch_size, num_batches, seed, rank, world_size)
        self.samples_per_class, self.class_sampling = samples_per_class, class_sampling
        found, members = rows_by_class(np.asarray(labels))
        names = class_names or found
        small = [name for name, rows in zip(names, members, strict=True) if len(rows) < samples_per_class]
        drop = small_classes == "drop"
        self.dropped_classes, self.replaced_classes = (small, []) if drop else ([], small)
        self.members = [rows for rows in members if len(rows) >= samples_per_class or not drop]
        self._log_small_classes()
        self._check_number_of_classes()

    @property
    def classes_per_batch(self) -> int:
        """The number of classes in a batch, over all processes."""
        return self.batch_size // self.samples_per_class

    def _log_small_classes(self) -> None:
        small = self.dropped_classes or self.replaced_classes
        if small and self.rank == 0:
            action = "left out" if self.dropped_classes else "drawn with replacement"
            first = ", ".join(map(str, small[:8])) + (", ..." if len(small) > 8 else "")
            classes = counted(len(small), "class with fewer", "classes with fewer")
            verb = "is" if len(small) == 1 else "are"
            log(f"{classes} than {self.samples_per_class} images {verb} {action}: {first}")

    def _check_number_of_classes(self) -> None:
        if len(self.members) < self.classes_per_batch:
            number = len(self.dropped_classes)
            dropped = f" ({number} with fewer than {self.samples_per_class} images left out)" if number else ""
            raise InputError(
                f"batch_size is {self.batch_size}, samples_per_class {self.samples_per_class}: that needs "
                f"{self.classes_per_batch} classes, but there are {len(self.members)}{dropped}; {self._smaller_batch()}"
            )

    def _smaller_batch(self) -> str:
        if len(self.members) < 2:
            return "at least two classes with enough images are needed"
        return f"use a batch_size of {len(self.members) * self.samples_per_class} or less, or more images per class"

    def __len__(self) -> int:
        if self.num_batches is not None:
            return self.num_batches
        if self.class_sampling == "exhaustive":  # depends on the random order of the classes
            return len(self._draw_epoch())
        return max(1, sum(map(len, self.members)) // self.batch_size)

    def _draw_batches(self, rng: np.random.Generator) -> Integers:
        is_one_pass = self.class_sampling == "exhaustive" and self.num_batches is None
        draw, number = DRAWS[self.class_sampling], None if is_one_pass else len(self)
        return draw(self.members, number, self.classes_per_batch, self.samples_per_class, rng)


def _check_divisible(what: str, number: int, world_size: int) -> None:
    if number < 1 or world_size < 1 or number % world_size:
        raise InputError(f"{what}: {number} cannot be divided evenly among {world_size} processes")
