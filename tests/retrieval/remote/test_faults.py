"""What happens to an index in a database when the connection is cut, or the server is killed."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.conftest import free_port
from tests.refusals import refused_call
from tests.retrieval.remote.conftest import unique_table
from tests.retrieval.remote.servers import STARTERS, Proxy, Server, own_server
from vicinal import Index, Table
from vicinal.cli.main import main
from vicinal.data import save_embeddings
from vicinal.retrieval import EngineUnavailableError, RemoteIndex
from vicinal.retrieval.index.remote import remote_engine
from vicinal.retrieval.index.remote.remote_table import RemoteTable
from vicinal.utils.errors import InputError
from vicinal.workflows.embedded_table import EmbeddedTable
from vicinal.workflows.sync import sync_index

ROWS, DIM = 400, 64
HALF = {"milvus": 70_000, "postgresql": 150_000}  # bytes, when some batches are written


def images(rows: int = ROWS) -> tuple[np.ndarray, Table]:
    vectors = np.random.default_rng(0).standard_normal((rows, DIM)).astype(np.float32)
    return vectors, Table(pd.DataFrame({"path": [f"/{n}.png" for n in range(rows)], "label": ["a", "b"] * (rows // 2)}))


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many batches, as of many images, and short pauses."""
    monkeypatch.setattr(remote_engine, "MAX_BATCH", 50)
    monkeypatch.setattr(remote_engine, "FIRST_PAUSE", 0.01)


def is_complete(index: RemoteIndex) -> bool:
    """Whether all images are there once, with their vectors and columns."""
    vectors, table = images()
    found, frame = index.contents()
    rows = [table.paths.index(path) for path in frame["path"]]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return len(rows) == len(set(rows)) == ROWS and np.allclose(found, unit[rows], atol=1e-6)


def test_a_connection_that_is_cut_is_made_again(server: Server) -> None:
    vectors, table = images()
    with Proxy(server.address) as proxy:
        url = server.url(unique_table(), proxy.port)
        RemoteIndex.build(vectors[:50], table.take(np.arange(50)), url).close()
        with RemoteIndex.connect(url, timeout=30) as index:
            before = proxy.num_cuts
            proxy.cut_after(40_000)
            index.upsert(vectors, table)
            assert proxy.num_cuts > before
            assert is_complete(index)
            proxy.cut()
            assert index.search(vectors[:3], 1).scores.min() > 0.999
            proxy.cut()
            index.delete(index.ids_at("/3.png"))
            assert len(index) == ROWS - 1


