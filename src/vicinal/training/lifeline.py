"""When one process of a run dies, all end: within seconds, on every node, and with any backend.

A process that waits for a dead one in a collective operation of NCCL waits for minutes. But the system closes the
connections of a process whenever it ends, so each process holds one to that of rank 0. Over it goes an error too: the
process of rank 0 prints it, and not that a collective operation has failed.
"""

from __future__ import annotations

import atexit
import os
import secrets
import selectors
import socket
import sys
import threading
import time
import traceback
from types import TracebackType
from typing import Any

from vicinal.utils import distributed
from vicinal.utils.console import printable
from vicinal.utils.errors import TrainingStoppedError, explained, one_line

GRACE_SECONDS = 1.0  # in which all must end after an error of one, which is most often an error of all
ANSWER_SECONDS = 60.0  # for the process of rank 0 to answer an error; it does so after that, if it has a core
END_SECONDS = 5.0  # for rank 0 to end before the others: Fabric kills it when a process that it started has failed
CONNECT_SECONDS = 120.0
TOKEN_BYTES = 16
FINISHED, FAILED = b".", b"!"  # what a process says before it ends; an exit status and an error may follow FAILED
MAX_ERROR_BYTES = 4096
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}  # a node without power closes no connection


class Lifeline:
    """Ends this process when another one of the run has died.

    Every process constructs it after the process group. It is a context, at the end of which the run has ended. An
    error that leaves the context on another rank than 0 is printed by the process of rank 0, unless this ends by an
    error of its own; then `SystemExit` takes its place.

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
        self.exit_status, self.error = 1, ""  # with which this one ends then, and what that of rank 0 prints
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
        if said == FAILED and self.deadline is None:
            self.deadline = time.monotonic() + (GRACE_SECONDS if self.rank == 0 else END_SECONDS)
            text = _receive(connection, MAX_ERROR_BYTES).decode(errors="replace")
            if self.rank == 0:
                text = text or f"  1the process of rank {name} has ended by an error, so the run has ended"
                self.exit_status, self.error = int(text[:3]), text[3:]
        elif not said and not self.is_finished:
            self._end(f"the process of rank {name} was killed")
        self._has_heard.set()

    def leave_error(self, error: str, exit_status: int) -> bool:
        """Leave an error to the process of rank 0, which prints it if it does not end by an error of its own.

        Returns:
            Whether it has ended by an error; if not, this process must print its own.
        """
        self.exit_status = exit_status
        self._say(FAILED + f"{exit_status:3}{error}".encode()[:MAX_ERROR_BYTES])
        if not self._has_heard.wait(ANSWER_SECONDS) or self.deadline is None:
            return False
        time.sleep(END_SECONDS)
        return True

    def _end_after_error(self) -> None:
        """End this process since another one has failed; that of rank 0 says which error that was."""
        if self.rank == 0:
            print(f"vicinal: error: {printable(self.error)}", file=sys.stderr, flush=True)
        self._say(FAILED)
        os._exit(self.exit_status)

    def _end(self, reason: str) -> None:
        """End this process at once; its connections are closed, and so the others end."""
        if self.rank <= 1:  # one of these lives, if not both
            hint = f"; {self.hint}" if self.hint else ""
            print(f"vicinal: error: {reason}, so the run has ended{hint}", file=sys.stderr, flush=True)
        os._exit(1)

    def __enter__(self) -> Lifeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and self.rank > 0:
            text, exit_status = self._explain(error)
            if self.leave_error(text, exit_status):
                raise SystemExit(exit_status) from None
        elif error is not None and distributed.is_lost_connection(error):
            time.sleep(GRACE_SECONDS)  # in which this process is ended by the cause, if another one has been killed
        self.finish(FINISHED if error is None else FAILED)

    def _explain(self, error: Exception) -> tuple[str, int]:
        """The line and the exit status for an error of this process; of a mistake in the program it prints the rest."""
        if distributed.is_lost_connection(error):
            return f"rank {self.rank} has lost its connection to another process ({one_line(error)})", 1
        known = explained(error)
        if known is not None:
            return known
        traceback.print_exception(error)
        return f"rank {self.rank}: {type(error).__name__}: {one_line(error)}", 1

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
