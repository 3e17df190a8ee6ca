"""CUB-200-2011: photographs of birds."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from vicinal.data.benchmarks.cache import check_complete, find_folder
from vicinal.data.benchmarks.lists import box_columns, class_number, parse_box, read_by_id
from vicinal.data.table import Table

LAST_TRAINING_CLASS = 100
LABELS = "image_class_labels.txt"


def cub(root: str | Path | None = None) -> Table:
    """CUB-200-2011 (Wah et al., 2011): 100 classes of birds with 5,864 images for training, 100 with 5,924 for testing.

    The labels are the names of the classes, such as `001.Black_footed_Albatross`; the first hundred are for training.
    The published `train_test_split.txt` divides the images of each class, for classification, and is not used. The
    bounding boxes are in the columns `box_x_1`, `box_y_1`, `box_x_2`, `box_y_2`.

    Args:
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal. It
            holds the published folder `CUB_200_2011`, or is that folder.

    Raises:
        InputError: A file is missing, a line is not as published, or images are absent.
    """
    hint = "download CUB_200_2011.tgz from https://data.caltech.edu/records/65de6-vp158 and unpack it there"
    folder, _ = find_folder(root, ("cub", "CUB_200_2011"), (LABELS,), hint)
    paths = read_by_id(folder / "images.txt", 2)
    classes = read_by_id(folder / LABELS, 2, paths)
    names = read_by_id(folder / "classes.txt", 2, [number for (number,) in classes.values()])
    boxes = read_by_id(folder / "bounding_boxes.txt", 5, paths)
    numbers = [class_number(classes[image][0], f"{folder / LABELS}, image {image}") for image in paths]
    frame = pd.DataFrame(
        {
            "path": [path for (path,) in paths.values()],
            "label": [names[classes[image][0]][0] for image in paths],
            "split": ["train" if number <= LAST_TRAINING_CLASS else "test" for number in numbers],
            **box_columns(parse_box(boxes[i], f"{folder}/bounding_boxes.txt, image {i}", has_size=True) for i in paths),
        }
    )
    return check_complete("cub", Table(frame, folder / "images"), folder)
