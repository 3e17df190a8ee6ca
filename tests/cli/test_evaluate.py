"""`vicinal evaluate`: any source, re-ranking and refinement, and its flags."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.conftest import metrics_in, output, refused
from vicinal.cli.main import main
from vicinal.data import Table, load_table, save_embeddings


@pytest.mark.parametrize("source", ["run", "embeddings.npy", "photos"])
def test_it_takes_any_source(source: str, run: Path, photos: Path, tmp_path: Path, capsys) -> None:
    paths = {"run": run, "photos": photos}
    more = ["--model", run / "model"] if source == "photos" else []
    if source.startswith("embeddings"):
        assert output(capsys, "embed", run, "--out", tmp_path / source).strip() == str(tmp_path / source)
    path = paths.get(source, tmp_path / source)
    result = json.loads(output(capsys, "evaluate", path, *more, "--json", "--recall-at", "1", "3"))
    assert set(metrics_in(result)) == {"recall@1", "recall@3", "mAP@R", "R-precision", "mAP"}
    assert result["results"][0]["num_queries"] == 48
    if source != "photos":
        test = json.loads(output(capsys, "evaluate", path, "--split", "test", "--json"))
        assert test["results"][0]["num_queries"] == 12
    assert "recall@1" in output(capsys, "evaluate", path, *more)


def test_it_shows_metrics_before_and_after_refinement(run: Path, refiner: Path, tmp_path: Path, capsys) -> None:
    plain = metrics_in(json.loads(output(capsys, "evaluate", run, "--json")))
    result = json.loads(output(capsys, "evaluate", run, "--refiner", refiner, "--json"))
    assert metrics_in(result) == plain != metrics_in(result, "refined")
    assert result["results"][-1]["method"] == "Refinement(depth=2, neighbors=4, context='everything')"
    text = output(capsys, "evaluate", run, "--refiner", refiner).splitlines()
    assert text[1] == "refined: Refinement(depth=2, neighbors=4, context='everything')"
    assert text[3].split() == ["plain", "refined", "difference"]
    both = json.loads(output(capsys, "evaluate", run, "--refiner", refiner, "--rerank", "query-expansion", "--json"))
    assert both["results"][-1]["method"].endswith("context='everything'), then QueryExpansion(n=10, alpha=3.0)")
    assert metrics_in(both, "reranked") != metrics_in(result, "refined")
    frame, is_query = pd.DataFrame({"label": np.arange(48) % 8}), np.arange(48) % 3 == 0
    vectors = np.random.default_rng(0).normal(size=(48, 16)).astype(np.float32)
    save_embeddings(tmp_path / "v.parquet", vectors, Table(frame.assign(is_query=is_query, is_gallery=~is_query)))
    flags = ["evaluate", tmp_path / "v.parquet", "--refiner", refiner, "--json", "--context"]
    everything, gallery = (json.loads(output(capsys, *flags, context)) for context in ("everything", "gallery"))
    assert metrics_in(everything) == metrics_in(gallery)
    assert metrics_in(everything, "refined") != metrics_in(gallery, "refined")


def test_a_refiner_for_embeddings_of_an_unknown_model(run: Path, refiner: Path, tmp_path: Path, capsys) -> None:
    output(capsys, "embed", run, "--split", "test", "--out", tmp_path / "v.npy")
    assert main(["evaluate", str(tmp_path / "v.npy"), "--refiner", str(refiner)]) == 0
    message = f"the model of the embeddings in {tmp_path / 'v.npy'} is unknown; the refiner is for those of"
    assert message in capsys.readouterr().err


def test_it_says_how_many_labels_are_noisy_and_that_training_images_are_evaluated(tmp_path: Path, capsys) -> None:
    frame = pd.DataFrame({"label": list("aabbccddeeff"), "split": ["train"] * 6 + ["test"] * 6})
    frame["noisy_label"] = np.arange(12) == 5
    source = tmp_path / "v.npy"
    save_embeddings(source, np.eye(12, dtype=np.float32), Table(frame))  # the table is a CSV file
    messages = []
    for more in ([], ["--split", "test"]):
        assert main(["evaluate", str(source), *more]) == 0
        messages.append(capsys.readouterr().err)
    all_splits, *noisy = messages[0].splitlines()
    assert "--split test evaluates the test images" in all_splits
    assert noisy == [f"{source}: 1 of the 12 evaluated labels were made noisy on purpose (noisy_label)"]
    assert messages[1] == ""


def test_open_set_identification_has_intervals_and_needs_a_calibration(tmp_path: Path, capsys) -> None:
    rng, labels = np.random.default_rng(0), np.arange(24).repeat(5)
    vectors = rng.normal(size=(24, 8))[labels] + 0.4 * rng.normal(size=(120, 8))
    file = tmp_path / "v.parquet"
    save_embeddings(file, vectors.astype(np.float32), Table(pd.DataFrame({"label": labels})))
    message = "has no calibration, which --open_set needs; make one: vicinal calibrate"
    assert message in refused(capsys, "evaluate", file, "--open_set")
    output(capsys, "calibrate", file, "--out", tmp_path / "c.json", "--false_accept_rate", 0.1)
    words = ["evaluate", file, "--open_set", "--calibration", tmp_path / "c.json", "--intervals", "--json"]
    rows = {row["metric"]: row for row in json.loads(output(capsys, *words))["results"]}
    for name in ("closed_set_accuracy", "identification_rate", "known_as_new", "unknown_rate", "new_ARI", "new_F1"):
        assert 0 <= rows[name]["low"] <= rows[name]["value"] <= rows[name]["high"] <= 1, name
    assert rows["closed_set_accuracy"]["value"] > 0.8
    assert rows["new_F1"]["value"] > 0.5
    for flags, message in (
        (["--calibration", "c.json"], "calibration is for open_set"),
        (["--open_set", "--known_fraction", "1"], "known_fraction = 1.0 is invalid"),
        (["--open_set", "--rerank", "contextual"], "--open_set is for embeddings without re-ranking"),
        (["--open_set", "--calibration", "lost.json"], "lost.json"),
    ):
        said = refused(capsys, "evaluate", file, *flags)
        assert message in said
        assert "\n" not in said


def test_local_features_with_the_weight_of_the_validation_classes(photos: Path, run: Path, tmp_path, capsys) -> None:
    frame = load_table(str(photos)).frame
    classes = sorted(frame["label"].unique())
    frame["split"] = np.where(frame["label"].isin(classes[::2]), "val", "test")
    frame.to_csv(tmp_path / "table.csv", index=False)
    flags = ["evaluate", run, "--images", tmp_path / "table.csv", "--split", "test", "--rerank", "local", "--json"]
    flags += ["--local.size", "64", "--local.dim", "8"]
    assert main([str(flag) for flag in flags]) == 0
    printed = capsys.readouterr()
    assert "local features: 16 patches of 8 bytes, 0.0 MiB for 24 images; comparing a query with 24 " in printed.err
    assert re.search(r"by \d+ validation classes: weight [\d.]+ \(", printed.err)
    assert "overestimated" not in printed.err
    assert main([str("val" if flag == "test" else flag) for flag in flags]) == 0
    assert f"{run}: the weight was chosen on images that are evaluated here" in capsys.readouterr().err
    given = json.loads(output(capsys, *flags, "--rerank.weight", "3", "--rerank.min_similarity", "0.1"))
    method = "LocalReranking(k=100, weight=3.0, min_similarity=0.1, geometric=False)"
    assert {row["method"] for row in given["results"]} == {None, method}
    assert set(metrics_in(given, "reranked")) == set(metrics_in(given))
