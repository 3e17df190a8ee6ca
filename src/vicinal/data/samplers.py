"""Which images make a batch: balanced over classes, or plainly at random."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from itertools import pairwise
from operator import index
from typing import Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

from vicinal.console import log
from vicinal.errors import InputError

Rows = npt.NDArray[np.int64]


class RandomBatchSampler:
    """Batches of images in random order, each at most once an epoch; what fills no whole batch is left for another.

    Args:
        labels_or_n: the labels `[n]`, or their number.
        batch: images in a batch, over all processes.
        seed: not negative; order is a function of it and of the epoch.
        rank: number of this process.
        world: number of processes; each gets its part of every batch.

    Raises:
        InputError: a batch that is larger than the dataset or that the processes cannot share evenly.

    Example:
        >>> [len(batch) for batch in RandomBatchSampler(10, batch=4)]
        [4, 4]
    """

    def __init__(
        self, labels_or_n: Sized | SupportsIndex, batch: int, seed: int = 0, rank: int = 0, world: int = 1
    ) -> None:
        self.images = len(labels_or_n) if isinstance(labels_or_n, Sized) else index(labels_or_n)
        self.batch, self.seed, self.rank, self.world = batch, seed, rank, world
        self.epoch = 0
        _check_shares(batch, seed, rank, world)
        if batch > self.images:
            raise InputError(f"batch is {batch}, but there are {self.images} images; take a smaller batch")

    def __len__(self) -> int:
        return self.images // self.batch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration gives."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.images)
        batches = order[: len(self) * self.batch].reshape(len(self), self.batch)
        yield from share(batches, self.rank, self.world)


class ClassBalancedSampler:
    """Batches of `per_class` images of each of `batch / per_class` classes.

    In an epoch as many images are drawn as there are. A class is drawn in proportion to its images, so that
    every image is seen equally often in the long run, but at most once a batch: a class that holds
    more than its share of a batch is seen less. Within a class, no image comes again before all have come, but to
    fill up its last group.

    Args:
        labels: of the images, `[n]`, integers or names.
        batch: images in a batch, over all processes.
        per_class: images of each class in a batch.
        classes_with_fewer: what becomes of classes with fewer than `per_class` images: `leave_out`, or `replace`: they
            are drawn with replacement.
        seed: not negative; the batches are a function of it and of the epoch.
        rank: number of this process.
        world: number of processes; each gets whole classes, as many as every other, and together they get the batches
            that one process would.
        names: of the classes, in sorted order of their labels, for messages; by default the labels themselves.

    Raises:
        InputError: a batch that is not made of whole classes, that needs more classes than there are, or that the
            processes cannot share evenly.

    Attributes:
        left_out: names of the classes that are left out.
        with_replacement: names of the classes that are drawn with replacement.

    Example:
        >>> sampler = ClassBalancedSampler(labels=[0, 0, 1, 1, 2, 2, 2, 3], batch=4, per_class=2)
        >>> sampler.left_out, len(sampler)
        ([3], 1)
    """

    def __init__(
        self,
        labels: npt.ArrayLike,
        batch: int,
        per_class: int,
        classes_with_fewer: Literal["leave_out", "replace"] = "leave_out",
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        names: Sequence[object] | None = None,
    ) -> None:
        self.batch, self.per_class, self.seed, self.rank, self.world = batch, per_class, seed, rank, world
        self.epoch = 0
        if per_class < 1 or batch % per_class:
            raise InputError(f"batch is {batch}, per_class {per_class}; batch must be a multiple of per_class")
        if classes_with_fewer not in ("leave_out", "replace"):
            raise InputError(f"classes_with_fewer is {classes_with_fewer!r}; it can be leave_out or replace")
        _check_shares(self.classes_a_batch, seed, rank, world, "the classes of a batch")
        found, members = rows_by_class(np.asarray(labels))
        small = [name for name, rows in zip(names or found, members, strict=True) if len(rows) < per_class]
        leave_out = classes_with_fewer == "leave_out"
        self.left_out = small if leave_out else []
        self.with_replacement = [] if leave_out else small
        self.members = [rows for rows in members if len(rows) >= per_class or not leave_out]
        self._tell_of_small_classes()
        self._refuse_too_few_classes()

    @property
    def classes_a_batch(self) -> int:
        """How many classes a batch holds, over all processes."""
        return self.batch // self.per_class

    def _tell_of_small_classes(self) -> None:
        small = self.left_out or self.with_replacement
        if small and self.rank == 0:
            done = "left out" if self.left_out else "drawn with replacement"
            some = ", ".join(map(str, small[:8])) + (", ..." if len(small) > 8 else "")
            log(f"{len(small)} classes with fewer than {self.per_class} images are {done}: {some}")

    def _refuse_too_few_classes(self) -> None:
        if len(self.members) < self.classes_a_batch:
            left_out = (
                f" ({len(self.left_out)} with fewer than {self.per_class} images left out)" if self.left_out else ""
            )
            raise InputError(
                f"batch is {self.batch}, per_class {self.per_class}: that takes {self.classes_a_batch} classes, but "
                f"there are {len(self.members)}{left_out}; take a smaller batch or more images per class"
            )

    def __len__(self) -> int:
        return max(1, sum(map(len, self.members)) // self.batch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration gives."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        rng = np.random.default_rng([self.seed, self.epoch])
        batches = balanced_batches(self.members, len(self), self.classes_a_batch, self.per_class, rng)
        yield from share(batches, self.rank, self.world)


def _check_shares(items: int, seed: int, rank: int, world: int, what: str = "batch") -> None:
    if items < 1 or world < 1 or items % world:
        raise InputError(f"{what}: {items} cannot be shared evenly by {world} processes")
    if not 0 <= rank < world or seed < 0:
        raise InputError(
            f"rank is {rank} of {world}, seed {seed}; rank must be from 0 to {world - 1}, seed not negative"
        )


def share(batches: Rows, rank: int, world: int) -> list[list[int]]:
    """The part that a process gets of every batch `[batches, images]`."""
    part = batches.shape[1] // world
    return batches[:, rank * part : (rank + 1) * part].tolist()


def rows_by_class(labels: npt.NDArray[np.generic]) -> tuple[list[object], list[Rows]]:
    """The classes in sorted order, and the rows of each."""
    if not len(labels):
        raise InputError("there are no labels, so no batch can be made; give at least one image")
    found, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    rows = np.argsort(codes, kind="stable")
    return found.tolist(), np.split(rows, np.cumsum(counts)[:-1])


def balanced_batches(
    members: Sequence[Rows], batches: int, classes_a_batch: int, per_class: int, rng: np.random.Generator
) -> Rows:
    """Batches in which no class comes twice, each class in as many as its size says.

    Args:
        members: rows of each class; at least `classes_a_batch` classes.
        batches: how many batches.
        classes_a_batch: classes in each.
        per_class: images of each class.
        rng: where the order comes from.

    Returns:
        Rows `[batches, classes_a_batch * per_class]`, class by class.
    """
    sizes = np.array([len(rows) for rows in members])
    quotas = drawn_quotas(sizes, np.full(len(sizes), batches), batches * classes_a_batch, rng)
    classes = rng.permutation(np.flatnonzero(quotas))
    groups = np.concatenate([_groups(members[c], quotas[c], per_class, rng) for c in classes])
    owners = np.repeat(classes, quotas[classes])
    return groups[dealt(owners, batches, rng)].reshape(batches, -1)


def drawn_quotas(sizes: Rows, limits: Rows, total: int, rng: np.random.Generator) -> Rows:
    """What each gives to the sum `total`: as its size, at most its limit; what the limits cut off goes to the others.

    Args:
        sizes: of each, positive.
        limits: of each; their sum is at least `total`.
        total: sum of the quotas.
        rng: decides what is rounded up; a quota is in the mean what it would be without rounding.
    """
    assert 0 < total <= limits.sum(), (limits, total)
    shares = np.minimum(sizes * (total / sizes.sum()), limits)
    while not np.isclose(shares.sum(), total, rtol=1e-9):
        free = shares < limits
        shares[free] *= (total - limits[~free].sum()) / shares[free].sum()
        shares = np.minimum(shares, limits)
    return _rounded(shares, total, rng)


def _rounded(shares: npt.NDArray[np.float64], total: int, rng: np.random.Generator) -> Rows:
    """Round each up or down at random to the sum `total`, true to its value in the mean (systematic sampling)."""
    quotas = np.floor(shares).astype(np.int64)
    order = rng.permutation(len(shares))
    edges = np.cumsum((shares - quotas)[order])
    raised = total - quotas.sum()
    points = (np.arange(raised) + rng.random()) * (edges[-1] / max(raised, 1))
    quotas[order[np.searchsorted(edges, points)]] += 1
    return quotas


def _groups(rows: Rows, quota: int, per_class: int, rng: np.random.Generator) -> Rows:
    """`quota` groups of the class, `[quota, per_class]`: pass after pass over all its images, in new orders."""
    passes = -(-quota // -(-len(rows) // per_class))
    return np.concatenate([_one_pass(rng.permutation(rows), per_class, rng) for _ in range(passes)])[:quota]


def _one_pass(rows: Rows, per_class: int, rng: np.random.Generator) -> Rows:
    if len(rows) < per_class:
        return np.resize(rows, (1, per_class))
    missing = -len(rows) % per_class
    already = rows[: len(rows) - len(rows) % per_class]  # none of these is in the group that is filled up
    return np.concatenate([rows, rng.choice(already, missing, replace=False)]).reshape(-1, per_class)


def dealt(owners: Rows, batches: int, rng: np.random.Generator) -> Rows:
    """The cards of each batch, such that no owner comes to a batch twice that could come to another.

    The cards lie owner by owner, and each round deals one to every batch, in random order. An owner can
    come again to a batch only where it runs over from one round into the next; there, the batches that have least of it
    come first. So an owner of at most as many cards as there are batches comes to none of them twice.

    Args:
        owners: of each card, `[batches * cards a batch]`; equal owners lie side by side.
        batches: how many batches.
        rng: where the order comes from.

    Returns:
        Positions in `owners`, `[batches, cards a batch]`.
    """
    rounds = owners.reshape(-1, batches)
    order = rng.permutation(batches)
    orders, held = [order], np.zeros(batches, np.int64)
    for before, after in pairwise(rounds):
        # What each batch holds of the owner that runs over, who may have taken up whole rounds before.
        held = held * (before[0] == after[0]) + np.bincount(order[before == after[0]], minlength=batches)
        order = rng.permutation(batches)
        first = order[np.argsort(held[order], kind="stable")][: (after == after[0]).sum()]
        order = np.concatenate([first, rng.permutation(np.setdiff1d(order, first))])
        orders.append(order)
    slots = np.argsort(np.stack(orders), axis=1).T
    return slots + np.arange(len(rounds)) * batches
