"""Ids of items in JSON: decimal text, since numbers of JavaScript and of many readers of JSON have 53 bits only."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

MAX_ID = 2**63 - 1
PATTERN = r"^(0|[1-9][0-9]{0,18})$"
_DECIMAL = re.compile(PATTERN.replace("$", r"\Z"))


def read_id(value: Any) -> int:
    """The id that a request gives, as text or as an integer.

    Raises:
        ValueError: it cannot be an id.

    Example:
        >>> read_id("9223372036854775807") == read_id(9223372036854775807)
        True
        >>> read_id("1e3")
        Traceback (most recent call last):
            ...
        ValueError: an id is a whole number from 0 to 2**63 - 1, as decimal text or as an integer
    """
    if isinstance(value, str) and _DECIMAL.match(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_ID:
        raise ValueError("an id is a whole number from 0 to 2**63 - 1, as decimal text or as an integer")
    return value


Id = Annotated[
    int,
    BeforeValidator(read_id),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": PATTERN},
                {"type": "integer", "minimum": 0, "maximum": MAX_ID},
            ]
        }
    ),
]
