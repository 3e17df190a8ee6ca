"""How far the staged build of an index is: what is built, and how many vectors are done."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vicinal.utils.errors import InputError
from vicinal.utils.files import write_bytes
from vicinal.utils.locks import hold_lock

STAGE = ".building"  # the folder within that of the index, until the index is complete
FILE, LOCK = "build.json", ".lock"


@dataclass(frozen=True)
class BuildProgress:
    """What is built, and how far it is.

    Args:
        facts: what determines the codes: the vectors, the kind and so on.
        total: the number of vectors.
        done: how many of them are encoded and saved.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     BuildProgress({"kind": "rabitq"}, total=1000, done=200).save(Path(folder))
        ...     BuildProgress.load(Path(folder))
        BuildProgress(facts={'kind': 'rabitq'}, total=1000, done=200)
    """

    facts: dict[str, Any]
    total: int
    done: int

    @classmethod
    def load(cls, stage: Path) -> BuildProgress | None:
        """Read the progress of a build; None if there is none that could go on."""
        with suppress(OSError, ValueError, TypeError, RecursionError):
            progress = cls(**json.loads((stage / FILE).read_text(encoding="utf-8")))
            if type(progress.done) is type(progress.total) is int and 0 <= progress.done <= progress.total:
                return progress
        return None

    def save(self, stage: Path) -> None:
        """Write the progress atomically."""
        write_bytes(stage / FILE, json.dumps(asdict(self), indent=1).encode())

    @staticmethod
    def delete(stage: Path) -> None:
        """Delete the progress, if there is any: the build is complete, or begins anew."""
        (stage / FILE).unlink(missing_ok=True)


def delete_stale_stage(folder: Path) -> None:
    """Delete what a build in `folder` left that was killed before it saved anything; one that goes on stays."""
    stage = folder / STAGE
    if stage.is_dir() and BuildProgress.load(stage) is None:
        with suppress(InputError), hold_lock(stage / LOCK, 0, f"build the index {folder}"):
            shutil.rmtree(stage)


def interruption(folder: Path) -> str | None:
    """A message about the build of an index in `folder` that is not complete; None if there is none."""
    stage = folder / STAGE
    if not stage.is_dir() or not os.listdir(stage):
        return None
    progress = BuildProgress.load(stage)
    done = "its build has begun" if progress is None else f"{progress.done:,} of {progress.total:,} vectors are done"
    return f"{folder} is not an index yet: {done}; wait for its build, or repeat the command to go on with it"
