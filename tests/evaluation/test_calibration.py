"""Calibration: thresholds, their intervals and probabilities against their definitions."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.isotonic import IsotonicRegression

from tests.evaluation.test_open_set import clusters
from vicinal.data import Table
from vicinal.evaluation import Resampling, calibrate, calibration, open_set_scores, resampling, thresholds
from vicinal.retrieval import Calibration
from vicinal.retrieval.calibration import example_calibration
from vicinal.utils.errors import InputError

FEW = Resampling(num_resamples=50, seed=4)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.29, 0.5, 0.999])
def test_the_threshold_is_the_lowest_with_that_rate(rate: float) -> None:
    scores = np.round(np.random.default_rng(0).normal(size=100), 1).astype(np.float32)
    threshold = thresholds.threshold_at(scores, rate)
    assert (scores >= threshold).mean() <= rate + 1e-12
    assert (scores >= np.nextafter(np.float32(threshold), np.float32(-9))).mean() > rate


@pytest.mark.parametrize("max_weights", [2**22, 300])
def test_intervals_equal_a_loop_over_resampled_classes(max_weights: int, monkeypatch) -> None:
    monkeypatch.setattr(resampling, "MAX_WEIGHTS", max_weights)
    rng = np.random.default_rng(1)
    units, scores = rng.integers(5, 14, 80), rng.normal(size=80).astype(np.float32)
    low, high = thresholds.threshold_interval(scores, units, 0.1, FEW)
    names = np.unique(units)
    found = []
    for sample in np.random.default_rng(4).integers(0, len(names), (50, len(names))):
        resampled = np.concatenate([scores[units == names[number]] for number in sample])
        found.append(thresholds.threshold_at(resampled, 0.1))
    assert [low, high] == pytest.approx(np.quantile(found, [0.025, 0.975], method="nearest"), abs=1e-7)


@pytest.mark.parametrize("score", ["similarity", "margin"])
def test_a_calibration_says_what_its_scores_say(score: str) -> None:
    vectors, table = clusters(2, classes=25)
    found = calibrate(vectors, table, 0.1, score=score, unknown_fraction=0.2, resampling=FEW, fingerprint="m")
    scores = open_set_scores(vectors, table, score)
    assert found.threshold == thresholds.threshold_at(scores.unknown, 0.1)
    assert found.threshold_interval[0] <= found.threshold <= found.threshold_interval[1]
    assert found.false_reject_rate == pytest.approx(1 - np.mean(scores.is_right & found.accepts(scores.known)))
    values = np.concatenate([scores.known, scores.unknown]).astype(float)
    target = np.concatenate([scores.is_right, np.zeros(len(scores.unknown))])
    weights = np.concatenate([np.full(len(scores.known), 0.8 / len(scores.known)),
                              np.full(len(scores.unknown), 0.2 / len(scores.unknown))])  # fmt: skip
    peer = IsotonicRegression(out_of_bounds="clip").fit(values, target, weights)
    grid = np.linspace(-1, 2, 301)
    np.testing.assert_allclose(found.probability(grid), peer.predict(grid), atol=1e-9)
    known = np.average(found.probability(values), weights=weights)
    assert known == pytest.approx(np.average(target, weights=weights), abs=1e-9)  # calibrated in the mean
    assert (found.num_queries, found.num_gallery, found.fingerprint) == (len(table), len(table), "m")


def test_held_out_queries_have_the_threshold_of_other_classes() -> None:
    vectors, table = clusters(2, classes=25)
    scores = open_set_scores(vectors, table)
    accepted = calibration.held_out_accepts(scores, 0.2, seed=3)
    folds = np.random.default_rng(3).permutation(25) % 5
    for row, label in enumerate(scores.unknown_classes):
        others = scores.unknown[folds[scores.unknown_classes] != folds[label]]
        assert accepted[row] == (scores.unknown[row] >= thresholds.threshold_at(others, 0.2))


def test_queries_of_unknown_classes_may_be_all_or_none() -> None:
    labels = np.arange(8).repeat(3)
    vectors, table = np.eye(8)[labels] + 0.1, Table(pd.DataFrame({"label": labels}))
    assert (calibrate(vectors, table, unknown_fraction=1, resampling=FEW).probability([-1, 1]) == 0).all()
    assert (calibrate(vectors, table, unknown_fraction=0, resampling=FEW).probability([-1, 1]) == 1).all()


def test_rates_hold_for_other_classes_of_the_same_kind() -> None:
    rng = np.random.default_rng(0)
    rates = []
    for _ in range(5):
        labels = np.arange(120).repeat(5)
        vectors = rng.normal(size=(240, 16))[:, None] + 0.8 * rng.normal(size=(240, 5, 16))
        first, second = vectors.reshape(2, 600, 16)
        table = Table(pd.DataFrame({"label": labels}))
        found = calibrate(first, table, 0.05, resampling=FEW)
        rates.append(found.accepts(open_set_scores(second, table).unknown).mean())
    assert 0.02 < np.mean(rates) < 0.09


def test_bad_arguments_are_told() -> None:
    vectors, table = clusters(0)
    for options, message in (
        ({"false_accept_rate": 0}, "false_accept_rate = 0 is impossible"),
        ({"unknown_fraction": 2}, "unknown_fraction = 2 is impossible"),
        ({"resampling": Resampling("queries")}, "resample classes, not queries"),
    ):
        with pytest.raises(InputError, match=message):
            calibrate(vectors, table, **options)
    with pytest.raises(InputError, match="queries of 2 classes are too few to calibrate with; use at least 4"):
        calibrate(np.eye(4), Table(pd.DataFrame({"label": [0, 0, 1, 1]})))


def test_a_file_gives_the_same_calibration(tmp_path) -> None:
    vectors, table = clusters(2, classes=25)
    found = calibrate(vectors, table, 0.1, resampling=FEW)
    found.save(tmp_path / "c.json")
    assert Calibration.load(tmp_path / "c.json") == found
    assert "held out" in str(found)
    assert "scores" not in found.describe()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "it is no calibration"),
        ({"version": 2}, "it has version 2; this Vicinal reads 1"),
        ({"extra": 1}, "extra is missing or unknown"),
        ({"threshold": "high"}, "threshold = 'high' must be a number"),
        ({"threshold": float("nan")}, "threshold = nan must be a number"),
        ({"threshold_interval": [0.1]}, "threshold_interval must be 2 numbers"),
        ({"scores": [0.5]}, "scores must be 2 numbers"),
        ({"scores": [0.5, 0.5]}, "scores must ascend"),
        ({"probabilities": [0.5, 0.1]}, "probabilities must not descend"),
        ({"scores": [], "probabilities": []}, "there must be at least one"),
        ({"num_queries": 1.5}, "num_queries = 1.5 must be a whole number"),
        ({"fingerprint": 3}, "fingerprint must be text or null"),
        ({"score": "distance"}, "score = 'distance' is unknown"),
    ],
)
def test_damaged_files_are_told(change: dict[str, object], message: str, tmp_path) -> None:
    (tmp_path / "c.json").write_text(json.dumps({**example_calibration().to_dict(), **change}))
    with pytest.raises(InputError, match=f"c.json: .*{message}"):
        Calibration.load(tmp_path / "c.json")


def test_other_files_are_told(tmp_path) -> None:
    (tmp_path / "c.json").write_bytes(b"\xff\x00" + b"[" * 100_000)
    with pytest.raises(InputError, match=r"c\.json: it is no calibration"):
        Calibration.load(tmp_path / "c.json")
    with pytest.raises(InputError, match="no such file"):
        Calibration.load(tmp_path / "none.json")


def test_another_model_is_refused() -> None:
    known = replace(example_calibration(), fingerprint="a")
    known.check_model("a")
    known.check_model(None)
    example_calibration().check_model("b")
    with pytest.raises(InputError, match="the calibration is for embeddings of the model a, not of b"):
        known.check_model("b")
