from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.data.batches.test_samplers import seen
from vicinal.data import HierarchicalBatchSampler
from vicinal.utils.errors import InputError


def images_of(sizes: list[list[int]], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels and coarse labels in random order, from the sizes of the classes of each coarse class."""
    classes = [(coarse, size) for coarse, each in enumerate(sizes) for size in each]
    rows = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(classes)), [size for _, size in classes]))
    return rows, np.array([coarse for coarse, _ in classes])[rows]


def sub_batches_of(sampler: HierarchicalBatchSampler, labels: np.ndarray, samples_per_class: int) -> np.ndarray:
    """The class of each group, `[batches, parts, classes]`; all images of a group are different and of one class."""
    rows = np.array(list(sampler)).reshape(len(sampler), -1, samples_per_class)
    assert (labels[rows] == labels[rows[:, :, :1]]).all()
    assert all(len(set(group)) == samples_per_class for group in rows.reshape(-1, samples_per_class))
    return labels[rows[:, :, 0]].reshape(len(sampler), sampler.coarse_classes_per_batch, -1)


@settings(deadline=None, max_examples=100)
@given(
    sizes=st.lists(st.lists(st.integers(3, 30), min_size=1, max_size=12), min_size=2, max_size=8),
    samples_per_class=st.integers(2, 3),
    classes=st.integers(1, 4),
    coarse_classes_per_batch=st.integers(1, 4),
    sampling=st.fixed_dictionaries(
        {
            "class_sampling": st.sampled_from(["by_size", "uniform"]),
            "coarse_sampling": st.sampled_from(["by_size", "uniform"]),
            "num_batches": st.none() | st.integers(1, 20),
        }
    ),
    seed=st.integers(0, 1000),
)
def test_every_sub_batch_is_of_one_coarse_class_and_no_class_comes_twice_to_a_batch(
    sizes, samples_per_class, classes, coarse_classes_per_batch, sampling, seed
) -> None:
    labels, coarse = images_of(sizes, seed)
    batch = samples_per_class * classes * coarse_classes_per_batch
    assume(sum(map(len, sizes)) >= classes * coarse_classes_per_batch)
    try:
        sampler = HierarchicalBatchSampler(
            labels, coarse, batch, samples_per_class, coarse_classes_per_batch, **sampling, seed=seed
        )
    except InputError:  # only where joining leaves too few, which other tests look at
        assume(False)
    together = {name: names[0] for names in sampler.merged_coarse_classes for name in names}
    kinds = np.array([together.get(name, name) for name in coarse[np.unique(labels, return_index=True)[1]]])
    sub_batches = sub_batches_of(sampler, labels, samples_per_class)
    num_batches = sampling["num_batches"] or max(1, len(labels) // batch)
    assert sub_batches.shape == (num_batches, coarse_classes_per_batch, classes)
    assert all(len(set(each.ravel())) == classes * coarse_classes_per_batch for each in sub_batches)
    coarse_classes = kinds[sub_batches]
    assert (coarse_classes == coarse_classes[:, :, :1]).all()
    for each in np.unique(kinds):
        times = (coarse_classes[:, :, 0] == each).sum(axis=1)
        assert times.max() <= times.min() + 1


def test_uniform_coarse_classes_come_equally_often_and_so_do_uniform_classes() -> None:
    labels, coarse = images_of([[4] * 6, [40] * 6, [8, 8, 8, 8, 80, 80], [12] * 8])
    sampler = HierarchicalBatchSampler(
        labels, coarse, 8, 2, class_sampling="uniform", coarse_sampling="uniform", num_batches=12
    )
    coarse_of = coarse[np.unique(labels, return_index=True)[1]]
    pairs, counts = Counter[tuple[int, ...]](), np.zeros(len(coarse_of))
    for epoch in range(200):
        sampler.set_epoch(epoch)
        sub_batches = sub_batches_of(sampler, labels, samples_per_class=2)
        coarse_classes = coarse_of[sub_batches[:, :, 0]]
        assert np.bincount(coarse_classes.ravel()).tolist() == [6] * 4
        pairs.update(tuple(sorted(each)) for each in coarse_classes.tolist())
        counts += np.bincount(sub_batches.ravel(), minlength=len(counts))
    assert len(pairs) == 6
    assert max(abs(number / 400 - 1) for number in pairs.values()) < 0.2
    expected = 200 * 6 * 2 / np.bincount(coarse_of)[coarse_of]  # two classes in each of six sub-batches per epoch
    assert np.abs(counts / expected - 1).max() < 0.2


def test_uniform_classes_come_equally_often_where_a_coarse_class_comes_twice_to_some_batches() -> None:
    labels, coarse = images_of([[80, 80, 80, 8, 8, 8], [24] * 2, [24] * 2])
    sampler = HierarchicalBatchSampler(labels, coarse, 8, 2, class_sampling="uniform")
    counts = np.zeros(10)
    for epoch in range(200):
        sampler.set_epoch(epoch)
        counts += np.bincount(sub_batches_of(sampler, labels, samples_per_class=2).ravel(), minlength=10)
    assert np.abs(counts[:6] / counts[:6].mean() - 1).max() < 0.05


def test_sub_batches_are_in_proportion_to_the_images_of_a_coarse_class() -> None:
    labels, coarse = images_of([[4] * 20, [4] * 40, [4] * 10, [4] * 30])  # 100 groups of 4: 10 batches of 2 parts of 5
    sampler = HierarchicalBatchSampler(labels, coarse, batch_size=40, samples_per_class=4)
    sub_batches = sub_batches_of(sampler, labels, samples_per_class=4)
    coarse_classes = coarse[[np.flatnonzero(labels == each)[0] for each in range(100)]][sub_batches[:, :, 0]]
    assert np.bincount(coarse_classes.ravel()).tolist() == [4, 8, 2, 6]
    assert (coarse_classes[:, 0] != coarse_classes[:, 1]).all()
    assert sorted(chain(*sampler)) == list(range(400))  # the whole dataset is laid out, each image once


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "batch_size", "coarse_classes_per_batch"),
    [
        ([[5, 8, 13, 21], [4, 6, 7, 9], [12] * 5], 16, 2),
        ([[10] * 16, [10] * 2, [10] * 3], 16, 2),  # one coarse class holds three quarters of the images
        ([[10] * 12, [10] * 6, [10] * 4], 24, 3),
        ([[10] * 8, [10] * 1, [10] * 2, [10] * 5], 16, 2),  # the second is too small for parts of its own
        ([[6, 7, 8]] * 5, 8, 1),
    ],
)
def test_every_image_is_seen_equally_often(
    sizes: list[list[int]], batch_size: int, coarse_classes_per_batch: int
) -> None:
    labels, coarse = images_of(sizes)
    counts = seen(
        HierarchicalBatchSampler(labels, coarse, batch_size, 4, coarse_classes_per_batch), len(labels), epochs=800
    )
    by_class = np.array([counts[labels == each].mean() for each in range(labels.max() + 1)])
    assert np.abs(by_class / counts.mean() - 1).max() < 0.1


def test_coarse_classes_meet_in_all_combinations() -> None:
    labels, coarse = images_of([[8] * 3] * 5)
    sampler, pairs = HierarchicalBatchSampler(labels, coarse, 8, 2), Counter[tuple[int, ...]]()
    for epoch in range(100):
        sampler.set_epoch(epoch)
        pairs.update(tuple(sorted(set(coarse[rows].tolist()))) for rows in sampler)
    assert len(pairs) == 10
    assert max(pairs.values()) < 1.5 * min(pairs.values())


@pytest.mark.parametrize("world_size", [2, 3, 6])
def test_processes_together_have_the_batches_of_one(world_size: int) -> None:
    labels, coarse = images_of([[9, 8, 7, 6], [5, 9, 9], [4, 4, 4, 4]])
    one = list(HierarchicalBatchSampler(labels, coarse, 24, 4, seed=3))
    parts = [
        list(HierarchicalBatchSampler(labels, coarse, 24, 4, seed=3, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    assert [list(chain(*local)) for local in zip(*parts, strict=True)] == one
    for rows in parts[-1]:
        assert len(rows) == 24 // world_size
        assert set(Counter(labels[rows].tolist()).values()) == {4}  # whole classes


def test_small_coarse_classes_are_merged_and_logged(capsys) -> None:
    labels, coarse = images_of([[4] * 6, [4] * 2, [4], [4] * 5])
    names = np.array(["owl", "cat", "ant", "dog"])[coarse]
    sampler = HierarchicalBatchSampler(labels, names, batch_size=24, samples_per_class=4)
    assert sampler.merged_coarse_classes == [("ant", "cat")]
    assert "coarse classes with fewer than 3 classes are merged: ant + cat" in (capsys.readouterr().err)
    mixed = [set(part) for rows in sampler for part in names[np.array(rows)].reshape(2, 12) if len(set(part)) > 1]
    assert mixed == [{"ant", "cat"}]
    assert len({image for epoch in range(20) for image in _images(sampler, epoch)}) == len(labels)
    HierarchicalBatchSampler(labels, names, 24, 4, rank=1, world_size=2)
    HierarchicalBatchSampler(labels, names, 8, 4)
    assert capsys.readouterr().err == ""
    labels, coarse = images_of([[4] * 1, [4] * 9, [4] * 1, [4] * 5])  # merged until they fill a sub-batch
    assert HierarchicalBatchSampler(labels, coarse, 32, 4).merged_coarse_classes == [(0, 2, 3)]


def _images(sampler: HierarchicalBatchSampler, epoch: int) -> list[int]:
    sampler.set_epoch(epoch)
    return list(chain(*sampler))


def test_small_classes_are_dropped_or_drawn_with_replacement(capsys: pytest.CaptureFixture[str]) -> None:
    labels, coarse = images_of([[4, 4, 1], [4, 4], [2, 2]])
    sampler = HierarchicalBatchSampler(labels, coarse, 8, 4)
    assert sampler.dropped_classes == [2, 5, 6]
    assert set(coarse[list(chain(*sampler))]) == {0, 1}
    assert "3 classes with fewer than 4 images are left out: 2, 5, 6" in capsys.readouterr().err
    again = HierarchicalBatchSampler(labels, coarse, 8, 4, small_classes="replace")
    assert again.replaced_classes == [2, 5, 6]
    assert {label for epoch in range(20) for label in labels[_images(again, epoch)]} == set(range(7))


def test_invalid_hierarchical_batches() -> None:
    for coarse, arguments, message in (
        ("aabbcd", {}, "class 'dog' has the coarse labels c and d; a class has one"),
        ("aaaaaa", {}, r"there is only one coarse class \(a\); use batches without coarse classes"),
        ("aaaaa", {}, "6 labels and 5 coarse labels"),
        ("aabbcc", {"batch_size": 6, "coarse_classes_per_batch": 2}, "batch_size must be a multiple of"),
        ("aabbcc", {"coarse_classes_per_batch": 0}, "coarse_classes_per_batch 0; batch_size must be"),
        ("aabbbb", {"batch_size": 6, "coarse_classes_per_batch": 3}, "coarse_classes_per_batch is 3, but there are"),
        ("aabbbb", {"batch_size": 4, "coarse_classes_per_batch": 1}, "2 coarse classes are needed, but 1 of"),
        ("aabbcc", {"class_sampling": "exhaustive"}, "class_sampling is 'exhaustive'; with coarse classes it can be"),
        ("aabbcc", {"coarse_sampling": "all"}, "coarse_sampling is 'all'; with coarse classes it can be by_size or un"),
        ("aabbcc", {"batch_size": 8}, "that needs 4 classes, but there are 3"),
        ("aabbcc", {"world_size": 4}, "classes per batch: 2 cannot be divided evenly among 4 processes"),
    ):
        labels = ["ant", "ant", "cat", "cat", "dog", "dog"]
        with pytest.raises(InputError, match=message):
            HierarchicalBatchSampler(labels, list(coarse), **{"batch_size": 4, "samples_per_class": 2, **arguments})
