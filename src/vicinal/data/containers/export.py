"""Images of a container as files: written once, byte for byte as they are encoded there, with their table."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from vicinal.data.benchmarks.cache import cache_folder, prepare_folder
from vicinal.data.columns import validate_frame
from vicinal.data.folders import is_image_file
from vicinal.data.table import Table
from vicinal.data.table_files import write_table
from vicinal.utils.console import log, track
from vicinal.utils.errors import InputError

TABLE = "table.parquet"
SCRATCH = ".scratch"
FILES_PER_FOLDER = 1000
ROWS_PER_FRAME = 2**18  # that are objects of Python at a time
SIGNATURES = {
    b"\xff\xd8\xff": ".jpg",
    b"\x89PNG": ".png",
    b"GIF8": ".gif",
    b"RIFF": ".webp",
    b"BM": ".bmp",
    b"II*\0": ".tif",
    b"MM\0*": ".tif",
}
"""The suffixes of image files by how they begin. Reading them does not depend on the suffix."""


@dataclass(frozen=True)
class NamedColumns:
    """The columns of a container that the user names.

    Args:
        image: The column of images; None: it can be told.
        label: The column of labels; None: it can be told, or there is none.
        needs_labels: Whether a container without labels is an error.
    """

    image: str | None
    label: str | None
    needs_labels: bool

    @classmethod
    def of_table(cls, path_column: str | None, label_column: str | None) -> NamedColumns:
        """The columns by the arguments of :func:`~vicinal.data.load_table`; the names of a table name nothing here."""
        image, label = (None if each in ("path", "label") else each for each in (path_column, label_column))
        return cls(image, label, label_column is not None)


@dataclass(frozen=True)
class Location:
    """Where a container holds the bytes of an image.

    Args:
        file: The number of the file, or of the split.
        start: The first byte, or the row.
        size: How many bytes there are; 0 where it is a row.
    """

    file: int
    start: int
    size: int = 0


@dataclass(frozen=True)
class Sample:
    """One image of a container.

    Args:
        image: Its encoded bytes, where they are, or a file that stays where it is; None: there is none, and the sample
            is left out.
        name: Its name in the container, or an empty text.
        values: Its columns. An image without a `label`, where others have one, is left out.
    """

    image: bytes | Path | Location | None
    name: str = ""
    values: dict[str, Any] = field(default_factory=dict)


def export_folder(root: str | Path | None, kind: str, name: str, columns: NamedColumns, version: object) -> Path:
    """The folder of a container's images, which is another one for other columns or another version of the content."""
    key = [kind, name, columns.image, columns.label, version]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    short = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[-60:].strip("-.")
    return cache_folder(root) / kind / f"{short}-{digest}"


