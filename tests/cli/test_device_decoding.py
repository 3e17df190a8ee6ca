"""JPEGs decoded by a GPU in training, embedding and search, with libjpeg in the place of nvJPEG."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shutil import copytree

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from tests.conftest import SMALL, output
from vicinal.cli.main import main
from vicinal.cli.serve import _embedder
from vicinal.data import ImageTransform, Table, load_embeddings, load_table, read_fingerprint
from vicinal.data.batches import train_batches as batches_module
from vicinal.data.batches.device_decoding import DeviceDecoder
from vicinal.data.images import nvjpeg
from vicinal.data.images.decoding import EncodedJpeg
from vicinal.export import ExportSettings
from vicinal.models import Embedder
from vicinal.retrieval import Index
from vicinal.training import Recipe, RefinerRecipe, Trainer, train
from vicinal.training.runs import create_trainer
from vicinal.training.training_data import load_training_table
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import RunFolder
from vicinal.workflows import EmbeddingReader, embed_on_ray, embed_shard, refine
from vicinal.workflows.embedding.embed_processes import _embed_part
from vicinal.workflows.export import export_source
from vicinal.workflows.sources.several_sources import embed_several

DEVICE = ["--data.decoding=device", "--data.cache=false", "--data.num_workers=0"]


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight classes of two JPEGs and a PNG, smooth pictures that are decoded in full size."""
    folder, rng = tmp_path_factory.mktemp("jpegs"), np.random.default_rng(0)
    for label in "abcdefgh":
        (folder / label).mkdir()
        for number in range(3):
            colors = Image.fromarray(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8))
            colors.resize((28, 24)).save(folder / label / f"{number}.{'png' if number == 2 else 'jpg'}")
    return folder


@contextmanager
def libjpeg() -> Iterator[list[int]]:
    """The CPU decodes as a GPU does; how many images it decoded, batch by batch."""
    counts: list[int] = []
    decode = DeviceDecoder.__call__

    def counted(self: DeviceDecoder, images: object) -> object:
        counts.append(len(images.plans))  # type: ignore[attr-defined]
        return decode(self, images)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceDecoder, "__call__", counted)
        for module in ("vicinal.data.images.nvjpeg", "vicinal.workflows.embedding.model_options"):
            patch.setattr(f"{module}.check_nvjpeg", lambda *_: None)
        yield counts


@pytest.fixture
def decoder() -> Iterator[list[int]]:
    with libjpeg() as counts:
        yield counts


