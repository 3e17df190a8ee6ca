"""Training of an embedder, from images to a model folder."""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from copy import copy
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import torch

from vicinal.data import ImageDataset, Table
from vicinal.data.batches.train_batches import train_batches
from vicinal.evaluation import evaluate
from vicinal.losses import Loss
from vicinal.losses.base import loss_terms
from vicinal.models import Embedder
from vicinal.models.downloads import is_downloaded
from vicinal.models.execution import Precision
from vicinal.models.head import set_to_attenuated_whitening
from vicinal.training import class_centers, sample_selection
from vicinal.training.base_trainer import BaseTrainer, Batch, LossTerms
from vicinal.training.compatibility import add_compatibility, check_old_model, old_class_centers, set_old_centers
from vicinal.training.divided_work import embed_divided, embed_own_part, embed_rows, find_unreadable
from vicinal.training.fine_tuning import layer_factors, set_up_backbone
from vicinal.training.recipes.recipe import Recipe
from vicinal.training.recipes.settings import TrainingSettings
from vicinal.training.strategy import put_together
from vicinal.training.training_data import TrainLoader, create_sampler, num_workers, sample_training_images
from vicinal.training.training_module import TrainingModule
from vicinal.training.transition import check_transition, find_transition, set_transition
from vicinal.utils import distributed
from vicinal.utils.arrays import Floats
from vicinal.utils.console import log
from vicinal.utils.errors import InputError, TrainingStoppedError, one_line
from vicinal.utils.run_folder import TRAIN_RECALL, RunFolder

WHITENING_IMAGES = 4096  # the largest number of training images whose features initialize the head


def create_training_module(
    recipe: Recipe, classes: Sequence[str | int], num_images: int, resumed: bool = False
) -> TrainingModule:
    """Create model and loss, in the module for the recipe's sample selection; resumed runs load their weights later."""
    settings = recipe.settings
    torch.manual_seed(settings.seed)
    embedder, loss = _create_model_and_loss(recipe, len(classes))
    if not resumed:
        class_centers.check_initial_centers(settings.centers, loss, embedder)
        check_transition(settings.transition, loss, classes, recipe.allow_imports)
        check_old_model(settings, embedder, recipe.allow_imports)
    selection, size = settings.sample_selection, settings.micro_batch_size
    if selection.method == "none":
        return TrainingModule(embedder, loss, size)
    more: dict[str, Any] = {"warmup_epochs": selection.warmup_epochs, "micro_batch_size": size}
    if selection.method == "prism":
        selector = sample_selection.PrismSelector(
            selection.noise_rate, selection.memory_size or num_images, selection.window
        )
        return sample_selection.PrismModule(embedder, loss, selector, **more)
    for term in loss_terms(loss):
        if type(term)._anchor_values is Loss._anchor_values:
            raise InputError(
                f"sample_selection.method = {selection.method} needs a loss that has a value for each sample; "
                f"{type(term).__name__} has none"
            )
    peer, peer_loss = _create_model_and_loss(recipe, len(classes))
    more["noise_rate"] = selection.noise_rate
    if selection.method == "co-teaching":
        return sample_selection.CoTeachingModule(embedder, loss, peer, peer_loss, **more)
    more["co_teaching_epochs"] = selection.co_teaching_epochs
    return sample_selection.CoTeachingPlusModule(embedder, loss, peer, peer_loss, **more)


def check_before_download(recipe: Recipe, classes: Sequence[str | int], num_images: int, resumed: bool) -> None:
    """Find mistakes in a recipe before the weights of its backbone are downloaded, if they are.

    The module is created without weights and memory, on the meta device; arguments and errors are those of
    :func:`create_training_module`.
    """
    if recipe.model["pretrained"] is not True or is_downloaded(recipe.model["backbone"]):
        return
    untrained = copy(recipe)
    untrained.model = {**recipe.model, "pretrained": False}
    with torch.random.fork_rng(devices=[]), torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module = create_training_module(untrained, classes, num_images, resumed)
            layer_factors(module.embedders, recipe.settings.optimizer.layer_decay)
        except InputError:
            raise
        except Exception:  # meta tensors have no values; creating the module will show any other error
            return


