"""The fingerprint of a split: the same for the same images, labels and splits, in any folder and order."""

from pathlib import Path

import pandas as pd

from tests.refusals import refused_call
from vicinal.data import Table, split_fingerprint


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


FRAME = pd.DataFrame(
    {"path": ["x/a.jpg", "x/b.jpg", "y/c.jpg"], "label": [1, 1, 2], "split": ["train", "train", "test"]}
)


def fingerprint(root: str = "/data", **columns: list[object]) -> str:
    return split_fingerprint(Table(FRAME.assign(**columns), root))


def test_it_does_not_depend_on_folder_order_or_file(tmp_path: Path) -> None:
    assert len(fingerprint()) == 16
    assert fingerprint(root="/home/me/images") == fingerprint()
    assert split_fingerprint(Table(FRAME[::-1], "/data")) == fingerprint()
    assert fingerprint(photographer=["Ada", "Ada", "Bob"]) == fingerprint()
    Table(FRAME.assign(label=["1", "1", "2"]), "/data").save(tmp_path / "table.csv")
    assert split_fingerprint(Table.from_csv(tmp_path / "table.csv")) == fingerprint()


def test_it_depends_on_every_image_label_and_split() -> None:
    for columns in (
        {"label": [2, 2, 1]},
        {"split": ["train", "train", "val"]},
        {"path": ["x/a.jpg", "y/b.jpg", "y/c.jpg"]},
        {"path": ["x/a.jpg", "x/b.jpg", "yc.jpg"]},
        {"is_query": [False, False, True]},
    ):
        assert fingerprint(**columns) != fingerprint()


def test_one_folder_no_rows_and_no_paths() -> None:
    one = Table(FRAME[:1], "/data")
    assert split_fingerprint(one) == split_fingerprint(Table(FRAME[:1].assign(path="a.jpg"), "/elsewhere"))
    assert split_fingerprint(one.take([])) != split_fingerprint(one)
    refused_call("no column 'path'", split_fingerprint, Table(FRAME[["label"]]))
