"""Verification (1:1): are two images of the same class? True-accept rates at false-accept rates, over all pairs.

- **FAR**, false-accept rate: the fraction of pairs of different classes that are accepted.
- **TAR**, true-accept rate: the fraction of pairs of the same class that are accepted.

Thresholds are exact at any number of images: similarities are counted by their bits, first by the upper 16 of each
float32, then, where a threshold lies, by the lower 16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from vicinal.data.table import Table
from vicinal.evaluation.open_set import auroc, same_image_or_group
from vicinal.evaluation.protocol import query_gallery_rows
from vicinal.evaluation.thresholds import check_rate, just_above, num_allowed, threshold_at
from vicinal.retrieval.scores import BLOCK_ROWS, Array, ScoreBuffer, UnitVectors, check_rows
from vicinal.utils.arrays import Booleans, Doubles, Floats, Integers
from vicinal.utils.errors import InputError

RATES = (0.1, 0.01, 0.001)
ROWS = 512  # queries per block
NUM_CODES = 2**16
Tiles = Iterator[tuple[Floats, Booleans]]
Keys: TypeAlias = npt.NDArray[np.uint32]
NUM_FOLDS = 10


def verification_rates(embeddings: Array, table: Table, false_accept_rates: Sequence[float] = RATES) -> pd.DataFrame:
    """TAR at FAR over all pairs of images, or of a query and a gallery image.

    Every pair of images counts once. With the columns `is_query` and `is_gallery`, the pairs are those of a query and a
    gallery image that are not the same image. Pairs of one class and one `group` are left out, as in
    :func:`~vicinal.evaluation.evaluate`. Similarities are computed twice, in blocks, with about 100 MB of
    additional memory at any number of images.

    Args:
        embeddings: float [rows, dim].
        table: one row per embedding, with labels.
        false_accept_rates: each between 0 and 1.

    Returns:
        One row per rate, with the columns `false_accept_rate`, `threshold` (a pair of this similarity or a higher one
        is accepted), `true_accept_rate`, `num_false_accepts`, `num_different` and `num_same` (pairs).

    Raises:
        InputError: numbers of rows differ, no labels, NaN or infinity in an embedding, an invalid rate, or no pair
            of the same class or of different ones.

    Example:
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog"]}))
        >>> embeddings = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> verification_rates(embeddings, table, [0.01])["true_accept_rate"].tolist()
        [1.0]
    """
    for rate in false_accept_rates:
        check_rate("false_accept_rate", rate)
    check_rows(embeddings, table)
    tiles = _tiles(embeddings, table)
    upper = np.zeros((2, NUM_CODES), np.int64)
    for scores, is_same in tiles():
        upper += _count(_keys(scores) >> np.uint32(16), is_same)
    num_same, num_different = int(upper[1].sum()), int(upper[0].sum())
    if not (num_same and num_different):
        kind = "of different classes" if num_same else "of the same class"
        raise InputError(f"the table has no pair of images {kind}; verification needs both")
    ranks = [num_allowed(num_different, rate) for rate in false_accept_rates]
    codes = [_code_of_rank(upper[0], rank) for rank in ranks]
    lower = {code: np.zeros((2, NUM_CODES), np.int64) for code in codes}
    for scores, is_same in tiles():
        keys = _keys(scores)
        for code, counts in lower.items():
            is_here = keys >> 16 == code
            counts += _count(keys[is_here] & 0xFFFF, is_same[is_here])
    rows = []
    for rate, rank, code in zip(false_accept_rates, ranks, codes, strict=True):
        above = upper[:, code + 1 :].sum(axis=1)
        last = _code_of_rank(lower[code][0], rank - int(above[0]))
        accepted = above + lower[code][:, last + 1 :].sum(axis=1)
        threshold = just_above(_score(code << 16 | last))
        rows.append((rate, threshold, accepted[1] / num_same, int(accepted[0]), num_different, num_same))
    names = ["false_accept_rate", "threshold", "true_accept_rate", "num_false_accepts", "num_different", "num_same"]
    return pd.DataFrame(rows, columns=names)


def _tiles(embeddings: Array, table: Table) -> Callable[[], Tiles]:
    query_rows, gallery_rows = query_gallery_rows(table)
    is_symmetric = not table.has("is_query")
    queries, gallery = (UnitVectors(embeddings, "embedding", rows) for rows in (query_rows, gallery_rows))
    exclusions = same_image_or_group(table, query_rows, gallery_rows)
    labels, gallery_labels = table.labels[query_rows], table.labels[gallery_rows]

    def walk() -> Tiles:
        buffer = ScoreBuffer(min(ROWS, len(queries)), min(BLOCK_ROWS, len(gallery)), queries.device)
        for first in range(0, len(queries), ROWS):
            chunk = slice(first, min(first + ROWS, len(queries)))
            vectors = queries.block(chunk.start, chunk.stop)
            for start in range(first if is_symmetric else 0, len(gallery), BLOCK_ROWS):
                stop = min(start + BLOCK_ROWS, len(gallery))
                scores = buffer.fill(vectors, gallery, start, stop)
                exclusions.mask(scores, chunk, start)
                if is_symmetric and start < chunk.stop:
                    rows, columns = torch.arange(chunk.start, chunk.stop)[:, None], torch.arange(start, stop)
                    is_seen = columns < rows  # with both exchanged
                    scores.masked_fill_(is_seen.to(scores.device), -torch.inf)
                values = scores.cpu().numpy()
                counts = values > -np.inf
                is_same = labels[chunk, None] == gallery_labels[None, start:stop]
                yield values[counts], is_same[counts]

    return walk


def _keys(scores: Floats) -> Keys:
    """Integers from 0 to 2**32 - 1 in the order of the scores; 0 and -0 are the same."""
    bits = (scores + np.float32(0)).view(np.uint32)
    return np.where(bits >> 31, ~bits, bits | np.uint32(0x80000000))


def _score(key: int) -> np.float32:
    bits = key & 0x7FFFFFFF if key >> 31 else 0xFFFFFFFF - key
    return np.uint32(bits).view(np.float32)


def _count(codes: Keys, is_same: Booleans) -> Integers:
    """How many pairs of different classes, and of the same, have each code: int64 [2, codes]."""
    counts = np.bincount(codes + NUM_CODES * is_same, minlength=2 * NUM_CODES).astype(np.int64)
    return counts.reshape(2, NUM_CODES)


def _code_of_rank(counts: Integers, rank: int) -> int:
    """The code of the value at a rank, from 0 for the highest."""
    return len(counts) - 1 - int(np.searchsorted(np.cumsum(counts[::-1]), rank, "right"))


@dataclass(frozen=True)
class PairsEvaluation:
    """The error rates of telling pairs of the same class from pairs of different ones.

    Attributes:
        accuracy: the mean over the folds.
        standard_error: of that mean.
        folds: one row per fold, with the columns `fold`, `accuracy`, `threshold` and `num_pairs`.
        auroc: the probability that a pair of the same class is more similar than one of different classes.
        rates: one row per rate, with the columns `false_accept_rate`, `threshold` and `true_accept_rate`, over all
            pairs.
        num_same: the number of pairs of the same class.
        num_different: the number of pairs of different classes.
    """

    accuracy: float
    standard_error: float
    folds: pd.DataFrame
    auroc: float
    rates: pd.DataFrame
    num_same: int
    num_different: int

    def to_dict(self) -> dict[str, object]:
        """Return plain values, ready for JSON."""
        return {
            "accuracy": self.accuracy,
            "standard_error": self.standard_error,
            "auroc": self.auroc,
            "num_same": self.num_same,
            "num_different": self.num_different,
            "rates": self.rates.to_dict("records"),
            "folds": self.folds.to_dict("records"),
        }

    def __str__(self) -> str:
        lines = [
            f"{self.num_same:,} pairs of the same class, {self.num_different:,} of different ones, "
            f"{len(self.folds)} folds",
            f"accuracy        {100 * self.accuracy:6.2f} % ± {100 * self.standard_error:.2f} (standard error)",
            f"AUROC           {100 * self.auroc:6.2f} %",
        ]
        for rate, threshold, accepted in self.rates.to_numpy(dtype=np.float64):
            lines.append(f"{f'TAR@FAR={rate:g}':15s} {100 * accepted:6.2f} %   threshold {threshold:.4f}")
        return "\n".join(lines)


def evaluate_pairs(
    scores: Floats, is_same: Booleans, folds: npt.ArrayLike | None = None, false_accept_rates: Sequence[float] = RATES
) -> PairsEvaluation:
    """Evaluate the similarities of pairs.

    Args:
        scores: float32 [pairs].
        is_same: bool [pairs], whether a pair is of the same class.
        folds: [pairs], the fold of each pair; None divides the pairs of the same class, and those of different ones,
            into ten parts in their order, which gives the folds of LFW's list.
        false_accept_rates: each between 0 and 1.

    Raises:
        InputError: lengths differ, NaN or infinity in a score, fewer than two folds, or pairs of one kind only
            outside of some fold.

    Example:
        >>> scores = np.array([0.9, 0.8, 0.1, 0.2], np.float32)
        >>> evaluate_pairs(scores, np.array([True, True, False, False]), folds=[0, 1, 0, 1]).accuracy
        1.0
    """
    scores, is_same = np.asarray(scores, np.float32), np.asarray(is_same, bool)
    folds = default_folds(is_same) if folds is None else np.asarray(folds)
    if not scores.shape == is_same.shape == folds.shape == (len(scores),):
        raise InputError(f"{len(scores)} scores, {len(is_same)} pairs, {len(folds)} folds; there must be one each")
    if not np.isfinite(scores).all():
        raise InputError("a score is NaN or infinity; every pair needs a finite one")
    results = []
    for fold in np.unique(folds):
        is_here = folds == fold
        if len(np.unique(is_same[~is_here])) < 2:
            raise InputError(f"outside of fold {fold} one kind of pairs is missing; use two folds or more with both")
        threshold = most_accurate_threshold(scores[~is_here], is_same[~is_here])
        accuracy = float(((scores[is_here] >= threshold) == is_same[is_here]).mean())
        results.append((fold, accuracy, threshold, int(is_here.sum())))
    frame = pd.DataFrame(results, columns=["fold", "accuracy", "threshold", "num_pairs"])
    same, different = scores[is_same], scores[~is_same]
    rates = pd.DataFrame({"false_accept_rate": list(false_accept_rates)})
    rates["threshold"] = [threshold_at(different, rate) for rate in false_accept_rates]
    rates["true_accept_rate"] = [float((same >= threshold).mean()) for threshold in rates["threshold"]]
    return PairsEvaluation(
        accuracy=float(frame["accuracy"].mean()),
        standard_error=float(frame["accuracy"].std(ddof=1) / np.sqrt(len(frame))),
        folds=frame,
        auroc=auroc(same, different),
        rates=rates,
        num_same=len(same),
        num_different=len(different),
    )


def most_accurate_threshold(scores: Floats, is_same: Booleans) -> float:
    """The threshold that classifies most pairs correctly, halfway between two scores; the lowest of several."""
    values, codes = np.unique(scores, return_inverse=True)
    change = np.bincount(codes, weights=np.where(is_same, -1.0, 1.0))  # in correct pairs, when a score is rejected
    num_right: Doubles = np.concatenate([[0.0], np.cumsum(change)])
    ends = np.concatenate([values[:1] - 1, values, values[-1:] + 1]).astype(np.float64)
    best = int(num_right.argmax())
    return float((ends[best] + ends[best + 1]) / 2)


def default_folds(is_same: Booleans) -> Integers:
    """The fold of each pair: pairs of one kind in their order are divided into parts of equal size."""
    folds = np.empty(len(is_same), np.int64)
    for kind in (True, False):
        rows = np.flatnonzero(is_same == kind)
        folds[rows] = np.arange(len(rows)) * NUM_FOLDS // max(len(rows), 1)
    return folds
