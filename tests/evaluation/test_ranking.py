from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vicinal.evaluation import Ranks, Relevance, level_ranks, positive_ranks, ranking
from vicinal.evaluation.counting.counter import DeviceCounter
from vicinal.retrieval import RerankedScores, UnitVectors
from vicinal.retrieval.reranking.base import ScoreIncrements
from vicinal.retrieval.scores import ScoreBuffer


def brute_force(scores: np.ndarray, relevance: Relevance) -> tuple[list[int], list[int], int]:
    """Ranks, counts and ties by sorting every row in full."""
    ranks, counts, ties = [], [], 0
    for query, row in enumerate(scores.tolist()):
        positives, ignored = set(relevance.positives(query).tolist()), set(relevance.excluded(query).tolist())
        order = sorted((-score, column) for column, score in enumerate(row) if column not in ignored)
        found = [rank for rank, (_, column) in enumerate(order, 1) if column in positives]
        others = {-score for score, column in order if column not in positives}
        ties += sum(row[column] in others for column in positives)
        ranks, counts = ranks + found, [*counts, len(found)]
    return ranks, counts, ties


def whole_product(queries: UnitVectors, gallery: UnitVectors) -> np.ndarray:
    block = ScoreBuffer(len(queries), len(gallery), queries.device)
    return block.fill(queries.block(0, len(queries)), gallery, 0, len(gallery)).numpy().copy()


def joined(blocks: list[Ranks]) -> tuple[list[int], list[int], int]:
    ranks, counts = (np.concatenate([getattr(block, name) for block in blocks]) for name in ("ranks", "counts"))
    return ranks.tolist(), counts.tolist(), sum(block.num_ties for block in blocks)


def small_tiles(patch: pytest.MonkeyPatch, rows: int = 7, columns: int = 5, strip: int = 3, most: int = 40) -> None:
    patch.setattr(ranking, "_tile_size", lambda *_: (rows, columns))
    patch.setattr(ranking, "STRIP_ROWS", strip)
    patch.setattr(ranking, "MAX_COUNTED", most)


def on_device(patch: pytest.MonkeyPatch) -> None:
    """Count with what counts on a GPU, on the processor."""
    patch.setattr(ranking, "_counter", lambda *given: DeviceCounter(*given))


EMBEDDINGS = {
    "corners": lambda rng, rows: np.eye(4)[rng.integers(0, 4, rows)] * rng.integers(1, 3, (rows, 1)),
    "lattice": lambda rng, rows: rng.integers(-2, 3, (rows, 3)),
    "equal": lambda rng, rows: np.ones((rows, 3)),
    "random": lambda rng, rows: rng.standard_normal((rows, 8)),
}


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(list(EMBEDDINGS)),
    st.integers(1, 50),
    st.sampled_from([1, 2, 5, 1000]),
    st.integers(0, 10**6),
    st.booleans(),
    st.sampled_from(["whole", "small tiles", "one a tile", "device"]),
    st.booleans(),
)
def test_leave_one_out_equals_full_sorting(
    kind: str, rows: int, classes: int, seed: int, grouped: bool, way: str, half: bool
) -> None:
    rng = np.random.default_rng(seed)
    array, labels = EMBEDDINGS[kind](rng, rows).astype(float), rng.integers(-1, classes, rows)
    groups = rng.integers(-1, 3, rows) if grouped else None
    relevance = Relevance(labels, labels, np.arange(rows), groups, groups)
    vectors = UnitVectors(array, "embedding")
    wanted = brute_force(whole_product(vectors, vectors), relevance)
    with pytest.MonkeyPatch.context() as patch:
        if way == "device":
            on_device(patch)
        if way != "whole":
            small_tiles(patch, *((1, 1, 1, 1) if way == "one a tile" else ()))
        found = list(positive_ranks(vectors, vectors if half else UnitVectors(array, "embedding"), relevance))
    assert joined(found) == wanted


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(list(EMBEDDINGS)),
    st.integers(1, 20),
    st.integers(1, 40),
    st.integers(0, 10**6),
    st.sampled_from(["whole", "small tiles", "device"]),
)
def test_queries_and_gallery_that_overlap(kind: str, queries: int, gallery: int, seed: int, way: str) -> None:
    rng = np.random.default_rng(seed)
    array = EMBEDDINGS[kind](rng, gallery).astype(float)
    asked = EMBEDDINGS[kind](rng, queries).astype(float)
    exclude = rng.integers(-1, gallery, queries)  # what is left out may be of any label
    labels, groups = (rng.integers(low, 3, queries + gallery) for low in (-1, -1))
    relevance = Relevance(labels[:queries], labels[queries:], exclude, groups[:queries], groups[queries:])
    left, right = UnitVectors(asked, "query"), UnitVectors(array, "gallery vector")
    with pytest.MonkeyPatch.context() as patch:
        if way == "device":
            on_device(patch)
        if way != "whole":
            small_tiles(patch)
        found = list(positive_ranks(left, right, relevance))
    assert joined(found) == brute_force(whole_product(left, right), relevance)


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("way", ["whole", "small tiles", "device"])
def test_levels_equal_full_sorting(monkeypatch, nested: bool, half: bool, way: str) -> None:
    rng = np.random.default_rng(0)
    array, labels = rng.integers(-2, 3, (60, 3)) + 0.0, rng.integers(-1, 9, 60)
    groups, coarse = rng.integers(-1, 3, 60), labels // 3 if nested else rng.integers(-1, 3, 60)
    fine = Relevance(labels, labels, np.arange(60), groups, groups)
    levels = [fine, Relevance(coarse, coarse, exclusions=fine), Relevance(0 * labels, 0 * labels, exclusions=fine)]
    vectors = UnitVectors(array, "embedding")
    scores = whole_product(vectors, vectors)
    if way == "device":
        on_device(monkeypatch)
    if way != "whole":
        small_tiles(monkeypatch, most=300)
    blocks = list(level_ranks(vectors, vectors if half else UnitVectors(array, "embedding"), levels))
    for number, relevance in enumerate(levels):
        assert joined([block[number] for block in blocks]) == brute_force(scores, relevance)


