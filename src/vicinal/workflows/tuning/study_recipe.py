"""What a study is given: a recipe, and the settings that it varies, from a file and the command line."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from vicinal.training.recipes.recipe_check import STUDY_SECTIONS, RecipeCheck
from vicinal.training.recipes.recipe_file import RecipeFile
from vicinal.training.recipes.recipe_values import Schema
from vicinal.utils.errors import InputError, one_line
from vicinal.utils.plain_yaml import load_yaml, problem_of
from vicinal.workflows.tuning.search_space import FORMS, SearchSpace, read_space

if TYPE_CHECKING:
    from vicinal.training.recipes.recipe import Recipe

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
class StudyRecipe:
    """A recipe, and the values of the settings that a study varies.

    Args:
        section: the key of the recipe file under which these values are: `search` or `grid`.
        file: the recipe file without this section; None: all settings have their defaults.
        overrides: settings of the command line, such as `--optimizer.lr=0.1`.
        space: key -> its values.
        allow_imports: packages whose classes the recipe may name, as for :meth:`vicinal.Recipe.load`.
    """

    section: str
    file: RecipeFile | None
    overrides: tuple[str, ...]
    space: SearchSpace
    allow_imports: tuple[str, ...] = ()

    @classmethod
    def read(
        cls, section: str, path: str | Path | None, words: Sequence[str] = (), allow_imports: Sequence[str] = ()
    ) -> StudyRecipe:
        """Read a recipe file with its section, and the settings of the command line.

        Args:
            section: `search` or `grid`.
            path: the file; None: everything is on the command line.
            words: settings such as `--epochs 3`, and values of others such as `--search.optimizer.lr '[0.1, 0.2]'`.
            allow_imports: packages whose classes the recipe may name.

        Raises:
            InputError: the file cannot be read, or a search space is invalid; whether its keys are those of a recipe
                is for :meth:`check`.
        """
        file = None if path is None else RecipeFile.read(path)
        overrides, given = _split_words(section, words)
        if file is not None:
            of_file = file.values.get(section, {})
            if not isinstance(of_file, Mapping):
                raise InputError(f"{_place(file, section)}{section} must be a mapping, such as optimizer.lr: [0.1, 1]")
            given = {**of_file, **given}
            file = replace(file, values={key: value for key, value in file.values.items() if key not in STUDY_SECTIONS})
        space = _read_space(given, section, file)
        return cls(section, file, tuple(overrides), space, tuple(allow_imports))

    def cells(self) -> list[dict[str, Any]]:
        """Every combination of the values, the last key varying first.

        Raises:
            InputError: a key has infinitely many values.
        """
        values = []
        for key, each in self.space.items():
            try:
                values.append(each.values())
            except ValueError as error:
                raise InputError(f"{self.section}.{key}: {error}") from None
        return [dict(zip(self.space, cell, strict=True)) for cell in itertools.product(*values)]

    def check(self, schema: Schema, verb: str) -> RecipeCheck:
        """Check all settings, and the varied ones with each of their values, and return the check of the settings.

        Args:
            schema: of the recipe; one without the settings of model and loss can be had before torch is imported.
            verb: of the command, for messages.

        Raises:
            InputError: an unknown key, or a value that a key cannot have.
        """
        from vicinal.training.recipes.recipe_classes import OfferedClasses

        classes = OfferedClasses(self.allow_imports)
        base = RecipeCheck(schema, verb, self.file, self.overrides, classes)
        base.read()
        if not self.space:
            raise InputError(f"{self.section}: there is no setting to vary; give its values as {FORMS}")
        for key, values in self.space.items():
            fixed = next((each for each in FIXED if _is_within(each, key) or _is_within(key, each)), None)
            if fixed is not None:
                raise InputError(f"{self.section}.{key}: all runs of a study have the same {fixed}; leave it out")
            for value in _examples(values):
                words = [*self.overrides, override(key, value)]
                try:
                    RecipeCheck(schema, verb, self.file, words, classes).read()
                except InputError as error:
                    raise InputError(f"{self.section}.{key}: {error}") from None
        return base

    @cached_property
    def base(self) -> Recipe:
        """The recipe without the settings that vary."""
        return self.recipe()

    def recipe(self, values: Mapping[str, Any] | None = None, seed: int | None = None) -> Recipe:
        """The recipe with these values of the varied settings, and with another seed.

        Raises:
            InputError: as :meth:`vicinal.Recipe.load`.
        """
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
    """A setting as on the command line.

    Example:
        >>> override("schedule.steps", [25, 50]), override("loss", "MarginLoss"), override("max_grad_norm", None)
        ('--schedule.steps=[25, 50]', '--loss=MarginLoss', '--max_grad_norm=null')
    """
    return f"--{key}={value if isinstance(value, str) else json.dumps(value)}"


def _is_within(key: str, group: str) -> bool:
    return f"{key}.".startswith(f"{group}.")


def _examples(values: Any) -> Sequence[Any]:
    """The values of a key to be checked: all choices, or the ends of a range."""
    return getattr(values, "given", None) or (values.low, values.high)


def _split_words(section: str, words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """The words of other settings, and the values under the section."""
    others: list[str] = []
    given: dict[str, Any] = {}
    pending = iter(words)
    for word in pending:
        key, equals, text = word.removeprefix(f"--{section}.").partition("=")
        if word.startswith(f"--{section}."):
            given[key] = _parsed(word, text if equals else next(pending, ""))
        else:
            others.append(word)
    return others, given


def _parsed(word: str, text: str) -> Any:
    try:
        return load_yaml(text)
    except yaml.YAMLError as error:
        raise InputError(f"{word} {one_line(text, 80)}: {problem_of(error)}") from None


def _read_space(given: Mapping[str, Any], section: str, file: RecipeFile | None) -> SearchSpace:
    try:
        return read_space(given)
    except InputError as error:
        key = str(error).partition(":")[0]
        raise InputError(f"{_place(file, f'{section}.{key}')}{section}.{error}") from None


def _place(file: RecipeFile | None, key: str) -> str:
    """File and line of a key for messages, or of the nearest key above; empty if the file has neither."""
    return next((f"{file.places[each]}: " for each in _above(key) if each in file.places), "") if file else ""


def _above(key: str) -> Iterator[str]:
    parts = key.split(".")
    return (".".join(parts[:number]) for number in range(len(parts), 0, -1))
