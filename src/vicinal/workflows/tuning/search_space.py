"""The settings that a study varies, and the values that each can have."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from vicinal.utils.errors import InputError, one_line

if TYPE_CHECKING:
    from optuna import Trial

FORMS = "{log: [low, high]}, {range: [low, high]}, with a step: if wanted, or a list of choices"
WORDS = frozenset({"log", "range", "choices", "step"})


@dataclass(frozen=True)
class Choices:
    """Some values of any kind, such as names, numbers or lists.

    Args:
        given: the values.
    """

    given: tuple[Any, ...]

    def values(self) -> tuple[Any, ...]:
        """All values, for a grid."""
        return self.given

    def suggest(self, trial: Trial, key: str) -> Any:
        """The value of a trial; Optuna keeps choices as JSON, as it knows no lists."""
        return self.decoded(trial.suggest_categorical(key, [json.dumps(value) for value in self.given]))

    def decoded(self, kept: Any) -> Any:
        """The value that Optuna keeps so."""
        return json.loads(kept)

    def plain(self) -> list[Any]:
        """As it is written in a recipe."""
        return list(self.given)


@dataclass(frozen=True)
class Range:
    """The numbers between two bounds: integers if both bounds and the step are.

    Args:
        low: the lowest.
        high: the highest.
        step: the distance between two values; None: any number, or every integer.
        log: whether the logarithms are equally likely instead of the numbers.
    """

    low: float
    high: float
    step: float | None = None
    log: bool = False

    @property
    def is_integer(self) -> bool:
        """Whether the numbers are integers."""
        return all(isinstance(each, int) for each in (self.low, self.high, self.step or 1))

    def values(self) -> tuple[float, ...]:
        """All values, for a grid.

        Raises:
            ValueError: there are infinitely many.
        """
        if self.step is None and (self.log or not self.is_integer):
            raise ValueError("a grid needs a list of values, or a range with a step")
        step = self.step or 1
        number = int((self.high - self.low) / step * (1 + 1e-12) + 1e-9) + 1
        values = (self.low + at * step for at in range(number))
        return tuple(values if self.is_integer else (float(f"{value:.12g}") for value in values))

    def suggest(self, trial: Trial, key: str) -> float:
        """The value of a trial."""
        if self.step is not None:  # Optuna wants the highest value to be one of the steps
            *_, highest = self.values()
            if self.is_integer:
                return trial.suggest_int(key, int(self.low), int(highest), step=int(self.step))
            return trial.suggest_float(key, self.low, highest, step=self.step)
        if self.is_integer:
            return trial.suggest_int(key, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(key, self.low, self.high, log=self.log)

    def decoded(self, kept: Any) -> Any:
        """The value that Optuna keeps so."""
        return kept

    def plain(self) -> dict[str, Any]:
        """As it is written in a recipe."""
        step = {} if self.step is None else {"step": self.step}
        return {"log" if self.log else "range": [self.low, self.high], **step}


Values: TypeAlias = Choices | Range
SearchSpace: TypeAlias = dict[str, Values]


def read_space(given: Mapping[str, Any]) -> SearchSpace:
    """Read the values of each key of a recipe.

    Args:
        given: key -> `{log: [low, high]}`, `{range: [low, high]}`, either with `step`, a list or `{choices: [...]}`.
            Keys have dots (`optimizer.lr`), or stand below those of their groups.

    Raises:
        InputError: something else; the message begins with the key.

    Example:
        >>> space = read_space({"optimizer": {"lr": {"log": [1e-5, 1e-3]}}, "loss.k": [1, 2]})
        >>> space["optimizer.lr"]
        Range(low=1e-05, high=0.001, step=None, log=True)
        >>> read_space({"epochs": {"range": [10, 30], "step": 10}})["epochs"].values()
        (10, 20, 30)
        >>> read_space({"optimizer.lr": {"log": [0, 1]}})
        Traceback (most recent call last):
            ...
        vicinal.utils.errors.InputError: optimizer.lr: log: [0, 1] must begin above 0
    """
    return {key: _read_values(key, value) for key, value in _flat(given)}


def plain_space(space: SearchSpace) -> dict[str, Any]:
    """The values of each key as :func:`read_space` reads them.

    Example:
        >>> plain_space(read_space({"optimizer.lr": {"log": [1e-5, 1e-3]}, "loss.k": {"choices": [1, 2]}}))
        {'optimizer.lr': {'log': [1e-05, 0.001]}, 'loss.k': [1, 2]}
    """
    return {key: values.plain() for key, values in space.items()}


def _flat(given: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The keys with dots; a mapping with none of the words of a range is a group."""
    for name, value in given.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value and not WORDS & set(value):
            yield from _flat(value, f"{key}.")
        else:
            yield key, value


def _read_values(key: str, given: Any) -> Values:
    if isinstance(given, list):
        given = {"choices": given}
    words = set(given) if isinstance(given, Mapping) else set()
    if len(words - {"step"}) != 1 or not words <= WORDS:
        raise InputError(f"{key}: {one_line(str(given), 80)} is no search space; give {FORMS}")
    if "choices" in given:
        return _read_choices(key, given)
    word = "log" if "log" in given else "range"
    bounds, step = given[word], given.get("step")
    shown = f"{key}: {word}: {one_line(str(bounds), 80)}"
    if not isinstance(bounds, list) or len(bounds) != 2 or not all(map(_is_number, bounds)):
        raise InputError(f"{shown} must be two numbers, [low, high]")
    low, high = bounds
    if not low < high:
        raise InputError(f"{shown} must have the lower number first")
    if word == "log" and (low <= 0 or step is not None):
        raise InputError(f"{shown} must begin above 0" if low <= 0 else f"{shown} takes no step")
    if step is not None and not (_is_number(step) and 0 < step <= high - low):
        raise InputError(f"{key}: step: {one_line(str(step), 80)} must be above 0 and at most {high - low:g}")
    return Range(low, high, step, word == "log")


def _read_choices(key: str, given: Mapping[str, Any]) -> Choices:
    choices = given["choices"]
    if not isinstance(choices, list) or not choices or "step" in given:
        raise InputError(f"{key}: choices must be a list of one value or more, without step")
    texts = [json.dumps(choice) for choice in choices]
    twice = next((text for text in texts if texts.count(text) > 1), None)
    if twice is not None:
        raise InputError(f"{key}: the choice {one_line(twice, 80)} is given twice; keep one")
    return Choices(tuple(choices))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
