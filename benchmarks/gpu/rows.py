"""Measurements and the file of their results, one line each, written at once so that a later run goes on.

A result belongs to a device, versions of torch and Triton, and the sources of `vicinal` and of the benchmarks: a
measurement is done if it has a result of the same. `measuring.json` names the current measurement.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
OK, OUT_OF_MEMORY = "ok", "out of memory"
FLOOR, OURS, NO_KERNELS, PEER, FORMULA = "floor", "Vicinal", "Vicinal without Triton", "PML", "formula"
"""Who is measured in several parts."""
Numbers = dict[str, Any]


class Key(NamedTuple):
    """What is measured.

    Attributes:
        part: of the benchmark, such as losses.
        name: such as RS@k.
        who: whose, such as ours, or in which form.
        size: such as n = 4096.
    """

    part: str
    name: str
    who: str
    size: str


@dataclass(frozen=True)
class Measurement:
    """Something to measure.

    Attributes:
        key: its name.
        run: measures it.
        limit: seconds after which the process that measures it is ended.
        after: the same of a smaller size; it is left out where that one failed.
    """

    key: Key
    run: Callable[[], Numbers]
    limit: float = 60.0
    after: Key | None = None


class Rows:
    """The results in a folder.

    Args:
        folder: holds `rows.jsonl`; made if it is not there.
        context: what new results belong to; None: none are looked for.
    """

    def __init__(self, folder: Path, context: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file, self.marker = folder / "rows.jsonl", folder / "measuring.json"
        self.context = dict(context or {})

    def read(self) -> list[dict[str, Any]]:
        """All results, the earliest first; a line that was not written to its end is none."""
        lines = self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else []
        return [row for row in map(_parsed, lines) if row]

    def statuses(self) -> dict[Key, str]:
        """What became of the measurements that were made in this context."""
        return {key_of(row): row["status"] for row in self.read() if row["context"] == self.context}

    def append(self, key: Key, status: str, numbers: Numbers, context: Mapping[str, str] | None = None) -> None:
        """Write a result."""
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        row = {**key._asdict(), "status": status, "numbers": numbers, "time": now, "context": context or self.context}
        with self.file.open("a+", encoding="utf-8") as file:
            file.seek(0)
            torn = not file.read().endswith("\n") and file.tell() > 0
            file.write("\n" * torn + json.dumps(row) + "\n")

    def mark(self, measurement: Measurement) -> None:
        """Store the current measurement."""
        mark = {**measurement.key._asdict(), "limit": measurement.limit, "context": self.context}
        self.marker.write_text(json.dumps(mark), encoding="utf-8")

    def unmark(self) -> None:
        """Remove the current measurement."""
        self.marker.unlink(missing_ok=True)

    def marked(self) -> dict[str, Any] | None:
        """The current measurement, if any."""
        try:
            return _parsed(self.marker.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None


def key_of(row: Mapping[str, Any]) -> Key:
    """The key of a result or a mark."""
    return Key(*(row[name] for name in Key._fields))


def sources() -> dict[str, str]:
    """The sources as a digest of all files, and as a commit if git knows it."""
    digest = hashlib.sha256()
    for path in sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]):
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return {"commit": _commit(), "sources": digest.hexdigest()[:12]}


def _commit() -> str:
    try:
        command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        return dict(json.loads(line))
    except ValueError:
        return None
