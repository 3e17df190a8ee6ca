"""`vicinal evaluate`: what is measured, of what, how it is shown, mapped into memory and divided among processes."""

import csv
import io
import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tests.conftest import metrics_in, output, refused
from tests.data.benchmarks.published_more import MORE_WRITERS, accept_small_more
from tests.data.benchmarks.test_revisited import root as roxford_root
from vicinal.cli.main import main
from vicinal.data import Table, load_embeddings, load_table, save_embeddings
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
from vicinal.workflows.embedding_reader import EmbeddingReader
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
    monkeypatch.chdir(tmp_path)
    for name, noise in (("good", 0.8), ("fair", 1.1), ("bad", 1.6)):
        save_embeddings(f"{name}.parquet", embeddings(noise), TABLE)
    return tmp_path


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def row_of(results: dict[str, Any], **wanted: object) -> dict[str, Any]:
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
    assert "the column 'boxes' holds lists" in refused(capsys, "evaluate", "good.parquet", "--group_by", "boxes")


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
    assert (
        "different test sets, as in cross-validation: short.parquet against good.parquet: 66 images and 72" in said.err
    )
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
    found = json.loads(output(capsys, "evaluate", "new.npy", "--labels", "y.csv", "--json"))
    assert metrics_in(found) == evaluate(vectors, table).metrics
    output(capsys, "report", "old.npy", "new.npy", "--labels", "y.csv", "--out", "page.html", "--num_resamples", "20")
    assert Path("page.html").is_file()


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
    named = ["evaluate", "x.npy", "--label_column", "class"]
    assert "x.npy: no column 'class'; the columns are kind" in refused(capsys, *named)
    np.save("y.npy", np.arange(72))
    assert "has no columns; leave out" in refused(capsys, *named, "--labels", "y.npy")


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
    assert "already holds embeddings" in refused(capsys, "evaluate", "index", "--model", "model")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
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
    said = refused(capsys, *arguments, "--metrics", "MRR")
    assert "--metrics cannot be combined with the protocol of roxford" in said
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
        said = refused(capsys, "evaluate", "good.parquet", *more, "--per_query", "x.csv")
        assert "--per_query is for one source" in said
    assert not Path("x.csv").exists()


IN_BOTH_SPLITS = pytest.mark.filterwarnings("ignore:class '10' is in the splits train and test")


@IN_BOTH_SPLITS
@pytest.mark.parametrize(
    ("name", "metrics", "protocol"),
    [
        ("landmarks_v2", ["private/mAP@100", "public/mAP@100"], "listed positives"),
        ("met", ["GAP", "GAP-", "ACC"], "nearest-neighbor classifier"),
        ("roxford_1m", ["easy/mAP", "medium/mP@10", "hard/mP@1"], "revisited"),
    ],
)
def test_a_model_on_a_benchmark(
    models: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys,
    name: str,
    metrics: list[str],
    protocol: str,
) -> None:
    accept_small_more(monkeypatch)
    MORE_WRITERS[name](tmp_path)
    arguments = ["evaluate", models[0], "--images", name, "--root", tmp_path]
    found = json.loads(output(capsys, *arguments, "--json", "--intervals", "queries"))
    assert set(metrics) <= set(metrics_in(found))
    assert all(row["protocol"].startswith(protocol) for row in found["results"])
    assert all(row["low"] is not None for row in found["results"])
    for option in (["--recall_at", "1"], ["--metrics", "MRR"], ["--rerank", "contextual"]):
        assert "cannot be combined with the protocol of" in refused(capsys, *arguments, *option)


@IN_BOTH_SPLITS
def test_a_file_of_embeddings_needs_the_protocol_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    accept_small_more(monkeypatch)
    MORE_WRITERS["landmarks_v2"](tmp_path)
    table = load_table("landmarks_v2", root=tmp_path)
    vectors = np.eye(table.labels.max() + 1)[table.labels]
    for name in ("v.parquet", "v.npy"):
        save_embeddings(tmp_path / name, vectors, table)
        found = output(capsys, "evaluate", tmp_path / name, "--protocol", "landmarks_v2", "--split", "test", "--json")
        assert metrics_in(json.loads(found)) == {"private/mAP@100": 1.0, "public/mAP@100": 1.0}


