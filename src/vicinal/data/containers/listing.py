"""Lists of the images of a container, without their bytes: images become files only if they are needed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vicinal.data.benchmarks.cache import prepare_folder
from vicinal.data.columns import validate_frame
from vicinal.data.images.formats import is_image_file
from vicinal.data.table import Table
from vicinal.data.table_files import write_table
from vicinal.utils.arrays import Integers
from vicinal.utils.console import log, track
from vicinal.utils.errors import InputError, prefixed_errors
from vicinal.utils.files import cache_folder, replace_file

TABLE, LOCATIONS, COMPLETE, SCRATCH = "table.parquet", "locations.npy", "complete", ".scratch"
WHERE = ["__file__", "__start__", "__size__"]  # the columns of the locations, one row per image
NOWHERE = (-1, 0, 0)  # of an image that is a file of its own
FILES_PER_FOLDER = 1000
ROWS_PER_FRAME = 2**18  # rows that are Python objects at a time

ReadImages = Callable[[Integers], Iterator[bytes | None]]
"""From the locations of some images, int64 `[n, 3]`, in the order of the container, to their bytes."""


@dataclass(frozen=True)
class NamedColumns:
    """The columns of a container that the user names.

    Without a name, the column of images is found by its type, that of labels by its name, if there are labels. With
    `needs_labels`, a container without them is an error.
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
    """Where a container holds the bytes of an image: the file or split, the first byte or the row, and the number of
    bytes.

    The size is 0 for a row.
    """

    file: int
    start: int
    size: int = 0


@dataclass(frozen=True)
class Sample:
    """One image of a container, its name there, if it has one, and its columns.

    The image is a location, or a file that stays where it is. A sample without an image is left out, and so is one
    without a `label` where others have one.
    """

    image: Path | Location | None
    name: str = ""
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ListedImages:
    """The table of images; images of a container become files by :meth:`write`.

    Args:
        table: All images; the files of some may not exist.
        folder: That of the container; None: all are files already.
        read: How the bytes of images are read.
        source: The container, for messages.

    Example:
        >>> images = ListedImages(Table(pd.DataFrame({"path": ["owl.jpg"], "label": ["owl"]})))
        >>> images.write()  # they are files already
    """

    table: Table
    folder: Path | None = None
    read: ReadImages = iter
    source: str = ""

    def write(self, paths: Iterable[str] | None = None) -> None:
        """Write the images with these paths, or all, unless they exist; each is complete or absent at any time.

        Raises:
            InputError: The container cannot be read, or a file cannot be written.
        """
        if self.folder is None or (self.folder / COMPLETE).exists():
            return
        images = os.path.join(os.path.abspath(self.folder), "images", "")  # without "..", as the paths of tables
        wanted = self.table.paths if paths is None else paths
        own = {_row(path): path for path in wanted if path.startswith(images)}
        located = np.load(self.folder / LOCATIONS, mmap_mode="r")
        rows = sorted(row for row, path in own.items() if not _is_there(path, located[row, 2]))
        _write_rows(rows, own, located, self.read, self.source)
        if paths is None:
            (self.folder / COMPLETE).touch()


def list_images(
    folder: Path,
    source: str,
    samples: Callable[[Path], Iterable[Sample]],
    read: ReadImages,
    columns: NamedColumns,
    whole: bool = False,
) -> ListedImages:
    """List the images of a container in a folder, as of :func:`list_folder`; later calls only read the list.

    Each image has a file of its own there, unless several samples have one location. `samples` may write temporary
    files into the folder that it is given. The images are written at once if `whole`, since the container may have
    changed by the next call.
    """

    def fill(new: Path) -> None:
        frame = _sample_frame(samples(new / SCRATCH), source)
        _check_labels(frame, source, columns)
        locations = frame[WHERE].to_numpy(np.int64)
        frame = frame.drop(columns=WHERE).assign(path=_paths(frame))
        with prefixed_errors(source):
            validate_frame(frame, new)
        np.save(new / LOCATIONS, locations)
        if whole:
            own = {_row(path): str(new / path) for path, at in zip(frame["path"], locations, strict=True) if at[0] >= 0}
            _write_rows(sorted(own), own, locations, read, source)
            (new / COMPLETE).touch()
        shutil.rmtree(new / SCRATCH, ignore_errors=True)
        write_table(new / TABLE, frame)

    prepare_folder(folder, TABLE, fill, recursive=False)  # images are written later, and may be many
    table = Table.from_parquet(folder / TABLE, label_column=None)
    _check_labels(table.frame, source, columns)  # it may have been written when labels were not needed
    return ListedImages(table, folder, read, source)