def file_versions(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """The absolute name, size and time of change of each file, which tell whether a file was replaced."""
    return [(os.path.abspath(file), (status := file.stat()).st_size, status.st_mtime_ns) for file in files]


def export_images(folder: Path, source: str, read: Callable[[Path], Iterable[Sample]], columns: NamedColumns) -> Table:
    """Write the images of a container as files, with their table, and read the table; later calls only read it.

    Args:
        folder: The folder to write, as of :func:`export_folder`.
        source: The container, for messages.
        read: A function from a folder for temporary files to the images.
        columns: The columns that the user names.

    Raises:
        InputError: There are no images, none of the labels that are needed, or a column that is not valid; or
            writing fails.
    """

    def fill(new: Path) -> None:
        frame = _write(new, source, read(new / SCRATCH))
        check_labels(frame, source, columns)
        shutil.rmtree(new / SCRATCH, ignore_errors=True)
        write_table(new / TABLE, frame)

    prepare_folder(folder, TABLE, fill)
    table = Table.from_parquet(folder / TABLE, label_column=None)
    check_labels(table.frame, source, columns)  # it may have been written where none were needed
    return table


def check_labels(frame: pd.DataFrame, source: str, columns: NamedColumns) -> None:
    """Raise InputError if there are no labels where they are needed."""
    if columns.needs_labels and "label" not in frame:
        raise InputError(f"{source}: no labels; name the column that holds them by label_column")


def _write(folder: Path, source: str, samples: Iterable[Sample]) -> pd.DataFrame:
    """Write the images, and return their table with relative paths."""
    writer = _ImageWriter(folder)
    frame = sample_frame(samples, source, "writing images", lambda sample: {"path": writer.write(sample)})
    writer.keep(frame["path"])
    check_frame(frame, folder, source)
    return frame


def sample_frame(
    samples: Iterable[Sample], source: str, doing: str, columns_of: Callable[[Sample], dict[str, Any]]
) -> pd.DataFrame:
    """The table of samples that have an image, and a label if others have one.

    Args:
        samples: Those of the container.
        source: The container, for messages.
        doing: What is done with them, for the progress bar.
        columns_of: A function from a sample to columns beside its name and its values.

    Raises:
        InputError: There are no images.
    """
    frames: list[pd.DataFrame] = []
    rows: list[dict[str, Any]] = []
    num_blind = 0
    for sample in track(samples, doing):
        if sample.image is None:
            num_blind += 1
            continue
        own = {"name": sample.name} if sample.name else {}
        rows.append({**columns_of(sample), **own, **sample.values})
        if len(rows) == ROWS_PER_FRAME:
            frames, rows = [*frames, pd.DataFrame(rows)], []
    frames += [pd.DataFrame(rows)] if rows else []
    if not frames:
        raise InputError(f"{source}: no images" + (f"; there are {num_blind:,} samples without one" * bool(num_blind)))
    if num_blind:
        log(f"{source}: left out {num_blind:,} samples without an image")
    return _labeled(pd.concat(frames, ignore_index=True), source)


def check_frame(frame: pd.DataFrame, folder: Path, source: str) -> None:
    """Raise InputError if a column of the table of a container is not valid."""
    try:
        validate_frame(frame, folder)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def _labeled(frame: pd.DataFrame, source: str) -> pd.DataFrame:
    """The rows with a label; all rows, without that column, if none has a label."""
    if "label" not in frame:
        return frame
    has_label = frame["label"].notna()
    if not has_label.any():
        return frame.drop(columns="label")
    if not has_label.all():
        log(f"{source}: left out {(~has_label).sum():,} images without a label")
    return frame[has_label].infer_objects().reset_index(drop=True)


class _ImageWriter:
    """Writes images below a folder, numbered; the same bytes are one file, so that it is known for one image."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: dict[bytes, str] = {}

    def write(self, sample: Sample) -> str:
        """The path of the image, relative to the folder if it is written there."""
        image = sample.image
        if not isinstance(image, bytes):
            return os.path.abspath(str(image))
        digest = hashlib.sha256(image).digest()
        if digest not in self.written:
            number = len(self.written)
            path = image_path(number, file_suffix(sample.name, image))
            if number % FILES_PER_FOLDER == 0:
                (self.folder / path).parent.mkdir(parents=True)
            (self.folder / path).write_bytes(image)
            self.written[digest] = path
        return self.written[digest]

    def keep(self, paths: Iterable[str]) -> None:
        """Delete the written images that are not among these."""
        for path in set(self.written.values()) - set(paths):
            (self.folder / path).unlink()


def image_path(number: int, suffix: str) -> str:
    """The path of an image in the folder of a container.

    Example:
        >>> image_path(12345, ".jpg")
        'images/00012/00012345.jpg'
    """
    return f"images/{number // FILES_PER_FOLDER:05d}/{number:08d}{suffix}"


def file_suffix(name: str, start: bytes = b"") -> str:
    """The suffix of the file of an image: that of its name, else what its first bytes tell, else none."""
    if is_image_file(name):
        return os.path.splitext(name)[1].lower()
    return next((suffix for signature, suffix in SIGNATURES.items() if start.startswith(signature)), "")