def test_half_of_the_product_is_enough(monkeypatch) -> None:
    rng = np.random.default_rng(0)
    array, labels = rng.standard_normal((6000, 20)).round(1), rng.integers(0, 900, 6000)
    relevance = Relevance(labels, labels, np.arange(6000))
    vectors = UnitVectors(array, "embedding")
    whole = joined(list(positive_ranks(vectors, UnitVectors(array, "embedding"), relevance)))
    entries = []
    multiply = ScoreBuffer.product
    monkeypatch.setattr(
        ScoreBuffer,
        "product",
        lambda self, *given: (entries.append(len(given[0]) * len(given[1])), multiply(self, *given))[1],
    )
    assert joined(list(positive_ranks(vectors, vectors, relevance))) == whole
    assert sum(entries) < 0.6 * 6000**2  # strips on the diagonal are whole
    assert whole[2] > 0


@pytest.mark.parametrize("dim", [1, 3, 100, 512, 777])
def test_the_product_is_symmetric_to_the_bit(dim: int) -> None:
    vectors = UnitVectors(np.random.default_rng(0).standard_normal((700, dim)), "vector")
    unit = vectors.block(0, 700)
    block = ScoreBuffer(700, 700, vectors.device)
    tile = block.product(unit[600:], unit[:600]).clone()
    assert torch.equal(block.product(unit[:600], unit[600:]).T, tile)
    assert torch.equal(block.product(unit, unit)[600:, :600], tile)


@pytest.mark.parametrize("chunk_size", [None, 1, 17, 5000])
@pytest.mark.parametrize("threads", [1, 3])
def test_neither_chunks_nor_threads_matter(chunk_size: int | None, threads: int) -> None:
    rng = np.random.default_rng(1)
    array, labels = rng.standard_normal((300, 9)).round(1), rng.integers(0, 30, 300)
    relevance, vectors = Relevance(labels, labels, np.arange(300)), UnitVectors(array, "embedding")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        found = joined(list(positive_ranks(vectors, vectors, relevance, chunk_size)))
    finally:
        torch.set_num_threads(before)
    assert found == brute_force(whole_product(vectors, vectors), relevance)


class Incremented(RerankedScores):
    """Every third pair stands higher by its amount."""

    def increments(self, start: int, stop: int) -> ScoreIncrements:
        rows, columns = np.divmod(np.arange((stop - start) * len(self.gallery)), len(self.gallery))
        here = (rows + start + columns) % 3 == 0
        return ScoreIncrements(rows[here], columns[here], (columns[here] % 4).astype(np.float64))

    def incremented(self, similarities: np.ndarray, amounts: np.ndarray) -> np.ndarray:
        return similarities + amounts.astype(np.float32) / 2


@pytest.mark.parametrize("way", ["whole", "small tiles", "device"])
@pytest.mark.parametrize("overlap", [True, False])
def test_reranked_similarities_are_ranked(monkeypatch, way: str, overlap: bool) -> None:
    rng = np.random.default_rng(2)
    array, labels = rng.integers(-2, 3, (50, 3)) + 0.0, rng.integers(0, 9, 50)
    vectors = UnitVectors(array, "embedding")
    relevance = Relevance(labels, labels, np.arange(50) if overlap else None)
    scores = whole_product(vectors, vectors)
    rows, columns = np.indices(scores.shape)
    scores = np.where((rows + columns) % 3 == 0, scores + (columns % 4).astype(np.float32) / 2, scores)
    if way == "device":
        on_device(monkeypatch)
    if way != "whole":
        small_tiles(monkeypatch)
    found = list(positive_ranks(vectors, vectors, relevance, reranked=Incremented(vectors, vectors)))
    assert joined(found) == brute_force(scores, relevance)


@pytest.mark.slow
def test_memory_is_bounded_with_one_huge_class() -> None:
    rng = np.random.default_rng(0)
    vectors, labels = UnitVectors(rng.standard_normal((9000, 4)), "embedding"), np.zeros(9000, dtype=np.int64)
    relevance = Relevance(labels, labels, np.arange(9000))
    small = UnitVectors(np.eye(4), "embedding")
    list(positive_ranks(small, small, Relevance(labels[:4], labels[:4])))  # compiles
    Path("/proc/self/clear_refs").write_text("5")  # from here on the peak is counted anew
    before, total = resident("VmRSS"), 0
    for block in positive_ranks(vectors, vectors, relevance):
        total += len(block.ranks)
        assert (block.ranks[:8999] == np.arange(1, 9000)).all()
    assert total == 9000 * 8999
    assert resident("VmHWM") - before < 320_000


def resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{field}:")))
