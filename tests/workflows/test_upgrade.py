"""A new model for an old index: embedded while it is searched, compared, switched, rolled back, resumed."""

import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from tests.conftest import draw_photos, output, refused
from tests.refusals import refused_call
from vicinal.cli.main import main
from vicinal.data import Table
from vicinal.models import ContextRefiner
from vicinal.retrieval import Index, LocalEncoder
from vicinal.retrieval.reranking.local_features import encode_items
from vicinal.serving.folder_store import FolderStore
from vicinal.serving.problems import Problem
from vicinal.utils.errors import EngineUnavailableError, InputError
from vicinal.workflows import EmbeddingReader, GenerationComparison, roll_back, upgrade_index
from vicinal.workflows.local_features import stored_encoder
from vicinal.workflows.upgrade_images import UpgradedImages


def embedded(reader: EmbeddingReader, photos: Path, *names: str) -> tuple[np.ndarray, Table]:
    """New pictures in a folder, embedded by a reader."""
    paths = [photos / f"{name}.png" for name in names]
    for number, path in enumerate(paths):
        pixels = np.random.default_rng(100 + len(path.name) + number).integers(0, 255, (20, 24, 3), np.uint8)
        Image.fromarray(pixels).save(path)
    table = Table(pd.DataFrame({"path": list(map(str, paths)), "label": list(names)}))
    return reader.embed_table(table).vectors, table


@dataclass(frozen=True)
class Shop:
    """An index of 24 images by an old model, and a new model of another dimension."""

    index: Path
    photos: Path
    old: EmbeddingReader
    new: EmbeddingReader

    def load(self) -> Index:
        loaded = Index.load(self.index)
        assert isinstance(loaded, Index)
        return loaded

    def add(self, reader: EmbeddingReader, *names: str) -> list[int]:
        return self.load().add(*embedded(reader, self.photos, *names)).tolist()

    def check(self, reader: EmbeddingReader) -> None:
        """The index holds the embeddings of its images by a reader, under their ids."""
        index = self.load()
        vectors, frame = index.contents()
        table = Table(frame[["path"]])
        np.testing.assert_allclose(vectors, reader.embed_table(table).vectors, atol=1e-5)
        assert index.model_fingerprint == reader.fingerprint
        assert index.search(vectors, 1).ids[:, 0].tolist() == frame["id"].tolist()


@pytest.fixture
def shop(old_and_new: list[str], tmp_path: Path) -> Shop:
    photos = draw_photos(tmp_path / "photos", 4, 6)
    assert main(["index", "build", str(tmp_path / "index"), str(photos), "--model", old_and_new[0]]) == 0
    return Shop(tmp_path / "index", photos, *(EmbeddingReader(model=model) for model in old_and_new))


def test_vectors_of_another_model_take_the_place_of_the_old_ones(shop: Shop) -> None:
    loaded, seen = shop.load(), list[GenerationComparison]()
    loaded.delete([3])
    before = loaded.metadata.frame
    searched = loaded.vectors()
    upgrade_index(shop.index, shop.new, {"model": "new"}, report=seen.append, part_size=5)
    shop.check(shop.new)
    pd.testing.assert_frame_equal(loaded.metadata.frame, before)  # of an index that was open all the time
    assert (loaded.dim, loaded.made_with) == (12, {"model": "new"})
    refused_call("8 dimensions", loaded.search, searched, 1)
    assert seen[0].num_queries == 23
    assert list(seen[0].metrics.index) == ["overlap@10", "recall@1 before", "recall@1 after", "difference"]
    roll_back(shop.index)
    shop.check(shop.old)
    np.testing.assert_array_equal(loaded.vectors(), searched)
    roll_back(shop.index)
    shop.check(shop.new)


