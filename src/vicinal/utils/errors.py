"""The exceptions that Vicinal raises. Each message is one line that says what is wrong, where, and what is expected."""

from __future__ import annotations

from pathlib import Path


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


def one_line(error: BaseException | str, max_length: int = 400) -> str:
    """The message of another library's error on one line of limited length; the type's name if there is no message."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= max_length else text[: max_length - 3] + "..."


def unreadable(path: str | Path, error: OSError) -> InputError:
    """The InputError for a file that cannot be opened or read."""
    return InputError(f"{path}: {(error.strerror or str(error)).lower()}")
