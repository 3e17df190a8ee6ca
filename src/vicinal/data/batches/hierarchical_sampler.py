"""Hierarchical batches: similar classes, those of one coarse class, come together in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from vicinal.data.batches.balanced_batches import DRAWS, assign_to_batches, check_labels, draw_quotas, rows_by_class
from vicinal.data.batches.samplers import ClassBalancedBatchSampler
from vicinal.utils.arrays import Integers
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

Names = tuple[object, ...]


class HierarchicalBatchSampler(ClassBalancedBatchSampler):
    """Balanced hierarchical sampling: a batch consists of sub-batches, each with classes of one coarse class.

    Reference: "Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization" (Liao,
    Tsiligkaridis, Kulis, ICML 2023), Appendix H.3. An epoch has as many images as the dataset unless `num_batches` is
    given (465 batches on SOP; theirs are 655). The number of sub-batches of a coarse class in an epoch is proportional
    to its number of images, so that every image is drawn equally often in the long run; or equal for all coarse
    classes, as the published code of ROADMAP takes every pair of them equally often. The sub-batches are assigned to
    the batches in turn: a coarse class with more than its part of the images comes to a batch several times, as evenly
    as possible, but only as often as its number of classes allows. No class comes to a batch twice. Within a sub-batch,
    the rules of :class:`ClassBalancedBatchSampler` hold.

    A coarse class with fewer classes than a sub-batch is merged with the next smallest one, until together they can
    fill a sub-batch. No image is left out for that, and none is drawn more often than others.

    Args:
        labels: The labels of the images, `[n]`, integers or names.
        coarse_labels: The coarse labels of the images, `[n]`, integers or names; all images of a class have the same.
        batch_size: Images per batch, over all processes.
        samples_per_class: Images of each class in a batch.
        coarse_classes_per_batch: Sub-batches per batch.
        class_sampling: How often a class is drawn within its coarse class: `by_size` or `uniform`.
        coarse_sampling: How often a coarse class is drawn: `by_size`, in proportion to its number of images, or
            `uniform`, equally often.
        num_batches: Batches per epoch; None: about as many as one pass over the images takes.
        small_classes: What to do with classes of fewer than `samples_per_class` images: `drop` them, or draw their
            images with replacement (`replace`).
        seed: The seed of the random order, which also depends on the epoch; not negative.
        rank: The number of this process.
        world_size: The number of processes; each gets an equal number of whole classes of every batch.
        class_names: The names of the classes for messages, in sorted order of the labels; by default the labels.

    Raises:
        InputError: A class has two coarse labels, there is one coarse class only or fewer than sub-batches, sub-batches
            do not consist of whole classes, or as :class:`ClassBalancedBatchSampler`.

    Attributes:
        merged_coarse_classes: The names of the coarse classes that are merged, as tuples.

    Example:
        >>> labels, coarse = [0, 0, 1, 1, 2, 2, 3, 3], ["cat", "cat", "cat", "cat", "dog", "dog", "dog", "dog"]
        >>> sampler = HierarchicalBatchSampler(labels, coarse, batch_size=4, samples_per_class=2)
        >>> [sorted({coarse[row] for row in batch}) for batch in sampler]
        [['cat', 'dog'], ['cat', 'dog']]
    """

    def __init__(
        self,
        labels: npt.ArrayLike,
        coarse_labels: npt.ArrayLike,
        batch_size: int,
        samples_per_class: int,
        coarse_classes_per_batch: int = 2,
        *,
        class_sampling: Literal["by_size", "uniform"] = "by_size",
        coarse_sampling: Literal["by_size", "uniform"] = "by_size",
        num_batches: int | None = None,
        small_classes: Literal["drop", "replace"] = "drop",
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        class_names: Sequence[object] | None = None,
    ) -> None:
        fine, coarse = np.asarray(labels), np.asarray(coarse_labels)
        check_labels(fine)
        check_labels(coarse, "coarse label")
        _check_hierarchy(fine, coarse, class_names)
        super().__init__(
            fine,
            batch_size,
            samples_per_class,
            class_sampling=class_sampling,
            num_batches=num_batches,
            small_classes=small_classes,
            seed=seed,
            rank=rank,
            world_size=world_size,
            class_names=class_names,
        )
        self.coarse_classes_per_batch, self.coarse_sampling = coarse_classes_per_batch, coarse_sampling
        self._check_sampling()
        self._check_sub_batches()
        names, classes = rows_by_class(coarse[[rows[0] for rows in self.members]])
        self._coarse_names, self._coarse_members = _merge_small(
            [(name,) for name in names], classes, self.classes_per_sub_batch
        )
        self.merged_coarse_classes = [names for names in self._coarse_names if len(names) > 1]
        self._check_number_of_coarse_classes(len(names))
        self._log_merged_coarse_classes()

    @property
    def classes_per_sub_batch(self) -> int:
        """The number of classes in a sub-batch."""
        return self.classes_per_batch // self.coarse_classes_per_batch

    def _check_sampling(self) -> None:
        for name in ("class_sampling", "coarse_sampling"):
            if getattr(self, name) not in ("by_size", "uniform"):
                raise InputError(f"{name} is {getattr(self, name)!r}; with coarse classes it can be by_size or uniform")

    def _check_sub_batches(self) -> None:
        if self.coarse_classes_per_batch < 1 or self.classes_per_batch % self.coarse_classes_per_batch:
            raise InputError(
                f"batch_size is {self.batch_size}, samples_per_class {self.samples_per_class}, "
                f"coarse_classes_per_batch {self.coarse_classes_per_batch}; batch_size must be a multiple of "
                "samples_per_class times coarse_classes_per_batch"
            )

    def _check_number_of_coarse_classes(self, number: int) -> None:
        if number == 1:
            raise InputError(
                f"there is only one coarse class ({self._coarse_names[0][0]}); use batches without coarse classes: "
                "ClassBalancedBatchSampler, or in a recipe coarse_classes_per_batch: 0"
            )
        left, needed = len(self._coarse_names), max(2, self.coarse_classes_per_batch)
        if number < needed:
            wanted = f"coarse_classes_per_batch is {self.coarse_classes_per_batch}"
            raise InputError(f"{wanted}, but there are only {number} coarse classes; use fewer")
        if left < needed:
            raise InputError(
                f"{needed} coarse classes are needed, but {left} of {number} is left after merging those with fewer "
                f"than the {self.classes_per_sub_batch} classes of a sub-batch; use a smaller batch"
            )

    def _log_merged_coarse_classes(self) -> None:
        merged = self.merged_coarse_classes
        if merged and self.rank == 0:
            first = "; ".join(" + ".join(map(str, names)) for names in merged[:8])
            more = "; ..." if len(merged) > 8 else ""
            log(f"coarse classes with fewer than {self.classes_per_sub_batch} classes are merged: {first}{more}")

    def _draw_batches(self, rng: np.random.Generator) -> Integers:
        coarse = self._draw_coarse_classes(rng)
        sub_batches = np.empty((*coarse.shape, self.classes_per_sub_batch * self.samples_per_class), np.int64)
        for coarse_class, classes in enumerate(self._coarse_members):
            chosen = coarse == coarse_class
            if chosen.any():
                members = [self.members[each] for each in classes]
                sub_batches[chosen] = self._draw_sub_batches(members, chosen.sum(axis=1), rng)
        return sub_batches.reshape(len(self), self.batch_size)

    def _draw_coarse_classes(self, rng: np.random.Generator) -> Integers:
        """The coarse class of each sub-batch of each batch, `[batches, coarse_classes_per_batch]`."""
        sizes = np.array([sum(len(self.members[each]) for each in classes) for classes in self._coarse_members])
        sizes = sizes if self.coarse_sampling == "by_size" else np.ones_like(sizes)
        max_per_batch = np.array([len(classes) // self.classes_per_sub_batch for classes in self._coarse_members])
        quotas = draw_quotas(sizes, max_per_batch * len(self), self.coarse_classes_per_batch * len(self), rng)
        order = rng.permutation(len(quotas))
        coarse_classes = np.repeat(order, quotas[order])
        return coarse_classes[assign_to_batches(coarse_classes, len(self), rng)]

    def _draw_sub_batches(self, members: Sequence[Integers], times: Integers, rng: np.random.Generator) -> Integers:
        """Draw the sub-batches of one coarse class, batch by batch, `[sum(times), images]`.

        `times` says how often it comes to each batch: the maximum or one less. Its classes are divided into as many
        sections as the maximum, and each sub-batch of a batch is drawn from a different section, so that no class is in
        two.
        """
        num_sections = int(times.max())
        sections = _divide_into_sections(members, num_sections, rng)
        by_size = self.class_sampling == "by_size"
        sizes = np.array([sum(map(len, section)) if by_size else len(section) for section in sections])
        quotas = draw_quotas(sizes, np.full(num_sections, len(times)), int(times.sum()), rng)
        section_of = _assign_sections(quotas, times, rng)
        sub_batches = np.empty((len(section_of), self.classes_per_sub_batch * self.samples_per_class), np.int64)
        for number, section in enumerate(sections):
            sub_batches[section_of == number] = DRAWS[self.class_sampling](
                section, int(quotas[number]), self.classes_per_sub_batch, self.samples_per_class, rng
            )
        return sub_batches


def _check_hierarchy(
    labels: npt.NDArray[np.generic], coarse_labels: npt.NDArray[np.generic], class_names: Sequence[object] | None
) -> None:
    if coarse_labels.shape != labels.shape:
        raise InputError(f"{len(labels)} labels and {len(coarse_labels)} coarse labels; give one of each per image")
    found, members = rows_by_class(labels)
    for name, rows in zip(class_names or found, members, strict=True):
        coarse = np.unique(coarse_labels[rows]).tolist()
        if len(coarse) > 1:
            raise InputError(f"class {str(name)!r} has the coarse labels {coarse[0]} and {coarse[1]}; a class has one")


def _merge_small(
    names: Sequence[Names], classes: Sequence[Integers], min_classes: int
) -> tuple[list[Names], list[Integers]]:
    """Merge the coarse class with the fewest classes with the next smallest one until each has `min_classes`."""
    pairs = sorted(zip(names, classes, strict=True), key=lambda pair: len(pair[1]))
    while len(pairs) > 1 and len(pairs[0][1]) < min_classes:
        (first_names, first), (second_names, second), *rest = pairs
        merged = (first_names + second_names, np.concatenate([first, second]))
        pairs = sorted([merged, *rest], key=lambda pair: len(pair[1]))
    return [name for name, _ in pairs], [members for _, members in pairs]


def _divide_into_sections(
    members: Sequence[Integers], num_sections: int, rng: np.random.Generator
) -> list[list[Integers]]:
    by_size = sorted((members[each] for each in rng.permutation(len(members))), key=len, reverse=True)
    num_rounds = -(-len(members) // num_sections)
    section_of = np.concatenate([rng.permutation(num_sections) for _ in range(num_rounds)])
    return [
        [rows for rows, section in zip(by_size, section_of, strict=False) if section == number]
        for number in range(num_sections)
    ]


def _assign_sections(quotas: Integers, times: Integers, rng: np.random.Generator) -> Integers:
    """The section of each sub-batch, batch by batch: all or, at random, all but one; each as often as its quota."""
    used = np.ones((len(times), len(quotas)), bool)
    absences = np.repeat(np.arange(len(quotas)), len(times) - quotas)
    used[times < len(quotas), rng.permutation(absences)] = False
    return np.nonzero(used)[1]
