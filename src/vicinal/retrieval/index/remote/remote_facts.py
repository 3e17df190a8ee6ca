"""What an index in a database says about itself: its kind, dimensions and columns, and what it was made with."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from vicinal.data.column_kinds import ColumnKind, Kinds
from vicinal.retrieval.index.made_with import check_made_with
from vicinal.retrieval.index.remote.engine_url import EngineURL
from vicinal.retrieval.index.remote.remote_engine import EngineRefusedError
from vicinal.utils.arguments import is_integer
from vicinal.utils.errors import InputError

FORMAT, VERSION = "vicinal-index", 1  # of what a table says about itself
REFRESH_SECONDS = 5.0  # after which another process may have added columns


class RemoteFacts:
    """The facts of an index, which other processes may change.

    Args:
        url: of the index.
        values: the facts as they were read.
        read: asks the database for them; None: the index is not there.
        write: replaces them in the database.

    Attributes:
        values: the facts as they are now or were some seconds ago.
        lock: to be held while what was read is changed.

    Raises:
        InputError: they are damaged, or of another version.
    """

    def __init__(
        self,
        url: EngineURL,
        values: Mapping[str, Any],
        read: Callable[[], dict[str, Any] | None],
        write: Callable[[dict[str, Any]], object],
    ) -> None:
        self._url, self._read, self._write = url, read, write
        self.lock = threading.RLock()
        self._accept(values)

    def _accept(self, values: Mapping[str, Any]) -> None:
        if values.get("format") != FORMAT or values.get("version") != VERSION:
            raise InputError(f"{self._url} is no index of this version of Vicinal; build it again")
        if not (is_integer(values.get("dim")) and isinstance(values.get("columns"), dict)):
            raise InputError(f"{self._url}: what the index says about itself is damaged; build it again")
        check_made_with(values.get("made_with"))
        self.values, self._time = dict(values), time.monotonic()

    @property
    def kinds(self) -> Kinds:
        """The kinds of the columns."""
        with self.lock:
            if time.monotonic() - self._time > REFRESH_SECONDS:
                self.refresh()
            return {name: ColumnKind(**kind) for name, kind in self.values["columns"].items()}

    def refresh(self) -> None:
        """Read them again.

        Raises:
            EngineRefusedError: the index is not there any more.
        """
        values = self._read()
        if values is None:
            raise EngineRefusedError(f"{self._url}: the index is not there any more")
        self._accept(values)

    def take(self, values: Mapping[str, Any], since: Mapping[str, Any]) -> None:
        """Take what was read in another way, unless this process has changed or read the facts since then."""
        if self.values is since:
            self._accept(values)

    def change(self, **changes: Any) -> None:
        """Change some of them in the database; without a calibration, None removes it."""
        with self.lock:
            self.refresh()
            values = {**self.values, **changes}
            values = {name: value for name, value in values.items() if value is not None or name != "calibration"}
            self._write(values)
            self.values = values
