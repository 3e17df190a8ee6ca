"""Near duplicates: images whose embeddings, and whose pixels if they can be read, are almost the same."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
import torch.nn.functional as F
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from vicinal.analysis.neighbors import QueryNeighbors
from vicinal.data.columns import image_keys
from vicinal.data.image_files import same_content
from vicinal.data.table import Table
from vicinal.retrieval.neighbors import Pairs, similar_pairs
from vicinal.retrieval.scores import Array, UnitVectors, check_rows
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.console import log

DUPLICATE_SIMILARITY = 0.999
MIN_SIMILARITY = 0.95  # of embeddings, where pixels are compared too
MIN_PIXEL_SIMILARITY = 0.85
MIN_COARSE_SIMILARITY = 0.7  # of 8 x 8 pixels; of photos of groceries one pair in a thousand is above it by chance
MIN_WEAK_SIMILARITY = 0.7  # of embeddings, of pairs that are found by their pixels: a model may not recognize a crop
MIN_CLEAR_PIXEL_SIMILARITY = 0.9
COARSE_SIDE = 8
MIN_TURNED_SIMILARITY = 0.95  # of the pixels of whole images, one of which is turned or mirrored
MERGED_PAIRS = 2**20  # that wait until they are merged into components
MANY_PAIRS = 100_000  # whose pixels take minutes to compare
CROP_SIDES = (30, 28, 26)  # of 32: the sides of crops that lack up to a third of the area
MIN_CORRELATION = 0.2  # of whole thumbnails, below which none is a part of the other
CHUNK_SIZE = 512  # pairs at a time: some 200 MB
EPSILON = 1e-6
Thumbnails = npt.NDArray[np.uint8]


def near_duplicates(neighbors: QueryNeighbors, threshold: float = DUPLICATE_SIMILARITY) -> pd.DataFrame:
    """Find pairs of a query and one of its neighbors that are more similar than the threshold.

    Args:
        neighbors: the nearest neighbors of each query.
        threshold: cosine similarity above which two images count as duplicates.

    Returns:
        One row per pair, the most similar pair first; a pair that is found twice is listed once:

        - `first`, `second`: rows of the table, the lower one first.
        - `similarity`: their cosine similarity.
        - `same_label`: whether they have the same label; always true in a table without labels.

    Example:
        >>> from vicinal.analysis import query_neighbors
        >>> table = Table(pd.DataFrame({"label": ["cat", "dog", "dog"]}))
        >>> near_duplicates(query_neighbors(np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]]), table))
           first  second  similarity  same_label
        0      0       2         1.0       False
    """
    queries, ranks = np.nonzero(neighbors.scores > threshold)
    pairs = np.sort(np.stack([neighbors.queries[queries], neighbors.ids[queries, ranks]], axis=1), axis=1)
    first, second = pairs.T
    labels = neighbors.table.labels if neighbors.table.has("label") else np.zeros(len(neighbors.table), dtype=np.int64)
    frame = pd.DataFrame(
        {
            "first": first,
            "second": second,
            "similarity": neighbors.scores[queries, ranks].astype(np.float64),
            "same_label": labels[first] == labels[second],
        }
    )
    return frame.drop_duplicates(["first", "second"]).sort_values(
        ["similarity", "first", "second"], ascending=[False, True, True], ignore_index=True
    )


def exact_duplicates(table: Table) -> pd.DataFrame:
    """Find images whose files have the same content; if there are bounding boxes, these must be equal too.

    Only files of the same size are read. Files that do not exist are left out.

    Returns:
        The columns of :func:`duplicate_groups`; the similarity is 1, and `nearest` another row of the group.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("a.png", "b.png", "c.png"):
        ...         _ = Path(folder, name).write_text("other" if name == "b.png" else "same")
        ...     table = Table(pd.DataFrame({"path": ["a.png", "b.png", "c.png"]}), root=folder)
        ...     exact_duplicates(table)["row"].tolist()
        [0, 2]
    """
    paths = dict.fromkeys(path for path in table.paths if os.path.isfile(path))
    originals = {path: group[0] for group in same_content(list(paths)) for path in group}
    keys = pd.Series(image_keys(table.frame.assign(path=[originals.get(path, path) for path in table.paths])))
    component = pd.factorize(keys)[0].astype(np.int64)
    rows = np.argsort(component, kind="stable")
    is_first = np.append(True, component[rows][1:] != component[rows][:-1])
    nearest = np.empty(len(table), dtype=np.int64)
    nearest[rows] = np.where(is_first, np.roll(rows, -1), np.roll(rows, 1))
    return _frame(table, component, nearest, np.ones(len(table), dtype=np.float32))


def duplicate_groups(
    embeddings: Array,
    table: Table,
    min_similarity: float = MIN_SIMILARITY,
    thumbnails: Thumbnails | None = None,
    min_pixel_similarity: float = MIN_PIXEL_SIMILARITY,
) -> pd.DataFrame:
    """Find groups of images that are nearly the same, by comparing all pairs exactly, in bounded memory.

    Two images are a pair if their embeddings are similar and, with thumbnails, their pixels too: many similar
    products have nearly the same embedding. Thumbnails also find pairs by themselves, since the embeddings of an image
    and of a crop or a smaller copy of it may differ: such pairs need more similar pixels, and a similarity of
    embeddings of 0.7. The groups are the connected components of these pairs, so that two images of
    one group need not be a pair themselves. Time grows with the square of the number of images, memory linearly.

    Args:
        embeddings: float [rows, dim].
        table: one row per embedding.
        min_similarity: the least cosine similarity of a pair.
        thumbnails: uint8 [rows, side, side], as of :func:`image_facts`; None compares embeddings only, with which a
            `min_similarity` near 1 is needed.
        min_pixel_similarity: the least correlation of the pixels of a pair, see :func:`pixel_similarities`.

    Returns:
        One row per image that is in a group, group by group, the most similar group first:

        - `group`: its number, from 0.
        - `row`: row of the image in the table.
        - `nearest`: row of the most similar image with which it is a pair.
        - `similarity`: the cosine similarity of these two.
        - `is_leak`: whether images of the group are in several splits.
        - `is_contradiction`: whether images of the group have different labels.

    Raises:
        InputError: numbers of rows differ, or NaN or infinity in an embedding.

    Example:
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog"], "split": ["train", "test", "test"]}))
        >>> groups = duplicate_groups(np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), table)
        >>> groups["row"].tolist(), groups["is_leak"].tolist(), groups["is_contradiction"].tolist()
        ([0, 1], [True, True], [False, False])
    """
    check_rows(embeddings, table)
    components = _Components(len(table))
    num_pairs = 0
    for pairs in similar_pairs(UnitVectors(embeddings, "embedding"), min_similarity):
        if num_pairs < MANY_PAIRS <= num_pairs + len(pairs.first):
            log(
                f"at least {MANY_PAIRS:,} pairs of embeddings are as similar as {min_similarity:g}, which takes long: "
                "raise min_similarity, or check whether most embeddings are equal"
            )
        num_pairs += len(pairs.first)
        if thumbnails is not None and len(pairs.first):
            alike = pixel_similarities(thumbnails, pairs.first, pairs.second) >= min_pixel_similarity
            turned = _turned_similarities(thumbnails, pairs.first, pairs.second)
            alike |= turned >= max(MIN_TURNED_SIMILARITY, min_pixel_similarity)
            pairs = Pairs(pairs.first[alike], pairs.second[alike], pairs.scores[alike])
        components.add(pairs)
    if thumbnails is not None and min_similarity <= MIN_SIMILARITY:
        clear = max(MIN_CLEAR_PIXEL_SIMILARITY, min_pixel_similarity)
        for pairs in _pairs_of_thumbnails(embeddings, thumbnails, clear):
            components.add(pairs)
    return _frame(table, *components.result())


def _pairs_of_thumbnails(embeddings: Array, thumbnails: Thumbnails, min_similarity: float) -> Iterator[Pairs]:
    """Pairs of images whose pixels are clearly the same, with the similarities of their embeddings."""
    small = F.adaptive_avg_pool2d(torch.from_numpy(thumbnails).float()[:, None], COARSE_SIDE).flatten(1)
    unit = UnitVectors(embeddings, "embedding")
    for pairs in similar_pairs(UnitVectors(_standardized(small), "thumbnail"), MIN_COARSE_SIMILARITY):
        scores = (unit.take(pairs.first) * unit.take(pairs.second)).sum(dim=1).cpu().numpy()
        near = scores >= MIN_WEAK_SIMILARITY
        first, second, scores = pairs.first[near], pairs.second[near], scores[near]
        same = pixel_similarities(thumbnails, first, second) >= min_similarity
        yield Pairs(first[same], second[same], scores[same])


class _Components:
    """Connected components of pairs that come in parts, and the most similar partner of each row."""

    def __init__(self, size: int) -> None:
        self._component = np.arange(size)
        self._nearest, self._similarity = np.full(size, -1), np.full(size, -np.inf, dtype=np.float32)
        self._waiting: list[Pairs] = []

    def add(self, pairs: Pairs) -> None:
        self._waiting.append(pairs)
        if sum(len(each.first) for each in self._waiting) >= MERGED_PAIRS:
            self._merge()

    def result(self) -> tuple[Integers, Integers, Floats]:
        """The component, the most similar partner or -1, and its similarity, of each row."""
        self._merge()
        return self._component, self._nearest, self._similarity

    def _merge(self) -> None:
        names = ("first", "second", "scores")
        parts = [np.concatenate([getattr(each, name) for each in self._waiting] or [[]]) for name in names]
        first, second, scores = parts[0].astype(np.int64), parts[1].astype(np.int64), parts[2].astype(np.float32)
        self._waiting = []
        self._keep_best(np.concatenate([first, second]), np.concatenate([second, first]), np.tile(scores, 2))
        size, ends = len(self._component), (self._component[first], self._component[second])
        graph = coo_array((np.ones(len(first), dtype=bool), ends), shape=(size, size))
        self._component = connected_components(graph, directed=False)[1][self._component].astype(np.int64)

    def _keep_best(self, rows: Integers, partners: Integers, scores: Floats) -> None:
        order = np.lexsort((partners, -scores, rows))
        rows, at = np.unique(rows[order], return_index=True)
        best = order[at]
        is_better = scores[best] > self._similarity[rows]
        self._nearest[rows[is_better]] = partners[best[is_better]]
        self._similarity[rows[is_better]] = scores[best[is_better]]


def _frame(table: Table, component: Integers, nearest: Integers, similarity: Floats) -> pd.DataFrame:
    rows = np.flatnonzero(np.bincount(component)[component] > 1)
    frame = pd.DataFrame({"row": rows, "nearest": nearest[rows], "similarity": similarity[rows].astype(np.float64)})
    components = component[rows]
    for name, column in (("is_leak", "split"), ("is_contradiction", "label")):
        codes = pd.Series(table.codes(column)[rows] if table.has(column) else np.zeros(len(rows), dtype=np.int64))
        frame[name] = codes.groupby(components).transform("nunique") > 1
    of_component = frame.groupby(components)
    leader, best = of_component["row"].transform("min"), of_component["similarity"].transform("max")
    frame = frame.iloc[np.lexsort((frame["row"], leader, -best))].reset_index(drop=True)
    frame.insert(0, "group", pd.factorize(component[frame["row"]])[0].astype(np.int64))
    return frame


def pixel_similarities(thumbnails: Thumbnails, first: Integers, second: Integers) -> Floats:
    """Compute the largest correlation of two images, whole with whole or whole with a part of the other.

    It is the normalized cross-correlation of gray values, which neither brightness nor contrast changes. One image,
    reduced, is moved over the other. The result is near 1 for images that were re-encoded, resized, or cropped by up
    to a fifth of each side. Pairs whose whole thumbnails are correlated by less than 0.2 are not compared in parts.

    Args:
        thumbnails: uint8 [images, side, side], as of :func:`image_facts`.
        first: int64 [pairs], an image of each pair.
        second: int64 [pairs], the other.

    Returns:
        float32 [pairs], from -1 to 1; 0 for an image of one gray value.

    Example:
        >>> images = np.random.default_rng(0).integers(0, 256, (3, 32, 32)).astype(np.uint8)
        >>> images[2] = images[0] // 2 + 50
        >>> pixel_similarities(images, np.array([0, 0]), np.array([1, 2])).round(1).tolist()
        [0.0, 1.0]
    """
    similarities = np.empty(len(first), dtype=np.float32)
    for start in range(0, len(first), CHUNK_SIZE):
        chunk = slice(start, start + CHUNK_SIZE)
        one, other = (torch.from_numpy(thumbnails[rows[chunk]]).float() for rows in (first, second))
        best = (_standardized(one.flatten(1)) * _standardized(other.flatten(1))).sum(dim=1)
        near = best > MIN_CORRELATION
        for side in CROP_SIDES:
            for part, whole in ((one[near], other[near]), (other[near], one[near])):
                best[near] = torch.maximum(best[near], _max_window_correlation(part, whole, side))
        similarities[chunk] = best.numpy()
    return similarities


def _turned_similarities(thumbnails: Thumbnails, first: Integers, second: Integers) -> Floats:
    """The largest correlation of whole images, one of which is turned or mirrored, float32 [pairs]."""
    best = np.full(len(first), -1, dtype=np.float32)
    for start in range(0, len(first), CHUNK_SIZE):
        chunk = slice(start, start + CHUNK_SIZE)
        one, other = (torch.from_numpy(thumbnails[rows[chunk]]).float() for rows in (first, second))
        fixed = _standardized(one.flatten(1))
        for mirrored in (other, other.flip(2)):
            for turns in range(4):
                turned = _standardized(torch.rot90(mirrored, turns, (1, 2)).flatten(1))
                best[chunk] = np.maximum(best[chunk], (fixed * turned).sum(dim=1).numpy())
    return best


def _max_window_correlation(parts: Tensor, wholes: Tensor, side: int) -> Tensor:
    """The largest correlation of each part, reduced to a side length, with a window of its whole; float32 [pairs]."""
    if not len(parts):
        return torch.empty(0)
    reduced = F.interpolate(parts[:, None], size=(side, side), mode="area").flatten(1)
    windows = F.unfold(wholes[:, None], side).transpose(1, 2)
    return (_standardized(windows) @ _standardized(reduced)[:, :, None]).amax(dim=(1, 2))


def _standardized(values: Tensor) -> Tensor:
    centered = values - values.mean(dim=-1, keepdim=True)
    return centered / centered.norm(dim=-1, keepdim=True).clamp_min(EPSILON)
