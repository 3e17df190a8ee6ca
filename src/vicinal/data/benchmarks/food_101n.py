"""Food-101N: photographs of food from the web with noisy labels for training, and images of Food-101 for testing."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from vicinal.data.benchmarks.cache import check_complete, find_folder
from vicinal.data.benchmarks.lists import read_list
from vicinal.data.table import Table
from vicinal.utils.errors import InputError

NUM_TRAINING_CLASSES = 50
NOISY, CLEAN = "Food-101N_release", "food-101"
NOISY_HINT = f"download {NOISY}.zip from https://kuanghuei.github.io/Food-101N and unpack it there"
CLEAN_HINT = f"download {CLEAN}.tar.gz, of Food-101, too and unpack it there"
VERIFIED = ("verified_train.tsv", "verified_val.tsv")
VERDICTS = {"1": "right", "0": "wrong"}
# The list has this image as filet_mignon only, so that the verdict on another label of it says nothing about that one.
UNLISTED = "hot_and_sour_soup/a49e6fb26e356c6c41a37b5c18176355.jpg"


def food_101n(root: str | Path | None = None) -> Table:
    """Food-101N (Lee et al., "CleanNet", CVPR 2018) for training, Food-101 (Bossard et al., ECCV 2014) for testing.

    As in the paper of PRISM (Liu et al., CVPR 2021): of the 101 classes in alphabetical order, the images of the first
    50 in Food-101N are for training, with the noise of the web, and the 51,000 images of the others in Food-101 for
    testing.

    Some training labels were verified by people: `verification` is `right`, `wrong` or `none`, and `noisy_label` is
    true where it is `wrong`. There is no `label_clean`, since the right label of these images was not published.

    Args:
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal. It
            holds the published folders `Food-101N_release` and `food-101`, directly or in `food_101n`.

    Raises:
        InputError: A file is missing, a line is not as published, or images are absent.
    """
    noisy, _ = find_folder(root, ("food_101n", NOISY), ("meta/imagelist.tsv",), NOISY_HINT)
    clean, _ = find_folder(root, (CLEAN, f"food_101n/{CLEAN}"), ("meta/train.txt",), CLEAN_HINT)
    classes = sorted(name for _, (name,) in read_list(noisy / "meta" / "classes.txt", (1,), 1)[1:])
    of_clean = sorted(name for _, (name,) in read_list(clean / "meta" / "classes.txt", (1,)))
    if classes != of_clean:
        raise InputError(f"{noisy}: its classes.txt names other classes than that of {clean}; one is another version")
    training = _training(noisy, set(classes[:NUM_TRAINING_CLASSES]))
    testing = _testing(clean, set(classes[NUM_TRAINING_CLASSES:]))
    table = Table(pd.concat([training, testing], ignore_index=True))
    return check_complete("food_101n", table, noisy.parent)


def _training(folder: Path, classes: set[str]) -> pd.DataFrame:
    path = folder / "meta" / "imagelist.tsv"
    listed = {image: line for line, (image,) in read_list(path, (1,), 1, "\t")[1:]}
    labels = [_label(image, f"{path}, line {line}") for image, line in listed.items()]
    verdicts = _verdicts(folder, listed)
    frame = pd.DataFrame({"path": list(listed), "label": labels})
    frame["verification"] = [verdicts.get(image, "none") for image in frame["path"]]
    frame = frame[frame["label"].isin(classes)]
    paths = [str(folder / "images" / image) for image in frame["path"]]
    return frame.assign(path=paths, split="train", noisy_label=frame["verification"] == "wrong")


def _verdicts(folder: Path, listed: dict[str, int]) -> dict[str, str]:
    verdicts: dict[str, str] = {}
    for name in VERIFIED:
        path = folder / "meta" / name
        for line, (image, verdict) in read_list(path, (2,), 1, "\t", distinct=False)[1:]:
            if image not in listed and image != UNLISTED:
                raise InputError(f"{path}, line {line}: {image} is not in imagelist.tsv; one is another version")
            if verdict not in VERDICTS:
                raise InputError(f"{path}, line {line}: the verdict {verdict!r}; it can be 1, right, or 0, wrong")
            if verdicts.setdefault(image, VERDICTS[verdict]) != VERDICTS[verdict]:
                raise InputError(f"{path}, line {line}: {image} is right in one line and wrong in another")
    return verdicts


def _testing(folder: Path, classes: set[str]) -> pd.DataFrame:
    frames = []
    for part in ("train", "test"):  # a division of each class, for classification
        path = folder / "meta" / f"{part}.txt"
        rows = read_list(path, (1,))
        labels = [_label(image, f"{path}, line {line}") for line, (image,) in rows]
        paths = [str(folder / "images" / f"{image}.jpg") for _, (image,) in rows]
        frames.append(pd.DataFrame({"path": paths, "label": labels}))
    frame = pd.concat(frames)
    constants = {"split": "test", "verification": "none", "noisy_label": False}
    return frame[frame["label"].isin(classes)].assign(**constants)


def _label(image: str, where: str) -> str:
    label, slash, name = image.partition("/")
    if not (label and slash and name) or "/" in name:
        raise InputError(f"{where}: {image[:80]!r}; a line is <class>/<image>")
    return label
