"""A study is a folder: its layout, its lock and its tables of images."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vicinal.data.settings import DataSettings, NoiseSettings
from vicinal.training.recipes.recipe_check import STUDY_SECTIONS
from vicinal.utils.errors import InputError, prefixed_errors
from vicinal.utils.files import write_bytes
from vicinal.utils.plain_yaml import dump_yaml
from vicinal.utils.run_folder import FileOf
from vicinal.workflows.tuning.study_recipe import DATA, StudyRecipe, plain_space

if TYPE_CHECKING:
    from filelock import FileLock

    from vicinal.data.table import Table
    from vicinal.training.recipes.recipe import Recipe

ALL, FINAL = "all", "final"
"""The names of the tables of a grid, and of the training on all training classes."""


@dataclass(frozen=True)
class StudyFolder:
    """Where the files of a study lie.

    The tables of its runs are in `tables/`; those of a search have no test images. The run folder of a trial is
    `trials/007/` (`trials/007/fold1` with several folds), and beside it are `trials/007.yaml`, its recipe, and
    `trials/007.log`, its messages; `seeds/007_1/` is that of a best trial with a further seed, and `cells/007_1/` that
    of a cell of a grid with its second seed. `.lock` is held by a command that begins the study, opens its
    trials or replays; several may work on the trials.
    """

    path: Path

    recipe = FileOf("recipe.yaml")  # with the settings that vary under `search` or `grid`
    settings = FileOf("study.json")  # the options of the study
    trials = FileOf("trials.sqlite")  # the database of Optuna's studies `search`, `seeds`, `grid`
    best = FileOf("best.yaml")  # the best recipe
    replayed = FileOf("replay.json")  # the trial that is replayed, and its recipe
    test = FileOf("test.json")  # the metrics of the run `final`, on all training classes, on the test split
    page = FileOf("report.html")  # about a search
    picture = FileOf("sweep.png")  # of a grid

    def table(self, name: str) -> Path:
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
        """The options of the existing study; empty without one."""
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
                self._fail(f"{given.section}.{key} differs")
        stored = self.stored()
        for name in fixed:
            if stored.get(name) != settings[name]:
                self._fail(f"{name} = {settings[name]} differs from the study's own {stored.get(name)}")

    def own_recipe(self, section: str, allow_imports: tuple[str, ...] = ()) -> StudyRecipe:
        return StudyRecipe.read(section, self.recipe, allow_imports=allow_imports)

    def _fail(self, difference: str) -> None:
        raise InputError(f"{self.path} holds another study: {difference}; give another --out, or --out alone to "
                         "continue it")  # fmt: skip


def open_study(
    folder: StudyFolder,
    section: str,
    recipe: str | Path | None,
    overrides: Sequence[str],
    allow_imports: Sequence[str],
    settings: Mapping[str, Any],
    fixed: tuple[str, ...],
    make_tables: Callable[[StudyRecipe], dict[str, Table]],
) -> StudyRecipe:
    """Begin a study in a folder, or continue an existing one, and return its recipe.

    Without a recipe and overrides, that of the study is taken. The `fixed` settings must equal those of an existing
    study; `make_tables` creates the tables for the runs of a new one.
    """
    from vicinal.training.recipes.recipe import Recipe

    is_given = recipe is not None or bool(overrides)
    given = StudyRecipe.read(section, recipe, overrides, allow_imports) if is_given else None
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


def load_study_table(recipe: Recipe) -> Table:
    """The images of a recipe with their splits, without its noise, which each run adds to its own training images.

    Foreign images must not be among them: the runs of a search could not see that they are test images.
    """
    from vicinal.data import load_dataset  # loads pandas
    from vicinal.data.noise import check_foreign, load_foreign

    data = recipe.settings.data
    table = load_dataset(replace(data, noise=NoiseSettings()), recipe.settings.seed)
    if data.noise.foreign is not None:
        check_foreign(table, load_foreign(data.noise))
    return table


def search_tables(table: Table, held_out: str) -> dict[str, Table]:
    """Divide the classes that are not for testing into training and validation, by the name of each division.

    `held_out` says which classes validate: `half`, the second half of all classes in order; `val`, those of the split
    val; or a number of folds, each of which validates once, while the others train.
    """
    development = table.take((table.frame["split"] != "test").to_numpy(dtype=bool))
    if held_out == "val":
        if "val" not in table.splits:
            raise InputError("held_out = val: the data has no split val; take half, or a number of folds")
        return {"val": development}
    from vicinal.data import class_folds  # loads pandas

    num_folds = 2 if held_out == "half" else int(held_out)
    with prefixed_errors(f"held_out = {held_out}"):
        folds = class_folds(development.classes, num_folds, order="in_order")
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
    """Check that a table has enough classes and images for the batches of a recipe, and to validate."""
    from vicinal.data import check_trainable  # loads pandas
    from vicinal.training.training_data import create_sampler, require_validatable

    training = table.subset("train")
    check_trainable(training)
    if "val" in table.splits:
        require_validatable(table.subset("val"), recipe.settings.validation.metric)
    create_sampler(recipe.settings, training)


def with_table(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """The values of a recipe that takes its images and their splits from a table."""
    own = {name: default for name, default in asdict(DataSettings()).items() if name in DATA}
    return {**config, "data": {**config["data"], **own, "source": str(path)}}
