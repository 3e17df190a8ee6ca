"""Training an embedder: images in, a model folder out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader

from vicinal import distributed
from vicinal.console import log
from vicinal.data import ImageDataset, Table, TrainBatches
from vicinal.evaluation import evaluate
from vicinal.models import Embedder
from vicinal.training.class_centers import save_centers, start_from_means, start_from_run
from vicinal.training.filter_report import FilterReport, known_wrong
from vicinal.training.interrupt import ignore_interrupts
from vicinal.training.loop import Batch, Loop, Parts
from vicinal.training.recipe import Recipe
from vicinal.training.run import RunFolder
from vicinal.training.setup import loading_processes, make_sampler, make_system


class Trainer(Loop):
    """Runs a recipe on a table.

    Args:
        recipe: all settings.
        table: images, labels and splits.
        run: where everything is written; a checkpoint there is continued from.
    """

    verb = "train"

    def __init__(self, recipe: Recipe, table: Table, run: RunFolder) -> None:
        self.recipe = recipe
        self.settings = recipe.settings
        self.table = table
        super().__init__(recipe.settings, run, some_unused=self.settings.freeze_backbone_epochs > 0)
        training = self.table.subset("train")
        self._build(training)  # first, for it finds mistakes in no time and reading images takes some
        self.images = self._dataset("train")
        if self.images.table.classes != training.classes:  # of a class no image could be read
            self._build(self.images.table)
        self.val_images = self._dataset("val") if "val" in table.splits else None
        # Of what a filter does, since the last line of the log and since the epoch began.
        wrong = known_wrong(self.images.table)
        self.filtering, self.filtering_of_epoch = FilterReport(wrong), FilterReport(wrong)
        self._restart_clock()
        self.sampler = make_sampler(self.settings, self.images.table)

    def _dataset(self, split: str) -> ImageDataset:
        data = self.settings.data
        return ImageDataset(self.table.subset(split), self.settings.transform, cache=data.cache, on_error=data.on_error)

    def _build(self, training: Table) -> None:
        """Everything that learns, for the classes of the training images."""
        system = make_system(self.recipe, len(training.classes), len(training), fresh=not self.run.last.exists())
        self.bare, self.embedder, self.loss = system, system.embedder, system.loss
        self._wrap(system, system.parameter_groups())

    # The steps --------------------------------------------------------------------------------------------------

    def _plan(self) -> list[list[int]]:
        self.sampler.set_epoch(self.progress.epoch)
        return list(self.sampler)

    def _load_batches(self, plan: list[list[int]], done: int) -> Iterator[Batch]:
        seed = (self.settings.seed, self.progress.epoch, distributed.rank())
        loader = DataLoader(
            TrainBatches(self.images, plan, seed),
            batch_size=None,
            sampler=range(done, len(plan)),
            num_workers=loading_processes(self.settings.data),
            worker_init_fn=ignore_interrupts,
            pin_memory=self.fabric.device.type == "cuda",
        )
        return iter(loader)

    def _parts(self, batch: Batch) -> Parts:
        parts: Parts = self.system(batch["images"], batch["labels"])
        if self.bare.kept is not None:
            for report in (self.filtering, self.filtering_of_epoch):
                report.add(self.bare.kept, batch["rows"])
        return parts

    def _name(self, row: int) -> str:
        return str(self.images.table.paths[row])

    # Around the steps -------------------------------------------------------------------------------------------

    def _prepare_epoch(self) -> None:
        frozen = self.progress.epoch < self.settings.freeze_backbone_epochs
        for parameter in self.groups["backbone"]:
            parameter.requires_grad_(not frozen)
        self.system.train()
        if frozen:
            for embedder in self.bare.embedders:
                embedder.backbone.eval()
        self.bare.start_epoch(self.progress.epoch)

    def _end_epoch(self) -> None:
        if self.bare.kept is not None:
            log(str(self.filtering_of_epoch))
            self.filtering_of_epoch.reset()

    def _evaluate(self) -> dict[str, float] | None:
        if self.val_images is None:
            return None
        return evaluate(self._embed(self.val_images, self.embedder), self.val_images.table).metrics

    def _embed(self, images: ImageDataset, embedder: Embedder) -> npt.NDArray[np.float32]:
        return embedder.embed(images, batch=self.settings.micro_batch or self.settings.batch, progress=False)

    def _more_values(self) -> dict[str, float]:
        return self.filtering.values() if self.bare.kept is not None else {}

    def _restart_clock(self) -> None:
        super()._restart_clock()
        self.filtering.reset()

    # State ------------------------------------------------------------------------------------------------------

    def _write_start(self) -> None:
        self.table.save(self.run.table)
        self.recipe.save(self.run.recipe)

    def _begin(self) -> None:
        """Put class centers where the recipe wants them to start; they are random already."""
        start, training = self.settings.centers, self.images.table
        for embedder, loss in zip(self.bare.embedders, self.bare.losses(), strict=True):
            if start == "class_means":
                vectors = self._embed(self.images, embedder) if self.fabric.is_global_zero else None
                vectors = distributed.from_first(vectors)
                assert vectors is not None
                torch.manual_seed(self.settings.seed)  # several centers a class part at random, alike everywhere
                start_from_means(loss, vectors, training.labels)
            elif start != "random":
                start_from_run(loss, start, training.classes)

    def _more_state(self) -> dict[str, Any]:
        return {"filtering": distributed.total(self.filtering_of_epoch.counts)}

    def _load_more_state(self, state: dict[str, Any]) -> None:
        self.filtering_of_epoch.counts = state["filtering"] / distributed.world_size()

    def _write_model(self, metrics: Mapping[str, float]) -> None:
        save_centers(self.run.centers, self.loss, self.images.table.classes)
        if self.fabric.is_global_zero:
            self.embedder.save_pretrained(self.run.model, recipe=self.recipe.config, metrics=metrics)
