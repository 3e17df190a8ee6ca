"""The training loop: epochs of steps, watched on unseen classes, resumable at any moment.

A step is a pure function of the state before it and of the recipe: the images of a step, their augmentation and the
dropout are seeded by the step's number. So a checkpoint needs no generator states, and a run that was killed and
resumed ends with the very weights of one that was not.
"""

from __future__ import annotations

import itertools
import math
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from lightning.fabric.wrappers import _FabricOptimizer
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_
from torch.utils.data import DataLoader

from vicinal import distributed
from vicinal.console import log, progress_bar
from vicinal.data import ImageDataset, Table, TrainBatches
from vicinal.errors import InterruptedRunError, NonFiniteLossError
from vicinal.evaluation import evaluate
from vicinal.models import Embedder
from vicinal.report.plots import learning_curves
from vicinal.seeds import mixed_seed
from vicinal.training.checkpoint import load_checkpoint, require_keys, save_checkpoint
from vicinal.training.class_centers import save_centers, start_from_means, start_from_run
from vicinal.training.filter_report import FilterReport, known_wrong
from vicinal.training.interrupt import StopRequest, ignore_interrupts
from vicinal.training.logs import RunLog, read_log
from vicinal.training.recipe import Recipe
from vicinal.training.run import RunFolder
from vicinal.training.setup import (
    loading_processes,
    make_fabric,
    make_optimizer,
    make_precision,
    make_sampler,
    make_system,
)
from vicinal.training.shards import keep_from_ddp, norm_of_all, own_state, whole_state

Batch = dict[str, Tensor]

# Each skipped step halves the scale of the loss: after so many in a row it is not the scale that is wrong.
MOST_SKIPPED_STEPS = 50


@dataclass
class Progress:
    """Where a run stands.

    Attributes:
        step: steps of the optimiser taken.
        epoch: epochs finished.
        steps_in_epoch: steps taken in the epoch that is under way.
        best: best validation score; -inf before the first.
        evaluations_since_best: evaluations since then.
    """

    step: int = 0
    epoch: int = 0
    steps_in_epoch: int = 0
    best: float = -math.inf
    evaluations_since_best: int = 0


