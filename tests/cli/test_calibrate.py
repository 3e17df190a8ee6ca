"""`vicinal calibrate`, and searches that say match or none."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.conftest import output, refused
from vicinal.cli.main import main
from vicinal.data import Table, load_embeddings, save_embeddings
from vicinal.retrieval import Calibration, Index
from vicinal.workflows.calibration_places import stored_calibration


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Embeddings of 30 validation classes and 10 test classes in a file."""
    rng, labels = np.random.default_rng(0), np.arange(40).repeat(6)
    vectors = rng.normal(size=(40, 16))[labels] + 0.4 * rng.normal(size=(240, 16))
    split = np.where(labels < 30, "val", "test")
    frame = pd.DataFrame({"label": labels, "split": split, "path": [f"{i}.png" for i in range(240)]})
    save_embeddings(tmp_path_factory.mktemp("e") / "v.parquet", vectors, Table(frame))
    return tmp_path_factory.getbasetemp() / "e0" / "v.parquet"


def test_calibrates_on_the_validation_split(embeddings: Path, tmp_path: Path, capsys) -> None:
    facts = json.loads(output(capsys, "calibrate", embeddings, "--out", tmp_path / "c.json", "--json"))
    assert (facts["num_queries"], facts["num_classes"], facts["false_accept_rate"]) == (180, 30, 0.01)
    assert Calibration.load(tmp_path / "c.json").threshold == facts["threshold"]
    text = output(capsys, "calibrate", embeddings, "--split", "all", "--false-accept-rate", "0.1", "--score", "margin")
    assert text.startswith("accept a best match of margin 0.")
    assert "10.00 % asked for" in text
    assert "from 240 queries of 40 classes, 240 gallery images" in text


def test_a_table_of_rates_and_other_things(embeddings: Path, tmp_path: Path, capsys) -> None:
    first = json.loads(output(capsys, "calibrate", embeddings, "--json"))["operating_points"]
    assert [each["false_accept_rate"] for each in first] == [0.01, 0.05, 0.1]
    assert first[0]["threshold"] > first[1]["threshold"] > first[2]["threshold"]
    assert first[0]["false_reject_rate"] >= first[1]["false_reject_rate"] >= first[2]["false_reject_rate"]
    vectors = load_embeddings(embeddings)[0][:40] + 0.2 * np.random.default_rng(1).normal(size=(40, 16))
    np.save(tmp_path / "others.npy", vectors.astype(np.float32))  # which look like ours
    calibrated = json.loads(output(capsys, "calibrate", embeddings, "--ood", tmp_path / "others.npy", "--json"))
    points = calibrated["operating_points"]
    assert calibrated["threshold"] == points[0]["threshold"] > first[0]["threshold"]
    assert all(each["ood_accepted"] <= each["false_accept_rate"] for each in points)
    assert main(["calibrate", str(embeddings), "--ood", str(tmp_path / "others.npy")]) == 0
    messages = capsys.readouterr()
    assert "the model is too weak to decide at 1 %" in messages.err
    assert [line.split()[:2] for line in messages.out.splitlines()[-3:]] == [["1.0", "%"], ["5.0", "%"], ["10.0", "%"]]
    assert "out-of-distribution accepted" in messages.out


def test_nothing_is_kept_without_a_place(embeddings: Path, capsys) -> None:
    assert main(["calibrate", str(embeddings), "--false_accept_rate", "0.001"]) == 0
    messages = capsys.readouterr().err
    assert "calibration not stored; give --index FOLDER or --out FILE.json" in messages
    assert "less than one in 180 queries" in messages
    assert "no such folder" in refused(capsys, "calibrate", embeddings, "--images", "digits", "--model", "m")


def test_a_run_keeps_its_calibration_in_its_model_folder(run: Path, photos: Path, tmp_path: Path, capsys) -> None:
    output(capsys, "calibrate", run, "--split", "all", "--false_accept_rate", "0.2")
    kept = run / "model" / "calibration.json"
    calibration = Calibration.load(kept)
    assert calibration.fingerprint is not None
    output(capsys, "index", "build", tmp_path / "i", photos, "--model", run)
    assert Index.load(tmp_path / "i").calibration == calibration
    facts = json.loads(output(capsys, "index", "list", tmp_path / "i", "--facts", "--json"))
    assert facts["calibrated false_accept_rate"] == 0.2
    output(capsys, "calibrate", run / "model", "--images", photos, "--index", tmp_path / "i")
    assert Index.load(tmp_path / "i").calibration == Calibration.load(kept)
    assert stored_calibration(str(run), "another") is None
    assert f"{kept} is not used: the calibration is for embeddings of the model" in capsys.readouterr().err
    kept.unlink()


def test_a_gallery_of_the_size_in_use(embeddings: Path, tmp_path: Path, capsys) -> None:
    index = tmp_path / "i"
    output(capsys, "index", "build", index, embeddings)
    few = ["--where", "label < 9", "--out", tmp_path / "c.json", "--json"]
    assert json.loads(output(capsys, "calibrate", embeddings, *few))["num_gallery"] == 54
    assert json.loads(output(capsys, "calibrate", embeddings, *few, "--gallery", index))["num_gallery"] == 240
    assert main(["calibrate", str(embeddings), "--where", "label < 9", "--index", str(index)]) == 0
    told = f"{index} has 240 images, the calibration 54: in a larger gallery unknown images find more similar ones"
    assert told in capsys.readouterr().err
    main(["search", str(index), str(embeddings), "-k", "1"])
    assert told in capsys.readouterr().err
    output(capsys, "calibrate", embeddings, "--where", "label < 9", "--index", index, "--gallery", index)
    main(["search", str(index), str(embeddings), "-k", "1"])
    assert told not in capsys.readouterr().err


def test_search_says_match_or_none(embeddings: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "i"
    output(capsys, "index", "build", folder, embeddings, "--split", "val")
    plain = output(capsys, "search", folder, embeddings, "-k", "1")
    output(capsys, "calibrate", embeddings, "--false_accept_rate", "0.05", "--index", folder)
    lines = output(capsys, "search", folder, embeddings, "-k", "1").splitlines()
    assert [line.partition("  -> ")[0] for line in lines] == plain.splitlines()
    heads = [line for line in lines if "  -> " in line]
    is_match = np.array(["-> match: " in line for line in heads])
    assert is_match[:180].mean() > 0.9
    assert is_match[180:].mean() < 0.15  # of classes that the index does not hold
    assert "(probability 0.0" in next(line for line in heads if "no match" in line)
    found = json.loads(output(capsys, "search", folder, embeddings, "--json", "--min-probability", "0.9"))
    assert {each["decision"]["is_match"] for each in found} == {True, False}
    assert all(bool(each["matches"]) == each["decision"]["is_match"] for each in found)
    found = json.loads(output(capsys, "search", folder, embeddings, "--json", "--min-score", "0.999"))
    assert [len(each["matches"]) for each in found[:180]] == [1] * 180
    reranked = output(capsys, "search", folder, embeddings, "-k", "1", "--rerank", "contextual", "--rerank.k", "3")
    assert "->" not in reranked
