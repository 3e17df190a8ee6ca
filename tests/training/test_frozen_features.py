"""Training of the head on frozen features: the same as with a frozen backbone, from a cache that is written once."""

import os
import re
import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor

from tests.damage import flipped
from tests.refusals import refused_call
from vicinal.data import ImageDataset, Table, load_table
from vicinal.data.images.transforms import ImageTransform
from vicinal.models import Embedder
from vicinal.models.execution import eval_mode
from vicinal.training import Recipe, resume, train
from vicinal.training.base_trainer import BaseTrainer
from vicinal.training.checkpoint import load_checkpoint
from vicinal.training.feature_cache import CHECKSUMS, FEATURES, INFO, PARTIAL, cached_features
from vicinal.training.runs import create_trainer
from vicinal.training.training_data import load_training_table
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import RunFolder

PLAIN = ["--transform.resize=16", "--transform.scale=[1, 1]", "--transform.ratio=[1, 1]", "--transform.flip=0"]


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """The photos as squares, which a training crop without augmentation leaves whole."""
    folder = tmp_path_factory.mktemp("squares")
    for path in photos.rglob("*.png"):
        (folder / path.parent.name).mkdir(exist_ok=True)
        Image.open(path).resize((16, 16)).save(folder / path.parent.name / path.name)
    return folder


@pytest.fixture
def settings(small: list[str], squares: Path, tmp_path: Path) -> list[str]:
    splits = "--data.fractions={train: 0.5, val: 0.25, test: 0.25}"
    more = [f"--data.source={squares}", "--data.cache=false", splits]
    return [*small, *more, "--features=frozen", f"--feature_cache={tmp_path / 'cache'}"]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counts: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # several threads take batches in any order
    pooled_features = Embedder.pooled_features

    def counted(self: Embedder, images: Tensor) -> Tensor:
        counts.extend([len(images)] if images.ndim == 4 else [])
        return pooled_features(self, images)

    monkeypatch.setattr(Embedder, "pooled_features", counted)
    return counts


def run_of(settings: list[str], out: Path) -> RunFolder:
    return train(Recipe.load(overrides=settings), out)


def tensors(run: RunFolder) -> dict[str, Tensor]:
    return safetensors.torch.load_file(run.model / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        ["--model.dropout=0.2", "--model.norm=layer_affine", "--max_grad_norm=0.1", "--validation.train_images=8"],
        ["--model.hidden=24", "--loss=SiMix", "--loss.loss=RecallAtKLoss", "--model.projector=12"],
        ["--loss=CrossBatchMemory", "--loss.loss=ContrastiveLoss", "--loss.size=16", "--micro_batch_size=3"],
        ["--sample_selection.method=prism", "--loss=ProxyAnchorLoss", "--centers=class_means"],
        ["--loss=S2SD", "--loss.loss=MultiSimilarityLoss", "--accumulate_grad_batches=2", "--optimizer.name=sgd"],
    ],
    ids=lambda more: more[0],
)
def test_it_is_as_training_with_a_frozen_backbone(settings: list[str], tmp_path: Path, more: list[str]) -> None:
    frozen = run_of([*settings, *PLAIN, *more], tmp_path / "frozen")
    trained = ["--features=trained", "--feature_cache=null", "--freeze_backbone_epochs=2"]
    whole = run_of([*settings, *PLAIN, *more, *trained], tmp_path / "whole")
    ours, expected = (load_checkpoint(run.last)["module"] for run in (frozen, whole))
    assert {name for name in expected if "backbone" not in name and "pooling" not in name} == ours.keys()
    weights = [name for name, value in ours.items() if isinstance(value, Tensor)]
    for name in weights:  # AdamW magnifies what rounding makes of a gradient near 0: 1.3e-6 was seen
        torch.testing.assert_close(ours[name], expected[name], rtol=1e-5, atol=1e-5, msg=f"{name} differs")
    begun = load_checkpoint(frozen.best)["module"]  # the first evaluation is perfect already
    assert not any(torch.equal(begun[name], ours[name]) for name in weights if name.startswith("embedder.head"))
    for name, tensor in tensors(whole).items():
        torch.testing.assert_close(tensors(frozen)[name], tensor, rtol=1e-5, atol=1e-5, msg=f"{name} differs")


