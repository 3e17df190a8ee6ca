"""Training of a refiner, on the embeddings that its recipe names or that several processes compute."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from vicinal.data import Table, check_trainable, save_embeddings
from vicinal.data.batches.image_dataset import ImageDataset
from vicinal.data.splits import shared_classes, splits_by_fraction
from vicinal.models.execution import usable_device
from vicinal.training import Recipe, RefinerRecipe, RefinerTrainer
from vicinal.training.divided_work import divided_rows, embed_rows
from vicinal.training.processes import MIN_CPU_PROCESSES, killing_children, start_worker
from vicinal.training.recipes.refiner_settings import RefinerSettings
from vicinal.training.runs import create_trainer
from vicinal.training.training_data import create_flat_sampler, require_validatable
from vicinal.utils.arrays import Booleans, Floats
from vicinal.utils.console import log
from vicinal.utils.errors import InputError, InterruptedRunError, TrainingStoppedError, prefixed_errors
from vicinal.utils.run_folder import RunFolder
from vicinal.workflows.embedded_table import EmbeddedTable
from vicinal.workflows.embedding_reader import EmbeddingReader
from vicinal.workflows.models import load_model
from vicinal.workflows.source import Source

DEVICES = {"cpu": "cpu", "gpu": "cuda", "auto": None}  # by the accelerator of a recipe


def train_refiner(recipe: RefinerRecipe, out: str | Path) -> RunFolder:
    """Train a refiner by a recipe, into a new run folder.

    Args:
        recipe: all settings.
        out: the run's folder; it must not exist yet or be empty.

    Returns:
        The run's folder; the refiner is in its folder `model`.

    Raises:
        InputError: the recipe, the embeddings or the folder is invalid.
        NotBetterError: the refiner does not help on the validation classes, and is not saved.
        NonFiniteLossError: the loss became infinite or NaN.
        InterruptedRunError: the run was interrupted, and its state is saved.
    """
    run = RunFolder(Path(out))
    given = recipe.settings.embeddings
    if given is not None and Path(given).resolve() == run.embeddings.resolve():
        raise InputError(f"embeddings = {given} is where the run would keep its own copy; give another --out")
    with run.new():
        _create_trainer(recipe, run).fit()
    return run


def resume_refiner(
    out: str | Path, recipe: RefinerRecipe | None = None, allow_imports: Sequence[str] = ()
) -> RunFolder:
    """Resume a refiner's run from its last checkpoint; the weights at the end are those of an uninterrupted run.

    Args:
        out: the run's folder.
        recipe: if given, it must equal that of the run, or be longer as for :func:`~vicinal.training.resume`; if the
            folder holds no run, a new one is started.
        allow_imports: packages whose classes the run's recipe may name, as for :meth:`RefinerRecipe.load`.

    Raises:
        InputError: the folder has no run, or its recipe differs. Other errors are those of :func:`train_refiner`.
    """
    run = RunFolder(Path(out))
    if recipe is not None and not run.recipe.exists():
        return train_refiner(recipe, out)
    run.check_run()
    own = RefinerRecipe.of_run(run.recipe, recipe, allow_imports)
    with run.in_use():
        own.save_changes(run.recipe)
        _create_trainer(own, run).fit()
    return run


def _create_trainer(recipe: RefinerRecipe, run: RunFolder) -> RefinerTrainer:
    assert recipe.settings.launch.launcher is None
    if run.recipe.is_file() and run.embeddings.is_file():
        stored = Source(str(run.embeddings)).stored()
        return RefinerTrainer(recipe, stored.vectors, stored.table, stored.fingerprint, run)
    embedded = _split(_embeddings(recipe, run), recipe.settings)
    sizes = embedded.table.frame["split"].value_counts()
    validation = f"validating on {sizes['val']:,} of val" if "val" in sizes else "without validation"
    log(f"training a refiner on {sizes['train']:,} embeddings of the split train, {validation}")
    given = embedded.vectors, embedded.table, embedded.fingerprint
    del embedded  # and the model, which may take the memory of a GPU
    if run.recipe.is_file():  # an embedder was trained, so the run has begun, and its first files will not be written
        save_embeddings(run.embeddings, *given)
    return RefinerTrainer(recipe, *given, run)


def _embeddings(recipe: RefinerRecipe, run: RunFolder) -> EmbeddedTable:
    settings = recipe.settings
    if settings.embeddings is not None:
        given = Source(settings.embeddings, None, settings.path_column, settings.label_column, settings.labels)
        return given.stored()
    check_devices(usable_device(DEVICES[settings.accelerator]), settings.devices or 1)
    source = RunFolder(Path(str(settings.run)))
    if not source.recipe.is_file():
        raise InputError(f"run = {settings.run} is not the folder of a training run: {source.recipe.name} is missing")
    if source.embeddings.is_file():
        raise InputError(f"run = {settings.run} is the run of a refiner; give that of an embedder")
    table = Source(str(source.path)).table
    if settings.embedder_fraction > 0:
        # The result does not depend on the number of processes; here there is one.
        own = Recipe.load(source.recipe, ["--devices=1", "--num_nodes=1"], recipe.allow_imports)
        return _embeddings_by_new_embedder(recipe, own, table, run)
    return _embed(source, table, recipe)


def _embed(run: RunFolder, table: Table, recipe: RefinerRecipe) -> EmbeddedTable:
    table = table.take(table.frame["split"].isin(["train", "val"]).to_numpy())
    on_error = Recipe.load(run.recipe, allow_imports=recipe.allow_imports).settings.data.on_error
    device = DEVICES[recipe.settings.accelerator]
    reader = EmbeddingReader(model=str(run.path), on_error=on_error, device=device)
    if recipe.settings.devices in (None, 1):
        return reader.embed_table(table)
    images = ImageDataset(table, reader.loaded_model.transform)
    vectors = embed_in_processes(reader, images, recipe.settings.devices)
    return EmbeddedTable(vectors, images.table, reader.loaded_model)


def _embeddings_by_new_embedder(
    recipe: RefinerRecipe, embedder_recipe: Recipe, table: Table, run: RunFolder
) -> EmbeddedTable:
    """Train an embedder on some of the training classes, and embed the others and the split val with it."""
    settings = recipe.settings
    is_seen, is_unseen = _split_for_embedder(table, settings)
    embedder = RunFolder(run.embedder)
    if not embedder.model.is_dir():
        _check_refinable(recipe, table.take(~is_seen), embedder_recipe.model["dim"])
        # Finds mistakes before files are written.
        trainer = create_trainer(embedder_recipe, table.take(~is_unseen), embedder)
        recipe.save(run.recipe)  # from here on the run can be resumed
        log(f"training an embedder on {len(table.take(is_seen).classes):,} classes, in {embedder.path}")
        try:
            trainer.fit()
        except InterruptedRunError:
            resume = run.resume_command("refine")
            raise InterruptedRunError(
                f"stopped during the training of the embedder and saved the state; resume with: {resume}"
            ) from None
    return _embed(embedder, table.take(~is_seen), recipe)


def _split_for_embedder(table: Table, settings: RefinerSettings) -> tuple[Booleans, Booleans]:
    """The rows of the training classes for the embedder, and of those for the refiner, bool [rows] each."""
    fraction = settings.embedder_fraction
    fractions = {"train": fraction, "val": 1 - fraction}
    split = splits_by_fraction(table.subset("train").classes, fractions, settings.seed)
    is_training = (table.frame["split"] == "train").to_numpy()
    is_seen = is_training & (table.frame["label"].map(split.get) == "train").to_numpy()
    is_unseen = is_training & ~is_seen
    for rows, who in ((is_seen, "embedder"), (is_unseen, "refiner")):
        with prefixed_errors(f"embedder_fraction = {fraction} does not suit the {who}"):
            check_trainable(table.take(rows))
    return is_seen, is_unseen


def _check_refinable(recipe: RefinerRecipe, table: Table, dim: int) -> None:
    """Raise InputError, before an embedder is trained, if the refiner could not be trained afterwards."""
    placeholder = EmbeddedTable(np.zeros((len(table), dim), np.float32), table, "none yet")
    create_flat_sampler(recipe.settings, _split(placeholder, recipe.settings).table.subset("train"))
    recipe.create_refiner(dim)


def _split(embedded: EmbeddedTable, settings: RefinerSettings) -> EmbeddedTable:
    """The rows of the splits train and val; without a split val, some classes become it unless val_fraction is 0.

    The columns is_query and is_gallery are for tests and are removed: here every image is both.
    """
    vectors, table = embedded.vectors, embedded.table
    table = Table(table.frame.drop(columns=["is_query", "is_gallery"], errors="ignore"))
    if not table.has("label"):
        raise InputError(
            "the embeddings have no column label; a refiner is trained with labels: give their file with --labels"
        )
    if table.has("split"):
        if "train" not in table.splits:
            raise InputError(f"no embeddings are in the split train; the splits are {', '.join(table.splits)}")
        rows = np.flatnonzero(table.frame["split"].isin(["train", "val"]))
        vectors, table = vectors[rows], table.take(rows)
        for name in shared_classes(table.frame):
            raise InputError(f"class {name} is in train and val; a refiner is validated on unseen classes")
    check_trainable(table)
    table = _with_val(table, settings)
    check_trainable(table.subset("train"))
    if "val" in table.splits:
        if len(table.subset("val").classes) < 2:
            raise InputError("the split val has one class, so every match would be right; it needs two or more")
        require_validatable(table.subset("val"), settings.validation.metric)
    return replace(embedded, vectors=vectors, table=table)


def _with_val(table: Table, settings: RefinerSettings) -> Table:
    """The table with a split val, made of some classes if it is missing, unless all of them are trained on."""
    if table.has("split") and "val" in table.splits:
        return table
    if settings.val_fraction == 0:
        if settings.keep == "best":
            raise InputError("val_fraction = 0 leaves nothing to validate on; give a fraction, or keep = last")
        if settings.augmentation.noise is None:
            raise InputError("val_fraction = 0 leaves nothing to choose augmentation.noise by; give both as numbers")
        return Table(table.frame.assign(split="train"))
    fractions = {"train": 1 - settings.val_fraction, "val": settings.val_fraction}
    split = splits_by_fraction(table.classes, fractions, settings.seed)
    return Table(table.frame.assign(split=table.frame["label"].map(split.get)))


def embed_in_processes(reader: EmbeddingReader, images: ImageDataset, num_processes: int) -> Floats:
    """Embed images by the model of a reader, a part of the batches in each process: float32 [n, dim].

    Batches are those of one process, and on the same kind of device the embeddings are too. Each process loads the
    model. On a CPU the threads of PyTorch are divided among the processes, and fewer threads may change the last bits.
    """
    device = usable_device(reader.device)
    check_devices(device, num_processes)
    parts = [rows for rows in divided_rows(len(images), reader.batch_size, num_processes) if len(rows)]
    log(f"embedding {len(images):,} images in {len(parts)} processes")
    devices = [f"cuda:{number}" if device == "cuda" else device for number in range(len(parts))]
    options = replace(reader, precision=reader.used_precision)
    # If the engine needs an exported model, it is exported here once, before the processes start.
    reader.with_engine(reader.loaded_model, len(parts[0]))
    num_threads = max(1, torch.get_num_threads() // len(parts))
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(len(parts), context, initializer=start_worker, initargs=(0,))
    with killing_children():  # which ignore Ctrl-C
        try:
            tasks = [
                pool.submit(_embed_part, replace(options, device=each), images.table, rows, num_threads)
                for each, rows in zip(devices, parts, strict=True)
            ]
            pool.submit(int)  # wakes the thread that watches the processes, which may not know the last one yet
            for task in as_completed(tasks):  # an error of any of them ends all at once
                task.result()
            vectors, errors = zip(*(task.result() for task in tasks), strict=True)
        except BrokenProcessPool:
            raise TrainingStoppedError("a process that embeds images was killed; start the command again") from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    images.leave_out({row: error for part in errors for row, error in part.items()})
    return np.concatenate(vectors)


def check_devices(device: str, num_processes: int) -> None:
    """Raise InputError if this machine has too few GPUs or cores."""
    on_gpu = device.startswith("cuda")
    limit = torch.cuda.device_count() if on_gpu else max(MIN_CPU_PROCESSES, os.cpu_count() or 1)
    if num_processes > limit:
        raise InputError(f"devices = {num_processes} must be at most {limit} on this machine")


def _embed_part(
    options: EmbeddingReader, table: Table, rows: range, num_threads: int
) -> tuple[Floats, dict[int, InputError]]:
    """Embed some rows, in a process of their own: the embeddings, and the errors of rows that are skipped."""
    torch.set_num_threads(num_threads)
    model = load_model(str(options.model), options.pooling, options.allow_import or (), options.weights)
    model.to(str(options.device))
    errors: dict[int, InputError] = {}
    vectors = embed_rows(
        options.with_engine(model, len(rows)),
        ImageDataset(table, model.transform),
        rows,
        batch_size=options.batch_size,
        num_workers=options.num_workers,
        precision=options.precision,
        errors=errors if options.on_error == "skip" else None,
    )
    return vectors, errors
