"""The columns of images as a database keeps them: texts, numbers and booleans, of one kind per column."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from vicinal.data.boxes import image_keys
from vicinal.data.column_kinds import ColumnKind, Kinds, column_values, converted
from vicinal.retrieval.index.metadata import MAX_ID
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import InputError

Record = dict[str, Any]


def payload_of(frame: pd.DataFrame) -> tuple[Kinds, list[Record]]:
    """The kinds of the columns of a frame, and its rows as plain values without those that are missing.

    Columns without any value are left out; for the values see :func:`vicinal.data.column_kinds.column_values`.

    Raises:
        InputError: an integer has more than 64 bits, or a text is not Unicode.

    Example:
        >>> kinds, records = payload_of(pd.DataFrame({"label": ["cup", None], "price": [3, 5]}))
        >>> kinds["price"].kind, records
        ('integer', [{'label': 'cup', 'price': 3}, {'price': 5}])
    """
    kinds: Kinds = {}
    records: list[Record] = [{} for _ in range(len(frame))]
    for name in map(str, frame.columns):
        kind, values = column_values(frame[name])
        if kind.kind == "empty":
            continue
        kinds[name] = kind
        for record, value in zip(records, values, strict=True):
            if value is not None:
                record[name] = value
    return kinds, records


def converted_record(record: Record, kinds: Mapping[str, ColumnKind]) -> Record:
    """A record with values of these kinds."""
    return {name: converted(value, kinds[name]) for name, value in record.items()}


def derived_ids(
    frame: pd.DataFrame, vectors: Floats, records: Sequence[Record], times: dict[bytes, int] | None = None
) -> Integers:
    """The ids of images, int64 [n]: numbers of 63 bits that follow from path and bounding box.

    The same image has the same id in every call and on every machine. Rows without a path have ids that follow from
    their columns and their vector; the second of two equal rows has another one than the first.

    Args:
        frame: the columns.
        vectors: float32 [n, dim].
        records: the values of the columns.
        times: how often rows without a path occurred before, which is counted on.

    Example:
        >>> frame = pd.DataFrame({"path": ["a.png", "b.png", "a.png"]})
        >>> ids = derived_ids(frame, np.eye(3, dtype=np.float32), frame.to_dict("records"))
        >>> bool(ids[0] == ids[2]), bool(ids[0] == ids[1])
        (True, False)
    """
    has_path = frame["path"].notna().tolist() if "path" in frame else [False] * len(frame)
    keys: list[str] = image_keys(frame) if "path" in frame else [""] * len(frame)
    times = {} if times is None else times
    ids = np.empty(len(frame), np.int64)
    for row, (key, is_known) in enumerate(zip(keys, has_path, strict=True)):
        if is_known:
            ids[row] = id_of_key(key)
            continue
        text = json.dumps(records[row], sort_keys=True).encode() + b"\0" + vectors[row].tobytes()
        content = hashlib.blake2b(text).digest()
        times[content] = times.get(content, -1) + 1
        ids[row] = _number(content + str(times[content]).encode())
    return ids


def id_of_key(key: str) -> int:
    """The id of an image by what tells it apart, see :func:`vicinal.data.boxes.image_keys`."""
    return _number(b"image\0" + key.encode("utf-8", "surrogatepass"))


def _number(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") & MAX_ID


def check_finite_values(records: Sequence[Record], engine: str) -> None:
    """Raise InputError if a number is infinite, which JSON cannot say."""
    for record in records:
        for name, value in record.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"column {name!r} holds {value}, which {engine} cannot keep; leave it empty")
