"""Mistakes of a first day with `vicinal train`: each is one line that says what would be right."""

from __future__ import annotations

import logging
from pathlib import Path

import pandas as pd
import pytest

from tests.conftest import SMALL
from vicinal.cli.main import main
from vicinal.data import Table, load_table
from vicinal.models import Embedder
from vicinal.training import Recipe, train
from vicinal.utils.errors import InputError

# Kind, case, the words of the command line, what the line says.
CASES = [
    ("typo", "argument of the loss", ["--loss.temprature=1"], "did you mean loss.temperature?"),
    ("typo", "loss", ["--loss", "Triplett"], "is not the name of a Loss class; did you mean TripletLoss?"),
    ("typo", "miner", ["--loss.miner=Hardest"], "not the name of a Miner class; did you mean HardestMiner?"),
    ("typo", "backbone", ["--model.backbone", "resnet-50"], "not the name of a timm model, such as 'resnet50'"),
    ("typo", "choice", ["--optimizer.name=adamW"], "optimizer.name = adamW must be sgd or adam or adamw"),
    ("short key", "pooling", ["--pooling=avg"], "unknown key pooling; did you mean model.pooling?"),
    ("short key", "learning rate", ["--lr", "0.1"], "unknown key lr; did you mean optimizer.lr?"),
    ("short key", "source", ["--source=photos"], "unknown key source; did you mean data.source?"),
    ("group", "data", ["--data", "photos"], "data is a group; write its settings below it, such as data.source"),
    ("group", "selection", ["--sample_selection", "prism"], "settings below it, such as sample_selection.method"),
    ("group", "noise", ["--data.noise=0.1"], "data.noise is a group; write its settings below it, such as data.noise."),
    ("group", "schedule", ["--schedule=step"], "write its settings below it, such as schedule.name"),
    ("group", "optimizer", ["--optimizer=sgd"], "write its settings below it, such as optimizer.name"),
    ("group", "factors", ["--optimizer.lr_factors=1"], "such as optimizer.lr_factors.backbone"),
    ("group", "validation", ["--validation=mAP"], "write its settings below it, such as validation.metric"),
    ("group", "model", ["--model", "resnet50"], "write its settings below it, such as model.backbone"),
    ("place", "folder", ["photos"], "photos is not a recipe, a YAML file of settings; data is given as --data."),
    ("place", "no folder", ["none"], "recipe none: No such file or directory; images are given as --data."),
    ("place", "table", ["photos.csv"], "photos.csv is not a recipe"),
    ("value", "text", ["--epochs=many"], "epochs = many must be an integer"),
    ("value", "null", ["--optimizer.lr=null"], "optimizer.lr = null must be a number"),
    ("value", "missing", ["--epochs"], "--epochs needs a value"),
    ("machine", "processes", ["--data.source=photos", *SMALL, "--devices=100000"], "devices = 1"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "line"), [case[2:] for case in CASES], ids=[f"{k}: {c}" for k, c, *_ in CASES])
def test_a_mistake_is_one_line_that_helps(folder: Path, words: list[str], line: str, capsys) -> None:
    (folder / "photos.csv").touch()
    assert main(["train", *words, "--out", "run"]) == 2
    printed = capsys.readouterr()
    message = printed.err.splitlines()[-1]
    assert line in message
    assert printed.err.count("error") == 1
    for jargon in ("Union", "subtypes", "Traceback", "argparse", "Namespace", "Parser key", "load config"):
        assert jargon not in printed.err
    assert not (folder / "run").exists()


def test_resuming_with_another_setting_names_the_setting(small: list[str], tmp_path: Path, capsys) -> None:
    run = train(Recipe.load(overrides=[*small, "--epochs=1"]), tmp_path / "run")
    assert main(["train", "--out", str(run.path), "--resume", "--seed", "9"]) == 2
    assert "seed = 9 differs from the run's own 0; resume with --out and --resume alone" in capsys.readouterr().err
    assert main(["train", "--resume", str(run.path)]) == 2
    assert f"is the folder of a run, not a recipe; its recipe is {run.recipe}, and --out" in capsys.readouterr().err
    assert main(["train", "--out", str(run.path), "--resume", "--epochs", "1"]) == 0


def test_classes_for_testing_are_not_trained_on(small: list[str], photos: Path, tmp_path: Path) -> None:
    frame = load_table(photos).frame
    split = ["test" if label in ("class6", "class7") else "train" for label in frame["label"]]
    Table(frame.assign(split=split)).save(tmp_path / "split.csv")
    fractions = "--data.fractions={train: 0.6, val: 0.2, test: 0.2}"
    recipe = Recipe.load(overrides=[*small, f"--data.source={tmp_path / 'split.csv'}", fractions])
    with pytest.raises(
        InputError, match=r"has a test split of 12 images.* divide the others into train and val, or set"
    ):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_the_table_forbids_comes_before_the_model(
    small: list[str], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recipe, "create_embedder", lambda self: pytest.fail("the model was created first"))
    frame = load_table(photos).frame
    pd.DataFrame(frame).drop_duplicates("label").to_csv(tmp_path / "single.csv")
    for more, line in (
        ([f"--data.source={tmp_path / 'single.csv'}"], "single.csv|class"),
        (["--batch_size=128", "--samples_per_class=4"], "batch_size"),
        (["--coarse_classes_per_batch=2"], "coarse_column"),
    ):
        with pytest.raises(InputError, match=line):
            train(Recipe.load(overrides=[*small, *more]), tmp_path / "run")


def test_the_retries_of_the_hub_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def fail(self: Embedder, *_: object, **__: object) -> None:
        for number in range(1, 6):
            client.warning("'(MaxRetryError)' thrown while requesting HEAD https://huggingface.co/x")
            client.warning(f"Retrying in 1s [Retry {number}/5].")
        raise InputError("cannot download; use pretrained=false or a local file")

    client = logging.getLogger("huggingface_hub.utils._http")
    recipe = Recipe.load()
    monkeypatch.setattr(Embedder, "__init__", fail)
    with pytest.raises(InputError, match=r"^model: cannot download; use model.pretrained: false or a local file$"):
        recipe.create_embedder()
    line = "the Hugging Face Hub does not answer; trying again a few times (not with HF_HUB_OFFLINE=1)"
    assert capsys.readouterr().err == f"{line}\n"
    assert not client.filters
