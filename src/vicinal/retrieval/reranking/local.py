"""Re-ranking by local features: images with matching patches are similar."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from vicinal.retrieval.query_gallery import QueryGallery
from vicinal.retrieval.reranking.base import RerankedScores, Reranking, ScoreIncrements
from vicinal.retrieval.reranking.local_features import LocalFeatures, SelectedFeatures, StoredFeatures
from vicinal.utils.arguments import check_bool, check_nonnegative, is_number
from vicinal.utils.arrays import Doubles, Floats, Integers
from vicinal.utils.compiled import compiled
from vicinal.utils.console import track
from vicinal.utils.errors import InputError, import_extra

MAX_SIMILARITIES = 2**20  # in memory at a time, so that they stay in the cache
MIN_SHOWN = 100  # queries above which progress is shown
MIN_MATCHES = 3  # of a geometric check: any two matches fit a similarity transform
MAX_RESIDUAL = 1.5  # distance in patches from a match to its position by the similarity transform


@dataclass(frozen=True)
class LocalReranking(Reranking):
    """Re-ranks the first matches of each query by the patches that they have in common with it.

    Two patches match if each is the most similar one of its image to the other (of equal ones the first), and their
    cosine similarity is at least `min_similarity`. The score of an image is its similarity to the query, plus `weight`
    times the sum of the similarities of its matching patches, divided by the number of patches of the query. Images
    behind the first `k` keep their similarity.

    Local features come from the same network as the embeddings, see
    :class:`~vicinal.retrieval.LocalEncoder`; :meth:`with_features` gives them to the method. How much they help differs
    from one kind of image to another, so choose the weight on validation classes,
    :func:`~vicinal.evaluation.choose_weight`.

    Args:
        k: number of matches of each query that are compared with it; all of a smaller gallery.
        weight: of the matching patches; 0: ranks by similarity alone.
        min_similarity: of matching patches, above 0 and at most 1.
        geometric: count only matching patches whose places agree with one similarity transform (shift, rotation and
            scale), which RANSAC of OpenCV finds; with fewer than three matching patches, none. It needs the extra
            `geometry`.
        queries: local features of the queries, whose rows are those of the array of query embeddings.
        gallery: the same of the gallery; None: those of `queries`.

    Raises:
        InputError: an argument is invalid; when applied: without local features, or not one per embedding.

    Example:
        >>> from vicinal.retrieval import LocalReranking, StoredFeatures, rerank
        >>> gallery = np.array([[1.0, 0.0], [0.9, 0.1]])  # the first is more similar, the second has a matching patch
        >>> patches = StoredFeatures(np.array([[[1, 128]], [[255, 128]], [[1, 128]]], dtype=np.uint8), grid=(1, 1))
        >>> of_gallery, of_query = patches.take([1, 2]), patches.take([0])
        >>> method = LocalReranking(weight=0.5).with_features(of_query, of_gallery)
        >>> rerank(np.array([[1.0, 0.0]]), gallery, 2, method).ids
        array([[1, 0]])
    """

    k: int = 100
    weight: float = 0.5
    min_similarity: float = 0.5
    geometric: bool = False
    queries: LocalFeatures | None = field(default=None, repr=False, compare=False)
    gallery: LocalFeatures | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_counts("k")
        check_nonnegative(self, weight=self.weight)
        check_bool(self, geometric=self.geometric)
        if not (is_number(self.min_similarity) and 0 < self.min_similarity <= 1):
            given = f"LocalReranking: min_similarity = {self.min_similarity!r}"
            raise InputError(f"{given} must be a number above 0 and at most 1")
        if self.geometric:
            import_extra("cv2", "geometry", "the geometric check of local features")

    def with_features(self, queries: LocalFeatures, gallery: LocalFeatures | None = None) -> LocalReranking:
        """The method with local features.

        Args:
            queries: of the queries, in the order of their embeddings.
            gallery: of the gallery; None: the queries search themselves.

        Raises:
            InputError: the numbers of dimensions differ.
        """
        if gallery is not None and queries.dim != gallery.dim:
            raise InputError(
                f"local features of queries have {queries.dim} dimensions, those of the gallery {gallery.dim}; both "
                "must be of one encoder"
            )
        return replace(self, queries=queries, gallery=gallery)

    def with_weight(self, weight: float) -> LocalReranking:
        """The method with another weight; matching patches that this one has found are not searched for again."""
        method = replace(self, weight=weight)
        method.__dict__["_kept"] = self._kept
        return method

    def among(self, rows: Integers) -> LocalReranking:
        return replace(self, gallery=SelectedFeatures(self.features()[1], rows))

    def explain(self, query: int, rows: Integers) -> list[dict[str, Any]]:
        return [{"matching_patches": len(each)} for each in self.matches(query, rows)]

    @property
    def num_neighbors(self) -> int:
        return self.k

    def apply(self, query_gallery: QueryGallery) -> RerankedScores:
        if self.weight == 0:
            return RerankedScores(query_gallery.queries, query_gallery.gallery)
        queries, gallery = self.features()
        for name, vectors, features in (
            ("queries", query_gallery.queries, queries), ("gallery images", query_gallery.gallery, gallery)
        ):  # fmt: skip
            if vectors.rows.max(initial=-1) >= len(features) or vectors.num_rows != len(features):
                raise InputError(
                    f"LocalReranking: local features of {len(features)} {name}, but {vectors.num_rows} embeddings; "
                    "there must be those of one image each"
                )
        return LocalScores(self, query_gallery)

    @cached_property
    def _kept(self) -> list[Any]:
        return []

    def kept_sums(self, queries: Integers, images: Integers) -> Doubles:
        """The results of :meth:`sums` for queries and the images [queries, k] of each, NaN where not computed yet.

        The caller fills the array, which is cached until other pairs are requested: rankings are often read twice.
        """
        if not self._kept or not all(map(np.array_equal, self._kept, (queries, images))):
            self._kept[:] = [queries, images, np.full(images.shape, np.nan)]
        return self._kept[2]

    def matches(self, query: int, rows: npt.ArrayLike) -> list[PatchMatches]:
        """The matching patches of a query and of some images, by their rows in the local features."""
        queries, gallery = self.features()
        images = gallery.vectors(np.asarray(rows, np.int64))
        found = mutual_nearest(queries.vectors(np.array([query]))[0], images, self.min_similarity)
        matches = [PatchMatches.of(queries.grid, gallery.grid, *each) for each in zip(*found, strict=True)]
        return [each.inliers() for each in matches] if self.geometric else matches

    def sums(self, query: int, rows: Integers) -> Doubles:
        """The sum of similarities of matching patches per patch of the query, float64 [rows]."""
        queries, gallery = self.features()
        if self.geometric:
            totals = [each.similarities.sum(dtype=np.float64) for each in self.matches(query, rows)]
            return np.array(totals) / math.prod(queries.grid)
        vectors = queries.vectors(np.array([query]))[0]
        _, similarities = mutual_nearest(vectors, gallery.vectors(rows), self.min_similarity)
        return similarities.sum(axis=1, dtype=np.float64) / len(vectors)

    def seconds_per_query(self) -> float:
        """The time to compare a query with `k` images, measured with random local features of the same size."""
        _, gallery = self.features()
        generator = np.random.default_rng(0)
        codes = generator.integers(0, 256, (self.k + 1, math.prod(gallery.grid), gallery.dim), np.uint8)
        features = StoredFeatures(codes, gallery.grid)
        timed, rows = replace(self, queries=features, gallery=features), np.arange(1, self.k + 1)
        timed.sums(0, rows)  # compiles
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            timed.sums(0, rows)
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    def features(self) -> tuple[LocalFeatures, LocalFeatures]:
        """The local features of the queries, and those of the gallery.

        Raises:
            InputError: there are none.
        """
        if self.queries is None:
            raise InputError("LocalReranking has no local features; give them by with_features")
        return self.queries, self.queries if self.gallery is None else self.gallery


class LocalScores(RerankedScores):
    def __init__(self, method: LocalReranking, query_gallery: QueryGallery) -> None:
        super().__init__(query_gallery.queries, query_gallery.gallery)
        k = min(method.k, query_gallery.max_neighbors)
        self._method, self._columns = method, np.sort(query_gallery.query_neighbors(k).ids, axis=1)
        self._query_rows, self._images = self.queries.rows, self.gallery.rows[self._columns]
        self._sums = method.kept_sums(self._query_rows, self._images)

    def max_increments(self) -> Integers:
        return np.full(len(self.queries), self._columns.shape[1])

    def increments(self, start: int, stop: int) -> ScoreIncrements:
        missing = start + np.flatnonzero(np.isnan(self._sums[start:stop]).any(axis=1))
        for query in track(missing, "matching patches", len(missing), show=len(missing) >= MIN_SHOWN):
            self._sums[query] = self._method.sums(int(self._query_rows[query]), self._images[query])
        columns, sums = self._columns[start:stop], self._sums[start:stop]
        rows = np.repeat(np.arange(len(columns)), columns.shape[1])
        return ScoreIncrements(rows, columns.ravel(), self._method.weight * sums.ravel())

    def incremented(self, similarities: Floats, amounts: Doubles) -> Floats:
        return (similarities + amounts).astype(np.float32)


@dataclass(frozen=True)
class PatchMatches:
    """The matching patches of two images.

    Attributes:
        query_points: float64 [n, 2], the centers of patches of the query: x and y, from 0 to 1 within its square.
        points: float64 [n, 2], the same of the other image.
        similarities: float32 [n].
        grid: numbers of rows and columns of patches of the other image.
    """

    query_points: Doubles
    points: Doubles
    similarities: Floats
    grid: tuple[int, int]

    @classmethod
    def of(
        cls, query_grid: tuple[int, int], grid: tuple[int, int], matches: Integers, similarities: Floats
    ) -> PatchMatches:
        """The matches of an image, as `mutual_nearest` returns them."""
        patches = np.flatnonzero(matches >= 0)
        return cls(_centers(query_grid, patches), _centers(grid, matches[patches]), similarities[patches], grid)

    def __len__(self) -> int:
        return len(self.similarities)

    def to_list(self) -> list[list[float]]:
        """For each match both points and the similarity: five numbers, rounded to four digits, ready for JSON."""
        places = np.hstack([self.query_points, self.points, self.similarities[:, None]])
        return places.round(4).tolist()

    def inliers(self) -> PatchMatches:
        """The matches that fit one similarity transform, found by RANSAC; none if there are fewer than three."""
        is_inlier = np.zeros(len(self), np.bool_)
        if len(self) >= MIN_MATCHES:
            import cv2

            scale = np.array(self.grid[::-1], np.float64)
            _, inliers = cv2.estimateAffinePartial2D(
                self.query_points * scale, self.points * scale, method=cv2.RANSAC, ransacReprojThreshold=MAX_RESIDUAL
            )
            if inliers is not None and inliers.sum() >= MIN_MATCHES:
                is_inlier = inliers[:, 0].astype(np.bool_)
        return PatchMatches(
            self.query_points[is_inlier], self.points[is_inlier], self.similarities[is_inlier], self.grid
        )


def _centers(grid: tuple[int, int], patches: Integers) -> Doubles:
    rows, columns = np.divmod(patches, grid[1])
    return np.stack([(columns + 0.5) / grid[1], (rows + 0.5) / grid[0]], axis=1)


def mutual_nearest(query: Floats, images: Floats, min_similarity: float) -> tuple[Integers, Floats]:
    """Find the mutual nearest patches of a query, [patches, dim], and of each of several images, [images, patches,
    dim].

    Returns the matching patch of each patch of the query, int64 [images, patches of the query], -1 for none, and the
    similarities, float32, 0 for none.
    """
    num_images, patches, dim = images.shape
    matches, found = np.full((num_images, len(query)), -1), np.zeros((num_images, len(query)), np.float32)
    step = max(1, MAX_SIMILARITIES // (patches * len(query)))
    for start in range(0, num_images, step):
        chunk = slice(start, start + step)
        similarities = np.ascontiguousarray(images[chunk]).reshape(-1, dim) @ query.T
        _match(similarities.reshape(-1, patches, len(query)), np.float32(min_similarity), matches[chunk], found[chunk])
    return matches, found


def _match_patches(similarities: Floats, min_similarity: Any, matches: Integers, found: Floats) -> None:
    images, patches, columns = similarities.shape
    best_patch, best_similarity = np.empty(columns, np.int64), np.empty(columns, np.float32)
    nearest = np.empty(patches, np.int64)
    for image in range(images):
        best_similarity[:] = -np.inf
        for patch in range(patches):
            highest, column_of_highest = np.float32(-np.inf), 0
            for column in range(columns):
                value = similarities[image, patch, column]
                if value > highest:
                    highest, column_of_highest = value, column
                if value > best_similarity[column]:
                    best_similarity[column], best_patch[column] = value, patch
            nearest[patch] = column_of_highest
        for column in range(columns):
            if best_similarity[column] >= min_similarity and nearest[best_patch[column]] == column:
                matches[image, column], found[image, column] = best_patch[column], best_similarity[column]


_match = compiled(_match_patches)
