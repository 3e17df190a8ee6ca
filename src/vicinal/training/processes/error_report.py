"""The error of a process of a run, as it goes to the process of rank 0."""

from __future__ import annotations

import json
import traceback
from typing import NamedTuple

from vicinal.utils import distributed
from vicinal.utils.errors import explained, one_line

MAX_LINE, MAX_TRACE, MAX_BYTES = 4096, 16384, 2**20  # characters; in JSON each has six bytes at most


class ErrorReport(NamedTuple):
    """The error of a process.

    Attributes:
        exit_status: with which the process ends.
        line: what is said of the error.
        trace: the traceback of a mistake in the program; empty for an error that a user can cause.
    """

    exit_status: int
    line: str
    trace: str = ""

    @classmethod
    def of(cls, error: BaseException) -> ErrorReport:
        """Describe an error.

        Example:
            >>> ErrorReport.of(KeyboardInterrupt())
            ErrorReport(exit_status=130, line='interrupted', trace='')
        """
        if distributed.is_lost_connection(error):
            return cls(1, f"lost the connection to another process ({one_line(error)})")
        known = explained(error)
        if known is not None:
            return cls(known[1], known[0][:MAX_LINE])
        trace = "".join(traceback.format_exception(error))
        return cls(1, f"{type(error).__name__}: {one_line(error)}", trace[-MAX_TRACE:])

    @classmethod
    def read(cls, content: bytes, name: str) -> ErrorReport:
        """Read what the process of this name has sent; a process that leaves without a word sends nothing."""
        try:
            return cls(*json.loads(content))
        except (TypeError, ValueError):
            return cls(1, f"the process of rank {name} has ended by an error, so the run has ended")

    def content(self) -> bytes:
        """What is sent to the process of rank 0."""
        return json.dumps(self).encode()
