import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.refusals import refused_call
from vicinal.cli.main import main
from vicinal.data import ImageTransform, Table, load_embeddings
from vicinal.data.embedding_files import ENGINE_KEY
from vicinal.data.parquet_files import read_metadata
from vicinal.export import ExportedEmbedder
from vicinal.export import exported_embedder as engine
from vicinal.export.exported_embedder import engine_name, with_engine
from vicinal.models import Embedder
from vicinal.utils.errors import InputError
from vicinal.utils.files import DIGESTS, cache_folder

pytest.importorskip("openvino")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VICINAL_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(engine, "MIN_IMAGES", 10)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def engines(model: Embedder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the model exported for each engine; read only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VICINAL_DATA", str(tmp_path_factory.mktemp("engines")))
        for name in ("openvino", "onnx"):
            with_engine(model, name, "cpu")
        return cache_folder()


@pytest.fixture
def exported(engines: Path, cache: Path) -> Path:
    return Path(shutil.copytree(engines, cache))


def test_auto_exports_once_and_says_so_once(model: Embedder, photos: Path, capfd: pytest.CaptureFixture[str]) -> None:
    table = Table.from_folder(photos)
    exported = with_engine(model, "auto", "cpu", len(table))
    assert engine_name(exported) == "openvino"
    assert exported.fingerprint() == model.fingerprint()
    assert "embedding with OpenVINO" in capfd.readouterr().err
    np.testing.assert_allclose(exported.embed(table, progress=False), model.embed(table, progress=False), atol=1e-5)
    assert isinstance(with_engine(model, "auto", "cpu", 1), ExportedEmbedder), "what was exported serves few images too"
    assert capfd.readouterr().err == ""


DAMAGE: list[tuple[str, Callable[[bytes], bytes | None]]] = [
    ("model.xml", lambda data: data[: len(data) // 2]),
    ("model.bin", lambda data: data[:-99] + bytes([data[-99] ^ 64]) + data[-98:]),  # another vector, and no error
    ("model.preprocessing.json", lambda data: data.replace(b'"size": 32', b'"size": 16')),
    (DIGESTS, lambda _: b"[" * 100_000),
    ("model.bin", lambda _: None),
]


@pytest.mark.slow
def test_a_damaged_export_is_made_again(model: Embedder, exported: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pixels = torch.randint(0, 256, (2, 3, 32, 32)).float()
    expected = with_engine(model, "openvino", "cpu").embed_batch(pixels)
    (folder,) = (exported / "engines").glob("*-openvino-*")
    for name, damaged in DAMAGE:
        content = damaged((folder / name).read_bytes())
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)
        capfd.readouterr()
        found = with_engine(model, "openvino", "cpu").embed_batch(pixels)
        np.testing.assert_array_equal(found, expected, err_msg=name)
        assert "exporting again" in capfd.readouterr().err
    assert len(list((exported / "engines").iterdir())) == 2


def test_auto_stays_with_torch(model: Embedder, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_engine(model, "auto", "cpu", 9) is model, "few images"
    assert with_engine(model, "auto", "cuda", 99) is model
    transformer = Embedder("test_vit", dim=8, pretrained=False)
    assert with_engine(transformer, "auto", "cpu", 999) is transformer
    assert with_engine(model, "auto", "cpu", 99, obstacle="whole images") is model
    assert with_engine(model, "torch", "cpu", 99) is model
    monkeypatch.setattr(engine, "find_spec", lambda _: None)
    assert with_engine(model, "auto", "cpu", 99) is model, "not installed"
    assert not cache.exists()


def test_an_export_that_differs_is_refused_and_remembered(model: Embedder, cache: Path, monkeypatch, capfd) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InputError("the vectors differ")

    monkeypatch.setattr("vicinal.export.exporter.export_model", refuse)
    assert with_engine(model, "auto", "cpu", 99) is model
    assert "embedding with PyTorch, since OpenVINO cannot: the vectors" in capfd.readouterr().err
    assert [path.name for path in cache.rglob("*") if path.is_file()] == [engine.REFUSED]
    assert with_engine(model, "auto", "cpu", 99) is model
    assert capfd.readouterr().err == ""
    with pytest.raises(InputError, match=r"engine = openvino: the vectors differ; use --engine torch"):
        with_engine(model, "openvino", "cpu", 99)


def test_engines_that_are_asked_for_and_cannot(model: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="engine = onnx: the device is cuda, and other engines run on a CPU"):
        with_engine(model, "onnx", "cuda", 99)
    monkeypatch.setitem(engine.PACKAGES, "openvino", ("no_such_package", "openvino"))
    refused_call(r"pip install 'vicinal\[openvino\]'", with_engine, model, "openvino", "cpu", 99)


@pytest.mark.slow
def test_modules_of_users_are_exported_each_time(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64, 4))
    model = Embedder.from_module(module, ImageTransform(size=8)).eval()
    assert with_engine(model, "auto", "cpu", 99) is model
    for _ in range(2):
        assert engine_name(with_engine(model, "openvino", "cpu", 99)) == "openvino"
        assert "embedding with OpenVINO" in capfd.readouterr().err


def run(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.mark.usefixtures("exported")
def test_the_command(model: Embedder, photos: Path, tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    model.save_pretrained(tmp_path / "model")
    vectors = {}
    for name in ("torch", "openvino", "onnx", "auto"):
        out = tmp_path / f"{name}.parquet"
        assert run("embed", photos, "--model", tmp_path / "model", "--engine", name, "--out", out) == 0
        vectors[name] = load_embeddings(out)[0]
        assert read_metadata(out, ENGINE_KEY) == {"auto": "openvino"}.get(name, name)
        np.testing.assert_allclose(vectors[name], vectors["torch"], atol=1e-4)
    np.testing.assert_array_equal(vectors["auto"], vectors["openvino"])
    assert run("index", "build", tmp_path / "index", photos, "--model", tmp_path / "model") == 0
    query = photos / "class0" / "0.png"
    monkeypatch.setattr(engine, "find_spec", lambda _: None)  # the index does not require the engine that made it
    capfd.readouterr()
    assert run("search", tmp_path / "index", query, "-k", 3, "--json") == 0
    matches = json.loads(capfd.readouterr().out)[0]["matches"]
    assert matches[0]["score"] == pytest.approx(1, abs=1e-4)
    for name, words, problem in (
        ("precision", ["--precision", "bf16"], "engine = onnx: precision is bf16"),
        ("scales", ["--scales", "1", "0.7"], "engine = onnx: images are embedded at several scales"),
    ):
        out = tmp_path / f"{name}.parquet"
        assert run("embed", photos, "--model", tmp_path / "model", "--engine", "onnx", "--out", out, *words) == 2
        assert problem in capfd.readouterr().err


@pytest.mark.usefixtures("exported")
def test_shards_record_the_engine(model: Embedder, photos: Path, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "model")
    for shard, name in ((1, "openvino"), (2, "torch")):
        words = ["embed", photos, "--model", tmp_path / "model", "--engine", name, "--out", tmp_path / "shards"]
        assert run(*words, "--shard", f"{shard}/2") == 0
    parts = sorted((tmp_path / "shards").rglob("*.parquet"))
    assert [read_metadata(part, ENGINE_KEY) for part in parts] == ["openvino", "torch"]
    merged, table = load_embeddings(tmp_path / "shards")
    np.testing.assert_allclose(merged, model.embed(table, progress=False), atol=1e-5)
