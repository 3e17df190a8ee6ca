"""Calibration: thresholds, their intervals and probabilities against their definitions."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.special import rel_entr
from scipy.stats import beta, norm, t
from sklearn.isotonic import IsotonicRegression

from tests.evaluation.test_open_set import clusters
from tests.refusals import refused_call
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
    tails = norm.cdf(np.sqrt(len(names) / (len(names) - 1)) * t.ppf([0.025, 0.975], len(names) - 1))
    assert [low, high] == pytest.approx(np.quantile(found, tails, method="nearest"), abs=1e-7)


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
    ood = np.full(10, scores.unknown.max() + 0.1)
    strict = calibrate(vectors, table, 0.1, score=score, resampling=FEW, ood=ood)
    assert strict.threshold_interval == (strict.threshold, strict.threshold)
    assert strict.threshold > ood[0]
    assert strict.held_out_false_accept_rate == 0


@pytest.mark.parametrize("score", ["similarity", "margin"])
@pytest.mark.parametrize("rate", [0.02, 0.3])
def test_held_out_queries_have_the_threshold_of_a_search_without_their_class(score: str, rate: float) -> None:
    vectors, table = clusters(2, classes=25)
    scores = open_set_scores(vectors, table, score)
    accepted = calibration.held_out_accepts(scores, rate)
    for label in range(25):
        others, is_own = table.labels != label, scores.unknown_classes == label
        threshold = thresholds.threshold_at(open_set_scores(vectors[others], table.take(others), score).unknown, rate)
        assert (accepted[is_own] == (scores.unknown[is_own] >= threshold)).all()
    assert accepted.any()


@pytest.mark.parametrize("num_classes", [5, 30, 400])
@pytest.mark.parametrize("rate", [0.0, 0.01, 0.3])
def test_a_bound_is_where_the_inequality_of_hoeffding_is_an_equality(rate: float, num_classes: int) -> None:
    bound = thresholds.rate_bound(rate, num_classes, 0.9)
    divergence = sum(rel_entr([rate, 1 - rate], [bound, 1 - bound]))
    assert np.exp(-num_classes * divergence) == pytest.approx(0.1)
    assert thresholds.rate_for_bound(bound, num_classes, 0.9) == pytest.approx(rate, abs=1e-9)
    clopper_pearson = beta.ppf(0.9, rate * num_classes + 1, num_classes * (1 - rate))
    assert bound >= clopper_pearson - 1e-9
    if rate == 0:
        assert thresholds.classes_needed(bound - 1e-9, 0.9) == num_classes + 1


def test_the_bound_is_chosen_for_and_told() -> None:
    vectors, table = clusters(2, classes=60)
    scores = open_set_scores(vectors, table)
    sizes = np.unique(scores.unknown_classes, return_counts=True)[1]
    worth = sizes.sum() ** 2 / (sizes**2).sum()
    plain, bounded = (calibrate(vectors, table, 0.2, threshold_by=by, resampling=FEW) for by in ("rate", "bound"))
    assert plain.false_accept_rate_bound == thresholds.rate_bound(0.2, worth)
    assert (bounded.false_accept_rate, bounded.false_accept_rate_bound) == (0.2, pytest.approx(0.2))
    assert bounded.threshold == thresholds.threshold_at(scores.unknown, thresholds.rate_for_bound(0.2, worth))
    assert bounded.threshold > plain.threshold
    assert "95 % confidence: at most 20.00 %" in str(bounded)
    message = rf"a rate of 0.01 with 95 % confidence needs 299 classes of equal size; these are worth {worth:.3g}"
    refused_call(message, calibrate, vectors, table, 0.01, threshold_by="bound", resampling=FEW)


def test_bounds_hold_where_few_classes_have_most_false_accepts() -> None:
    """One class in fifteen is nearly another's; samples of 20 classes often have none of them."""
    rng, exceeded, above_interval = np.random.default_rng(0), 0, 0
    for _ in range(60):
        rates = np.where(rng.random(20) < 1 / 15, 0.8, 0.005)
        seen, actual = rates.mean(), 0.8 / 15 + 0.005 * 14 / 15
        exceeded += actual > thresholds.rate_bound(seen, 20)
        above_interval += actual > calibration.rate_interval(rates, np.arange(20), FEW)[1]
    assert exceeded <= 3
    assert above_interval > 9


def test_bad_arguments_are_told() -> None:
    vectors, table = clusters(0)
    for options, message in (
        ({"false_accept_rate": 0}, "false_accept_rate = 0 is invalid"),
        ({"threshold_by": "hope"}, "threshold_by = 'hope' is unknown"),
        ({"unknown_fraction": 2}, "unknown_fraction = 2 is invalid"),
        ({"resampling": Resampling("queries")}, "resample classes, not queries"),
    ):
        refused_call(message, calibrate, vectors, table, **options)
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
        ({"format": "other"}, "it is not a calibration"),
        ({"version": 1}, "it has version 1; this Vicinal reads 2"),
        ({"extra": 1}, "extra is missing or unknown"),
        ({"threshold": "high"}, "threshold = 'high' must be a number"),
        ({"threshold": float("nan")}, "threshold = nan must be a number"),
        ({"threshold_interval": [0.1]}, "threshold_interval must be 2 numbers"),
        ({"scores": [0.5]}, "probabilities must be 1 numbers"),
        ({"scores": [0.5, 0.5]}, "scores must ascend"),
        ({"probabilities": [0.5, 0.1]}, "probabilities must not descend"),
        ({"scores": [], "probabilities": []}, "there must be at least one"),
        ({"num_queries": 1.5}, "num_queries = 1.5 must be a whole number"),
        ({"fingerprint": 3}, "fingerprint must be text or null"),
        ({"score": "distance"}, "score = 'distance' is unknown"),
        ({"pooling": "median"}, "pooling = 'median' is unknown; use best, mean, centroid"),
        ({"cluster_threshold": "high"}, "cluster_threshold = 'high' must be a number"),
    ],
)
def test_damaged_files_are_told(change: dict[str, object], message: str, tmp_path) -> None:
    (tmp_path / "c.json").write_text(json.dumps({**example_calibration().to_dict(), **change}))
    refused_call(f"c.json: .*{message}", Calibration.load, tmp_path / "c.json")


def test_another_model_is_refused() -> None:
    known = replace(example_calibration(), fingerprint="a")
    known.check_model("a")
    known.check_model(None)
    example_calibration().check_model("b")
    refused_call("the calibration is for embeddings of the model a, not of b", known.check_model, "b")
