"""`vicinal evaluate` and `vicinal whiten`: what is measured, of what, and how it is shown."""

from __future__ import annotations

import csv
import io
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.conftest import metrics_in, output, refused
from tests.data.benchmarks.test_revisited import root as roxford_root
from vicinal.cli.main import main
from vicinal.data import Table, load_embeddings, save_embeddings
from vicinal.evaluation import (
    Resampling,
    cluster,
    confidence_intervals,
    evaluate,
    evaluate_vehicle_id,
    metrics_by,
    paired_differences,
    summarize_runs,
)
from vicinal.models import Embedder
from vicinal.retrieval import ContextualReranking, Index
from vicinal.workflows.evaluate import check_same_images, per_query_frame

roxford = pytest.fixture(roxford_root.__wrapped__)  # type: ignore[attr-defined]


def embeddings(noise: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(99).normal(size=(12, 8)).repeat(6, axis=0)
    return (centers + noise * rng.normal(size=(72, 8))).astype(np.float32)


TABLE = Table(
    pd.DataFrame(
        {
            "path": [f"{label}/{number}.jpg" for label in range(12) for number in range(6)],
            "label": np.arange(72) // 6,
            "coarse": np.arange(72) // 18,
            "shop": np.array(["a", "b"])[np.arange(72) % 2],
            "boxes": [[0, 1]] * 72,
        }
    )
)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three files of embeddings, good to bad, here."""
    monkeypatch.chdir(tmp_path)
    for name, noise in (("good", 0.8), ("fair", 1.1), ("bad", 1.6)):
        save_embeddings(f"{name}.parquet", embeddings(noise), TABLE)
    return tmp_path


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def row_of(results: dict[str, Any], **wanted: object) -> dict[str, Any]:
    """The one row in the JSON of results that has these values."""
    (row,) = (row for row in results["results"] if all(row[name] == value for name, value in wanted.items()))
    return row


def test_everything_that_can_be_asked_of_one_source(files: Path, capsys) -> None:
    asked = ["--metrics", "precision@3", "MRR", "--hierarchy", "--clusters", "--intervals", "--group_by", "shop"]
    found = json.loads(output(capsys, "evaluate", "good.parquet", *asked, "--seed", 3, "--json"))
    vectors, table = load_embeddings("good.parquet")
    expected = evaluate(vectors, table, metrics=["precision@3", "MRR"], hierarchy=True)
    assert metrics_in(found) == {**expected.metrics, **cluster(vectors, table, seed=3).metrics}
    whole = row_of(found, label_level="coarse", metric="mAP", group=None)
    low, high = confidence_intervals(expected, table, Resampling(seed=3)).loc["coarse/mAP"]
    assert (whole["low"], whole["high"]) == (low, high)
    assert row_of(found, metric="NMI")["low"] is None
    assert (found["resample_by"], found["confidence_level"]) == ("classes", 0.95)
    groups = metrics_by(expected, table, "shop")
    for name in ("a", "b"):
        row = row_of(found, group=name, metric="MRR", label_level="label")
        assert (row["value"], row["group_by"]) == (groups.loc[name, "MRR"], "shop")
    lines = rows(output(capsys, "evaluate", "good.parquet", *asked, "--seed", 3, "--csv"))
    assert [{name: value or None for name, value in line.items()} for line in lines] == [
        {name: None if value is None else str(value) for name, value in row.items()} for row in found["results"]
    ]
    text = output(capsys, "evaluate", "good.parquet", *asked)
    assert "95 % confidence intervals in brackets, from resampled classes" in text
    assert "by shop: the weakest of 2, in %" in text
    assert "coarse/mAP@R" in text


def test_intervals_by_queries_or_with_another_confidence_are_narrower(files: Path, capsys) -> None:
    def width(*more: object) -> float:
        row = row_of(json.loads(output(capsys, "evaluate", "bad.parquet", "--json", *more)), metric="mAP")
        return row["high"] - row["low"]

    by_classes, by_queries = width("--intervals"), width("--intervals", "queries")
    assert by_queries < by_classes
    assert width("--intervals", "--confidence_level", 0.5) < by_classes


def test_models_are_compared_on_the_same_queries(files: Path, capsys) -> None:
    arguments = ["evaluate", "bad.parquet", "good.parquet", "--compare"]
    found = json.loads(output(capsys, *arguments, "--json"))
    bad, good = (evaluate(*load_embeddings(f"{name}.parquet")) for name in ("bad", "good"))
    wanted = paired_differences(bad, good, TABLE).loc["mAP@R"].to_dict()
    row = row_of(found, model="good.parquet", metric="mAP@R")
    assert {name: row[name] for name in wanted} == wanted
    assert row["difference"] > 0
    assert row["p_value"] < 0.05
    assert found["baseline"] == "bad.parquet"
    assert "differences to bad.parquet in percentage points" in output(capsys, *arguments)
    reranked = json.loads(output(capsys, *arguments, "--rerank", "contextual", "--json"))
    assert {row["stage"] for row in reranked["results"]} == {"reranked"}
    assert reranked["results"][0]["method"].startswith("ContextualReranking(")


def test_only_the_same_images_are_compared(files: Path, capsys) -> None:
    save_embeddings("short.parquet", embeddings(1)[:66], TABLE.take(np.arange(66)))
    save_embeddings("other.parquet", embeddings(1), Table(TABLE.frame.assign(label=np.arange(72) % 12)))
    save_embeddings("moved.parquet", embeddings(1), Table(TABLE.frame.assign(path=TABLE.frame["path"][::-1].tolist())))
    for name, message in (
        ("short", "short.parquet against good.parquet: 66 images and 72; a comparison needs the same images"),
        ("other", "other.parquet against good.parquet: row 1 has another label"),
        ("moved", "moved.parquet against good.parquet: row 0 has another path"),
    ):
        assert message in refused(capsys, "evaluate", "good.parquet", f"{name}.parquet", "--compare")
    elsewhere = Table(TABLE.frame.assign(path="copy/" + TABLE.frame["path"]))  # the same files in another folder
    check_same_images(TABLE, elsewhere, "")


def test_runs_are_averaged(files: Path, capsys) -> None:
    names = ["good.parquet", "fair.parquet", "bad.parquet"]
    found = json.loads(output(capsys, "evaluate", *names, "--average", "--json"))
    wanted = summarize_runs([evaluate(*load_embeddings(name)).metrics for name in names]).loc["mAP"].to_dict()
    row = row_of(found, model=None, metric="mAP")
    assert {name: row[name] for name in wanted} == wanted
    assert metrics_in(found, model="bad.parquet") == evaluate(*load_embeddings("bad.parquet")).metrics
    save_embeddings("short.parquet", embeddings(1)[:66], TABLE.take(np.arange(66)))
    assert main(["evaluate", "good.parquet", "short.parquet", "--average"]) == 0
    said = capsys.readouterr()
    assert "other test sets, as in cross-validation: short.parquet against good.parquet: 66 images and 72" in said.err
    assert "mean of 2 runs ± standard deviation" in said.out


def test_several_sources_are_shown_one_after_the_other(files: Path, capsys) -> None:
    arguments = ["evaluate", "good.parquet", "bad.parquet"]
    found = json.loads(output(capsys, *arguments, "--json"))
    for name in arguments[1:]:
        assert metrics_in(found, model=name) == evaluate(*load_embeddings(name)).metrics
    text = output(capsys, *arguments)
    assert text.index("good.parquet") < text.index("recall@1") < text.index("bad.parquet")
    lines = rows(output(capsys, *arguments, "--rerank", "contextual", "--csv"))
    assert {(line["model"], line["stage"]) for line in lines} == set(product(arguments[1:], ("plain", "reranked")))


def test_reranking_is_shown_before_and_after(files: Path, capsys) -> None:
    arguments = ["evaluate", "bad.parquet", "--rerank", "contextual", "--rerank.k", "6"]
    found = json.loads(output(capsys, *arguments, "--intervals", "--json"))
    vectors, table = load_embeddings("bad.parquet")
    assert metrics_in(found) == evaluate(vectors, table).metrics
    assert metrics_in(found, "reranked") == evaluate(vectors, table, rerank=ContextualReranking(k=6)).metrics
    assert row_of(found, stage="reranked", metric="mAP")["p_value"] > 0
    plain = json.loads(output(capsys, *arguments, "--json"))
    row = row_of(plain, stage="reranked", metric="mAP")
    assert (row["low"], row["p_value"]) == (None, None)
    assert row["difference"] == row["value"] - row_of(plain, stage="plain", metric="mAP")["value"]


def test_embeddings_and_labels_from_two_files(files: Path, capsys) -> None:
    vectors, table = load_embeddings("good.parquet")
    np.save("x.npy", vectors)
    pd.DataFrame({"label": table.frame["label"]}).to_csv("y.csv", index=False)
    pd.DataFrame({"label": table.frame["label"]}).to_parquet("y.parquet")
    np.save("y.npy", table.frame["label"].to_numpy())
    expected = evaluate(vectors, table).metrics
    for labels in ("y.csv", "y.parquet", "y.npy"):
        found = json.loads(output(capsys, "evaluate", "--embeddings", "x.npy", "--labels", labels, "--json"))
        assert metrics_in(found) == expected
    Path("x.csv").write_text("path\nof-something-else.jpg\n")  # does not count
    found = json.loads(output(capsys, "evaluate", "--embeddings", "x.npy", "--labels", "y.csv", "--json"))
    assert metrics_in(found) == expected
    found = json.loads(output(capsys, "evaluate", "--embeddings", "good.parquet", "--labels", "y.csv", "--json"))
    assert metrics_in(found) == expected
    Path("x.csv").unlink()
    assert "x.npy has no labels; give them with --labels FILE, or in x.table.csv" in refused(
        capsys, "evaluate", "x.npy"
    )
    np.save("few.npy", np.arange(71))
    np.save("real.npy", np.zeros((72, 2)))
    given = ["evaluate", "--embeddings", "x.npy"]
    assert "few.npy has 71 rows, x.npy 72 embeddings" in refused(capsys, *given, "--labels", "few.npy")
    assert "real.npy: float64 [72, 2]; labels are" in refused(capsys, *given, "--labels", "real.npy")
    assert "--embeddings is a file of vectors; give their labels" in refused(capsys, *given)
    assert "leave out the source" in refused(capsys, *given, "--labels", "y.csv", "good.parquet")
    assert "no source: name one" in refused(capsys, "evaluate")
    assert "good.parquet is named twice" in refused(capsys, "evaluate", "good.parquet", "good.parquet")


def test_one_file_of_labels_for_several_files_of_embeddings(files: Path, capsys) -> None:
    vectors, table = load_embeddings("good.parquet")
    np.save("old.npy", vectors[:, :1])
    np.save("new.npy", vectors)
    pd.DataFrame({"label": table.frame["label"]}).to_csv("y.csv", index=False)
    found = json.loads(output(capsys, "evaluate", "old.npy", "new.npy", "--labels", "y.csv", "--compare", "--json"))
    assert {row["model"] for row in found["results"]} == {"old.npy", "new.npy"}
    assert metrics_in(json.loads(output(capsys, "evaluate", "new.npy", "--labels", "y.csv", "--json"))) == (
        evaluate(vectors, table).metrics
    )
    output(capsys, "report", "old.npy", "new.npy", "--labels", "y.csv", "--out", "page.html", "--num_resamples", "20")
    assert Path("page.html").is_file()
    assert "y.csv is not one" in refused(capsys, "evaluate", "y.csv", "--labels", "y.csv")
    assert "missing.csv: no such file" in refused(capsys, "evaluate", "new.npy", "--labels", "missing.csv")


def test_labels_of_stored_embeddings_in_a_column_of_another_name(files: Path, capsys) -> None:
    vectors, table = load_embeddings("good.parquet")
    np.save("x.npy", vectors)
    pd.DataFrame({"class": table.frame["label"], "label": 0}).to_csv("y.csv", index=False)
    expected = evaluate(vectors, table).metrics
    for given in (["--embeddings", "x.npy", "--labels", "y.csv"], ["x.npy", "--labels", "y.csv"]):
        found = json.loads(output(capsys, "evaluate", *given, "--label_column", "class", "--json"))
        assert metrics_in(found) == expected, given
    Path("y.csv").rename("x.table.csv")
    assert metrics_in(json.loads(output(capsys, "evaluate", "x.npy", "--label_column", "class", "--json"))) == expected
    assert metrics_in(json.loads(output(capsys, "evaluate", "good.parquet", "--label_column", "class", "--json"))) == (
        expected  # what was stored under another name is called label
    )
    pd.DataFrame({"kind": table.frame["label"]}).to_csv("x.table.csv", index=False)
    assert "x.npy: no column 'class'; the columns are kind" in refused(
        capsys, "evaluate", "x.npy", "--label_column", "class"
    )
    np.save("y.npy", np.arange(72))
    assert "has no columns; leave out" in refused(
        capsys, "evaluate", "x.npy", "--labels", "y.npy", "--label_column", "class"
    )


def test_an_index_is_measured_without_what_was_deleted(files: Path, capsys) -> None:
    vectors, table = load_embeddings("good.parquet")
    index = Index.build(vectors, table, "hnsw", model_fingerprint="0123")
    index.delete([0, 1])
    index.save("index")
    found = json.loads(output(capsys, "evaluate", "index", "--json"))
    expected = evaluate(vectors[2:], table.take(np.arange(2, 72)))
    assert metrics_in(found) == pytest.approx(expected.metrics)
    assert Index.load("index").fingerprint() == "0123"
    Path("model").mkdir()
    assert "holds embeddings already" in refused(capsys, "evaluate", "index", "--model", "model")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    import torch

    folder = tmp_path_factory.mktemp("models")
    for name in ("one", "two"):
        torch.manual_seed(len(name) + ord(name[0]))
        Embedder("test_resnet", dim=8, pretrained=False).save_pretrained(folder / name)
    return [str(folder / name) for name in ("one", "two")]


def test_roxford_by_name(roxford: Path, models: list[str], tmp_path: Path, capsys) -> None:
    arguments = ["evaluate", "roxford", "--root", roxford, "--model", models[0], "--scales", "1", "--max_size", "64"]
    found = json.loads(output(capsys, *arguments, "--json", "--intervals", "queries"))
    assert {row["protocol"] for row in found["results"]} == {"revisited"}
    assert {"easy/mAP", "medium/mP@10", "hard/mP@1"} <= set(metrics_in(found))
    assert row_of(found, label_level="hard", metric="mAP")["low"] is not None
    compared = ["evaluate", *models, "--images", "roxford", "--root", roxford, "--compare"]
    assert "medium/mAP" in output(capsys, *compared)
    assert "--metrics cannot be combined with the protocol of roxford" in refused(
        capsys, *arguments, "--metrics", "MRR"
    )
    save_embeddings(tmp_path / "v.parquet", embeddings(1), TABLE)
    other = refused(capsys, "evaluate", tmp_path / "v.parquet", "--protocol", "roxford", "--root", roxford)
    assert "72 embeddings, but the ground truth has 3 gallery images and then 2 queries" in other


def test_rows_that_are_neither_query_nor_gallery_do_not_count(files: Path, capsys) -> None:
    side = np.arange(72) % 3
    frame = TABLE.frame.assign(is_query=side == 0, is_gallery=side == 1)
    save_embeddings("all.parquet", embeddings(1.0), Table(frame))
    save_embeddings("two.parquet", embeddings(1.0)[side < 2], Table(frame[side < 2].reset_index(drop=True)))
    every, some = (json.loads(output(capsys, "evaluate", f"{name}.parquet", "--clusters", "--json"))
                   for name in ("all", "two"))  # fmt: skip
    assert metrics_in(every) == metrics_in(some)


def test_what_may_mislead_is_said(files: Path, capsys) -> None:
    assert main(["evaluate", "good.parquet", "--intervals"]) == 0
    assert "confidence intervals from 12 classes are too narrow" in capsys.readouterr().err


def test_vehicle_ids_protocol(files: Path, capsys) -> None:
    asked = ["evaluate", "bad.parquet", "--protocol", "vehicle_id", "--group_by", "shop"]
    found, expected = json.loads(output(capsys, *asked, "--json")), evaluate_vehicle_id(embeddings(1.6), TABLE)
    assert metrics_in(found) == expected.metrics
    row = row_of(found, metric="mAP", group=None)
    assert (row["std"], row["num_repeats"]) == (expected.std["mAP"], 10)
    assert {row["group"] for row in found["results"]} == {None, "a", "b"}
    assert f" % ± {100 * expected.std['mAP']:.2f}" in output(capsys, *asked)
    frame = per_query_frame(expected, TABLE)
    np.testing.assert_array_equal(frame["recall@1"], expected.per_query["recall@1"])
    assert frame["label"].tolist() == TABLE.labels[expected.query_indices].tolist()
    Path("bad.parquet").rename("vehicle_id.parquet")
    other = json.loads(output(capsys, "evaluate", "vehicle_id.parquet", "--json"))
    assert {row["protocol"] for row in other["results"]} == {"leave-one-out"}


def test_scores_of_every_query_in_a_file(files: Path, capsys) -> None:
    output(capsys, "evaluate", "good.parquet", "--per_query", "q.parquet")
    frame = pd.read_parquet("q.parquet")
    expected = evaluate(*load_embeddings("good.parquet"))
    np.testing.assert_array_equal(frame["mAP"], expected.per_query["mAP"])
    assert frame["label"].tolist() == TABLE.frame["label"].tolist()
    save_embeddings("own.parquet", embeddings(1.0), Table(TABLE.frame.drop(columns="boxes").assign(mAP=7)))
    output(capsys, "evaluate", "own.parquet", "--per_query", "own.csv")
    assert set(pd.read_csv("own.csv")["mAP_of_table"]) == {7}
    for more in (["--rerank", "contextual"], ["bad.parquet"], ["bad.parquet", "--compare"]):
        assert "--per_query is for one source" in refused(
            capsys, "evaluate", "good.parquet", *more, "--per_query", "x.csv"
        )
    assert not Path("x.csv").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--metrics", "accuracy"], "unknown metric 'accuracy'"),
        (["--group_by", "camera"], "the table has no column 'camera'"),
        (["--group_by", "shop", "--rerank", "contextual"], "--group_by is for single sources without re-ranking"),
        (["--clusters", "--rerank", "contextual"], "--clusters is about embeddings without re-ranking"),
        (["--per_query", "x.txt"], "name a file ending in .csv or .parquet"),
        (["--metrics", "precision@07"], "unknown metric 'precision@07'"),
        (["--scales", "1"], "leave out --scales"),
        (["--images", "bad.parquet"], "bad.parquet holds embeddings, not images"),
        (["--group_by", "boxes"], "the column 'boxes' holds lists"),
        (["--intervals", "--confidence_level", "1.5"], "confidence_level = 1.5 is invalid"),
        (["bad.parquet", "--compare", "--group_by", "shop"], "--group_by is for single sources"),
        (["bad.parquet", "--average", "--intervals"], "leave out --intervals"),
        (["--compare"], "name two or more"),
        (["--average"], "name two or more"),
    ],
)
def test_what_cannot_be_asked(more: list[str], message: str, files: Path, capsys) -> None:
    error = refused(capsys, "evaluate", "good.parquet", *more)
    assert message in error
    assert len(error.splitlines()) == 1
