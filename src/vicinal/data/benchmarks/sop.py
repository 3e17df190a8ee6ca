"""Stanford Online Products: photographs of products offered on eBay."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from vicinal.data.benchmarks.cache import check_complete, find_folder
from vicinal.data.benchmarks.lists import class_number, read_list
from vicinal.data.table import Table
from vicinal.utils.errors import InputError

PARTS = {"train": "Ebay_train.txt", "test": "Ebay_test.txt"}
HEADER = ["image_id", "class_id", "super_class_id", "path"]
SUPER_CLASSES = (
    *("bicycle", "cabinet", "chair", "coffee_maker", "fan", "kettle"),
    *("lamp", "mug", "sofa", "stapler", "table", "toaster"),
)


def sop(root: str | Path | None = None) -> Table:
    """Stanford Online Products (Oh Song et al., CVPR 2016): 11,318 classes with 59,551 images for training.

    The other 11,316 classes, with 60,502 images, are for testing. The labels are the published numbers of the classes;
    the coarse labels are the 12 super-classes, such as `bicycle`.

    Args:
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal. It
            holds the published folder `Stanford_Online_Products`, or is that folder.

    Raises:
        InputError: A file is missing, a line is not as published, or images are absent.
    """
    hint = (
        "download Stanford_Online_Products.zip (https://cvgl.stanford.edu/projects/lifted_struct) and unpack it there"
    )
    folder, _ = find_folder(root, ("sop", "Stanford_Online_Products"), (PARTS["train"],), hint)
    frame = pd.concat([_frame(folder / name).assign(split=split) for split, name in PARTS.items()], ignore_index=True)
    repeated = frame["image_id"][frame["image_id"].duplicated()]
    if len(repeated):
        raise InputError(f"{folder}: its lists have two images with the id {repeated.iloc[0]}")
    return check_complete("sop", Table(frame.drop(columns="image_id"), folder), folder)


def _frame(path: Path) -> pd.DataFrame:
    (_, header), *rows = read_list(path, (4,), 1, distinct=False)
    if header != HEADER:
        raise InputError(f"{path}, line 1: {' '.join(header)!r}; the columns must be {' '.join(HEADER)}")
    frame = pd.DataFrame([fields for _, fields in rows], columns=["image_id", "label", "coarse", "path"])
    where = [f"{path}, line {line}" for line, _ in rows]
    labels = map(class_number, frame["label"], where)
    return frame.assign(label=list(labels), coarse=list(map(_super_class, frame["coarse"], where)))


def _super_class(text: str, where: str) -> str:
    number = class_number(text, where)
    if not 1 <= number <= len(SUPER_CLASSES):
        raise InputError(f"{where}: has the super-class {number}; there are 1 to {len(SUPER_CLASSES)}")
    return SUPER_CLASSES[number - 1]
