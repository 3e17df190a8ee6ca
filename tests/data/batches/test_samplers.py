from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import refused_call
from vicinal.data import ClassBalancedBatchSampler, HierarchicalBatchSampler, RandomBatchSampler
from vicinal.utils.errors import InputError


def labels_of(sizes: list[int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


def check_batch(rows: list[int], labels: np.ndarray, classes: int, samples_per_class: int, repeats: bool) -> None:
    """Whole groups of one class each, classes distinct, images distinct within a group."""
    groups = np.array(rows).reshape(classes, samples_per_class)
    for group in groups:
        assert len(set(labels[group])) == 1
        size = (labels == labels[group[0]]).sum()
        assert len(set(group)) == (min(size, samples_per_class) if repeats else samples_per_class)
    assert len(set(labels[groups[:, 0]])) == classes


@settings(deadline=None, max_examples=150)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=25),
    samples_per_class=st.integers(1, 6),
    classes=st.integers(1, 12),
    replace=st.booleans(),
    sampling=st.sampled_from(["by_size", "uniform", "exhaustive"]),
    num_batches=st.none() | st.integers(1, 30),
    seed=st.integers(0, 1000),
)
def test_every_batch_has_distinct_classes_of_distinct_images(
    sizes, samples_per_class, classes, replace, sampling, num_batches, seed
) -> None:
    labels, more = labels_of(sizes, seed), {"small_classes": "replace" if replace else "drop", "seed": seed}
    batch = classes * samples_per_class
    usable = [size for size in sizes if replace or size >= samples_per_class]
    if len(usable) < classes:
        with pytest.raises(InputError, match=f"that needs {classes} classes, but there are {len(usable)}"):
            ClassBalancedBatchSampler(labels, batch, samples_per_class, **more)
        return
    more |= {"class_sampling": sampling, "num_batches": num_batches}
    sampler = ClassBalancedBatchSampler(labels, batch, samples_per_class, **more)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    if num_batches is not None or sampling != "exhaustive":
        assert len(batches) == (num_batches or max(1, sum(usable) // batch))
    for rows in batches:
        check_batch(rows, labels, classes, samples_per_class, replace)


def seen(sampler: ClassBalancedBatchSampler, images: int, epochs: int) -> np.ndarray:
    counts = np.zeros(images)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        np.add.at(counts, np.concatenate(list(sampler)), 1)
    return counts / epochs


def test_every_image_is_seen_equally_often() -> None:
    for sizes, batch_size, samples_per_class in (
        ([5, 8, 13, 21, 4, 6, 7, 9], 8, 4),
        ([10] * 6, 12, 4),
        ([4, 5, 6, 7] * 10, 20, 4),
        ([30, 60, 50, 45], 6, 3),
    ):
        labels = labels_of(sizes)
        counts = seen(ClassBalancedBatchSampler(labels, batch_size, samples_per_class), len(labels), epochs=600)
        assert counts.mean() == pytest.approx(len(labels) // batch_size * batch_size / len(labels))
        by_class = np.array([counts[labels == c].mean() for c in range(len(sizes))])
        assert np.abs(by_class / counts.mean() - 1).max() < 0.06
        assert np.abs(counts / counts.mean() - 1).max() < 0.15


def test_small_classes_with_replacement_are_seen_as_often_as_others() -> None:
    labels = labels_of([1, 2, 3, 40, 40, 40])
    counts = seen(ClassBalancedBatchSampler(labels, 8, 4, small_classes="replace"), len(labels), epochs=1500)
    by_class = np.array([counts[labels == c].mean() for c in range(6)])
    assert np.abs(by_class / counts.mean() - 1).max() < 0.15


def test_a_very_large_class_comes_once_per_batch_and_the_others_fill_up_evenly() -> None:
    sizes = [1000, 40, 20, 4]
    labels = labels_of(sizes)
    sampler = ClassBalancedBatchSampler(labels, 8, 4)
    assert all(0 in labels[rows] for rows in sampler)
    counts = seen(sampler, len(labels), epochs=30)
    by_class = np.array([counts[labels == c].mean() for c in range(4)])
    assert np.abs(by_class[1:] / by_class[1] - 1).max() < 0.1
    assert by_class[0] == pytest.approx(len(sampler) * 4 / 1000)


def test_within_a_class_no_image_is_repeated_before_all_were_drawn() -> None:
    labels = np.repeat([0, 1], 8)
    batches = np.array(list(ClassBalancedBatchSampler(labels, 8, 4)))
    assert sorted(batches.ravel()) == list(range(16))


def test_classes_meet_in_all_combinations() -> None:
    labels = np.repeat(np.arange(6), 8)
    sampler, pairs = ClassBalancedBatchSampler(labels, 4, 2), Counter[tuple[int, ...]]()
    for epoch in range(100):
        sampler.set_epoch(epoch)
        pairs.update(tuple(sorted(set(labels[rows].tolist()))) for rows in sampler)
    assert len(pairs) == 15
    assert max(pairs.values()) < 2 * min(pairs.values())


def test_uniform_classes_are_equally_likely_in_every_batch() -> None:
    sizes = [4, 8, 40, 300, 20]
    labels = labels_of(sizes)
    sampler, pairs = ClassBalancedBatchSampler(labels, 8, 4, class_sampling="uniform"), Counter[tuple[int, ...]]()
    for epoch in range(100):
        sampler.set_epoch(epoch)
        pairs.update(tuple(sorted(set(labels[rows].tolist()))) for rows in sampler)
    expected = 100 * len(sampler) / 10
    assert len(sampler) == sum(sizes) // 8
    assert len(pairs) == 10
    assert max(abs(number / expected - 1) for number in pairs.values()) < 0.15
    counts = Counter(chain(*sampler))
    for label in range(len(sizes)):
        times = [counts[row] for row in np.flatnonzero(labels == label)]
        assert max(times) - min(times) <= 1  # by the pass that is not over


@pytest.mark.parametrize(("sizes", "classes"), [([9, 6, 17, 5, 12, 8, 4], 3), ([8, 9, 10], 3), ([41, 3, 2], 2)])
def test_exhaustive_batches_use_every_group_once_until_too_few_classes_are_left(sizes: list[int], classes: int) -> None:
    labels = labels_of(sizes)
    sampler = ClassBalancedBatchSampler(labels, 2 * classes, 2, class_sampling="exhaustive")
    lengths = set()
    for epoch in range(20):
        sampler.set_epoch(epoch)
        rows = list(chain(*sampler))
        assert len(set(rows)) == len(rows) == len(sampler) * 2 * classes
        left = np.array(sizes) // 2 - np.bincount(labels[rows], minlength=len(sizes)) // 2
        assert (left > 0).sum() < classes
        lengths.add(len(sampler))
    if len(sizes) == classes:
        assert lengths == {min(sizes) // 2}  # all classes in every batch: the smallest one ends the epoch


def test_exhaustive_classes_come_to_one_batch_after_the_other() -> None:
    labels = np.repeat(np.arange(6), 16)
    sampler = ClassBalancedBatchSampler(labels, 4, 2, class_sampling="exhaustive", num_batches=48)
    pairs = [tuple(sorted(set(labels[rows].tolist()))) for rows in sampler]
    for one_pass in (pairs[:24], pairs[24:]):  # eight groups per class
        assert sorted(Counter(one_pass).values()) == [8, 8, 8]
        assert sorted(chain(*set(one_pass))) == list(range(6))
    assert set(pairs[:24]) != set(pairs[24:])
    assert pairs[:8] != [pairs[0]] * 8  # the batches are in random order


def test_batches_are_a_function_of_seed_and_epoch() -> None:
    labels = labels_of([7, 9, 11, 13])

    def batches(seed: int, epoch: int) -> list[list[int]]:
        sampler = ClassBalancedBatchSampler(labels, 6, 3, seed=seed)
        sampler.set_epoch(epoch)
        np.random.seed(epoch)
        return list(sampler)

    assert batches(1, 2) == batches(1, 2)
    assert batches(1, 2) != batches(1, 3)
    assert batches(1, 2) != batches(2, 2)
    sampler = ClassBalancedBatchSampler(labels, 6, 3)
    assert list(sampler) == list(sampler)
    assert all(isinstance(row, int) for rows in sampler for row in rows)


@pytest.mark.parametrize(("world_size", "sampling"), [(2, "by_size"), (3, "uniform"), (6, "exhaustive")])
def test_processes_together_have_the_batches_of_one(world_size: int, sampling: str) -> None:
    labels = labels_of([9, 8, 7, 6, 5, 9, 9])
    more = {"class_sampling": sampling, "seed": 3}
    one = list(ClassBalancedBatchSampler(labels, 24, 4, **more))
    parts = [
        list(ClassBalancedBatchSampler(labels, 24, 4, **more, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    assert [list(chain(*local)) for local in zip(*parts, strict=True)] == one
    for rows in parts[-1]:
        check_batch(rows, labels, 6 // world_size, 4, repeats=False)


def test_small_classes_are_logged(capsys: pytest.CaptureFixture[str]) -> None:
    labels = ["owl", "cat", "cat", "dog", "dog", "ant"]
    sampler = ClassBalancedBatchSampler(labels, 4, 2)
    assert (sampler.dropped_classes, sampler.replaced_classes) == (["ant", "owl"], [])
    assert "2 classes with fewer than 2 images are left out: ant, owl" in capsys.readouterr().err
    sampler = ClassBalancedBatchSampler([3, 1, 1], 4, 2, small_classes="replace", class_names=["cat", "dog"])
    assert (sampler.dropped_classes, sampler.replaced_classes) == ([], ["dog"])
    assert "1 class with fewer than 2 images is drawn with replacement: dog" in capsys.readouterr().err
    ClassBalancedBatchSampler(labels * 2, 4, 2)
    ClassBalancedBatchSampler(labels, 4, 2, rank=1, world_size=2)
    assert capsys.readouterr().err == ""


def test_invalid_class_balanced_batches() -> None:
    for arguments, message in (
        ({"batch_size": 10, "samples_per_class": 4}, "batch_size is 10, samples_per_class 4; batch_size must be a"),
        ({"batch_size": 10, "samples_per_class": 2}, r"needs 5 classes, but there are 3; use a batch_size of 6 or"),
        ({"batch_size": 12, "samples_per_class": 4}, r"but there are 2 \(1 with fewer than 4 images left out\)"),
        ({"batch_size": 6, "samples_per_class": 2, "world_size": 2}, "classes per batch: 3 cannot be divided evenly"),
        ({"batch_size": 4, "samples_per_class": 2, "world_size": 2, "rank": 2}, "rank is 2 of 2"),
        ({"batch_size": 4, "samples_per_class": 2, "seed": -1}, "seed -1"),
        ({"batch_size": 4, "samples_per_class": 2, "small_classes": "keep"}, "small_classes is 'keep'; it can be"),
        ({"batch_size": 4, "samples_per_class": 2, "class_sampling": "all"}, "class_sampling is 'all'; it can be"),
        ({"batch_size": 4, "samples_per_class": 2, "num_batches": 0}, "num_batches is 0; it must be at least 1"),
    ):
        refused_call(message, ClassBalancedBatchSampler, [0] * 4 + [1] * 4 + [2] * 2, **arguments)


def test_random_batches_take_each_image_at_most_once() -> None:
    sampler = RandomBatchSampler(23, batch_size=4, seed=1)
    batches = list(sampler)
    assert len(batches) == len(sampler) == 5
    rows = list(chain(*batches))
    assert len(set(rows)) == 20
    assert set(rows) <= set(range(23))
    sampler.set_epoch(1)
    assert list(sampler) != batches


def test_random_batches_of_several_passes() -> None:
    batches = list(RandomBatchSampler(10, batch_size=4, num_batches=5))
    assert len(batches) == 5
    for one_pass in (batches[:2], batches[2:4]):
        assert len(set(chain(*one_pass))) == 8
    assert batches[:2] == list(RandomBatchSampler(10, batch_size=4))
    assert len(list(RandomBatchSampler(10, batch_size=4, num_batches=1))) == 1


def test_random_batches_are_divided_among_processes() -> None:
    parts = [list(RandomBatchSampler(20, batch_size=6, rank=rank, world_size=3)) for rank in range(3)]
    assert [list(chain(*local)) for local in zip(*parts, strict=True)] == list(RandomBatchSampler(20, batch_size=6))


def test_invalid_random_batches() -> None:
    for arguments, message in (
        ({"batch_size": 30}, "batch_size is 30, but there are 20 images"),
        ({"batch_size": 0}, "batch_size: 0 cannot be divided"),
        ({"batch_size": 5, "world_size": 2}, "batch_size: 5 cannot be divided evenly among 2 processes"),
    ):
        refused_call(message, RandomBatchSampler, 20, **arguments)


def test_labels_that_are_missing_or_of_several_types_are_named() -> None:
    for labels, message in (
        (["b", "b", "a", "a", None, None], "row 4 has no label; every image needs one"),
        ([0.0, 0.0, 1.0, 1.0, np.nan], "row 4 has no label"),
        (np.array(["b", "b", 3, 3], dtype=object), "labels are of the types int and str; give integers or names"),
        ([[0, 1], [0, 1]], r"labels are an array \[2, 2\]; give one label per image"),
    ):
        refused_call(message, ClassBalancedBatchSampler, labels, 4, 2)
    refused_call("row 1 has no coarse label", HierarchicalBatchSampler, [0, 0, 1, 1], ["x", None, "y", "y"], 4, 2)
