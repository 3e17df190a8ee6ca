"""Verification: compared with scikit-learn's ROC curve, and with loops over folds."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score, roc_curve

from tests.evaluation.test_open_set import clusters
from vicinal.data import Table
from vicinal.evaluation import evaluate_pairs, verification, verification_rates
from vicinal.retrieval import UnitVectors
from vicinal.retrieval.scores import ScoreBuffer
from vicinal.utils.errors import InputError

RATES = [0.001, 0.01, 0.1, 0.5, 0.99]


@pytest.mark.parametrize(("columns", "decimals"), [({}, 1), ({"group": True}, 6), ({"sides": True}, 1)])
def test_rates_equal_the_roc_curve_of_all_pairs(columns: dict[str, bool], decimals: int, monkeypatch) -> None:
    vectors, table = clusters(7, classes=30, **columns)
    vectors, frame = np.round(vectors, decimals), table.frame  # with many ties, or few
    unit = UnitVectors(vectors, "vector")
    product = ScoreBuffer(len(unit), len(unit), unit.device).fill(unit.block(0, len(unit)), unit, 0, len(unit))
    similarities, labels = product.tolist(), frame["label"].tolist()
    group = frame.get("group", pd.Series(-1, index=frame.index)).tolist()
    is_query, is_gallery = (frame[side].tolist() if side in frame else [] for side in ("is_query", "is_gallery"))
    scores, same = [], []
    for i in range(len(frame)):
        for j in range(len(frame)):
            is_same = labels[i] == labels[j]
            counts = is_query[i] and is_gallery[j] and i != j if "sides" in columns else i < j
            if counts and not (is_same and group[i] == group[j] >= 0):
                scores.append(similarities[i][j])
                same.append(is_same)
    fpr, tpr, _ = roc_curve(same, scores, drop_intermediate=False)
    for rows, block in ((1024, 4096), (64, 256)):
        monkeypatch.setattr(verification, "ROWS", rows)
        monkeypatch.setattr(verification, "BLOCK_ROWS", block)
        found = verification_rates(vectors, table, RATES)
        for row in found.itertuples():
            assert row.true_accept_rate == pytest.approx(tpr[fpr <= row.false_accept_rate].max(), abs=1e-12)
            different = np.array(scores)[~np.array(same)]
            assert row.num_false_accepts == (different >= row.threshold).sum()
        assert (found["num_same"] == sum(same)).all()
        assert (found["num_different"] == len(same) - sum(same)).all()


def test_bad_input_is_told() -> None:
    table = Table(pd.DataFrame({"label": [0, 0, 1]}))
    for rate in (0, 1, "much", np.nan):
        with pytest.raises(InputError, match=r"false_accept_rate = .* is invalid"):
            verification_rates(np.eye(3), table, [rate])
    with pytest.raises(InputError, match="no pair of images of the same class"):
        verification_rates(np.eye(2), Table(pd.DataFrame({"label": [0, 1]})))
    with pytest.raises(InputError, match="no pair of images of different classes"):
        verification_rates(np.eye(2), Table(pd.DataFrame({"label": [0, 0]})))


def lfw_like(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    is_same = np.tile(np.repeat([True, False], 12), 10)
    return np.round(0.3 * is_same + rng.normal(0, 0.25, len(is_same)), 2).astype(np.float32), is_same


@pytest.mark.parametrize("seed", range(2))
def test_accuracy_over_folds_equals_a_search_over_all_thresholds(seed: int) -> None:
    scores, is_same = lfw_like(seed)
    folds = np.arange(len(scores)) // 24
    found = evaluate_pairs(scores, is_same, false_accept_rates=RATES)
    assert found.folds.equals(evaluate_pairs(scores, is_same, folds, RATES).folds)  # these are the default folds
    accuracies = []
    for fold in range(10):
        there = folds != fold
        candidates = np.sort(np.unique(scores[there]))
        candidates = [candidates[0] - 1, *(candidates[1:] + candidates[:-1]) / 2, candidates[-1] + 1]
        best = max(candidates, key=lambda each: ((scores[there] >= each) == is_same[there]).sum())
        accuracies.append(np.mean((scores[~there] >= best) == is_same[~there]))
    assert found.accuracy == pytest.approx(np.mean(accuracies), abs=1e-12)
    assert found.standard_error == pytest.approx(np.std(accuracies, ddof=1) / np.sqrt(10), abs=1e-12)
    assert found.auroc == pytest.approx(roc_auc_score(is_same, scores), abs=1e-12)
    fpr, tpr, _ = roc_curve(is_same, scores, drop_intermediate=False)
    for row in found.rates.itertuples():
        assert row.true_accept_rate == pytest.approx(tpr[fpr <= row.false_accept_rate].max(), abs=1e-12)


@pytest.mark.parametrize(
    ("scores", "is_same", "folds", "message"),
    [
        ([0.1, 0.2], [True, False], [0, 0], "outside of fold 0 one kind of pairs is missing"),
        ([0.1, 0.2], [True], None, "there must be one each"),
        ([0.1, np.nan], [True, False], None, "a score is NaN or infinity"),
    ],
)
def test_bad_pairs_are_told(scores: list, is_same: list, folds: list | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate_pairs(np.array(scores), np.array(is_same), folds)
