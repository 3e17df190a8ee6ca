"""Training of a context refiner, from embeddings to a model folder (Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vicinal.data import Table, save_embeddings
from vicinal.evaluation import Evaluation, evaluate
from vicinal.losses import Loss
from vicinal.models import ContextRefiner
from vicinal.retrieval import Refinement
from vicinal.retrieval.query_gallery import QueryGallery
from vicinal.retrieval.scores import UnitVectors
from vicinal.similarity.pair_source import PairSource
from vicinal.training.base_trainer import BaseTrainer, Batch, LossTerms
from vicinal.training.class_centers import create_centers, save_centers
from vicinal.training.refiner_recipe import RefinerRecipe
from vicinal.training.refiner_settings import RefinerSettings
from vicinal.training.training_data import create_flat_sampler
from vicinal.utils.arrays import Doubles, Floats, Integers
from vicinal.utils.console import log
from vicinal.utils.errors import NotBetterError
from vicinal.utils.run_folder import RunFolder
from vicinal.utils.seeds import derive_seed

REPORTED_METRICS = ("recall@1", "mAP@R")  # beside the metric of the validation


class RefinerModule(nn.Module):
    """Refiner and loss as one module, so that precision wraps both.

    Args:
        refiner: the model.
        loss: the loss, with or without parameters.
    """

    def __init__(self, refiner: ContextRefiner, loss: Loss) -> None:
        super().__init__()
        self.refiner, self.loss = refiner, loss

    def forward(self, embeddings: Tensor, context: Tensor, mask: Tensor, labels: Tensor) -> LossTerms:
        """The terms of the loss of the refined embeddings."""
        return self.loss.parts(PairSource.from_distributed_batch(self.refiner(embeddings, context, mask=mask), labels))


class RefinerTrainer(BaseTrainer):
    """Trains a context refiner by a recipe on embeddings.

    The context of a sample of the training split is its nearest neighbors in the training split; that of a sample of
    the validation split, which has other classes, its nearest neighbors in the validation split.

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
        self,
        recipe: RefinerRecipe,
        vectors: Floats,
        table: Table,
        fingerprint: str | None,
        run: RunFolder,
    ) -> None:
        self.recipe = recipe
        self.vectors, self.table, self.fingerprint = vectors, table, fingerprint
        super().__init__(recipe.settings, run)
        self.training, self.validation = (table.subset(split) for split in ("train", "val"))
        rows = {split: np.flatnonzero(table.frame["split"] == split) for split in ("train", "val")}
        self.rows = rows["train"]
        device = self.engine.fabric.device
        unit, self.val_vectors = (UnitVectors(vectors, "embedding", rows[s], device) for s in rows)
        self.embeddings = unit.block(0, len(unit))
        self.labels = torch.from_numpy(self.training.labels).to(device)
        self._create_module()
        self.neighbors = torch.from_numpy(self._neighbors(unit)).to(device)
        self.val_neighbors = self._neighbors(self.val_vectors)
        self.unrefined = self._evaluate_vectors(self.val_vectors.block(0, len(self.val_vectors)))
        self.sampler = create_flat_sampler(self.settings, self.training)
        self.fitted_recipe = recipe.fitted(self.training)

    def _create_module(self) -> None:
        """Create refiner, loss and optimizer."""
        torch.manual_seed(self.settings.seed)
        self.refiner, self.loss = self.recipe.create_refiner(self.vectors.shape[1]), self.recipe.create_loss()
        create_centers(self.loss, len(self.training.classes), self.refiner.dim)
        groups = {"refiner": list(self.refiner.parameters()), "loss": list(self.loss.parameters())}
        groups = {name: parameters for name, parameters in groups.items() if parameters}
        self.engine.setup(RefinerModule(self.refiner, self.loss), groups)

    def _neighbors(self, unit: UnitVectors) -> Integers:
        """The context of each sample of a split, rows [n, k]; the sample itself for a refiner without neighbors."""
        itself = np.arange(len(unit))
        if self.refiner.context == "self":
            return itself[:, None]
        return Refinement(self.refiner).find_context(QueryGallery(unit, unit, itself))

    # The steps ------------------------------------------------------------------------------------------------------

    def _plan(self) -> list[list[int]]:
        self.sampler.set_epoch(self.progress.epoch)
        return list(self.sampler)

    def _load_batches(self, plan: list[list[int]], start: int) -> Generator[Batch, None, None]:
        for number in range(start, len(plan)):
            rows = torch.tensor(plan[number], device=self.embeddings.device)
            neighbors = self.neighbors[rows]
            # The augmentation is a function of the seed, the epoch and the number of the batch.
            generator = torch.Generator().manual_seed(derive_seed(self.settings.seed, self.progress.epoch, number))
            yield {
                "rows": rows,
                "labels": self.labels[rows],
                "embeddings": self._with_noise(self.embeddings[rows], generator),
                "context": self._with_noise(self.embeddings[neighbors], generator),
                "mask": self._mask(neighbors, generator),
            }

    def _with_noise(self, vectors: Tensor, generator: torch.Generator) -> Tensor:
        """Unit vectors with Gaussian noise, normalized again."""
        norm = self.settings.augmentation.noise
        if norm == 0:
            return vectors
        noise = torch.randn(vectors.shape, generator=generator).to(vectors)
        return F.normalize(vectors + norm / math.sqrt(self.refiner.dim) * noise, dim=-1)

    def _mask(self, neighbors: Tensor, generator: torch.Generator) -> Tensor:
        """The neighbors that a batch shows, bool [n, k]."""
        settings, (n, k) = self.settings.augmentation, neighbors.shape
        if self.refiner.context == "self":
            return torch.ones_like(neighbors, dtype=torch.bool)
        mask = torch.rand(n, k, generator=generator) >= settings.neighbor_dropout
        if settings.random_num_neighbors and k:
            mask &= torch.arange(k) < torch.randint(1, k + 1, (1,), generator=generator)
        return mask.to(neighbors.device)

    def _loss_terms(self, batch: Batch) -> LossTerms:
        terms: LossTerms = self.module(batch["embeddings"], batch["context"], batch["mask"], batch["labels"])
        return terms

    def _sample_name(self, row: int) -> str:
        if self.training.has("path"):
            return str(self.training.paths[row])
        return f"row {self.rows[row]} of {self.run.embeddings.name}"

    # Around the steps -----------------------------------------------------------------------------------------------

    def _evaluate(self) -> dict[str, float]:
        return self._evaluation().metrics

    def _evaluation(self) -> Evaluation:
        refined = Refinement(self.refiner).refine_vectors(self.val_vectors, self.val_vectors, self.val_neighbors)
        return self._evaluate_vectors(torch.from_numpy(refined).to(self.engine.fabric.device))

    def _evaluate_vectors(self, vectors: Tensor) -> Evaluation:
        metrics = [self.settings.validation.metric, *self.settings.guardrail_metrics]
        return evaluate(vectors, self.validation, metrics=metrics)

    def _score(self, metrics: Mapping[str, float]) -> float:
        """The metric, or -inf if a guardrail metric is lower than that of the embeddings themselves."""
        lower = any(metrics[name] < self.unrefined.metrics[name] for name in self.settings.guardrail_metrics)
        return -math.inf if lower and self.progress.epoch else super()._score(metrics)

    def _write_start(self) -> None:
        save_embeddings(self.run.embeddings, self.vectors, self.table, self.fingerprint)
        self.fitted_recipe.save(self.run.recipe)

    def _write_model(self, metrics: Mapping[str, float]) -> None:
        from vicinal.report.refiner_depths import depth_curve  # needs matplotlib

        before, names = self.unrefined.metrics, self._reported_metrics()
        self._check_better()
        changes = [f"{name} {before[name]:.2%} -> {metrics[f'val {name}']:.2%}" for name in names]
        log(f"on {len(self.validation.classes):,} classes not trained on: {', '.join(changes)}")
        save_centers(self.run.centers, self.loss, self.training.classes)
        self.refiner.model_fingerprint = self.fingerprint
        unrefined = {f"val {name}, not refined": before[name] for name in names}
        self.refiner.save_pretrained(self.run.model, recipe=self.fitted_recipe.config, metrics={**metrics, **unrefined})
        depth_curve(self.refiner, self.val_vectors.block(0, len(self.val_vectors)), self.validation, self.run.depths)

    def _reported_metrics(self) -> list[str]:
        settings = self.settings
        return list(dict.fromkeys([settings.validation.metric, *settings.guardrail_metrics, *REPORTED_METRICS]))

    def _check_better(self) -> None:
        """Raise NotBetterError unless the refiner improves the validation metric significantly.

        The improvement is the mean over the validation classes; it must be at least twice its standard error.
        """
        metric = self.settings.validation.metric
        if self.progress.best_epoch == 0:
            guardrails = "".join(
                f" without a lower {name}" for name in self.settings.guardrail_metrics if name != metric
            )
            raise NotBetterError(
                f"the refiner does not help on classes not trained on: no epoch had a higher {metric} than the "
                f"{self.unrefined.metrics[metric]:.2%} of the embeddings themselves{guardrails}; no refiner was saved"
            )
        after, before = (each.per_query[metric] for each in (self._evaluation(), self.unrefined))
        gain, error = _mean_of_classes(after - before, self.validation.labels)
        if gain < 2 * error:
            raise NotBetterError(
                f"the refiner does not help significantly on classes not trained on: {metric} changes by "
                f"{100 * gain:.2f} +- {100 * error:.2f} points (mean of {len(self.validation.classes)} "
                "classes); no refiner was saved"
            )


def _mean_of_classes(values: Doubles, labels: Integers) -> tuple[float, float]:
    """The mean over classes of the mean of values [n] without NaN, and its standard error."""
    means = pd.Series(values).groupby(labels).mean().dropna().to_numpy()
    return float(means.mean()), float(means.std(ddof=1) / math.sqrt(len(means))) if len(means) > 1 else math.inf
