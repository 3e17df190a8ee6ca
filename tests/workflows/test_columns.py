"""The columns of paths and labels that a run or an index was made with, in tables that are read later."""

from __future__ import annotations

from pathlib import Path

import pytest

from vicinal.workflows import Source


@pytest.mark.parametrize(
    ("header", "path", "label"),
    [
        ("file,kind", "a.png", "cat"),
        ("file,path,kind,label", "b.png", "dog"),  # the usual names come first
    ],
)
def test_remembered_names_are_taken_where_a_table_has_no_usual_ones(
    header: str, path: str, label: str, tmp_path: Path
) -> None:
    cells = {"file": "a.png", "kind": "cat", "path": "b.png", "label": "dog"}
    (tmp_path / "t.csv").write_text(f"{header}\n{','.join(cells[name] for name in header.split(','))}\n")
    remembered = {"path_column": "file", "label_column": "kind"}
    table = Source(str(tmp_path / "t.csv"), remembered=remembered).table
    assert (table.paths, table.classes) == ([str(tmp_path / path)], [label])
    given = Source(str(tmp_path / "t.csv"), path_column="kind", label_column="file", remembered=remembered).table
    assert given.classes == ["a.png"]
