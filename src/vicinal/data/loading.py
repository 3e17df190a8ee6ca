"""Reading a table from a folder of images, a file or a benchmark."""

from __future__ import annotations

from pathlib import Path

from vicinal.data.benchmarks import BENCHMARKS
from vicinal.data.table import Table
from vicinal.utils.errors import InputError


def load_table(
    source: str | Path,
    root: str | Path | None = None,
    path_column: str | None = "path",
    label_column: str | None = "label",
) -> Table:
    r"""Read a table from a folder of images, a file or a benchmark.

    Args:
        source: A folder, a .csv or .parquet file, or the name of a benchmark (`digits`, `glyphs`, `omniglot`,
            `in_shop`, `vehicle_id` with `_medium` or `_small`, `roxford`, `rparis`; `./digits` is a folder of that
            name).
        root: For a file, the folder that relative paths start from; for a benchmark, the folder that holds it.
        path_column: The column of image paths in a file; None if the table needs none.
        label_column: The column of labels in a file; None if the table needs none.

    Raises:
        InputError: The source does not exist or is not a valid table.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "birds.csv").write_text("path,label\n1.jpg,owl\n2.jpg,kiwi\n")
        ...     load_table(f"{folder}/birds.csv").classes
        ['kiwi', 'owl']
    """
    if isinstance(source, str) and source in BENCHMARKS:
        return BENCHMARKS[source](root)
    path = Path(source)
    suffix = path.suffix.lower()
    if suffix in (".csv", ".parquet") and not path.is_dir():
        read = Table.from_csv if suffix == ".csv" else Table.from_parquet
        return read(path, root, path_column, label_column)
    if not path.is_dir():
        raise InputError(
            f"{source}: no such folder, no .csv or .parquet file and no benchmark ({', '.join(BENCHMARKS)})"
        )
    if root is not None:
        raise InputError(f"{source}: a folder of images takes no root ({root}); its paths start from itself")
    return Table.from_folder(path)
