from __future__ import annotations

import pandas as pd

from vicinal.data import Table


def test_counts_whole_and_by_split() -> None:
    labels = ["a"] * 5 + ["b"] * 2 + ["c"] * 1
    frame = pd.DataFrame({"label": labels, "split": ["train"] * 7 + ["test"], "coarse": ["x"] * 7 + ["y"]})
    statistics = Table(frame).statistics()
    assert (statistics.images, statistics.classes) == (8, 3)
    assert (statistics.smallest, statistics.median, statistics.largest) == (1, 2.0, 5)
    assert statistics.coarse == {"coarse": 2}
    assert list(statistics.splits) == ["train", "test"]
    train = statistics.splits["train"]
    assert (train.images, train.classes, train.median, train.coarse) == (7, 2, 3.5, {"coarse": 1})


def test_printing_a_table_prints_its_statistics() -> None:
    frame = pd.DataFrame({"label": ["a"] * 1500 + ["b"] * 2, "split": ["train"] * 1500 + ["val"] * 2})
    assert str(Table(frame)).splitlines() == [
        "       images  classes  per class: min  median    max",
        "train   1,500        1           1,500    1500  1,500",
        "val         2        1               2       2      2",
        "all     1,502        2               2     751  1,500",
    ]


def test_tables_without_labels_or_rows() -> None:
    unlabelled = Table(pd.DataFrame({"path": ["a.png", "b.png"]}))
    assert str(unlabelled).splitlines()[1].split() == ["all", "2", "-", "-", "-", "-"]
    assert unlabelled.take([]).statistics().images == 0
