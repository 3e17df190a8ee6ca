"""Where a refiner's embeddings come from: a file and its splits, a run, an embedder of its own; and going on."""

import multiprocessing
import os
import shlex
import shutil
import signal
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tests.conftest import SMALL
from tests.refusals import refused_call
from tests.training.refiner_runs import RISING, TINY, save_clusters, script_validation
from vicinal.cli.main import main
from vicinal.data import Table, load_embeddings, read_fingerprint
from vicinal.data.batches.image_dataset import ImageDataset
from vicinal.models import ContextRefiner, Embedder
from vicinal.training import Recipe, RefinerRecipe, Trainer, train
from vicinal.training.checkpoint import load_checkpoint
from vicinal.utils.errors import InputError, TrainingStoppedError
from vicinal.utils.run_folder import RunFolder
from vicinal.workflows import EmbeddedTable, refine
from vicinal.workflows.embedding_reader import EmbeddingReader
from vicinal.workflows.refine import _split, embed_in_processes, train_refiner


def divided(embedded: EmbeddedTable, *more: str) -> EmbeddedTable:
    return _split(embedded, RefinerRecipe.load(overrides=["--embeddings=e.npy", *more]).settings)


def rows_of(splits: list[str] | None) -> EmbeddedTable:
    """Two embeddings a class, each telling its row; the classes are in these splits."""
    labels = np.repeat(np.arange(10 if splits is None else len(splits)), 2)
    frame = pd.DataFrame({"label": labels})
    table = Table(frame if splits is None else frame.assign(split=np.repeat(splits, 2)))
    return EmbeddedTable(np.arange(len(labels), dtype=np.float32)[:, None], table, "abc")


def test_train_and_val_are_used_and_nothing_else() -> None:
    made = divided(rows_of(["test", "train", "val", "train", "test", "val"]))
    assert made.vectors.ravel().tolist() == [2, 3, 4, 5, 6, 7, 10, 11]
    assert made.table.frame["label"].tolist() == [1, 1, 2, 2, 3, 3, 5, 5]
    assert made.table.frame["split"].tolist() == ["train"] * 2 + ["val"] * 2 + ["train"] * 2 + ["val"] * 2
    assert made.origin == "abc"


