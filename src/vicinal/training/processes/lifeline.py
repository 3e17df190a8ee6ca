"""When one process of a run dies, all end: within seconds, on every node, and with any backend.

A process that waits for a dead one in a collective operation of NCCL waits for minutes. But the system closes the
connections of a process whenever it ends, so each process holds one to that of rank 0. Over it goes an error too: the
process of rank 0 prints it, once if all have the same, and not that a collective operation has failed.
"""

from __future__ import annotations

import atexit
import os
import secrets
import selectors
import socket
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from vicinal.training.processes.error_report import MAX_BYTES, ErrorReport
from vicinal.utils import distributed
from vicinal.utils.console import printable
from vicinal.utils.errors import TrainingStoppedError

GRACE_SECONDS = 1.0  # in which all must end after an error of one, which is most often an error of all
ANSWER_SECONDS = 60.0  # for the process of rank 0 to answer an error; it does so after that, if it has a core
END_SECONDS = 5.0  # for rank 0 to end before the others: torchrun ends it when another process has failed
CONNECT_SECONDS = 120.0
TOKEN_BYTES = 16
FINISHED, FAILED = b".", b"!"  # what a process says before it ends; a report may follow FAILED
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}  # a node without power closes no connection


class Lifeline:
    """Ends this process when another one of the run has died.

    Every process constructs it after the process group. It is a context, at the end of which the run has ended, and
    :meth:`reporting` is one before it. An error that leaves them on another rank than 0 is left to the process of rank
    0, and `SystemExit` takes its place. That process prints the first error, its own if it has one, and the tracebacks
    of all mistakes in the program that differ.

    Args:
        address: the host of the process of rank 0, as other nodes know it; None: there is one node.
        hint: how to resume the run, for the message.

    Raises:
        TrainingStoppedError: the processes do not reach one another within two minutes.
    """

    def __init__(self, address: str | None = None, hint: str = "") -> None:
        self.rank, self.hint, self.is_finished = distributed.rank(), hint, False
        self.others: dict[socket.socket, str] = {}
        self.selector = selectors.DefaultSelector()
        if self.rank == 0:
            self._accept_all(address)
        else:
            self._connect(address)
        self.deadline: float | None = None  # once a process has ended by an error
        self.exit_status = 1  # with which this one ends then
        self.reports: dict[str, ErrorReport] = {}  # of the others that have ended by an error, on rank 0
        self._num_others = len(self.others)
        self._ending = threading.Lock()  # whoever holds it ends this process
        self._has_heard = threading.Event()  # from another process
        atexit.register(self.finish, FAILED)
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    def _accept_all(self, address: str | None) -> None:
        """Wait for the connections of all other processes, which know the token."""
        token = secrets.token_bytes(TOKEN_BYTES)
        with socket.create_server(("127.0.0.1" if address is None else "", 0)) as server:
            distributed.broadcast_object((server.getsockname()[1], token))
            server.settimeout(CONNECT_SECONDS)
            while (missing := distributed.world_size() - 1 - len(self.others)) > 0:
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    raise TrainingStoppedError(f"{missing} processes of the run have not reached rank 0") from None
                connection.settimeout(10.0)
                name = _receive(connection, TOKEN_BYTES + 64)
                if name[:TOKEN_BYTES] == token:
                    self._add(connection, name[TOKEN_BYTES:].decode(errors="replace").strip())
                else:
                    connection.close()

    def _connect(self, address: str | None) -> None:
        port, token = distributed.broadcast_object((0, b""))
        try:
            connection = socket.create_connection((address or "127.0.0.1", port), timeout=CONNECT_SECONDS)
        except OSError as error:
            reason = f"{address or 'this machine'}, port {port} ({error.strerror or error})"
            raise TrainingStoppedError(f"rank {self.rank} cannot reach rank 0 at {reason}") from None
        name = f"{self.rank} on {socket.gethostname()}"
        connection.sendall(token + name.encode()[:64].ljust(64))
        self._add(connection, "0")

    def _add(self, connection: socket.socket, name: str) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE.items():
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self.others[connection] = name
        self.selector.register(connection, selectors.EVENT_READ)

    def _watch(self) -> None:
        while self.others or self.deadline is not None:
            wait = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
            ready = [key.fileobj for key, _ in self.selector.select(wait)]
            if self.is_finished:
                return
            if not ready and self.deadline is not None:
                self._end_after_error()
            for connection in ready:
                self._listen(connection)

    def _listen(self, connection: Any) -> None:
        """Take what a process says last."""
        try:
            said = connection.recv(1)
        except OSError:
            said = b""
        self.selector.unregister(connection)
        name = self.others[connection] if said == FAILED else self.others.pop(connection)  # one that failed may wait
        if said == FAILED:
            self.reports[name] = ErrorReport.read(_receive(connection, MAX_BYTES), name)
            if self.deadline is None:
                self.deadline = time.monotonic() + (GRACE_SECONDS if self.rank == 0 else END_SECONDS)
        elif not said and not self.is_finished:
            self._end(f"the process of rank {name} was killed")
        self._has_heard.set()

    def leave_error(self, report: ErrorReport) -> bool:
        """Leave an error to the process of rank 0, which prints it if it does not end by the same one.

        Returns:
            Whether it has ended by an error; if not, this process must print its own.
        """
        self.exit_status = report.exit_status
        self._say(FAILED + report.content())
        if not self._has_heard.wait(ANSWER_SECONDS) or self.deadline is None:
            return False
        time.sleep(END_SECONDS)
        return True

    def _end_after_error(self) -> None:
        """End this process since another one has failed; that of rank 0 says which error that was."""
        if not self._ending.acquire(blocking=False):  # it ends by its own error
            self.deadline = None
            return
        if self.rank == 0:
            name, report = next(iter(self.reports.items()))
            self.exit_status = report.exit_status
            self._print_traces()
            line = f"rank {name.split()[0]}: {report.line}" if report.trace else report.line
            print(f"vicinal: error: {printable(line)}", file=sys.stderr, flush=True)
        self._say(FAILED)
        os._exit(self.exit_status)

    def _print_traces(self, known: str = "") -> None:
        """Print the tracebacks of the other processes, each of several equal errors once, and not the known one."""
        shown = {known}
        for name, report in list(self.reports.items()):
            if report.trace and report.line not in shown:
                shown.add(report.line)
                lines = textwrap.indent(printable(report.trace), f"[rank{name.split()[0]}]: ")  # as torch has them
                print(lines, end="", file=sys.stderr, flush=True)

    def _end(self, reason: str) -> None:
        """End this process at once; its connections are closed, and so the others end."""
        if not self._ending.acquire(blocking=False):
            return
        if self.rank <= 1:  # one of these lives, if not both
            hint = f"; {self.hint}" if self.hint else ""
            print(f"vicinal: error: {reason}, so the run has ended{hint}", file=sys.stderr, flush=True)
        os._exit(1)

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """A context that ends the run by an error as the other one does, and after which it goes on."""
        try:
            yield
        except BaseException as error:
            self._leave(error)
            raise

    def __enter__(self) -> Lifeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        else:
            self._leave(error)

    def _leave(self, error: BaseException) -> None:
        """End the run by an error of this process, which is raised again, or left to the process of rank 0."""
        if self.is_finished:  # the error has passed here before
            return
        if isinstance(error, Exception | KeyboardInterrupt):
            report = ErrorReport.of(error)
            if self.rank > 0 and self.leave_error(report):
                raise SystemExit(report.exit_status) from None
            if self.rank == 0 and distributed.is_lost_connection(error):
                time.sleep(GRACE_SECONDS)  # in which this process is ended by the cause, if there is another one
            elif self.rank == 0:
                self._await_reports()
                self._print_traces(known=report.line)
        self.finish(FAILED)

    def _await_reports(self) -> None:
        """Wait a moment for the errors of the others, which most often have the same; from now on this one counts."""
        self._ending.acquire()
        deadline = time.monotonic() + GRACE_SECONDS
        while len(self.reports) < self._num_others and time.monotonic() < deadline:
            time.sleep(0.01)

    def finish(self, last_word: bytes = FINISHED) -> None:
        """Let go: from now on each process may end by itself; the others too, unless this one has failed."""
        if self.is_finished:
            return
        self.is_finished = True
        atexit.unregister(self.finish)
        self._say(last_word)

    def _say(self, last_word: bytes) -> None:
        for connection in list(self.others):
            try:
                connection.sendall(last_word)
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                pass


def _receive(connection: socket.socket, length: int) -> bytes:
    """So many bytes, or fewer if there are no more."""
    received = b""
    try:
        while len(received) < length and (part := connection.recv(length - len(received))):
            received += part
    except OSError:
        pass
    return received
