"""A new model for an index in a database: embedded while it is searched, compared, switched, rolled back."""

import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tests.conftest import draw_photos, output, refused
from tests.refusals import refused_call
from tests.retrieval.remote.conftest import unique_table
from tests.retrieval.remote.servers import Server
from tests.workflows.test_upgrade import embedded
from vicinal.cli.main import main
from vicinal.data import Table
from vicinal.retrieval import RemoteIndex
from vicinal.retrieval.index.remote.engine_url import EngineURL
from vicinal.retrieval.index.remote.postgres_engine import PostgresEngine
from vicinal.retrieval.index.remote.postgres_sql import CODES, ENCODER
from vicinal.retrieval.index.remote.remote_engine import StaleGenerationError
from vicinal.retrieval.index.remote.remote_table import RemoteTable
from vicinal.retrieval.reranking.local_features import encode_items
from vicinal.utils.errors import InputError
from vicinal.workflows import EmbeddingReader, GenerationComparison, roll_back, upgrade_index, upgrade_remote
from vicinal.workflows.local_features import stored_encoder
from vicinal.workflows.upgrade_images import UpgradedImages


@dataclass(frozen=True)
class Shop:
    """An index of 24 images by an old model at a URL, and a new model of another dimension."""

    url: str
    photos: Path
    old: EmbeddingReader
    new: EmbeddingReader

    def add(self, reader: EmbeddingReader, *names: str) -> list[int]:
        with RemoteIndex.connect(self.url) as index:
            return index.add(*embedded(reader, self.photos, *names)).tolist()

    def contents(self) -> pd.DataFrame:
        with RemoteIndex.connect(self.url) as index:
            return index.contents()[1]

    def check(self, reader: EmbeddingReader, count: int) -> None:
        with RemoteIndex.connect(self.url) as index:
            vectors, frame = index.contents()
            assert len(frame) == len(index) == count
            wanted = reader.embed_table(Table(frame[["path"]])).vectors
            np.testing.assert_allclose(vectors, wanted, atol=1e-5)
            assert (index.model_fingerprint, index.dim) == (reader.fingerprint, vectors.shape[1])
            assert index.search(vectors, 1).ids[:, 0].tolist() == frame["id"].tolist()


def built(url: str, old_and_new: list[str], folder: Path, kind: Any) -> Shop:
    old, new = (EmbeddingReader(model=model, num_workers=0) for model in old_and_new)
    table = Table.from_folder(draw_photos(folder / "photos", 4, 6))
    made_with = {"model": old_and_new[0]}
    vectors = old.embed_table(table).vectors
    RemoteIndex.build(vectors, table, url, kind, old.fingerprint, made_with).close()
    return Shop(url, folder / "photos", old, new)


@pytest.fixture
def shop(server: Server, old_and_new: list[str], tmp_path: Path) -> Shop:
    return built(server.url(unique_table()), old_and_new, tmp_path, "exact")


@pytest.fixture
def postgres(servers: dict[str, Server], old_and_new: list[str], tmp_path: Path) -> Shop:
    return built(servers["postgresql"].url(unique_table()), old_and_new, tmp_path, "hnsw")


def test_vectors_of_another_model_take_the_place_of_the_old_ones(shop: Shop) -> None:
    before, seen = shop.contents(), list[GenerationComparison]()
    upgrade_index(shop.url, shop.new, {"model": str(shop.new.model)}, report=seen.append)
    shop.check(shop.new, 24)
    pd.testing.assert_frame_equal(shop.contents(), before)
    assert seen[0].num_queries == 24
    assert list(seen[0].metrics.index) == ["overlap@10", "recall@1 before", "recall@1 after", "difference"]
    roll_back(shop.url)
    shop.check(shop.old, 24)
    roll_back(shop.url)
    shop.check(shop.new, 24)
    upgrade_index(shop.url, shop.old)  # the generation before is forgotten
    shop.check(shop.old, 24)
    with RemoteIndex.connect(shop.url) as index:
        assert (index.kind, index.made_with) == ("exact", {})
    refused_call("already holds embeddings of the model", upgrade_index, shop.url, shop.old)
    RemoteIndex.build(np.eye(3), Table(pd.DataFrame({"label": list("abc")})), shop.url, "exact", overwrite=True).close()
    refused_call("it was never upgraded", roll_back, shop.url)


