"""The command takes the URL of a database wherever it takes the folder of an index."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.conftest import output, refused
from tests.retrieval.remote.conftest import unique_table
from tests.retrieval.remote.servers import Server
from vicinal import Table
from vicinal.data import save_embeddings


def save(file: Path, rows: range, **columns: list[int]) -> str:
    vectors = np.random.default_rng(0).standard_normal((100, 16)).astype(np.float32)[list(rows)]
    names = {"path": [f"/{n}.png" for n in rows], "label": ["cup", "bowl"] * (len(rows) // 2)}
    save_embeddings(file, vectors, Table(pd.DataFrame({**names, "price": list(rows), **columns})))
    return str(file)


def test_a_life_of_an_index(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = server.url(unique_table())
    source, more = save(tmp_path / "v.parquet", range(60)), save(tmp_path / "more.parquet", range(50, 80))
    facts = json.loads(output(capsys, "index", "build", url, source, "--json"))
    assert (facts["url"], facts["images"], facts["dimensions"], facts["kind"]) == (url, 60, 16, "hnsw")
    said = refused(capsys, "index", "build", url, source)
    assert "is already an index; `vicinal index add` or `sync` adds images to it" in said
    assert json.loads(output(capsys, "index", "add", url, more, "--json"))["images"] == 80
    listed = output(capsys, "index", "list", url, "--where", "price >= 77 and label == 'bowl'").splitlines()
    assert listed[0] == "id,path,label,price"
    assert sorted(line.partition(",")[2] for line in listed[1:]) == ["/77.png,bowl,77", "/79.png,bowl,79"]
    found = json.loads(output(capsys, "search", url, more, "-k", "2", "--where", "label == 'cup'", "--json"))
    assert [each["matches"][0]["path"] for each in found[::2]] == [f"/{n}.png" for n in range(50, 80, 2)]
    assert output(capsys, "index", "delete", url, "/77.png", "--json")
    assert json.loads(output(capsys, "index", "delete", url, "--where", "price < 10", "--json"))["images"] == 69
    verified = json.loads(output(capsys, "index", "verify", url, "--queries", "5", "--json"))
    assert (verified["recall@10"], verified["queries"], verified["images"]) == (1.0, 5, 69)
    facts = json.loads(output(capsys, "index", "build", url, more, "--overwrite", "--kind", "exact", "--json"))
    assert (facts["images"], facts["kind"]) == (30, "exact")
    copied = json.loads(output(capsys, "index", "build", str(tmp_path / "copy"), url, "--json"))
    assert copied["images"] == 30
    assert json.loads(output(capsys, "index", "verify", str(tmp_path / "copy"), "--json"))["recall@10"] == 1.0
