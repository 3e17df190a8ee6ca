"""Write whole or not at all: a file or a folder is never seen half-written."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_bytes(path: str | Path, data: bytes) -> None:
    """Replace the file `path` by `data` atomically; its folder is made if missing.

    A crash, a kill or a full disk leaves the former content (or its absence) and no temporary file of ours
    that a later write would not sweep away.

    Raises:
        OSError: the data cannot be written, naming `path`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def replacing_folder(path: str | Path) -> Iterator[Path]:
    """Give an empty folder to fill; when the block ends well it takes the place of `path`, else it vanishes."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    try:
        new.chmod(0o755)
        yield new
        old = None
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".old", dir=path.parent))
            os.replace(path, old / path.name)
        os.replace(new, path)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