def test_images_that_are_added_meanwhile_are_in_both(shop: Shop) -> None:
    frame = shop.contents()
    gone, changed, updated = frame["id"].tolist()[:3]
    picture = Path(frame["path"][1])

    def during(comparison: GenerationComparison) -> None:
        shop.add(shop.old, "during1", "during2")
        Image.effect_noise((24, 20), 90).save(picture)  # another picture under the path of one that is embedded already
        table = Table(pd.DataFrame({"path": [str(picture)], "label": ["changed"], "file_hash": ["new"]}))
        with RemoteIndex.connect(shop.url) as index:
            index.delete([gone])
            index.upsert(shop.old.embed_table(table).vectors, table)
            index.update([updated], Table(frame[["path"]].iloc[[2]].assign(label="updated", price=7)))

    upgrade_index(shop.url, shop.new, {"model": str(shop.new.model)}, report=during)
    shop.check(shop.new, 25)
    labels = shop.contents().set_index("id")["label"]
    assert gone not in labels.index
    assert labels[[changed, updated]].tolist() == ["changed", "updated"]
    shop.add(shop.new, "after")
    refused_call(r"1 images were added since the upgrade \(.*after.png\)", roll_back, shop.url)
    shop.check(shop.new, 26)
    roll_back(shop.url, lambda made_with: EmbeddingReader(model=made_with["model"], num_workers=0))
    shop.check(shop.old, 26)
    assert shop.contents().set_index("id")["label"][updated] == "updated"


def test_images_that_cannot_be_embedded_are_named_or_leave_the_index(shop: Shop) -> None:
    (shop.photos / "class0" / "1.png").unlink()
    refused_call(
        r"1 images have no file \(.*class0/1.png\); --on_error skip removes", upgrade_index, shop.url, shop.new
    )
    with RemoteIndex.connect(shop.url) as index:
        assert (len(index), index.dim) == (24, 8)
        refused_call("it was never upgraded", roll_back, shop.url)
        index.add(np.eye(1, 8), Table(pd.DataFrame({"label": ["a vector alone"]})))
    (shop.photos / "class1" / "2.png").write_bytes(b"no image")
    upgrade_index(shop.url, EmbeddingReader(model=shop.new.model, on_error="skip", num_workers=0))
    shop.check(shop.new, 22)


