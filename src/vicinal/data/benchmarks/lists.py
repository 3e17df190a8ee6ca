"""Lists of images as benchmarks publish them: lines of fields separated by spaces."""

from __future__ import annotations

from pathlib import Path

from vicinal.utils.errors import InputError, unreadable
from vicinal.utils.files import check_regular_file


def read_list(path: Path, num_fields: tuple[int, ...], num_headers: int = 0) -> list[tuple[int, list[str]]]:
    r"""Read the lines of a list that are not empty: their numbers, from 1, and their fields.

    Args:
        path: The file.
        num_fields: The number of fields in the first lines, one after another; the last number is that of all further
            lines too.
        num_headers: The number of lines before the first image; at least one image must follow.

    Raises:
        InputError: The file cannot be read, is not UTF-8, names no image, or a line has another number of fields.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "list.txt").write_text("0000001 7\n0000002 7\n")
        ...     read_list(Path(folder, "list.txt"), (2,))
        [(1, ['0000001', '7']), (2, ['0000002', '7'])]
    """
    check_regular_file(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text") from None
    rows = [(number, line.split()) for number, line in enumerate(lines, 1) if line.strip()]
    for position, (number, row) in enumerate(rows):
        expected = num_fields[min(position, len(num_fields) - 1)]
        if len(row) != expected:
            raise InputError(f"{path}, line {number}: {len(row)} fields where there must be {expected}")
    if len(rows) <= num_headers:
        raise InputError(f"{path}: names no image")
    return rows
