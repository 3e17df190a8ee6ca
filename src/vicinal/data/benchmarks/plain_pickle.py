"""Reading pickles of plain data safely.

A pickle is a program: unpickling calls any functions that the file names, so an untrusted file can do anything that the
user may do. Some ground truth is published as a pickle nevertheless. It needs dicts, lists, strings, numbers and arrays
only, so nothing else is looked up here. NumPy's own functions are not called either, since they trust the shapes, types
and sizes in the file; substitutes check these against the bytes that are there.
"""

from __future__ import annotations

import pickle
import pickletools
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from vicinal.utils.errors import InputError, one_line, unreadable

DTYPE = re.compile(r"[biuf][1248]|[SU][0-9]{1,4}|O[48]?")
NUMPY = ("numpy.core.multiarray", "numpy._core.multiarray")
NUMERIC = ("numpy.core.numeric", "numpy._core.numeric")
OPCODES = {each.code: each for each in pickletools.opcodes}
PUT_OPCODES = ("PUT", "BINPUT", "LONG_BINPUT")


def read_plain_pickle(path: Path) -> Any:
    """Read the value in a pickle of plain data.

    Args:
        path: The file, written by Python 2 or 3.

    Returns:
        A dict, list, str, int, float, bool, None or NumPy array; tuples and arrays of objects become lists.

    Raises:
        InputError: The file cannot be read, is not a pickle, or holds anything else.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "data.pkl").write_bytes(pickle.dumps({"a": [1, np.arange(2)]}))
        ...     read_plain_pickle(Path(folder, "data.pkl"))
        {'a': [1, array([0, 1])]}
    """
    try:
        data = path.read_bytes()
        _check_memo(data)
        return _to_plain(_PlainUnpickler(BytesIO(data), encoding="latin1").load(), {})
    except OSError as error:
        raise unreadable(path, error) from None
    except Exception as error:  # the unpickler raises many types of errors on damaged files
        raise InputError(f"{path}: not a pickle of plain data ({one_line(error)})") from None


def _check_memo(data: bytes) -> None:
    """Refuse memo indices larger than the file: the unpickler allocates memory for all indices up to the largest."""
    file = BytesIO(data)
    while (code := OPCODES.get(file.read(1).decode("latin1"))) and code.name != "STOP":
        if code.name == "STRING":  # of Python 2, with any bytes; pickletools expects ASCII
            file.readline()
        elif code.arg and (index := code.arg.reader(file)) and code.name in PUT_OPCODES and index > len(data):
            raise pickle.UnpicklingError(f"it stores a value at memo index {index}, with {len(data)} bytes in all")


class _PlainUnpickler(pickle.Unpickler):
    def __init__(self, file: BytesIO, encoding: str) -> None:
        super().__init__(file, encoding=encoding)
        # New functions for each file, since a pickle can change the attributes of objects that it looks up.
        self._substitutes: dict[tuple[str, str], Any] = {
            ("numpy", "ndarray"): _Array,
            ("numpy", "dtype"): _DType,
            ("_codecs", "encode"): lambda text, encoding: _encode_latin1(text, encoding),
            **{
                (module, "bytes"): lambda: b"" for module in ("__builtin__", "builtins")
            },  # bytes(n) would allocate n zeros
            **{(module, "_reconstruct"): lambda cls, shape, typecode: _Array() for module in NUMPY},
            **{(module, "scalar"): lambda dtype, raw: _decode_array(raw, dtype, (1,), "C")[0] for module in NUMPY},
            **{(module, "_frombuffer"): lambda *arguments: _Array().fill(*arguments) for module in NUMERIC},
        }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._substitutes[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {f'{module}.{name}'!r}") from None


class _DType:
    """Substitute for `numpy.dtype` of numbers, booleans, strings and objects."""

    def __init__(self, code: str, *_: object) -> None:
        if not DTYPE.fullmatch(code):
            raise pickle.UnpicklingError(f"it holds an array of type {code!r}")
        self.code, self.byte_order = code, "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.byte_order = state[1]

    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.byte_order + self.code)


class _Array:
    """Substitute for `numpy.ndarray`, empty until its state is set."""

    value: Any = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, is_fortran, raw = state
        self.fill(raw, dtype, shape, "F" if is_fortran else "C")

    def fill(self, raw: Any, dtype: _DType, shape: tuple[int, ...], order: Any) -> _Array:
        self.value = _decode_array(raw, dtype, shape, order)
        return self


def _decode_array(raw: Any, dtype: _DType, shape: tuple[int, ...], order: Any) -> Any:
    """Decode raw bytes, which must be as many as the shape needs; an array of objects is the list that holds them."""
    if dtype.code[0] == "O":
        if not isinstance(raw, list) or len(shape) != 1:
            raise pickle.UnpicklingError("it holds an array of objects that is no list")
        return raw
    data = raw.encode("latin1") if isinstance(raw, str) else bytes(raw)  # Python 2 wrote bytes as strings
    values = np.frombuffer(data, dtype.dtype()).reshape(shape, order=order)
    return values if values.dtype.kind in "biuf" else _decode_strings(values)


def _decode_strings(values: np.ndarray[Any, Any]) -> Any:
    return [text.decode("latin1") if isinstance(text, bytes) else text for text in values.ravel().tolist()]


def _encode_latin1(text: str, encoding: str) -> bytes:
    """Substitute for `codecs.encode`, by which Python 3 writes bytes for Python 2."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
    return text.encode("latin1")


def _to_plain(value: Any, seen: dict[int, Any]) -> Any:
    """Replace substitutes by their values; an object that occurs several times is converted once."""
    if id(value) not in seen:
        seen[id(value)] = value if isinstance(value, np.ndarray) else _convert(value, seen)
    return seen[id(value)]


def _convert(value: Any, seen: dict[int, Any]) -> Any:
    if isinstance(value, _Array):
        return _to_plain(value.value, seen)
    if isinstance(value, dict):
        return {_to_plain(key, seen): _to_plain(item, seen) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain(item, seen) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or type(value) in (str, int, float, bool):
        return value
    raise pickle.UnpicklingError(f"it holds a {type(value).__name__}")
