from __future__ import annotations

import pandas as pd

from vicinal.data import Table


def test_counts_whole_and_by_split() -> None:
    labels = ["a"] * 5 + ["b"] * 2 + ["c"] * 1
    frame = pd.DataFrame({"label": labels, "split": ["train"] * 7 + ["test"], "coarse": ["x"] * 7 + ["y"]})
    statistics = Table(frame).statistics()
    assert (statistics.num_images, statistics.num_classes) == (8, 3)
    assert (statistics.min_per_class, statistics.median_per_class, statistics.max_per_class) == (1, 2.0, 5)
    assert statistics.coarse == {"coarse": 2}
    assert list(statistics.splits) == ["train", "test"]
    train = statistics.splits["train"]
    assert (train.num_images, train.num_classes, train.median_per_class, train.coarse) == (7, 2, 3.5, {"coarse": 1})


def test_printing_a_table_prints_its_statistics() -> None:
    frame = pd.DataFrame({"label": ["a"] * 1500 + ["b"] * 2, "split": ["train"] * 1500 + ["val"] * 2})
    assert str(Table(frame)).splitlines() == [
        "       images  classes  per class: min  median    max",
        "train   1,500        1           1,500    1500  1,500",
        "val         2        1               2       2      2",
        "all     1,502        2               2     751  1,500",
    ]


def test_tables_without_labels_or_rows() -> None:
    unlabeled = Table(pd.DataFrame({"path": ["a.png", "b.png"]}))
    assert str(unlabeled).splitlines()[1].split() == ["all", "2", "-", "-", "-", "-"]
    assert unlabeled.take([]).statistics().num_images == 0


def test_the_fractions_of_noisy_labels_and_foreign_images_are_counted_if_known() -> None:
    frame = pd.DataFrame({"label": ["a", "b", "b", "b", "c"], "split": ["train"] * 4 + ["test"]})
    assert Table(frame).statistics().noise == {}
    assert "noisy" not in str(Table(frame))
    frame["label_clean"] = ["a", "a", "b", "b", "c"]
    frame["noisy_label"] = [True] * 5  # what was altered may be right in the end
    only_labels = Table(frame).statistics()
    assert only_labels.noise == {"noisy_labels": 0.2}
    frame["noisy_image"] = ["no", "no", "no", "yes", "no"]
    statistics = Table(frame).statistics()
    assert statistics.noise == {"noisy_labels": 0.2, "foreign_images": 0.2}
    assert {split: part.noise for split, part in statistics.splits.items()} == {
        "train": {"noisy_labels": 0.25, "foreign_images": 0.25},
        "test": {"noisy_labels": 0.0, "foreign_images": 0.0},
    }
    assert str(statistics).splitlines() == [
        "       images  classes  per class: min  median  max  noisy labels  foreign images",
        "train       4        2               1       2    3         25.0%           25.0%",
        "test        1        1               1       1    1          0.0%            0.0%",
        "all         5        3               1       1    3         20.0%           20.0%",
    ]
    unlabeled = Table(frame.drop(columns=["label", "split"])).statistics()
    assert unlabeled.noise == {"foreign_images": 0.2}
    assert Table(frame).take([]).statistics().noise == {}
