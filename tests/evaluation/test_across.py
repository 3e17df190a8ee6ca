"""Scores across two models against a slow reference, and what is told of an upgrade."""

import numpy as np
import pandas as pd
import pytest

from tests.evaluation.cases import means, scores_of_hits
from tests.refusals import refused_call
from vicinal.data import Table
from vicinal.evaluation import evaluate, evaluate_across, upgrade_warnings
from vicinal.retrieval import LinearAdapter
from vicinal.utils.errors import InputError


@pytest.fixture
def models() -> tuple[np.ndarray, np.ndarray, Table]:
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(12), 6)
    new = rng.standard_normal((12, 8))[labels] + 0.9 * rng.standard_normal((72, 8))
    rotation = np.linalg.qr(rng.standard_normal((8, 8)))[0]
    old = (new + 0.6 * rng.standard_normal(new.shape)) @ rotation
    return old, new, Table(pd.DataFrame({"label": labels, "group": rng.integers(0, 3, 72)}))


def scores(queries: np.ndarray, gallery: np.ndarray, table: Table) -> tuple[float, float]:
    """recall@1 and mAP@R, one query at a time."""
    unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (queries, gallery)]
    labels, groups, found = table.labels, table.frame["group"].to_numpy(), []
    for i, query in enumerate(unit[0]):
        left_out = (labels == labels[i]) & (groups == groups[i])
        rows = [j for j in np.argsort(-(unit[1] @ query)) if j != i and not left_out[j]]
        found.append(scores_of_hits((labels[rows] == labels[i]).tolist()))
    return means(found)["recall@1"], means(found)["mAP@R"]


def test_each_side_is_of_its_model(models: tuple[np.ndarray, np.ndarray, Table]) -> None:
    old, new, table = models
    adapter = LinearAdapter.fit(old, new)
    found = evaluate_across(old, new, table, adapter, recall_at=[1])
    sides = {"old/old": (old, old), "new/old": (new, old), "new/new": (new, new)}
    sides["new/adapted"] = new, old @ adapter.matrix
    assert list(found) == list(sides)
    for name, (queries, gallery) in sides.items():
        expected = scores(queries, gallery, table)
        assert (found[name].metrics["recall@1"], found[name].metrics["mAP@R"]) == pytest.approx(expected, abs=1e-9)
    back = LinearAdapter.fit(new[:, :5], old, "ridge")
    assert list(evaluate_across(old, new[:, :5], table, back)) == ["old/old", "new/new", "new/adapted"]


def test_queries_and_gallery_of_a_table_are_of_their_models(models: tuple[np.ndarray, np.ndarray, Table]) -> None:
    old, new, table = models
    is_query = np.arange(72) % 2 == 0
    split = Table(table.frame.assign(is_query=is_query, is_gallery=~is_query))
    mixed = np.where(is_query[:, None], new, old)
    across = evaluate(new, split, gallery_embeddings=old)
    assert across.metrics == evaluate(mixed, split).metrics


def test_an_upgrade_that_loses_more_than_the_tolerance_is_told(models: tuple[np.ndarray, np.ndarray, Table]) -> None:
    old, new, table = models
    adapted = evaluate_across(old, new, table, LinearAdapter.fit(old, new))
    loss = adapted["new/new"].metrics["mAP@R"] - adapted["new/adapted"].metrics["mAP@R"]
    assert 0.01 < loss < 0.5
    text = "\n".join(upgrade_warnings(adapted, table))
    assert f"new/adapted loses {100 * loss:.2f} points [" in text
    assert "more than the tolerance of 1" in text
    assert upgrade_warnings(adapted, table, tolerance=0.5) == []
    worse = upgrade_warnings(evaluate_across(old, new, table), table, tolerance=1)
    assert len(worse) == 2
    assert all("new/old loses" in each and "keeping the old model" in each for each in worse)


def test_invalid_input(models: tuple[np.ndarray, np.ndarray, Table]) -> None:
    old, new, table = models
    with pytest.raises(InputError, match=r"the adapter maps 8 to 8 dimensions; the models have"):
        evaluate_across(old, new[:, :5], table, LinearAdapter.fit(old, new))
    refused_call("need an adapter", lambda: upgrade_warnings(evaluate_across(old, new[:, :5], table), table))
    refused_call("tolerance is 2", lambda: upgrade_warnings(evaluate_across(old, new, table), table, tolerance=2))
    refused_call("9", evaluate, new, table, gallery_embeddings=old[:9])
    refused_call("dimension", evaluate, new, table, gallery_embeddings=old[:, :5])
