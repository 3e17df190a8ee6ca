"""`vicinal train` and `vicinal refine`: what they print and leave behind, and their help."""

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.conftest import ROOT, metrics_in, output, refused
from tests.training.refiner_runs import TINY, save_clusters
from vicinal.cli.main import main
from vicinal.cli.train import REFINE_EXAMPLES, REFINE_HELP, TRAIN_EXAMPLES, TRAIN_HELP


def test_train_prints_the_model_and_resumes(run: Path, capsys) -> None:
    assert output(capsys, "train", "--out", run, "--resume").strip() == str(run / "model")


def test_refine_prints_the_model_and_evaluate_finds_the_logged_metrics(tmp_path: Path, capsys) -> None:
    embeddings, out = save_clusters(tmp_path / "e.parquet"), tmp_path / "out"
    assert main(["refine", "--embeddings", str(embeddings), *TINY, "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.out.strip() == str(out / "model")
    assert printed.err.splitlines()[-1].endswith(f"vicinal evaluate RUN --refiner {out}")
    result = json.loads(output(capsys, "evaluate", embeddings, "--split", "val", "--refiner", out, "--json"))
    plain, refined = metrics_in(result), metrics_in(result, "refined")
    changes = [f"{name} {plain[name]:.2%} -> {refined[name]:.2%}" for name in ("mAP@R", "recall@1")]
    assert f"on 8 unseen classes: {', '.join(changes)}" in printed.err.splitlines()
    log = pd.read_csv(out / "metrics.csv")
    best = log.iloc[log["mAP@R"].idxmax()]
    for metrics, line in ((plain, log.iloc[0]), (refined, best)):
        assert metrics == pytest.approx({name: line[name] for name in metrics}, rel=1e-5)
    assert output(capsys, "refine", "--out", out, "--resume").strip() == str(out / "model")


def test_a_refiner_that_does_not_help_is_one_line_and_no_model(tmp_path: Path, capsys) -> None:
    embeddings, out = save_clusters(tmp_path / "e.parquet", val_noise=0), tmp_path / "out"
    for more in ([], ["--resume"]):
        assert main(["refine", "--embeddings", str(embeddings), *TINY, "--out", str(out), *more]) == 1
        printed = capsys.readouterr()
        message = printed.err.splitlines()[-1]
        assert "refine: error: the refiner does not help on unseen classes: no epoch had a higher" in message
        assert "mAP@R than the 100.00% of the embeddings themselves" in message
        assert (printed.err.count("error"), printed.out) == (1, "")
    assert not (out / "model").exists()
    assert {"log.csv", "metrics.csv", "curves.png", "recipe.yaml"} < {path.name for path in out.iterdir()}
    assert "out has no finished refiner" in refused(capsys, "evaluate", embeddings, "--refiner", out)


def test_help_is_one_screen_with_the_defaults(capsys) -> None:
    rate = "learning rate; 0.0003 with 100 classes or more (default: 0.0002)"
    train = [rate, "(default: resnet50; without GPU", "NTXentLoss)"]
    refine = ["learning rate (default: 0.0001)", "blocks (default: 8)", "SmoothAPLoss)"]
    shown_by_verb = {"train": (TRAIN_HELP, TRAIN_EXAMPLES, train), "refine": (REFINE_HELP, REFINE_EXAMPLES, refine)}
    for verb, (shown, examples, defaults) in shown_by_verb.items():
        text = output(capsys, verb, "--help")
        assert len(text.splitlines()) <= 40
        assert max(map(len, text.splitlines())) <= 120
        assert all(f"--{key} " in text for key in shown)
        assert all(default in text for default in defaults)
        assert examples in text


def test_help_of_a_loss(capsys) -> None:
    text = " ".join(output(capsys, "train", "--loss.help", "MarginLoss").split())
    assert "--loss.margin MARGIN the paper's alpha, a distance (type: float, default: 0.2)" in text


def test_recipes_are_found_by_words_in_name_and_first_lines(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = output(capsys, "train", "--recipes", "Center", "contrastive", "cub", "table 2", "m = 0").split("\n\n")
    assert found[0].splitlines()[0] == "recipes/center_contrastive/cub_ccl.yaml"
    assert "expected: recall@1 71.8, recall@2 80.8, recall@4 87.8" in found[0]
    assert "vicinal train --recipes WORDS" in output(capsys, "train", "--recipes")
    assert "no recipe has all of the words cub submarine" in refused(capsys, "train", "--recipes", "cub", "submarine")
