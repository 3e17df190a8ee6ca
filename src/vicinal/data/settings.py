"""The settings of a dataset: the group `data` of a recipe. Importing this module loads neither pandas nor torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from vicinal.utils.arguments import require
from vicinal.utils.errors import InputError


@dataclass(frozen=True)
class NoiseSettings:
    """Noise added to the training split on purpose, and limits of its size, to measure how robust a method is.

    Args:
        random_labels: fraction of the training images that get the label of another class, chosen at random.
        confused_labels: fraction of the training images of the classes in `confusions` that get the label of a class
            that theirs is confused with.
        confusions: a CSV file with the columns `label` and `confused_with`, one pair of training classes per line; or
            a mapping such as {cat: [lynx, dog]}.
        open_set_labels: fraction of the training images whose classes are dissolved into small clusters, each under the
            label of a remaining class.
        open_set_cluster_size: mean number of images per such cluster.
        foreign: images of none of the classes: a folder, a .csv or .parquet table, or a benchmark.
        foreign_fraction: fraction of the training images that are replaced by foreign ones; their labels stay.
        foreign_root: folder that relative paths of that table start from, or that holds the files of that benchmark.
        classes: train on the first classes only, in sorted order of their names: a fraction of the classes up to 1,
            a number of classes above 1; null: all.

    Raises:
        InputError: a value is out of range, or a setting is given without the one that it belongs to.
    """

    random_labels: float = 0.0
    confused_labels: float = 0.0
    confusions: dict[str, str | int | list[str | int]] | str | None = None
    open_set_labels: float = 0.0
    open_set_cluster_size: float = 2.0
    foreign: str | None = None
    foreign_fraction: float = 0.0
    foreign_root: str | None = None
    classes: float | None = None

    def __post_init__(self) -> None:
        for name in ("random_labels", "confused_labels", "open_set_labels", "foreign_fraction"):
            self._check(name, 0 <= getattr(self, name) <= 1, "from 0 to 1")
        self._check("classes", self.classes is None or self.classes > 0, "above 0 or null")
        fits = (self.foreign is None) == (self.foreign_fraction == 0)
        self._check("foreign_fraction", fits, "above 0 with data.noise.foreign, else 0")
        fits = self.foreign_root is None or self.foreign is not None
        self._check("foreign_root", fits, "null without data.noise.foreign")
        fits = (self.confusions is None) == (self.confused_labels == 0)
        self._check("confused_labels", fits, "above 0 with data.noise.confusions, else 0")
        self._check("open_set_cluster_size", 1 <= self.open_set_cluster_size < math.inf, "1 or more")
        fits = self.open_set_labels > 0 or self.open_set_cluster_size == NoiseSettings.open_set_cluster_size
        self._check("open_set_cluster_size", fits, "left alone unless data.noise.open_set_labels is above 0")

    def _check(self, name: str, holds: bool, expected: str) -> None:
        require(holds, f"data.noise.{name}", getattr(self, name), expected)


@dataclass(frozen=True)
class DataSettings:
    """Where the images come from and how their classes are divided into splits.

    Args:
        source: a folder with one folder of images per class, a .csv or .parquet table with the columns `path` and
            `label`, or a benchmark, such as omniglot; `vicinal data --help` lists them. Or a Hugging Face dataset
            hf:NAME, or WebDataset shards wds:SHARDS.
        root: folder that relative paths of a table start from (default: the table's own), or that holds a benchmark, or
            that the images of a Hugging Face dataset or of shards are written to.
        path_column: name of the table's column with the image paths, or of a column with the images themselves.
        label_column: name of the table's column with the labels.
        group_pattern: a regular expression that finds groups in the file names, such as series of photos: images with
            the same text in its parentheses are one group, and do not find each other in evaluation.
        group_minutes: images that were taken at most this many minutes after another one, by their EXIF data, are one
            group with it; in place of `group_pattern`.
        fractions: fraction of the classes for each split, such as {train: 0.6, val: 0.2, test: 0.2}. Default: the
            splits of the source, or else the fractions of this example. A test split of the source stays as it is, and
            the classes of its train and val are divided, such as {train: 0.5, val: 0.5}. Of three classes or fewer all
            are in train.
        val_images: fraction of the images of each training class that become the split val, for applications whose
            classes are all known; at least two, and none where fewer than two would be left. With a column `group`,
            whole groups. Without splits, all classes are in train.
        classes: names of the classes of each split, such as {train: [cat, dog], test: [owl]}.
        split_column: name of a column that holds the split of each class; with fractions or classes, the column whose
            values are assigned to splits instead of labels, such as coarse.
        order: which classes the fractions take: "random" ones, by the seed, or "in_order" the first ones for train, the
            next for val, the last for test; integers are sorted as numbers.
        redivide: divide the classes of the source's own test split too.
        train_list: a list of training images with labels of its own, lines `<path>,<label>` such as those of PRISM's
            noisy lists, in place of the training split of the source.
        noise: noise added to the training split on purpose, and limits of its size.
        cache: keep all decoded images in memory.
        num_workers: processes that read and transform images. Default: none with `cache`, else one per core, at most 8.
        augmentation: where images are flipped and their colors changed in training: "workers", by the processes that
            read them; "device", by the GPU, batch by batch, with the same random numbers. Crops and rotations are made
            by the processes in either case.
        on_error: "raise" stops at an unreadable image, "skip" leaves it out and counts it.

    Raises:
        InputError: a value is out of range.
    """

    source: str | None = None
    root: str | None = None
    path_column: str = "path"
    label_column: str = "label"
    group_pattern: str | None = None
    group_minutes: float | None = None
    fractions: dict[str, float] | None = None
    classes: dict[str, list[str | int]] | None = None
    val_images: float = 0.0
    split_column: str | None = None
    order: Literal["random", "in_order"] = "random"
    redivide: bool = False
    train_list: str | None = None
    noise: NoiseSettings = field(default_factory=NoiseSettings)
    cache: bool = False
    num_workers: int | None = None
    augmentation: Literal["workers", "device"] = "workers"
    on_error: Literal["raise", "skip"] = "raise"

    def __post_init__(self) -> None:
        require(self.num_workers is None or self.num_workers >= 0, "data.num_workers", self.num_workers, "0 or more")
        require(0 <= self.val_images < 1, "data.val_images", self.val_images, "from 0 to below 1")
        fits = self.order == "random" or bool(self.fractions)
        require(fits, "data.order", self.order, "random unless data.fractions is given")
        if self.redivide and not self.divides:
            raise InputError("data.redivide = true needs data.fractions, data.classes or data.split_column")

    @property
    def divides(self) -> bool:
        """Whether classes are assigned to splits as these settings say."""
        return bool(self.fractions or self.classes or self.split_column)
