"""Every figure is a script: it has help, and draws its picture."""

import runpy
import sys
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from tests.analysis.refiners import moving, pictured
from tests.conftest import ROOT
from vicinal.data import save_embeddings

SCRIPTS = sorted((ROOT / "examples" / "figures").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_help(script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [script.name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    assert "--out" in capsys.readouterr().out


@pytest.fixture
def files(tmp_path: Path) -> Path:
    moving().save_pretrained(tmp_path / "refiner")
    save_embeddings(tmp_path / "embeddings.parquet", *pictured(tmp_path))
    (tmp_path / "run").mkdir()
    pd.DataFrame({"step": [1, 2], "loss": [2.0, 1.0]}).to_csv(tmp_path / "run" / "log.csv", index=False)
    pd.DataFrame({"step": [2], "mAP": [0.5]}).to_csv(tmp_path / "run" / "metrics.csv", index=False)
    return tmp_path


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("recall_surrogate", ""),
        ("contextual_circle", ""),
        ("contextual_progress", "run"),
        ("center_embeddings", "--epochs 1 --test"),
        ("refiner_map", "refiner embeddings.parquet --method pca --max_images 20"),
        ("refiner_attention", "refiner embeddings.parquet 3 14"),
    ],
)
def test_pictures(script: str, arguments: str, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    monkeypatch.setattr(sys, "argv", [script, *arguments.split(), "--out", "picture.png"])
    runpy.run_path(str(ROOT / "examples" / "figures" / f"{script}.py"), run_name="__main__")
    assert Image.open("picture.png").width > 500
