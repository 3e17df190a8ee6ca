"""Facts of an index in a database, which several processes read and change."""

from __future__ import annotations

from typing import Any

import pytest

from vicinal.retrieval.index.remote.engine_url import EngineURL
from vicinal.retrieval.index.remote.remote_table import FORMAT, VERSION, RemoteFacts
from vicinal.utils.errors import EngineRefusedError, InputError

URL = EngineURL.parse("postgresql://db/vectors?table=birds")
VALUES = {"format": FORMAT, "version": VERSION, "dim": 4, "columns": {}, "made_with": {}}


class Database:
    """Holds the facts of one index; None: it is not there."""

    def __init__(self) -> None:
        self.values: dict[str, Any] | None = dict(VALUES)

    def write(self, changes: dict[str, Any]) -> dict[str, Any]:
        values = {**(self.values or {}), **changes}
        self.values = {name: value for name, value in values.items() if value is not None or name not in changes}
        return self.values

    def open(self) -> RemoteFacts:
        return RemoteFacts(URL, self.values or {}, read=lambda: self.values, write=self.write)


def test_a_change_keeps_what_another_process_has_changed() -> None:
    database = Database()
    first, second = database.open(), database.open()
    first.change(root="/photos", calibration={"a": 1})
    second.change(rescore=None, calibration=None)
    assert database.values == second.values == {**VALUES, "root": "/photos"}


def test_what_was_read_before_a_change_is_not_taken() -> None:
    database = Database()
    facts = database.open()
    known, read = facts.values, {**VALUES, "root": "/old"}
    facts.change(root="/new")
    facts.take(read, since=known)
    assert facts.values["root"] == "/new"
    facts.take(read, since=facts.values)
    assert facts.values["root"] == "/old"


def test_an_index_that_is_gone_or_of_another_version_is_refused() -> None:
    database = Database()
    facts = database.open()
    database.values = None
    with pytest.raises(EngineRefusedError, match="the index is not there any more"):
        facts.refresh()
    database.values = {**VALUES, "generation": "ab"}
    with pytest.raises(EngineRefusedError, match="was upgraded to another model; open it again"):
        facts.refresh()
    assert facts.kinds == {}  # reading goes on
    database.values = {**VALUES, "version": 99}
    with pytest.raises(InputError, match="not an index of this version"):
        facts.refresh()
