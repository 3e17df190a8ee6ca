"""Calibration against a larger gallery, and what is said of its doubts."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from vicinal.data import Table
from vicinal.evaluation import open_set_scores
from vicinal.utils.errors import InputError
from vicinal.workflows.calibrate import calibrate_source, with_gallery
from vicinal.workflows.embedded_table import EmbeddedTable
from vicinal.workflows.settings import CalibrationSettings

SETTINGS = CalibrationSettings(0.1, num_resamples=20)


def embedded(labels: object, seed: int = 0, **columns: object) -> EmbeddedTable:
    rng, codes = np.random.default_rng(seed), pd.factorize(pd.Series(labels))[0]
    vectors = rng.normal(size=(codes.max() + 1, 6))[codes] + 0.5 * rng.normal(size=(len(codes), 6))
    return EmbeddedTable(vectors.astype(np.float32), Table(pd.DataFrame({"label": labels, **columns})), "v.npy")


def paths(first: int, number: int) -> list[str]:
    return [f"/{each}.png" for each in range(first, first + number)]


def test_queries_search_the_gallery_too_and_each_image_is_there_once() -> None:
    queries = embedded(np.arange(10).repeat(4), path=paths(0, 40), coarse=["x"] * 40)
    more = embedded(np.arange(8, 30).repeat(3), seed=1, path=paths(37, 66), price=range(66))
    both = with_gallery(queries, more)
    assert both.table.paths == paths(0, 103)
    frame = both.table.frame
    assert (frame["is_query"].sum(), frame["is_gallery"].sum()) == (40, 103)
    found = open_set_scores(both.vectors, both.table)
    unit = both.vectors / np.linalg.norm(both.vectors, axis=1, keepdims=True)
    labels = frame["label"].to_numpy()
    scores = np.where(labels[:40, None] == labels, -2, unit[:40] @ unit.T)
    np.testing.assert_allclose(found.unknown, scores.max(axis=1), atol=1e-6)
    calibration = calibrate_source(queries, SETTINGS, more).calibration
    assert (calibration.num_queries, calibration.num_classes, calibration.num_gallery) == (40, 10, 103)
    assert calibration.threshold > calibrate_source(queries, SETTINGS).calibration.threshold


@pytest.mark.parametrize("groups", [{}, {"group": [7] * 9}, {"group": ["monday"] * 9}])
def test_labels_and_groups_of_other_types_are_compared_as_text(groups: dict[str, object]) -> None:
    queries = embedded(np.arange(4).repeat(2), group=[1, 2] * 4)
    both = with_gallery(queries, embedded(["0", "0", "0", "cup", "cup", "cup", "b", "b", "b"], 1, **groups))
    assert both.table.frame["label"].tolist()[:9] == ["0", "0", "1", "1", "2", "2", "3", "3", "0"]
    found = open_set_scores(both.vectors, both.table)
    assert len(found.known) == 8  # the group of a query excludes nothing of another group
    with_text = with_gallery(embedded(np.arange(4).repeat(2), group=["a", "b"] * 4), queries)
    assert with_text.table.has("group")


def test_a_gallery_that_cannot_be_compared_is_refused() -> None:
    queries = embedded(np.arange(10).repeat(4))
    with pytest.raises(InputError, match="the images of the gallery have no labels"):
        with_gallery(queries, replace(queries, table=Table(pd.DataFrame({"path": paths(0, 40)}))))
    with pytest.raises(InputError, match="in 3 dimensions, not of None in 6; embed both with one model"):
        with_gallery(queries, replace(queries, vectors=queries.vectors[:, :3]))


def test_doubts_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    queries = embedded(np.arange(10).repeat(4), coarse=["cups"] * 40, split=["train"] * 40)
    calibrate_source(queries, replace(SETTINGS, false_accept_rate=0.01))
    said = capsys.readouterr().err
    for words in (
        "some of these are training images",
        "all classes have one coarse label, cups",
        "less than one in 40",
        "10 classes are too few for a reliable rate of 1 %, for which 299 are needed: of other classes up to 29.3 %",
    ):
        assert words in said
    many = embedded(np.arange(60).repeat(2), coarse=["cups", "bowls"] * 60)
    calibrate_source(many, replace(SETTINGS, false_accept_rate=0.05))
    assert re.fullmatch(
        "warning: the model is too weak to decide at 5 %: of the images of known classes .* % are rejected; .*\n",
        capsys.readouterr().err,
    )
