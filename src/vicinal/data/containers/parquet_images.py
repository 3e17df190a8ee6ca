"""Parquet files that hold images themselves, as those of Hugging Face datasets do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from vicinal.data.containers.arrow_images import BATCH_SIZE, choose_columns, has_images
from vicinal.data.containers.export import NamedColumns, Sample, export_folder, export_images, file_versions
from vicinal.data.parquet_files import open_parquet
from vicinal.data.table import Table
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
            columns = choose_columns(file.schema_arrow, named, str(path))
            groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
            check_memory(max((group.total_byte_size for group in groups), default=0), str(path))
            names = [columns.image, *columns.others, *filter(None, [columns.label])]
            yield from columns.samples(_batches(file, names), None, str(path))

    return export_images(folder, str(path), read, named)


def _batches(file: pa.parquet.ParquetFile, columns: list[str]) -> Iterator[pa.RecordBatch]:
    for batch in file.iter_batches(BATCH_SIZE, columns=columns):
        batch.validate(full=True)
        yield batch
