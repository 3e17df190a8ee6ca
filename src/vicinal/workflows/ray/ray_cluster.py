"""Connecting to a Ray cluster, quietly and with errors of one line."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vicinal.utils.errors import InputError, import_extra, one_line

LOCAL, RUNNING = "local", "auto"
ADDRESS = re.compile(r"(?P<host>[^:/\s]+|\[[0-9A-Fa-f:]+\]):(?P<port>\d{1,5})")
CONNECT_SECONDS = 5.0
FRAME_BYTES, FRAME_TYPE, SETTINGS = 9, 3, 4  # of the frame that a server of HTTP/2 sends first


@contextmanager
def ray_cluster(address: str) -> Iterator[Any]:
    """Connect to a Ray cluster for a block; where the process is connected already, that connection is used.

    Args:
        address: `local` starts a cluster on this machine, which ends with the block; `auto` is the cluster that this
            machine belongs to; or else the address of its head node, `HOST:PORT`.

    Yields:
        The module `ray`.

    Raises:
        InputError: Ray is not installed, or there is no cluster at the address.
    """
    check_address(address)
    if address == LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault(
        "RAY_DEDUP_LOGS_SKIP_REGEX", "."
    )  # prints no errors of workers, which are repeated, on stdout
    ray = import_extra("ray", "ray", f"--ray {address}")
    if ray.is_initialized():
        yield ray
        return
    check_reachable(address)
    options = {"include_dashboard": False} if address == LOCAL else {}
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # of its C++ code in this process
    try:
        with _silent_stderr():
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **options)
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        text = "no cluster runs on this machine" if address == RUNNING else one_line(error, 200)
        raise InputError(f"--ray {address}: {text}; --ray local starts one here") from None
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Without what C++ code writes to stderr; errors are raised, too."""
    sys.stderr.flush()
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


def check_address(address: str) -> None:
    """Check the form of an address.

    Raises:
        InputError: It is another one.

    Example:
        >>> check_address("head.example:6379")
        >>> check_address("head.example")
        Traceback (most recent call last):
        vicinal.utils.errors.InputError: --ray head.example: give local, auto, or HOST:PORT of a Ray cluster
    """
    match = ADDRESS.fullmatch(address)
    if address not in (LOCAL, RUNNING) and not (match and 0 < int(match["port"]) < 2**16):
        raise InputError(f"--ray {address}: give local, auto, or HOST:PORT of a Ray cluster")


def check_reachable(address: str) -> None:
    """Find out quickly whether a server of gRPC, such as Ray's, is at an address; Ray would try for minutes.

    Raises:
        InputError: None is, or it is no address.
    """
    check_address(address)
    match = ADDRESS.fullmatch(address)
    if match is None:
        return
    try:
        with socket.create_connection((match["host"].strip("[]"), int(match["port"])), CONNECT_SECONDS) as connection:
            uses_tls = os.environ.get("RAY_USE_TLS", "0") not in ("", "0")
            if not uses_tls and connection.recv(FRAME_BYTES)[FRAME_TYPE] != SETTINGS:
                raise OSError("something else answers")
    except IndexError:
        raise InputError(f"--ray {address}: no Ray cluster there (the connection was closed)") from None
    except OSError as error:
        raise InputError(f"--ray {address}: no Ray cluster there ({error.strerror or error})") from None
