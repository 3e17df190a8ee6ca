"""The flags of the command that made the vectors of an index, and messages about other flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vicinal.data.columns import COLUMN_FLAGS
from vicinal.utils.errors import InputError, one_line

FLAGS = ("model", "weights", "pooling", "scales", "max_size", "whitening", "dim", "refiner", "engine", *COLUMN_FLAGS)


def fingerprint_of(settings: Mapping[str, Any]) -> str | None:
    """A text that identifies the model and the refiner of an index, by its settings; None if the model is unknown."""
    model, refiner = settings.get("model_fingerprint"), settings.get("refiner_fingerprint")
    return None if model is None else f"{model}+{refiner}" if refiner is not None else str(model)


def model_mismatch_error(
    expected: str, given: str, made_with: Mapping[str, str], given_made_with: Mapping[str, str]
) -> InputError:
    """The error for embeddings of another model than that of an index; it says which flags differ.

    Example:
        >>> error = model_mismatch_error("ab+cd", "ab", {"model": "m", "whitening": "w"}, {"model": "m"})
        >>> print(str(error).partition("; ")[2])
        give --whitening w, or build the index again
    """
    flags = _without_refiner(made_with)
    if "model" in flags and flags == _without_refiner(given_made_with):
        return InputError(
            f"the model or a file of the index has changed: {_flags(flags)} gave embeddings of the model "
            f"{one_line(expected, 80)}, now of {one_line(given, 80)}; give the former one with --model, or build the "
            "index again"
        )
    return InputError(
        f"the index was built with embeddings of the model {_describe(expected, made_with)}, "
        f"not of {_describe(given, given_made_with)}; "
        f"{_advice(made_with, given_made_with)}, or build the index again"
    )


def refiner_flag(made_with: Mapping[str, str]) -> str:
    """The flag that gives the refiner of an index, in brackets; empty if its folder is not known."""
    return f" (--refiner {made_with['refiner']})" if "refiner" in made_with else ""


def _describe(fingerprint: str, made_with: Mapping[str, str]) -> str:
    flags = _flags(_without_refiner(made_with))
    return f"{one_line(fingerprint, 80)}{f' ({flags})' if flags else ''}"


def _advice(made_with: Mapping[str, str], given: Mapping[str, str]) -> str:
    """What to do so that embeddings are made with the same flags."""
    flags = _without_refiner(made_with)
    if "model" in flags and "model" not in given:
        return f"embed the images with {_flags(flags)}"
    changed = {name: value for name, value in flags.items() if given.get(name) != value}
    extra = [f"--{name}" for name in _without_refiner(given) if name not in made_with]
    steps = [f"give {_flags(changed)}"] * bool(changed) + [f"leave out {' '.join(extra)}"] * bool(extra and flags)
    return " and ".join(steps) or "use that model"


def _without_refiner(made_with: Mapping[str, str]) -> dict[str, str]:
    """The flags that determine embeddings before they are refined."""
    return {name: value for name, value in made_with.items() if name not in ("refiner", "engine", *COLUMN_FLAGS)}


def _flags(values: Mapping[str, str]) -> str:
    return " ".join(f"--{name} {value}" for name, value in values.items())