class Trainer:
    """Runs a recipe on a table.

    Args:
        recipe: all settings.
        table: images, labels and splits.
        run: where everything is written; a checkpoint there is continued from.
    """

    def __init__(self, recipe: Recipe, table: Table, run: RunFolder) -> None:
        self.recipe = recipe
        self.settings = recipe.settings
        self.run = run
        self.table = table
        self.progress = Progress()
        self.latest_loss = math.nan
        self.skipped_steps = 0
        self.precision = make_precision(self.settings)
        self.fabric = make_fabric(self.settings, self.precision)
        self.fabric.launch()
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
        self.bare, self.groups = system, system.parameter_groups()
        self.embedder, self.loss = system.embedder, system.loss
        keep_from_ddp(system, self.settings.precision)
        self.system = self.fabric.setup_module(system)
        optimizer = self.fabric.setup_optimizers(make_optimizer(self.settings.optimizer, self.groups))
        self.optimizer = cast(_FabricOptimizer, optimizer)  # given one, it returns one

    # The loop ---------------------------------------------------------------------------------------------------

    def fit(self) -> None:
        """Train to the end, from the last checkpoint if there is one."""
        self.start()
        with self.watching():
            if self.progress.step == 0:
                self.validate()
            while self.progress.epoch < self.settings.epochs and not self.out_of_patience():
                self.train_epoch()
                self.finish_epoch()
        self.finish()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While training: Ctrl-C is a request, and a line shows progress and time left."""
        with StopRequest() as self.stop, progress_bar() as self.bar:
            self.task = self.bar.add_task("training", total=self.settings.epochs, note="")
            yield

    def train_epoch(self) -> None:
        """The steps of an epoch, or those that are left of it."""
        self._prepare_modules()
        self._restart_clock()
        plan = self._plan()
        steps = math.ceil(len(plan) / self.settings.accumulate)
        for batches in self._batches(plan):
            last = self.progress.steps_in_epoch + 1 == steps
            self.train_step(batches, epoch=self.progress.epoch + self.progress.steps_in_epoch / steps, last=last)
            self._show(steps)
            self._save_if_time()
            self._stop_if_asked()

    def train_step(self, batches: Sequence[Batch], epoch: float, last: bool = False) -> None:
        """One step of the optimiser, on the mean gradient of the batches; the last of an epoch is always logged."""
        torch.manual_seed(mixed_seed(self.settings.seed, self.progress.step, distributed.rank()))
        self._set_learning_rates(epoch)
        parts = [self._backward(batch, share=1 / len(batches), last=batch is batches[-1]) for batch in batches]
        norm = self._clip(parts, batches)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.progress.step += 1
        self.progress.steps_in_epoch += 1
        self.images_since_log += sum(len(batch["labels"]) for batch in batches) * distributed.world_size()
        if last or self.progress.step % self.settings.log_every == 0:
            self._log_step(epoch, parts, norm)

    def finish_epoch(self) -> None:
        """Validate when it is time, and write the checkpoint."""
        self.progress.epoch += 1
        self.progress.steps_in_epoch = 0
        last = self.progress.epoch == self.settings.epochs
        if last or self.progress.epoch % self.settings.validation.every == 0:
            self.validate()
        self.save()
        log(self._summary())
        if self.bare.kept is not None:
            log(str(self.filtering_of_epoch))
            self.filtering_of_epoch.reset()

    def validate(self) -> None:
        """Evaluate on the validation split, if there is one, and keep the weights if they are the best so far."""
        if self.val_images is None:
            return
        metrics: dict[str, float] = {}
        if self.fabric.is_global_zero:
            vectors = self._embed(self.val_images, self.embedder)
            metrics = evaluate(vectors, self.val_images.table).metrics
            self.log.metrics(self.progress.step, self.progress.epoch, metrics)
        # Processes that judge for themselves could disagree by a rounding error, and one would stop before the others.
        metrics = distributed.from_first(metrics)
        self.progress.evaluations_since_best += 1
        score = metrics[self.settings.validation.metric]
        if score > self.progress.best:
            self.progress.best, self.progress.evaluations_since_best = score, 0
            self._write(
                self.run.best, {"system": self.system.state_dict(), "metrics": metrics, "epoch": self.progress.epoch}
            )

    def _embed(self, images: ImageDataset, embedder: Embedder) -> npt.NDArray[np.float32]:
        return embedder.embed(images, batch=self.settings.micro_batch or self.settings.batch, progress=False)

    def out_of_patience(self) -> bool:
        """Whether the validation score has not improved for as many evaluations as the recipe allows."""
        patience = self.settings.validation.patience
        return patience is not None and self.progress.evaluations_since_best >= patience

    # Inside a step ----------------------------------------------------------------------------------------------

    def _backward(self, batch: Batch, share: float, last: bool) -> dict[str, Tensor]:
        """Add the gradient of a batch, times its share; returns the loss's parts."""
        with self.fabric.no_backward_sync(self.system, enabled=not last):
            parts: dict[str, Tensor] = self.system(batch["images"], batch["labels"])
            if self.bare.kept is not None:
                for report in (self.filtering, self.filtering_of_epoch):
                    report.add(self.bare.kept, batch["rows"])
            loss = torch.stack(list(parts.values())).sum()
            self.latest_loss = loss.item()
            if distributed.agree(not math.isfinite(self.latest_loss)):
                raise NonFiniteLossError(self._describe("loss", parts, [batch]))
            self.fabric.backward(loss * share)
        return {name: value.detach() for name, value in parts.items()}

    def _clip(self, parts: Sequence[dict[str, Tensor]], batches: Sequence[Batch]) -> float:
        """Limit the gradient's norm if the recipe says so; returns the norm before."""
        norm = self.fabric.clip_gradients(self.system, self.optimizer, max_norm=math.inf, error_if_nonfinite=False)
        assert norm is not None
        norm = norm_of_all(norm, self.system)
        if self.settings.clip is not None:
            clip_grads_with_norm_(self.system.parameters(), self.settings.clip, norm)
        # Loss scaling meets infinite gradients now and then, skips those steps by itself and lowers its scale.
        self.skipped_steps = 0 if math.isfinite(norm.item()) else self.skipped_steps + 1
        if self.skipped_steps > (MOST_SKIPPED_STEPS if self.settings.precision == "16-mixed" else 0):
            raise NonFiniteLossError(self._describe("gradient", parts[-1], batches))
        return norm.item()

    def _set_learning_rates(self, epoch: float) -> None:
        settings = self.settings.optimizer
        rate = settings.lr * self.settings.schedule.factor(epoch, self.settings.epochs)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * getattr(settings.factors, group["name"])

    def _describe(self, what: str, parts: dict[str, Tensor], batches: Sequence[Batch]) -> str:
        values = ", ".join(f"{name} = {value.item():g}" for name, value in parts.items())
        paths = [self.images.table.paths[row] for batch in batches for row in batch["rows"].tolist()]
        return f"step {self.progress.step + 1}: the {what} is not finite ({values}); its images: {', '.join(paths)}"

    # Around the steps -------------------------------------------------------------------------------------------

    def _prepare_modules(self) -> None:
        frozen = self.progress.epoch < self.settings.freeze_backbone_epochs
        for parameter in self.groups["backbone"]:
            parameter.requires_grad_(not frozen)
        self.system.train()
        if frozen:
            for embedder in self.bare.embedders:
                embedder.backbone.eval()
        self.bare.start_epoch(self.progress.epoch)

    def _plan(self) -> list[list[int]]:
        """The rows of every batch of this epoch."""
        self.sampler.set_epoch(self.progress.epoch)
        return list(self.sampler)

    def _batches(self, plan: list[list[int]]) -> Iterator[list[Batch]]:
        """The batches of each step that is left of this epoch; the step moves them to the device, part by part."""
        seed = (self.settings.seed, self.progress.epoch, distributed.rank())
        done = self.progress.steps_in_epoch * self.settings.accumulate
        loader = DataLoader(
            TrainBatches(self.images, plan, seed),
            batch_size=None,
            sampler=range(done, len(plan)),
            num_workers=loading_processes(self.settings.data),
            worker_init_fn=ignore_interrupts,
            pin_memory=self.fabric.device.type == "cuda",
        )
        batches = iter(loader)
        while group := list(itertools.islice(batches, self.settings.accumulate)):
            yield group

    def _log_step(self, epoch: float, parts: Sequence[dict[str, Tensor]], norm: float) -> None:
        names = parts[0]
        means = {name: distributed.mean(torch.stack([p[name] for p in parts]).mean()).item() for name in names}
        rates = {f"lr {group['name']}": group["lr"] for group in self.optimizer.param_groups}
        left_out = self.filtering.values() if self.bare.kept is not None else {}
        speed = {"gradient norm": norm, "images/s": self.images_since_log / (time.monotonic() - self.speed_since)}
        self._restart_clock()
        if self.fabric.is_global_zero:
            values = {"loss": sum(means.values()), **means, **left_out, **rates, **speed}
            self.log.step(self.progress.step, epoch, values)

    def _restart_clock(self) -> None:
        self.images_since_log, self.speed_since = 0, time.monotonic()
        self.filtering.reset()

    def _show(self, steps: int) -> None:
        epoch = self.progress.epoch + self.progress.steps_in_epoch / steps
        self.bar.update(self.task, completed=epoch, note=self._summary())

    def _summary(self) -> str:
        best = f", best {self.settings.validation.metric} {self.progress.best:.4f}" if self.progress.best > 0 else ""
        return f"epoch {self.progress.epoch}/{self.settings.epochs}, loss {self.latest_loss:.4f}{best}"

    def _stop_if_asked(self) -> None:
        if distributed.agree(self.stop.asked):
            self.save()
            raise InterruptedRunError(
                f"stopped after step {self.progress.step} and saved; go on with: "
                f"vicinal train --out {shlex.quote(str(self.run.path))} --resume"
            )

    def _save_if_time(self) -> None:
        if time.monotonic() - self.saved_at > 60 * self.settings.checkpoint_minutes:
            self.save()

    # State ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Make the run folder, or read where the run in it stands."""
        if self.fabric.is_global_zero and not self.run.recipe.exists():
            self.table.save(self.run.table)
            self.recipe.save(self.run.recipe)  # last: a folder with a recipe is a run that can be resumed
        distributed.barrier()
        if self.run.last.exists():
            self._load(load_checkpoint(self.run.last))
        else:
            self._start_centers()
        if self.fabric.is_global_zero:
            self.log = RunLog(self.run, self.progress.step, self.progress.epoch)
        self.saved_at = time.monotonic()

    def _start_centers(self) -> None:
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

    def save(self) -> None:
        """Write the checkpoint that resuming starts from."""
        state = {
            "system": self.system.state_dict(),
            "optimizer": whole_state(self.optimizer.state_dict(), self.optimizer.optimizer, self.system),
            "precision": self.precision.state_dict(),
            "progress": asdict(self.progress),
            "filtering": distributed.total(self.filtering_of_epoch.counts),
        }
        self._write(self.run.last, state)
        self.saved_at = time.monotonic()

    def _write(self, path: Path, state: dict[str, Any]) -> None:
        if self.fabric.is_global_zero:
            save_checkpoint(path, state)

    def _load(self, state: dict[str, Any]) -> None:
        require_keys(self.run.last, state, "system", "optimizer", "precision", "progress", "filtering")
        self.system.load_state_dict(state["system"])
        self.optimizer.load_state_dict(own_state(state["optimizer"], self.optimizer.optimizer, self.system))
        self.precision.load_state_dict(state["precision"])
        self.progress = Progress(**state["progress"])
        self.filtering_of_epoch.counts = state["filtering"] / distributed.world_size()
        log(f"continuing {self.run.path} at step {self.progress.step}")

    def finish(self) -> None:
        """Write the model, with the best weights if there was a validation, else with the last."""
        distributed.barrier()  # the best weights are written by the first process and read by all
        metrics: dict[str, float] = {}
        if self.val_images is not None:
            best = load_checkpoint(self.run.best)
            self.system.load_state_dict(best["system"])
            metrics = {f"val {name}": value for name, value in best["metrics"].items()}
        save_centers(self.run.centers, self.loss, self.images.table.classes)
        if self.fabric.is_global_zero:
            self.embedder.save_pretrained(self.run.model, recipe=self.recipe.config, metrics=metrics)
            self.log.close()
            learning_curves(read_log(self.run.log), read_log(self.run.metrics), self.run.curves)