ROWS, DIM = 100_000, 512  # 205 MB
FREE = 150 * 2**20  # that may be allocated, for tables and scores
# Evaluates small embeddings, which imports and compiles what is needed, and large ones with little memory.
PROGRAM = """
import re, resource, sys
from pathlib import Path
from vicinal.cli.main import main
small, free, *sources = sys.argv[1:]
assert main(["evaluate", small, "--json"]) == 0
for words in sources:
    used = int(re.search(r"VmData:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (used + int(free), resource.RLIM_INFINITY))
    assert main(["evaluate", *words.split(), "--recall_at", "1", "--json"]) == 0
"""


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def table(rows: int, queries: int) -> Table:
    number = np.arange(rows)
    return Table(pd.DataFrame({"label": number % 50, "is_query": number < queries, "is_gallery": number >= 10}))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_embeddings_are_never_copied_as_a_whole(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((ROWS, DIM), dtype=np.float32)
    many = table(ROWS, queries=60)
    for name in ("x.npy", "x.parquet"):
        save_embeddings(tmp_path / name, vectors, many)
    np.save(tmp_path / "half.npy", vectors.astype(np.float16))
    many.frame.assign(split=np.where(np.arange(ROWS) % 7, "test", "train")).to_parquet(tmp_path / "labels.parquet")
    save_embeddings(tmp_path / "small.parquet", vectors[:300], table(300, queries=60))
    half = f"--embeddings {tmp_path}/half.npy --labels {tmp_path}/labels.parquet --split test --dim 500"
    words = [tmp_path / "x.npy", tmp_path / "x.parquet", half]
    command = [sys.executable, "-c", PROGRAM, tmp_path / "small.parquet", FREE, *words]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment(TMPDIR=str(tmp_path)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"recall@1"') == 4


def test_mapped_embeddings_are_those_that_are_copied(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors, some = rng.standard_normal((300, 6)).astype(np.float32), table(300, queries=60)
    some = Table(some.frame.assign(split=rng.choice(["val", "test"], 300), label=np.arange(300) % 9))
    for name in ("x.npy", "x.parquet"):
        save_embeddings(tmp_path / name, vectors, some)
    np.save(tmp_path / "half.npy", vectors.astype("<f2"))
    np.save(tmp_path / "large.npy", vectors.astype(">f8"))
    np.save(tmp_path / "transposed.npy", np.asfortranarray(vectors))
    Index.build(vectors, some).save(tmp_path / "index")
    for path in sorted(tmp_path.iterdir()):
        if path.suffix in (".npy", ".parquet", ""):
            for options in ({}, {"where": "label < 4"}, {"dim": 3}):
                if "where" in options and path.name in ("half.npy", "large.npy", "transposed.npy"):
                    continue  # has no labels
                copied, mapped = (EmbeddingReader(mapped=each, **options).embed(str(path)) for each in (False, True))
                np.testing.assert_array_equal(mapped.vectors, copied.vectors, str(path))
                assert mapped.vectors.dtype == np.float32
                assert is_mapped(mapped.vectors), (path, options)
                assert not is_mapped(copied.vectors), (path, options)
                pd.testing.assert_frame_equal(mapped.table.frame, copied.table.frame)


def is_mapped(array: np.ndarray | None) -> bool:
    return isinstance(array, np.memmap) or (isinstance(array, np.ndarray) and is_mapped(array.base))


def run(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "vicinal", "evaluate", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())


@pytest.mark.slow
def test_two_processes_print_what_one_does(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 90, 900)
    vectors = (rng.standard_normal((90, 8))[labels] + rng.standard_normal((900, 8))).round(1)
    save_embeddings(tmp_path / "x.parquet", vectors, Table(pd.DataFrame({"label": labels, "coarse": labels // 10})))
    words = (tmp_path / "x.parquet", "--intervals", "--hierarchy", "--group_by", "coarse", "--json", "--per_query")
    outputs = []
    for number, more in enumerate(((), ("--devices", 2))):
        process = run(*words, tmp_path / f"{number}.csv", *more)
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        assert errors == f"wrote {tmp_path}/{number}.csv\n"
        outputs.append((json.loads(output), (tmp_path / f"{number}.csv").read_text()))
    assert outputs[0] == outputs[1]