@pytest.mark.parametrize("splits", [None, ["train", "test"] * 10])
def test_without_val_some_classes_are_taken(splits: list[str] | None) -> None:
    made = [divided(rows_of(splits), f"--seed={seed}", "--val_fraction=0.3") for seed in (0, 0, 1)]
    classes = [{split: set(each.table.subset(split).classes) for split in ("train", "val")} for each in made]
    assert [len(classes[0][split]) for split in ("train", "val")] == [7, 3]
    assert not classes[0]["train"] & classes[0]["val"]
    assert classes[0] == classes[1] != classes[2]
    of_test = set() if splits is None else set(range(1, 20, 2))
    assert not (classes[0]["train"] | classes[0]["val"]) & of_test
    assert (made[0].vectors.ravel() // 2).tolist() == made[0].table.frame["label"].tolist()


@pytest.mark.parametrize("splits", [None, ["train", "test"] * 10])
def test_all_classes_can_be_trained_on(splits: list[str] | None) -> None:
    made = divided(rows_of(splits), "--val_fraction=0", "--keep=last", "--augmentation.noise=0").table
    assert made.splits == ["train"]
    assert len(made.classes) == 10
    with pytest.raises(InputError, match="val_fraction = 0 leaves nothing to validate on; give a fraction, or keep"):
        divided(rows_of(splits), "--val_fraction=0")
    assert divided(rows_of(["train", "train", "val", "val"]), "--val_fraction=0").table.splits == ["train", "val"]


FEW = [
    "--refiner.depth=1", "--refiner.num_heads=2", "--refiner.neighbors=3", "--batch_size=8", "--samples_per_class=4",
    "--epochs=1", "--guardrail_metrics=[recall@1]", "--guardrail_class_sizes=[]",
]  # fmt: skip


@pytest.fixture(scope="module")
def source(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run of an embedder, four classes to train on and three for validation, with an image that nobody can read."""
    folder = tmp_path_factory.mktemp("source")
    shutil.copytree(photos, folder / "photos")
    (folder / "photos" / "class0" / "3.png").write_bytes(b"not a picture")
    classes = "{train: [class0, class1, class2, class3], val: [class4, class5, class6], test: [class7]}"
    data = [f"--data.source={folder / 'photos'}", f"--data.classes={classes}", "--data.on_error=skip"]
    run = train(
        Recipe.load(overrides=[*SMALL, *data, "--batch_size=4", "--epochs=1", "--loss.miner=null"]), folder / "run"
    )
    model = Embedder.from_pretrained(run.model)
    torch.nn.init.normal_(model.head[1].weight)  # the photos are so easy that the best weights are the initial ones
    model.save_pretrained(run.model)
    return run


def from_run(source: RunFolder, *more: str) -> RefinerRecipe:
    return RefinerRecipe.load(overrides=[f"--run={source.path}", *FEW, "--accelerator=cpu", *more])


def test_a_run_is_embedded_by_its_model(source: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script_validation(monkeypatch, RISING)
    run = train_refiner(from_run(source), tmp_path / "out")
    model = Embedder.from_pretrained(source.model)
    fingerprint = ContextRefiner.from_pretrained(run.model).model_fingerprint
    assert fingerprint == read_fingerprint(run.embeddings) == model.fingerprint()
    vectors, table = load_embeddings(run.embeddings)
    assert {split: table.subset(split).classes for split in table.splits} == {
        "train": ["class0", "class1", "class2", "class3"],
        "val": ["class4", "class5", "class6"],
    }
    assert len(table) == 7 * 6 - 1
    assert vectors.shape == (41, 16)
    assert not run.embedder.exists()


@pytest.fixture(scope="module")
def crossed(source: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    with pytest.MonkeyPatch.context() as monkeypatch:
        script_validation(monkeypatch, RISING)
        return train_refiner(from_run(source, "--embedder_fraction=0.5"), tmp_path_factory.mktemp("crossed") / "out")


def test_a_refiner_learns_from_classes_that_its_embedder_never_saw(source: RunFolder, crossed: RunFolder) -> None:
    embedder = RunFolder(crossed.embedder)
    of_embedder, (_, of_refiner) = Table.from_parquet(embedder.table), load_embeddings(crossed.embeddings)
    seen, unseen = (set(table.subset("train").classes) for table in (of_embedder, of_refiner))
    assert (len(seen), len(unseen)) == (2, 2)
    assert seen | unseen == {"class0", "class1", "class2", "class3"}
    assert set(of_refiner.subset("val").classes) == {"class4", "class5", "class6"}
    assert set(of_refiner.splits) == {"train", "val"}
    model = Embedder.from_pretrained(embedder.model)
    assert ContextRefiner.from_pretrained(crossed.model).model_fingerprint == model.fingerprint()
    assert model.fingerprint() != Embedder.from_pretrained(source.model).fingerprint()
    of_source = Recipe.load(source.recipe).config
    assert Recipe.load(embedder.recipe).config == {**of_source, "devices": 1, "num_nodes": 1}


def test_interrupted_while_its_embedder_trains_it_goes_on(
    source: RunFolder, crossed: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    out, step = tmp_path / "the out", Trainer.train_step

    def interrupted_step(self: Trainer, batches, **more):
        if self.progress.step == 1:
            os.kill(os.getpid(), signal.SIGINT)
        step(self, batches, **more)

    settings = [f"--run={source.path}", *FEW, "--accelerator=cpu", "--embedder_fraction=0.5"]
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "train_step", interrupted_step)
        assert main(["refine", *settings, "--out", str(out)]) == 130
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.endswith(f"resume with: vicinal refine --out {shlex.quote(str(out))} --resume")
    assert load_checkpoint(RunFolder(out / "embedder").last)["progress"]["step"] == 2
    assert not RunFolder(out).embeddings.exists()
    script_validation(monkeypatch, RISING)
    assert main(["refine", "--out", str(out), "--resume"]) == 0
    for name in ("embedder/model/model.safetensors", "model/model.safetensors"):
        assert (out / name).read_bytes() == (crossed.path / name).read_bytes()
    states = [load_checkpoint(RunFolder(path / "embedder").last)["module"] for path in (out, crossed.path)]
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_what_cannot_be_is_said_before_an_embedder_is_trained(source: RunFolder, tmp_path: Path) -> None:
    for more, message in (
        (["--refiner.num_heads=3"], "refiner.num_heads = 3 must divide dim = 16"),
        (["--batch_size=16"], "batch_size is 16, samples_per_class 4: that needs 4 classes"),
        (["--validation.metric=recall@8", "--embedder_fraction=0.75"], "embedder_fraction = 0.75 does not suit the"),
        (["--embedder_fraction=0.25"], "embedder_fraction = 0.25 does not suit the embedder: only one class"),
        (["--devices=5000"], "devices = 5000 must be at most"),
    ):
        refused_call(message, train_refiner, from_run(source, "--embedder_fraction=0.5", *more), tmp_path / "out")
        assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="devices = 2 must be 1 without run, whose images several processes embed"):
        RefinerRecipe.load(overrides=["--embeddings=e.parquet", "--devices=2"])


def test_given_embeddings_are_not_written_over(tmp_path: Path) -> None:
    given = save_clusters(tmp_path / "embeddings.parquet")
    before = given.read_bytes()
    with pytest.raises(InputError, match=r"embeddings = .* is where the run would keep its own copy; give another"):
        train_refiner(RefinerRecipe.load(overrides=[f"--embeddings={given}", *TINY]), tmp_path)
    assert given.read_bytes() == before


@pytest.mark.slow
def test_several_processes_embed_what_one_does(source: RunFolder, tmp_path: Path, monkeypatch, capsys, request) -> None:
    monkeypatch.setattr(refine, "EmbeddingReader", partial(EmbeddingReader, batch_size=8))
    threads, embedded = torch.get_num_threads(), []
    torch.set_num_threads(1)  # as each of the two processes has
    request.addfinalizer(lambda: torch.set_num_threads(threads))
    for devices in (1, 2):
        script_validation(monkeypatch, RISING)
        run = train_refiner(from_run(source, f"--devices={devices}"), tmp_path / f"{devices}")
        embedded.append(load_embeddings(run.embeddings))
    assert "embedding 42 images in 2 processes" in capsys.readouterr().err
    np.testing.assert_array_equal(embedded[0][0], embedded[1][0])
    pd.testing.assert_frame_equal(embedded[0][1].frame, embedded[1][1].frame)


@pytest.mark.slow
def test_an_error_of_one_process_does_not_wait_for_the_others(source: RunFolder, tmp_path: Path) -> None:
    reader = EmbeddingReader(model=str(source.path), batch_size=2, device="cpu")
    photo = str(source.path.parent / "photos" / "class1" / "0.png")
    late, early = (shutil.copy(photo, tmp_path / name) for name in ("late.png", "early.png"))
    paths = [*19_999 * [photo], late, early, *19_999 * [photo]]  # the first process has a minute's work before its own
    images = ImageDataset(Table(pd.DataFrame({"path": paths})), reader.loaded_model.transform)
    for path in (late, early):
        Path(path).unlink()
    refused_call(f"{early}: no such file$", embed_in_processes, reader, images, 2)
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_a_killed_process_is_noticed_while_others_embed(source: RunFolder) -> None:
    reader = EmbeddingReader(model=str(source.path), batch_size=2, device="cpu")
    paths = 20_000 * [str(source.path.parent / "photos" / "class1" / "0.png")]  # a minute's work
    killed_at: list[float] = []

    def kill_last() -> None:
        while len(multiprocessing.active_children()) < 2:
            time.sleep(0.1)
        time.sleep(5)  # the thread that watches the processes waits for the first by now
        max(multiprocessing.active_children(), key=lambda process: process.pid or 0).kill()
        killed_at.append(time.monotonic())

    killer = threading.Thread(target=kill_last)
    killer.start()
    with pytest.raises(TrainingStoppedError, match="a process that embeds images was killed; start the command again"):
        embed_in_processes(reader, ImageDataset(Table(pd.DataFrame({"path": paths})), reader.loaded_model.transform), 2)
    killer.join()
    assert time.monotonic() - killed_at[0] < 15
    assert not multiprocessing.active_children()
