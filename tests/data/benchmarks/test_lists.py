"""Lists of images as benchmarks publish them: what every reader of a benchmark refuses, with file and line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from vicinal.data.benchmarks.lists import check_distinct, class_number, parse_box, read_by_id, read_json, read_list
from vicinal.utils.errors import InputError


def distinct(path: Path) -> None:
    check_distinct(path, read_list(path, (2,)))


@pytest.mark.parametrize(
    ("read", "content", "message"),
    [
        (distinct, b"1 a.jpg\n2\n", r"list\.txt, line 2: 1 fields where there must be 2"),
        (distinct, b"1 a.jpg\n\n1 b.jpg\n", r"list\.txt, line 3: 1 is there twice, first in line 1"),
        (distinct, b"\xff\xfe", r"list\.txt: not UTF-8 text"),
        (distinct, b"\n", r"list\.txt: names no image"),
        (distinct, None, r"list\.txt: no such file"),
        (lambda path: read_by_id(path, 2, ["1", "2", "3"]), b"1 a\n", r"list\.txt: no line for 2, nor for 1 others"),
        (lambda path: class_number("one", f"{path}, line 1"), b"", r"list\.txt, line 1: 'one' is not an integer of up"),
        (lambda path: class_number("9" * 5000, str(path)), b"", r"list\.txt: '9{40}' is not an integer"),
        (lambda path: parse_box(["2", "3", "wide", "12"], str(path)), b"", "the bounding box '2 3 wide 12' is not"),
        (read_json, b"{", r"list\.txt: not JSON"),
    ],
)
def test_bad_lists(read: Callable[[Path], object], content: bytes | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read(tmp_path / "list.txt")
