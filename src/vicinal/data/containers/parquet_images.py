"""Parquet files that hold images themselves, as those of Hugging Face datasets do."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa

from vicinal.data.containers.arrow_images import BATCH_SIZE, ImageColumns, choose_columns, has_images
from vicinal.data.containers.export import NamedColumns, Sample, export_folder, export_images, file_versions
from vicinal.data.containers.listing import ListedImages, list_images
from vicinal.data.parquet_files import open_parquet
from vicinal.data.table import Table
from vicinal.utils.arrays import Integers
from vicinal.utils.memory import check_memory


def holds_images(path: Path, path_column: str | None) -> bool:
    """Whether a Parquet file holds images, and has no column with the paths of image files.

    Raises:
        InputError: It is not a Parquet file.
    """
    with open_parquet(path) as file:
        schema: pa.Schema = file.schema_arrow
    column = path_column or "path"
    return has_images(schema) and (column not in schema.names or pa.types.is_struct(schema.field(column).type))


def read_parquet_images(
    path: Path, root: str | Path | None = None, path_column: str | None = None, label_column: str | None = None
) -> Table:
    """The table of a Parquet file with images; :func:`~vicinal.data.containers.load_container` has the rules."""
    named = NamedColumns.of_table(path_column, label_column)
    folder = export_folder(root, "parquet", path.stem, named, file_versions([path]))

    def read(scratch: Path) -> Iterator[Sample]:
        with open_parquet(path) as file:
            columns = _columns(file, path, named)
            yield from columns.samples(_batches(file, _names(columns, columns.image)), None, str(path))

    return export_images(folder, str(path), read, named)


def list_parquet_images(
    path: Path, root: str | Path | None = None, path_column: str | None = None, label_column: str | None = None
) -> ListedImages:
    """The same table without the bytes of images, of which those of single row groups are read."""
    named = NamedColumns.of_table(path_column, label_column)
    folder = export_folder(root, "parquet", path.stem, named, file_versions([path]))

    def samples() -> Iterator[Sample]:
        with open_parquet(path) as file:
            columns = _columns(file, path, named)
            image = columns.image if _may_lack_bytes(file, columns.image) else f"{columns.image}.path"
            yield from columns.listed(_batches(file, _names(columns, image)), str(path))

    return list_images(folder, str(path), samples, partial(_read_located, path, named), named)


def _read_located(path: Path, named: NamedColumns, locations: Integers) -> Iterator[bytes]:
    """The bytes of the images of some rows, in their order."""
    rows = locations[:, 1]
    with open_parquet(path) as file:
        image = _columns(file, path, named).image
        first = 0
        for group in range(file.metadata.num_row_groups):
            stop = first + file.metadata.row_group(group).num_rows
            own = rows[(rows >= first) & (rows < stop)]
            batches = file.iter_batches(BATCH_SIZE, row_groups=[group], columns=[f"{image}.bytes"]) if len(own) else ()
            for batch in batches:
                chosen = own[(own >= first) & (own < first + len(batch))] - first
                for content in batch.column(image).field("bytes").take(pa.array(chosen)):
                    yield content.as_py()
                first += len(batch)
            first = stop


def _columns(file: pa.parquet.ParquetFile, path: Path, named: NamedColumns) -> ImageColumns:
    """The columns of a file that the memory has room for."""
    groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
    check_memory(max((group.total_byte_size for group in groups), default=0), str(path))
    return choose_columns(file.schema_arrow, named, str(path))


def _names(columns: ImageColumns, image: str) -> list[str]:
    return [image, *columns.others, *filter(None, [columns.label])]


def _may_lack_bytes(file: pa.parquet.ParquetFile, image: str) -> bool:
    """Whether there may be rows without an image, by the statistics of the file."""
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        columns = (group.column(each) for each in range(group.num_columns))
        statistics = next(each.statistics for each in columns if each.path_in_schema == f"{image}.bytes")
        if statistics is None or not statistics.has_null_count or statistics.null_count:
            return True
    return False


def _batches(file: pa.parquet.ParquetFile, columns: list[str]) -> Iterator[pa.RecordBatch]:
    for batch in file.iter_batches(BATCH_SIZE, columns=columns):
        batch.validate(full=True)
        yield batch
