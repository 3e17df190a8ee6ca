"""Re-ranking as the papers define it: dense, slow, in float64, with loops over images. Larger scores are better."""

import numpy as np

Array = np.ndarray


def unit(vectors: Array) -> Array:
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths)


def similarities(left: Array, right: Array) -> Array:
    """Rounded, so that equal similarities stay equal whatever the order of summation."""
    return (unit(left) @ unit(right).T).round(13)


def nearest(row: Array, own_row: int, k: int) -> list[int]:
    """The k most similar rows without the own one; equal ones in gallery order."""
    return [j for j in np.argsort(-row, kind="stable").tolist() if j != own_row][:k]


def lattice(rows: int, dim: int, seed: int) -> Array:
    """Unit vectors of entries 0 and +-1/2: their products are exact in float32, with many ties and duplicates."""
    rng = np.random.default_rng(seed)
    vectors = np.zeros((rows, dim))
    for row in vectors:
        row[rng.choice(dim, 4, replace=False)] = rng.choice([-0.5, 0.5], 4)
    return vectors


def clusters(rows: int, classes: int, seed: int, dim: int = 12) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    return unit(rng.standard_normal((classes, dim))[labels] + 0.7 * rng.standard_normal((rows, dim))), labels


# The row -1 stands for a query outside of the gallery.


def contextual(queries: Array, gallery: Array, exclude_self: Array, k: int, beta: float, epsilon: float) -> Array:
    """beta * w_ij + (1 - beta) * exp(2 s_ij - 2), with w of Eq. 15 and 16."""
    s, among = similarities(queries, gallery), similarities(gallery, gallery)

    def threshold(row: Array, own_row: int) -> float:
        """The similarity that membership of N(i) requires."""
        return float(row[nearest(row, own_row, k - 1)[-1]]) - epsilon / 2

    def neighborhood(row: Array, own_row: int) -> set[int]:
        return {own_row} | {j for j in range(len(row)) if j != own_row and row[j] >= threshold(row, own_row)}

    of_gallery = [neighborhood(among[j], j) for j in range(len(gallery))]
    scores = (1 - beta) * np.exp(2 * s - 2)
    for i, own_row in enumerate(exclude_self.tolist()):
        own = neighborhood(s[i], own_row)
        for j in own - {own_row}:
            other = set(of_gallery[j])
            if own_row < 0 and s[i, j] >= threshold(among[j], j):
                other.add(-1)
            scores[i, j] += beta * len(own & other) / len(own)
    return scores


def reciprocal(queries: Array, gallery: Array, exclude_self: Array, k1: int, k2: int, lam: float) -> Array:
    """1 - ((1 - lam) * Jaccard distance + lam * d), with d = 1 - s."""
    s, among = similarities(queries, gallery), similarities(gallery, gallery)

    def reciprocals(row: Array, own_row: int, k: int) -> set[int]:
        found = {own_row} - {-1}
        for j in nearest(row, own_row, k):
            back = nearest(among[j], j, k)
            if own_row in back or (own_row < 0 and row[j] >= among[j][back[-1]]):
                found.add(j)
        return found

    half = int(np.around(k1 / 2))
    halves = [reciprocals(among[j], j, half) if half else {j} for j in range(len(gallery))]

    def encoded(row: Array, own_row: int) -> Array:
        first = reciprocals(row, own_row, k1)
        expanded = set(first)
        for j in first:
            if len(first & halves[j]) >= 2 / 3 * len(halves[j]) - 1e-9:
                expanded |= halves[j]
        vector = np.zeros(len(gallery))
        for j in expanded:
            vector[j] = np.exp(-(1 - row[j]))
        return vector

    own = [encoded(among[j], j) for j in range(len(gallery))]

    def averaged(row: Array, own_row: int) -> Array:
        vector = encoded(row, own_row) if own_row < 0 else own[own_row]
        return np.mean([vector, *(own[j] for j in nearest(row, own_row, k2 - 1))], axis=0)

    of_gallery = np.array([averaged(among[j], j) for j in range(len(gallery))])
    scores = np.empty_like(s)
    for i, own_row in enumerate(exclude_self.tolist()):
        vector = averaged(s[i], own_row)
        jaccard = 1 - np.minimum(vector, of_gallery).sum(axis=1) / np.maximum(vector, of_gallery).sum(axis=1)
        scores[i] = 1 - ((1 - lam) * jaccard + lam * (1 - s[i]))
    return scores


def expanded(vectors: Array, gallery: Array, exclude_self: Array, n: int, alpha: float) -> Array:
    s = similarities(vectors, gallery)
    result = unit(vectors).astype(np.float64)
    for i, own_row in enumerate(exclude_self.tolist()):
        for j in nearest(s[i], own_row, n):
            result[i] = result[i] + max(s[i, j], 0.0) ** alpha * unit(gallery)[j]
    return unit(result)


def query_expansion(queries: Array, gallery: Array, exclude_self: Array, n: int, alpha: float) -> Array:
    return similarities(expanded(queries, gallery, exclude_self, n, alpha), gallery)


def database_augmentation(queries: Array, gallery: Array, exclude_self: Array, n: int, alpha: float) -> Array:
    return similarities(queries, expanded(gallery, gallery, np.arange(len(gallery)), n, alpha))


def neighbor_average(queries: Array, gallery: Array, exclude_self: Array, n: int, alpha: float) -> Array:
    moved = expanded(gallery, gallery, np.arange(len(gallery)), n, alpha)
    return similarities(expanded(queries, gallery, exclude_self, n, alpha), moved)
