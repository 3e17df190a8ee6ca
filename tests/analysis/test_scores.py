from dataclasses import replace

import numpy as np
import pytest

from tests.report.page.cases import Case
from vicinal.analysis import class_scores, queries_by_score, query_changes, query_neighbors
from vicinal.data import Table
from vicinal.data.class_samples import round_robin
from vicinal.evaluation import evaluate
from vicinal.utils.errors import InputError


def test_class_scores_are_means(noisy: Case) -> None:
    scores = class_scores(noisy.evaluation, noisy.table)
    assert scores["recall@1"].is_monotonic_increasing
    assert list(scores) == ["label", "num_queries", *noisy.evaluation.per_query]
    for each in scores.to_dict("records"):
        mine = noisy.table.labels == each["label"]
        assert each["num_queries"] == 10
        for metric, values in noisy.evaluation.per_query.items():
            assert each[metric] == pytest.approx(values[mine].mean())


def test_best_and_worst_queries(noisy: Case) -> None:
    neighbors, scores = query_neighbors(noisy.vectors, noisy.table), noisy.evaluation.per_query["mAP@R"]
    labels = noisy.table.labels
    worst, best = (queries_by_score(neighbors, noisy.evaluation, ascending=up) for up in (True, False))
    assert worst["score"].is_monotonic_increasing
    assert best["score"].is_monotonic_decreasing
    for ties in (each for _, each in worst.groupby("score")):
        assert ties["similarity"].is_monotonic_decreasing
    for rows, extreme in ((worst["row"], np.min), (best["row"], np.max)):
        of_each_class = round_robin(rows.to_numpy(), labels)[:6]
        assert sorted(labels[of_each_class]) == list(range(6))
        assert [scores[row] for row in of_each_class] == [
            extreme(scores[labels == labels[row]]) for row in of_each_class
        ]


def test_changes_of_queries_are_matched_by_path_or_by_row(noisy: Case) -> None:
    frame = noisy.table.frame
    with_paths = Table(frame.assign(path=[f"/{row}.png" for row in range(60)]))
    rows = np.arange(60)[::-1][:40]
    part = with_paths.take(rows)
    before, after = noisy.evaluation, evaluate(noisy.vectors[rows], part, recall_at=[1])
    changes = query_changes(before, with_paths, after, part)
    assert (changes["row_before"] + changes["row_after"] == 59).all()
    assert len(changes) == 40
    assert (changes["score_before"] == before.per_query["mAP@R"][changes["row_before"]]).all()
    assert (changes["difference"] == changes["score_after"] - changes["score_before"]).all()
    same = query_changes(before, noisy.table, before, noisy.table)
    assert same["row_before"].tolist() == same["row_after"].tolist() == list(range(60))
    others = Table(frame.assign(label=frame["label"] + 1))
    assert query_changes(before, noisy.table, before, others).empty
    boxes = Table(with_paths.frame.assign(path="/a.png", x_1=range(60), y_1=0, x_2=range(1, 61), y_2=1))
    assert query_changes(before, boxes, before, boxes)["row_after"].tolist() == list(range(60))


def test_changes_need_a_score_in_both(noisy: Case) -> None:
    lonely = noisy.table.frame["label"].where(noisy.table.frame.index != 7, 99)
    table = Table(noisy.table.frame.assign(path=[f"/{row}.png" for row in range(60)]))
    other = Table(table.frame.assign(label=lonely))
    changes = query_changes(noisy.evaluation, table, evaluate(noisy.vectors, other), other)
    assert sorted(set(range(60)) - set(changes["row_before"])) == [7]
    recall_alone = replace(noisy.evaluation, per_query={"recall@1": noisy.evaluation.per_query["recall@1"]})
    assert query_changes(noisy.evaluation, table, recall_alone, table).empty


def test_an_evaluation_of_another_table_is_refused(noisy: Case) -> None:
    part = noisy.table.take(range(50))
    with pytest.raises(InputError, match="evaluation of 60 queries is not of this table, which has 50"):
        class_scores(noisy.evaluation, part)
    with pytest.raises(InputError, match="evaluation of 60 queries"):
        queries_by_score(query_neighbors(noisy.vectors[:50], part), noisy.evaluation)
