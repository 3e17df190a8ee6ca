"""The recipe of a study, and the settings that it varies, from a file and the command line."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import yaml

from vicinal.training.recipes.recipe_check import STUDY_SECTIONS, RecipeCheck
from vicinal.training.recipes.recipe_file import RecipeFile
from vicinal.training.recipes.recipe_values import Schema
from vicinal.utils.errors import InputError, one_line, prefixed_errors
from vicinal.utils.plain_yaml import load_yaml, problem_of

if TYPE_CHECKING:
    from optuna import Trial

    from vicinal.training.recipes.recipe import Recipe

FORMS = "{log: [low, high]}, {range: [low, high]}, with a step: if wanted, or a list of choices"
WORDS = frozenset({"log", "range", "choices", "step"})
DATA = (
    *("source", "root", "path_column", "label_column", "train_list"),
    *("fractions", "val_images", "classes", "split_column", "order", "redivide"),
)
"""The settings of `data` that say which images are in which split. The runs of a study read a table instead."""
FOREIGN = ("data.noise.foreign", "data.noise.foreign_root")
MACHINE = ("devices", "num_nodes", "accelerator")
FIXED = (*(f"data.{name}" for name in DATA), *FOREIGN, "validation.metric", "seed", *MACHINE)
"""The settings that a study cannot vary, as its runs have the same images, are compared, and share the devices."""


@dataclass(frozen=True)
class Choices:
    """Some values of any kind, such as names, numbers or lists."""

    given: tuple[Any, ...]

    def values(self) -> tuple[Any, ...]:
        """All values, for a grid."""
        return self.given

    def suggest(self, trial: Trial, key: str) -> Any:
        """The value of a trial; Optuna stores choices as JSON, as it does not support lists."""
        return self.decoded(trial.suggest_categorical(key, [json.dumps(value) for value in self.given]))

    def decoded(self, kept: Any) -> Any:
        """Decode a value that Optuna stores."""
        return json.loads(kept)

    def plain(self) -> list[Any]:
        """The spelling in a recipe."""
        return list(self.given)


@dataclass(frozen=True)
class Range:
    """The numbers between two bounds: integers if both bounds and the step are."""

    low: float
    high: float
    step: float | None = None
    log: bool = False

    @property
    def is_integer(self) -> bool:
        return all(isinstance(each, int) for each in (self.low, self.high, self.step or 1))

    def values(self) -> tuple[float, ...]:
        """All values, for a grid; raises ValueError if there are infinitely many."""
        if self.step is None and (self.log or not self.is_integer):
            raise ValueError("a grid needs a list of values, or a range with a step")
        step = self.step or 1
        number = int((self.high - self.low) / step * (1 + 1e-12) + 1e-9) + 1
        values = (self.low + at * step for at in range(number))
        return tuple(values if self.is_integer else (float(f"{value:.12g}") for value in values))

    def suggest(self, trial: Trial, key: str) -> float:
        if self.step is not None:  # Optuna wants the highest value to be one of the steps
            *_, highest = self.values()
            if self.is_integer:
                return trial.suggest_int(key, int(self.low), int(highest), step=int(self.step))
            return trial.suggest_float(key, self.low, highest, step=self.step)
        if self.is_integer:
            return trial.suggest_int(key, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(key, self.low, self.high, log=self.log)

    def decoded(self, kept: Any) -> Any:
        return kept

    def plain(self) -> dict[str, Any]:
        step = {} if self.step is None else {"step": self.step}
        return {"log" if self.log else "range": [self.low, self.high], **step}


Values: TypeAlias = Choices | Range
SearchSpace: TypeAlias = dict[str, Values]


def read_space(given: Mapping[str, Any]) -> SearchSpace:
    """Read the values of each key of a recipe; errors begin with the key.

    They are `{log: [low, high]}`, `{range: [low, high]}`, which may have a `step`, a list or `{choices: [...]}`. Keys
    have dots (`optimizer.lr`), or stand below those of their groups.
    """
    return {key: _read_values(key, value) for key, value in _flat(given)}


def plain_space(space: SearchSpace) -> dict[str, Any]:
    """The values of each key as :func:`read_space` reads them."""
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
        raise InputError(f"{key}: {one_line(str(given), 80)} is not a search space; give {FORMS}")
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
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


@dataclass(frozen=True)
class StudyRecipe:
    """A recipe, and the values of the settings that a study varies."""

    section: str
    file: RecipeFile | None
    overrides: tuple[str, ...]
    space: SearchSpace
    allow_imports: tuple[str, ...] = ()

    @classmethod
    def read(
        cls, section: str, path: str | Path | None, words: Sequence[str] = (), allow_imports: Sequence[str] = ()
    ) -> StudyRecipe:
        """Read a recipe file with its section, and the settings of the command line, such as `--epochs 3`.

        Whether its keys are those of a recipe is for :meth:`check`.
        """
        file = None if path is None else RecipeFile.read(path)
        overrides, given = _split_words(section, words)
        if file is not None:
            of_file = file.values.get(section, {})
            if not isinstance(of_file, Mapping):
                raise InputError(f"{file.places[section]}: {section} must be a mapping, such as optimizer.lr: [0.1, 1]")
            given = {**of_file, **given}
            file = replace(file, values={key: value for key, value in file.values.items() if key not in STUDY_SECTIONS})
        space = _read_space(given, section, file)
        return cls(section, file, tuple(overrides), space, tuple(allow_imports))

    def cells(self) -> list[dict[str, Any]]:
        """Every combination of the values, the last key varying first."""
        values = []
        for key, each in self.space.items():
            try:
                values.append(each.values())
            except ValueError as error:
                raise InputError(f"{self.section}.{key}: {error}") from None
        return [dict(zip(self.space, cell, strict=True)) for cell in itertools.product(*values)]

    def check(self, schema: Schema, verb: str) -> RecipeCheck:
        """Check all settings, and the varied ones with each of their values, and return the check of the settings.

        A schema without the settings of model and loss is available before torch is imported.
        """
        from vicinal.training.recipes.recipe_classes import OfferedClasses

        classes = OfferedClasses(self.allow_imports)
        base = RecipeCheck(schema, verb, self.file, self.overrides, classes)
        base.read()
        if not self.space:
            raise InputError(f"{self.section}: no setting varies; give its values as {FORMS}")
        for key, values in self.space.items():
            fixed = next((each for each in FIXED if _is_within(each, key) or _is_within(key, each)), None)
            if fixed is not None:
                raise InputError(f"{self.section}.{key}: all runs of a study have the same {fixed}; leave it out")
            for value in values.given if isinstance(values, Choices) else (values.low, values.high):
                words = [*self.overrides, override(key, value)]
                with prefixed_errors(f"{self.section}.{key}"):
                    RecipeCheck(schema, verb, self.file, words, classes).read()
        return base

    @cached_property
    def base(self) -> Recipe:
        """The recipe without the settings that vary."""
        return self.recipe()

    def recipe(self, values: Mapping[str, Any] | None = None, seed: int | None = None) -> Recipe:
        """The recipe with these values of the varied settings, and with another seed."""
        from vicinal.training.recipes.recipe import Recipe

        varied = {**(values or {}), **({} if seed is None else {"seed": seed})}
        words = [*self.overrides, *(override(key, value) for key, value in varied.items())]
        return Recipe.load(self.file, words, self.allow_imports)

    def settings(self) -> dict[str, Any]:
        """The settings that were given, nested, without those that vary."""
        from vicinal.training.recipes.recipe import Recipe
        from vicinal.training.recipes.recipe_classes import plain_values

        settings: dict[str, Any] = plain_values(self.check(Recipe.schema(), Recipe.verb).read())
        return settings


def override(key: str, value: Any) -> str:
    """A setting as on the command line."""
    return f"--{key}={value if isinstance(value, str) else json.dumps(value)}"


def _is_within(key: str, group: str) -> bool:
    return f"{key}.".startswith(f"{group}.")


def _split_words(section: str, words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    others: list[str] = []
    given: dict[str, Any] = {}
    pending = iter(words)
    for word in pending:
        key, equals, text = word.removeprefix(f"--{section}.").partition("=")
        if word.startswith(f"--{section}."):
            text = text if equals else next(pending, "")
            try:
                given[key] = load_yaml(text)
            except yaml.YAMLError as error:
                raise InputError(f"{word} {one_line(text, 80)}: {problem_of(error)}") from None
        else:
            others.append(word)
    return others, given


def _read_space(given: Mapping[str, Any], section: str, file: RecipeFile | None) -> SearchSpace:
    try:
        return read_space(given)
    except InputError as error:
        place = file.place_of(f"{section}.{str(error).partition(':')[0]}") if file else None
        raise InputError(f"{f'{place}: ' if place else ''}{section}.{error}") from None
