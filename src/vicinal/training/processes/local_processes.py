"""The processes of a run that the command starts itself, on one machine, and how they end before they have met."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import TracebackType

POLL_SECONDS = 0.1
INTERRUPTED = (130, -signal.SIGINT)


class LocalProcesses:
    """Starts the other processes of a run: the same command, with a rank of their own.

    It is a context, in which they meet. A process that ends there ends this one, with its exit status: this one waits
    for it in torch, where no Ctrl-C reaches it, for up to half an hour. (Fabric's own launcher kills this one then, so
    that an interrupted command looks like one that was killed.) An error or Ctrl-C that leaves the context ends the
    others.

    Args:
        number: of processes, with this one; if something else has started it as one of several, it starts none.
    """

    def __init__(self, number: int) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self._have_met = threading.Event()
        self._ending = threading.Lock()  # whoever holds it ends this process
        if number > 1 and "LOCAL_RANK" not in os.environ:
            os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
            os.environ.setdefault("MASTER_PORT", str(_free_port()))
            os.environ.update(NODE_RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(number))
            for rank in range(1, number):
                self.processes.append(subprocess.Popen(own_command(), env={**os.environ, "LOCAL_RANK": str(rank)}))

    def __enter__(self) -> LocalProcesses:
        if self.processes:
            threading.Thread(target=self._watch, name="local processes", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.acquire()
        self._have_met.set()
        if error is not None:
            self._kill()  # before they meet closed connections, of which they would print pages

    def _watch(self) -> None:
        while not self._have_met.wait(POLL_SECONDS):
            for rank, process in enumerate(self.processes, 1):
                if process.poll() is not None and self._ending.acquire(blocking=False):
                    self._kill()
                    self._end(rank, process.returncode)

    def _kill(self) -> None:
        for process in self.processes:
            process.kill()

    def _end(self, rank: int, status: int) -> None:
        """End this process after another one, which has said why, unless a signal has ended it."""
        if status in INTERRUPTED:
            print("vicinal: error: interrupted", file=sys.stderr, flush=True)
            os._exit(130)
        if status <= 0:
            how = f"was killed ({signal.Signals(-status).name})" if status else "has ended"
            print(f"vicinal: error: the process of rank {rank} {how} before the run began", file=sys.stderr, flush=True)
        os._exit(max(status, 1))


def own_command() -> Sequence[str]:
    """The command that started this process, by which it starts another."""
    module = sys.modules["__main__"].__spec__
    program = [os.path.abspath(sys.argv[0])] if module is None else ["-m", module.name]
    return [sys.executable, *program, *sys.argv[1:]]


def _free_port() -> int:
    """A port at which the processes can meet."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
