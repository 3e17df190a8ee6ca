"""Reading pickles of plain data safely.

A pickle is a program: unpickling calls any functions that the file names, so an untrusted file can do anything that the
user may do. Some ground truth is published as a pickle nevertheless. It needs dicts, lists, strings, numbers and arrays
only. So the module `pickle` is not used: the instructions for plain data are carried out here, and all others refused.
No function is looked up. The few calls by which arrays are written are recognized by name, and their shapes, types and
sizes are checked against the bytes that are there.

Each instruction takes time and memory in proportion to its own bytes, but for those that decode a text or an array once
more; these have a budget in proportion to the file. Keys of dicts are text, whose hashes cannot be made to collide.
"""

from __future__ import annotations

import codecs
import math
import pickletools
import re
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vicinal.utils.arguments import is_integer
from vicinal.utils.errors import InputError, one_line, unreadable
from vicinal.utils.files import check_regular_file
from vicinal.utils.memory import check_memory

DTYPE = re.compile(r"[biuf][1248]|[SU][1-9][0-9]{0,3}|O[48]?")
MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
NUMERIC = ("numpy.core.numeric", "numpy._core.numeric")
KNOWN_NAMES = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
    ("__builtin__", "bytes"),
    ("builtins", "bytes"),
    *((module, name) for module in MULTIARRAY for name in ("_reconstruct", "scalar")),
    *((module, "_frombuffer") for module in NUMERIC),
}
OPCODES = {each.code: each for each in pickletools.opcodes}
MAX_DEPTH, MAX_BITS, MAX_AXES = 100, 1024, 32  # of nested values, of an integer, of an array
BYTES_PER_BYTE = 20  # of memory for a byte of the file, with the objects of Python
DECODED_PER_BYTE, MIN_DECODED = 4, 2**20  # the budget: bytes decoded for a byte of the file, and for any file
BYTES_PER_STRING = 16  # of the budget, for each string of an array


def read_plain_pickle(path: Path) -> Any:
    """Read the value in a pickle of plain data.

    Args:
        path: The file, written by Python 2 or 3.

    Returns:
        A dict, list, str, int, float, bool, None or NumPy array; tuples and arrays of objects become lists.

    Raises:
        InputError: The file cannot be read, is not a pickle, holds anything else, or values that are nested more than
            100 levels deep, or is made to take more time or memory than its size warrants.

    Example:
        >>> import pickle, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "data.pkl").write_bytes(pickle.dumps({"a": [1, np.arange(2)]}))
        ...     read_plain_pickle(Path(folder, "data.pkl"))
        {'a': [1, array([0, 1])]}
    """
    check_regular_file(path)
    try:
        check_memory(BYTES_PER_BYTE * path.stat().st_size, str(path))
        return _to_plain(_Machine(path.read_bytes()).run(), {})
    except OSError as error:
        raise unreadable(path, error) from None
    except InputError:
        raise
    except Exception as error:  # a damaged file can raise many types of errors
        raise InputError(f"{path}: not a pickle of plain data ({one_line(error)})") from None


class _RefusedError(Exception):
    """Something that plain data do not need."""


class _Name(NamedTuple):
    """A function or type of NumPy that the file names."""

    module: str
    name: str


class _DType:
    """A type of numbers, booleans, strings or objects."""

    def __init__(self, code: Any) -> None:
        if not isinstance(code, str) or not DTYPE.fullmatch(code):
            raise _RefusedError(f"it holds an array of type {str(code)[:40]!r}")
        self.code, self.byte_order = code, "="

    def set_state(self, state: Any) -> None:
        byte_order = state[1]
        if byte_order not in ("<", ">", "=", "|"):
            raise _RefusedError("it holds an array with no byte order")
        self.byte_order = byte_order

    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.byte_order + self.code)


class _Array:
    """An array, empty until its state is set."""

    value: Any = None


