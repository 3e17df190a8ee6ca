"""Files of images that are opened for Pillow, whose time is bound by their size."""

from __future__ import annotations

import io
import os
from pathlib import Path

MIN_READS, BYTES_PER_READ = 20_000, 100  # GIF, which has the smallest parts of all formats, needs one per 128 bytes


class CountedFile(io.BufferedReader):
    """A file that may be read as often as its size allows.

    Pillow reads headers part by part, such as the texts of a PNG. A file that is nothing but empty parts would keep it
    busy for a second per megabyte.

    Args:
        path: The file.

    Raises:
        OSError: It cannot be opened; on reading, it has too many parts.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a.png").write_bytes(b"PNG")
        ...     with CountedFile(f"{folder}/a.png") as file:
        ...         file.read(1), file.read()
        (b'P', b'NG')
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(io.FileIO(path))
        self._reads_left = MIN_READS + os.fstat(self.fileno()).st_size // BYTES_PER_READ

    def read(self, size: int | None = -1, /) -> bytes:
        """Read bytes, as every file."""
        self._reads_left -= 1
        if self._reads_left < 0:
            raise OSError("it has too many parts for its size")
        return super().read(size)
