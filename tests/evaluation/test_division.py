"""Rankings that several processes divide: to the last digit what one process finds."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest

from tests.processes import Results, run_groups
from vicinal import Table
from vicinal.evaluation import evaluate, ranking
from vicinal.evaluation.counting.positives import Division
from vicinal.utils import distributed
from vicinal.utils.errors import InputError
from vicinal.utils.memory import temporary_map

WORLDS = (3,)


def photos() -> tuple[np.ndarray, dict[str, dict[str, Any]]]:
    """Embeddings with ties, classes of all sizes, and the columns of several protocols."""
    rng = np.random.default_rng(0)
    labels = np.sort(rng.integers(0, 40, 700)) // 3 * 5
    vectors = rng.normal(size=(700, 4)).round(1).astype(np.float32)
    columns = {
        "leave one out": {},
        "groups": {"group": rng.integers(-1, 3, 700)},
        "queries and gallery": {"is_query": rng.random(700) < 0.3, "is_gallery": rng.random(700) < 0.8},
    }
    return vectors, {name: {"label": labels, "coarse": labels // 10, **more} for name, more in columns.items()}


def scores(columns: dict[str, Any], divided: bool) -> dict[str, Any]:
    """Everything that an evaluation says of every query."""
    vectors, _ = photos()
    table = Table(pd.DataFrame(columns))
    found = evaluate(vectors, table, [1, 5], metrics=["MRR"], hierarchy=True, chunk_size=128, divided=divided)
    return {**found.per_query, "first": found.first_positive_ranks, "ties": found.num_ties, "mean": found.metrics}


def together(rank: int, world: int) -> dict[str, Any]:
    """What a process of a group does for the tests below."""
    result: dict[str, Any] = {name: scores(columns, divided=True) for name, columns in photos()[1].items()}
    ranking.MAX_COUNTED, before = 9000, ranking.MAX_COUNTED  # several panels
    result["panels"] = scores(photos()[1]["leave one out"], divided=True)
    ranking.MAX_COUNTED = before
    with patch.object(ranking, "_tile_size", lambda *_: (32 + 16 * rank, 100)):
        result["GPUs that differ"] = scores(photos()[1]["leave one out"], divided=True)
    distant = {"label": np.arange(700)}
    with pytest.raises(InputError, match="none of the 700 queries"):
        evaluate(photos()[0], Table(pd.DataFrame(distant)), divided=True)
    consumed = []
    blocks = (consumed.append(number) or np.full((2, 3), number) for number in range(4))
    result["mapped"] = np.array(temporary_map(blocks, (8, 3), "vectors"))
    result["consumed"] = len(consumed)
    result["objects"] = distributed.all_gather_objects(f"rank {rank}")
    return result


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_groups(together, WORLDS, tmp_path_factory.mktemp("processes"))


@pytest.mark.parametrize("name", ["leave one out", "groups", "queries and gallery", "panels", "GPUs that differ"])
def test_the_scores_are_those_of_one_process(name: str, results: Results) -> None:
    expected = scores(photos()[1].get(name, photos()[1]["leave one out"]), divided=False)
    assert expected["ties"] > 0
    for world in WORLDS:
        for found in results[world]:
            for what, values in expected.items():
                np.testing.assert_array_equal(found[name][what], values, what)


def test_one_process_of_a_machine_writes_what_all_map(results: Results) -> None:
    for world in WORLDS:
        assert [found["consumed"] for found in results[world]] == [4] + [0] * (world - 1)
        for found in results[world]:
            np.testing.assert_array_equal(found["mapped"], np.repeat(np.arange(4), 2)[:, None] * np.ones(3))
            assert found["objects"] == [f"rank {rank}" for rank in range(world)]


def test_the_tiles_are_divided_evenly() -> None:
    for queries, world in ((700, 2), (12_000, 3), (10**6, 16)):
        divisions = [Division(rank, world) for rank in range(world)]
        rows = divisions[0].tile_rows(4096, queries)
        assert 64 <= rows <= 4096
        tops = range(0, queries, rows)
        own = [division.local_tops(tops) for division in divisions]
        assert sorted(top for each in own for top in each) == list(tops)
        entries = [sum(each) for each in own]  # of the half of a symmetric product
        assert max(entries) < 1.35 * min(entries) + rows * len(tops)


def test_a_temporary_file_has_no_name_and_needs_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mapped = temporary_map([np.eye(3, dtype=np.float64)], (3, 3), "vectors")
    assert not list(tmp_path.iterdir())
    assert mapped.dtype == np.float32
    np.testing.assert_array_equal(mapped, np.eye(3))
    with pytest.raises(InputError, match=r"vectors: .* GB are needed for a temporary file, .* TMPDIR"):
        temporary_map([], (2**40, 2**20), "vectors")
