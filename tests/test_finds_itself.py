"""Every image that was indexed is its own first match, with a similarity of 1, on every path from picture to match."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import ExifTags, Image

from tests.conftest import output
from tests.retrieval.remote.conftest import servers, unique_table  # noqa: F401
from tests.retrieval.remote.servers import STARTERS, Server
from tests.serving.service import client_of
from vicinal import Embedder, Index, Table
from vicinal.data import ImageTransform, load_embeddings
from vicinal.export import export_model
from vicinal.retrieval import RemoteIndex
from vicinal.workflows import EmbeddingReader, embed_on_ray, embed_shard

Match = tuple[str, str, float]  # file names of the query and of its first match, and their similarity
KINDS = ("exact", "hnsw", "sq8", "ivfpq", "rabitq", "binary")
NUM_OTHERS = 10_000  # vectors in the index of each kind: ivfpq learns from so many
slow = pytest.mark.slow


@dataclass(frozen=True)
class Album:
    """Pictures of all formats, a model, and an index of the pictures by the model.

    Attributes:
        photos: the folder of the pictures.
        model: the folder of the model.
        index: the folder of the index.
        embedder: the model.
        vectors: embeddings of the pictures.
        table: the pictures.
    """

    photos: Path
    model: Path
    index: Path
    embedder: Embedder
    vectors: np.ndarray
    table: Table


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Album:
    folder = tmp_path_factory.mktemp("album")
    photos, rng = folder / "photos", np.random.default_rng(0)
    photos.mkdir()
    for number, suffix in enumerate([*(f"{turn}.jpg" for turn in range(1, 9)), "a.png", "b.png", "a.webp", "b.webp"]):
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = int(suffix[0]) if suffix[0].isdigit() else 1
        pixels = rng.integers(0, 256, (3 + number % 3, 4, 3), dtype=np.uint8)
        image = Image.fromarray(pixels).resize((60 + number, 50 + 7 * (number % 4)))
        image.save(photos / f"{number}_{suffix}", exif=exif)
    torch.manual_seed(0)
    model = Embedder("test_resnet", dim=64, pretrained=False, transform=ImageTransform(size=32)).eval()
    model.save_pretrained(folder / "model")
    table = Table.from_folder(photos)
    vectors = model.embed(table, progress=False)
    Index.build(vectors, table, model_fingerprint=model.fingerprint()).save(folder / "index")
    return Album(photos, folder / "model", folder / "index", model, vectors, table)


def check(matches: Iterable[Match], min_score: float = 0.999) -> None:
    """Each of the pictures was searched for and found itself."""
    found = list(matches)
    assert len(found) == 12
    assert [query for query, match, score in found if query != match or not score >= min_score] == []


def matches(index: Any, vectors: np.ndarray, table: Table) -> list[Match]:
    """The first match of each row."""
    neighbors = index.search(vectors, 1)
    names = [Path(path).name for path in index.lookup(neighbors.ids[:, 0])["path"]]
    return list(zip([Path(path).name for path in table.paths], names, neighbors.scores[:, 0].tolist(), strict=True))


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[slow] * (kind in ("hnsw", "ivfpq"))) for kind in KINDS])
def test_each_kind_of_index(album: Album, kind: Any) -> None:
    others = np.random.default_rng(1).standard_normal((NUM_OTHERS, 64)).astype(np.float32) + 5 * album.vectors.mean(0)
    paths = [*album.table.paths, *(f"other{number}" for number in range(NUM_OTHERS))]
    index = Index.build(np.concatenate([album.vectors, others]), Table(pd.DataFrame({"path": paths})), kind)
    check(matches(index, album.vectors, album.table))


@pytest.mark.parametrize("form", ["path", "picture", "table"])
def test_python(album: Album, form: str) -> None:
    given: dict[str, Any] = {
        "path": album.table.paths,
        "picture": [Image.open(path) for path in album.table.paths],
        "table": album.table,
    }
    check(matches(Index.load(album.index), album.embedder.embed(given[form], progress=False), album.table))


@pytest.mark.parametrize("engine", ["torch", pytest.param("onnx", marks=slow), pytest.param("openvino", marks=slow)])
def test_the_command(album: Album, engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output(capsys, "index", "build", tmp_path / "index", album.photos, "--model", album.model)
    found = json.loads(output(capsys, "search", tmp_path / "index", album.photos, "-k", "1", "--json",
                              "--engine", engine))  # fmt: skip
    check((Path(each["query"]["path"]).name, Path(best["path"]).name, best["score"])
          for each in found for best in each["matches"])  # fmt: skip


def test_the_service(album: Album) -> None:
    def search(path: str) -> Match:
        answer = client.post("/search", files={"image": ("x", Path(path).read_bytes())}, data={"k": "1"}).json()
        best = answer["matches"][0]
        return path, album.table.paths[int(best["id"])], best["score"]

    with client_of(album.index, album.embedder) as client:
        check(map(search, album.table.paths))


@slow
@pytest.mark.parametrize("file", ["model.onnx", "model.xml"])
def test_exported_models(album: Album, file: str, tmp_path: Path) -> None:
    export_model(album.embedder, tmp_path / file, format="onnx" if file.endswith("onnx") else "openvino")
    embedded = EmbeddingReader(model=str(tmp_path / file)).embed(str(album.photos))
    check(matches(Index.load(album.index), embedded.vectors, embedded.table))


@pytest.mark.parametrize("is_on_ray", [False, pytest.param(True, marks=slow)])
def test_shards(album: Album, is_on_ray: bool, tmp_path: Path) -> None:
    reader = EmbeddingReader(model=str(album.model), batch_size=3)
    if is_on_ray:
        pytest.importorskip("ray", reason="needs the extra ray")
        embed_on_ray(reader, str(album.photos), tmp_path, "local", 2, 2, part_size=3)
        embed_shard(reader, str(album.photos), tmp_path, 1, 2, part_size=3)
    else:
        for shard in (1, 2):
            embed_shard(reader, str(album.photos), tmp_path, shard, 2, part_size=3)
    vectors, table = load_embeddings(tmp_path)
    check(matches(Index.build(vectors, table), album.vectors, album.table))


@slow
@pytest.mark.parametrize("name", list(STARTERS))
def test_databases(album: Album, name: str, servers: dict[str, Server]) -> None:  # noqa: F811
    with RemoteIndex.build(album.vectors, album.table, servers[name].url(unique_table())) as index:
        check(matches(index, album.vectors, album.table))