class _Machine:
    """Carries out the instructions of a pickle: a stack, marks in it, and numbered values to use again."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.budget = DECODED_PER_BYTE * len(data) + MIN_DECODED
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        for name, argument in _instructions(self.data):
            if name == "STOP":
                return self.stack.pop()
            if name in CONSTANTS:
                self.stack.append(CONSTANTS[name])
            elif name in VALUES:
                self.stack.append(_checked_integer(argument) if isinstance(argument, int) else argument)
            elif name in ACTIONS:
                ACTIONS[name](self, argument)
            elif name not in ("PROTO", "FRAME"):
                raise _RefusedError(f"it uses the instruction {name}")
        raise _RefusedError("it ends without its last instruction")

    def pop_to_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def pop_items(self, number: int) -> list[Any]:
        if number > len(self.stack):
            raise _RefusedError("it takes more values than there are")
        items = self.stack[len(self.stack) - number :]
        del self.stack[len(self.stack) - number :]
        return items

    def push_tuple(self, items: list[Any]) -> None:
        self.stack.append(tuple(items))

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise _RefusedError("it appends to what is no list")
        target.extend(items)

    def update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise _RefusedError("it sets keys of what is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) is not str:
                raise _RefusedError(f"it holds a dict with a key of type {type(key).__name__}")
            target[key] = value

    def push_name(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str or (module, name) not in KNOWN_NAMES:
            raise _RefusedError(f"it asks for {f'{module}.{name}'[:100]!r}")
        self.stack.append(_Name(module, name))

    def call(self) -> None:
        function, arguments = self.pop_items(2)
        if not isinstance(function, _Name) or type(arguments) is not tuple:
            raise _RefusedError("it calls what is no function")
        self.stack.append(self._result(function.name, *arguments))

    def _result(self, name: str, *arguments: Any) -> Any:
        """What a call gives, as far as arrays and bytes need it."""
        if name == "_reconstruct":
            return _Array()
        if name == "dtype":
            return _DType(arguments[0])
        if name == "encode" and len(arguments) == 2:
            return self._encode(*arguments)
        if name == "scalar" and len(arguments) == 2:
            return self._decode(arguments[1], arguments[0], (1,), "C")[0]
        if name == "_frombuffer" and len(arguments) == 4:
            return self._decode(*arguments)
        if name == "bytes" and not arguments:
            return b""
        raise _RefusedError(f"it calls {name} in another way than NumPy does")

    def build(self) -> None:
        target, state = self.pop_items(2)
        self.stack.append(target)
        if isinstance(target, _DType) and type(state) is tuple:
            target.set_state(state)
        elif isinstance(target, _Array) and type(state) is tuple and len(state) == 5:
            _, shape, dtype, is_fortran, raw = state
            target.value = self._decode(raw, dtype, shape, "F" if is_fortran else "C")
        else:
            raise _RefusedError("it sets the state of what is no array")

    def _spend(self, num_bytes: int) -> None:
        self.budget -= num_bytes
        if self.budget < 0:
            raise _RefusedError(f"it decodes far more than its {len(self.data):,} bytes")

    def _encode(self, text: Any, encoding: Any) -> bytes:
        """The bytes that Python 3 wrote as text for Python 2."""
        if encoding != "latin1" or type(text) is not str:
            raise _RefusedError(f"it asks for the encoding {str(encoding)[:40]!r}")
        self._spend(len(text))
        return text.encode("latin1")

    def _decode(self, raw: Any, dtype: Any, shape: Any, order: Any) -> Any:
        """Decode an array, whose bytes must be as many as its shape needs; an array of objects is a list."""
        if not isinstance(dtype, _DType) or type(shape) is not tuple or order not in ("C", "F", "A", "K"):
            raise _RefusedError("it holds an array without type or shape")
        if dtype.code[0] == "O":
            if type(raw) is not list or len(shape) != 1:
                raise _RefusedError("it holds an array of objects that is no list")
            return raw
        if type(raw) is str:  # of Python 2
            raw = self._encode(raw, "latin1")
        if type(raw) not in (bytes, bytearray):
            raise _RefusedError(f"it holds an array made of {type(raw).__name__}")
        kind, number = dtype.dtype(), _checked_size(shape)
        if number * kind.itemsize != len(raw):
            raise _RefusedError(f"it holds an array of {number} values in {len(raw)} bytes")
        self._spend(len(raw) + (BYTES_PER_STRING * number if kind.kind in "SU" else 0))
        values = np.frombuffer(bytes(raw), kind).reshape(shape, order="F" if order == "F" else "C")
        return values if kind.kind in "biuf" else _decode_strings(values)


def _instructions(data: bytes) -> Iterator[tuple[str, Any]]:
    """The instructions of a pickle, each with its argument."""
    file = BytesIO(data)
    while code := file.read(1):
        opcode = OPCODES.get(code.decode("latin1"))
        if opcode is None:
            raise _RefusedError(f"{code!r} is no instruction")
        if opcode.name == "STRING":  # of Python 2, with any bytes; pickletools expects ASCII
            yield opcode.name, _quoted(file.readline())
        else:
            yield opcode.name, None if opcode.arg is None else opcode.arg.reader(file)


def _quoted(line: bytes) -> str:
    text = line.strip()
    if len(text) < 2 or text[:1] not in (b"'", b'"') or text[-1:] != text[:1]:
        raise _RefusedError("it holds a string without quotation marks")
    return codecs.escape_decode(text[1:-1])[0].decode("latin1")


def _checked_integer(value: int) -> int:
    if value.bit_length() > MAX_BITS:
        raise _RefusedError(f"it holds an integer of {value.bit_length()} bits")
    return value


def _checked_size(shape: tuple[Any, ...]) -> int:
    """The number of values in an array."""
    if len(shape) > MAX_AXES or not all(is_integer(side) and 0 <= side < 2**40 for side in shape):
        raise _RefusedError("it holds an array of an impossible shape")
    return math.prod(shape)


def _decode_strings(values: np.ndarray[Any, Any]) -> Any:
    return [text.decode("latin1") if isinstance(text, bytes) else text for text in values.ravel().tolist()]


CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
VALUES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
"""The instructions whose argument is a value."""


def _push_dict(machine: _Machine, items: list[Any]) -> None:
    machine.stack.append({})
    machine.update(items)


def _put(machine: _Machine, index: int) -> None:
    machine.memo[index] = machine.stack[-1]


ACTIONS: dict[str, Callable[[_Machine, Any], Any]] = {
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "POP": lambda machine, _: machine.pop_items(1),
    "POP_MARK": lambda machine, _: machine.pop_to_mark(),
    "DUP": lambda machine, _: machine.stack.append(machine.stack[-1]),
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
    "LIST": lambda machine, _: machine.stack.append(machine.pop_to_mark()),
    "TUPLE": lambda machine, _: machine.push_tuple(machine.pop_to_mark()),
    "TUPLE1": lambda machine, _: machine.push_tuple(machine.pop_items(1)),
    "TUPLE2": lambda machine, _: machine.push_tuple(machine.pop_items(2)),
    "TUPLE3": lambda machine, _: machine.push_tuple(machine.pop_items(3)),
    "DICT": lambda machine, _: _push_dict(machine, machine.pop_to_mark()),
    "APPEND": lambda machine, _: machine.extend(machine.pop_items(1)),
    "APPENDS": lambda machine, _: machine.extend(machine.pop_to_mark()),
    "SETITEM": lambda machine, _: machine.update(machine.pop_items(2)),
    "SETITEMS": lambda machine, _: machine.update(machine.pop_to_mark()),
    "MEMOIZE": lambda machine, _: _put(machine, len(machine.memo)),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda machine, index: machine.stack.append(machine.memo[index])),
    "GLOBAL": lambda machine, names: machine.push_name(*names.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.push_name(*machine.pop_items(2)),
    "REDUCE": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.build(),
}


def _to_plain(value: Any, seen: dict[int, Any], depth: int = 0) -> Any:
    """Lists instead of tuples and arrays' contents; an object that occurs several times is converted once."""
    if id(value) not in seen:
        if depth > MAX_DEPTH:
            raise _RefusedError(f"its values are nested more than {MAX_DEPTH} levels deep")
        seen[id(value)] = value if isinstance(value, np.ndarray) else _convert(value, seen, depth + 1)
    return seen[id(value)]


def _convert(value: Any, seen: dict[int, Any], depth: int) -> Any:
    if isinstance(value, _Array):
        return _to_plain(value.value, seen, depth)
    if type(value) is dict:
        return {key: _to_plain(item, seen, depth) for key, item in value.items()}
    if type(value) in (list, tuple):
        return [_to_plain(item, seen, depth) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or type(value) in (str, int, float, bool):
        return value
    raise _RefusedError(f"it holds a {type(value).__name__}")
