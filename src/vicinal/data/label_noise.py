"""Wrong labels, put into a table on purpose: any other class's at random, or that of a class theirs is mistaken for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from vicinal.console import log
from vicinal.data.noise_rows import chosen, generator, relabelled, training_rows
from vicinal.data.table import Table
from vicinal.data.table_files import read_csv
from vicinal.errors import InputError

Name = str | int
Confusions = Mapping[str, Name | Sequence[Name]] | Mapping[int, Name | Sequence[Name]] | str | Path


def random_labels(table: Table, share: float, seed: int = 0) -> Table:
    """Give a share of the training images the label of another class, drawn at random among the training classes.

    Label noise of "Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization" (Liao,
    Tsiligkaridis, Kulis, ICML 2023), 4.4, there 5, 10 and 20 %, and the symmetric noise of "Center Contrastive Loss for
    Metric Learning" (Cai, Xiong, Tian, 2023), 4.4, there 10 and 20 %: every other class is equally likely, however
    alike the two are. Neither paper says whether a label may be drawn that is the image's own; here it may not, so that
    the share of wrong labels is the share asked for.

    Args:
        table: the images, with labels.
        share: from 0 to 1, of the training images; rounded to whole images.
        seed: not negative.

    Returns:
        The table, with the columns `label_clean` and `noisy_label`.

    Raises:
        InputError: no labels, no training image, fewer than two training classes, or an impossible share or seed.

    Example:
        >>> import pandas as pd
        >>> table = Table(pd.DataFrame({"label": ["a", "a", "b", "b"], "coarse": ["A", "A", "B", "B"]}))
        >>> sorted(random_labels(table, 0.25, seed=1).frame["noisy_label"])
        [False, False, False, True]
    """
    rows, rng = training_rows(table), generator(seed, "labels")
    training = table.take(rows)
    if len(training.classes) < 2:
        raise InputError(f"random labels take two training classes or more; there is only {training.classes[0]!r}")
    altered = chosen(len(rows), share, rng)
    others = rng.integers(1, len(training.classes), len(altered))  # how many classes further
    wrong = (training.labels[altered] + others) % len(training.classes)
    log(f"gave {len(altered):,} of {len(rows):,} training images the label of another class")
    return relabelled(table, rows, altered, wrong)


def confused_labels(table: Table, confusions: Confusions, share: float, seed: int = 0) -> Table:
    """Give a share of the images of some classes the label of a class that theirs is mistaken for.

    Asymmetric noise, as in "Making Deep Neural Networks Robust to Label Noise: a Loss Correction Approach" (Patrini,
    Rozza, Menon, Nock, Qu, CVPR 2017): mistakes happen between classes that are alike, and need not go both ways.

    Args:
        table: the images, with labels.
        confusions: training class -> the training class, or the classes, that it is mistaken for, each of them equally
            likely; or a CSV file with the columns `label` and `confused_with`, a pair a line. A class that is listed
            twice for another is twice as likely. 5 and "5" mean the same class.
        share: from 0 to 1, of the training images of the classes that are mistaken for others; rounded to whole images.
        seed: not negative.

    Returns:
        The table, with the columns `label_clean` and `noisy_label`.

    Raises:
        InputError: no labels, no training image, no confusions, a file of them that cannot be read, a name that is no
            training class, a class confused with itself, or an impossible share or seed.

    Example:
        >>> import pandas as pd
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "owl"]}))
        >>> confused_labels(table, {"cat": "dog", "dog": ["cat", "owl"]}, share=1.0).frame["label"].tolist()
        ['dog', 'dog', 'cat', 'owl']
    """
    rows, rng = training_rows(table), generator(seed, "confused labels")
    training = table.take(rows)
    mistaken_for = _mistaken_for(confusions, training.classes)
    confusable = np.flatnonzero(np.isin(training.labels, list(mistaken_for)))
    altered = confusable[chosen(len(confusable), share, rng)]
    choices = [mistaken_for[label] for label in training.labels[altered]]
    drawn = rng.integers([len(each) for each in choices])
    wrong = np.array([each[which] for each, which in zip(choices, drawn, strict=True)], np.int64)
    log(
        f"gave {len(altered):,} of {len(confusable):,} training images of {len(mistaken_for):,} classes "
        "the label of a class theirs is mistaken for"
    )
    return relabelled(table, rows, altered, wrong)


def _mistaken_for(confusions: Confusions, classes: Sequence[Name]) -> dict[int, list[int]]:
    """Class -> the classes it is mistaken for, as positions in `classes`."""
    position = {str(name): code for code, name in enumerate(classes)}
    mistaken: dict[int, list[int]] = {}
    for label, other, where in _pairs(confusions):
        for name in (label, other):
            if name not in position:
                there = f"there are {len(classes)}, such as {str(classes[0])!r}"
                raise InputError(f"{where}: {name!r} is no training class; {there}")
        if label == other:
            raise InputError(f"{where}: {label!r} is confused with itself; name another class")
        mistaken.setdefault(position[label], []).append(position[other])
    if not mistaken:
        raise InputError("there are no confusions; name at least one class and what it is mistaken for")
    return mistaken


def _pairs(confusions: Confusions) -> Iterator[tuple[str, str, str]]:
    """A class, a class that it is mistaken for, and where that is said."""
    if not isinstance(confusions, Mapping):
        yield from _pairs_of_file(Path(confusions))
        return
    for label, others in confusions.items():
        for other in [others] if isinstance(others, (str, int, np.integer)) else others:
            yield str(label), str(other), "confusions"


def _pairs_of_file(path: Path) -> Iterator[tuple[str, str, str]]:
    frame = read_csv(path)
    for column in ("label", "confused_with"):
        if list(frame.columns).count(column) != 1:
            raise InputError(f"{path}: a list of confusions has one column label and one column confused_with")
    for line, label, other in zip(frame.index, frame["label"], frame["confused_with"], strict=True):
        yield str(label).strip(), str(other).strip(), f"{path}, line {line}"
