"""Training of a context refiner, from embeddings to a model folder (Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from vicinal.data import Table, save_embeddings
from vicinal.losses import Loss
from vicinal.models import ContextRefiner
from vicinal.retrieval.scores import UnitVectors
from vicinal.similarity.pair_source import PairSource
from vicinal.training.base_trainer import BaseTrainer, Batch, LossTerms
from vicinal.training.class_centers import create_centers, save_centers
from vicinal.training.recipes.recipe import RefinerRecipe
from vicinal.training.recipes.refiner_settings import RefinerSettings
from vicinal.training.refiner_context import TrainingContext, matching_noise
from vicinal.training.refiner_validation import ContextPart, RefinerValidation
from vicinal.training.training_data import create_flat_sampler
from vicinal.utils.arrays import Floats
from vicinal.utils.console import log
from vicinal.utils.errors import NotBetterError
from vicinal.utils.run_folder import LOWEST_GAIN, MAX_LOSS, UPDATE_FACTOR, RunFolder

REPORTED_METRICS = ("recall@1", "mAP@R")  # beside the metric of the validation
ATTENTION, UNIFORM = "right-class attention", "right-class neighbors"


class RefinerModule(nn.Module):
    """Refiner and loss as one module, so that precision wraps both."""

    def __init__(self, refiner: ContextRefiner, loss: Loss, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.refiner, self.loss, self.label_smoothing = refiner, loss, label_smoothing

    def forward(self, embeddings: Tensor, context: Tensor, mask: Tensor, labels: Tensor) -> LossTerms:
        refined, smoothing = self.refiner(embeddings, context, mask=mask), self.label_smoothing
        terms = self.loss.parts(PairSource.from_distributed_batch(refined, labels))
        if smoothing == 0:
            return terms
        shuffled = labels[torch.randperm(len(labels)).to(labels.device)]
        random = self.loss.parts(PairSource.from_distributed_batch(refined, shuffled))
        return {name: (1 - smoothing) * term + smoothing * random[name] for name, term in terms.items()}


class RefinerTrainer(BaseTrainer):
    """Trains a context refiner by a recipe on embeddings.

    The context of a sample is its nearest neighbors in its own split, training or validation, which have different
    classes.

    Args:
        recipe: all settings.
        vectors: float32 [n, dim].
        table: n rows, with labels and the splits train and val.
        fingerprint: fingerprint of the model that made the vectors, or None if it is unknown.
        run: the run's folder; training resumes from a checkpoint in it.
    """

    verb = "refine"
    settings: RefinerSettings

    def __init__(
        self, recipe: RefinerRecipe, vectors: Floats, table: Table, fingerprint: str | None, run: RunFolder
    ) -> None:
        self.recipe = recipe
        self.vectors, self.table, self.fingerprint = vectors, table, fingerprint
        super().__init__(recipe.settings, run)
        self.training = table.subset("train")
        rows = {split: np.flatnonzero(table.frame["split"] == split) for split in table.splits}
        self.rows = rows["train"]
        device = self.engine.fabric.device
        units = {split: UnitVectors(vectors, "embedding", each, device) for split, each in rows.items()}
        self._create_module()
        self.context = self._create_context(units)
        self.validation: RefinerValidation | None = None
        self.guardrails: dict[int, RefinerValidation] = {}  # number of images per class -> its validation
        if "val" in units:
            self._create_validation(units["val"], table.subset("val"))
        self.sampler = create_flat_sampler(self.settings, self.training)
        self.fitted_recipe = recipe.fitted(self.training)

    def _create_module(self) -> None:
        torch.manual_seed(self.settings.seed)
        self.refiner, self.loss = self.recipe.create_refiner(self.vectors.shape[1]), self.recipe.create_loss()
        create_centers(self.loss, len(self.training.classes), self.refiner.dim)
        groups = {
            "refiner": [each for each in self.refiner.parameters() if each.ndim == 2],
            "scalars": [each for each in self.refiner.parameters() if each.ndim < 2],
            "loss": list(self.loss.parameters()),
        }
        groups = {name: parameters for name, parameters in groups.items() if parameters}
        self.engine.setup(RefinerModule(self.refiner, self.loss, self.settings.label_smoothing), groups)

    def _create_context(self, units: Mapping[str, UnitVectors]) -> TrainingContext:
        """The training embeddings, with noise that suits the split val, if there is one and no noise is given."""
        augmentation, labels, seed = self.settings.augmentation, self.training.labels, self.settings.seed
        if augmentation.noise is None and "val" in units:
            training, unseen = (units[split].block(0, len(units[split])) for split in ("train", "val"))
            unseen_labels = self.table.subset("val").labels
            noise = matching_noise(training, labels, unseen, unseen_labels, augmentation.noise_covariance, seed)
            log(f"chosen to make training classes as hard as validation classes: augmentation.noise = {noise:.2f}")
            augmentation = replace(augmentation, noise=noise)
        return TrainingContext(self.refiner, units["train"], labels, augmentation, seed)

    def _create_validation(self, vectors: UnitVectors, table: Table) -> None:
        settings, metrics = self.settings, list(dict.fromkeys(self.settings.guardrail_metrics))
        whole = ContextPart(self.refiner, vectors, table)
        self.validation = RefinerValidation([whole], [settings.validation.metric, *metrics])
        for size in settings.guardrail_class_sizes if metrics else ():
            part = RefinerValidation.of_class_size(self.refiner, vectors, table, metrics, size, settings.seed)
            if part is not None:
                self.guardrails[size] = part

    # The steps ------------------------------------------------------------------------------------------------------

    def _plan(self) -> list[list[int]]:
        self.sampler.set_epoch(self.progress.epoch)
        return list(self.sampler)

    def _load_batches(self, plan: list[list[int]], start: int) -> Generator[Batch, None, None]:
        self.context.start_epoch(self.progress.epoch)
        for number in range(start, len(plan)):
            yield self.context.batch(plan[number], number)

    def _loss_terms(self, batch: Batch) -> LossTerms:
        terms: LossTerms = self.module(batch["embeddings"], batch["context"], batch["mask"], batch["labels"])
        return terms

    def _sample_name(self, row: int) -> str:
        if self.training.has("path"):
            return str(self.training.paths[row])
        return f"row {self.rows[row]} of {self.run.embeddings.name}"

    # Around the steps -----------------------------------------------------------------------------------------------

    def _evaluate(self) -> dict[str, float] | None:
        """The metrics with the first update factor that lowers no guardrail metric, or else with the last factor."""
        if self.validation is None:
            return None
        factors = self.settings.update_factors if self.settings.keep == "best" else [1.0]
        for factor in factors:
            with self._scaled_updates(factor):
                metrics = {**self._validation_metrics(), UPDATE_FACTOR: factor}
            if metrics[LOWEST_GAIN] >= -MAX_LOSS:
                break
        return metrics

    @contextmanager
    def _scaled_updates(self, factor: float) -> Iterator[None]:
        """In this context, the updates of the refiner are scaled."""
        state = deepcopy(self.refiner.state_dict())
        self.refiner.scale_updates(factor)
        yield
        self.refiner.load_state_dict(state)

    def _validation_metrics(self) -> dict[str, float]:
        assert self.validation is not None
        after = self.validation.after()
        metrics, gains = dict(after.metrics), [0.0]
        gains += [after.gain_in_errors(self.validation.before, name) for name in self.settings.guardrail_metrics]
        for size, guardrail in self.guardrails.items():
            after = guardrail.after()
            metrics |= {f"{size} per class: {name}": after.metrics[name] for name in guardrail.metrics}
            gains += [after.gain_in_errors(guardrail.before, name) for name in guardrail.metrics]
        metrics[LOWEST_GAIN] = min(gains)
        if self.refiner.context == "neighbors":
            metrics[ATTENTION], metrics[UNIFORM] = self.validation.parts[0].right_class_attention()
        return metrics

    def _score(self, metrics: Mapping[str, float]) -> float:
        """The metric, or -inf if a guardrail metric is lower than that of the embeddings themselves."""
        if self.settings.keep == "last":
            return -math.inf
        loses = metrics[LOWEST_GAIN] < -MAX_LOSS
        return -math.inf if loses and self.progress.epoch else super()._score(metrics)

    def out_of_patience(self) -> bool:
        return self.settings.keep == "best" and super().out_of_patience()

    def _write_start(self) -> None:
        save_embeddings(self.run.embeddings, self.vectors, self.table, self.fingerprint)
        self.fitted_recipe.save(self.run.recipe)

    def _write_model(self, metrics: Mapping[str, float]) -> None:
        if self.settings.keep == "best":
            self.refiner.scale_updates(metrics[f"val {UPDATE_FACTOR}"])
            self._check_better()
        else:
            metrics = {f"val {name}": value for name, value in (self._evaluate() or {}).items()}
        save_centers(self.run.centers, self.loss, self.training.classes)
        self.refiner.model_fingerprint = self.fingerprint
        metrics = {**metrics, **self._unrefined_metrics()}
        self.refiner.save_pretrained(self.run.model, recipe=self.fitted_recipe.config, metrics=metrics)
        if self.validation is not None:
            self._log_metrics(metrics)
            whole = self.validation.parts[0]
            from vicinal.report.plots import depth_curve  # needs matplotlib

            depth_curve(self.refiner, whole.vectors.block(0, len(whole.vectors)), whole.table, self.run.depths)

    def _unrefined_metrics(self) -> dict[str, float]:
        if self.validation is None:
            return {}
        before = {name: self.validation.before.metrics[name] for name in self._reported_metrics()}
        for size, guardrail in self.guardrails.items():
            before |= {f"{size} per class: {name}": guardrail.before.metrics[name] for name in guardrail.metrics}
        return {f"val {name}, not refined": value for name, value in before.items()}

    def _log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Log the gains on the validation classes, and where attention goes."""
        assert self.validation is not None
        names = [*self._reported_metrics()]
        names += [f"{size} per class: {name}" for size, each in self.guardrails.items() for name in each.metrics]
        changes = [
            f"{name} {metrics[f'val {name}, not refined']:.2%} -> {metrics[f'val {name}']:.2%}" for name in names
        ]
        log(f"on {len(self.validation.parts[0].table.classes):,} unseen classes: {', '.join(changes)}")
        if f"val {ATTENTION}" not in metrics:
            return
        attention, uniform = (metrics[f"val {name}"] for name in (ATTENTION, UNIFORM))
        log(f"{attention:.1%} of the attention goes to neighbors of the same class, which are {uniform:.1%} of all")

    def _reported_metrics(self) -> list[str]:
        settings = self.settings
        return list(dict.fromkeys([settings.validation.metric, *settings.guardrail_metrics, *REPORTED_METRICS]))

    def _check_better(self) -> None:
        """Raise NotBetterError unless the refiner improves the validation metric significantly.

        The improvement is the mean over the validation classes; it must be at least twice its standard error.
        """
        assert self.validation is not None
        metric, before = self.settings.validation.metric, self.validation.before
        if self.progress.best_epoch == 0:
            names, sizes = self.settings.guardrail_metrics, ", ".join(map(str, self.guardrails))
            guarded = f" without a lower {' or '.join(names)}" if names else ""
            guarded += f" at all and {sizes} images per class" if sizes else ""
            raise NotBetterError(
                f"the refiner does not help on unseen classes: no epoch had a higher {metric} than the "
                f"{before.metrics[metric]:.2%} of the embeddings themselves{guarded}; no refiner was saved"
            )
        gain, error = self.validation.after().gain(before, metric)
        if gain < 2 * error:
            raise NotBetterError(
                f"the refiner does not help significantly on unseen classes: {metric} changes by "
                f"{100 * gain:.2f} +- {100 * error:.2f} points (mean of {len(self.validation.parts[0].table.classes)} "
                "classes); no refiner was saved"
            )
