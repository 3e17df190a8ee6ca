"""Batches of parts, each part from one super-label: classes that are alike meet in one batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from vicinal.console import log
from vicinal.data.samplers import (
    ClassBalancedSampler,
    Rows,
    balanced_batches,
    dealt,
    drawn_quotas,
    rows_by_class,
    share,
)
from vicinal.errors import InputError


class HierarchicalBatchSampler(ClassBalancedSampler):
    """Batches of `coarse_per_batch` parts, each of classes of one super-label: balanced hierarchical sampling.

    "Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization" (Liao, Tsiligkaridis,
    Kulis, ICML 2023), H.3. In an epoch as many images are drawn as there are (H.3's are longer: 655 batches on SOP,
    where these are 465). All parts of the epoch are laid out super-label by super-label, each giving as many as
    its images say, so that every image is seen equally often in the long run, and are dealt round robin to the batches.
    A super-label that holds more than its share of the images comes more than once to a batch, as evenly as can be and
    as often as it has classes for different parts: no class comes twice to a batch. Within a part all is as in
    a batch of :class:`ClassBalancedSampler`.

    A super-label with fewer classes than a part takes is joined to the next smallest, until together they can fill one:
    their parts are mixed, but no image is left out and none is seen more often than others.

    Args:
        labels: of the images, `[n]`, integers or names.
        coarse: super-labels of the images, `[n]`, integers or names; one a class.
        batch: images in a batch, over all processes.
        per_class: images of each class in a batch.
        coarse_per_batch: parts in a batch.
        classes_with_fewer: what becomes of classes with fewer than `per_class` images: `leave_out`, or `replace`: they
            are drawn with replacement.
        seed: not negative; the batches are a function of it and of the epoch.
        rank: number of this process.
        world: number of processes; each gets whole classes, as many as every other, and together they get the batches
            that one process would.
        names: of the classes, in sorted order of their labels, for messages; by default the labels themselves.

    Raises:
        InputError: a class of two super-labels, fewer super-labels than a batch has parts or only one, parts that are
            not made of whole classes, or what :class:`ClassBalancedSampler` refuses.

    Attributes:
        joined: the super-labels whose parts are mixed, as tuples of those that share theirs.

    Example:
        >>> labels, coarse = [0, 0, 1, 1, 2, 2, 3, 3], ["cat", "cat", "cat", "cat", "dog", "dog", "dog", "dog"]
        >>> sampler = HierarchicalBatchSampler(labels, coarse, batch=4, per_class=2)
        >>> [sorted({coarse[row] for row in batch}) for batch in sampler]
        [['cat', 'dog'], ['cat', 'dog']]
    """

    def __init__(
        self,
        labels: npt.ArrayLike,
        coarse: npt.ArrayLike,
        batch: int,
        per_class: int,
        coarse_per_batch: int = 2,
        classes_with_fewer: Literal["leave_out", "replace"] = "leave_out",
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        names: Sequence[object] | None = None,
    ) -> None:
        fine, above = np.asarray(labels), np.asarray(coarse)
        _check_hierarchy(fine, above, names)
        super().__init__(fine, batch, per_class, classes_with_fewer, seed, rank, world, names)
        self.coarse_per_batch = coarse_per_batch
        self._refuse_broken_parts()
        found, self._classes_of = rows_by_class(above[[rows[0] for rows in self.members]])
        self._super_labels: list[tuple[object, ...]] = [(name,) for name in found]
        self._join_small_ones()
        self.joined = [each for each in self._super_labels if len(each) > 1]
        self._refuse_too_few_super_labels(len(found))
        self._tell_of_joined_ones()

    @property
    def classes_a_part(self) -> int:
        """How many classes a part of a batch holds."""
        return self.classes_a_batch // self.coarse_per_batch

    def _refuse_broken_parts(self) -> None:
        if self.coarse_per_batch < 1 or self.classes_a_batch % self.coarse_per_batch:
            raise InputError(
                f"batch is {self.batch}, per_class {self.per_class}, coarse_per_batch {self.coarse_per_batch}; "
                "batch must be a multiple of per_class times coarse_per_batch"
            )

    def _refuse_too_few_super_labels(self, found: int) -> None:
        if found == 1:
            raise InputError(
                f"there is only one super-label ({self._super_labels[0][0]}); draw classes whatever their super-label: "
                "ClassBalancedSampler, or in a recipe coarse_per_batch: 0"
            )
        left, least = len(self._super_labels), max(2, self.coarse_per_batch)
        if found < least:
            wanted = f"coarse_per_batch is {self.coarse_per_batch}"
            raise InputError(f"{wanted}, but there are only {found} super-labels; take a smaller one")
        if left < least:
            raise InputError(
                f"the {found} super-labels make only {left} of the {least} that it takes, as each must have the "
                f"{self.classes_a_part} classes of a part and smaller ones are joined; take a smaller batch"
            )

    def _join_small_ones(self) -> None:
        """Join the super-label of fewest classes to the next smallest until each fills a part."""
        pairs = sorted(zip(self._super_labels, self._classes_of, strict=True), key=lambda pair: len(pair[1]))
        while len(pairs) > 1 and len(pairs[0][1]) < self.classes_a_part:
            (name, classes), (other, others), *rest = pairs
            pairs = sorted([(name + other, np.concatenate([classes, others])), *rest], key=lambda pair: len(pair[1]))
        self._super_labels, self._classes_of = [name for name, _ in pairs], [classes for _, classes in pairs]

    def _tell_of_joined_ones(self) -> None:
        if self.joined and self.rank == 0:
            some = "; ".join(" + ".join(map(str, each)) for each in self.joined[:8])
            log(
                f"super-labels with fewer than {self.classes_a_part} classes, a part of a batch, are joined to others: "
                f"{some}{'; ...' if len(self.joined) > 8 else ''}"
            )

    def __iter__(self) -> Iterator[list[int]]:
        rng = np.random.default_rng([self.seed, self.epoch])
        super_labels = self._super_label_of_parts(rng)
        parts = np.empty((*super_labels.shape, self.classes_a_part * self.per_class), np.int64)
        for super_label, classes in enumerate(self._classes_of):
            where = super_labels == super_label
            if where.any():
                parts[where] = self._parts([self.members[each] for each in classes], where.sum(axis=1), rng)
        yield from share(parts.reshape(len(self), self.batch), self.rank, self.world)

    def _super_label_of_parts(self, rng: np.random.Generator) -> Rows:
        """Which super-label each part of each batch is of, `[batches, coarse_per_batch]`."""
        sizes = np.array([sum(len(self.members[each]) for each in classes) for classes in self._classes_of])
        at_once = np.array([len(classes) // self.classes_a_part for classes in self._classes_of])
        quotas = drawn_quotas(sizes, at_once * len(self), self.coarse_per_batch * len(self), rng)
        order = rng.permutation(len(quotas))
        owners = np.repeat(order, quotas[order])
        return owners[dealt(owners, len(self), rng)]

    def _parts(self, members: Sequence[Rows], times: Rows, rng: np.random.Generator) -> Rows:
        """The parts of one super-label, batch by batch, `[sum(times), images of a part]`.

        A super-label that comes more than once to a batch is divided into as many sections of classes, and every batch
        takes another section for each part, so that no class is in both.

        Args:
            members: rows of each of its classes.
            times: how often it comes to each batch, `[batches]`: either the most often or once less.
            rng: where the order comes from.
        """
        most = int(times.max())
        sections = _sections(members, most, rng)
        sizes = np.array([sum(map(len, section)) for section in sections])
        quotas = drawn_quotas(sizes, np.full(most, len(times)), int(times.sum()), rng)
        section_of_parts = _turns(quotas, times, rng)
        parts = np.empty((len(section_of_parts), self.classes_a_part * self.per_class), np.int64)
        for number, section in enumerate(sections):
            parts[section_of_parts == number] = balanced_batches(
                section, int(quotas[number]), self.classes_a_part, self.per_class, rng
            )
        return parts


def _check_hierarchy(
    labels: npt.NDArray[np.generic], coarse: npt.NDArray[np.generic], names: Sequence[object] | None
) -> None:
    if coarse.shape != labels.shape:
        raise InputError(f"{len(labels)} labels and {len(coarse)} super-labels; give one of each an image")
    found, members = rows_by_class(labels)
    for name, rows in zip(names or found, members, strict=True):
        above = np.unique(coarse[rows]).tolist()
        if len(above) > 1:
            raise InputError(f"class {str(name)!r} has the super-labels {above[0]} and {above[1]}; a class has one")


def _sections(members: Sequence[Rows], number: int, rng: np.random.Generator) -> list[list[Rows]]:
    """Divide classes at random into sections of about as many images and, but for one, as many classes."""
    by_size = sorted((members[each] for each in rng.permutation(len(members))), key=len, reverse=True)
    strips = -(-len(members) // number)
    section_of = np.concatenate([rng.permutation(number) for _ in range(strips)])
    return [
        [rows for rows, section in zip(by_size, section_of, strict=False) if section == each] for each in range(number)
    ]


def _turns(quotas: Rows, times: Rows, rng: np.random.Generator) -> Rows:
    """The section of each part, batch by batch: all sections or, at random, all but one; each as often as its quota."""
    taken = np.ones((len(times), len(quotas)), bool)
    absences = np.repeat(np.arange(len(quotas)), len(times) - quotas)
    taken[times < len(quotas), rng.permutation(absences)] = False
    return np.nonzero(taken)[1]
