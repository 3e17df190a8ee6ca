"""The revisited protocol: by hand, and against a walk down the list from which junk was deleted."""

import numpy as np
import pandas as pd
import pytest

from tests.retrieval.reranking.rerank_references import lattice
from vicinal.data import Table
from vicinal.data.benchmarks.revisited import GroundTruth
from vicinal.evaluation import evaluate_revisited, evaluate_revisited_table, revisited
from vicinal.retrieval import scores
from vicinal.utils.errors import InputError

SETUPS = {  # what is sought, what is deleted
    "easy": ({"easy"}, {"hard", "junk"}),
    "medium": ({"easy", "hard"}, {"junk"}),
    "hard": ({"hard"}, {"easy", "junk"}),
}


def ground_truth_of(kinds: list[list[str]]) -> GroundTruth:
    """Of each query, what each image of the gallery is: easy, hard, junk or other."""
    entries = [
        {"bbx": [0, 0, 1, 1]}
        | {key: [n for n, kind in enumerate(row) if kind == key] for key in ("easy", "hard", "junk")}
        for row in kinds
    ]
    images = [f"image{number}" for number in range(len(kinds[0]))]
    return GroundTruth.from_dict({"imlist": images, "qimlist": [f"q{n}" for n in range(len(kinds))], "gnd": entries})


def in_order(count: int) -> tuple[np.ndarray, np.ndarray]:
    """A query that finds a gallery in the order in which it stands."""
    angles = np.linspace(0.1, 1.4, count)
    return np.array([[1.0, 0.0]]), np.stack([np.cos(angles), np.sin(angles)], axis=1)


def walked(kinds: list[str], sought: set[str], deleted: set[str], ks: tuple[int, ...]) -> list[float]:
    """The scores of one ranking, read off the list without junk: area under precision over recall, by trapezoids."""
    left = [kind in sought for kind in kinds if kind not in deleted]
    total = sum(left)
    if not total:
        return [np.nan] * (1 + len(ks))
    area, hits, precision = 0.0, 0, 1.0  # before the first image precision is 1
    for length, is_hit in enumerate(left, 1):
        if is_hit:
            hits += 1
            area += (precision + hits / length) / 2 / total
        precision = hits / length
    last = max(place for place, is_hit in enumerate(left, 1) if is_hit)
    return [area, *(sum(left[: min(k, last)]) / min(k, last) for k in ks)]


def test_by_hand() -> None:
    found = evaluate_revisited(
        *in_order(4), ground_truth_of([["junk", "easy", "other", "hard"]]), precision_at=(1, 2, 5)
    )
    # easy: the list is easy, other. medium: easy, other, hard. hard: other, hard.
    assert found["easy"].metrics == {"mAP": 1.0, "mP@1": 1.0, "mP@2": 1.0, "mP@5": 1.0}
    medium = found["medium"].metrics
    assert medium["mAP"] == pytest.approx(((1 + 1) / 2 + (1 / 2 + 2 / 3) / 2) / 2)
    assert [medium["mP@1"], medium["mP@2"], medium["mP@5"]] == [1, 1 / 2, 2 / 3]
    hard = found["hard"].metrics
    assert hard["mAP"] == pytest.approx((0 / 1 + 1 / 2) / 2)
    assert [hard["mP@1"], hard["mP@2"], hard["mP@5"]] == [0, 1 / 2, 1 / 2]
    assert (found["hard"].protocol, found["hard"].num_queries, found["hard"].num_gallery) == ("revisited, hard", 1, 4)


def random_case(seed: int, queries: int, images: int) -> tuple[np.ndarray, np.ndarray, list[list[str]]]:
    """Vectors with a great many ties, and random kinds; some queries seek nothing."""
    rng = np.random.default_rng(seed)
    vectors = lattice(queries + images, 6, seed)
    kinds = rng.choice(["easy", "hard", "junk", "other"], (queries, images), p=[0.1, 0.1, 0.2, 0.6]).tolist()
    kinds[0] = ["other"] * images
    kinds[1] = ["easy" if kind == "hard" else kind for kind in kinds[1]]
    return vectors[:queries], vectors[queries:], kinds


@pytest.mark.parametrize("others", [0, 1, 300])
def test_equals_a_walk_down_the_list(others: int, monkeypatch) -> None:
    monkeypatch.setattr(scores, "SCORE_BYTES", 2**10)
    monkeypatch.setattr(revisited, "BLOCK_ROWS", 64)  # distractors in several parts
    for seed in range(8):
        check_walk(seed, others)


