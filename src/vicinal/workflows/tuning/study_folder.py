"""A study is a folder: its layout, its lock and its tables of images."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vicinal.data.settings import DataSettings, NoiseSettings
from vicinal.training.recipes.recipe_check import STUDY_SECTIONS
from vicinal.utils.errors import InputError
from vicinal.utils.files import write_bytes
from vicinal.utils.plain_yaml import dump_yaml
from vicinal.utils.run_folder import FileOf
from vicinal.workflows.tuning.study_recipe import DATA, StudyRecipe, plain_space

if TYPE_CHECKING:
    from filelock import FileLock

    from vicinal.data.table import Table
    from vicinal.training.recipes.recipe import Recipe

MakeTables = Callable[[StudyRecipe], "dict[str, Table]"]


@dataclass(frozen=True)
class StudyFolder:
    """Where the files of a study lie.

    =================  ===============================================================================================
    recipe.yaml        the recipe with the settings that vary under `search` or `grid`
    study.json         the options of the study
    tables/            the images and splits of its runs; those of a search have no test images
    trials.sqlite      all trials, their settings and scores: the database of Optuna's studies `search`, `seeds`, `grid`
    trials/007/        the run folder of a trial (trials/007/fold1 with several folds); beside it trials/007.yaml, its
                       recipe, and trials/007.log, its messages
    seeds/007_1/       the same for the best trials with further seeds
    best.yaml          the best recipe
    replay.json        the trial that is replayed, and its recipe
    final/             the run on all training classes
    test.json          its metrics on the test split
    report.html        the page about a search
    cells/007_1/       the run of a cell of a grid, with its second seed
    sweep.png          the picture of a grid
    .lock              held by a command that begins the study or replays; several may work on the trials
    =================  ===============================================================================================

    Args:
        path: the folder.
    """

    path: Path

    recipe = FileOf("recipe.yaml")
    settings = FileOf("study.json")
    trials = FileOf("trials.sqlite")
    best = FileOf("best.yaml")
    replayed = FileOf("replay.json")
    test = FileOf("test.json")
    page = FileOf("report.html")
    picture = FileOf("sweep.png")

    def table(self, name: str) -> Path:
        """The table of some runs."""
        return self.path / "tables" / f"{name}.parquet"

    def file(self, name: str, suffix: str) -> Path:
        """A file beside the run folder of a name, such as `trials/007.yaml`."""
        return self.path / f"{name}{suffix}"

    def lock(self) -> FileLock:
        """The lock of the study. The system releases it when the process that holds it ends, however it ends."""
        from filelock import FileLock

        self.path.mkdir(parents=True, exist_ok=True)
        return FileLock(self.path / ".lock")

    def check_verb(self, section: str) -> None:
        """Raise InputError unless the folder holds a study of this verb, or nothing at all."""
        verb = STUDY_SECTIONS[section]
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file; give a folder for the study with --out")
        own = self.stored().get("verb", verb)
        if own != verb:
            raise InputError(f"{self.path} holds a study of vicinal {own}; give another --out")
        if not self.recipe.is_file() and self.path.exists() and any(self._unrelated_files()):
            raise InputError(f"{self.path} exists already and holds no study; give another --out")

    def check_study(self) -> None:
        """Raise InputError unless there is a study to continue."""
        if not self.recipe.is_file():
            raise InputError(f"{self.path} holds no study to continue; give a recipe")

    def stored(self) -> dict[str, Any]:
        """The options of the study that is there; empty without one."""
        try:
            stored = json.loads(self.settings.read_text(encoding="utf-8")) if self.recipe.is_file() else {}
        except (OSError, ValueError) as error:
            raise InputError(f"{self.settings}: not as the study wrote it ({error})") from None
        return stored if isinstance(stored, dict) else {}

    def _unrelated_files(self) -> Iterator[Path]:
        """Files that do not belong to a study that was killed before it began."""
        ours = {self.settings.name, "tables", ".lock"}
        return (each for each in self.path.iterdir() if each.name not in ours)

    def create(self, given: StudyRecipe, settings: Mapping[str, Any], tables: Mapping[str, Table]) -> None:
        """Write the first files of a study; the recipe last, because a folder with a recipe is a study."""
        for name, table in tables.items():
            self.table(name).parent.mkdir(parents=True, exist_ok=True)
            table.save(self.table(name))
        self.store(given.section, settings)
        recipe = {**given.settings(), given.section: plain_space(given.space)}
        write_bytes(self.recipe, dump_yaml(recipe).encode())

    def store(self, section: str, settings: Mapping[str, Any]) -> None:
        """Write the options of the study."""
        stored = {"verb": STUDY_SECTIONS[section], **settings}
        write_bytes(self.settings, (json.dumps(stored, indent=2) + "\n").encode())

    def check_same(self, given: StudyRecipe, settings: Mapping[str, Any], fixed: tuple[str, ...]) -> None:
        """Raise InputError unless the study is that of a recipe, with the same values of its fixed options."""
        own = self.own_recipe(given.section, given.allow_imports)
        try:
            own.base.check_same(given.base)
        except InputError as error:
            difference = str(error).partition(";")[0].replace("the run's own", "the study's own")
            self._fail(difference)
        for key in [*own.space, *given.space]:
            if own.space.get(key) != given.space.get(key):
                self._fail(f"{given.section}.{key} is another one")
        stored = self.stored()
        for name in fixed:
            if stored.get(name) != settings[name]:
                self._fail(f"{name} = {settings[name]} differs from the study's own {stored.get(name)}")

    def own_recipe(self, section: str, allow_imports: tuple[str, ...] = ()) -> StudyRecipe:
        """The recipe of the study that is there."""
        return StudyRecipe.read(section, self.recipe, allow_imports=allow_imports)

    def _fail(self, difference: str) -> None:
        raise InputError(f"{self.path} holds another study: {difference}; give another --out, or --out alone to "
                         "continue it")  # fmt: skip


def open_study(
    folder: StudyFolder,
    given: StudyRecipe | None,
    section: str,
    settings: Mapping[str, Any],
    fixed: tuple[str, ...],
    make_tables: MakeTables,
    allow_imports: Sequence[str] = (),
) -> StudyRecipe:
    """Begin a study in a folder, or continue the one that is there, and return its recipe.

    Args:
        folder: of the study.
        given: the recipe with the settings that vary; None: that of the study that is there.
        section: `search` or `grid`.
        settings: the options of the study.
        fixed: the options that must be those of the study that is there.
        make_tables: name -> table of the runs of a new study.
        allow_imports: packages whose classes a recipe may name, where none is given.

    Raises:
        InputError: the recipe is invalid, its data cannot be divided so, or the folder holds something else.
    """
    from vicinal.training.recipes.recipe import Recipe

    folder.check_verb(section)
    if given is None:
        folder.check_study()
        return folder.own_recipe(section, tuple(allow_imports))
    given.check(Recipe.schema(), Recipe.verb)
    tables = {} if folder.recipe.is_file() else make_tables(given)
    with folder.lock():
        if folder.recipe.is_file():
            folder.check_same(given, settings, fixed)
            folder.store(section, settings)
        else:
            folder.create(given, settings, tables)
    return given


ALL, FINAL = "all", "final"
"""The names of the tables of a grid, and of the training on all training classes."""


def load_study_table(recipe: Recipe) -> Table:
    """The images of a recipe with their splits, without its noise, which each run adds to its own training images.

    Raises:
        InputError: they cannot be read or divided, or foreign images are among them: the runs of a search could not see
            that they are test images.
    """
    from vicinal.data import load_dataset  # loads pandas
    from vicinal.data.noise import check_foreign, load_foreign

    data = recipe.settings.data
    table = load_dataset(replace(data, noise=NoiseSettings()), recipe.settings.seed)
    if data.noise.foreign is not None:
        check_foreign(table, load_foreign(data.noise))
    return table


def search_tables(table: Table, held_out: str) -> dict[str, Table]:
    """Divide the classes that are not for testing into training and validation.

    Args:
        table: images with their splits.
        held_out: the classes that validate: `half`, the second half of all classes in order; `val`, those of the split
            val; or a number of folds, each of which validates once, while the others train.

    Returns:
        Name -> table with the splits train and val.

    Raises:
        InputError: it cannot be divided so.

    Example:
        >>> import pandas as pd
        >>> from vicinal.data import Table
        >>> split = ["train", "train", "train", "train", "test"]
        >>> table = Table(pd.DataFrame({"label": ["a", "b", "c", "d", "e"], "split": split}))
        >>> for name, each in search_tables(table, "half").items():
        ...     print(name, each.subset("train").classes, each.subset("val").classes, each.splits)
        half ['a', 'b'] ['c', 'd'] ['train', 'val']
    """
    development = table.take((table.frame["split"] != "test").to_numpy(dtype=bool))
    if held_out == "val":
        if "val" not in table.splits:
            raise InputError("held_out = val: the data has no split val; take half, or a number of folds")
        return {"val": development}
    from vicinal.data import class_folds  # loads pandas

    num_folds = 2 if held_out == "half" else int(held_out)
    try:
        folds = class_folds(development.classes, num_folds, order="in_order")
    except InputError as error:
        raise InputError(f"held_out = {held_out}: {error}") from None
    chosen = {"half": folds[1]} if held_out == "half" else {f"fold{at}": fold for at, fold in enumerate(folds)}
    return {name: _validating(development, fold) for name, fold in chosen.items()}


def _validating(table: Table, fold: list[Any]) -> Table:
    held_out = set(fold)
    rest = [name for name in table.classes if name not in held_out]
    return table.split_classes(classes={"train": rest, "val": fold})


def final_table(table: Table) -> Table:
    """All classes that are not for testing in the split train."""
    from vicinal.data import Table  # loads pandas

    splits = table.frame["split"].where(table.frame["split"] == "test", "train")
    return Table(table.frame.assign(split=splits))


def check_table(recipe: Recipe, table: Table) -> None:
    """Check that a recipe can be trained on a table.

    Raises:
        InputError: too few classes or images for its batches, or to validate.
    """
    from vicinal.data import check_trainable  # loads pandas
    from vicinal.training.training_data import create_sampler, require_validatable

    training = table.subset("train")
    check_trainable(training)
    if "val" in table.splits:
        require_validatable(table.subset("val"), recipe.settings.validation.metric)
    create_sampler(recipe.settings, training)


def with_table(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """The values of a recipe that takes its images and their splits from a table."""
    defaults = asdict(DataSettings())
    own = {field.name: defaults[field.name] for field in fields(DataSettings) if field.name in DATA}
    return {**config, "data": {**config["data"], **own, "source": str(path)}}
