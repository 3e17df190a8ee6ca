"""`vicinal data`: statistics, splits and noise, the same as those of a recipe."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
from PIL import Image

from tests.conftest import output
from vicinal.cli.main import main
from vicinal.data import Table, open_set_labels, split_fingerprint
from vicinal.training import Recipe
from vicinal.training.training_data import load_training_table


def test_it_shows_statistics_and_saves_a_table(photos: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "table.csv"
    text = output(capsys, "data", photos, "--fractions", "{train: 0.5, test: 0.5}", "--out", out)
    head, *rows, fingerprint = [line.split() for line in text.splitlines() if line.strip()]
    assert head == ["images", "classes", "per", "class:", "min", "median", "max"]
    counts = ["6", "6", "6"]
    assert rows == [["train", "24", "4", *counts], ["test", "24", "4", *counts], ["all", "48", "8", *counts]]
    assert fingerprint == ["split", "fingerprint:", split_fingerprint(Table.from_csv(out))]
    assert len(pd.read_csv(out)) == 48
    assert json.loads(output(capsys, "data", out, "--json"))["splits"]["test"]["num_classes"] == 4


def test_it_reports_files_that_are_broken_missing_unknown_or_duplicates(photos: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    (folder / "class0" / "0.png").write_bytes(b"no image")
    (folder / "class1" / "1.png").unlink()
    (folder / "class1" / "1.png").symlink_to(folder / "nowhere.png")
    (folder / "class2" / "loop.png").symlink_to(folder / "class2" / "loop.png")
    (folder / "class2" / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic")
    shutil.copy(folder / "class3" / "3.png", folder / "class3" / "copy.png")
    shutil.copy(folder / "class3" / "4.png", folder / "class4" / "copy.png")
    assert main(["data", str(folder)]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith(f"{folder}: left out files of unsupported formats: 1 .heic; HEIC needs the")
    assert len(captured.err.splitlines()) == 1
    statistics, _, unreadable, duplicates = re.split(r"\n\n|\n(?=4 images)", captured.out.rstrip())
    assert statistics.splitlines()[-1].split()[:3] == ["all", "51", "8"]
    assert unreadable.splitlines()[0] == "3 images cannot be read (1 of them missing):"
    reasons = [line.split(": ", 1)[1][:20] for line in unreadable.splitlines()[1:]]
    assert reasons == ["not an image of a kn", "no such file", "too many levels of s"]
    assert duplicates.splitlines() == [
        "4 images have the same content as another (2 groups, 1 with different labels):",
        f"  {folder}/class3/3.png, {folder}/class3/copy.png",
        f"  {folder}/class3/4.png, {folder}/class4/copy.png",
        "1 other file left out: 1 .heic",
    ]
    files = json.loads(output(capsys, "data", folder, "--json"))["files"]
    assert (len(files["unreadable"]), len(files["duplicates"]), files["num_ambiguous"]) == (3, 2, 1)
    assert "cannot be read" not in output(capsys, "data", folder, "--no_check")


def test_boxes_beyond_their_image_are_listed(photos: Path, tmp_path: Path, capsys) -> None:
    edges = ([0, 0, 24, 20], [3, 4, 25, 20], [None] * 4, [-1, 0, 9, 9])
    rows = [[f"class0/{number}.png", "a", *box] for number, box in enumerate(edges)]
    frame = pd.DataFrame(rows, columns=["path", "label", "x_1", "y_1", "x_2", "y_2"])
    frame.to_csv(tmp_path / "boxes.csv", index=False)
    text = output(capsys, "data", tmp_path / "boxes.csv", "--root", photos)
    assert text.splitlines()[-3:] == [
        "2 bounding boxes beyond the image:",
        f"  {photos}/class0/1.png: box 3, 4, 25, 20, image 24 x 20",
        f"  {photos}/class0/3.png: box -1, 0, 9, 9, image 24 x 20",
    ]


def test_classes_of_splits_and_columns_have_the_flags_of_a_recipe(photos: Path, tmp_path: Path, capsys) -> None:
    table, out = tmp_path / "t.csv", tmp_path / "out.csv"
    frame = Table.from_folder(photos).frame
    frame.rename(columns={"path": "file", "label": "kind"}).to_csv(table, index=False)
    columns = ["--path_column", "file", "--label-column", "kind"]
    output(capsys, "data", table, *columns, "--classes", "{train: [class0], val: [class1]}", "--out", out)
    split = pd.read_csv(out)
    assert dict(zip(split["label"], split["split"], strict=True)) == {"class0": "train", "class1": "val"}


def test_noise_is_added_to_the_split_train(photos: Path, tmp_path: Path, capsys) -> None:
    foreign, plain, out = tmp_path / "foreign", tmp_path / "plain.csv", tmp_path / "noisy.csv"
    foreign.mkdir()
    for number in range(5):
        Image.new("RGB", (20, 24)).save(foreign / f"{number}.png")
    splits = ["--fractions={train: 0.75, test: 0.25}"]
    noise = ["noise.classes=0.5", "noise.random_labels=0.5", f"noise.foreign={foreign}", "noise.foreign_fraction=0.25"]
    output(capsys, "data", photos, *splits, "--seed=2", "--out", plain)
    text = output(capsys, "data", photos, *splits, "--seed=2", *(f"--{each}" for each in noise), "--out", out)
    assert text.splitlines()[1].split()[:3] == ["train", "18", "3"]
    before, after = pd.read_csv(plain), pd.read_csv(out)
    test = ["path", "label", "split"]
    assert (after[after["split"] == "test"][test].to_numpy() == before[before["split"] == "test"][test]).all(axis=None)
    assert not after["noisy_label"][after["split"] == "test"].any()
    assert (after["noisy_label"].sum(), after["noisy_image"].sum()) == (9, 4)  # of 18; half of 9 rounds to the even 4
    assert (after["path"].str.startswith(str(foreign)) == after["noisy_image"]).all()
    assert [line.split()[-2:] for line in text.splitlines()[1:3]] == [["50.0%", "22.2%"], ["0.0%", "0.0%"]]
    recipe = [f"--data.source={photos}", "--seed=2", "--data.fractions={train: 0.75, test: 0.25}"]
    recipe += [f"--data.{each}" for each in noise]
    trained_on = load_training_table(Recipe.load(overrides=recipe).settings)
    pd.testing.assert_frame_equal(trained_on.frame, after, check_dtype=False)


def test_a_recipe_adds_the_same_label_noise(photos: Path, tmp_path: Path, capsys) -> None:
    pairs, plain, out = tmp_path / "pairs.csv", tmp_path / "plain.csv", tmp_path / "noisy.csv"
    pairs.write_text("label,confused_with\nclass0,class1\nclass0,class2\nclass3,class4\n")
    noise = ["noise.open_set_labels=0.4", "noise.open_set_cluster_size=3", "noise.confused_labels=0.5"]
    noise += [f"noise.confusions={pairs}"]
    noisy = json.loads(output(capsys, "data", photos, *(f"--{each}" for each in noise), "--out", out, "--json"))
    frame = pd.read_csv(out)
    assert (frame["label"].nunique(), frame["label_clean"].nunique()) == (5, 8)
    assert noisy["noise"] == {"noisy_labels": (frame["label"] != frame["label_clean"]).mean()}
    Table.from_folder(photos).split_classes(classes={"train": [f"class{i}" for i in range(8)]}).save(plain)
    recipe = [f"--data.source={plain}", *(f"--data.{each}" for each in noise)]
    trained_on = load_training_table(Recipe.load(overrides=recipe).settings)
    pd.testing.assert_frame_equal(trained_on.frame[frame.columns], frame, check_dtype=False)


def test_the_default_cluster_size_is_that_of_the_function(photos: Path, tmp_path: Path, capsys) -> None:
    output(capsys, "data", photos, "--noise.open_set_labels", "0.5", "--out", tmp_path / "noisy.csv")
    frame = open_set_labels(Table.from_folder(photos), 0.5).frame
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "noisy.csv"), frame, check_dtype=False)