def check_walk(seed: int, others: int) -> None:
    queries, gallery, kinds = random_case(seed, 9, 60)
    distractors = random_case(50 + seed, 9, others)[1] if others else None
    everything = gallery if distractors is None else np.concatenate([gallery, distractors])
    ks = (1, 5, 10)
    found = evaluate_revisited(queries, gallery, ground_truth_of(kinds), distractors=distractors, precision_at=ks)
    for difficulty, (sought, deleted) in SETUPS.items():
        rows, firsts, ties = [], [], 0
        for query, row in zip(queries, kinds, strict=True):
            products, all_kinds = everything @ query, [*row, *["other"] * others]
            in_order = [all_kinds[place] for place in np.argsort(-products, kind="stable")]
            rows.append(walked(in_order, sought, deleted, ks))
            left = [kind in sought for kind in in_order if kind not in deleted]
            firsts.append(1 + left.index(True) if any(left) else 0)
            levels = {products[place] for place, kind in enumerate(all_kinds) if kind not in sought | deleted}
            ties += sum(products[place] in levels for place, kind in enumerate(all_kinds) if kind in sought)
        assert found[difficulty].first_positive_ranks.tolist() == firsts
        assert found[difficulty].num_ties == ties > 0
        wanted = np.array(rows)
        for name, column in zip(["mAP", "mP@1", "mP@5", "mP@10"], wanted.T, strict=True):
            np.testing.assert_allclose(found[difficulty].per_query[name], column, rtol=1e-12)
            assert found[difficulty].metrics[name] == pytest.approx(np.nanmean(column))
        assert found[difficulty].num_without_positive == np.isnan(wanted[:, 0]).sum() > 0
        assert found[difficulty].num_gallery == 60 + others


def test_a_table_has_its_gallery_first_and_may_have_distractors_last() -> None:
    query, gallery = in_order(3)
    ground_truth, distractors = ground_truth_of([["easy", "other", "hard"]]), gallery[[0, 0]]
    table = Table(pd.DataFrame({"is_gallery": [True] * 3 + [False] + [True] * 2}))
    vectors = np.concatenate([gallery, query, distractors])
    found = evaluate_revisited_table(vectors, table, ground_truth)
    wanted = evaluate_revisited(query, gallery, ground_truth, distractors=distractors)
    assert found.metrics["hard/mAP"] == wanted["hard"].metrics["mAP"]
    without = evaluate_revisited_table(vectors[:4], table.take(range(4)), ground_truth)
    assert without.metrics["hard/mAP"] == evaluate_revisited(query, gallery, ground_truth)["hard"].metrics["mAP"]
    assert found.metrics["hard/mAP"] < without.metrics["hard/mAP"]
    assert (found.num_gallery, found.query_indices.tolist()) == (5, [3])
    with pytest.raises(InputError, match="3 embeddings, but the ground truth has 3 gallery images and then 1 queries"):
        evaluate_revisited_table(gallery, table.take(range(3)), ground_truth)
    for other in (Table(pd.DataFrame(index=range(6))), Table(table.frame.assign(is_gallery=False))):
        with pytest.raises(InputError, match=r"6 embeddings, but .* 1 queries, after which there may be distractors"):
            evaluate_revisited_table(vectors, other, ground_truth)


def test_bad_input() -> None:
    query, gallery = in_order(3)
    ground_truth = ground_truth_of([["easy", "other", "hard"]])
    with pytest.raises(InputError, match="2 embeddings of gallery images, but the ground truth has 3"):
        evaluate_revisited(query, gallery[:2], ground_truth)
    with pytest.raises(InputError, match="2 embeddings of queries, but the ground truth has 1"):
        evaluate_revisited(query[[0, 0]], gallery, ground_truth)
    with pytest.raises(InputError, match="queries have 2 dimensions, the gallery has 4"):
        evaluate_revisited(query, gallery, ground_truth, distractors=np.eye(4))
    with pytest.raises(InputError, match=r"distractor 1 holds NaN"):
        evaluate_revisited(query, gallery, ground_truth, distractors=np.array([[1.0, 0.0], [np.nan, 0.0]]))
    with pytest.raises(InputError, match="mP@0 is invalid"):
        evaluate_revisited(query, gallery, ground_truth, precision_at=(0,))
    with pytest.raises(InputError, match=r"precision_at is 5; give a list of k, such as \[1, 5\]"):
        evaluate_revisited(query, gallery, ground_truth, precision_at=5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="easy: no query has a positive"):
        evaluate_revisited(query, gallery, ground_truth_of([["other", "other", "hard"]]))
