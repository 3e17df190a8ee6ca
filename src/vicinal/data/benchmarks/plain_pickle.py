"""Pickles of plain data, read without running them.

A pickle is a program: unpickling calls whatever functions the file names, so that a file from the net can do anything
that whoever opens it may do. Some ground truth is published as a pickle all the same. What it needs is little: dicts,
lists, texts, numbers and arrays. Nothing else is looked up here, and numpy's own functions neither, for they trust what
a file says of shapes, types and memory: stand-ins take their places, which hold it against the bytes that are there.
"""

from __future__ import annotations

import pickle
import pickletools
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from vicinal.errors import InputError

TYPE = re.compile(r"[biuf][1248]|[SU][0-9]{1,4}|O[48]?")
NUMPY = ("numpy.core.multiarray", "numpy._core.multiarray")
NUMERIC = ("numpy.core.numeric", "numpy._core.numeric")
CODES = {each.code: each for each in pickletools.opcodes}
PUTS = ("PUT", "BINPUT", "LONG_BINPUT")


def read_plain_pickle(path: Path) -> Any:
    """What a pickle holds, if it is plain data.

    Args:
        path: the file, written by Python 2 or 3.

    Returns:
        dict, list, str, int, float, bool, None or numpy array; tuples become lists, arrays of objects lists too.

    Raises:
        InputError: no such file, not a pickle, or one that asks for anything else.

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
        return _plain(_PlainUnpickler(BytesIO(data), encoding="latin1").load(), {})
    except OSError as error:
        raise InputError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except Exception as error:  # a broken pickle makes the machine that reads it fail in any way
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{path}: not a pickle of plain data ({reason})") from None


def _check_memo(data: bytes) -> None:
    """Refuse values kept at places that no file of this length needs: memory is taken for all places up to the last."""
    file = BytesIO(data)
    while (code := CODES.get(file.read(1).decode("latin1"))) and code.name != "STOP":
        if code.name == "STRING":  # of Python 2, of any bytes; pickletools would have them ASCII
            file.readline()
        elif code.arg and (given := code.arg.reader(file)) and code.name in PUTS and given > len(data):
            raise pickle.UnpicklingError(f"it keeps a value at place {given}, with {len(data)} bytes in all")


class _PlainUnpickler(pickle.Unpickler):
    def __init__(self, file: BytesIO, encoding: str) -> None:
        super().__init__(file, encoding=encoding)
        # Functions of this load alone: a pickle can change attributes of what it is given.
        self._stand_ins: dict[tuple[str, str], Any] = {
            ("numpy", "ndarray"): _Array,
            ("numpy", "dtype"): _Type,
            ("_codecs", "encode"): lambda text, code: _latin1(text, code),
            **{(module, "bytes"): lambda: b"" for module in ("__builtin__", "builtins")},  # with a number, zeros
            **{(module, "_reconstruct"): lambda kind, shape, code: _Array() for module in NUMPY},
            **{(module, "scalar"): lambda kind, raw: _values(raw, kind, (1,), "C")[0] for module in NUMPY},
            **{(module, "_frombuffer"): lambda *given: _Array().filled(*given) for module in NUMERIC},
        }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._stand_ins[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {f'{module}.{name}'!r}") from None


class _Type:
    """In the place of `numpy.dtype`: numbers, truths, texts, objects."""

    def __init__(self, code: str, *_: object) -> None:
        if not TYPE.fullmatch(code):
            raise pickle.UnpicklingError(f"it holds an array of type {code!r}")
        self.code, self.order = code, "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]

    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.order + self.code)


class _Array:
    """In the place of `numpy.ndarray`, empty until its state comes."""

    value: Any = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, by_columns, raw = state
        self.filled(raw, kind, shape, "F" if by_columns else "C")

    def filled(self, raw: Any, kind: _Type, shape: tuple[int, ...], order: Any) -> _Array:
        self.value = _values(raw, kind, shape, order)
        return self


def _values(raw: Any, kind: _Type, shape: tuple[int, ...], order: Any) -> Any:
    """The array that raw bytes are, as long as they are enough; of objects, the list that they stand in."""
    if kind.code[0] == "O":
        if not isinstance(raw, list) or len(shape) != 1:
            raise pickle.UnpicklingError("it holds an array of objects that is no list")
        return raw
    data = raw.encode("latin1") if isinstance(raw, str) else bytes(raw)  # Python 2 wrote bytes as text
    values = np.frombuffer(data, kind.dtype()).reshape(shape, order=order)
    return values if values.dtype.kind in "biuf" else _texts(values)


def _texts(values: np.ndarray[Any, Any]) -> Any:
    return [text.decode("latin1") if isinstance(text, bytes) else text for text in values.ravel().tolist()]


def _latin1(text: str, code: str) -> bytes:
    """How Python 3 writes bytes for Python 2."""
    if code != "latin1":
        raise pickle.UnpicklingError(f"it asks for the code {code!r}")
    return text.encode("latin1")


def _plain(value: Any, seen: dict[int, Any]) -> Any:
    """The value without stand-ins; what stands in several places is made plain once."""
    if id(value) not in seen:
        seen[id(value)] = value if isinstance(value, np.ndarray) else _made_plain(value, seen)
    return seen[id(value)]


def _made_plain(value: Any, seen: dict[int, Any]) -> Any:
    if isinstance(value, _Array):
        return _plain(value.value, seen)
    if isinstance(value, dict):
        return {_plain(key, seen): _plain(item, seen) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, seen) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or type(value) in (str, int, float, bool):
        return value
    raise pickle.UnpicklingError(f"it holds a {type(value).__name__}")