def _create_model_and_loss(recipe: Recipe, num_classes: int) -> tuple[Embedder, Loss]:
    embedder, loss = recipe.create_embedder(), recipe.create_loss()
    set_up_backbone(embedder, recipe.settings)
    class_centers.create_centers(loss, num_classes, embedder.train_output_dim)
    return embedder, add_compatibility(loss, recipe.settings, num_classes, embedder.train_output_dim)


class Trainer(BaseTrainer):
    """Trains an embedder by a recipe on a table.

    Args:
        recipe: all settings.
        table: images, labels and splits.
        run: the run's folder; training resumes from a checkpoint in it.
    """

    verb = "train"
    settings: TrainingSettings

    def __init__(self, recipe: Recipe, table: Table, run: RunFolder) -> None:
        self.recipe, self.table = recipe, table
        super().__init__(recipe.settings, run, find_unused_parameters=recipe.settings.freeze_backbone_epochs > 0)
        self._prepare()

    def _prepare(self) -> None:
        """Check the settings against data and machine, create the module, and find the images."""
        training = self.table.subset("train")
        self.sampler = create_sampler(self.recipe.settings, training)  # finds mistakes before weights are downloaded,
        self._create_module(training)  # and this before images are read
        self._start_clock()  # after the download
        self.images = self._dataset(training)
        if len(self.images.table) < len(training):  # some images cannot be read
            self.sampler = create_sampler(self.recipe.settings, self.images.table)
        self.fitted_recipe = self.recipe.fitted(self.images.table)
        self.settings = self.engine.settings = self.fitted_recipe.settings
        self.length = self.settings.length
        if self.images.table.classes != training.classes:  # none of a class's images can be read
            self._create_module(self.images.table)
        self.val_images = self._dataset(self.table.subset("val")) if "val" in self.table.splits else None
        self.train_sample = self._train_sample()
        noisy = sample_selection.known_noisy(self.images.table)
        self.step_selection, self.epoch_selection = (sample_selection.SelectionReport(noisy) for _ in range(2))

    def _train_sample(self) -> ImageDataset | None:
        """The training images that are evaluated too; all are queries and gallery images."""
        number = self.settings.validation.train_images
        if number == 0:
            return None
        rows = sample_training_images(self.images.table, number, self.settings.seed)
        if rows is None:
            return None
        sample = self.images.subset(rows)
        sample.table = Table(sample.table.frame.drop(columns=["is_query", "is_gallery"], errors="ignore"))
        return sample

    def _dataset(self, table: Table) -> ImageDataset:
        data, transform = self.settings.data, self.settings.transform
        if data.cache or data.on_error == "raise":
            return ImageDataset(table, transform, cache=data.cache, on_error=data.on_error)
        images = ImageDataset(table, transform)
        images.leave_out(find_unreadable(images))
        return images

    def _create_module(self, training: Table) -> None:
        self.bare_module = self._new_module(training)
        self.embedder, self.loss = self.bare_module.embedder, self.bare_module.loss
        self.evaluated = self.embedder
        factors = layer_factors(self.bare_module.embedders, self.settings.optimizer.layer_decay)
        self.parameter_groups = self.engine.setup(self.bare_module, self.bare_module.parameter_groups(), factors)

    def _new_module(self, training: Table) -> TrainingModule:
        arguments = (self.recipe, training.classes, len(training), self.run.last.exists())
        check_before_download(*arguments)
        return create_training_module(*arguments)

    # The steps ------------------------------------------------------------------------------------------------------

    def _plan(self) -> list[list[int]]:
        self.sampler.set_epoch(self.progress.epoch)
        return list(self.sampler)

    def _load_batches(self, plan: list[list[int]], start: int) -> Generator[Batch, None, None]:
        seed = (self.settings.seed, self.progress.epoch, distributed.rank())
        batches = train_batches(self.images, plan, seed, self.settings.data.augmentation)
        try:
            yield from self.loader.load(batches, start)
        except RuntimeError as error:
            if not str(error).startswith("DataLoader worker"):
                raise
            text = f"a process that reads images died, perhaps for lack of memory: {one_line(error, 120)}"
            raise TrainingStoppedError(f"{text}; {self.resume_hint}") from error

    @cached_property
    def loader(self) -> TrainLoader:
        """Loads the batches of all epochs."""
        data, device = self.settings.data, self.engine.fabric.device
        return TrainLoader(self.images, num_workers(data), device, data.augmentation)

    @contextmanager
    def watching(self) -> Iterator[None]:
        with super().watching(), closing(self.loader):
            yield

    def _loss_terms(self, batch: Batch) -> LossTerms:
        terms: LossTerms = self.module(batch["images"], batch["labels"], batch.get("augmentation"))
        if self.bare_module.selected is not None:
            for report in (self.step_selection, self.epoch_selection):
                report.add(self.bare_module.selected, batch["rows"])
        return terms

    def _sample_name(self, row: int) -> str:
        return str(self.images.table.paths[row])

    # Around the steps -----------------------------------------------------------------------------------------------

    def _on_epoch_start(self) -> None:
        frozen = self.progress.epoch < self.settings.freeze_backbone_epochs
        for parameter in self.parameter_groups.get("backbone", []):
            parameter.requires_grad_(not frozen)
        self.module.train()
        if frozen:
            for embedder in self.bare_module.embedders:
                embedder.backbone.eval()
        self.bare_module.start_epoch(self.progress.epoch)

    def _on_epoch_end(self) -> None:
        if self.bare_module.selected is not None:
            log(str(self.epoch_selection))
            self.epoch_selection.reset()

    def validate_start(self) -> None:
        """Evaluate the pretrained network's own embeddings, which training must beat, and the model before training."""
        if self.recipe.is_pretrained and self.val_images is not None:
            self.evaluated = self._zero_shot_model()
            values = {**(self._evaluate() or {}), **self._evaluate_training()}
            self.evaluated = self.embedder
            if self.is_main_process:
                self.log.metrics(0, 0, values)
            self.progress.zero_shot = distributed.broadcast_object(values[self.settings.validation.metric])
        if not self.is_compatible:  # no weights from before training are compatible with the old model
            self.validate()

    @property
    def is_compatible(self) -> bool:
        """Whether the model is trained to be compatible with an old one."""
        return self.settings.compatible_with is not None

    def _zero_shot_model(self) -> Embedder:
        with torch.random.fork_rng(devices=[]):
            return self.recipe.create_zero_shot_embedder().to(self.engine.fabric.device)

    def _evaluate(self) -> dict[str, float] | None:
        if self.val_images is None:
            return None
        vectors, metric = self._embed(self.val_images, self.evaluated), self.settings.validation.metric
        return evaluate(vectors, self.val_images.table, metrics=[metric], divided=True).metrics

    def _evaluate_training(self) -> dict[str, float]:
        if self.train_sample is None:
            return {}
        vectors = self._embed(self.train_sample, self.evaluated)
        metrics = evaluate(vectors, self.train_sample.table, recall_at=[1], divided=True).metrics
        return {TRAIN_RECALL: metrics["recall@1"]}

    def _embed(self, images: ImageDataset, embedder: Embedder) -> Floats:
        """The embeddings of images on every process, each of which embeds a part of them."""
        return embed_divided(len(images), self._test_batch_size, partial(self._embed_rows, images, embedder))

    @property
    def _test_batch_size(self) -> int:
        """Number of images that a process embeds at a time outside of training; the same as in training."""
        return self.settings.micro_batch_size or self.sampler.batch_size // distributed.world_size()

    def _embed_rows(self, images: ImageDataset, embedder: Embedder, rows: range) -> Floats:
        return embed_rows(
            embedder,
            images,
            rows,
            batch_size=self._test_batch_size,
            num_workers=num_workers(self.settings.data),
            precision=cast(Precision, self.settings.precision.removesuffix("-mixed")),
        )

    def _extra_log_values(self) -> dict[str, float]:
        return self.step_selection.values() if self.bare_module.selected is not None else {}

    def _restart_counts(self) -> None:
        super()._restart_counts()
        self.step_selection.reset()

    # Start, checkpoints, end ----------------------------------------------------------------------------------------

    def _write_start(self) -> None:
        self.table.save(self.run.table)
        self.fitted_recipe.save(self.run.recipe)

    def _on_start(self) -> None:
        """Initialize head, class centers, old class centers and transition matrices from data, as the settings say."""
        if self.recipe.has_whitened_head:
            self._set_heads()
        centers, training = self.settings.centers, self.images.table
        for embedder, loss in zip(self.bare_module.embedders, self.bare_module.losses, strict=True):
            if centers == "class_means":
                embed = partial(self._embed_rows, self.images, embedder)
                rows, vectors = embed_own_part(len(self.images), self._test_batch_size, embed)
                torch.manual_seed(self.settings.seed)  # several centers per class diverge identically on all processes
                class_centers.set_centers_to_class_means(loss, vectors, training.labels[rows.start : rows.stop])
            elif centers != "random":
                class_centers.copy_centers_from_run(loss, centers, training.classes)
        if self.settings.transition.source is not None:
            device, main = self.engine.fabric.device, self.is_main_process
            source, imports = self.settings.transition, self.recipe.allow_imports
            matrix = find_transition(source, self.images, device, imports) if main else None
            matrix = distributed.broadcast_object(matrix)
            assert matrix is not None
            set_transition(self.bare_module.losses, matrix)
        if self.is_compatible:
            device, allowed = self.engine.fabric.device, self.recipe.allow_imports
            old_centers = distributed.broadcast_object(
                old_class_centers(self.settings, training, device, allowed)  # one process computes, the others wait
            )
            set_old_centers(self.bare_module.losses, old_centers)

    def _set_heads(self) -> None:
        number = min(WHITENING_IMAGES, len(self.images))
        rows = np.random.default_rng(self.settings.seed).choice(len(self.images), number, replace=False)
        images = self.images.subset(np.sort(rows))
        for embedder in self.bare_module.embedders:
            with embedder.without_linear() as linear:
                features = self._embed(images, embedder)
            set_to_attenuated_whitening(linear, torch.from_numpy(features))
            distributed.broadcast_tensors([linear.weight.data])

    def _extra_state(self) -> dict[str, Any]:
        reports = {"epoch_selection": self.epoch_selection, "step_selection": self.step_selection}
        return {name: distributed.all_reduce_sum(report.counts) for name, report in reports.items()}

    def _load_extra_state(self, state: dict[str, Any]) -> None:
        if self.is_main_process:  # the counts of all processes together
            self.epoch_selection.counts = state["epoch_selection"].long()
            self.step_selection.counts = state["step_selection"].long()

    @property
    def _memory_format(self) -> str | None:
        return str(self.embedder.memory_format).removeprefix("torch.")

    def _num_trained(self) -> int:
        is_frozen = self.progress.epoch <= self.settings.freeze_backbone_epochs
        return sum(
            parameter.numel()
            for name, parameters in self.embedder.parameter_groups().items()
            for parameter in parameters
            if self.settings.optimizer.lr_factor(name) > 0 and not (name == "backbone" and is_frozen)
        )

    def _write_model(self, metrics: Mapping[str, float]) -> None:
        embedder = self.embedder
        if metrics:
            metrics = {**metrics, **self._zero_shot_metrics()}
            if self.progress.keeps_zero_shot and not self.is_compatible:
                embedder, metrics = self._zero_shot_model(), self._zero_shot_metrics("val")
            self._log_scores()
        class_centers.save_centers(self.run.centers, self.loss, self.images.table.classes)
        put_together(self.embedder)
        if self.is_main_process:
            embedder.save_pretrained(self.run.model, recipe=self.fitted_recipe.config, metrics=metrics)

    def _zero_shot_metrics(self, name: str = "zero-shot val") -> dict[str, float]:
        score = self.progress.zero_shot
        return {f"{name} {self.settings.validation.metric}": score} if math.isfinite(score) else {}

    def _log_scores(self) -> None:
        progress, metric = self.progress, self.settings.validation.metric
        if progress.keeps_zero_shot and self.is_compatible:
            log(f"no epoch had a higher {metric} than zero-shot, which is not compatible with the old model")
        elif progress.keeps_zero_shot:
            log(f"no epoch had a higher {metric} than zero-shot: the model is the pretrained network")
        elif progress.best_epoch == 0:
            log(f"no epoch had a higher {metric} than before training: the model is the untrained one")
        if math.isfinite(progress.zero_shot):
            trained = f"{progress.best:.4f} (epoch {progress.best_epoch})"
            log(f"{metric} of the validation classes: zero-shot {progress.zero_shot:.4f}, trained {trained}")
