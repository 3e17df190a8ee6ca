"""The journal: changes that are acknowledged before the index is saved, in files that are only ever appended to.

A record is its length, its CRC-32, and its content: a header in JSON and the vectors of what is added. A change is
acknowledged after the record was written to the disk (fsync). What follows the last complete record of the last file,
after a crash, was never acknowledged and is cut off.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from vicinal.serving.store.changes import Change
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

FORMAT, VERSION = "vicinal-journal", 1
PREFIX = struct.Struct("<II")
LENGTH = struct.Struct("<I")
MAX_RECORD = 2**30


class Journal:
    """The journal in the folder of an index; one process has it at a time.

    Args:
        folder: of the index.

    Attributes:
        keys: the ids of items that were added with a key.

    Raises:
        InputError: a file of the journal is damaged.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     journal = Journal(Path(folder))
        ...     journal.append([Change(deleted=(3,))])
        ...     journal.close()
        ...     [change.deleted for change in Journal(Path(folder)).changes]
        [(3,)]
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changes: list[Change] = []
        self.keys: dict[str, list[int]] = {}
        self._file: FileIO | None = None
        self._is_broken = False
        files = journal_files(folder)
        for path in files:
            self._replay(path, is_last=path == files[-1])
        self._number = 1 + max((_number(path) for path in files), default=0)

    def append(self, changes: Sequence[Change]) -> None:
        """Write changes; when this returns they survive whatever happens to the process or the machine.

        Raises:
            OSError: they cannot be written; the journal is as before.
        """
        self._write(b"".join(_record(_header(change), change.vectors) for change in changes))

    def rotate(self, keys: Mapping[str, list[int]]) -> list[Path]:
        """Write to a new file from now on, which begins with the keys; the paths of the files until now are returned.

        Raises:
            OSError: the file cannot be written; the journal is as before.
        """
        old, previous, self._file = journal_files(self.folder), self._file, None
        try:
            self._write(_record({"keys": dict(keys)}, _NOTHING))
        except OSError:
            if self._file is not None:
                self.close()
                journal_files(self.folder)[-1].unlink()
            self._file = previous
            raise
        if previous is not None:
            previous.close()
        return [path for path in old if _number(path) < self._number - 1]

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, data: bytes) -> None:
        if self._is_broken:  # what would follow the incomplete record would not be read
            raise OSError("the journal ends in an incomplete record; start the service again")
        file = self._file = self._file or self._create()
        start = file.tell()
        try:
            _write_all(file, data)
            os.fsync(file.fileno())
        except OSError:
            self._is_broken = True
            file.truncate(start)
            file.seek(start)
            self._is_broken = False
            raise

    def _create(self) -> FileIO:
        path = self.folder / f"journal-{self._number:08d}.log"
        file = FileIO(path, "x")
        try:
            _write_all(file, _record({"format": FORMAT, "version": VERSION}, _NOTHING))
            _sync_folder(self.folder)
        except OSError:
            file.close()
            path.unlink(missing_ok=True)
            raise
        self._number += 1
        return file

    def _replay(self, path: Path, is_last: bool) -> None:
        data, position = path.read_bytes(), 0
        for header, vectors, end in _records(data):
            if position == 0 and (header.get("format"), header.get("version")) != (FORMAT, VERSION):
                raise InputError(f"{path} is not a journal of version {VERSION}; move it away")
            self.keys |= header.get("keys", {})
            if "ids" in header or "deleted" in header:
                self.changes.append(_change(header, vectors))
            position = end
        for change in self.changes:
            if change.key is not None:
                self.keys[change.key] = change.ids
        if position == len(data):
            return
        if not is_last:
            raise InputError(f"{path} is damaged at byte {position:,}; the changes after it are lost if it is removed")
        log(f"{path}: {len(data) - position:,} bytes after the last complete change were never acknowledged; cut off")
        os.truncate(path, position)


_NOTHING = np.empty((0, 0), np.float32)


def journal_files(folder: Path) -> list[Path]:
    """The files of the journal in a folder, oldest first."""
    return sorted(path for path in folder.glob("journal-*.log") if path.stem[8:].isdecimal())


def _number(path: Path) -> int:
    return int(path.stem[8:])


def _header(change: Change) -> dict[str, Any]:
    header: dict[str, Any] = {"deleted": change.deleted}
    if change.rows:
        header |= {"ids": change.first_id, "rows": change.rows, "key": change.key}
    return header


def _change(header: dict[str, Any], vectors: Any) -> Change:
    if "ids" not in header:
        return Change(deleted=tuple(header["deleted"]))
    return Change(header["ids"], vectors, tuple(header["rows"]), tuple(header["deleted"]), header["key"])


def _record(header: dict[str, Any], vectors: Any) -> bytes:
    text = json.dumps({**header, "shape": vectors.shape}).encode()
    content = LENGTH.pack(len(text)) + text + np.ascontiguousarray(vectors, "<f4").tobytes()
    return PREFIX.pack(len(content), zlib.crc32(content)) + content


def _records(data: bytes) -> Iterator[tuple[dict[str, Any], Any, int]]:
    """The header and the vectors of each complete record, and where it ends."""
    position = 0
    while position + PREFIX.size <= len(data):
        length, checksum = PREFIX.unpack_from(data, position)
        start, end = position + PREFIX.size, position + PREFIX.size + length
        content = data[start:end]
        if not LENGTH.size <= length <= MAX_RECORD or len(content) < length or zlib.crc32(content) != checksum:
            return
        (size,) = LENGTH.unpack_from(content)
        header = json.loads(content[LENGTH.size : LENGTH.size + size])
        vectors = np.frombuffer(content, "<f4", offset=LENGTH.size + size).reshape(header["shape"])
        yield header, vectors, end
        position = end


def _write_all(file: FileIO, data: bytes) -> None:
    """Write all of the data; the system may take less at a time."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) or 0 :]


def _sync_folder(folder: Path) -> None:
    """Make the names of new files survive a crash of the machine."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
