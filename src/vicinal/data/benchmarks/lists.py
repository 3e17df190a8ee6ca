"""Lists of images as benchmarks publish them: lines of cells with blanks between them."""

from __future__ import annotations

from pathlib import Path

from vicinal.errors import InputError


def list_rows(path: Path, cells: tuple[int, ...], heads: int = 0) -> list[tuple[int, list[str]]]:
    r"""The lines of a list that are not empty: number, counted from 1, and cells.

    Args:
        path: the file.
        cells: how many cells lines have: a number for each of the first lines, the last one for all that follow too.
        heads: lines before the first image; at least one image must follow.

    Raises:
        InputError: no such file, not UTF-8, another number of cells (with the line), or nothing in it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "list.txt").write_text("0000001 7\n0000002 7\n")
        ...     list_rows(Path(folder, "list.txt"), (2,))
        [(1, ['0000001', '7']), (2, ['0000002', '7'])]
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise InputError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text") from None
    rows = [(number, line.split()) for number, line in enumerate(lines, 1) if line.strip()]
    for position, (number, row) in enumerate(rows):
        wanted = cells[min(position, len(cells) - 1)]
        if len(row) != wanted:
            raise InputError(f"{path}, line {number}: {len(row)} cells where there must be {wanted}")
    if len(rows) <= heads:
        raise InputError(f"{path}: names no image")
    return rows
