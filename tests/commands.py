"""Commands that tests start as a terminal does, each in a process group of its own, with all that they start."""

import os
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

from tests.conftest import ROOT

MARK = "VICINAL_TEST_COMMAND"  # an environment variable that all processes of a command inherit, whatever their group
NUMBERS = count()


class Command(subprocess.Popen[str]):
    """A command of Vicinal that runs."""

    def __init__(self, words: list[str]) -> None:
        self.mark = f"{os.getpid()}-{next(NUMBERS)}"
        super().__init__(
            [sys.executable, "-m", "vicinal", *words], cwd=ROOT, text=True, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", MARK: self.mark}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def running(self) -> list[int]:
        """The processes of the command that have not ended."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                environment = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if state != "Z" and f"{MARK}={self.mark}".encode() in environment:
                found.append(int(folder.name))
        return found

    def wait_for_all(self, seconds: float) -> str:
        """The messages of the command; it and all that it started must end."""
        _, errors = self.communicate(timeout=seconds)
        deadline = time.monotonic() + seconds
        while self.running() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not self.running(), errors
        assert "Traceback" not in errors
        return errors
