"""Training a context refiner: finished embeddings and their neighbours in, a model folder out (Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vicinal.console import log
from vicinal.data import Table, save_embeddings
from vicinal.errors import NotBetterError
from vicinal.evaluation import Evaluation, evaluate
from vicinal.losses import Loss
from vicinal.models import ContextRefiner
from vicinal.report.refiner_depths import depth_curve
from vicinal.retrieval import Refinement
from vicinal.retrieval.scores import UnitVectors
from vicinal.retrieval.sides import Sides
from vicinal.seeds import mixed_seed
from vicinal.similarity import Source
from vicinal.training.class_centers import create_centers, save_centers
from vicinal.training.loop import Batch, Loop, Parts
from vicinal.training.refiner_recipe import RefinerRecipe
from vicinal.training.run import RunFolder
from vicinal.training.setup import flat_sampler

SHOWN = ("recall@1", "mAP@R")  # in messages, beside the metric that decides


class RefinerSystem(nn.Module):
    """Refiner and loss as one module, so that precision wraps both.

    Args:
        refiner: the model.
        loss: the loss, with or without parameters.
    """

    def __init__(self, refiner: ContextRefiner, loss: Loss) -> None:
        super().__init__()
        self.refiner, self.loss = refiner, loss

    def forward(self, embeddings: Tensor, context: Tensor, present: Tensor, labels: Tensor) -> Parts:
        """The loss's parts of the refined embeddings."""
        return self.loss.parts_of(Source.over_processes(self.refiner(embeddings, context, present=present), labels))


