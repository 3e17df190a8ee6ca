"""Images of training classes that are held out for validation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vicinal.data.dataset import load_dataset
from vicinal.data.settings import DataSettings
from vicinal.data.splits import hold_out_images
from vicinal.utils.errors import InputError


def test_a_fraction_of_each_class_is_held_out_two_images_or_none_at_least() -> None:
    frame = pd.DataFrame({"label": 20 * ["a"] + 6 * ["b"] + 4 * ["c"] + 3 * ["d"]}).sample(frac=1, random_state=1)
    frame = frame.reset_index(drop=True)
    counts = hold_out_images(frame, 0.3, seed=3).groupby(["split", "label"]).size().to_dict()
    val = {"a": 6, "b": 2, "c": 2}
    train = {"a": 14, "b": 4, "c": 2, "d": 3}
    assert counts == {("val", k): n for k, n in val.items()} | {("train", k): n for k, n in train.items()}
    same, other = (hold_out_images(frame, 0.3, seed)["split"].tolist() for seed in (3, 4))
    assert same == hold_out_images(frame, 0.3, 3)["split"].tolist() != other


def test_only_training_images_are_held_out_and_they_become_queries_and_gallery_images() -> None:
    frame = pd.DataFrame({"label": 8 * ["a"] + 8 * ["b"], "split": 8 * ["train"] + 8 * ["test"]})
    frame["is_query"] = frame["is_gallery"] = frame["split"] == "test"
    held = hold_out_images(frame, 0.25)
    assert held["split"].value_counts().to_dict() == {"test": 8, "train": 6, "val": 2}
    assert held.loc[held["split"] == "val", ["is_query", "is_gallery"]].all().all()


def test_groups_stay_together_and_have_matches_in_other_groups() -> None:
    """Shelves show several classes; `solo` has one shelf, and `pair` two: neither can be validated."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"label": rng.choice(["a", "b", "c"], 300), "group": rng.integers(0, 40, 300)})
    alone = pd.DataFrame({"label": 9 * ["solo"] + 8 * ["pair"], "group": 9 * [40] + 4 * [41] + 4 * [42]})
    single = pd.DataFrame({"label": 10 * ["d"], "group": -1})  # without groups
    frame = pd.concat([frame, alone, single]).sample(frac=1, random_state=1).reset_index(drop=True)
    held = hold_out_images(frame, 0.2, seed=3)
    val, train = (held[held["split"] == split] for split in ("val", "train"))
    shared = set(val["group"]) & set(train["group"])
    assert shared == {-1}
    assert set(val["label"]) == {"a", "b", "c", "d"}
    assert (val.groupby("label")["group"].nunique()[["a", "b", "c"]] >= 2).all()
    assert (val["label"] == "d").sum() == 2
    fractions = val["label"].value_counts() / held["label"].value_counts()
    assert fractions[["a", "b", "c"]].between(0.19, 0.32).all()
    assert held["split"].tolist() == hold_out_images(frame, 0.2, seed=3)["split"].tolist()
    assert held["split"].tolist() != hold_out_images(frame, 0.2, seed=4)["split"].tolist()
    text = frame.assign(group=frame["group"].map("shelf{}".format))
    assert not set(hold_out_images(text, 0.2).query("split == 'val'")["group"]) & set(
        hold_out_images(text, 0.2).query("split == 'train'")["group"]
    )


def test_what_cannot_be_held_out_is_an_error() -> None:
    with pytest.raises(InputError, match="there is one already"):
        hold_out_images(pd.DataFrame({"label": ["a"] * 8, "split": ["train", "val"] * 4}), 0.2)
    with pytest.raises(InputError, match="holds out no image"):
        hold_out_images(pd.DataFrame({"label": ["a"] * 3}), 0.2)
    with pytest.raises(InputError, match="no class has two groups for val and one for train"):
        hold_out_images(pd.DataFrame({"label": ["a"] * 8, "group": [0, 1] * 4}), 0.2)
    with pytest.raises(InputError, match="no labels"):
        hold_out_images(pd.DataFrame({"path": ["a.jpg"]}), 0.2)
    with pytest.raises(InputError, match=r"data.val_images = 1.0 must be from 0"):
        DataSettings(val_images=1.0)


def test_all_classes_of_a_folder_are_trained_on_if_images_validate_or_classes_are_few(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = load_dataset(DataSettings(str(photos), val_images=0.3))
    assert known.splits == ["train", "val"]
    assert known.subset("train").classes == known.subset("val").classes == known.classes
    assert "held out 16 images of 8 training classes" in capsys.readouterr().err
    tested = load_dataset(DataSettings(str(photos), fractions={"train": 0.75, "test": 0.25}, val_images=0.3))
    assert [len(tested.subset(split)) for split in ("train", "val", "test")] == [24, 12, 12]
    for number in range(3):
        (tmp_path / f"class{number}").symlink_to(photos / f"class{number}")
    assert load_dataset(DataSettings(str(tmp_path))).splits == ["train"]
    assert "training on all 3 classes" in capsys.readouterr().err
