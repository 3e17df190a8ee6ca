from pathlib import Path

import pytest

from tests.analysis.refiners import embedded, in_sides, misfits, moving
from vicinal.analysis import metrics_by_depth
from vicinal.data import Table
from vicinal.evaluation import evaluate
from vicinal.retrieval import Refinement
from vicinal.utils.errors import InputError


@pytest.mark.parametrize("make", [embedded, in_sides])
def test_metrics_are_those_of_evaluation_at_every_depth(make) -> None:
    refiner, (vectors, table) = moving(), make()
    metrics = metrics_by_depth(refiner, vectors, table)
    assert len(metrics) == 4
    assert metrics[0] == evaluate(vectors, table).metrics
    for depth, found in enumerate(metrics):
        expected = evaluate(vectors, table, rerank=Refinement(refiner, depth=depth)).metrics
        assert found == pytest.approx(expected, abs=1e-12)
    assert len({each["mAP@R"] for each in metrics}) == 4


def test_neighbors_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, search = [], Refinement.find_context
    monkeypatch.setattr(Refinement, "find_context", lambda *given: (calls.append(1), search(*given))[1])
    metrics_by_depth(moving(), *embedded())
    assert len(calls) == 1


def test_embeddings_that_do_not_fit(tmp_path: Path) -> None:
    for vectors, table, message in misfits(tmp_path):
        with pytest.raises(InputError, match=message):
            metrics_by_depth(moving(), vectors, table)
    with pytest.raises(InputError, match="no column 'label'"):
        metrics_by_depth(moving(), embedded()[0], Table(embedded()[1].frame[[]].assign(number=1)))
