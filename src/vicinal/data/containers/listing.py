"""Lists of the images of a container, without their bytes: those of some become files where they are needed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vicinal.data.benchmarks.cache import prepare_folder
from vicinal.data.containers.export import (
    TABLE,
    Location,
    NamedColumns,
    Sample,
    check_frame,
    check_labels,
    file_suffix,
    image_path,
    sample_frame,
)
from vicinal.data.table import Table
from vicinal.data.table_files import write_table
from vicinal.utils.arrays import Integers
from vicinal.utils.console import track
from vicinal.utils.errors import InputError

LOCATIONS = "locations.npy"
WHERE = ["__file__", "__start__", "__size__"]  # the columns of the locations, one row per image
NOWHERE = (-1, 0, 0)  # of an image that is a file of its own

ReadImages = Callable[[Integers], Iterator[bytes | None]]
"""From the locations of some images, int64 `[n, 3]`, in the order of the container, to their bytes."""


@dataclass(frozen=True)
class ListedImages:
    """The table of images, of which those of a container become files by :meth:`write`.

    Args:
        table: All images; the files of some may not exist.
        folder: That of the container; None: all are files already.
        read: How the bytes of images are read.
        source: The container, for messages.

    Example:
        >>> images = ListedImages(Table(pd.DataFrame({"path": ["owl.jpg"], "label": ["owl"]})))
        >>> images.write(images.table.paths)  # they are files already
    """

    table: Table
    folder: Path | None = None
    read: ReadImages = iter
    source: str = ""

    def write(self, paths: Iterable[str]) -> None:
        """Write the images with these paths, if they are not there; each is complete or absent, whatever happens.

        Raises:
            InputError: The container cannot be read, or a file cannot be written.
        """
        if self.folder is None:
            return
        images = os.path.join(os.path.abspath(self.folder), "images", "")  # without "..", as the paths of tables
        own = {_row(path): path for path in paths if path.startswith(images)}
        located = np.load(self.folder / LOCATIONS, mmap_mode="r")
        rows = sorted(row for row, path in own.items() if not _is_there(path, located[row, 2]))
        if rows:
            contents = iter(track(self.read(located[rows]), "writing images", len(rows)))
            for row in rows:
                content = next(contents, None)
                if content is None:
                    raise InputError(f"{self.source}: has changed while it was read; start again")
                _write(Path(own[row]), content)


def list_images(
    folder: Path, source: str, samples: Callable[[], Iterable[Sample]], read: ReadImages, columns: NamedColumns
) -> ListedImages:
    """List the images of a container in a folder; later calls only read the list.

    Rows, their order and their columns are those of :func:`~vicinal.data.containers.export.export_images`, but for the
    paths: each image has a file of its own there, even if another one has the same bytes.

    Args:
        folder: The folder to write, as of `export_folder`; another one is made of its name.
        source: The container, for messages.
        samples: A function that returns the images, with the locations of their bytes.
        read: How these are read.
        columns: The columns that the user names.

    Raises:
        InputError: As of `export_images`.
    """
    folder = folder.with_name(f"{folder.name}-listed")

    def fill(new: Path) -> None:
        frame = sample_frame(samples(), source, "listing images", _columns_of)
        check_labels(frame, source, columns)
        locations = frame[WHERE].to_numpy(np.int64)
        frame = frame.drop(columns=WHERE).assign(path=_paths(frame))
        check_frame(frame, new, source)
        np.save(new / LOCATIONS, locations)
        write_table(new / TABLE, frame)

    prepare_folder(folder, TABLE, fill)
    table = Table.from_parquet(folder / TABLE, label_column=None)
    check_labels(table.frame, source, columns)
    return ListedImages(table, folder, read, source)


def _columns_of(sample: Sample) -> dict[str, Any]:
    """The location of an image, with the suffix of its file, or the path of the file that it is."""
    image = sample.image
    if isinstance(image, Location):
        path, where = file_suffix(sample.name), astuple(image)
    else:
        path, where = os.path.abspath(str(image)), NOWHERE
    return {"path": path, **dict(zip(WHERE, where, strict=True))}


def _paths(frame: pd.DataFrame) -> list[str]:
    named = zip(frame["path"], frame[WHERE[0]], strict=True)
    return [path if file < 0 else image_path(row, path) for row, (path, file) in enumerate(named)]


def _row(path: str) -> int:
    """The row of an image by its path."""
    return int(os.path.basename(path).partition(".")[0])


def _is_there(path: str, size: int) -> bool:
    """Whether a file was written, with this size unless that is 0."""
    try:
        written = os.stat(path).st_size
    except OSError:
        return False
    return written == size if size else written > 0


def _write(path: Path, content: bytes) -> None:
    """Write a file of many, which is not waited for to reach the disk."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(f"{path}: cannot be written ({error.strerror or error}); choose another root") from None
