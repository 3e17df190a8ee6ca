from __future__ import annotations

from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vicinal.data import ClassBalancedSampler, RandomBatchSampler
from vicinal.errors import InputError


def labels_of(sizes: list[int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


def check_batch(rows: list[int], labels: np.ndarray, classes: int, per_class: int, repeats: bool) -> None:
    """Whole groups of one class each, classes distinct, images distinct within a group."""
    groups = np.array(rows).reshape(classes, per_class)
    for group in groups:
        assert len(set(labels[group])) == 1
        size = (labels == labels[group[0]]).sum()
        assert len(set(group)) == (min(size, per_class) if repeats else per_class)
    assert len(set(labels[groups[:, 0]])) == classes


@settings(deadline=None, max_examples=150)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=25),
    per_class=st.integers(1, 6),
    classes=st.integers(1, 12),
    replace=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_every_batch_has_distinct_classes_of_distinct_images(
    sizes: list[int], per_class: int, classes: int, replace: bool, seed: int
) -> None:
    labels = labels_of(sizes, seed)
    batch = classes * per_class
    usable = [size for size in sizes if replace or size >= per_class]
    if len(usable) < classes:
        with pytest.raises(InputError, match=f"that takes {classes} classes, but there are {len(usable)}"):
            ClassBalancedSampler(labels, batch, per_class, "replace" if replace else "leave_out", seed)
        return
    sampler = ClassBalancedSampler(labels, batch, per_class, "replace" if replace else "leave_out", seed)
    batches = list(sampler)
    assert len(batches) == len(sampler) == max(1, sum(usable) // batch)
    for rows in batches:
        check_batch(rows, labels, classes, per_class, replace)


def seen(sampler: ClassBalancedSampler, images: int, epochs: int) -> np.ndarray:
    counts = np.zeros(images)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        np.add.at(counts, np.concatenate(list(sampler)), 1)
    return counts / epochs


@pytest.mark.parametrize(
    ("sizes", "batch", "per_class"),
    [([5, 8, 13, 21, 4, 6, 7, 9], 8, 4), ([10] * 6, 12, 4), ([4, 5, 6, 7] * 10, 20, 4), ([30, 60, 50, 45], 6, 3)],
)
def test_every_image_is_seen_equally_often(sizes: list[int], batch: int, per_class: int) -> None:
    labels = labels_of(sizes)
    counts = seen(ClassBalancedSampler(labels, batch, per_class), len(labels), epochs=600)
    assert counts.mean() == pytest.approx(len(labels) // batch * batch / len(labels))
    by_class = np.array([counts[labels == c].mean() for c in range(len(sizes))])
    assert np.abs(by_class / counts.mean() - 1).max() < 0.06
    assert np.abs(counts / counts.mean() - 1).max() < 0.15


def test_small_classes_with_replacement_are_seen_as_often_as_others() -> None:
    labels = labels_of([1, 2, 3, 40, 40, 40])
    counts = seen(ClassBalancedSampler(labels, 8, 4, "replace"), len(labels), epochs=1500)
    by_class = np.array([counts[labels == c].mean() for c in range(6)])
    assert np.abs(by_class / counts.mean() - 1).max() < 0.15


def test_a_class_larger_than_its_share_comes_once_a_batch_and_the_others_fill_up_evenly() -> None:
    sizes = [1000, 40, 20, 4]
    labels = labels_of(sizes)
    sampler = ClassBalancedSampler(labels, 8, 4)
    assert all(0 in labels[rows] for rows in sampler)
    counts = seen(sampler, len(labels), epochs=30)
    by_class = np.array([counts[labels == c].mean() for c in range(4)])
    assert np.abs(by_class[1:] / by_class[1] - 1).max() < 0.1
    assert by_class[0] == pytest.approx(len(sampler) * 4 / 1000)


def test_within_a_class_no_image_comes_again_before_all_have_come() -> None:
    labels = np.repeat([0, 1], 8)
    batches = np.array(list(ClassBalancedSampler(labels, 8, 4)))
    assert sorted(batches.ravel()) == list(range(16))


def test_classes_meet_in_all_combinations() -> None:
    labels = np.repeat(np.arange(6), 8)
    sampler, pairs = ClassBalancedSampler(labels, 4, 2), Counter[tuple[int, ...]]()
    for epoch in range(100):
        sampler.set_epoch(epoch)
        pairs.update(tuple(sorted(set(labels[rows].tolist()))) for rows in sampler)
    assert len(pairs) == 15
    assert max(pairs.values()) < 2 * min(pairs.values())


def test_batches_are_a_function_of_seed_and_epoch() -> None:
    labels = labels_of([7, 9, 11, 13])

    def batches(seed: int, epoch: int) -> list[list[int]]:
        sampler = ClassBalancedSampler(labels, 6, 3, seed=seed)
        sampler.set_epoch(epoch)
        np.random.seed(epoch)
        return list(sampler)

    assert batches(1, 2) == batches(1, 2)
    assert batches(1, 2) != batches(1, 3)
    assert batches(1, 2) != batches(2, 2)
    sampler = ClassBalancedSampler(labels, 6, 3)
    assert list(sampler) == list(sampler)
    assert all(isinstance(row, int) for rows in sampler for row in rows)


@pytest.mark.parametrize("world", [2, 3, 6])
def test_processes_together_have_the_batches_of_one(world: int) -> None:
    labels = labels_of([9, 8, 7, 6, 5, 9, 9])
    one = list(ClassBalancedSampler(labels, 24, 4, seed=3))
    parts = [list(ClassBalancedSampler(labels, 24, 4, seed=3, rank=rank, world=world)) for rank in range(world)]
    assert [list(chain(*shares)) for shares in zip(*parts, strict=True)] == one
    for rows in parts[-1]:
        check_batch(rows, labels, 6 // world, 4, repeats=False)


def test_small_classes_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    labels = ["owl", "cat", "cat", "dog", "dog", "ant"]
    sampler = ClassBalancedSampler(labels, 4, 2)
    assert (sampler.left_out, sampler.with_replacement) == (["ant", "owl"], [])
    assert "2 classes with fewer than 2 images are left out: ant, owl" in capsys.readouterr().err
    sampler = ClassBalancedSampler([3, 1, 1], 4, 2, "replace", names=["cat", "dog"])
    assert (sampler.left_out, sampler.with_replacement) == ([], ["dog"])
    assert "1 classes with fewer than 2 images are drawn with replacement: dog" in capsys.readouterr().err
    ClassBalancedSampler(labels * 2, 4, 2)
    ClassBalancedSampler(labels, 4, 2, rank=1, world=2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 10, "per_class": 4}, "batch is 10, per_class 4; batch must be a multiple of per_class"),
        ({"batch": 8, "per_class": 0}, "per_class 0"),
        ({"batch": 0, "per_class": 2}, "0 cannot be shared"),
        ({"batch": 10, "per_class": 2}, r"takes 5 classes, but there are 3; take a smaller batch"),
        ({"batch": 12, "per_class": 4}, r"but there are 2 \(1 with fewer than 4 images left out\)"),
        ({"batch": 6, "per_class": 2, "world": 2}, "the classes of a batch: 3 cannot be shared evenly by 2 processes"),
        ({"batch": 4, "per_class": 2, "world": 2, "rank": 2}, "rank is 2 of 2"),
        ({"batch": 4, "per_class": 2, "seed": -1}, "seed -1"),
        ({"batch": 4, "per_class": 2, "classes_with_fewer": "drop"}, "'drop'; it can be leave_out or replace"),
    ],
)
def test_what_class_balanced_batches_cannot_be(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ClassBalancedSampler([0] * 4 + [1] * 4 + [2] * 2, **arguments)  # type: ignore[arg-type]


def test_random_batches_take_each_image_at_most_once() -> None:
    sampler = RandomBatchSampler(23, batch=4, seed=1)
    batches = list(sampler)
    assert len(batches) == len(sampler) == 5
    rows = list(chain(*batches))
    assert len(set(rows)) == 20
    assert set(rows) <= set(range(23))
    sampler.set_epoch(1)
    assert list(sampler) != batches
    assert list(RandomBatchSampler(np.zeros(23), batch=4, seed=1)) == batches


def test_random_batches_are_shared_by_processes() -> None:
    parts = [list(RandomBatchSampler(20, batch=6, rank=rank, world=3)) for rank in range(3)]
    assert [list(chain(*shares)) for shares in zip(*parts, strict=True)] == list(RandomBatchSampler(20, batch=6))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 30}, "batch is 30, but there are 20 images"),
        ({"batch": 0}, "batch: 0 cannot be shared"),
        ({"batch": 5, "world": 2}, "batch: 5 cannot be shared evenly by 2 processes"),
    ],
)
def test_what_random_batches_cannot_be(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RandomBatchSampler(20, **arguments)


def test_numbers_of_numpy_are_numbers() -> None:
    assert list(RandomBatchSampler(np.int64(10), 2)) == list(RandomBatchSampler(10, 2))
