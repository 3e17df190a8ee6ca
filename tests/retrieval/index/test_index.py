import itertools
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import faiss
import numpy as np
import pandas as pd
import pytest

from tests.damage import flipped, refusal
from tests.refusals import refused_call
from vicinal.data import Table
from vicinal.models import ContextRefiner
from vicinal.retrieval import Index, UnitVectors, top_k
from vicinal.retrieval.index import faiss_engine
from vicinal.retrieval.index.database import FILE
from vicinal.retrieval.index.verification import verify_index


def unit(rows: int, dim: int = 8, seed: int = 0) -> np.ndarray:
    """Points near a subspace of few dimensions, as embeddings are."""
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((rows, 5)) @ np.random.default_rng(99).standard_normal((5, dim))
    vectors += 0.1 * rng.standard_normal((rows, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def table(rows: int, start: int = 0) -> Table:
    numbers = range(start, start + rows)
    return Table(pd.DataFrame({"path": [f"/{n}.png" for n in numbers], "label": [f"class {n % 7}" for n in numbers]}))


def reloaded(folder: Path) -> pd.DataFrame:
    return Index.load(folder).metadata.frame


def recall(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found.tolist(), wanted.tolist(), strict=True)]))


@pytest.fixture(scope="module")
def many() -> np.ndarray:
    return unit(3000)


@pytest.fixture(scope="module", autouse=True)
def trained_once(many) -> Iterator[None]:
    """Training ivfpq takes a while: once is enough for these vectors."""
    train = faiss_engine._train_ivfpq
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faiss_engine, "IVFPQ_MIN_VECTORS", 2000)
        trained = faiss.serialize_index(train(UnitVectors(many, "vector")))
        patch.undo()

        def trained_before(vectors: UnitVectors) -> faiss.Index:
            return faiss.deserialize_index(trained) if len(vectors) == 2000 else train(vectors)

        patch.setattr(faiss_engine, "_train_ivfpq", trained_before)
        yield


KINDS = ["exact", "hnsw", "sq8", "ivfpq", "rabitq", "binary"]


def build(name: str, many: np.ndarray) -> Index:
    kind, _, is_approximate = name.partition(" without")
    return Index.build(many[:2000], table(2000), kind, rescore=0 if is_approximate else None)


