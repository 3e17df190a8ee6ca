"""Files in the format idx of MNIST: arrays of bytes behind a header with their shape."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vicinal.utils.errors import InputError, unreadable
from vicinal.utils.files import check_regular_file
from vicinal.utils.memory import check_memory

UNSIGNED_BYTE = 8  # the code of the type in the header


def read_idx(path: Path, num_axes: int) -> npt.NDArray[np.uint8]:
    r"""Read an idx file of bytes, compressed by gzip if its name ends in .gz.

    Args:
        path: The file.
        num_axes: The number of its axes: 1 for labels, 3 for images.

    Raises:
        InputError: The file cannot be read, has other types or axes, or another number of bytes than its header says.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "labels").write_bytes(b"\0\0\x08\x01" + b"\0\0\0\x03" + b"\x07\x02\x01")
        ...     read_idx(Path(folder, "labels"), 1)
        array([7, 2, 1], dtype=uint8)
    """
    check_regular_file(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4 + 4 * num_axes)
            if len(header) < 4 + 4 * num_axes or header[:4] != bytes([0, 0, UNSIGNED_BYTE, num_axes]):
                raise InputError(f"{path}: not an idx file of bytes with {num_axes} axes")
            shape = np.frombuffer(header[4:], ">u4").tolist()
            expected = math.prod(shape)
            check_memory(expected, str(path))
            data = file.read(expected + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: not a sound gzip file ({error}); download it again") from None
    except OSError as error:
        raise unreadable(path, error) from None
    if len(data) != expected:
        size = " x ".join(map(str, shape))
        raise InputError(f"{path}: not the {size} bytes that its header says; the copy is partial or damaged")
    return np.frombuffer(data, np.uint8).reshape(shape)
