"""Verification (1:1): are two images of the same class? True-accept rates at false-accept rates, over all pairs.

- **FAR**, false-accept rate: the fraction of pairs of different classes that are accepted.
- **TAR**, true-accept rate: the fraction of pairs of the same class that are accepted.

Thresholds are exact at any number of images: similarities are counted by their bits, first by the upper 16 of each
float32, then, where a threshold lies, by the lower 16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from vicinal.data.table import Table
from vicinal.evaluation.open_set import same_image_or_group
from vicinal.evaluation.protocol import query_gallery_rows
from vicinal.evaluation.thresholds import check_rate, just_above, num_allowed
from vicinal.retrieval.scores import BLOCK_ROWS, Array, ScoreBuffer, UnitVectors, check_rows
from vicinal.utils.arrays import Booleans, Floats, Integers
from vicinal.utils.errors import InputError

RATES = (0.1, 0.01, 0.001)
ROWS = 512  # queries per block
NUM_CODES = 2**16
Tiles = Iterator[tuple[Floats, Booleans]]
Keys: TypeAlias = npt.NDArray[np.uint32]


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
        InputError: other numbers of rows, no labels, NaN or infinity in an embedding, an impossible rate, or no pair
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
        raise InputError(f"there is no pair of images {kind}; verification needs both")
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
    """A function that goes over all pairs, block by block: their similarities, and whether they are of one class."""
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
                    scores.masked_fill_(_is_earlier(chunk, start, stop).to(scores.device), -torch.inf)
                values = scores.cpu().numpy()
                counts = values > -np.inf
                is_same = labels[chunk, None] == gallery_labels[None, start:stop]
                yield values[counts], is_same[counts]

    return walk


def _is_earlier(chunk: slice, start: int, stop: int) -> torch.Tensor:
    """Whether the pair of row and column has been seen with both exchanged."""
    return torch.arange(start, stop)[None, :] < torch.arange(chunk.start, chunk.stop)[:, None]


def _keys(scores: Floats) -> Keys:
    """Integers from 0 to 2**32 - 1 in the order of the scores; 0 and -0 are the same."""
    bits = (scores + np.float32(0)).view(np.uint32)
    return np.where(bits >> 31, ~bits, bits | np.uint32(0x80000000))


def _score(key: int) -> np.float32:
    """The score of a key."""
    bits = key & 0x7FFFFFFF if key >> 31 else 0xFFFFFFFF - key
    return np.uint32(bits).view(np.float32)


def _count(codes: Keys, is_same: Booleans) -> Integers:
    """How many pairs of different classes, and of the same, have each code: int64 [2, codes]."""
    counts = np.bincount(codes + NUM_CODES * is_same, minlength=2 * NUM_CODES).astype(np.int64)
    return counts.reshape(2, NUM_CODES)


def _code_of_rank(counts: Integers, rank: int) -> int:
    """The code of the value at a rank, from 0 for the highest."""
    return len(counts) - 1 - int(np.searchsorted(np.cumsum(counts[::-1]), rank, "right"))
