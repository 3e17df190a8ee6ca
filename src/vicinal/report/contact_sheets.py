"""Pictures of queries with their neighbors: as many contact sheets as they need."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vicinal.report.cells import GAP, IMAGE, LINE, Item, canvas, cell, verdict
from vicinal.report.drawing import QUERY, write_figure
from vicinal.utils.errors import InputError

MAX_ROWS = 20  # of cells on a sheet
MAX_COLUMNS = 10  # of neighbors; further ones are on the next row
MAX_SHEETS = 50


def neighbor_grid(
    queries: Sequence[Item], neighbors: Sequence[Sequence[Item]], path: str | Path, title: str | None = None
) -> list[Path]:
    """Draw each query in a row with its neighbors: green frame for the same label, red for another, gray if unknown.

    More than ten neighbors go on in the next row. What does not fit on a sheet of 20 rows is on further ones, called
    `found_2.png`, `found_3.png` and so on if `path` is `found.png`, each with the numbers of its queries in the title.
    There are at most 50 sheets; if queries are left out, the title of the last one says so. Labels are compared as
    text, so that class 5 of a benchmark equals a folder named `5`.

    Args:
        queries: for each query its `path` (a file, or a PIL image; if it is unknown, a gray field is drawn), its
            `label` (if it is unknown, the name of the file is written), its `box` (the left, top, right and bottom
            edge of the part that is shown) and a `caption` below the label; all are None, NaN or absent if they are
            unknown.
        neighbors: for each query its neighbors, best first: the same and `score`.
        path: the picture; its suffix is the format (png, jpg, webp, pdf, svg).
        title: a line above the picture.

    Returns:
        The paths of the sheets.

    Raises:
        InputError: no queries, different numbers of queries and lists, an image that cannot be read, an unknown suffix,
            or a picture that is too large for its format.
        OSError: the picture cannot be written.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> red, blue = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     matches = [{"path": blue, "label": "blue", "score": 0.5}]
        ...     sheets = neighbor_grid([{"path": red, "label": "red"}], [matches], f"{folder}/grid.png")
        ...     [sheet.name for sheet in sheets], Image.open(sheets[0]).format
        (['grid.png'], 'PNG')
    """
    if not queries or len(queries) != len(neighbors):
        raise InputError(f"{len(queries)} queries and {len(neighbors)} lists of neighbors; give one list per query")
    path, ranges = Path(path), _sheets([_num_rows(found) for found in neighbors])
    drawn = ranges[:MAX_SHEETS]
    names = [path if not number else path.with_stem(f"{path.stem}_{number + 1}") for number in range(len(drawn))]
    for name, (start, stop) in zip(names, drawn, strict=True):
        numbers = None
        if len(ranges) > 1:
            numbers = f"queries {start + 1:,} to {stop:,} of {len(queries):,}"
        if len(ranges) > len(drawn) and name == names[-1]:
            numbers = f"{numbers}; the others are left out"
        heading = " - ".join(filter(None, [title, numbers])) or None
        _draw_sheet(queries[start:stop], neighbors[start:stop], name, heading)
    return names


def _num_rows(neighbors: Sequence[Item]) -> int:
    """The rows of cells that a query takes."""
    return max(1, -(-len(neighbors) // MAX_COLUMNS))


def _sheets(num_rows: Sequence[int]) -> list[tuple[int, int]]:
    """The first query of each sheet, and the one after its last."""
    starts, height = [0], 0
    for query, rows in enumerate(num_rows):
        if height and height + rows > MAX_ROWS:
            starts.append(query)
            height = 0
        height += rows
    return list(zip(starts, [*starts[1:], len(num_rows)], strict=True))


def _draw_sheet(queries: Sequence[Item], neighbors: Sequence[Sequence[Item]], path: Path, title: str | None) -> None:
    has_captions = any(item.get("caption") for items in (queries, *neighbors) for item in items)
    lines = 3 if has_captions else 2
    columns = min(MAX_COLUMNS, max(len(row) for row in neighbors))
    figure, axes = canvas(sum(map(_num_rows, neighbors)), 1 + columns, title, lines)
    step, row = IMAGE + lines * LINE + GAP, 0
    for query, found in zip(queries, neighbors, strict=True):
        cell(axes, query, 0.0, row * step, QUERY, "query")
        for rank, item in enumerate(found):
            down, across = divmod(rank, MAX_COLUMNS)
            color, mark = verdict(query.get("label"), item.get("label"))
            left = (across + 1) * (IMAGE + GAP) + GAP
            cell(axes, item, left, (row + down) * step, color, f"{item['score']:.2f}{mark}")
        row += _num_rows(found)
    write_figure(figure, path)
