"""Re-ranking by the letter of the papers: dense, slow, in float64, a loop over images. Larger scores are better."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def unit(vectors: Array) -> Array:
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths)


def similarities(left: Array, right: Array) -> Array:
    """Rounded, so that pairs that are as similar stay so whatever the order in which products are summed."""
    return (unit(left) @ unit(right).T).round(13)


def nearest(row: Array, itself: int, k: int) -> list[int]:
    """The k most similar, without itself; equal ones in the order of the gallery."""
    return [j for j in np.argsort(-row, kind="stable").tolist() if j != itself][:k]


def lattice(rows: int, dim: int, seed: int) -> Array:
    """Vectors whose products are exact in float32, with many ties and duplicates."""
    rng = np.random.default_rng(seed)
    vectors = np.zeros((rows, dim))
    for row in vectors:
        row[rng.choice(dim, 4, replace=False)] = rng.choice([-0.5, 0.5], 4)
    return vectors


def clusters(rows: int, classes: int, seed: int, dim: int = 12) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    return unit(rng.standard_normal((classes, dim))[labels] + 0.7 * rng.standard_normal((rows, dim))), labels


# The image with number -1 stands for a query outside of the gallery.


def contextual(queries: Array, gallery: Array, places: Array, k: int, beta: float, epsilon: float) -> Array:
    """beta * w_ij + (1 - beta) * exp(2 s_ij - 2), with w of Eq. 15 and 16."""
    s, within = similarities(queries, gallery), similarities(gallery, gallery)

    def reach(row: Array, itself: int) -> float:
        """Of N(i): how similar another one must be."""
        return float(row[nearest(row, itself, k - 1)[-1]]) - epsilon / 2

    def neighborhood(row: Array, itself: int) -> set[int]:
        return {itself} | {j for j in range(len(row)) if j != itself and row[j] >= reach(row, itself)}

    of_gallery = [neighborhood(within[j], j) for j in range(len(gallery))]
    scores = (1 - beta) * np.exp(2 * s - 2)
    for i, itself in enumerate(places.tolist()):
        own = neighborhood(s[i], itself)
        for j in own - {itself}:
            other = set(of_gallery[j])
            if itself < 0 and s[i, j] >= reach(within[j], j):
                other.add(-1)
            scores[i, j] += beta * len(own & other) / len(own)
    return scores


def reciprocal(queries: Array, gallery: Array, places: Array, k1: int, k2: int, lam: float) -> Array:
    """1 - ((1 - lam) * Jaccard distance + lam * d), with d = 1 - s."""
    s, within = similarities(queries, gallery), similarities(gallery, gallery)

    def reciprocals(row: Array, itself: int, k: int) -> set[int]:
        found = {itself} - {-1}
        for j in nearest(row, itself, k):
            back = nearest(within[j], j, k)
            if itself in back or (itself < 0 and row[j] >= within[j][back[-1]]):
                found.add(j)
        return found

    half = int(np.around(k1 / 2))
    halves = [reciprocals(within[j], j, half) if half else {j} for j in range(len(gallery))]

    def encoded(row: Array, itself: int) -> Array:
        first = reciprocals(row, itself, k1)
        expanded = set(first)
        for j in first:
            if len(first & halves[j]) >= 2 / 3 * len(halves[j]) - 1e-9:
                expanded |= halves[j]
        vector = np.zeros(len(gallery))
        for j in expanded:
            vector[j] = np.exp(-(1 - row[j]))
        return vector

    own = [encoded(within[j], j) for j in range(len(gallery))]

    def averaged(row: Array, itself: int) -> Array:
        vector = encoded(row, itself) if itself < 0 else own[itself]
        return np.mean([vector, *(own[j] for j in nearest(row, itself, k2 - 1))], axis=0)

    of_gallery = np.array([averaged(within[j], j) for j in range(len(gallery))])
    scores = np.empty_like(s)
    for i, itself in enumerate(places.tolist()):
        vector = averaged(s[i], itself)
        jaccard = 1 - np.minimum(vector, of_gallery).sum(axis=1) / np.maximum(vector, of_gallery).sum(axis=1)
        scores[i] = 1 - ((1 - lam) * jaccard + lam * (1 - s[i]))
    return scores


def expanded(vectors: Array, gallery: Array, places: Array, n: int, alpha: float) -> Array:
    s = similarities(vectors, gallery)
    result = unit(vectors).astype(np.float64)
    for i, itself in enumerate(places.tolist()):
        for j in nearest(s[i], itself, n):
            result[i] = result[i] + max(s[i, j], 0.0) ** alpha * unit(gallery)[j]
    return unit(result)


def query_expansion(queries: Array, gallery: Array, places: Array, n: int, alpha: float) -> Array:
    return similarities(expanded(queries, gallery, places, n, alpha), gallery)


def database_augmentation(queries: Array, gallery: Array, places: Array, n: int, alpha: float) -> Array:
    return similarities(queries, expanded(gallery, gallery, np.arange(len(gallery)), n, alpha))


def neighbor_average(queries: Array, gallery: Array, places: Array, n: int, alpha: float) -> Array:
    moved = expanded(gallery, gallery, np.arange(len(gallery)), n, alpha)
    return similarities(expanded(queries, gallery, places, n, alpha), moved)
