"""Reading a table and its images from a folder, a file, a benchmark or a container."""

from __future__ import annotations

from pathlib import Path

from vicinal.data import benchmarks
from vicinal.data.benchmarks import BENCHMARKS
from vicinal.data.containers import list_container, split_container
from vicinal.data.containers.listing import ListedImages
from vicinal.data.table import Table
from vicinal.data.table_files import DIGEST_KEY, frame_digest
from vicinal.utils.errors import InputError, no_such_source


def load_table(
    source: str | Path,
    root: str | Path | None = None,
    path_column: str | None = "path",
    label_column: str | None = "label",
) -> Table:
    r"""Read a table from a folder of images, a file, a benchmark or a container of another library.

    Args:
        source: A folder, a .csv or .parquet file, or the name of a benchmark, a function of
            :mod:`vicinal.data.benchmarks` such as `digits` (`./digits` is a folder of that name). Or a Hugging Face
            dataset `hf:NAME` or WebDataset shards `wds:SHARDS`, as of
            :func:`vicinal.data.containers.list_container`. A .parquet file can hold the images themselves.
        root: For a file, the folder that relative paths start from; for a benchmark, the folder that holds it; for
            images that are not files of their own, the folder that they are written to.
        path_column: The column of image paths, or of images; None if the table needs none.
        label_column: The column of labels; None if the table needs none.

    Raises:
        InputError: The source does not exist or is not a valid table.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "birds.csv").write_text("path,label\n1.jpg,owl\n2.jpg,kiwi\n")
        ...     load_table(f"{folder}/birds.csv").classes
        ['kiwi', 'owl']
    """
    images = list_images(source, root, path_column, label_column)
    images.write()
    return images.table


def list_images(
    source: str | Path,
    root: str | Path | None = None,
    path_column: str | None = "path",
    label_column: str | None = "label",
) -> ListedImages:
    """Read a table whose images may not be files yet, so that only some need to be written.

    These are the images of WebDataset shards, of a Hugging Face dataset that was saved to disk, and of a .parquet file.
    Arguments and errors are those of :func:`load_table`.
    """
    if isinstance(source, str) and source in BENCHMARKS:
        return ListedImages(_renamed(getattr(benchmarks, source)(root), path_column, label_column))
    if split_container(source):
        return list_container(str(source), root, path_column, label_column)
    path = Path(source)
    suffix = path.suffix.lower()
    if not str(source) or (suffix not in (".csv", ".parquet") and not path.is_dir()):
        raise InputError(no_such_source(source, BENCHMARKS))
    if path.is_dir():
        if root is not None:
            raise InputError(f"{source}: a folder of images takes no root ({root}); its paths start from itself")
        return ListedImages(_renamed(Table.from_folder(path), path_column, label_column))
    if suffix == ".csv":
        return ListedImages(Table.from_csv(path, root, path_column, label_column))
    from vicinal.data.containers.arrow_images import holds_images, list_parquet_images  # imports pyarrow

    if holds_images(path, path_column):
        return list_parquet_images(path, root, path_column, label_column)
    return ListedImages(Table.from_parquet(path, root, path_column, label_column))


def load_run_table(path: str | Path) -> Table:
    """Read the table of a run, which must be as the run wrote it, since its rows belong to those of the run's model."""
    from vicinal.data.parquet_files import read_metadata  # imports pyarrow

    table = Table.from_parquet(path, path_column=None, label_column=None)
    if read_metadata(Path(path), DIGEST_KEY) != frame_digest(table.frame):
        raise InputError(f"{path}: has changed since the run wrote it; restore the file, or train again")
    return table


def _renamed(table: Table, path_column: str | None, label_column: str | None) -> Table:
    """A table that Vicinal made, with another column in place of its paths or labels."""
    if {path_column or "path", label_column or "label"} == {"path", "label"}:
        return table
    renamed = Table.from_frame(table.frame, None, path_column, label_column)
    renamed.other_files, renamed.unlisted = table.other_files, table.unlisted
    return renamed
