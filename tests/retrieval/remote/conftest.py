"""The places where indexes are kept: a folder, Milvus, and PostgreSQL."""

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.retrieval.remote.servers import STARTERS, Server, shared_server
from vicinal import Index, Table
from vicinal.retrieval import RemoteIndex

NUMBERS = itertools.count()


@dataclass
class Backend:
    """Where an index is kept.

    Attributes:
        name: `faiss`, `milvus` or `postgresql`.
        place: a folder or a URL.
    """

    name: str
    place: str

    def build(self, vectors: np.ndarray, table: Table, **options: Any) -> Any:
        if self.name != "faiss":
            return RemoteIndex.build(vectors, table, self.place, **options)
        index = Index.build(vectors, table, **options)
        index.save(self.place)
        return Index.load(self.place)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """The servers that were needed, one for all processes of the tests."""
    from contextlib import ExitStack

    base = tmp_path_factory.getbasetemp()
    folder = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base

    class Started(dict[str, Server]):
        def __missing__(self, name: str) -> Server:
            self[name] = stack.enter_context(shared_server(name, folder))
            return self[name]

    with ExitStack() as stack:
        yield Started()


def unique_table() -> str:
    """A name of a table that no other test has."""
    return f"test_{os.getpid()}_{next(NUMBERS)}"


@pytest.fixture(params=["faiss", *STARTERS])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    if request.param == "faiss":
        return Backend("faiss", str(tmp_path / "index"))
    servers = request.getfixturevalue("servers")
    return Backend(request.param, servers[request.param].url(unique_table()))


@pytest.fixture(params=list(STARTERS))
def server(request: pytest.FixtureRequest, servers: dict[str, Server]) -> Server:
    return servers[request.param]
