"""Match, or none: decisions by the threshold of an index or by minima, and the calibration that an index keeps."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.refusals import refused_call
from vicinal.data import Table
from vicinal.retrieval import ContextualReranking, Index, SearchResult, match_images
from vicinal.retrieval.calibration import example_calibration
from vicinal.utils.errors import InputError

ANGLES = {"a": [0, 5, 10], "b": [60, 65], "c": [120]}  # degrees of the images of each class
QUERIES = Table(pd.DataFrame({"path": ["q.png"]}))


def on_circle(degrees: list[float]) -> np.ndarray:
    return np.stack([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], axis=1).astype(np.float32)


@pytest.fixture
def index() -> Index:
    labels = [label for label, degrees in ANGLES.items() for _ in degrees]
    vectors = on_circle([each for degrees in ANGLES.values() for each in degrees])
    index = Index.build(vectors, Table(pd.DataFrame({"label": labels})))
    index.calibration = example_calibration()
    return index


def decided(index: Index, degrees: float, k: int = 3, **options: object) -> SearchResult:
    return match_images(index, on_circle([degrees]), QUERIES, k, **options)[0]


def test_the_threshold_decides_and_leaves_out_no_match(index: Index) -> None:
    found, none = decided(index, 2), decided(index, 200)
    assert str(found.decision) == "match: a, probability 1.00"
    assert str(none.decision) == "no match (probability 0.00)"
    assert (none.decision.label, len(none.matches), len(found.matches)) == (None, 3, 3)
    assert str(none).splitlines()[0].endswith("q.png  -> no match (probability 0.00)")
    assert json.loads(json.dumps(found.to_dict()))["decision"]["label"] == "a"
    score = np.cos(np.radians(50))
    middle = decided(index, 170).decision  # between the scores of the curve
    assert middle.score == pytest.approx(score, abs=1e-6)
    assert middle.probability == pytest.approx((score - 0.5) / 0.2, abs=1e-5)


def test_accepted_matches_vote(index: Index) -> None:
    nearest_is_b = 36  # 24 degrees from b, 26 from a
    assert decided(index, nearest_is_b, k=1).decision.label == "b"
    assert decided(index, nearest_is_b, k=6).decision.label == "a"  # three of a, two of b, by the threshold 0.7
    assert decided(index, nearest_is_b, k=6, min_score=0.91).decision.label == "b"
    assert decided(index, 35, k=2).decision.label in ("a", "b")


def test_minima_leave_out_matches_below(index: Index) -> None:
    result = decided(index, 2, k=6, min_score=0.99)
    assert [match["label"] for match in result.matches] == ["a", "a", "a"][: len(result.matches)]
    assert all(match["score"] >= 0.99 for match in result.matches)
    assert decided(index, 200, min_score=0.99).matches == []
    assert decided(index, 200, min_score=0.99).decision.is_match is False
    assert [match["label"] for match in decided(index, 150, min_probability=0.9).matches] == ["c"]
    assert decided(index, 170, min_probability=0.8).matches == []
    assert decided(index, 170, min_probability=0.7).decision.is_match  # below the threshold, but probable enough


def test_margins_are_to_the_best_of_another_class_however_deep(index: Index) -> None:
    index.calibration = replace(example_calibration(), score="margin", threshold=0.3, scores=(0.0, 1.0))
    best, other = np.cos(np.radians(2)), np.cos(np.radians(58))
    for k in (1, 2, 6):
        found = decided(index, 2, k=k)
        assert found.decision.score == pytest.approx(best - other, abs=1e-6)
        assert (found.decision.is_match, found.decision.label, len(found.matches)) == (True, "a", k)
    assert not decided(index, 35).decision.is_match
    assert len(decided(index, 35, k=6).matches) == 6
    assert decided(index, 35, k=6, min_probability=0.3).matches == []
    index.delete([3, 4, 5])
    assert decided(index, 2, k=1).decision.score == pytest.approx(best + 1, abs=1e-6)


def test_queries_without_a_runner_up_keep_their_places(index: Index) -> None:
    index.calibration = replace(example_calibration(), score="margin", threshold=0.3, scores=(0.0, 1.0))
    queries = Table(pd.DataFrame({"path": ["1.png", "2.png", "3.png"]}))
    found = match_images(index, on_circle([2, 36, 95]), queries, 2)  # of which the first is searched for again
    assert [Path(each.query["path"]).name for each in found] == ["1.png", "2.png", "3.png"]
    for result, best, other in zip(found, (2, 24, 25), (58, 26, 30), strict=True):
        margin = np.cos(np.radians(best)) - np.cos(np.radians(other))
        assert result.decision.score == pytest.approx(margin, abs=1e-6)


def test_margins_need_labels() -> None:
    index = Index.build(np.eye(3), Table(pd.DataFrame({"path": ["1.png", "2.png", "3.png"]})))
    index.calibration = replace(example_calibration(), score="margin")
    with pytest.raises(InputError, match="about margins between classes, and matches in the index have no label"):
        match_images(index, np.eye(3)[:1], QUERIES, 1)


def test_what_cannot_be_decided_is_told(index: Index) -> None:
    for options, message in (
        ({"min_score": float("nan")}, "min_score = nan is invalid"),
        ({"min_probability": 1.5}, "min_probability = 1.5 is invalid"),
        ({"min_probability": 0.5, "reranking": ContextualReranking(k=2)}, "not the scores of a re-ranking"),
    ):
        refused_call(message, decided, index, 2, **options)
    index.calibration = None
    for options in ({}, {"min_probability": 0.5}):
        refused_call("the index has no calibration of matches; make one", decided, index, 2, **options)
    assert str(decided(index, 2, min_score=0.5).decision) == "match: a"
    assert str(decided(index, 200, min_score=0.5).decision) == "no match"


def test_an_index_refuses_the_calibration_of_another_model() -> None:
    index = Index.build(np.eye(2), Table(pd.DataFrame({"label": [0, 1]})), model_fingerprint="m")
    index.calibration = replace(example_calibration(), fingerprint="m")
    index.calibration = example_calibration()  # of an unknown model
    with pytest.raises(InputError, match="for embeddings of the model other, not of m"):
        index.calibration = replace(example_calibration(), fingerprint="other")
