"""Images in columns of Arrow tables and Parquet files: a struct of `bytes` and `path`, as in Hugging Face datasets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from vicinal.data.containers import listing
from vicinal.data.parquet_files import open_parquet
from vicinal.utils.arrays import Integers
from vicinal.utils.errors import InputError

METADATA = b"huggingface"  # the key of a schema's metadata that holds the features of a dataset
BATCH_SIZE = 64  # rows, since each may hold an image of megabytes


@dataclass(frozen=True)
class ImageColumns:
    """The columns of an Arrow table from which a table of images is made; those in `others` have one value per row.

    `class_names` has the class names of columns that hold class numbers.
    """

    image: str
    label: str | None
    others: tuple[str, ...]
    class_names: dict[str, list[str]]

    def samples(
        self, batches: Iterable[pa.RecordBatch | pa.Table], source: str, file: int = 0
    ) -> Iterator[listing.Sample]:
        """The images with their values; row numbers replace their bytes, which are not read.

        If the images have no field `bytes`, all have bytes. `file` is the number of the file or split of the rows.
        """
        for row, image, values in self._rows(map(self._without_bytes, batches), source):
            path = (image or {}).get("path")
            name = Path(path).name if path else ""
            if image is not None and image["has_bytes"]:
                yield listing.Sample(listing.Location(file, row), name, values)
            elif path is None:
                yield listing.Sample(None, name, values)
            else:
                if not Path(path).is_file():
                    raise InputError(
                        f"{source}, row {row}: the dataset has only the path {path!r}, which is not a file here"
                    )
                yield listing.Sample(Path(path), name, values)

    def _without_bytes(self, batch: pa.RecordBatch | pa.Table) -> pa.Table:
        """The rows with only the path of each image, and whether it has bytes."""
        table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
        number = table.schema.get_field_index(self.image)
        images = table.column(number)
        fields = {field.name for field in images.type}
        is_there = images.is_valid()
        has_bytes = pc.struct_field(images, "bytes").is_valid() if "bytes" in fields else is_there
        columns = {"path": pc.struct_field(images, "path"), "has_bytes": has_bytes}
        mask = pc.invert(is_there).combine_chunks()
        short = pa.StructArray.from_arrays([each.combine_chunks() for each in columns.values()], [*columns], mask=mask)
        return table.set_column(number, self.image, short)

    def _rows(
        self, batches: Iterable[pa.RecordBatch | pa.Table], source: str
    ) -> Iterator[tuple[int, dict[str, Any] | None, dict[str, Any]]]:
        columns = {column: column for column in self.others} | ({"label": self.label} if self.label else {})
        row = 0
        for batch in batches:
            values = {name: self._values(batch, column, source) for name, column in columns.items()}
            for position, image in enumerate(batch.column(self.image).to_pylist()):
                yield row, image, {column: values[column][position] for column in columns}
                row += 1

    def _values(self, batch: pa.RecordBatch | pa.Table, column: str, source: str) -> list[Any]:
        """The values of a column; the names of classes instead of their numbers, and None for a number below 0."""
        values: list[Any] = batch.column(column).to_pylist()
        names = self.class_names.get(column)
        if names is None:
            return values
        wrong = next((value for value in values if value is not None and value >= len(names)), None)
        if wrong is not None:
            raise InputError(f"{source}: {column} is {wrong}, but there are {len(names)} classes, numbered from 0")
        return [None if value is None or value < 0 else names[value] for value in values]


def choose_columns(schema: pa.Schema, columns: listing.NamedColumns, source: str) -> ImageColumns:
    """Choose the columns of images and labels, with the features of a Hugging Face dataset in the metadata, if any.

    By default the column of images is `image`, else the only one, and that of labels `label`, else the only one of
    classes.
    """
    class_names = _class_names(schema)
    images = [field.name for field in schema if _is_image(field.type)]
    image = _choose("images", columns.image, "image", images, source)
    if image is None:
        raise InputError(f"{source}: no column of images; the columns are {', '.join(schema.names) or 'none'}")
    values = [field.name for field in schema if _is_value(field.type)]
    could_be_labels = values if columns.label or "label" in values else [*class_names]
    label = _choose("labels", columns.label, "label", could_be_labels, source)
    others = tuple(column for column in values if column not in (label, "label", "path", "split"))
    return ImageColumns(image, label, others, class_names)


def _choose(what: str, named: str | None, default: str, columns: list[str], source: str) -> str | None:
    """The column that is named, else the default one, else the only one, else None."""
    given = ", ".join(columns) or "none"
    if named is not None:
        if named not in columns:
            raise InputError(f"{source}: no column {named!r} that could hold {what}; there are {given}")
        return named
    if default in columns or not columns:
        return default if columns else None
    if len(columns) > 1:
        argument = {"images": "path_column", "labels": "label_column"}[what]
        raise InputError(f"{source}: several columns could hold {what} ({given}); name one by {argument}")
    return columns[0]


def _is_image(kind: pa.DataType) -> bool:
    if not pa.types.is_struct(kind):
        return False
    fields = {kind.field(number).name: kind.field(number).type for number in range(kind.num_fields)}
    binary = fields.get("bytes")
    return set(fields) == {"bytes", "path"} and (pa.types.is_binary(binary) or pa.types.is_large_binary(binary))


def _is_value(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_floating)
    return pa.types.is_boolean(kind) or any(test(kind) for test in tests)


def _class_names(schema: pa.Schema) -> dict[str, list[str]]:
    try:
        features = json.loads((schema.metadata or {})[METADATA])["info"]["features"]
        found = {name: each["names"] for name, each in features.items() if each.get("_type") == "ClassLabel"}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return {
        name: list(map(str, names))
        for name, names in found.items()
        if isinstance(names, list) and name in schema.names and pa.types.is_integer(schema.field(name).type)
    }


def holds_images(path: Path, path_column: str | None) -> bool:
    """Whether a Parquet file holds images, and has no column with the paths of image files."""
    with open_parquet(path) as file:
        schema: pa.Schema = file.schema_arrow
    column = path_column or "path"
    has_paths = column in schema.names and not pa.types.is_struct(schema.field(column).type)
    return any(map(_is_image, schema.types)) and not has_paths


def list_parquet_images(
    path: Path, root: str | Path | None = None, path_column: str | None = None, label_column: str | None = None
) -> listing.ListedImages:
    """The images of a Parquet file, of which the bytes of single row groups are read."""
    named = listing.NamedColumns.of_table(path_column, label_column)
    folder = listing.list_folder(root, "parquet", path.stem, named, listing.file_versions([path]))

    def samples(scratch: Path) -> Iterator[listing.Sample]:
        with open_parquet(path) as file:
            columns = choose_columns(file.schema_arrow, named, str(path))
            image = columns.image if _may_lack_bytes(file, columns.image) else f"{columns.image}.path"
            read = [image, *columns.others, *filter(None, [columns.label])]
            yield from columns.samples(_batches(file, read), str(path))

    return listing.list_images(folder, str(path), samples, partial(_read_located, path, named), named)


def _read_located(path: Path, named: listing.NamedColumns, locations: Integers) -> Iterator[bytes]:
    rows = locations[:, 1]
    with open_parquet(path) as file:
        image = choose_columns(file.schema_arrow, named, str(path)).image
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
