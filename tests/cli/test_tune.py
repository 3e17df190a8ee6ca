"""`vicinal tune` and `vicinal sweep`: flags, errors, and real runs that train in this process."""

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.conftest import QUICK, draw_photos, output, refused
from tests.workflows.studies import InThisProcess
from vicinal.cli.main import main
from vicinal.evaluation import evaluate
from vicinal.models import Embedder
from vicinal.training import Recipe
from vicinal.workflows import Source, SweepCell, SweepResult
from vicinal.workflows.settings import SweepSettings, TuneSettings
from vicinal.workflows.tuning import runs, sweep, tune

RECIPE = "data: {source: photos, cache: true}\nbatch_size: 8\nsamples_per_class: 2\nlog_every: 1\n"


@pytest.fixture
def working(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a recipe, in which the runs of a study train in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "PAUSE", 0)
    for module, run in ((tune, tune.tune), (sweep, sweep.sweep)):
        monkeypatch.setattr(module, run.__name__, lambda *words, run=run: run(*words, start=InThisProcess))
    draw_photos(tmp_path / "photos", 12, 4)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


@pytest.mark.slow
def test_tune_searches_replays_and_looks_once(working: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for image in (working / "photos").glob("class1*/*.png"):  # classes 1, 10 and 11 are for testing
        image.write_bytes(b"not an image: a search that read one would fail")
    training = ", ".join(f"class{label}" for label in (0, *range(2, 10)))
    classes = f"{{train: [{training}], test: [class1, class10, class11]}}"
    words = ["recipe.yaml", "--out", "study", f"--data.classes={classes}", "--search.optimizer.lr={log: [1e-4, 1e-2]}",
             *QUICK, "--trials", "2", "--json"]  # fmt: skip
    result = json.loads(output(capsys, "tune", *words))
    assert [trial["state"] for trial in result["trials"]] == ["complete", "complete"]
    assert result["test"] is None
    Recipe.load(result["recipe"])
    assert main(["tune", *words, "--replay"]) == 1  # the evaluation on the test split fails, and only that
    assert "row 0" in capsys.readouterr().err.splitlines()[-1]
    draw_photos(working / "again", 12, 4)
    for image in (working / "photos").glob("class1*/*.png"):
        image.write_bytes((working / "again" / image.parent.name / image.name).read_bytes())
    looked = json.loads(output(capsys, "tune", "--out", "study", "--replay", "--recall_at", "1", "3", "--json"))["test"]
    table = Source("study/final").table.subset("test")
    assert table.classes == ["class1", "class10", "class11"]
    vectors = Embedder.from_pretrained("study/final/model").embed(table, progress=False)
    assert looked["metrics"] == pytest.approx(evaluate(vectors, table, [1, 3]).metrics, abs=1e-6)
    log = pd.read_csv("study/final/metrics.csv")
    assert set(log) == {"step", "epoch", "train recall@1"}  # nothing validates: all classes train
    assert len(pd.read_csv("study/final/log.csv")["epoch"].astype(int).unique()) == looked["epoch"]


@pytest.mark.slow
def test_sweep_prints_a_table(working: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["recipe.yaml", "--out", "grid", "--grid.model.dim=[4, 8]", *QUICK, "--epochs=1", "--recall_at", "1", "3"]
    text = output(capsys, "sweep", *words)
    assert text.splitlines()[1].split() == ["model.dim", "recall@1", "recall@3", "mAP@R", "R-precision", "mAP"]
    assert [line.split()[0] for line in text.splitlines()[2:]] == ["4", "8"]
    metrics = json.loads(output(capsys, "evaluate", "grid/cells/001_0", "--split", "test", "--json", "--device", "cpu"))
    cell = json.loads(output(capsys, "sweep", "--out", "grid", "--json"))["cells"][1]
    assert cell["metrics"]["0"]["recall@1"] == pytest.approx(metrics["results"][0]["value"])
    assert "clusters = True differs from the study's own False" in refused(capsys, "sweep", *words, "--clusters")


def test_failures_of_a_sweep_are_its_exit_status(working: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    cells = (SweepCell({"epochs": 1}, {0: {"mAP": 0.5}}), SweepCell({"epochs": 2}, {}, ("lack of memory",)))
    monkeypatch.setattr(sweep, "sweep", lambda *_: SweepResult(("epochs",), cells, "mAP"))
    assert main(["sweep", "recipe.yaml", "--out", "grid", "--grid.epochs=[1, 2]"]) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines()[1:] == ["epochs   mAP", "1        50.00", "2        –       failed: lack of memory"]
    assert "1 runs failed; the same command tries them again" in printed.err


def test_mistakes_are_one_line(working: Path, capsys) -> None:
    for words, message in (
        (["tune", "recipe.yaml"], "--out is missing"),
        (["tune", "recipe.yaml", "--out", "study", "--trial", "3"], "unknown argument --trial, did you mean --trials?"),
        (["tune", "recipe.yaml", "--out", "study", "--search.epochs=[1]", "--trials", "0"], "trials = 0 must be at"),
        (["tune", "recipe.yaml", "--out", "study", "--search.epochs=[1]", "--held_out", "1"], "held_out = 1 must be"),
        (["tune", "recipe.yaml", "--out", "study", "--search.epochs=[1]", "--held_out", "99"], "held_out = 99: 99 f"),
        (["tune", "recipe.yaml", "--out", "recipe.yaml", "--search.epochs=[1]"], "recipe.yaml is a file; give"),
        (["sweep", "recipe.yaml", "--out", "study", "--search.epochs=[1]"], "unknown key search"),
    ):
        lines = refused(capsys, *words).splitlines()
        assert message in lines[-1]
        assert len([line for line in lines if "error" in line]) == 1
        assert not (working / "study").exists()


def test_flags_are_no_settings_of_a_recipe() -> None:
    for settings in (TuneSettings, SweepSettings):
        assert not set(settings.__dataclass_fields__) & {*Recipe.schema(), "out", "allow_import"}
