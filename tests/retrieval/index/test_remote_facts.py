"""Facts of an index in a database, which several processes read and change."""

import pytest

from tests.refusals import refused_call
from vicinal.retrieval.index.remote.engine_url import EngineURL
from vicinal.retrieval.index.remote.remote_table import FORMAT, VERSION, RemoteFacts
from vicinal.utils.errors import EngineRefusedError, InputError

URL = EngineURL.parse("postgresql://db/vectors?table=birds")
VALUES = {"format": FORMAT, "version": VERSION, "dim": 4, "columns": {}, "made_with": {}}


def test_a_url_is_read_as_it_is_written() -> None:
    for text in ("postgresql://ann%40corp@db:5433/my%20shop?table=a%26b", "milvus://db:19530/shop/birds?tls=true"):
        assert EngineURL.parse(str(EngineURL.parse(text))) == EngineURL.parse(text)
    refused_call("mysql: not the scheme of an index", EngineURL.parse, "mysql://db/vectors?table=birds")


def test_what_was_read_before_a_change_is_not_taken() -> None:
    facts = RemoteFacts(URL, VALUES, read=lambda: VALUES, write=lambda changes: {**VALUES, **changes})
    known, read = facts.values, {**VALUES, "root": "/old"}
    facts.change(root="/new")
    facts.take(read, since=known)
    assert facts.values["root"] == "/new"
    facts.take(read, since=facts.values)
    assert facts.values["root"] == "/old"


def test_an_index_that_is_gone_or_of_another_version_is_refused() -> None:
    for stored, error, message in (
        (None, EngineRefusedError, "the index no longer exists"),
        ({**VALUES, "generation": "ab"}, EngineRefusedError, "was upgraded to another model; open it again"),
        ({**VALUES, "version": 99}, InputError, "not an index of this version"),
    ):
        facts = RemoteFacts(URL, VALUES, read=lambda stored=stored: stored, write=dict)
        with pytest.raises(error, match=message):
            facts.refresh()
        if stored and "generation" in stored:
            facts.restore(facts.values)  # so that they are read again
            assert facts.kinds == {}  # reading goes on