def test_the_model_is_a_whole_one(settings: list[str], tmp_path: Path) -> None:
    run = run_of(settings, tmp_path / "run")
    model, table = Embedder.from_pretrained(run.model), Table.from_parquet(run.table)
    features = cached_features(model, table, tmp_path / "cache")
    rows = [features.rows[path] for path in table.paths]
    with eval_mode(model), torch.inference_mode():
        expected = model(torch.from_numpy(features.vectors[rows]))
    np.testing.assert_allclose(model.embed(table), expected.numpy(), atol=1e-6)
    assert not any("backbone" in name for name in load_checkpoint(run.last)["module"])
    assert {"val recall@1"} <= set(model.metrics)


def test_co_teaching_trains_two_heads(settings: list[str], tmp_path: Path) -> None:
    more = ["--sample_selection.method=co-teaching", "--loss=NormSoftmaxLoss"]
    state = load_checkpoint(run_of([*settings, *more], tmp_path / "run").last)["module"]
    assert not torch.equal(state["embedder.head.1.weight"], state["peer.head.1.weight"])


def test_images_are_read_once_for_all_runs(settings: list[str], tmp_path: Path, passes: list[int], monkeypatch) -> None:
    run_of(settings, tmp_path / "1")
    assert sum(passes) == 36  # train and val, not test
    monkeypatch.setattr(ImageDataset, "load", lambda *_: pytest.fail("an image is read"))
    monkeypatch.setattr(BaseTrainer, "finish", lambda self: None)
    for more in (
        ["--loss=TripletLoss", "--model.dim=8", "--model.dropout=0.5", "--model.norm=none"],
        [
            "--data.fractions={train: 0.25, val: 0.5, test: 0.25}",
            "--transform.flip=0",
            "--data.noise.random_labels=0.2",
            "--batch_size=4",
        ],
    ):
        run_of([*settings, *more], tmp_path / more[0])
    assert sum(passes) == 36


def test_features_depend_on_model_transform_and_images(squares: Path, tmp_path: Path, passes: list[int]) -> None:
    source = shutil.copytree(squares, tmp_path / "squares")
    table = load_table(str(source))

    def embedder(seed: int = 0, pooling: Any = "gem", p: float = 3.0, **transform: Any) -> Embedder:
        torch.manual_seed(seed)
        options = {"size": 16, **transform}
        return Embedder("test_resnet", 4, pooling, pretrained=False, p=p, transform=ImageTransform(**options))

    def key(model: Embedder, **options: Any) -> str:
        features = cached_features(model, table, tmp_path / "cache", **options)
        assert features.vectors.shape == (48, 96)
        return features.key.name

    keys = [key(embedder())]
    assert key(embedder(flip=0.1, scale=(0.5, 1.0))) == keys[0]
    keys += [key(embedder(seed=1)), key(embedder(p=2)), key(embedder(pooling="avg")), key(embedder(size=18))]
    keys += [key(embedder(), dtype="float16"), key(embedder(), precision="bf16")]
    Image.new("RGB", (16, 16)).save(source / "class0" / "0.png")
    keys.append(key(embedder()))
    os.utime(source / "class0" / "0.png", (1, 1))
    keys.append(key(embedder()))
    (source / "class0" / "0.png").rename(source / "class0" / "00.png")
    table = load_table(str(source))
    keys.append(key(embedder()))
    assert len(set(keys)) == len(keys)
    assert sum(passes) == 48 * len(keys)


@pytest.fixture
def model() -> Embedder:
    return Embedder("test_resnet", 4, pretrained=False, transform=ImageTransform(size=16))


