from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.refusals import refused_call
from vicinal.data import Table, save_embeddings
from vicinal.utils.errors import InputError


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "table.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_csv_from_windows_with_a_mark_of_byte_order(tmp_path: Path) -> None:
    table = Table.from_csv(write(tmp_path, b"\xef\xbb\xbfpath,label\r\na.png,caf\xc3\xa9\r\n"))
    assert table.classes == ["café"]


def test_integers_are_integers_only_if_all_are_plain_ones(tmp_path: Path) -> None:
    text = "path,label,coarse,group\na.png,10,007,1\nb.png,9,8,x\n"
    table = Table.from_csv(write(tmp_path, text))
    assert table.classes == [9, 10]
    assert table.frame["coarse"].tolist() == ["007", "8"]
    assert table.frame["group"].tolist() == ["1", "x"]


def test_mistakes_in_csv_are_named_with_file_and_line(tmp_path: Path) -> None:
    for text, message in (
        ("path,label\na.png,cat\nb.png\n", r"line 3: 1 fields where the header has 2 \(path, label\)"),
        ('path,label\n"a\n.png",cat\nb.png\n', "line 4: 1 fields"),
        ("path,label\na.png,cat\nb.png,\n", "line 3 has no label"),
        ("path,path,label\na.png,b.png,cat\n", "column 'path' appears twice"),
        ("", "empty file; the first line names the columns"),
        ("path,label\n", "a header and no rows"),
        ('path,label\na.png,"cat\n', "line 2: the last field begins with a quotation mark that is never closed"),
    ):
        refused_call(rf"^{tmp_path}/table\.csv.*{message}", Table.from_csv, write(tmp_path, text))


def test_columns_of_other_names_and_tables_without_labels(tmp_path: Path) -> None:
    path = write(tmp_path, "file,species\na.png,owl\n")
    assert Table.from_csv(path, path_column="file", label_column="species").classes == ["owl"]
    unlabeled = Table.from_csv(path, path_column="file", label_column=None)
    assert list(unlabeled.frame.columns) == ["path", "species"]


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    for read in (Table.from_csv, Table.from_parquet):
        refused_call("lost: no such file", read, tmp_path / "lost")
        refused_call(f"{tmp_path.name}: is a folder; give a file", read, tmp_path)


def test_parquet_of_anyone(tmp_path: Path) -> None:
    frame = pd.DataFrame({"file": ["a.png", "b.png"], "label": pd.Categorical(["x", "y"]), "score": [0.5, None]})
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    table = Table.from_parquet(tmp_path / "t.parquet", path_column="file")
    assert table.paths == [str(tmp_path / "a.png"), str(tmp_path / "b.png")]
    assert table.classes == ["x", "y"]
    assert np.isnan(table.frame["score"][1])


def test_parquet_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1 no more")
    refused_call(r"t\.parquet: not a readable Parquet file", Table.from_parquet, tmp_path / "t.parquet")
    pd.DataFrame({"path": [], "label": []}).to_parquet(tmp_path / "none.parquet")
    refused_call(r"none\.parquet: a table without rows", Table.from_parquet, tmp_path / "none.parquet")


def test_parquet_columns_that_cannot_be_read(tmp_path: Path) -> None:
    offsets = pa.py_buffer(np.array([0, 1, 2], dtype=np.int32))
    no_text = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"a\xff"))
    far_away = pa.array([0, 2**31 - 1], pa.date32())
    for column in (no_text, far_away):
        pq.write_table(pa.table({"path": ["a.png", "b.png"], "label": column}), tmp_path / "t.parquet")
        refused_call(r"t\.parquet: not a readable Parquet file", Table.from_parquet, tmp_path / "t.parquet")


@pytest.mark.parametrize("mixed", [["a", 1], [2**70, 1], [1j, 2j], [object(), 1], pd.arrays.SparseArray([0, 1])])
def test_columns_that_parquet_cannot_hold(tmp_path: Path, mixed: object) -> None:
    table = Table(pd.DataFrame({"label": ["x", "y"], "note": mixed}))
    for write in (table.save, lambda path: save_embeddings(path, np.eye(2), table)):
        with pytest.raises(InputError, match=r"t\.parquet: Parquet cannot hold column 'note' \(.*; give its values"):
            write(tmp_path / "t.parquet")
    table.save(tmp_path / "t.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_other_separators_are_told(tmp_path: Path) -> None:
    for separator, name in ((";", "semicolons"), ("\t", "tabulators")):
        (tmp_path / "t.csv").write_text(f"path{separator}label\n1.png{separator}owl\n")
        with pytest.raises(InputError, match=rf"t\.csv: the columns are separated by {name}; separate them by commas"):
            Table.from_csv(tmp_path / "t.csv")
