"""The columns of paths and labels that a run or an index was made with, in tables that are read later."""

from __future__ import annotations

from pathlib import Path

import pytest

from vicinal.workflows.sources.columns import choose_column

REMEMBERED = {"path_column": "file", "label_column": "kind"}


@pytest.mark.parametrize(
    ("header", "path", "label"),
    [
        ("file,kind", "file", "kind"),
        ("path,label", "path", None),
        ("file,path,kind,label", "path", None),  # the usual names come first
        ("picture", "path", None),
    ],
)
def test_remembered_names_are_taken_where_a_table_has_no_usual_ones(
    header: str, path: str, label: str | None, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(f"{header}\n")
    source = str(tmp_path / "t.csv")
    assert choose_column(source, "path_column", None, REMEMBERED) == path
    assert choose_column(source, "label_column", None, REMEMBERED) == label
    assert choose_column(source, "path_column", "given", REMEMBERED) == "given"
    assert choose_column(str(tmp_path), "path_column", None, REMEMBERED) == "path"  # a folder
