"""From a recipe to a trained refiner: where its embeddings come from, starting, and going on."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vicinal.console import log
from vicinal.data import Table, fingerprint_of, load_embeddings, require_trainable, save_embeddings
from vicinal.data.splits import shared_classes, splits_by_share
from vicinal.errors import InputError, InterruptedRunError
from vicinal.sources import Reading
from vicinal.training import Recipe, RefinerRecipe, RefinerTrainer, RunFolder, Trainer
from vicinal.training.refiner_settings import RefinerSettings
from vicinal.training.setup import flat_sampler, require_validatable


class LabelledEmbeddings(NamedTuple):
    """What a refiner is trained on.

    Attributes:
        vectors: float32 [n, dim].
        table: n rows with labels, in the splits train and val.
        fingerprint: of the model that made the vectors, if it is known.
    """

    vectors: npt.NDArray[np.float32]
    table: Table
    fingerprint: str | None


def train_refiner(recipe: RefinerRecipe, out: str | Path) -> RunFolder:
    """Train a refiner as the recipe says into a new run folder.

    Args:
        recipe: all settings.
        out: the run's folder; must not exist yet or be empty.

    Returns:
        The run's folder; the refiner lies in its `model`.

    Raises:
        InputError: the recipe, the embeddings or the folder cannot work.
        NotBetterError: refining does not help on the validation classes; there is no model then.
        NonFiniteLossError: the loss became infinite or NaN.
        InterruptedRunError: Ctrl-C; the state is saved.
    """
    run = RunFolder(Path(out))
    run.check_new()
    given = recipe.settings.embeddings
    if given is not None and Path(given).resolve() == run.embeddings.resolve():
        raise InputError(f"embeddings = {given} is where the run keeps a copy of its own; give another --out")
    _trainer(recipe, run).fit()
    return run


def resume_refiner(out: str | Path, recipe: RefinerRecipe | None = None) -> RunFolder:
    """Continue a refiner's run from its last checkpoint; ends with the weights of a run that never stopped.

    Args:
        out: the run's folder.
        recipe: if given, must be the run's own; a folder without a run is then begun anew.

    Raises:
        InputError: there is no run, or it has another recipe. Other errors as for :func:`train_refiner`.
    """
    run = RunFolder(Path(out))
    if recipe is not None and not run.recipe.exists():
        return train_refiner(recipe, out)
    run.check_run()
    _trainer(RefinerRecipe.of_run(run.recipe, recipe), run).fit()
    return run


def _trainer(recipe: RefinerRecipe, run: RunFolder) -> RefinerTrainer:
    if run.recipe.is_file() and run.embeddings.is_file():
        return RefinerTrainer(recipe, *_from_file(run.embeddings), run)
    embedded = _divided(_embeddings(recipe, run), recipe.settings)
    if run.recipe.is_file():  # an embedder was trained here before, so the run has begun and nobody else writes them
        save_embeddings(run.embeddings, *embedded)
    return RefinerTrainer(recipe, *embedded, run)


def _embeddings(recipe: RefinerRecipe, run: RunFolder) -> LabelledEmbeddings:
    settings = recipe.settings
    if settings.embeddings is not None:
        return _from_file(Path(settings.embeddings))
    source = RunFolder(Path(str(settings.run)))
    if not source.recipe.is_file():
        raise InputError(f"run = {settings.run} is no folder of a training run: {source.recipe.name} is missing")
    if source.embeddings.is_file():
        raise InputError(f"run = {settings.run} is the run of a refiner; give that of an embedder")
    table = Table.from_parquet(source.table)
    if settings.cross_fit:
        # Whatever the number of processes, a run is the same; here there is one.
        return _cross_fitted(recipe, Recipe.load(source.recipe, ["--devices=1"]), table, run)
    return _embedded(source, table, settings)


def _from_file(path: Path) -> LabelledEmbeddings:
    vectors, table = load_embeddings(path)
    return LabelledEmbeddings(vectors, table, fingerprint_of(path))


def _embedded(run: RunFolder, table: Table, settings: RefinerSettings) -> LabelledEmbeddings:
    """The training and validation images of a run by its model."""
    table = table.take(table.frame["split"].isin(["train", "val"]).to_numpy())
    on_error = Recipe.load(run.recipe).settings.data.on_error
    device = {"cpu": "cpu", "gpu": "cuda", "auto": None}[settings.accelerator]
    embedded = Reading(model=str(run.path), on_error=on_error, device=device).embed_table(table)
    return LabelledEmbeddings(embedded.vectors, embedded.table, embedded.fingerprint)


def _cross_fitted(recipe: RefinerRecipe, of_embedder: Recipe, table: Table, run: RunFolder) -> LabelledEmbeddings:
    """Train an embedder on some of the training classes; embeddings by it of the others, and of the split val."""
    settings, training = recipe.settings, table.subset("train")
    shares = {"train": settings.cross_fit, "val": 1 - settings.cross_fit}
    part = splits_by_share(training.classes, shares, settings.seed)
    is_training = (table.frame["split"] == "train").to_numpy()
    seen = is_training & (table.frame["label"].map(part.get) == "train").to_numpy()
    unseen = is_training & ~seen
    for rows, who in ((seen, "embedder"), (unseen, "refiner")):
        try:
            require_trainable(table.take(rows))
        except InputError as error:
            raise InputError(f"cross_fit = {settings.cross_fit} does not suit the {who}: {error}") from None
    embedder = RunFolder(run.embedder)
    if not embedder.model.is_dir():
        _check_refinable(recipe, table.take(~seen), of_embedder.model["dim"])
        trainer = Trainer(of_embedder, table.take(~unseen), embedder)  # finds mistakes before anything is written
        recipe.save(run.recipe)  # from here on the run can be resumed
        log(f"training an embedder on {len(table.take(seen).classes):,} classes, in {embedder.path}")
        _train_embedder(trainer, run)
    return _embedded(embedder, table.take(~seen), settings)


def _check_refinable(recipe: RefinerRecipe, table: Table, dim: int) -> None:
    """Say before an embedder is trained what would else come up after it."""
    unknown = LabelledEmbeddings(np.zeros((len(table), dim), np.float32), table, None)
    flat_sampler(recipe.settings, _divided(unknown, recipe.settings).table.subset("train"))
    recipe.refiner(dim)


def _train_embedder(trainer: Trainer, run: RunFolder) -> None:
    try:
        trainer.fit()
    except InterruptedRunError:
        raise InterruptedRunError(
            f"stopped while the embedder was trained, and saved; go on with: "
            f"vicinal refine --out {shlex.quote(str(run.path))} --resume"
        ) from None


def _divided(embedded: LabelledEmbeddings, settings: RefinerSettings) -> LabelledEmbeddings:
    """The rows of the splits train and val; without val some classes are taken for it.

    Queries and gallery, if there are any, are those of a test: here every image is both.

    Raises:
        InputError: no labels, too few classes or images to train on or to judge by, or a class to do both with.
    """
    vectors, table, fingerprint = embedded
    table = Table(table.frame.drop(columns=["is_query", "is_gallery"], errors="ignore"))
    if not table.has("label"):
        raise InputError("the embeddings have no column label; a refiner is trained on labelled ones")
    if table.has("split"):
        if "train" not in table.splits:
            raise InputError(f"no embeddings are of the split train; the splits are {', '.join(table.splits)}")
        rows = np.flatnonzero(table.frame["split"].isin(["train", "val"]))
        vectors, table = vectors[rows], table.take(rows)
        for name in shared_classes(table.frame):
            raise InputError(f"class {name} is in train and val; a refiner is judged by classes it is not trained on")
    require_trainable(table)
    if not table.has("split") or "val" not in table.splits:
        part = splits_by_share(
            table.classes, {"train": 1 - settings.val_share, "val": settings.val_share}, settings.seed
        )
        table = Table(table.frame.assign(split=table.frame["label"].map(part.get)))
    require_trainable(table.subset("train"))
    if len(table.subset("val").classes) < 2:
        raise InputError("one class in the split val would always be found; give it two or more (val_share takes some)")
    require_validatable(table.subset("val"), settings.validation.metric)
    return LabelledEmbeddings(vectors, table, fingerprint)
