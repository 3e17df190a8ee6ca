"""`vicinal report`: the page of one source, and of several side by side."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.conftest import SMALL, refused
from tests.workflows.test_evaluate import TABLE, embeddings
from vicinal.cli.main import main
from vicinal.data import Table, load_embeddings, save_embeddings
from vicinal.evaluation import confidence_intervals, evaluate
from vicinal.models import Embedder
from vicinal.workflows.report import default_page


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    plain = Table(TABLE.frame.drop(columns="path"))
    for name, noise in (("good", 0.8), ("bad", 1.6)):
        save_embeddings(f"{name}.parquet", embeddings(noise), plain)
    return tmp_path


def page(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert main(["report", *map(str, arguments)]) == 0, capsys.readouterr().err
    return Path(capsys.readouterr().out.strip()).read_text(encoding="utf-8")


def percent(value: float) -> str:
    return f"{100 * value:.2f}"


def test_a_page_of_embeddings_has_their_metrics_and_intervals(here: Path, capsys) -> None:
    text = page(capsys, "bad.parquet", "--metrics", "MRR", "--title", "Sparrows & owls")
    found = evaluate(*load_embeddings("bad.parquet"), metrics=["MRR"])
    for name, (low, high) in confidence_intervals(found, TABLE).iterrows():
        assert {percent(found.metrics[name]), percent(low), percent(high)} <= set(words(text))
    assert "Sparrows &amp; owls" in text
    assert (here / "report.html").is_file()
    small = page(capsys, "bad.parquet", "--map-images", 20, "--intervals", "none")
    assert len(re.search(r'"map":\{[^}]*?"x":\[([^\]]*)\]', small)[1].split(",")) == 20  # type: ignore[index]
    assert "confidence_level = 95.0 is invalid" in refused(capsys, "report", "bad.parquet", "--confidence_level", "95")


def words(text: str) -> list[str]:
    return re.findall(r"\d+\.\d\d", text)


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", "--data.source", str(photos), *SMALL, "--epochs=1", "--out", str(out)]) == 0
    return out


def test_the_page_of_a_run_lies_in_it_and_shows_its_recipe(run: Path, photos: Path, tmp_path: Path, capsys) -> None:
    assert default_page([str(run)]) == run / "report.html"
    text = page(capsys, run, "--split", "test")
    assert "test_resnet" in text
    assert "12 queries" in text
    assert len(re.findall(r"\"src\": ?\"", text)) == 12
    on_other_images = page(capsys, run / "model", "--images", photos, "--out", tmp_path / "other.html")
    assert "48 queries" in on_other_images


def test_the_page_of_a_folder_says_what_was_left_out(photos: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    for name in ("broken.jpg", "notes.txt"):
        (folder / name).write_text("no image")
    Embedder("test_resnet", dim=8, pretrained=False).save_pretrained(tmp_path / "model")
    more = ["--on_error", "skip", "--out", tmp_path / "page.html"]
    text = page(capsys, folder, "--model", tmp_path / "model", *more)
    assert re.search(r"test_resnet, 8 dimensions · .* · 2 files left out · <time", text)


def test_a_page_of_several_has_differences_with_their_intervals(here: Path, capsys) -> None:
    text = page(capsys, "bad.parquet", "good.parquet", "--out", "both.html")
    bad, good = (evaluate(*load_embeddings(f"{name}.parquet")).metrics["mAP@R"] for name in ("bad", "good"))
    assert f"{100 * (good - bad):+.2f}" in text
    assert "bad.parquet" in text
    assert not (here / "report.html").exists()


def test_sets_of_other_images_are_shown_without_intervals_of_differences(here: Path, capsys) -> None:
    save_embeddings("part.parquet", embeddings(1)[:60], TABLE.take(np.arange(60)))
    assert main(["report", "bad.parquet", "part.parquet"]) == 0
    said = capsys.readouterr().err
    assert "no intervals of differences: part.parquet against bad.parquet: 60 images and 72" in said


def test_one_class_has_a_page_without_intervals(here: Path, capsys) -> None:
    save_embeddings("one.parquet", embeddings(1)[:6], Table(pd.DataFrame({"label": ["a"] * 6})))
    assert main(["report", "one.parquet"]) == 0
    assert "one.parquet: no intervals: " in capsys.readouterr().err


def test_a_page_reranked_by_local_features_draws_why_images_match(
    run: Path, photos: Path, tmp_path: Path, capsys
) -> None:
    local = ["--rerank", "local", "--rerank.weight", "3", "--local.size", "64", "--local.dim", "8"]
    flags = [run, "--split", "test", *local]
    text = page(capsys, *flags, "--out", tmp_path / "page.html")
    assert "re-ranked by LocalReranking(k=100, weight=3.0" in text
    assert re.search(r'"patches":\{"\d+ \d+":\[\[', text)
    assert main(["evaluate", *map(str, flags), "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    (recall,) = (each["value"] for each in results if each["metric"] == "recall@1" and each["stage"] == "reranked")
    assert percent(recall) in words(text)
    unlabeled = tmp_path / "unlabeled.csv"
    pd.DataFrame({"path": sorted(map(str, photos.rglob("*.png")))}).to_csv(unlabeled, index=False)
    more = ["--model", run / "model", "--out", tmp_path / "unlabeled.html"]
    assert re.search(r'"patches":\{"\d+ \d+":\[\[', page(capsys, unlabeled, *local, *more))
