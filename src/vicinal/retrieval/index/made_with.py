"""What the vectors of an index were made with: the flags of the command, and messages about other ones."""

from __future__ import annotations

from collections.abc import Mapping

from vicinal.data.columns import COLUMN_FLAGS
from vicinal.utils.errors import InputError, one_line

FLAGS = (
    "model",
    "weights",
    "pooling",
    "scales",
    "max_size",
    "whitening",
    "dim",
    "refiner",
    "engine",
    *COLUMN_FLAGS,
)  # the last for tables only


def check_made_with(made_with: object) -> None:
    """Check that a value read from a file says what vectors were made with.

    Raises:
        InputError: it has other keys, or values that are not text.
    """
    if not isinstance(made_with, dict) or not all(
        name in FLAGS and isinstance(value, str) for name, value in made_with.items()
    ):
        raise InputError(f"what it was made with is not text for {', '.join(FLAGS)}")


def check_same_fingerprint(
    expected: str | None, given: str | None, made_with: Mapping[str, str], given_made_with: Mapping[str, str]
) -> None:
    """Check that embeddings are made as those of an index; a fingerprint of None is unknown and accepted.

    Args:
        expected: the fingerprint of the index.
        given: the fingerprint of the embeddings.
        made_with: the flags that the index was made with, those that are known.
        given_made_with: the flags that the embeddings were made with; stored ones have no `model`.

    Raises:
        InputError: both are known and differ. The message says which flags differ.

    Example:
        >>> index = {"model": "m", "whitening": "w"}
        >>> try:
        ...     check_same_fingerprint("ab+cd", "ab", index, {"model": "m"})
        ... except InputError as error:
        ...     print(str(error).partition("; ")[2])
        give --whitening w, or build the index again
    """
    if None in (expected, given) or expected == given:
        return
    flags = _without_refiner(made_with)
    if "model" in flags and flags == _without_refiner(given_made_with):
        raise InputError(
            f"what the index was built with has changed since: {_flags(flags)} gave embeddings of the model "
            f"{one_line(str(expected), 80)}, now of {one_line(str(given), 80)}; give the former one with --model, or "
            "build the index again"
        )
    raise InputError(
        f"the index was built with embeddings of the model {_describe(expected, made_with)}, "
        f"not of {_describe(given, given_made_with)}; "
        f"{_remedy(made_with, given_made_with)}, or build the index again"
    )


def refiner_flag(made_with: Mapping[str, str]) -> str:
    """The flag that gives the refiner of an index, in brackets; empty if its folder is not known."""
    return f" (--refiner {made_with['refiner']})" if "refiner" in made_with else ""


def _describe(fingerprint: str | None, made_with: Mapping[str, str]) -> str:
    flags = _flags(_without_refiner(made_with))
    return f"{one_line(str(fingerprint), 80)}{f' ({flags})' if flags else ''}"


def _remedy(made_with: Mapping[str, str], given: Mapping[str, str]) -> str:
    """What to do so that embeddings are made with the same flags."""
    wanted = _without_refiner(made_with)
    if "model" in wanted and "model" not in given:
        return f"embed the images with {_flags(wanted)}"
    other = {name: value for name, value in wanted.items() if given.get(name) != value}
    extra = [f"--{name}" for name in _without_refiner(given) if name not in made_with]
    steps = [f"give {_flags(other)}"] * bool(other) + [f"leave out {' '.join(extra)}"] * bool(extra and wanted)
    return " and ".join(steps) or "use that model"


def _without_refiner(made_with: Mapping[str, str]) -> dict[str, str]:
    """The flags that determine embeddings before they are refined."""
    return {name: value for name, value in made_with.items() if name not in ("refiner", "engine", *COLUMN_FLAGS)}


def _flags(values: Mapping[str, str]) -> str:
    return " ".join(f"--{name} {value}" for name, value in values.items())