def list_folder(root: str | Path | None, kind: str, name: str, columns: NamedColumns, version: object) -> Path:
    """The folder of a container's images, which differs for other columns or another version of the content."""
    key = [kind, name, columns.image, columns.label, version]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    short = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[-60:].strip("-.")
    return cache_folder(root) / kind / f"{short}-{digest}"


def file_versions(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """The absolute name, size and time of change of each file, which tell whether a file was replaced."""
    return [(os.path.abspath(file), (status := file.stat()).st_size, status.st_mtime_ns) for file in files]


def _check_labels(frame: pd.DataFrame, source: str, columns: NamedColumns) -> None:
    if columns.needs_labels and "label" not in frame:
        raise InputError(f"{source}: no labels; name the column that holds them by label_column")


def _sample_frame(samples: Iterable[Sample], source: str) -> pd.DataFrame:
    """The table of samples that have an image, and a label if others have one, with the locations of the images."""
    frames: list[pd.DataFrame] = []
    rows: list[dict[str, Any]] = []
    num_without_image = 0
    for sample in track(samples, "listing images"):
        if sample.image is None:
            num_without_image += 1
            continue
        own = {"name": sample.name} if sample.name else {}
        rows.append({**_location_columns(sample), **own, **sample.values})
        if len(rows) == ROWS_PER_FRAME:
            frames, rows = [*frames, pd.DataFrame(rows)], []
    frames += [pd.DataFrame(rows)] if rows else []
    if not frames:
        without = f"; {num_without_image:,} samples without one" if num_without_image else ""
        raise InputError(f"{source}: no images{without}")
    if num_without_image:
        log(f"{source}: left out {num_without_image:,} samples without an image")
    return _labeled(pd.concat(frames, ignore_index=True), source)


def _location_columns(sample: Sample) -> dict[str, Any]:
    """The location of an image, with the suffix of its file, or the path of the file that it is."""
    if isinstance(sample.image, Location):
        suffix = os.path.splitext(sample.name)[1].lower() if is_image_file(sample.name) else ""
        return {"path": suffix, **dict(zip(WHERE, astuple(sample.image), strict=True))}
    return {"path": os.path.abspath(str(sample.image)), **dict(zip(WHERE, NOWHERE, strict=True))}


def _labeled(frame: pd.DataFrame, source: str) -> pd.DataFrame:
    if "label" not in frame:
        return frame
    has_label = frame["label"].notna()
    if not has_label.any():
        return frame.drop(columns="label")
    if not has_label.all():
        log(f"{source}: left out {(~has_label).sum():,} images without a label")
    return frame[has_label].infer_objects().reset_index(drop=True)


def _paths(frame: pd.DataFrame) -> list[str]:
    """The paths of all images; those of a container are relative to its folder, one path per location."""
    first: dict[tuple[int, ...], str] = {}
    paths = []
    for row, (path, *where) in enumerate(zip(*(frame[name].tolist() for name in ("path", *WHERE)), strict=True)):
        own = f"images/{row // FILES_PER_FOLDER:05d}/{row:08d}{path}"
        paths.append(path if where[0] < 0 else first.setdefault(tuple(where), own))
    return paths


def _row(path: str) -> int:
    return int(os.path.basename(path).partition(".")[0])


def _is_there(path: str, size: int) -> bool:
    try:
        written = os.stat(path).st_size
    except OSError:
        return False
    return written == size if size else written > 0


def _write_rows(rows: list[int], paths: dict[int, str], locations: Integers, read: ReadImages, source: str) -> None:
    if not rows:
        return
    contents = iter(track(read(locations[rows]), "writing images", len(rows)))
    for row in rows:
        content = next(contents, None)
        if content is None:
            raise InputError(f"{source}: has changed while it was read; start again")
        _write(Path(paths[row]), content)


def _write(path: Path, content: bytes) -> None:
    """Write one of many files, without waiting until it is on disk."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error}); choose another root") from None