@pytest.fixture
def table(squares: Path) -> Table:
    return load_table(str(squares))


@pytest.fixture
def broken_off(
    model: Embedder, table: Table, tmp_path: Path, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> Callable[[int, int], Path]:
    """The folder of a cache whose pass ended with an error in a batch of this number."""

    def begin(number: int, batch_size: int) -> Path:
        counted = Embedder.pooled_features
        with monkeypatch.context() as patch:
            patch.setattr(Embedder, "pooled_features", lambda *args: [counted(*args), 1 / (len(passes) < number)][0])
            with pytest.raises(ZeroDivisionError):
                cached_features(model, table, tmp_path / "cache", batch_size=batch_size)
        del passes[:]
        return tmp_path / "cache"

    return begin


def test_an_interrupted_pass_continues_also_with_another_batch_size(
    model: Embedder, table: Table, tmp_path: Path, passes: list[int], broken_off: Callable[[int, int], Path]
) -> None:
    whole = cached_features(model, table, tmp_path / "whole", batch_size=10).vectors
    del passes[:]
    cache = broken_off(3, 10)
    (partial,) = cache.rglob(PARTIAL)
    with partial.open("ab") as file:
        file.write(bytes(1_000))  # two rows of the next batch, and a part of a third
    features = cached_features(model, table, cache, batch_size=10)
    assert passes == [10, 10, 8]  # two batches were kept, the third was lost
    np.testing.assert_array_equal(features.vectors, whole)
    assert isinstance(features.vectors, np.memmap)
    assert not partial.exists()
    shutil.rmtree(cache)
    del passes[:]
    cached_features(model, table, broken_off(4, 8), batch_size=16)
    assert passes == [16, 16]  # of three batches of eight images, two are a whole one


@pytest.mark.parametrize("damaged", [PARTIAL, CHECKSUMS])
def test_a_flipped_bit_in_a_partial_file_is_noticed(
    damaged: str,
    model: Embedder,
    table: Table,
    tmp_path: Path,
    passes: list[int],
    broken_off: Callable[[int, int], Path],
) -> None:
    whole = cached_features(model, table, tmp_path / "whole", batch_size=10).vectors
    del passes[:]
    (path,) = broken_off(5, 10).rglob(damaged)
    content = path.read_bytes()
    begun = shutil.copytree(tmp_path / "cache", tmp_path / "begun")
    for where in (0.05, 0.5, 0.95):
        shutil.rmtree(tmp_path / "cache")
        shutil.copytree(begun, tmp_path / "cache")
        path.write_bytes(flipped(content, int(where * len(content))))
        del passes[:]
        features = cached_features(model, table, tmp_path / "cache", batch_size=10)
        np.testing.assert_array_equal(features.vectors, whole)
        assert passes[0] == 10
        assert sum(passes) > 8  # the four batches before the last one were there


def test_a_resumed_run_refuses_features_of_another_model(settings: list[str], tmp_path: Path) -> None:
    def write_weights(seed: int) -> None:
        torch.manual_seed(seed)
        model = Embedder("test_resnet", 4, pretrained=False)
        weights = {name: tensor.contiguous() for name, tensor in model.backbone.state_dict().items()}
        safetensors.torch.save_file(weights, tmp_path / "w.safetensors")

    write_weights(0)
    run = run_of([*settings, f"--model.pretrained={tmp_path / 'w.safetensors'}"], tmp_path / "run")
    write_weights(1)
    refused_call(r"run: was trained on features of the model \w+, and the recipe's is \w+$", resume, run.path)


def test_unreadable_images_are_looked_for_once(settings: list[str], squares: Path, tmp_path: Path, monkeypatch) -> None:
    source = shutil.copytree(squares, tmp_path / "squares")
    settings = [*settings, f"--data.source={source}"]
    for path in source.glob("*/3.png"):
        path.write_bytes(b"broken")
    with pytest.raises(InputError, match=r"3\.png: not an image.*; --data.on_error skip leaves out such images"):
        run_of(settings, tmp_path / "raised")
    settings.append("--data.on_error=skip")
    first = run_of(settings, tmp_path / "1")
    monkeypatch.setattr(ImageDataset, "load", lambda *_: pytest.fail("an image is read"))
    one = create_trainer(
        recipe := Recipe.load(overrides=settings), load_training_table(recipe.settings), RunFolder(tmp_path / "2")
    )
    assert len(one.images.table) == 20
    assert not any(path.endswith("3.png") for path in one.images.table.paths)
    one.fit()
    assert (one.run.model / "model.safetensors").read_bytes() == (first.model / "model.safetensors").read_bytes()


def test_whole_images_and_whitened_heads(settings: list[str], squares: Path, tmp_path: Path) -> None:
    from vicinal.retrieval import PCAWhitening

    features = np.random.default_rng(0).standard_normal((500, 96))
    PCAWhitening.fit(features, 16).save(tmp_path / "whitening.safetensors")
    more = ["--transform.longest=32", f"--model.head_whitening={tmp_path / 'whitening.safetensors'}", "--model.norm=l2"]
    settings = [each for each in settings if not each.startswith("--transform.size")]
    run = run_of([*settings, *more, "--feature_dtype=float16"], tmp_path / "run")
    assert Embedder.from_pretrained(run.model).transform.longest == 32


def test_settings_that_frozen_features_contradict(settings: list[str], tmp_path: Path) -> None:
    for flag, message in (
        ("--model.learned_p=true", "model.learned_p = true must be false with features = frozen"),
        ("--model.dim=null", "model.dim = null must be a number with features = frozen"),
    ):
        refused_call(message, run_of, [*settings, flag], tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "cache").exists()


def test_caches_that_cannot_be_used(model: Embedder, table: Table, tmp_path: Path, monkeypatch) -> None:
    def read(folder: str = "cache", **options: Any) -> str:
        with pytest.raises(InputError) as error:
            cached_features(model, table, tmp_path / folder, **options)
        assert "\n" not in str(error.value)
        return str(error.value)

    cache = tmp_path / "cache" / cached_features(model, table, tmp_path / "cache").key.name
    data = (cache / FEATURES).read_bytes()
    (cache / FEATURES).write_bytes(data[:-1])
    assert re.search(r"features.npy: not a complete .npy file .*; delete", read())
    np.save(cache / FEATURES, np.zeros((3, 96), np.float32))
    assert "features.npy: float32 [3, 96]; it must be float32 [48, 96]; delete" in read()
    (cache / FEATURES).write_bytes(data[:-9] + bytes([data[-9] ^ 64]) + data[-8:])
    assert "features.npy: damaged, its digest differs; delete" in read()
    info = (cache / INFO).read_text()
    for rows in ("[48]", "[1e999]", f"[{10**400}]", '["0"]', "[" * 100_000):
        (cache / INFO).write_text(info.replace('"skipped": []', f'"skipped": {rows}'))
        assert "does not describe a cache of features; delete" in read()
    (cache / INFO).write_text(info.replace(model.fingerprint(), "").replace('"model": "', '"model": "0'))
    assert "is a cache of another model or other images" in read()
    (cache / INFO).write_text("{}")
    assert "does not describe a cache of features; delete" in read()
    (cache / INFO).unlink()
    assert f"cache.json: no such file; delete {cache}" in read()
    (tmp_path / "file").write_text("")
    assert "cannot be written" in read("file")
    free = namedtuple("free", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free(10_000))
    assert "the features of 48 images need 1.86e-05 GB, and 1e-05 GB are free; choose another" in read("other")
    assert not [*(tmp_path / "other").rglob(FEATURES)]
    monkeypatch.undo()
    with torch.no_grad():
        next(model.backbone.parameters()).fill_(float("nan"))
    assert "0.png are not finite" in read()