class RefinerTrainer(Loop):
    """Runs a refiner's recipe on embeddings.

    The context of a training sample is its nearest neighbours in the training split; on the validation split, whose
    classes are others, those in that split.

    Args:
        recipe: all settings.
        vectors: float32 [n, dim].
        table: n rows, with labels and the splits train and val.
        fingerprint: of the model that made the vectors, if it is known.
        run: where everything is written; a checkpoint there is continued from.
    """

    verb = "refine"

    def __init__(
        self,
        recipe: RefinerRecipe,
        vectors: npt.NDArray[np.float32],
        table: Table,
        fingerprint: str | None,
        run: RunFolder,
    ) -> None:
        self.recipe, self.settings = recipe, recipe.settings
        self.vectors, self.table, self.fingerprint = vectors, table, fingerprint
        super().__init__(recipe.settings, run)
        self.training, self.validation = (table.subset(split) for split in ("train", "val"))
        rows = {split: np.flatnonzero(table.frame["split"] == split) for split in ("train", "val")}
        self.rows = rows["train"]
        unit, self.val_vectors = (UnitVectors(vectors, "embedding", rows[s], self.fabric.device) for s in rows)
        self.embeddings = unit.block(0, len(unit))
        self.labels = torch.from_numpy(self.training.labels).to(self.fabric.device)
        self._build()
        self.neighbors = torch.from_numpy(self._neighbors(unit)).to(self.fabric.device)
        self.val_neighbors = self._neighbors(self.val_vectors)
        self.unrefined = evaluate(self.val_vectors.block(0, len(self.val_vectors)), self.validation)
        self.sampler = flat_sampler(self.settings, self.training)

    def _build(self) -> None:
        """Everything that learns."""
        torch.manual_seed(self.settings.seed)
        self.refiner, self.loss = self.recipe.refiner(self.vectors.shape[1]), self.recipe.loss()
        create_centers(self.loss, len(self.training.classes), self.refiner.dim)
        groups = {"refiner": list(self.refiner.parameters()), "loss": list(self.loss.parameters())}
        self._wrap(RefinerSystem(self.refiner, self.loss), {name: group for name, group in groups.items() if group})

    def _neighbors(self, unit: UnitVectors) -> npt.NDArray[np.int64]:
        """The context of each sample of a split, rows [n, k]; itself for a refiner that looks at nothing else."""
        itself = np.arange(len(unit))
        if self.refiner.context == "itself":
            return itself[:, None]
        return Refinement(self.refiner).neighbors_of_queries(Sides(unit, unit, itself))

    # The steps --------------------------------------------------------------------------------------------------

    def _plan(self) -> list[list[int]]:
        self.sampler.set_epoch(self.progress.epoch)
        return list(self.sampler)

    def _load_batches(self, plan: list[list[int]], done: int) -> Iterator[Batch]:
        for number in range(done, len(plan)):
            rows = torch.tensor(plan[number], device=self.embeddings.device)
            neighbors = self.neighbors[rows]
            # What is random is a function of seed, epoch and the batch's number.
            generator = torch.Generator().manual_seed(mixed_seed(self.settings.seed, self.progress.epoch, number))
            yield {
                "rows": rows,
                "labels": self.labels[rows],
                "embeddings": self._noisy(self.embeddings[rows], generator),
                "context": self._noisy(self.embeddings[neighbors], generator),
                "present": self._present(neighbors, generator),
            }

    def _noisy(self, vectors: Tensor, generator: torch.Generator) -> Tensor:
        """With random vectors of about the wanted length added, of length 1 again."""
        if not self.settings.noise:
            return vectors
        added = torch.randn(vectors.shape, generator=generator).to(vectors)
        return F.normalize(vectors + self.settings.noise / math.sqrt(self.refiner.dim) * added, dim=-1)

    def _present(self, neighbors: Tensor, generator: torch.Generator) -> Tensor:
        """Which neighbours a batch shows, bool [n, k]."""
        settings, (n, k) = self.settings.neighborhood, neighbors.shape
        if self.refiner.context == "itself":
            return torch.ones_like(neighbors, dtype=torch.bool)
        present = torch.rand(n, k, generator=generator) >= settings.dropout
        if settings.random_size and k:
            present &= torch.arange(k) < torch.randint(1, k + 1, (1,), generator=generator)
        return present.to(neighbors.device)

    def _parts(self, batch: Batch) -> Parts:
        parts: Parts = self.system(batch["embeddings"], batch["context"], batch["present"], batch["labels"])
        return parts

    def _name(self, row: int) -> str:
        if self.training.has("path"):
            return str(self.training.paths[row])
        return f"row {self.rows[row]} of {self.run.embeddings.name}"

    # Around the steps -------------------------------------------------------------------------------------------

    def _evaluate(self) -> dict[str, float]:
        return self._evaluation().metrics

    def _evaluation(self) -> Evaluation:
        refined = Refinement(self.refiner).refined(self.val_vectors, self.val_vectors, self.val_neighbors)
        return evaluate(torch.from_numpy(refined).to(self.fabric.device), self.validation)

    def _score(self, metrics: Mapping[str, float]) -> float:
        """Nothing, where a metric is lower than that of the embeddings as they come that must not be."""
        below = any(metrics[name] < self.unrefined.metrics[name] for name in self.settings.never_below)
        return -math.inf if below and self.progress.epoch else super()._score(metrics)

    def _write_start(self) -> None:
        save_embeddings(self.run.embeddings, self.vectors, self.table, self.fingerprint)
        self.recipe.save(self.run.recipe)

    def _write_model(self, metrics: Mapping[str, float]) -> None:
        before = self.unrefined.metrics
        self._check_better()
        changes = [f"{name} {before[name]:.2%} -> {metrics[f'val {name}']:.2%}" for name in self._shown()]
        log(f"on {len(self.validation.classes):,} classes not trained on: {', '.join(changes)}")
        save_centers(self.run.centers, self.loss, self.training.classes)
        self.refiner.model_fingerprint = self.fingerprint
        unrefined = {f"val {name}, not refined": before[name] for name in self._shown()}
        self.refiner.save_pretrained(self.run.model, recipe=self.recipe.config, metrics={**metrics, **unrefined})
        depth_curve(self.refiner, self.val_vectors.block(0, len(self.val_vectors)), self.validation, self.run.depths)

    def _shown(self) -> list[str]:
        return list(dict.fromkeys([self.settings.validation.metric, *self.settings.never_below, *SHOWN]))

    def _check_better(self) -> None:
        """Refuse a refiner that is not better than none, on the mean of the validation classes and beyond chance.

        Raises:
            NotBetterError: it is not.
        """
        metric = self.settings.validation.metric
        if self.progress.best_epoch == 0:
            kept = "".join(f" without a lower {name}" for name in self.settings.never_below if name != metric)
            raise NotBetterError(
                f"refining does not help on classes not trained on: no epoch had a higher {metric} than the "
                f"{self.unrefined.metrics[metric]:.2%} of the embeddings as they come{kept}; no refiner was written"
            )
        after, before = (each.per_query[metric] for each in (self._evaluation(), self.unrefined))
        gain, error = _mean_of_classes(after - before, self.validation.labels)
        if gain < 2 * error:
            raise NotBetterError(
                f"refining does not help on classes not trained on, beyond chance: {metric} changes by "
                f"{100 * gain:.2f} +- {100 * error:.2f} points (mean of {len(self.validation.classes)} "
                "classes); no refiner was written"
            )


def _mean_of_classes(values: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> tuple[float, float]:
    """The mean of the classes' means of values [n], NaN for those that do not count, and its standard error."""
    means = pd.Series(values).groupby(labels).mean().dropna().to_numpy()
    return float(means.mean()), float(means.std(ddof=1) / math.sqrt(len(means))) if len(means) > 1 else math.inf