def count_written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that are written from now on."""
    written: list[int] = []
    different = RemoteTable._changed_rows

    def counted(table: RemoteTable, *arguments: Any) -> Any:
        rows = different(table, *arguments)
        written.append(len(rows))
        return rows

    monkeypatch.setattr(RemoteTable, "_changed_rows", counted)
    return written


def test_an_interrupted_build_goes_on_and_leaves_nothing_of_other_images(server: Server, monkeypatch) -> None:
    vectors, table = images()
    others = Table(table.frame.assign(path=[f"/other/{n}.png" if n < 50 else f"/{n}.png" for n in range(ROWS)]))
    with Proxy(server.address) as proxy:
        name = unique_table()
        url, direct = server.url(name, proxy.port), server.url(name)
        proxy.cut_after(HALF[server.name], stays_down=True)
        with pytest.raises(EngineUnavailableError, match="lost the connection") as raised:
            RemoteIndex.build(vectors, others, url, model_fingerprint="old", timeout=0.5)
        message = str(raised.value)
        assert 50 <= int(message.partition(" of 400 images were written before")[0].rpartition(" ")[2]) < ROWS
        assert "repeat the call to continue from there" in message
        with pytest.raises(InputError, match="no such index; build one with `vicinal index build`"):
            Index.load(direct)  # none that is half finished
        proxy.is_down = False
        written = count_written(monkeypatch)
        with RemoteIndex.build(vectors, table, url, model_fingerprint="old", timeout=30) as index:
            assert is_complete(index)
        assert 50 <= sum(written) < ROWS  # what was written is not written again
        refused_call("is already an index", RemoteIndex.build, vectors, table, direct)
        proxy.cut_after(HALF[server.name], stays_down=True)
        with pytest.raises(EngineUnavailableError):
            RemoteIndex.build(vectors, others, url, overwrite=True, timeout=0.5)
        with Index.open(direct) as index:  # it is replaced when the new one is complete
            assert index.model_fingerprint == "old"
            assert is_complete(index)
        proxy.is_down = False
        with RemoteIndex.build(vectors, others, url, overwrite=True, timeout=30) as index:
            assert (index.model_fingerprint, len(index.ids_at("/other"))) == (None, 50)


@pytest.mark.parametrize("name", list(STARTERS))
def test_a_server_that_does_not_answer(name: str, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_engine, "CONNECT_SECONDS", 0.5)
    place = f"milvus://127.0.0.1:{free_port()}/photos"
    if name == "postgresql":
        place = f"postgresql://ann@127.0.0.1:{free_port()}/shop?table=photos"
    with pytest.raises(EngineUnavailableError, match="no connection"):
        RemoteIndex.connect(place, timeout=0.3)
    assert main(["index", "list", place]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith(f"vicinal index list: error: {place}: no connection")


def test_passwords_are_never_shown(server: Server, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    secret_urls = [
        "milvus://root:s3cret@127.0.0.1:1/photos",
        "milvus://127.0.0.1:1/photos?token=s3cret",
        "postgresql://ann:s3cret@127.0.0.1:1/shop?table=x",
        "postgresql://127.0.0.1:1/shop?table=x&password=s3cret",
    ]
    for url in secret_urls:
        assert main(["search", url, "query.png"]) == 2
        assert main(["index", "add", "gallery", url]) == 2
        error = capsys.readouterr().err
        assert "holds a password" in error
        assert "s3cret" not in error
    monkeypatch.setenv("VICINAL_MILVUS_TOKEN", "root:s3cret")
    monkeypatch.setenv("PGPASSWORD", "s3cret")
    vectors, table = images(4)
    with RemoteIndex.build(vectors, table, server.url(unique_table())) as index:
        facts = f"{index.describe()} {index!r} {index._engine.read_facts(index._table.name)}"
    with pytest.raises(EngineUnavailableError) as raised:
        RemoteIndex.connect(server.url("x", free_port()), timeout=0.3)
    assert "s3cret" not in facts + str(raised.value) + capsys.readouterr().err


def test_several_writers_lose_nothing_and_no_columns(server: Server) -> None:
    vectors, table = images()
    url = server.url(unique_table())
    RemoteIndex.build(vectors[:2], table.take([0, 1]), url).close()

    def write(rows: np.ndarray) -> None:
        with RemoteIndex.connect(url) as index:
            for part in np.array_split(rows, 5):
                index.upsert(vectors[part], table.take(part))

    def write_column(name: str) -> None:
        with RemoteIndex.connect(url) as index:
            for part in np.array_split(np.arange(40), 4):
                own = Table(table.take(part).frame.assign(path=[f"/{name}/{row}.png" for row in part], **{name: 1}))
                index.upsert(vectors[part], own)

    with ThreadPoolExecutor(4) as pool:  # the middle is written by both
        list(pool.map(write, (np.arange(250), np.arange(150, ROWS))))
        with RemoteIndex.connect(url) as index:
            assert is_complete(index)
        list(pool.map(write_column, "wxyz"))
    with RemoteIndex.connect(url) as index:
        frame = pd.concat(index.frames())
        assert {name: int(frame[name].sum()) for name in "wxyz"} == dict.fromkeys("wxyz", 40)


class Killed(BaseException):
    """The process ends here: nothing that it does later reaches the server."""


STEPS = (
    "create_collection", "upsert", "delete", "flush", "drop_collection", "rename_collection", "load_collection",
    "create_alias", "alter_alias",
)  # fmt: skip


@contextmanager
def killed(step: int) -> Iterator[None]:
    """End this process, as far as Milvus sees it, before the request of an even step and after that of an odd one."""
    client, done = pytest.importorskip("pymilvus").MilvusClient, list[str]()

    def counted(name: str) -> Any:
        original = getattr(client, name)

        def request(*arguments: Any, **options: Any) -> Any:
            done.append(name)
            before = 2 * (len(done) - 1)
            if before >= step:
                raise Killed
            result = original(*arguments, **options)
            if before + 1 == step:
                raise Killed
            return result

        return request

    with pytest.MonkeyPatch.context() as patch:
        for name in STEPS:
            patch.setattr(client, name, counted(name))
        with suppress(Killed):
            yield


@pytest.fixture
def milvus(servers: dict[str, Server]) -> Server:
    return servers["milvus"]


@pytest.mark.slow
def test_a_killed_build_leaves_the_old_index_or_the_new_one(milvus: Server) -> None:
    vectors, table = images(40)
    old, few = vectors[::-1].copy(), table.take(np.arange(40))
    url = milvus.url(unique_table())
    RemoteIndex.build(old, few, url, model_fingerprint="old").close()
    step, was_built = 0, False
    while not was_built:
        with killed(step):
            RemoteIndex.build(vectors, table, url, overwrite=True, model_fingerprint="new").close()
            was_built = True
        with RemoteIndex.connect(url) as index:
            expected = old if index.model_fingerprint == "old" else vectors
            found, frame = index.contents()
            rows = [table.paths.index(path) for path in frame["path"]]
            unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
            np.testing.assert_allclose(found, unit[rows], atol=1e-6, err_msg=f"step {step}")
            assert len(found) == 40
        RemoteIndex.build(old, few, url, overwrite=True, model_fingerprint="old").close()
        step += 1
    assert step > 12


@pytest.mark.parametrize("step", ["rename_collection", "load_collection", "alter_alias", "drop_collection"])
def test_a_lost_answer_while_an_index_is_replaced_loses_nothing(milvus: Server, monkeypatch, step: str) -> None:
    pymilvus = pytest.importorskip("pymilvus")
    vectors, table = images(40)
    url, original, lost = milvus.url(unique_table()), getattr(pymilvus.MilvusClient, step), list[str]()

    def lose_first(*arguments: Any, **options: Any) -> None:
        original(*arguments, **options)
        lost.append(step)
        if len(lost) == 1:
            raise pymilvus.exceptions.MilvusException(message="<_MultiThreaded: StatusCode.UNAVAILABLE>", code=2)

    RemoteIndex.build(vectors[:10], table.take(np.arange(10)), url, model_fingerprint="old").close()
    monkeypatch.setattr(pymilvus.MilvusClient, step, lose_first)
    RemoteIndex.build(vectors, table, url, model_fingerprint="new", overwrite=True, timeout=30).close()
    assert lost
    with RemoteIndex.connect(url) as index:
        assert (len(index), index.model_fingerprint) == (40, "new")
        assert index.search(vectors[:5], 1).scores.min() > 0.999


def test_a_reader_never_misses_an_index_that_is_replaced(milvus: Server) -> None:
    vectors, table = images(40)
    url, done, found = milvus.url(unique_table()), threading.Event(), set[int]()
    RemoteIndex.build(vectors[:10], table.take(np.arange(10)), url).close()

    def read() -> None:
        while not done.is_set():
            with RemoteIndex.connect(url) as index:
                found.add(len(index))
                assert index.search(vectors[:5], 1).scores.min() > 0.999

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        for number in range(6):
            rows = np.arange(40 if number % 2 else 10)
            RemoteIndex.build(vectors[rows], table.take(rows), url, overwrite=True).close()
        done.set()
        for reader in readers:
            reader.result()
    assert found == {10, 40}


def test_a_collection_that_is_not_an_index_is_left_alone(milvus: Server) -> None:
    pymilvus, name = pytest.importorskip("pymilvus"), unique_table()
    client = pymilvus.MilvusClient(uri=milvus.url("").replace("milvus", "http").rstrip("/"))
    client.create_collection(name, dimension=4)
    with pytest.raises(InputError, match="is a collection, not an index of this version; drop it, or name another"):
        RemoteIndex.build(*images(4), milvus.url(name), overwrite=True)
    assert client.has_collection(name)


def test_a_killed_sync_goes_on(milvus: Server, tmp_path: Path) -> None:
    vectors, _ = images(40)
    for number in range(40):
        (tmp_path / f"{number}.png").write_bytes(bytes([number]))
    url = milvus.url(unique_table())

    def embedded(table: Table) -> EmbeddedTable:
        rows = [int(Path(path).stem) for path in table.paths]
        return EmbeddedTable(vectors[rows], table, "a model")

    def sync(numbers: Iterable[int]) -> None:
        files = {"path": [str(tmp_path / f"{number}.png") for number in numbers], "seen": len(numbers)}
        sync_index(
            url, Table(pd.DataFrame(files)), embedded, lambda first: RemoteIndex.build(first.vectors, first.table, url),
            lambda index, more: index.upsert(more.vectors, more.table), block_size=10,
        )  # fmt: skip

    step, is_done = 0, False
    while not is_done:
        with killed(step):
            sync(range(step % 3, 20 + step % 3))  # some are new, some have vanished, and a column changes
            is_done = True
        sync(range(5, 40))
        with RemoteIndex.connect(url) as index:
            found, frame = index.contents()
        numbers = [int(Path(path).stem) for path in frame["path"]]
        assert sorted(numbers) == [*range(5, 40)]
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        np.testing.assert_allclose(found, unit[numbers], atol=1e-6)
        assert set(frame["seen"]) == {35}
        step += 1
    assert step > 5


COMMAND = """
import sys
from vicinal.retrieval.index.remote import remote_engine
remote_engine.MAX_BATCH = 20
from vicinal.cli.main import main
raise SystemExit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", list(STARTERS))
def test_a_server_is_killed_and_started_again_while_images_are_written(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(remote_engine, "CONNECT_SECONDS", 60.0)  # a server may listen long before it answers
    vectors, table = images()
    save_embeddings(tmp_path / "v.parquet", vectors, table)
    with own_server(name) as server, Proxy(server.address) as proxy:
        url = server.url("photos", proxy.port)
        words = ["index", "build", url, str(tmp_path / "v.parquet"), "--timeout", "120"]
        process = subprocess.Popen([sys.executable, "-c", COMMAND, *words], stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        for line in process.stderr:
            if "wrote 60 of" in line:
                break
        server.kill()
        time.sleep(1.0)
        server = server.restarted()
        errors = process.stderr.read()
        assert process.wait() == 0, errors
        assert "trying again for up to 120 seconds" in errors
        with RemoteIndex.connect(server.url("photos"), timeout=60) as index:
            assert is_complete(index)
        server.kill()
        server = server.restarted()
        with RemoteIndex.connect(server.url("photos"), timeout=60) as index:
            assert is_complete(index)
            assert index.search(vectors[:3], 1).scores.min() > 0.999


FULL = """
CREATE FUNCTION {name}_full() RETURNS trigger AS $$
BEGIN
  IF (SELECT count(*) FROM {name}) >= 150 THEN
    RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full';
  END IF;
  RETURN NEW;
END $$ LANGUAGE plpgsql;
CREATE TRIGGER full_disk BEFORE INSERT ON {name} FOR EACH STATEMENT EXECUTE FUNCTION {name}_full();
"""


def test_a_full_disk_loses_nothing(servers: dict[str, Server]) -> None:
    """In PostgreSQL; Milvus Lite has nothing that could make its disk full."""
    server, name = servers["postgresql"], unique_table()
    psycopg, url = pytest.importorskip("psycopg"), server.url(name)
    vectors, table = images()
    RemoteIndex.build(vectors[:50], table.take(np.arange(50)), url).close()
    with psycopg.connect(f"postgresql://postgres@/postgres?host={server.folder}", autocommit=True) as connection:
        connection.execute(FULL.format(name=name))
        with RemoteIndex.connect(url, timeout=0.5) as index:
            with pytest.raises(EngineUnavailableError, match="No space left on device"):
                index.upsert(vectors, table)
            assert 50 <= len(index) < ROWS
        connection.execute(f"DROP TRIGGER full_disk ON {name}")
    with RemoteIndex.connect(url, timeout=30) as index:
        index.upsert(vectors, table)
        assert is_complete(index)


def test_threads_share_an_index(server: Server) -> None:
    vectors, table = images()
    with RemoteIndex.build(vectors, table, server.url(unique_table())) as index, ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda row: index.lookup(index.search(vectors[[row]], 1).ids[0])["path"][0], range(20))
        assert list(found) == table.paths[:20]
