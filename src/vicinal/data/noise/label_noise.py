"""Label noise: labels replaced by those of random classes, or by those of classes that are easily confused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from vicinal.data.noise.noise_rows import choose_rows, noise_generator, relabel, training_rows
from vicinal.data.table import Table
from vicinal.data.table_files import read_csv
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

Name = str | int
Confusions = Mapping[str, Name | Sequence[Name]] | Mapping[int, Name | Sequence[Name]] | str | Path


def random_labels(table: Table, fraction: float, seed: int = 0) -> Table:
    """Replace the labels of a fraction of the training images by the label of another training class, at random.

    Reference: label noise of "Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization"
    (Liao, Tsiligkaridis, Kulis, ICML 2023), Section 4.4, with 5, 10 and 20 %; symmetric noise of "Center Contrastive
    Loss for Metric Learning" (Cai, Xiong, Tian, 2023), Section 4.4, with 10 and 20 %. Every other class is equally
    likely. Neither paper says whether an image may keep its own label; here it may not, so that the fraction of noisy
    labels is exact.

    Args:
        table: The images, with labels.
        fraction: The fraction of the training images, from 0 to 1; rounded to whole images.
        seed: The seed of the random choices; not negative.

    Returns:
        The table with the columns `label_clean` and `noisy_label`.

    Raises:
        InputError: The table has no labels, no training image or fewer than two training classes, or the fraction or
            seed is out of range.

    Example:
        >>> import pandas as pd
        >>> table = Table(pd.DataFrame({"label": ["a", "a", "b", "b"], "coarse": ["A", "A", "B", "B"]}))
        >>> sorted(random_labels(table, 0.25, seed=1).frame["noisy_label"])
        [False, False, False, True]
    """
    rows, rng = training_rows(table), noise_generator(seed, "labels")
    training = table.take(rows)
    num_classes = len(training.classes)
    if num_classes < 2:
        raise InputError(f"random labels take two training classes or more; there is only {training.classes[0]!r}")
    altered = choose_rows(len(rows), fraction, rng)
    steps = rng.integers(1, num_classes, len(altered))  # how many classes further, so never the own class
    new_labels = (training.labels[altered] + steps) % num_classes
    log(f"gave {len(altered):,} of {len(rows):,} training images the label of another class")
    return relabel(table, rows, altered, new_labels)


def confused_labels(table: Table, confusions: Confusions, fraction: float, seed: int = 0) -> Table:
    """Replace labels of some classes by the label of a class that theirs is confused with.

    Reference: asymmetric noise, as in "Making Deep Neural Networks Robust to Label Noise: a Loss Correction Approach"
    (Patrini, Rozza, Menon, Nock, Qu, CVPR 2017). Similar classes are confused, not necessarily in both directions.

    Args:
        table: The images, with labels.
        confusions: For each training class that is confused, the other training class, or a list of equally likely
            ones; or a CSV file with the columns `label` and `confused_with`, one pair per line. A class that is listed
            twice is twice as likely. 5 and "5" are the same class.
        fraction: The fraction of the training images of the confused classes, from 0 to 1; rounded to whole images.
        seed: The seed of the random choices; not negative.

    Returns:
        The table with the columns `label_clean` and `noisy_label`.

    Raises:
        InputError: The table has no labels or no training image, there are no confusions or their file cannot be read,
            a name is not a training class or is confused with itself, or the fraction or seed is out of range.

    Example:
        >>> import pandas as pd
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "owl"]}))
        >>> confused_labels(table, {"cat": "dog", "dog": ["cat", "owl"]}, fraction=1.0).frame["label"].tolist()
        ['dog', 'dog', 'cat', 'owl']
    """
    rows, rng = training_rows(table), noise_generator(seed, "confused labels")
    training = table.take(rows)
    confused_with = _confused_with(confusions, training.classes)
    candidates = np.flatnonzero(np.isin(training.labels, list(confused_with)))
    altered = candidates[choose_rows(len(candidates), fraction, rng)]
    choices = [confused_with[label] for label in training.labels[altered]]
    drawn = rng.integers([len(each) for each in choices])
    new_labels = np.array([each[index] for each, index in zip(choices, drawn, strict=True)], np.int64)
    log(
        f"gave {len(altered):,} of {len(candidates):,} training images of {len(confused_with):,} classes "
        "the label of a class theirs is confused with"
    )
    return relabel(table, rows, altered, new_labels)


def _confused_with(confusions: Confusions, classes: Sequence[Name]) -> dict[int, list[int]]:
    """For each confused class the classes that it is confused with, as positions in `classes`."""
    positions = {str(name): position for position, name in enumerate(classes)}
    confused: dict[int, list[int]] = {}
    for label, other, source in _pairs(confusions):
        for name in (label, other):
            if name not in positions:
                known = f"there are {len(classes)}, such as {str(classes[0])!r}"
                raise InputError(f"{source}: {name!r} is no training class; {known}")
        if label == other:
            raise InputError(f"{source}: {label!r} is confused with itself; name another class")
        confused.setdefault(positions[label], []).append(positions[other])
    if not confused:
        raise InputError("there are no confusions; name at least one class and what it is confused with")
    return confused


def _pairs(confusions: Confusions) -> Iterator[tuple[str, str, str]]:
    """Yield each class, a class that it is confused with, and the source of the pair for errors."""
    if not isinstance(confusions, Mapping):
        yield from _pairs_in_file(Path(confusions))
        return
    for label, others in confusions.items():
        for other in [others] if isinstance(others, (str, int, np.integer)) else others:
            yield str(label), str(other), "confusions"


def _pairs_in_file(path: Path) -> Iterator[tuple[str, str, str]]:
    frame = read_csv(path)
    for column in ("label", "confused_with"):
        if list(frame.columns).count(column) != 1:
            raise InputError(f"{path}: a list of confusions has one column label and one column confused_with")
    for line, label, other in zip(frame.index, frame["label"], frame["confused_with"], strict=True):
        yield str(label).strip(), str(other).strip(), f"{path}, line {line}"
