from __future__ import annotations

from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.data.test_samplers import seen
from vicinal.data import HierarchicalBatchSampler
from vicinal.errors import InputError


def images_of(sizes: list[list[int]], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels and super-labels in random order, from the sizes of the classes of each super-label."""
    classes = [(coarse, size) for coarse, each in enumerate(sizes) for size in each]
    rows = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(classes)), [size for _, size in classes]))
    return rows, np.array([coarse for coarse, _ in classes])[rows]


def parts_of(sampler: HierarchicalBatchSampler, labels: np.ndarray, per_class: int) -> np.ndarray:
    """The class of each group, `[batches, parts, classes]`; all images of a group are different and of one class."""
    rows = np.array(list(sampler)).reshape(len(sampler), -1, per_class)
    assert (labels[rows] == labels[rows[:, :, :1]]).all()
    assert all(len(set(group)) == per_class for group in rows.reshape(-1, per_class))
    return labels[rows[:, :, 0]].reshape(len(sampler), sampler.coarse_per_batch, -1)


@settings(deadline=None, max_examples=200)
@given(
    sizes=st.lists(st.lists(st.integers(3, 30), min_size=1, max_size=12), min_size=2, max_size=8),
    per_class=st.integers(2, 3),
    classes=st.integers(1, 4),
    coarse_per_batch=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_every_part_is_of_one_super_label_and_no_class_comes_twice_to_a_batch(
    sizes: list[list[int]], per_class: int, classes: int, coarse_per_batch: int, seed: int
) -> None:
    labels, coarse = images_of(sizes, seed)
    batch = per_class * classes * coarse_per_batch
    assume(sum(map(len, sizes)) >= classes * coarse_per_batch)
    try:
        sampler = HierarchicalBatchSampler(labels, coarse, batch, per_class, coarse_per_batch, seed=seed)
    except InputError:  # only where joining leaves too few, which other tests look at
        assume(False)
    together = {name: names[0] for names in sampler.joined for name in names}
    kinds = np.array([together.get(name, name) for name in coarse[np.unique(labels, return_index=True)[1]]])
    parts = parts_of(sampler, labels, per_class)
    assert parts.shape == (max(1, len(labels) // batch), coarse_per_batch, classes)
    assert all(len(set(each.ravel())) == classes * coarse_per_batch for each in parts)
    super_labels = kinds[parts]
    assert (super_labels == super_labels[:, :, :1]).all()
    for each in np.unique(kinds):
        times = (super_labels[:, :, 0] == each).sum(axis=1)
        assert times.max() <= times.min() + 1


def test_a_super_label_gives_as_many_parts_as_its_images_say() -> None:
    labels, coarse = images_of([[4] * 20, [4] * 40, [4] * 10, [4] * 30])  # 100 groups of 4: 10 batches of 2 parts of 5
    sampler = HierarchicalBatchSampler(labels, coarse, batch=40, per_class=4)
    parts = parts_of(sampler, labels, per_class=4)
    super_labels = coarse[[np.flatnonzero(labels == each)[0] for each in range(100)]][parts[:, :, 0]]
    assert np.bincount(super_labels.ravel()).tolist() == [4, 8, 2, 6]
    assert (super_labels[:, 0] != super_labels[:, 1]).all()
    assert sorted(chain(*sampler)) == list(range(400))  # the whole dataset is laid out, each image once


@pytest.mark.parametrize(
    ("sizes", "batch", "coarse_per_batch"),
    [
        ([[5, 8, 13, 21], [4, 6, 7, 9], [12] * 5], 16, 2),
        ([[10] * 16, [10] * 2, [10] * 3], 16, 2),  # one super-label holds three quarters of the images
        ([[10] * 12, [10] * 6, [10] * 4], 24, 3),
        ([[10] * 8, [10] * 1, [10] * 2, [10] * 5], 16, 2),  # the second is too small for parts of its own
        ([[6, 7, 8]] * 5, 8, 1),
    ],
)
def test_every_image_is_seen_equally_often(sizes: list[list[int]], batch: int, coarse_per_batch: int) -> None:
    labels, coarse = images_of(sizes)
    counts = seen(HierarchicalBatchSampler(labels, coarse, batch, 4, coarse_per_batch), len(labels), epochs=800)
    by_class = np.array([counts[labels == each].mean() for each in range(labels.max() + 1)])
    assert np.abs(by_class / counts.mean() - 1).max() < 0.1


def test_a_super_label_with_few_classes_and_many_images_comes_once_a_batch() -> None:
    labels, coarse = images_of([[200, 200, 200], [10] * 5, [10] * 5])
    sampler = HierarchicalBatchSampler(labels, coarse, batch=16, per_class=4)
    of_large = (coarse[np.array(list(sampler))] == 0).sum(axis=1)
    assert (of_large == 8).all()


def test_super_labels_meet_in_all_combinations() -> None:
    labels, coarse = images_of([[8] * 3] * 5)
    sampler, pairs = HierarchicalBatchSampler(labels, coarse, 8, 2), Counter[tuple[int, ...]]()
    for epoch in range(100):
        sampler.set_epoch(epoch)
        pairs.update(tuple(sorted(set(coarse[rows].tolist()))) for rows in sampler)
    assert len(pairs) == 10
    assert max(pairs.values()) < 1.5 * min(pairs.values())


def test_classes_of_a_large_super_label_meet_in_all_combinations() -> None:
    labels, coarse = images_of([[8] * 6, [8]])
    sampler, pairs = HierarchicalBatchSampler(labels, coarse, 4, 2), Counter[tuple[int, ...]]()
    for epoch in range(200):
        sampler.set_epoch(epoch)
        pairs.update(tuple(sorted(set(labels[rows].tolist()))) for rows in sampler)
    among = [pairs[first, second] for first in range(6) for second in range(first + 1, 6)]
    assert max(among) < 1.5 * min(among)


def test_batches_are_a_function_of_seed_and_epoch() -> None:
    labels, coarse = images_of([[7, 9, 11], [13, 5], [8, 8, 8]])

    def batches(seed: int, epoch: int) -> list[list[int]]:
        sampler = HierarchicalBatchSampler(labels, coarse, 8, 2, seed=seed)
        sampler.set_epoch(epoch)
        np.random.seed(epoch)
        return list(sampler)

    assert batches(1, 2) == batches(1, 2)
    assert batches(1, 2) != batches(1, 3)
    assert batches(1, 2) != batches(2, 2)
    assert all(isinstance(row, int) for rows in batches(0, 0) for row in rows)


@pytest.mark.parametrize("world", [2, 3, 6])
def test_processes_together_have_the_batches_of_one(world: int) -> None:
    labels, coarse = images_of([[9, 8, 7, 6], [5, 9, 9], [4, 4, 4, 4]])
    one = list(HierarchicalBatchSampler(labels, coarse, 24, 4, seed=3))
    parts = [
        list(HierarchicalBatchSampler(labels, coarse, 24, 4, seed=3, rank=rank, world=world)) for rank in range(world)
    ]
    assert [list(chain(*shares)) for shares in zip(*parts, strict=True)] == one
    for rows in parts[-1]:
        assert len(rows) == 24 // world
        assert set(Counter(labels[rows].tolist()).values()) == {4}  # whole classes


def test_super_labels_with_too_few_classes_share_their_parts_and_that_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    labels, coarse = images_of([[4] * 6, [4] * 2, [4], [4] * 5])
    names = np.array(["owl", "cat", "ant", "dog"])[coarse]
    sampler = HierarchicalBatchSampler(labels, names, batch=24, per_class=4)
    assert sampler.joined == [("ant", "cat")]
    assert "super-labels with fewer than 3 classes, a part of a batch, are joined to others: ant + cat" in (
        capsys.readouterr().err
    )
    mixed = [set(part) for rows in sampler for part in names[np.array(rows)].reshape(2, 12) if len(set(part)) > 1]
    assert mixed == [{"ant", "cat"}]
    assert len({image for epoch in range(20) for image in _images(sampler, epoch)}) == len(labels)
    HierarchicalBatchSampler(labels, names, 24, 4, rank=1, world=2)
    HierarchicalBatchSampler(labels, names, 8, 4)
    assert capsys.readouterr().err == ""


def _images(sampler: HierarchicalBatchSampler, epoch: int) -> list[int]:
    sampler.set_epoch(epoch)
    return list(chain(*sampler))


def test_small_ones_are_joined_to_the_next_smallest_when_they_are_too_small_together() -> None:
    labels, coarse = images_of([[4] * 1, [4] * 9, [4] * 1, [4] * 5])
    assert HierarchicalBatchSampler(labels, coarse, 32, 4).joined == [(0, 2, 3)]


def test_classes_with_fewer_images_are_left_out_or_drawn_with_replacement(capsys: pytest.CaptureFixture[str]) -> None:
    labels, coarse = images_of([[4, 4, 1], [4, 4], [2, 2]])
    sampler = HierarchicalBatchSampler(labels, coarse, 8, 4)
    assert sampler.left_out == [2, 5, 6]
    assert set(coarse[list(chain(*sampler))]) == {0, 1}
    assert "3 classes with fewer than 4 images are left out: 2, 5, 6" in capsys.readouterr().err
    again = HierarchicalBatchSampler(labels, coarse, 8, 4, classes_with_fewer="replace")
    assert again.with_replacement == [2, 5, 6]
    assert {label for epoch in range(20) for label in labels[_images(again, epoch)]} == set(range(7))


@pytest.mark.parametrize(
    ("coarse", "arguments", "message"),
    [
        ("aabbcd", {}, "class 'dog' has the super-labels c and d; a class has one"),
        ("aaaaaa", {}, r"there is only one super-label \(a\); draw classes whatever their super-label"),
        ("aaaaa", {}, "6 labels and 5 super-labels"),
        ("aabbcc", {"batch": 6, "coarse_per_batch": 2}, "batch must be a multiple of per_class times coarse_per_batch"),
        ("aabbcc", {"coarse_per_batch": 0}, "coarse_per_batch 0; batch must be"),
        (
            "aabbbb",
            {"batch": 6, "coarse_per_batch": 3},
            "coarse_per_batch is 3, but there are only 2 super-labels; take a smaller one",
        ),
        (
            "aabbbb",
            {"batch": 4, "coarse_per_batch": 1},
            "the 2 super-labels make only 1 of the 2 that it takes, as each must have the 2 classes",
        ),
        ("aabbcc", {"batch": 8}, "that takes 4 classes, but there are 3"),
        ("aabbcc", {"world": 4}, "the classes of a batch: 2 cannot be shared evenly by 4 processes"),
    ],
)
def test_what_hierarchical_batches_cannot_be(coarse: str, arguments: dict[str, int], message: str) -> None:
    labels = ["ant", "ant", "cat", "cat", "dog", "dog"]
    with pytest.raises(InputError, match=message):
        HierarchicalBatchSampler(labels, list(coarse), **{"batch": 4, "per_class": 2, **arguments})