@pytest.fixture(scope="module")
def finished(jpegs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A finished run whose images a device decoded, and how many at a time."""
    out = tmp_path_factory.mktemp("runs") / "run"
    with libjpeg() as counts:
        division = "--data.fractions={train: 0.75, val: 0.25}"
        assert main(["train", "--data.source", str(jpegs), *SMALL, *DEVICE, division, "--out", str(out)]) == 0
    return out, counts


@pytest.fixture
def run(finished: tuple[Path, list[int]], decoder: list[int]) -> Path:
    return finished[0]


def trainer(jpegs: Path, out: Path, *more: str) -> Trainer:
    recipe = Recipe.load(overrides=[f"--data.source={jpegs}", *SMALL, *more])
    made = create_trainer(recipe, load_training_table(recipe.settings), RunFolder(out))
    assert isinstance(made, Trainer)
    return made


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_batches_of_a_run_are_those_of_workers(
    jpegs: Path, decoder: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    """Batch by batch and image by image, also where a batch is loaded in parts."""
    monkeypatch.setattr(batches_module, "PART_SIZE", 3)
    flags = ["--data.cache=false", f"--data.num_workers={num_workers}", "--transform.color_jitter=0.4"]
    by_workers = trainer(jpegs, tmp_path / "workers", *flags, "--data.augmentation=device")
    by_device = trainer(jpegs, tmp_path / "device", *flags, "--data.decoding=device")
    plan = by_workers._plan()
    pairs = zip(*(list(each._load_batches(plan, 0)) for each in (by_workers, by_device)), strict=True)
    for one, other in pairs:
        assert torch.equal(one["rows"], other["rows"])
        assert torch.equal(one["augmentation"], other["augmentation"])
        assert (one["images"].int() - other["images"].int()).abs().max() <= 2
    assert decoder == [3, 3, 2] * len(plan)
    by_workers.loader.close()
    by_device.loader.close()


def test_a_run_and_what_follows_it_remember_where_images_are_decoded(
    jpegs: Path,
    finished: tuple[Path, list[int]],
    decoder: list[int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, counts = finished
    assert "  decoding: device\n" in (run / "recipe.yaml").read_text()
    val = load_table(str(run / "table.parquet")).subset("val")
    assert {8, len(val)} <= set(counts)  # batches for training, and validation
    index = tmp_path / "index"
    output(capsys, "index", index, "--source", jpegs, "--model", run)
    assert decoder == [24]
    fingerprint = Index.load(index).model_fingerprint
    assert fingerprint == f"{Embedder.from_pretrained(run / 'model').fingerprint()}+decoding device"
    output(capsys, "search", index, jpegs / "a" / "1.jpg")
    assert decoder == [24, 1]
    assert main(["search", str(index), str(jpegs / "a" / "1.jpg"), "--model", str(run), "--decoding", "workers"]) == 2
    assert "+decoding device" in capsys.readouterr().err


def test_an_index_remembers_the_flag(
    jpegs: Path, decoder: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Embedder("test_resnet", dim=4, pretrained=False).save_pretrained(tmp_path / "model")
    model, index, picture = tmp_path / "model", tmp_path / "index", str(jpegs / "a" / "1.jpg")
    output(capsys, "index", index, "--source", jpegs, "--model", model, "--decoding", "device")
    decoder.clear()
    assert main(["search", str(index), picture]) == 0
    assert decoder == [1]
    assert "--decoding device" in capsys.readouterr().err
    assert main(["search", str(index), picture, "--model", str(model)]) == 2
    assert "give --decoding device, or build the index again" in capsys.readouterr().err
    arguments = Namespace(index=str(index), model=None)
    with pytest.raises(InputError, match="a service decodes images on the CPU; build the index and serve it with"):
        _embedder(arguments, Index.load(index))


def test_a_service_of_a_model_that_was_trained_so_is_refused(run: Path, jpegs: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    assert main(["index", str(index), "--source", str(jpegs), "--model", str(run)]) == 0
    with pytest.raises(InputError, match="a service decodes images on the CPU"):
        _embedder(Namespace(index=str(index)), Index.load(index))
    assert main(["index", str(index), "--source", str(jpegs), "--model", str(run), "--decoding", "workers",
                 "--overwrite"]) == 0  # fmt: skip
    assert _embedder(Namespace(index=str(index)), Index.load(index)).dim == 16


def test_the_gallery_of_an_exported_model_is_decoded_on_the_cpu(
    jpegs: Path, run: Path, decoder: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its images are, whatever decoded those of the training."""
    given: dict[str, np.ndarray] = {}
    monkeypatch.setattr("vicinal.export.exporter.export_model", lambda *_, **options: given.update(options))
    export_source(str(run), tmp_path / "m.onnx", ExportSettings(), gallery=str(jpegs))
    assert (given["gallery"].shape, decoder) == ((24, 16), [])


def test_embeddings_are_nearly_those_of_workers(
    jpegs: Path, decoder: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Embedder("test_resnet", dim=4, pretrained=False).save_pretrained(tmp_path / "model")
    (jpegs / "a" / "0.jpg").rename(tmp_path / "0.jpg")
    (jpegs / "a" / "0.jpg").write_bytes(b"broken")
    try:
        vectors, fingerprints = [], []
        for decoding in ("workers", "device"):
            out, flags = tmp_path / f"{decoding}.parquet", ["--model", tmp_path / "model", "--decoding", decoding]
            output(capsys, "embed", jpegs, *flags, "--out", out)
            output(capsys, "embed", jpegs, *flags, "--shard", "1/1", "--out", tmp_path / decoding)
            output(capsys, "embed", "--merge", tmp_path / decoding, "--out", tmp_path / "merged.parquet")
            for path in (out, tmp_path / "merged.parquet"):
                vectors.append(load_embeddings(path)[0])
                fingerprints.append(read_fingerprint(path))
    finally:
        (tmp_path / "0.jpg").rename(jpegs / "a" / "0.jpg")
    assert fingerprints[2] == fingerprints[3] == f"{fingerprints[0]}+decoding device"
    assert [len(each) for each in vectors] == [23] * 4
    np.testing.assert_allclose(vectors[2], vectors[3], atol=1e-6)
    assert (vectors[0] * vectors[2]).sum(axis=1).min() > 0.999
    assert decoder == [23, 23]


@pytest.fixture
def broken(jpegs: Path, tmp_path: Path) -> Path:
    """The images, three of which cannot be read; the CPU has to try one of them, which is cut off."""
    folder = Path(copytree(jpegs, tmp_path / "jpegs"))
    content = (folder / "b" / "0.jpg").read_bytes()
    scan = content.index(b"\xff\xda")
    contents = {
        "a/0": b"",
        "a/1": content[:-90],  # cut off
        "b/0": content[: scan + 14] + b"\xff\xd9",  # an end without an image
        "b/1": content[:2] + b"\xff\xd9",
        "c/0": content[:scan].replace(b"\xff\xc4", b"\xff\xfe") + content[scan:],  # without Huffman tables
    }
    for name, content in contents.items():
        (folder / f"{name}.jpg").write_bytes(content)
    return folder


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the JPEGs that the CPU decodes."""
    paths: list[str] = []

    def recorded(decode: Callable[..., object]) -> Callable[..., object]:
        def decode_and_record(jpeg: EncodedJpeg, *more: float) -> object:
            paths.append(Path(jpeg._path).name)
            return decode(jpeg, *more)

        return decode_and_record

    for name in ("decode", "pixels"):
        monkeypatch.setattr(EncodedJpeg, name, recorded(getattr(EncodedJpeg, name)))
    return paths


def test_a_folder_leaves_out_what_workers_do_and_the_cpu_decodes_nothing_else(
    broken: Path, decoder: list[int], decoded: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Embedder("test_resnet", dim=4, pretrained=False).save_pretrained(tmp_path / "model")
    said, frames = [], []
    for decoding in ("workers", "device"):
        decoded.clear()
        flags = ["--model", str(tmp_path / "model"), "--decoding", decoding, "--out", str(tmp_path / "e.parquet")]
        assert main(["embed", str(broken), *flags]) == 0
        said.append(capsys.readouterr().err)
        frames.append(load_embeddings(tmp_path / "e.parquet")[1].frame)
    assert frames[0].equals(frames[1])
    assert said[0] == said[1]
    assert "left out 3 of 24 images" in said[0]
    assert {*decoded} == {"1.jpg"}


def test_models_that_are_compared_decode_each_image_once_and_none_on_the_cpu(
    broken: Path, decoder: list[int], decoded: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Although their speed is measured, and none of the first batch can be read."""
    models = [str(tmp_path / "one"), str(tmp_path / "other")]
    for model in models:
        Embedder("test_resnet", dim=4, pretrained=False, transform=ImageTransform(size=32)).save_pretrained(model)
    reader = EmbeddingReader(measure=True, batch_size=1, on_error="skip", decoding="device")
    embedded = dict(embed_several(reader, models, images=str(broken)))
    assert [len(each.table) for each in embedded.values()] == [21, 21]
    assert all(each.cost is not None and each.cost.images_per_second for each in embedded.values())
    assert capsys.readouterr().err.count("left out 3 of 24 images that cannot be read:\n  row 0: ") == 2
    assert sum(decoder) == 2 * 21
    assert {*decoded} == {"1.jpg"}


def test_a_training_finds_unreadable_images_where_it_decodes_them(
    broken: Path, decoder: list[int], decoded: list[str], tmp_path: Path
) -> None:
    flags = ["--batch_size=4", "--data.cache=false", "--data.num_workers=0", "--data.on_error=skip"]
    flags += ["--data.fractions={train: 0.5, val: 0.5}", "--data.order=in_order"]
    by_workers = trainer(broken, tmp_path / "workers", *flags)
    decoded.clear()
    by_device = trainer(broken, tmp_path / "device", *flags, "--data.decoding=device")
    assert {*decoded} == {"1.jpg"}
    assert decoder == [9, 12]  # for training and for validation
    assert by_device.images.skipped == by_workers.images.skipped == [0, 1, 4]
    assert by_device.images.table.frame.equals(by_workers.images.table.frame)
    assert by_device.val_images is not None
    assert len(by_device.val_images) == 12


class OneProcess:
    """Does what a pool of processes would do, in this one."""

    def __init__(self, *_: object, **__: object) -> None:
        self.shutdown = self.__init__

    def submit(self, function: Callable[..., object], *arguments: object) -> Future[object]:
        future: Future[object] = Future()
        future.set_result(function(*arguments))
        return future


def test_processes_of_a_refiner_decode_images_once_and_leave_out_those_that_cannot_be_read(
    broken: Path,
    run: Path,
    decoder: list[int],
    decoded: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("vicinal.workflows.embedding.embed_processes.ProcessPoolExecutor", OneProcess)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(refine, "EmbeddingReader", partial(EmbeddingReader, batch_size=3))
    source = RunFolder(Path(copytree(run, tmp_path / "run")))
    source.recipe.write_text(source.recipe.read_text().replace("on_error: raise", "on_error: skip"))
    table, found, said = Table(load_table(str(broken)).frame.assign(split="train")), [], []
    for devices in (1, 2):
        recipe = RefinerRecipe.load(overrides=[f"--run={run}", "--accelerator=cpu", f"--devices={devices}"])
        found.append(refine._embed(source, table, recipe))
        said.append(capsys.readouterr().err)
    assert found[0].table.frame.equals(found[1].table.frame)
    np.testing.assert_array_equal(found[0].vectors, found[1].vectors)
    assert "left out 3 of 24 images that cannot be read:\n  row 0: " in said[0]
    assert said[1] == "embedding 24 images in 2 processes\n" + said[0]
    assert sum(decoder) == 2 * 21
    assert {*decoded} == {"1.jpg"}


def test_a_folder_without_a_readable_image_is_said_to_be_so(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"")
    assert main(["embed", str(tmp_path / "photos"), "--model", str(run), "--out", str(tmp_path / "e.parquet")]) == 2
    assert "error: none of the 1 images can be read; row 0: " in capsys.readouterr().err


def test_processes_that_divide_images_decode_them_as_one(
    jpegs: Path, run: Path, decoder: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    for decoding, expected in ((None, [5]), ("workers", [5])):
        reader = EmbeddingReader(model=str(run), device="cpu", decoding=decoding)  # type: ignore[arg-type]
        _embed_part(reader, load_table(str(jpegs)), range(2, 7), 1)
        assert decoder == expected


def test_a_head_on_frozen_features_of_a_device(jpegs: Path, decoder: list[int], tmp_path: Path) -> None:
    flags = ["--features=frozen", f"--feature_cache={tmp_path / 'cache'}", "--data.cache=false", "--data.num_workers=0"]
    for decoding in ("workers", "device", "device"):
        trainer(jpegs, tmp_path / "run", *flags, f"--data.decoding={decoding}")
    assert len(decoder) == 1
    assert len(list((tmp_path / "cache").iterdir())) == 2


@pytest.mark.parametrize("features", ["trained", "frozen"])
def test_a_run_goes_on_without_a_gpu_as_its_error_says(
    jpegs: Path, tmp_path: Path, features: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFolder(tmp_path / "run")
    flags = [f"--features={features}", f"--feature_cache={tmp_path / 'cache'}"] if features == "frozen" else []
    with libjpeg():
        train(Recipe.load(overrides=[f"--data.source={jpegs}", *SMALL, *DEVICE, *flags, "--epochs=1"]), run.path)
    command = ["train", "--out", str(run.path), "--resume"]
    assert main(command) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "data.decoding = device decodes JPEGs by nvJPEG, which needs a CUDA GPU, not cpu; give --data." in error
    assert main([*command, "--epochs=2", *flag_of(error)]) == 0
    assert "resuming with epochs = 2, data.decoding = workers\n" in capsys.readouterr().err
    assert pd.read_csv(run.metrics)["epoch"].tolist() == [0, 1, 2]
    assert Embedder.from_pretrained(run.model).recipe["data"]["decoding"] == "workers"


def flag_of(error: str) -> list[str]:
    """The flag that an error says to give."""
    match = re.search(r"give (--\S+) (\w+)", error)
    assert match is not None, error
    return [match[1], match[2]]


def test_without_a_gpu_nothing_is_begun(
    jpegs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = tmp_path / "model", tmp_path / "out.parquet"
    Embedder("test_resnet", dim=4, pretrained=False).save_pretrained(model)
    monkeypatch.setattr("vicinal.data.batches.image_dataset.open_image", lambda *_: pytest.fail("an image is read"))
    shards, flags = tmp_path / "shards", ["--model", model, "--decoding", "device", "--device", "cpu"]
    commands = [
        ["train", "--data.source", jpegs, *SMALL, *DEVICE, "--out", tmp_path / "run"],
        ["embed", jpegs, *flags, "--out", out],
        ["embed", jpegs, *flags, "--shard", "1/2", "--out", shards],
        ["index", tmp_path / "index", "--source", jpegs, *flags],
    ]
    for command in commands:
        assert main([str(word) for word in command]) == 2, command
        error = capsys.readouterr().err.strip().splitlines()[-1]
        flag = "--data.decoding" if command[0] == "train" else "--decoding"
        advice = f"decodes JPEGs by nvJPEG, which needs a CUDA GPU, not cpu; give {flag} workers, which"
        assert advice in error, command
    assert not any(path.exists() for path in (out, shards, tmp_path / "index"))
    with pytest.raises(InputError, match="which needs a CUDA GPU"):
        Embedder.from_pretrained(model).embed([str(jpegs / "lost.jpg")], decoding="device")


TINY_REFINER = ["--accelerator=cpu", "--refiner.depth=1", "--refiner.neighbors=2", "--epochs=1", "--keep=last",
                "--batch_size=4", "--samples_per_class=2", "--augmentation.noise=0"]  # fmt: skip


def test_a_refiner_without_a_gpu_is_told_of_embeddings(
    finished: tuple[Path, list[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["refine", "--run", str(finished[0]), "--accelerator=cpu", "--out", str(tmp_path / "refiner")]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"give embeddings of vicinal embed {finished[0]} --decoding workers" in error


@pytest.mark.slow
def test_a_refiner_with_an_embedder_of_its_own_is_trained_without_a_gpu_as_its_errors_say(
    finished: tuple[Path, list[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = copytree(finished[0], tmp_path / "run"), tmp_path / "refiner"
    command = ["refine", "--run", str(run), *TINY_REFINER, "--embedder_fraction=0.67", "--out", str(out)]
    assert main(command) == 2
    remedy = f"train --out {run} --resume --data.decoding workers"
    assert f"begin with vicinal {remedy}\n" in capsys.readouterr().err
    with libjpeg():
        assert main(command) == 0
    (out / "embeddings.parquet").unlink()  # as if it had been stopped between its two trainings
    assert main(["refine", "--out", str(out), "--resume"]) == 2
    of_embedder = remedy.replace(str(run), f"{out}/embedder")
    assert f"begin with vicinal {of_embedder}\n" in capsys.readouterr().err
    assert main(of_embedder.split()) == main(["refine", "--out", str(out), "--resume"]) == 0
    assert main(remedy.split()) == main([*command[:-1], str(tmp_path / "other")]) == 0


def test_a_refiner_is_exported_after_a_gpu_decoded_for_it_as_its_errors_say(
    finished: tuple[Path, list[int]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vicinal.export.exporter.export_model", lambda *_, **__: pytest.fail("exported"))
    run = finished[0]
    with libjpeg():
        ours, ours_refined = embed_and_refine(run, tmp_path / "device")
    theirs, refined = embed_and_refine(run, tmp_path / "workers", "--decoding", "workers")
    capsys.readouterr()
    for refiner, gallery in ((ours_refined, theirs), (refined, ours)):
        command = ["export", run, "--out", tmp_path / "m.onnx", "--refiner", refiner, "--gallery", gallery]
        assert main([str(word) for word in command]) == 2
        advice = (
            "a GPU decoded for one of them: make both by vicinal embed --decoding workers, and train a refiner on these"
        )
        assert capsys.readouterr().err.strip().endswith(advice)
    given: dict[str, np.ndarray] = {}
    monkeypatch.setattr("vicinal.export.exporter.export_model", lambda *_, **options: given.update(options))
    output(capsys, "export", run, "--out", tmp_path / "m.onnx", "--refiner", refined, "--gallery", theirs)
    assert given["gallery"].shape == (24, 16)


def embed_and_refine(run: Path, out: Path, *flags: str) -> tuple[Path, Path]:
    """The embeddings of a run, and a refiner trained on them."""
    out.mkdir()
    embeddings = out / "e.parquet"
    assert main(["embed", str(run), *flags, "--out", str(embeddings)]) == 0
    assert main(["refine", "--embeddings", str(embeddings), *TINY_REFINER, "--out", str(out / "refiner")]) == 0
    return embeddings, out / "refiner"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--data.cache=true"], "data.decoding = device must be workers with data.cache"),
        (["--transform.rotation=10"], "transform.rotation = 10.0 must be 0 with data.decoding = device"),
        (["--transform.fast=false"], "transform.fast must be true"),
        (["--transform.longest=64", "--micro_batch_size=1"], "transform.longest (--max_size) null"),
    ],
)
def test_settings_that_a_device_cannot_follow_are_refused(
    jpegs: Path, decoder: list[int], tmp_path: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--data.source", str(jpegs), *SMALL, *DEVICE, *flags, "--out", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err


def test_options_that_exclude_each_other(run: Path, jpegs: Path, tmp_path: Path, decoder: list[int]) -> None:
    with pytest.raises(InputError, match="decoding = device makes one size of each image; leave out --scales"):
        EmbeddingReader(decoding="device", scales=(1.0,))
    with pytest.raises(InputError, match="give --decoding workers with --scales"):
        EmbeddingReader(model=str(run), scales=(1.0,)).embed(str(jpegs))
    with pytest.raises(InputError, match="--ray: all CPUs of the cluster decode images; give --decoding workers"):
        embed_on_ray(EmbeddingReader(model=str(run)), str(jpegs), tmp_path / "ray")
    embed_shard(EmbeddingReader(model=str(run)), str(jpegs), tmp_path / "shards", 1, 1)
    with pytest.raises(InputError, match="decoding device"):
        embed_shard(EmbeddingReader(model=str(run), decoding="workers"), str(jpegs), tmp_path / "shards", 1, 1)
    with pytest.raises(InputError, match="holds embeddings already; leave out --decoding"):
        EmbeddingReader(decoding="workers").embed(str(tmp_path / "shards"))
    assert nvjpeg.check_nvjpeg("cpu") is None  # type: ignore[func-returns-value]  # as patched
