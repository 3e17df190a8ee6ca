"""The exceptions that Vicinal raises. Each message is one line that says what is wrong, where, and what is expected."""

from __future__ import annotations

import difflib
import errno
import importlib
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


class InputError(ValueError):
    """Invalid input, described in one line: what is wrong, where, and what is expected instead.

    The command prints the message and exits with status 2; a library user sees a ``ValueError``.
    """


class TrainingStoppedError(RuntimeError):
    """A run ended before its last epoch; `exit_status` is the exit status of the command."""

    exit_status = 1


class NonFiniteLossError(TrainingStoppedError):
    """The loss or its gradient became infinite or NaN; the message names the step, the loss terms and the images."""


class NotBetterError(TrainingStoppedError):
    """The trained refiner is never better than the embeddings without it; the message gives the scores."""


class InterruptedRunError(TrainingStoppedError):
    """The run was asked to stop and has saved its state; the message says how to resume it."""

    exit_status = 130


class EngineUnavailableError(ConnectionError):
    """A database does not answer, or the connection to it was lost; nothing that was written is lost.

    Args:
        url: of the index.
        message: the event, and where to go on.
    """

    def __init__(self, url: object, message: str) -> None:
        super().__init__(errno.EHOSTUNREACH, message, str(url))


class EngineRefusedError(InputError):
    """A database answers, but refuses the connection, or does not have the table any more."""


class IndexExistsError(InputError):
    """There is an index already, perhaps one that another process built meanwhile.

    Args:
        place: its folder or URL.
    """

    def __init__(self, place: object) -> None:
        super().__init__(f"{place} is already an index; add to it, or overwrite it")


@contextmanager
def prefixed_errors(place: object) -> Iterator[None]:
    """Begin the message of an InputError in this context with its place, such as a file or a setting."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def explained(error: BaseException) -> tuple[str, int] | None:
    """The message and the exit status of an error that a user can cause; None for any other.

    Example:
        >>> explained(InputError("photos: no such folder")), explained(KeyError("label"))
        (('photos: no such folder', 2), None)
    """
    if isinstance(error, InputError):
        return str(error), 2
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'}: {error.strerror or error}", 1
    if isinstance(error, TrainingStoppedError):
        return str(error), error.exit_status
    return ("interrupted", 130) if isinstance(error, KeyboardInterrupt) else None


def is_lost_connection(error: BaseException) -> bool:
    """Whether a collective operation has failed, most often because another process has ended.

    Example:
        >>> is_lost_connection(RuntimeError("gloo/transport/tcp/pair.cc:561] Connection closed by peer"))
        True
        >>> is_lost_connection(RuntimeError("a mistake in a loss beside the gloo backend"))
        False
    """
    if not isinstance(error, RuntimeError):
        return False
    dist = sys.modules.get("torch.distributed")  # not imported here: the error may have interrupted the import of torch
    is_of_torch = isinstance(error, getattr(dist, "DistError", ()))
    return is_of_torch or "gloo/transport" in str(error)  # gloo raises plain RuntimeErrors


def one_line(error: BaseException | str, max_length: int = 400) -> str:
    """The message of another library's error on one line of limited length; the type's name if there is no message."""
    text = " ".join(str(error).split()) or (type(error).__name__ if isinstance(error, BaseException) else "''")
    return text if len(text) <= max_length else text[: max_length - 3] + "..."


def no_such_source(source: str | Path, benchmarks: Collection[str]) -> str:
    """The error of a source of images that is neither a folder, a table nor the name of a benchmark.

    Example:
        >>> no_such_source("digts", ["digits", "omniglot"])
        'digts: no such folder, file or benchmark; did you mean digits?'
        >>> no_such_source("cat.jpg", ["digits", "omniglot"])
        'cat.jpg: no such file'
    """
    path = Path(source)
    if not str(source):
        return "the source is empty; give a folder of images, a .csv or .parquet table, or a benchmark"
    if path.is_file():
        return f"{source}: neither a folder nor a .csv or .parquet table"
    if path.exists():
        return f"{source}: is a pipe, socket or device; give a folder or a file"
    if path.suffix or path.parent != Path():
        return f"{source}: no such file" if path.suffix else f"{source}: no such file or folder"
    near = difflib.get_close_matches(str(source), benchmarks, n=1)
    hint = f"did you mean {near[0]}?" if near else f"the benchmarks are {', '.join(benchmarks)}"
    return f"{source}: no such folder, file or benchmark; {hint}"


def raise_if_of_system(error: Exception, path: str | Path) -> None:
    """Raise the InputError of a file that the system refuses to read; other errors are about its content.

    Example:
        >>> raise_if_of_system(PermissionError(13, "Permission denied"), "cup.jpg")
        Traceback (most recent call last):
            ...
        vicinal.utils.errors.InputError: cup.jpg: permission denied
        >>> raise_if_of_system(OSError("image file is truncated"), "cup.jpg")
    """
    if isinstance(error, OSError) and error.errno is not None:
        raise unreadable(path, error) from None


def unreadable(path: str | Path, error: OSError) -> InputError:
    """The InputError for a file that cannot be opened or read."""
    reason = "no such file" if isinstance(error, FileNotFoundError) else (error.strerror or str(error)).lower()
    return InputError(f"{path}: {reason}")


def import_extra(package: str, extra: str, purpose: str) -> ModuleType:
    """Import a package that is an optional dependency.

    Args:
        package: the name of the package.
        extra: the extra of Vicinal that installs it.
        purpose: the purpose of the package; the message of an error starts with it.

    Raises:
        InputError: the package is not installed.

    Example:
        >>> import_extra("no_such_package", "datasets", "hf:mnist")
        Traceback (most recent call last):
            ...
        vicinal.utils.errors.InputError: hf:mnist: needs the package no_such_package; pip install 'vicinal[datasets]'
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package.partition(".")[0]:  # the package is there, but one that it needs is not
            raise
        raise InputError(f"{purpose}: needs the package {package}; pip install 'vicinal[{extra}]'") from None
