"""Image classification exports of FiftyOne: `labels.json`, and the images in `data/`.

The format is two JSON mappings, which are read here; the library fiftyone would bring a database server.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pandas as pd

from vicinal.data.benchmarks.completeness import check_images
from vicinal.data.benchmarks.json_files import read_json
from vicinal.data.containers.names import SPLITS
from vicinal.data.folders import find_images
from vicinal.data.table import Table
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

LABELS, DATA = "labels.json", "data"


def read_fiftyone(folder: Path) -> Table:
    """The table of a FiftyOne export, or of a folder with one export per split, such as `train` and `validation`.

    The rules are those of :func:`~vicinal.data.containers.load_container`.
    """
    if (folder / LABELS).is_file():
        return Table(_read_export(folder))
    found = sorted(each for each in folder.glob(f"*/{LABELS}") if each.parent.name in SPLITS)
    if not found:
        raise InputError(f"fiftyone:{folder}: no {LABELS} in this folder, nor in folders train, validation and test")
    frames = [_read_export(labels.parent).assign(split=SPLITS[labels.parent.name]) for labels in found]
    return Table(pd.concat(frames, ignore_index=True))


def _read_export(folder: Path) -> pd.DataFrame:
    source = str(folder / LABELS)
    content = read_json(folder / LABELS)
    labels = content.get("labels") if isinstance(content, dict) else None
    if not isinstance(labels, dict):
        raise InputError(
            f"{source}: has no mapping 'labels' of images to classes; export the type image classification"
        )
    files = _files(folder)
    named = {name: _label(label, content.get("classes"), f"{source}, {name!r}") for name, label in labels.items()}
    labeled = {name: label for name, label in named.items() if label is not None}
    if not labeled:
        raise InputError(f"{source}: no image has a label")
    if len(labeled) < len(named):
        log(f"{source}: left out {len(named) - len(labeled):,} images without a label")
    paths = [files.get(name, name if os.path.isabs(name) else f"{folder / DATA / name}.*") for name in labeled]
    check_images(paths, folder)
    return pd.DataFrame({"path": paths, "label": list(labeled.values())})


def _files(folder: Path) -> dict[str, str]:
    """The image files in `data/` by their names without suffix, by which `labels.json` names them."""
    files: dict[str, str] = {}
    for file in find_images(folder / DATA)[0] if (folder / DATA).is_dir() else []:
        name = os.path.splitext(file)[0].replace(os.sep, "/")
        if name in files:
            raise InputError(f"{folder / DATA}: {file} and {os.path.basename(files[name])} have one name in {LABELS}")
        files[name] = str(folder / DATA / file)
    return files


def _label(label: Any, classes: Any, where: str) -> str | int | None:
    """The class of an image: a name or a number, alone or in a mapping with its confidence."""
    if isinstance(label, dict):
        label = label.get("label")
    if isinstance(label, list):
        raise InputError(f"{where}: has a list of labels; one class per image can be read")
    if isinstance(label, int) and not isinstance(label, bool) and isinstance(classes, list):
        if not 0 <= label < len(classes):
            raise InputError(f"{where}: the label is {label}, but there are {len(classes)} classes, numbered from 0")
        return str(classes[label])
    if label is None or isinstance(label, str | int):
        return label
    raise InputError(f"{where}: the label {label!r} is neither a name nor a number")
