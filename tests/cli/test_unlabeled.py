"""A folder of loose, nested images without labels: every verb but train and evaluate takes it."""

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import output, refused
from vicinal.cli.main import main
from vicinal.data import load_embeddings
from vicinal.models import Embedder


@pytest.fixture
def mixed(photos: Path, tmp_path: Path) -> Path:
    """Twelve images at three depths, two of them the same."""
    folder = tmp_path / "mixed"
    (folder / "a" / "b").mkdir(parents=True)
    for number in range(4):
        shutil.copy(photos / "class0" / f"{number}.png", folder)
        shutil.copy(photos / "class1" / f"{number}.png", folder / "a")
        shutil.copy(photos / "class2" / f"{number}.png", folder / "a" / "b")
    shutil.copy(photos / "class2" / "0.png", folder / "a" / "b" / "again.png")
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    Embedder("test_resnet", dim=8, pretrained=False).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_data_embed_index_and_search(mixed: Path, model: Path, tmp_path: Path, capsys) -> None:
    statistics = json.loads(output(capsys, "data", mixed, "--json"))
    assert (statistics["num_images"], statistics["num_classes"]) == (13, 0)
    assert len(statistics["files"]["duplicates"]) == 1
    output(capsys, "embed", mixed, "--model", model, "--out", tmp_path / "v.parquet")
    vectors, table = load_embeddings(tmp_path / "v.parquet")
    assert vectors.shape == (13, 8)
    assert not table.has("label")
    output(capsys, "index", "build", tmp_path / "gallery", mixed, "--model", model)
    words = ["search", tmp_path / "gallery", mixed / "a" / "b" / "0.png", "-k", "2", "--grid", tmp_path / "found.png"]
    (found,) = json.loads(output(capsys, *words, "--json"))
    assert {Path(match["path"]).name for match in found["matches"]} == {"0.png", "again.png"}
    assert (tmp_path / "found.png").is_file()


def test_report_has_the_sections_without_labels(mixed: Path, model: Path, tmp_path: Path, capsys) -> None:
    words = ["report", str(mixed), "--model", str(model), "--out", str(tmp_path / "page.html")]
    assert main(words) == 0
    assert f"{mixed} has no labels: the page has neighbors, map, hubs and duplicates" in capsys.readouterr().err
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for text in ('id="queries"', 'id="map"', 'id="hubs"', 'id="duplicates"', "13 images without labels", "again.png"):
        assert text in page
    for text in ("recall@1", "of its class,", "with two labels", "✗", 'id="metrics"', "nan %"):
        assert text not in page.partition("<script")[0], text
    assert "--recall_at needs labels" in refused(capsys, *words, "--recall_at", "5")


def test_training_and_evaluation_say_what_is_missing(mixed: Path, model: Path, tmp_path: Path, capsys) -> None:
    for words in (["train", "--data.source", mixed, "--out", tmp_path / "run"], ["evaluate", mixed, "--model", model]):
        lines = refused(capsys, *words).splitlines()
        assert any("0.png and a/0.png lie at different depths" in line for line in lines)
        assert "a folder for each class, all at the same depth, or" in lines[-1]
