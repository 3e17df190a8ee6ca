"""Transactions of an index in PostgreSQL: all changes of a block are made at its end, or none."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.retrieval.remote.conftest import unique_table
from tests.retrieval.remote.servers import Proxy, Server
from vicinal import Table
from vicinal.retrieval import EngineUnavailableError, ImageIndex, RemoteIndex
from vicinal.retrieval.index.remote import remote_engine
from vicinal.utils.arrays import Integers
from vicinal.workflows.embedded_table import EmbeddedTable
from vicinal.workflows.individuals import apply_identity_decisions

VECTORS = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)


def photos(*numbers: int, **columns: object) -> Table:
    return Table(pd.DataFrame({"path": [f"/{number}.png" for number in numbers], **columns}))


@pytest.fixture
def postgres(servers: dict[str, Server]) -> Server:
    return servers["postgresql"]


@pytest.fixture
def index(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteIndex]:
    monkeypatch.setattr(remote_engine, "MAX_BATCH", 2)  # several batches in a transaction
    with RemoteIndex.build(VECTORS[:2], photos(0, 1, label="Ada"), postgres.url(unique_table())) as built:
        yield built


def contents(url: str) -> tuple[list[str], list[str], list[str]]:
    """Paths, columns and unsure photos, as another process sees them."""
    with RemoteIndex.connect(url) as index:
        frame = pd.concat(index.frames())
        return sorted(frame["path"]), sorted(frame), index.unsure


def test_others_see_all_changes_at_the_end_of_a_block(index: RemoteIndex) -> None:
    before = contents(index.url)
    with index.transaction():
        index.upsert(VECTORS[2:7], photos(2, 3, 4, 5, 6, label="Bo"))
        index.delete(index.ids_by_key(["/0.png"]))
        index.unsure = ["/9.png"]
        assert len(index) == 6
        assert contents(index.url) == before
    paths, columns, unsure = contents(index.url)
    assert paths == [f"/{number}.png" for number in range(1, 7)]
    assert columns == ["id", "label", "path"]
    assert unsure == ["/9.png"]


def test_a_block_that_fails_changes_nothing(index: RemoteIndex) -> None:
    def change() -> None:
        with index.transaction():
            index.upsert(VECTORS[2:7], photos(2, 3, 4, 5, 6, camera=7))
            index.unsure = ["/9.png"]
            raise OSError("no space left")

    before = contents(index.url)
    with pytest.raises(OSError, match="no space left"):
        change()
    assert contents(index.url) == before
    assert (len(index), index.unsure, sorted(index.columns)) == (2, [], ["id", "label", "path"])
    index.upsert(VECTORS[2:3], photos(2, camera=7))
    assert len(contents(index.url)[0]) == 3


def test_a_connection_that_is_lost_within_a_block_changes_nothing(postgres: Server, index: RemoteIndex) -> None:
    def change() -> None:
        with other.transaction():
            other.upsert(VECTORS[2:4], photos(2, 3, label="Bo"))
            proxy.cut()
            other.unsure = ["/9.png"]

    table = index.url.partition("table=")[2].partition("&")[0]
    with Proxy(postgres.address) as proxy, RemoteIndex.connect(postgres.url(table, proxy.port)) as other:
        with pytest.raises(EngineUnavailableError, match="lost within a transaction, nothing was changed"):
            change()
        assert len(contents(index.url)[0]) == 2
        other.upsert(VECTORS[2:4], photos(2, 3, label="Bo"))  # by a new connection
    assert len(contents(index.url)[0]) == 4


def test_decisions_in_a_database_are_one_transaction(
    index: RemoteIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: ImageIndex, keys: object) -> None:
        raise OSError("no space left")

    def embed(rows: Integers) -> EmbeddedTable:
        return EmbeddedTable(VECTORS[2:5][rows], table.take(rows), "")

    before, table = contents(index.url), photos(2, 3, 4)
    decisions = tmp_path / "decisions.csv"
    decisions.write_text("path,decision,identity\n/2.png,same,Ada\n/3.png,new,Bo\n/4.png,not sure,\n")
    with monkeypatch.context() as patch:
        patch.setattr(ImageIndex, "unsure", property(lambda _: [], fail))
        with pytest.raises(OSError, match="no space left"):
            apply_identity_decisions(index.url, table, decisions, embed)
    assert contents(index.url) == before
    assert apply_identity_decisions(index.url, table, decisions, embed) == {"same": 1, "new": 1, "not sure": 1}
    assert contents(index.url)[2] == ["/4.png"]
