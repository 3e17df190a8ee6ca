from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.damage import flipped, refusal
from tests.refusals import refused_call
from vicinal.data import Table, load_embeddings, load_table, read_fingerprint, save_embeddings


def table(rows: int = 3) -> Table:
    return Table(pd.DataFrame({"path": [f"{row}.png" for row in range(rows)], "label": list(range(rows))}), root="/x")


def vectors(rows: int = 3) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 4)).astype(np.float32)


@pytest.mark.parametrize("ending", ["parquet", "npy"])
def test_embeddings_and_table_come_back_bit_for_bit(tmp_path: Path, ending: str) -> None:
    for stored in (table(), Table(pd.DataFrame(index=range(3)))):  # the second without columns replaces the first
        save_embeddings(tmp_path / f"e.{ending}", vectors(), stored)
        found, found_table = load_embeddings(tmp_path / f"e.{ending}")
        assert found.dtype == np.float32
        assert np.array_equal(found, vectors())
        pd.testing.assert_frame_equal(found_table.frame, stored.frame, check_column_type=False)


def test_a_flipped_bit_in_a_parquet_file_is_noticed(tmp_path: Path) -> None:
    path, numbers, refused = tmp_path / "e.parquet", np.random.default_rng(0), 0
    save_embeddings(path, vectors(2000), table(2000))
    content = path.read_bytes()
    for place in numbers.integers(len(content), size=50):
        path.write_bytes(flipped(content, place, 3))
        message = refusal(partial(load_embeddings, path))
        if message is None:
            found, found_table = load_embeddings(path)
            assert np.array_equal(found, vectors(2000))
            pd.testing.assert_frame_equal(found_table.frame, table(2000).frame)
        else:
            assert message.startswith(f"{path}: ")
            refused += 1
    assert refused > 45


def test_parquet_holds_a_fixed_size_list_and_is_a_table_too(tmp_path: Path) -> None:
    save_embeddings(tmp_path / "e.parquet", vectors().astype(np.float64), table())
    assert pq.read_schema(tmp_path / "e.parquet").field("embedding").type == pa.list_(pa.float32(), 4)
    assert list(load_table(tmp_path / "e.parquet").frame.columns) == ["path", "label"]


def test_vectors_of_anyone(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", vectors().astype(np.float16))
    found, found_table = load_embeddings(tmp_path / "e.npy")
    assert (found.dtype, len(found_table)) == (np.float32, 3)
    pq.write_table(pa.table({"embedding": [[1.0, 2.0], [3.0, 4.0]]}), tmp_path / "lists.parquet")
    assert load_embeddings(tmp_path / "lists.parquet")[0].tolist() == [[1, 2], [3, 4]]


def test_wrong_vectors_are_not_saved(tmp_path: Path) -> None:
    for wrong, message in (
        (np.zeros(3), r"vectors: float64 \[3\]; embeddings are real numbers \[rows, dimensions\]"),
        (np.zeros((3, 0)), r"\[3, 0\]"),
        (np.zeros((3, 2), dtype=complex), "complex128"),
        (np.zeros((2, 4)), "2 embeddings for a table of 3 rows"),
        (np.array([[0.0], [np.nan], [np.inf]]), r"the embedding of row 1 \(and 1 other rows\) is not finite"),
    ):
        for ending in ("parquet", "npy"):
            refused_call(message, save_embeddings, tmp_path / f"e.{ending}", wrong, table())
        assert list(tmp_path.iterdir()) == []


def test_broken_files(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", vectors())
    (tmp_path / "e.csv").write_text("path,label\na.png,1\n")
    refused_call(r"e\.npy with e\.csv: 3 embeddings for a table of 1 rows", load_embeddings, tmp_path / "e.npy")
    table().save(tmp_path / "t.parquet")
    refused_call("no column 'embedding'; its columns are path, label", load_embeddings, tmp_path / "t.parquet")


def test_parquet_columns_that_are_no_embeddings(tmp_path: Path) -> None:
    for column, message in (
        ([[1.0, 2.0], [3.0]], "embeddings have 1 to 2 dimensions"),
        ([[1.0], None], "with 1 empty; it must be lists of numbers"),
        ([[1.0], [float("nan")]], "the embedding of row 1 is not finite"),
        ([["a"], ["b"]], "embeddings are real numbers"),
        ([{"x": 1.0}, {"x": 2.0}], r"embedding is struct<x: double> with 0 empty; it must be lists of numbers"),
    ):
        pq.write_table(pa.table({"embedding": column}), tmp_path / "e.parquet")
        refused_call(message, load_embeddings, tmp_path / "e.parquet")


def test_vectors_beside_a_csv_of_the_same_stem(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", vectors())
    (tmp_path / "e.csv").write_text("path,label\na.png,x\nb.png,y\nc.png,x\n")
    found = load_embeddings(tmp_path / "e.npy")[1]
    assert (found.paths[0], found.classes) == (str(tmp_path / "a.png"), ["x", "y"])


def test_a_parquet_file_says_which_model_made_its_vectors(tmp_path: Path) -> None:
    for columns in (["path", "label"], []):
        part = Table(table().frame[columns])
        save_embeddings(tmp_path / "e.PARQUET", vectors(), part, fingerprint="0123456789abcdef")
        assert read_fingerprint(tmp_path / "e.PARQUET") == "0123456789abcdef"
        assert list(pd.read_parquet(tmp_path / "e.PARQUET").columns) == [*columns, "embedding"]
        save_embeddings(tmp_path / "e.PARQUET", vectors(), part)
        assert read_fingerprint(tmp_path / "e.PARQUET") is None