@pytest.mark.slow
def test_other_libraries_may_patch_faiss() -> None:
    script = (
        "import faiss.contrib.torch_utils, numpy as np, pandas as pd\n"
        "from vicinal.data.table import Table\nfrom vicinal.retrieval.index.index import Index\n"
        "index = Index.build(np.eye(3), Table(pd.DataFrame({'label': [1, 2, 3]})))\n"
        "index.delete([0])\nassert index.search(np.eye(3)[1:], 2).ids.tolist() == [[1, 2], [2, 1]]\n"
        "from vicinal.retrieval.index import faiss_engine\nfaiss_engine.IVFPQ_MIN_VECTORS = 400\n"
        "many = Table(pd.DataFrame({'label': range(400)}))\nvectors = np.random.default_rng(0).normal(size=(400, 8))\n"
        "for kind in ('exact', 'hnsw', 'sq8', 'ivfpq', 'rabitq', 'binary'):\n"
        "    index = Index.build(vectors, many, kind, rescore=0)\n"
        "    assert type(index.vectors()) is type(index.search(vectors, 2).ids) is np.ndarray\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_auto_takes_hnsw_above_a_size(monkeypatch) -> None:
    monkeypatch.setattr(faiss_engine, "MAX_EXACT", 100)
    assert Index.build(unit(100), table(100)).kind == "exact"
    assert Index.build(unit(101), table(101)).kind == "hnsw"


LEAST = {"hnsw": 0.98, "sq8": 0.99, "ivfpq": 0.98, "rabitq": 0.9, "binary": 0.9}
LEAST |= {"sq8 without rescoring": 0.95, "ivfpq without rescoring": 0.5}


@pytest.mark.parametrize(("kind", "least"), LEAST.items())
def test_approximate_kinds_find_most(kind, least, many) -> None:
    index = build(kind, many)
    queries = unit(100, seed=5)
    found = index.search(queries, 10)
    exact = top_k(queries, many[: len(index)], 10)
    assert recall(found.ids, exact.ids) >= least
    assert (np.diff(found.scores, axis=1) <= 0).all()
    assert np.abs(found.scores - exact.scores).max() < 0.15
    if kind in ("sq8", "ivfpq", "rabitq", "binary"):
        vectors = many.astype(np.float16).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        np.testing.assert_allclose(found.scores, np.einsum("qd,qkd->qk", queries, vectors[found.ids]), atol=2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_delete_and_add(kind, many) -> None:
    index = build(kind, many)
    size = len(index)
    gone = np.arange(0, size, 2)
    index.delete(gone)
    assert len(index) == size - len(gone)
    queries = many[:50]
    found = index.search(queries, 10).ids
    assert (found % 2 == 1).all()
    extra = unit(30, seed=8)
    ids = index.add(extra, table(30, start=size))
    assert ids.tolist() == list(range(size, size + 30))
    found = index.search(extra, 20).ids
    assert np.mean((found == ids[:, None]).any(axis=1)) >= 0.9
    assert index.lookup(ids[[3, 1]])["path"].tolist() == [f"/{size + 3}.png", f"/{size + 1}.png"]
    index.delete(ids)
    refused_call(f"no id {ids[0]}", index.delete, ids[:1])
    assert index.add(extra[:1], table(1)).tolist() == [size + 30]  # ids are never given twice
    index.delete(index.metadata.ids[5:-5])
    found = index.search(many[:3], np.int64(10))  # for the whole index
    assert sorted(found.ids[0].tolist()) == index.metadata.ids.tolist()
    assert np.isfinite(found.scores).all()
    refused_call("k = 11 is invalid in an index of 10 images; use 1 to 10", index.search, many[:3], 11)


def clusters(rows: int, dim: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors around ten centers, and the number of the center of each."""
    rng = np.random.default_rng(0)
    center = rng.integers(0, 10, rows)
    return normalized(rng.standard_normal((10, dim))[center] + 0.5 * rng.standard_normal((rows, dim))), center


def normalized(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def recall_of(index: Index, vectors: np.ndarray, queries: np.ndarray) -> float:
    """Recall@10 among the images that are left."""
    left = index.metadata.ids
    return recall(index.search(queries, 10).ids, left[top_k(queries, vectors[left], 10).ids])


def test_hnsw_finds_neighbors_near_deleted_clusters() -> None:
    vectors, center = clusters(4000)
    index = Index.build(vectors, table(len(vectors)), "hnsw")
    for number_deleted in (2, 5):  # a search that leaves out deleted vectors on its way finds hardly any of them
        index.delete(index.metadata.ids[center[index.metadata.ids] < number_deleted])
        assert recall_of(index, vectors, vectors[center < number_deleted][:200]) >= 0.99


def with_duplicates(fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """4,000 unit vectors, and which of them are the same one."""
    rng = np.random.default_rng(0)
    vectors, is_same = normalized(rng.standard_normal((4000, 32))), rng.random(4000) < fraction
    vectors[is_same] = vectors[0]
    return vectors, is_same | (np.arange(4000) == 0)


def test_hnsw_finds_as_much_beside_identical_and_nearly_identical_vectors(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    queries = normalized(rng.standard_normal((200, 32)))
    for noise in (1e-7, 1e-3):
        vectors, is_same = with_duplicates(0.4)
        vectors[is_same] += noise * rng.standard_normal((is_same.sum(), 32)).astype(np.float32)
        index = Index.build(vectors[:3000], table(3000), "hnsw")
        index.add(vectors[3000:], table(1000, start=3000))
        least = top_k(queries, normalized(vectors), 10).scores[:, -1:] - 1e-6
        assert (index.search(queries, 10).scores >= least).mean() >= 0.99, noise
    for fraction in (0.2, 0.8):
        vectors, is_same = with_duplicates(fraction)
        index = Index.build(vectors[:3000], table(3000), "hnsw")
        index.save(tmp_path / str(fraction))
        index = Index.load(tmp_path / str(fraction))
        assert index.add(vectors[3000:], table(1000, start=3000)).tolist() == list(range(3000, 4000))
        assert index.state.committed.engine.base._faiss.ntotal == 4001 - is_same.sum()
        np.testing.assert_allclose(index.vectors(), vectors, atol=1e-6)
        least = top_k(queries, vectors, 10).scores[:, -1:] - 1e-6
        recalls = (index.search(queries, 10).scores >= least).mean(axis=1)
        assert min(recalls.mean(), recalls.min() + 0.2) >= 0.99, fraction
        same = np.flatnonzero(is_same)
        assert index.search(vectors[:1], len(same)).ids[0].tolist() == same.tolist()
        index.delete(same[::2])
        assert index.search(vectors[:1], len(same) // 2).ids[0].tolist() == same[1::2].tolist()
        recalls = (index.search(queries, 10).scores >= least).mean(axis=1)
        assert recalls.mean() >= 0.95, fraction


def test_a_graph_that_finds_too_little_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    centers = normalized(rng.standard_normal((20, 32)))
    near = normalized(centers[rng.integers(0, 20, 4000)] + 0.01 * rng.standard_normal((4000, 32)))
    index = Index.build(near, table(4000), "hnsw")
    found = verify_index(index, 50)
    assert found.recall >= 0.99, "each image finds those of its own cluster"
    assert found.recall_between < 0.95
    assert f"hnsw finds {100 * found.recall_between:.1f} % of the 10 nearest images" in capsys.readouterr().err
    Index.build(near, table(4000), "exact")
    Index.build(normalized(rng.standard_normal((4000, 16))), table(4000), "hnsw")
    assert capsys.readouterr().err == ""


def test_ivfpq_searches_lists_that_hold_remaining_vectors(monkeypatch) -> None:
    monkeypatch.setattr(faiss_engine, "IVFPQ_MIN_VECTORS", 3000)
    vectors, _ = clusters(3000, 8)
    index = Index.build(vectors, table(len(vectors)), "ivfpq", rescore=0)
    engine, recalls = index.state.committed.engine.base._faiss, []
    lists = [ids.copy() for ids in faiss_engine._ids_of_lists(engine)]
    for query in vectors[:50, None]:
        *nearest, last = (lists[number] for number in engine.quantizer.search(query, 8)[1][0])
        left = np.setdiff1d(np.arange(3000), np.concatenate([*nearest, last[5:]]))  # five in the eight nearest lists
        found = []
        for probes in (8, 10_000):
            monkeypatch.setattr(faiss_engine, "IVF_PROBES", probes)
            found.append(index.search(query, 5, among=left).ids)
        recalls.append(recall(*found))
    assert np.mean(recalls) >= 0.7  # 0.07 if the lists of deleted vectors are searched


@pytest.mark.parametrize("kind", [*KINDS, "sq8 without rescoring", "ivfpq without rescoring"])
def test_vectors_of_every_kind(kind, many) -> None:
    index = build(kind, many)
    assert index.vectors().shape == (len(index), 8)
    ids = index.add(many[:3], table(3))
    index.delete([0, 5, *ids[:1]])
    vectors = index.vectors()
    kept = np.concatenate([many[: index.metadata.ids[-3] + 1], many[1:3]])
    kept = np.delete(kept, [0, 5], axis=0)
    assert vectors.shape == kept.shape
    largest = {"exact": 1e-6, "hnsw": 1e-6, "ivfpq without rescoring": 0.8}.get(kind, 0.01 if " " in kind else 5e-4)
    assert np.abs(vectors - kept).max() < largest
    assert np.mean(np.sum(vectors * kept, axis=1)) > 0.9
    index.delete(index.metadata.ids)
    assert index.vectors().shape == (0, 8)


@pytest.mark.parametrize("kind", [*KINDS, "ivfpq without rescoring", "binary without rescoring"])
def test_save_and_load(kind, many, tmp_path) -> None:
    index = build(kind, many)
    index.delete([0, 3])
    index.save(tmp_path / "index")
    loaded = Index.load(tmp_path / "index")
    pd.testing.assert_frame_equal(loaded.metadata.frame, index.metadata.frame)
    assert (loaded.kind, loaded.model_fingerprint, len(loaded)) == (kind.split()[0], None, len(index))
    assert loaded.describe() == index.describe()
    mine, theirs = index.search(many[:20], 7), loaded.search(many[:20], 7)
    np.testing.assert_array_equal(mine.ids, theirs.ids)
    np.testing.assert_array_equal(mine.scores, theirs.scores)
    assert loaded.add(unit(1), table(1)).tolist() == index.add(unit(1), table(1)).tolist()


def test_an_emptied_index_can_be_added_to(tmp_path) -> None:
    index = Index.build(unit(3), table(3))
    index.delete([2, 0, 1])
    refused_call("the index is empty", lambda: index.search(unit(1), 1))
    index.save(tmp_path)
    index = Index.load(tmp_path)
    assert index.add(unit(2), table(2)).tolist() == [3, 4]
    index.save(tmp_path)
    assert reloaded(tmp_path)["label"].tolist() == ["class 0", "class 1"]


COLUMNS = {"integers": [1, 2**60 + 1], "booleans": [True, False], "text": ["a", "b"], "floats": [0.5, 1.0]}


@pytest.mark.parametrize("lacking_first", [False, True])
def test_types_of_values_survive_missing_ones(lacking_first, tmp_path) -> None:
    parts = [Table(pd.DataFrame(COLUMNS)), Table(pd.DataFrame({"other": [7, 8]}))]
    first, second = reversed(parts) if lacking_first else parts
    index = Index.build(unit(2), first)
    index.add(unit(2), second)
    index.add(unit(2), Table(pd.DataFrame(index=range(2))))
    index.add(unit(2), parts[0])
    index.save(tmp_path)
    for frame, (column, values) in itertools.product((index.metadata.frame, reloaded(tmp_path)), COLUMNS.items()):
        known = frame[column].dropna().tolist()
        assert known == values * 2
        assert {type(value) for value in known} == {type(values[0])}
        assert frame[column].isna().sum() == 4
        assert frame["id"].dtype == np.int64


def test_columns_of_other_types_or_of_the_name_of_a_renamed_one_are_refused() -> None:
    for old, new in (([True], ["a"]), (["a"], [True]), ([1], [True]), ([0.5], ["a"])):
        index = Index.build(unit(1), Table(pd.DataFrame({"extra": old})))
        message = r"column 'extra' is \w+ in the new rows, \w+ in the index; both must have"
        refused_call(message, index.add, unit(1), Table(pd.DataFrame({"extra": new})))
        assert len(index) == 1
        assert index.add(unit(1), Table(pd.DataFrame({"extra": old}))).tolist() == [1]
    index = Index.build(unit(2), Table(pd.DataFrame({"id": ["p7", "p9"], "label": ["a", "b"]})))
    refused_call("both columns 'id' and 'id_of_table'", lambda: index.add(unit(2), Table(index.metadata.frame)))


def test_bad_input() -> None:
    vectors = unit(20)
    index = Index.build(vectors, table(20))
    for call, message in (
        (lambda: Index.build(vectors[:0], table(20).take([])), "no vectors to index"),
        (lambda: Index.build(vectors, table(20), "ivfpq"), "needs 9,984 vectors to train on, got 20"),
        (lambda: Index.build(vectors, table(20), "lsh"), "unknown kind of index 'lsh'"),  # type: ignore[arg-type]
        (lambda: Index.build(vectors, table(20), "hnsw", rescore=4), "the vectors of hnsw are exact: leave it out"),
        (lambda: Index.build(vectors, table(20), "sq8", rescore=-1), r"rescore = -1 is invalid; use 0 \(none\) to"),
        (lambda: index.delete([3, -1]), "no id -1"),
        (lambda: index.lookup([20]), "no id 20"),
    ):
        refused_call(message, call)
    assert len(index) == 20


def test_damage_is_reported(tmp_path) -> None:
    folder = tmp_path / "index"
    Index.build(unit(4), table(4), "sq8").save(folder)
    for path in (*folder.glob("vectors-*"), *folder.glob("originals-*")):
        content = path.read_bytes()
        for damaged in (content[:-1], content[:3] + bytes([content[3] ^ 1]) + content[4:], b""):
            path.write_bytes(damaged)
            refused_call(f"{path.name} is damaged", Index.load, folder)
        path.unlink()
        refused_call(f"{path.name} is missing", Index.load, folder)
        path.write_bytes(content)
    assert len(Index.load(folder)) == 4
    for path in folder.glob("index.sqlite*"):
        path.unlink()
    (folder / FILE).write_bytes(b"not SQLite" * 1000)
    refused_call("damaged", Index.load, folder)


@pytest.mark.parametrize("is_refined", [False, True])
def test_a_flipped_bit_of_an_added_vector_is_reported(tmp_path, is_refined: bool) -> None:
    refiner = ContextRefiner(dim=8, num_heads=2) if is_refined else None
    Index.build(unit(4), table(4), refiner=refiner).save(tmp_path)
    Index.load(tmp_path).add(unit(4)[:2], table(2), refiner)
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        for column in ("vector", "unrefined") if is_refined else ("vector",):
            ((blob,),) = connection.execute(f"SELECT {column} FROM changes WHERE id = 5")
            for content in (flipped(blob, 2), blob):
                connection.execute(f"UPDATE changes SET {column} = ? WHERE id = 5", [content])
                connection.commit()
                message = refusal(lambda: Index.load(tmp_path).vectors())
                assert message == (
                    None if content == blob
                    else f"{tmp_path}: the index is damaged (the vector of image 5); build it again"
                )  # fmt: skip


def test_foreign_folders_are_refused_and_kept(tmp_path) -> None:
    index = Index.build(unit(4), table(4))
    refused_call(r"it has no index\.sqlite; build one with `vicinal index build`", Index.load, tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    refused_call("is a file", index.save, tmp_path / "file")
    refused_call(r"is not an index and holds file; give an index a folder of its own", index.save, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    index.save(tmp_path / "index")
    refused_call("inner is inside the index .*index; give an index a folder of", index.save, tmp_path / "index/inner")
    assert not (tmp_path / "index" / "inner").exists()


def test_integers_of_more_than_64_bits_are_refused() -> None:
    """Floats would not hold them either."""
    large = Table(pd.DataFrame({"ean": np.array([2**63 + 1, 2**64 - 1], np.uint64)}))
    refused_call(f"column 'ean' holds {2**64 - 1}, an integer of more than 64 bits", Index.build, unit(2), large)
    index = Index.build(unit(2), Table(pd.DataFrame({"ean": np.array([2**63 - 1, 7], np.uint64)})))
    refused_call("more than 64 bits", lambda: index.add(unit(2), large))
    index.add(unit(1), Table(pd.DataFrame({"ean": [8]})))
    assert index.lookup([0, 1, 2])["ean"].tolist() == [2**63 - 1, 7, 8]


def test_images_that_were_moved(tmp_path: Path) -> None:
    folder, new = tmp_path / "i", tmp_path / "new"
    for name in ("a/1.png", "a/2.png"):
        (new / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (new / "photos" / name).touch()
    paths = ["/old/photos/a/1.png", "/old/photos/a/2.png", "/elsewhere/3.png"]
    for root, then in ((new / "photos", new / "photos"), (new, new / "photos"), (new / "photos" / "a", "/old/photos")):
        index = Index.build(np.eye(3), Table(pd.DataFrame({"path": paths})))
        index.root = "/old/photos"
        index.save(folder)
        loaded = Index.load(folder)
        loaded.move(root)  # the root itself, a folder above it, or one below it
        moved = [str(new / "photos" / "a" / name) for name in ("1.png", "2.png")]
        for each in (loaded, Index.load(folder)):
            assert each.metadata.frame["path"].tolist() == [*moved, "/elsewhere/3.png"]
            assert each.root == str(then)
    unknown = Index.build(np.eye(3), Table(pd.DataFrame({"path": paths})))
    unknown.move(new)
    assert (unknown.root, unknown.metadata.frame["path"][0]) == (str(new), str(new / "photos" / "a" / "1.png"))


def test_files_are_written_anew_after_many_changes(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("vicinal.retrieval.index.shared_state.MIN_PENDING", 50)
    for kind in ("exact", "sq8", "binary"):
        folder = tmp_path / kind
        Index.build(unit(200), table(200), kind, rescore=None).save(folder)
        index, other = Index.load(folder), Index.load(folder)
        names = {path.name for path in folder.glob("*-*.*")}
        index.add(unit(30, seed=1), table(30, start=200))
        index.delete([3, 210])
        assert (index.state.current().num_pending, other.state.current().num_pending) == (30, 30)
        assert {path.name for path in folder.glob("*-*.*")} == names
        index.add(unit(30, seed=2), table(30, start=230))
        assert tuple(each.state.current().num_pending for each in (index, other, Index.load(folder))) == (0, 0, 0)
        assert not names & {path.name for path in folder.glob("*-*.*")}
        assert len(list(folder.glob("*-*.*"))) == len(names)
        for each in (index, other, Index.load(folder)):
            assert each.metadata.ids.tolist() == [*range(3), *range(4, 210), *range(211, 260)]
            np.testing.assert_allclose(each.vectors()[-30:], unit(30, seed=2), atol=1e-3)
            assert each.search(unit(30, seed=2), 1).ids.ravel().tolist() == [*range(230, 260)]
