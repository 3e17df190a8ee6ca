from pathlib import Path

import numpy as np
import pytest

from tests.report.page.cases import Case, Page, results_of, write_run
from vicinal.analysis import query_changes
from vicinal.data import Table
from vicinal.evaluation import evaluate
from vicinal.evaluation.bootstrap import common_metrics
from vicinal.report import write_comparison_page
from vicinal.report.page.comparison import EvaluatedEmbeddings
from vicinal.utils.errors import InputError


@pytest.fixture(scope="module")
def sets(digits: Case) -> dict[str, EvaluatedEmbeddings]:
    noise = np.random.default_rng(0).normal(0, 6, digits.vectors.shape)
    return {"noisy <b>": EvaluatedEmbeddings(*noised(digits, noise)), "plain": EvaluatedEmbeddings(*digits)}


def noised(case: Case, noise: np.ndarray) -> Case:
    vectors = (case.vectors + noise).astype(np.float32)
    return Case(vectors, case.table, evaluate(vectors, case.table))


def test_differences_come_first(sets: dict[str, EvaluatedEmbeddings], tmp_path) -> None:
    """With p-values where there are some, and clear where the interval leaves out zero."""
    apart = {"recall@1": (0.01, 0.2), "recall@2": (-0.2, -0.01), "mAP": (-0.1, 0.1)}
    results = results_of(sets, {"plain": {"mAP": (0.5, 0.6)}}, {"plain": apart}, confidence_level=0.9)
    frame = results.frame
    frame.loc[(frame["model"] == "plain") & (frame["metric"] == "recall@1"), "p_value"] = 0.0123
    write_comparison_page(tmp_path / "page.html", sets, results=results)
    page = Page(tmp_path / "page.html")
    assert page.sections == ["metrics", "changes", "similarities", "data"]
    assert page.unclosed == []
    before, after = (each.evaluation.metrics["recall@1"] for each in sets.values())
    for text in (f"{100 * (after - before):+.2f}", "+1.00 to +20.00", "50.00 to 60.00 %", "90 % intervals",
                 "metricplain − noisy <b>noisy <b>plain", "so large a difference (permutation test)"):  # fmt: skip
        assert text in page.words
    shared = common_metrics(*(each.evaluation for each in sets.values()))
    assert page.words.count("★") == len(shared) + 1  # and the caption
    assert page.words.count("p = 0.012") == 1
    assert [page.words.count(word) for word in ("▲ better", "▼ worse", "not clear")] == [1, 1, 1]


def test_queries_that_changed(sets: dict[str, EvaluatedEmbeddings], tmp_path) -> None:
    before, after = sets.values()
    differences = query_changes(before.evaluation, before.table, after.evaluation, after.table)["difference"]
    write_comparison_page(tmp_path / "page.html", sets)
    page = Page(tmp_path / "page.html")
    assert "permutation test" not in page.words
    better, worse = (differences > 0).sum(), (differences < 0).sum()
    assert f"{better} of 200 queries got better, {worse} worse" in page.words
    assert f"{100 * differences.max():+.1f}" in page.words
    assert len([item for item in page.all("li") if "data-row" in item]) == min(better, 10) + min(worse, 10)


def test_settings_that_differ(sets: dict[str, EvaluatedEmbeddings], tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name) for name in ("a", "b")]
    (runs[1] / "recipe.yaml").write_text("loss: {margin: 0.2, scale: 3}\n")
    with_runs = {name: each._replace(run=run) for (name, each), run in zip(sets.items(), runs, strict=True)}
    write_comparison_page(tmp_path / "page.html", with_runs)
    page = Page(tmp_path / "page.html")
    assert page.sections == ["metrics", "changes", "similarities", "recipe", "curves", "data"]
    assert "2 of 2 settings differ" in page.words
    assert "loss.margin0.10.2" in page.words


@pytest.mark.parametrize("without_paths", [False, True])
def test_sets_of_other_queries_have_no_differences(
    sets: dict[str, EvaluatedEmbeddings], tmp_path, without_paths: bool
) -> None:
    first = sets["plain"]
    if without_paths:
        first = first._replace(table=Table(first.table.frame.drop(columns="path")))
    small = EvaluatedEmbeddings(first.vectors[:150], first.table.take(np.arange(150)), first.evaluation)
    small = small._replace(evaluation=evaluate(small.vectors, small.table))
    both = {"all": first, "part": small}
    write_comparison_page(tmp_path / "page.html", both, results=results_of(both, {"all": {"mAP": (0.5, 0.6)}}))
    words = Page(tmp_path / "page.html").words
    assert "No difference of part to all: 150 queries against 200." in words
    assert "★" not in words
    assert "part − all" not in words
    assert "differences to" not in words
    assert "Small numbers are 95 % intervals." in words  # those of the values


def test_bad_input(sets: dict[str, EvaluatedEmbeddings], tmp_path) -> None:
    with pytest.raises(InputError, match="1 evaluated sets; a comparison needs two"):
        write_comparison_page(tmp_path / "page.html", {"plain": sets["plain"]})
    for some in ({**sets, "other": sets["plain"]}, {"plain": sets["plain"]}):
        with pytest.raises(InputError, match="is not both in the sets and in the results"):
            write_comparison_page(tmp_path / "page.html", sets, results=results_of(some))
    assert list(tmp_path.iterdir()) == []