@pytest.mark.parametrize("server", ["postgresql", pytest.param("milvus", marks=pytest.mark.slow)], indirect=True)
def test_a_killed_upgrade_goes_on(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import sys; from vicinal.retrieval.index.remote import remote_generation, remote_engine\n"
        "from vicinal.workflows import EmbeddingReader, upgrade_index\n"
        "remote_generation.batch_rows = lambda dim: 4\n"
        "from vicinal.workflows.upgrade_images import UpgradedImages\n"
        "embed = UpgradedImages.embed\n"
        "def slow(images, ids):\n"
        "    print(len(ids), flush=True); import time; time.sleep(0.5); return embed(images, ids)\n"
        "UpgradedImages.embed = slow\n"
        "upgrade_index(sys.argv[1], EmbeddingReader(model=sys.argv[2], num_workers=0))\n"
    )
    command = [sys.executable, "-c", program, shop.url, str(shop.new.model)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(4):  # of those that tell the dimension, and of three blocks, the last of which is not written
        assert process.stdout.readline().strip() in ("4", "24")
    process.kill()
    process.wait()
    shop.check(shop.old, 24)
    counts: list[int] = []
    embed = UpgradedImages.embed

    def counted(images: Any, ids: np.ndarray) -> Any:
        counts.append(len(ids))
        return embed(images, ids)

    monkeypatch.setattr(UpgradedImages, "embed", counted)
    upgrade_index(shop.url, shop.new)
    assert sum(counts[1:]) == 24 - 8
    shop.check(shop.new, 24)


def test_embeddings_that_are_there_already(postgres: Shop) -> None:
    stored = postgres.new.embed_table(Table(postgres.contents()[["path"]].iloc[::-1].reset_index(drop=True)))
    postgres.add(postgres.old, "late")
    with pytest.raises(InputError, match=r"1 images are not among the embeddings .*late.png"):
        upgrade_index(postgres.url, EmbeddingReader(), embeddings=stored)
    postgres.check(postgres.old, 25)
    upgrade_index(postgres.url, postgres.new, embeddings=stored)
    postgres.check(postgres.new, 25)


def test_vectors_of_the_old_model_are_never_written_among_the_new_ones(postgres: Shop, monkeypatch) -> None:
    vectors, table = embedded(postgres.old, postgres.photos, "late1", "late2")
    opened, waiting = RemoteIndex.connect(postgres.url), RemoteIndex.connect(postgres.url)
    before, searched = opened.contents()[0], opened.search(vectors, 3)
    added: list[Future[Any]] = []
    change = PostgresEngine.change_facts

    def changed(engine: PostgresEngine, name: str, changes: dict[str, Any]) -> Any:
        if "generation" in changes:  # the table is locked
            added.append(pool.submit(waiting.add, vectors[1:], table.take([1])))
            time.sleep(1)
            assert waiting.search(vectors, 3).ids.tolist() == searched.ids.tolist()  # searches do not wait
        return change(engine, name, changes)

    monkeypatch.setattr(PostgresEngine, "change_facts", changed)
    with ThreadPoolExecutor(1) as pool:
        upgrade_index(postgres.url, postgres.new)
        assert isinstance(added[0].exception(60), StaleGenerationError)
    with pytest.raises(StaleGenerationError, match="was upgraded to another model; open it again"):
        opened.add(vectors[:1], table.take([0]))
    np.testing.assert_array_equal(opened.vectors_of(opened.ids()), before)  # it still is the index that was opened
    postgres.check(postgres.new, 24)
    opened.close()
    waiting.close()


def codes_of(shop: Shop, reader: EmbeddingReader, without: int = 0) -> dict[int, bytes]:
    """The stored local features of all images but some, which must be those of a reader's model."""
    with RemoteIndex.connect(shop.url) as index:
        encoder, ids = stored_encoder(index, reader.loaded_model), index.ids()
        assert encoder is not None
        found, wanted = index.local_codes(ids), encode_items(index, ids, encoder)
    assert len(found) == len(ids) - without
    for number in found:
        difference = np.frombuffer(found[number], np.uint8).astype(int) - wanted[number].ravel()
        assert np.abs(difference).max() <= 1  # batches differ
    return found


def test_local_features_are_of_their_model(postgres: Shop) -> None:
    shop = postgres
    assert main(["index", "build", shop.url, str(shop.photos), "--model", str(shop.old.model), "--overwrite",
                 "--local", "3", "--local.size", "64", "--local.dim", "8"]) == 0  # fmt: skip
    before = codes_of(shop, shop.old)

    def during(comparison: GenerationComparison) -> None:
        assert codes_of(shop, shop.old) == before  # the old ones are searched
        shop.add(shop.old, "during")

    upgrade_index(shop.url, shop.new, {"model": str(shop.new.model)}, report=during)
    after = codes_of(shop, shop.new)
    assert len(after) == 25
    assert all(after[number] != before[number] for number in before)
    shop.add(shop.new, "after")
    roll_back(shop.url, lambda made_with: shop.old)
    found = codes_of(shop, shop.old)
    assert {number: found[number] for number in before} == before
    assert len(found) == 26
    upgrade_index(shop.url, shop.new)
    roll_back(shop.url)
    shop.add(shop.old, "other")  # by which another whitening is learned

    def end(comparison: GenerationComparison) -> None:
        raise InputError("interrupted")

    refused_call("interrupted", upgrade_index, shop.url, shop.new, report=end)
    roll_back(shop.url, lambda made_with: shop.new)
    assert len(codes_of(shop, shop.new, without=1)) == 26  # those of `other` are computed when they are needed
    upgrade_index(shop.url, shop.old)  # the generation before is forgotten, with its local features
    assert len(codes_of(shop, shop.old)) == 27
    place = EngineURL.parse(shop.url)
    with closing(PostgresEngine(place, 10)) as engine, engine._connections.take() as connection:
        assert len(engine._columns(connection, place.table, CODES, ENCODER)) == 2


def test_only_one_process_upgrades(postgres: Shop) -> None:
    def second(comparison: GenerationComparison) -> None:
        refused_call("another process builds or upgrades the index", upgrade_index, postgres.url, postgres.new)

    upgrade_index(postgres.url, postgres.new, report=second)
    postgres.check(postgres.new, 24)


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)  # the check is that of all databases
def test_an_upgrade_is_refused_after_another_one(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    first_dim = upgrade_remote._first_dim

    def and_another(index: RemoteIndex, images: UpgradedImages) -> int:
        monkeypatch.setattr(upgrade_remote, "_first_dim", first_dim)
        upgrade_index(shop.url, shop.new)
        return first_dim(index, images)

    monkeypatch.setattr(upgrade_remote, "_first_dim", and_another)
    with pytest.raises(StaleGenerationError, match="open it again, or repeat the command"):
        upgrade_index(shop.url, shop.new)
    shop.check(shop.new, 24)


def test_only_one_process_builds(servers: dict[str, Server], monkeypatch: pytest.MonkeyPatch) -> None:
    url, table = servers["postgresql"].url(unique_table()), Table(pd.DataFrame({"label": list("abc")}))
    write = RemoteTable.write

    def and_another(self: RemoteTable, *arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(RemoteTable, "write", write)
        with pytest.raises(InputError, match="another process builds or upgrades the index"):
            RemoteIndex.build(np.ones((3, 2)), table, url, "exact")
        return self.write(*arguments, **options)

    monkeypatch.setattr(RemoteTable, "write", and_another)
    with RemoteIndex.build(np.eye(3), table, url, "exact") as index:
        assert index.vectors().shape == (3, 3)
    refused_call("is already an index", RemoteIndex.build, np.ones((3, 2)), table, url, "exact")


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)  # the command does not know the database
def test_the_command(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "index", "upgrade", shop.url, "--model", shop.new.model)
    assert text.splitlines()[1].startswith("overlap@10")
    assert f"model                {shop.new.model}" in text
    Image.effect_noise((24, 20), 80).save(shop.photos / "later.png")
    output(capsys, "index", "add", shop.url, shop.photos / "later.png")
    assert '"dimensions": 8' in output(capsys, "index", "upgrade", shop.url, "--rollback", "--json")
    shop.check(shop.old, 25)
    assert "already holds embeddings of the model" in refused(
        capsys, "index", "upgrade", shop.url, "--model", shop.old.model
    )
    words = ["index", "upgrade", shop.url, "--model", shop.new.model, "--refiner", shop.photos]
    assert "\n" not in refused(capsys, *words)
