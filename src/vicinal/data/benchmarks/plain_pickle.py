"""Reading pickles of plain data, as which some ground truth is published, without running what else they may ask for.

A pickle is a program that may call any function it names. Plain data need dicts, lists, text, numbers and arrays, so
the names of NumPy's constructors are the only ones that are looked up.
"""

from __future__ import annotations

import pickle
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from vicinal.utils.errors import InputError, one_line, unreadable
from vicinal.utils.files import check_regular_file

MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
    ("__builtin__", "bytes"),
    ("builtins", "bytes"),
    *((module, name) for module in MULTIARRAY for name in ("_reconstruct", "scalar")),
    *((module, "_frombuffer") for module in ("numpy.core.numeric", "numpy._core.numeric")),
}
MAX_DEPTH = 100  # of nested values


def read_plain_pickle(path: Path) -> Any:
    """Read the value in a pickle of plain data.

    Args:
        path: The file, written by Python 2 or 3.

    Returns:
        A dict, list, str, int, float, bool, None or NumPy array; tuples and arrays of text or objects become lists.

    Raises:
        InputError: The file cannot be read, is not a pickle, or holds anything else.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "data.pkl").write_bytes(pickle.dumps({"a": [1, np.arange(2)]}))
        ...     read_plain_pickle(Path(folder, "data.pkl"))
        {'a': [1, array([0, 1])]}
    """
    check_regular_file(path)
    try:
        return _to_plain(_PlainUnpickler(BytesIO(path.read_bytes()), encoding="latin1").load(), {})
    except OSError as error:
        raise unreadable(path, error) from None
    except Exception as error:  # a damaged file can raise many types of errors
        raise InputError(f"{path}: not a pickle of plain data ({one_line(error)})") from None


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {f'{module}.{name}'[:100]!r}")
        found = super().find_class(module, name)
        # A pickle may set attributes of a function that it is given, so each file gets functions of its own.
        return found if isinstance(found, type) else lambda *arguments: found(*arguments)


def _to_plain(value: Any, seen: dict[int, Any], depth: int = 0) -> Any:
    """Lists in place of tuples and of arrays of text or objects; a value that occurs twice is converted once."""
    if depth > MAX_DEPTH:
        raise ValueError(f"its values are nested more than {MAX_DEPTH} levels deep")
    if id(value) not in seen:
        seen[id(value)] = _convert(value, seen, depth + 1)
    return seen[id(value)]


def _convert(value: Any, seen: dict[int, Any], depth: int) -> Any:
    if type(value) is np.ndarray and value.dtype.kind in "biuf":
        return value
    if type(value) is np.ndarray and value.dtype.kind in "SUO":
        value = [each.decode("latin1") if isinstance(each, bytes) else each for each in value.ravel().tolist()]
    if type(value) is dict and all(type(key) is str for key in value):
        return {key: _to_plain(item, seen, depth) for key, item in value.items()}
    if type(value) in (list, tuple):
        return [_to_plain(item, seen, depth) for item in value]
    if isinstance(value, np.number | np.bool_ | np.str_):
        return value.item()
    if value is None or type(value) in (str, int, float, bool):
        return value
    raise ValueError(f"it holds a {type(value).__name__}")
