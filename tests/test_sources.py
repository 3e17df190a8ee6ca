"""Where the command's verbs get their embeddings from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vicinal.cli import main
from vicinal.data import ImageTransform, Table, save_embeddings
from vicinal.errors import InputError
from vicinal.models import ContextRefiner, Embedder
from vicinal.sources import Reading, is_embeddings, load_images, load_model, load_refiner, usable_device


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "m"
    Embedder("test_resnet", dim=8, pretrained=False, transform=ImageTransform(size=16)).save_pretrained(folder)
    return folder


def test_sources_in_turn_keep_their_labels_and_order(model: Path, photos: Path) -> None:
    one, two = photos / "class1" / "0.png", photos / "class2" / "0.png"
    parts = list(Reading(model=str(model)).embed_each([str(one), str(two), str(photos), str(one)]))
    assert [len(part.vectors) for part in parts] == [2, 48, 1]
    assert [part.table.has("label") for part in parts] == [False, True, False]
    np.testing.assert_allclose(parts[0].vectors[0], parts[2].vectors[0], rtol=1e-5, atol=1e-6)
    assert len({part.fingerprint for part in parts}) == 1


def test_a_split_of_embeddings_is_its_rows(model: Path, photos: Path, tmp_path: Path) -> None:
    table = Table.from_folder(photos).split_classes({"train": 0.5, "test": 0.5})
    vectors = np.random.default_rng(0).normal(size=(48, 4)).astype(np.float32)
    save_embeddings(tmp_path / "v.parquet", vectors, table)
    part = Reading().embed(str(tmp_path / "v.parquet"), "test")
    rows = (table.frame["split"] == "test").to_numpy()
    np.testing.assert_array_equal(part.vectors, vectors[rows])
    assert part.table.paths == table.subset("test").paths
    assert part.fingerprint is None


def test_kinds_of_sources(photos: Path, tmp_path: Path) -> None:
    assert len(load_images(str(photos / "class0" / "0.png"))) == 1
    assert len(load_images(str(photos))) == 48
    table = Table.from_folder(photos)
    table.save(tmp_path / "t.parquet")
    save_embeddings(tmp_path / "v.parquet", np.zeros((48, 2), np.float32), table)
    assert [is_embeddings(str(tmp_path / name)) for name in ("t.parquet", "v.parquet", "x.npy")] == [False, True, True]
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    assert not is_embeddings(str(tmp_path / "broken.parquet"))


def test_images_need_a_model_and_devices_a_machine(photos: Path) -> None:
    with pytest.raises(InputError, match="--model"):
        Reading().embed(str(photos))
    with pytest.raises(InputError, match="device nonsense cannot be used"):
        usable_device("nonsense")
    assert usable_device("cpu") == "cpu"


def test_embeddings_in_a_file_remember_their_model(model: Path, photos: Path, tmp_path: Path) -> None:
    fingerprint = load_model(str(model)).fingerprint()
    for file, known in (("v.parquet", fingerprint), ("v.npy", None)):
        assert main(["embed", str(photos), "--model", str(model), "--out", str(tmp_path / file)]) == 0
        assert Reading().embed(str(tmp_path / file)).fingerprint == known
    again = tmp_path / "again.parquet"
    assert main(["embed", str(tmp_path / "v.parquet"), "--out", str(again)]) == 0
    assert Reading().embed(str(again)).fingerprint == fingerprint


def test_fingerprints_are_computed_only_when_asked_for(
    model: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = []
    monkeypatch.setattr(Embedder, "fingerprint", lambda self: counted.append(1) or "abc")
    part = Reading(model=str(model)).embed(str(photos))
    assert not counted
    assert (part.fingerprint, part.fingerprint, len(counted)) == ("abc", "abc", 1)


def test_refiners_from_their_folder_and_their_run(tmp_path: Path) -> None:
    refiner = ContextRefiner(8, depth=2, heads=2)
    refiner.save_pretrained(tmp_path / "run" / "model")
    for path in (tmp_path / "run", tmp_path / "run" / "model"):
        assert load_refiner(str(path)).fingerprint() == refiner.fingerprint()


def test_what_is_no_refiner(model: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text("seed: 0\n")
    ContextRefiner(8, heads=2).save_pretrained(tmp_path / "refiner" / "model")
    (tmp_path / "refiner" / "recipe.yaml").write_text("seed: 0\n")
    for path, message in (
        (tmp_path / "none", "there is no folder"),
        (tmp_path / "empty", r"has no config\.json"),
        (tmp_path / "run", "run has no finished refiner"),
        (model, "is an embedder, not a context refiner; give it with --model"),
        ("someone/refiner-that-is-nowhere", "none from the hub"),
    ):
        with pytest.raises(InputError, match=message):
            load_refiner(str(path))
    with pytest.raises(InputError, match="is a context refiner, not an embedder; give it with --refiner"):
        load_model(str(tmp_path / "refiner"))