def test_images_that_are_added_meanwhile_are_in_both(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def add(comparison: GenerationComparison) -> None:
        shop.add(shop.old, "during1", "during2")
        shop.load().delete([0, 24])

    upgrade_index(shop.index, shop.new, {"model": str(shop.new.model)}, report=add)
    shop.check(shop.new)
    ids = shop.load().metadata.frame["id"].tolist()
    assert ids == [*range(1, 24), 25]
    assert shop.add(shop.new, "after") == [26]
    refused_call(r"1 images were added since the upgrade \(.*after.png\)", roll_back, shop.index)
    shop.check(shop.new)
    roll_back(shop.index, lambda made_with: EmbeddingReader(model=made_with["model"]))
    shop.check(shop.old)
    assert shop.load().metadata.frame["id"].tolist() == [*ids, 26]
    loaded = shop.load()
    loaded.state.fold()
    shop.check(shop.old)


def test_a_copy_has_no_generation_before(shop: Shop, tmp_path: Path) -> None:
    upgrade_index(shop.index, shop.new)
    shop.load().save(tmp_path / "copy")
    refused_call("was never upgraded", roll_back, tmp_path / "copy")
    files = {path.name for path in shop.index.glob("vectors-*")}
    upgrade_index(shop.index, shop.old)  # the generation before is forgotten
    assert len({path.name for path in shop.index.glob("vectors-*")} & files) == 1
    shop.check(shop.old)


def local_codes(shop: Shop, reader: EmbeddingReader) -> dict[int, bytes]:
    """The stored local features of all images, which must be those of a reader's model."""
    index = shop.load()
    encoder, ids = stored_encoder(index, reader.loaded_model), index.metadata.frame["id"].to_numpy()
    found = index.local_codes(ids)
    assert list(found) == ids.tolist()
    for number, codes in encode_items(index, ids, encoder).items():
        difference = np.frombuffer(found[number], np.uint8).astype(int) - codes.ravel()
        assert np.abs(difference).max() <= 1  # batches differ
    return found


def test_local_features_are_of_their_model(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["index", "build", str(shop.index), str(shop.photos), "--model", str(shop.old.model), "--overwrite",
                 "--local", "3", "--local.size", "64", "--local.dim", "8"]) == 0  # fmt: skip
    before, opened = local_codes(shop, shop.old), shop.load()
    asked: list[int] = []

    def during(comparison: GenerationComparison) -> None:
        asked.append(len(shop.load().ids_without_local_codes()))
        assert shop.load().local_codes(np.arange(24)) == before  # the old ones are searched
        shop.add(shop.old, "during")

    upgrade_index(shop.index, shop.new, {"model": str(shop.new.model)}, report=during)
    assert asked == [0]
    after = local_codes(shop, shop.new)
    assert len(after) == 25
    assert all(after[number] != before[number] for number in before)
    assert (opened.local_settings["weight"], opened.local_settings["size"]) == (3, 64)
    shop.add(shop.new, "after")
    roll_back(shop.index, lambda made_with: shop.old)
    found = local_codes(shop, shop.old)
    assert {number: found[number] for number in before} == before
    shop.load().delete([3])
    shop.load().save(shop.index.parent / "copy")
    for place, count in ((shop.index, 50 - 1), (shop.index.parent / "copy", 25)):  # one image has no codes by `new` yet
        with sqlite3.connect(place / "index.sqlite") as connection:
            assert connection.execute("SELECT count(*) FROM local_features").fetchone() == (count,)


def test_an_upgrade_that_was_killed_keeps_its_local_features(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["index", "build", str(shop.index), str(shop.photos), "--model", str(shop.old.model), "--overwrite",
                 "--local"]) == 0  # fmt: skip
    encoded: list[int] = []

    def encode(index: Index, ids: np.ndarray, encoder: LocalEncoder) -> dict[int, np.ndarray]:
        encoded.extend(ids.tolist())
        return encode_items(index, ids, encoder)

    monkeypatch.setattr("vicinal.workflows.local_features.encode_items", encode)
    monkeypatch.setattr("vicinal.workflows.local_features.BLOCK_SIZE", 10)

    def stop(comparison: GenerationComparison) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        upgrade_index(shop.index, shop.new, report=stop)
    assert main(["index", "add", str(shop.index), str(shop.photos), "--model", str(shop.old.model)]) == 0
    upgrade_index(shop.index, shop.new)
    assert sorted(encoded) == list(range(24))
    local_codes(shop, shop.new)


@pytest.fixture
def refiners(shop: Shop, tmp_path: Path) -> dict[str, str]:
    """The folders of a refiner for each model, by its dimension, which is not the identity."""
    folders = {}
    for name, reader, dim in (("old", shop.old, 8), ("new", shop.new, 12)):
        refiner = ContextRefiner(dim=dim, num_heads=2, neighbors=3)
        refiner.model_fingerprint = reader.fingerprint
        for weight in refiner.parameters():
            torch.nn.init.normal_(weight, std=0.3)
        refiner.save_pretrained(tmp_path / f"refiner-{name}")
        folders[name] = str(tmp_path / f"refiner-{name}")
    return folders


def check_refined(shop: Shop, reader: EmbeddingReader, refiner: ContextRefiner, ids: list[int]) -> None:
    """The index finds what one finds that is built by reader and refiner and then gets the images of `ids`."""
    index = shop.load()
    table = Table(index.metadata.frame[["path"]])
    vectors, is_later = reader.embed_table(table).vectors, np.isin(index.metadata.frame["id"], ids)
    rows, later = np.flatnonzero(~is_later), np.flatnonzero(is_later)
    wanted = Index.build(vectors[rows], table.take(rows), "exact", reader.fingerprint, refiner)
    for row in later:
        wanted.add(vectors[[row]], table.take(np.array([row])), refiner)
    np.testing.assert_allclose(index.vectors(), wanted.vectors(), atol=1e-4)
    assert not np.allclose(index.vectors(), vectors, atol=0.1)
    np.testing.assert_allclose(index.search(vectors, 5, refiner).scores, wanted.search(vectors, 5, refiner).scores,
                               atol=1e-4)  # fmt: skip


def test_refined_embeddings(shop: Shop, refiners: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    old, new = (ContextRefiner.from_pretrained(refiners[name]) for name in ("old", "new"))
    output(capsys, "index", "build", shop.index, shop.photos, "--model", shop.old.model, "--refiner", refiners["old"],
           "--overwrite")  # fmt: skip
    check_refined(shop, shop.old, old, [])
    upgrade = ["index", "upgrade", str(shop.index), "--model", str(shop.new.model)]
    for words, message in (
        (upgrade, "give one for the new model with --refiner"),
        ([*upgrade, "--refiner", refiners["old"]], "the refiner was trained for"),
    ):
        assert message in refused(capsys, *words).splitlines()[-1]
    check_refined(shop, shop.old, old, [])
    output(capsys, *upgrade, "--refiner", refiners["new"])
    check_refined(shop, shop.new, new, [])
    opened, picture = shop.load(), shop.photos / "during.png"
    Image.effect_noise((24, 20), 80).save(picture)
    output(capsys, "index", "add", shop.index, picture)
    check_refined(shop, shop.new, new, [24])
    output(capsys, "index", "upgrade", shop.index, "--rollback")
    check_refined(shop, shop.old, old, [24])
    shop.load().state.fold()
    check_refined(shop, shop.old, old, [24])
    refused_call("was built with the refiner", opened.search, np.eye(1, 8), 1, new)
    output(capsys, "index", "upgrade", shop.index, "--rollback")
    check_refined(shop, shop.new, new, [24])


def test_an_index_gets_a_refiner_by_an_upgrade(shop: Shop, refiners: dict[str, str]) -> None:
    new = ContextRefiner.from_pretrained(refiners["new"])
    upgrade_index(shop.index, shop.new, None, new)
    check_refined(shop, shop.new, new, [])
    roll_back(shop.index)
    shop.check(shop.old)
    assert shop.load().refiner_fingerprint is None


@pytest.mark.parametrize("kind", ["hnsw", "sq8", "binary"])
def test_indexes_of_every_kind(shop: Shop, kind: str) -> None:
    assert main(["index", "build", str(shop.index), str(shop.photos), "--model", str(shop.old.model), "--kind", kind,
                 "--overwrite"]) == 0  # fmt: skip
    shop.load().delete([7])
    upgrade_index(shop.index, shop.new)
    index = shop.load()
    assert (index.kind, len(index), index.dim) == (kind, 23, 12)
    table = Table(index.metadata.frame[["path"]])
    found = index.search(shop.new.embed_table(table).vectors, 1)
    assert found.ids[:, 0].tolist() == index.metadata.frame["id"].tolist()


def test_images_that_cannot_be_embedded_are_named(shop: Shop) -> None:
    broken, gone = shop.photos / "class1" / "2.png", shop.photos / "class0" / "1.png"
    content = broken.read_bytes()
    broken.write_bytes(b"no image")
    gone.unlink()
    with pytest.raises(InputError, match=r"1 images have no file \(.*class0/1.png\); --on_error skip removes"):
        upgrade_index(shop.index, shop.new)
    shop.load().delete([1])
    refused_call(r"1 images cannot be read \(.*class1/2.png\)", upgrade_index, shop.index, shop.new)
    broken.write_bytes(content)  # repaired, and the index is built again with the ids of other images
    table = Table(shop.load().metadata.frame[["path", "label"]].iloc[::-1].reset_index(drop=True))
    built = Index.build(shop.old.embed_table(table).vectors, table, model_fingerprint=shop.old.fingerprint)
    built.save(shop.index)
    upgrade_index(shop.index, shop.new)
    shop.check(shop.new)


def test_with_skip_they_leave_the_index(shop: Shop) -> None:
    (shop.photos / "class1" / "2.png").write_bytes(b"no image")
    (shop.photos / "class0" / "1.png").unlink()
    shop.load().add(np.eye(1, 8), Table(pd.DataFrame({"label": ["a vector alone"]})))
    upgrade_index(shop.index, EmbeddingReader(model=shop.new.model, on_error="skip"))
    assert len(shop.load()) == 22
    shop.check(shop.new)


def test_a_killed_upgrade_goes_on(shop: Shop) -> None:
    program = (
        "import sys; from vicinal.workflows import EmbeddingReader, upgrade_index\n"
        "upgrade_index(sys.argv[1], EmbeddingReader(model=sys.argv[2], batch_size=1), part_size=2)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, shop.index, str(shop.new.model)])
    deadline = time.monotonic() + 120
    while not list(shop.index.glob(".upgrade/*/0/shards/*/part-000002.parquet")):  # then the manifest has two
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGSTOP)
    parts = {path: path.stat().st_mtime_ns for path in shop.index.glob(".upgrade/*/0/shards/*/part-00000[01].parquet")}
    shop.check(shop.old)  # nothing is half-written, and the index is searched
    refused_call("upgrade the index", upgrade_index, shop.index, shop.new)
    process.kill()
    process.wait()
    shop.add(shop.old, "between")
    seen: dict[Path, int] = {}
    upgrade_index(
        shop.index, shop.new, report=lambda _: seen.update({path: path.stat().st_mtime_ns for path in parts}),
        part_size=2,
    )  # fmt: skip
    assert len(parts) == 2
    assert seen == parts
    assert len(shop.load()) == 25
    shop.check(shop.new)


def test_the_command(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "index", "upgrade", shop.index, "--model", shop.new.model)
    assert text.splitlines()[1].startswith("overlap@10")
    assert f"model                {shop.new.model}" in text
    shop.check(shop.new)
    assert "already holds embeddings of the model" in refused(
        capsys, "index", "upgrade", shop.index, "--model", shop.new.model
    )
    shop.add(shop.new, "after")
    assert '"dimensions": 8' in output(capsys, "index", "upgrade", shop.index, "--rollback", "--json")
    shop.check(shop.old)
    assert "give the new model with --model" in refused(capsys, "index", "upgrade", shop.index)


def test_embeddings_of_shards_take_the_place_of_embedding(shop: Shop, tmp_path: Path, capsys, monkeypatch) -> None:
    shards, upgrade = tmp_path / "shards", ["index", "upgrade", shop.index, "--embeddings", tmp_path / "shards"]
    for number in (1, 2):
        output(capsys, "embed", shop.photos, "--model", shop.new.model, "--shard", f"{number}/2", "--out", shards)
        if number == 1:
            assert "shard 2/2 is missing" in refused(capsys, *upgrade)
    shop.add(shop.old, "late")
    message = refused(capsys, *upgrade)
    assert "1 images are not among the embeddings (" in message
    assert "late.png); give the model with --model too" in message
    assert f"not of {shop.old.fingerprint}" in refused(capsys, *upgrade, "--model", shop.old.model)
    assert "holds no embeddings" in refused(capsys, *upgrade[:-1], shop.photos)
    np.save(tmp_path / "unknown.npy", np.eye(24))
    assert "do not say which model made them" in refused(capsys, *upgrade[:-1], tmp_path / "unknown.npy")
    assert "leave out --embeddings" in refused(capsys, *upgrade, "--rollback")
    shop.check(shop.old)
    counts: list[int] = []
    embed = UpgradedImages._embed

    def counted(images: UpgradedImages, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        counts.append(len(ids))
        return embed(images, ids)

    monkeypatch.setattr(UpgradedImages, "_embed", counted)
    shop.load().delete([24, 5])
    output(capsys, *upgrade)
    assert sum(counts) == 0
    shop.check(shop.new)
    assert "model" not in shop.load().made_with
    roll_back(shop.index)
    shop.add(shop.old, "later")
    output(capsys, *upgrade, "--model", shop.new.model)
    shop.check(shop.new)
    assert shop.load().made_with["model"] == shop.new.model


def test_an_image_that_comes_during_an_upgrade_without_a_model_is_refused(shop: Shop) -> None:
    frame = shop.load().metadata.frame[["path"]]
    stored = shop.new.embed_table(Table(frame))
    with pytest.raises(InputError, match=r"1 images are not among the embeddings .*during.png"):
        upgrade_index(shop.index, EmbeddingReader(), embeddings=stored,
                      report=lambda comparison: shop.add(shop.old, "during"))  # fmt: skip
    shop.check(shop.old)


def test_a_service_mixes_no_models(shop: Shop) -> None:
    store = FolderStore(shop.index).__enter__()
    try:
        upgrade_index(shop.index, shop.new)
        late = store.add(np.eye(1, 8, dtype=np.float32), {"label": "late"}, None, None)
        with pytest.raises(Problem, match="cannot be written"):
            late.result(60)
        store.index.state.refresh()
        assert not store.is_connected
        with pytest.raises(EngineUnavailableError, match="upgraded to another model; restart the service"):
            store.check_model()
    finally:
        store.close()
    shop.check(shop.new)
