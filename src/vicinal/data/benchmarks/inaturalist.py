"""iNaturalist 2018 and mini-iNaturalist 2021: photographs of plants and animals, with published retrieval splits."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from vicinal.data.benchmarks.cache import check_complete, find_folder
from vicinal.data.benchmarks.lists import class_number, read_list
from vicinal.data.table import Table
from vicinal.utils.errors import InputError

SPLITS = ("train", "test")
SUPERCATEGORIES_2021 = (
    *("Amphibians", "Animalia", "Arachnids", "Birds", "Fungi", "Insects"),
    *("Mammals", "Mollusks", "Plants", "Ray-finned Fishes", "Reptiles"),
)


def inaturalist_2018(root: str | Path | None = None) -> Table:
    """Species of iNaturalist 2018 (Van Horn et al., CVPR 2018), with the split of Smooth-AP (Brown et al., ECCV 2020).

    5,690 species with 325,846 images are for training, 2,452 with 136,093 for testing. The labels are the published
    numbers of the species; the coarse labels are their supercategories, such as `Aves`.

    Args:
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal. It, or
            its folder `inaturalist_2018` or `Inaturalist`, holds the published folders `train_val2018` and
            `Inat_dataset_splits` (or the two lists of the latter).

    Raises:
        InputError: A file is missing, a line is not as published, or images are absent.
    """
    hint = (
        "download train_val2018.tar.gz from https://github.com/visipedia/inat_comp/tree/master/2018, and the archive "
        "of splits from https://github.com/Andrew-Brown1/Smooth_AP, and unpack both there"
    )
    places = tuple(f"{folder}Inaturalist_train_set1.txt" for folder in ("Inat_dataset_splits/", ""))
    folder, marker = find_folder(root, ("inaturalist_2018", "Inaturalist"), places, hint)
    lists = {split: (folder / marker).with_name(f"Inaturalist_{split}_set1.txt") for split in SPLITS}
    frames = [_frame_2018(path).assign(split=split) for split, path in lists.items()]
    return check_complete("inaturalist_2018", Table(pd.concat(frames, ignore_index=True), folder), folder)


def mini_inaturalist_2021(root: str | Path | None = None) -> Table:
    """Species of mini-iNaturalist 2021, with the split of the contextual loss (Liao et al., ICML 2023).

    Half of the species of each supercategory are for training, half for testing: 5,003 and 4,997 species with 50 images
    each. The labels are the published numbers of the species; the coarse labels are the 11 supercategories, such as
    `Birds`. That split was drawn without a seed, so it is that of the published lists only.

    Args:
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal. It, or
            its folder `mini_inaturalist_2021`, holds the lists `iNaturalist_train.txt` and `iNaturalist_test.txt`,
            directly or in `data/`, and the published folder `train_mini`, or `train_mini_resized` with smaller copies
            of its images, which is used first.

    Raises:
        InputError: A file is missing, a line is not as published, or images are absent.
    """
    hint = (
        "download train_mini.tar.gz from https://github.com/visipedia/inat_comp/tree/master/2021, and the lists from "
        "https://github.com/Chris210634/metric-learning-using-contextual-similarity (data), and put them there"
    )
    places = tuple(f"{folder}iNaturalist_train.txt" for folder in ("", "data/"))
    folder, marker = find_folder(root, ("mini_inaturalist_2021",), places, hint)
    lists = {split: (folder / marker).with_name(f"iNaturalist_{split}.txt") for split in SPLITS}
    frames = [_frame_2021(path).assign(split=split) for split, path in lists.items()]
    images = next((name for name in ("train_mini_resized", "train_mini") if (folder / name).is_dir()), "train_mini")
    table = Table(pd.concat(frames, ignore_index=True), folder / images)
    return check_complete("mini_inaturalist_2021", table, folder)


def _frame_2018(path: Path) -> pd.DataFrame:
    """Read a list of paths that end in `<supercategory>/<species>/<image>`."""
    rows = read_list(path, (1,))
    labels, supercategories = [], []
    for line, (name,) in rows:
        parents = name.split("/")[:-1]
        if len(parents) < 2:
            raise InputError(f"{path}, line {line}: {name!r}; a path ends in <supercategory>/<species>/<image>")
        labels.append(class_number(parents[-1], f"{path}, line {line}"))
        supercategories.append(parents[-2])
    return pd.DataFrame({"path": [name for _, (name,) in rows], "label": labels, "coarse": supercategories})


def _frame_2021(path: Path) -> pd.DataFrame:
    """Read a list of paths, numbers of supercategories and numbers of species."""
    rows = read_list(path, (3,), separator=",")
    labels, supercategories = [], []
    for line, (_, *numbers) in rows:
        supercategory, species = (class_number(text, f"{path}, line {line}") for text in numbers)
        if supercategory >= len(SUPERCATEGORIES_2021):
            last = len(SUPERCATEGORIES_2021) - 1
            raise InputError(f"{path}, line {line}: has the supercategory {supercategory}; there are 0 to {last}")
        labels.append(species)
        supercategories.append(SUPERCATEGORIES_2021[supercategory])
    return pd.DataFrame({"path": [name for _, (name, *_) in rows], "label": labels, "coarse": supercategories})
