"""The training loop: epochs of steps, watched on unseen classes, resumable at any moment.

A step is a pure function of the state before it and of the recipe: the samples of a step, their augmentation and the
dropout are seeded by the step's number. So a checkpoint needs no generator states, and a run that was killed and
resumed ends with the very weights of one that was not.
"""

from __future__ import annotations

import itertools
import math
import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from lightning.fabric.wrappers import _FabricOptimizer
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_

from vicinal import distributed
from vicinal.console import log, progress_bar
from vicinal.errors import InterruptedRunError, NonFiniteLossError
from vicinal.report.plots import learning_curves
from vicinal.seeds import mixed_seed
from vicinal.training.checkpoint import load_checkpoint, require_keys, save_checkpoint
from vicinal.training.interrupt import StopRequest
from vicinal.training.logs import RunLog, read_log
from vicinal.training.loop_settings import LoopSettings
from vicinal.training.run import RunFolder
from vicinal.training.setup import make_fabric, make_optimizer, make_precision
from vicinal.training.shards import keep_from_ddp, norm_of_all, own_state, whole_state

Batch = dict[str, Tensor]
Parts = dict[str, Tensor]

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
        best_epoch: epochs finished when it was reached.
        evaluations_since_best: evaluations since then.
    """

    step: int = 0
    epoch: int = 0
    steps_in_epoch: int = 0
    best: float = -math.inf
    best_epoch: int = 0
    evaluations_since_best: int = 0


class Loop(ABC):
    """Runs a recipe; what is trained, on what, and how it is judged is said by what is derived from it.

    Args:
        settings: those of the recipe that the loop needs.
        run: where everything is written; a checkpoint there is continued from.
        some_unused: whether some parameters get no gradient at times, which several processes have to be told of.
    """

    verb: str  # of the command, for messages

    def __init__(self, settings: LoopSettings, run: RunFolder, some_unused: bool = False) -> None:
        self.loop_settings = settings
        self.run = run
        self.progress = Progress()
        self.latest_loss = math.nan
        self.skipped_steps = 0
        self.precision = make_precision(settings)
        self.fabric = make_fabric(settings, self.precision, some_unused)
        self.fabric.launch()

    def _wrap(self, system: nn.Module, groups: dict[str, list[nn.Parameter]]) -> None:
        """Take what learns, with its parameters by part, and make its optimiser."""
        settings = self.loop_settings
        keep_from_ddp(system, settings.precision)
        self.groups = groups
        self.system = self.fabric.setup_module(system)
        optimizer = self.fabric.setup_optimizers(make_optimizer(settings.optimizer, groups))
        self.optimizer = cast(_FabricOptimizer, optimizer)  # given one, it returns one

    # What is trained --------------------------------------------------------------------------------------------

    @abstractmethod
    def _write_start(self) -> None:
        """Write what a run folder begins with; the recipe last, for a folder with one is a run."""

    @abstractmethod
    def _plan(self) -> list[list[int]]:
        """The rows of every batch of this epoch."""

    @abstractmethod
    def _load_batches(self, plan: list[list[int]], done: int) -> Iterator[Batch]:
        """The batches of a plan but for the first that are done, each with its `labels` and `rows`."""

    @abstractmethod
    def _parts(self, batch: Batch) -> Parts:
        """The loss of a batch, by parts that add up to it."""

    @abstractmethod
    def _evaluate(self) -> dict[str, float] | None:
        """The metrics on the validation split; None where there is none. Only the first process is asked."""

    @abstractmethod
    def _write_model(self, metrics: Mapping[str, float]) -> None:
        """Write the finished model; every process is asked."""

    @abstractmethod
    def _name(self, row: int) -> str:
        """What a row of the training split is called in messages."""

    def _score(self, metrics: Mapping[str, float]) -> float:
        """What decides which weights are best."""
        return metrics[self.loop_settings.validation.metric]

    def _begin(self) -> None:  # noqa: B027 - for who needs it
        """Told when a run starts anew."""

    def _prepare_epoch(self) -> None:
        """Told at the beginning of every epoch."""
        self.system.train()

    def _end_epoch(self) -> None:  # noqa: B027 - for who needs it
        """Told at the end of every epoch."""

    def _more_values(self) -> dict[str, float]:
        """For the log, beside loss, learning rates and the like; every process is asked."""
        return {}

    def _more_state(self) -> dict[str, Any]:
        """For the checkpoint, beside weights, optimiser and progress; every process is asked."""
        return {}

    def _load_more_state(self, state: dict[str, Any]) -> None:  # noqa: B027 - for who needs it
        """Take over what :meth:`_more_state` gave."""

    # The loop ---------------------------------------------------------------------------------------------------

    def fit(self) -> None:
        """Train to the end, from the last checkpoint if there is one."""
        self.start()
        with self.watching():
            if self.progress.step == 0:
                self.validate()
            while self.progress.epoch < self.loop_settings.epochs and not self.out_of_patience():
                self.train_epoch()
                self.finish_epoch()
        self.finish()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While training: Ctrl-C is a request, and a line shows progress and time left."""
        with StopRequest() as self.stop, progress_bar() as self.bar:
            self.task = self.bar.add_task("training", total=self.loop_settings.epochs, note="")
            yield

    def train_epoch(self) -> None:
        """The steps of an epoch, or those that are left of it."""
        self._prepare_epoch()
        self._restart_clock()
        plan = self._plan()
        steps = math.ceil(len(plan) / self.loop_settings.accumulate)
        for batches in self._batches(plan):
            last = self.progress.steps_in_epoch + 1 == steps
            self.train_step(batches, epoch=self.progress.epoch + self.progress.steps_in_epoch / steps, last=last)
            self._show(steps)
            self._save_if_time()
            self._stop_if_asked()

    def train_step(self, batches: Sequence[Batch], epoch: float, last: bool = False) -> None:
        """One step of the optimiser, on the mean gradient of the batches; the last of an epoch is always logged."""
        torch.manual_seed(mixed_seed(self.loop_settings.seed, self.progress.step, distributed.rank()))
        self._set_learning_rates(epoch)
        parts = [self._backward(batch, share=1 / len(batches), last=batch is batches[-1]) for batch in batches]
        norm = self._clip(parts, batches)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.progress.step += 1
        self.progress.steps_in_epoch += 1
        self.samples_since_log += sum(len(batch["labels"]) for batch in batches) * distributed.world_size()
        if last or self.progress.step % self.loop_settings.log_every == 0:
            self._log_step(epoch, parts, norm)

    def finish_epoch(self) -> None:
        """Validate when it is time, and write the checkpoint."""
        self.progress.epoch += 1
        self.progress.steps_in_epoch = 0
        last = self.progress.epoch == self.loop_settings.epochs
        if last or self.progress.epoch % self.loop_settings.validation.every == 0:
            self.validate()
        log(self._summary())
        self._end_epoch()
        self.save()

    def validate(self) -> None:
        """Evaluate on the validation split, if there is one, and keep the weights if they are the best so far."""
        metrics = self._evaluate() if self.fabric.is_global_zero else None
        # Processes that judge for themselves could disagree by a rounding error, and one would stop before the others.
        metrics = distributed.from_first(metrics)
        if metrics is None:
            return
        if self.fabric.is_global_zero:
            self.log.metrics(self.progress.step, self.progress.epoch, metrics)
        self.progress.evaluations_since_best += 1
        score = self._score(metrics)
        if score > self.progress.best:
            self.progress.best, self.progress.evaluations_since_best = score, 0
            self.progress.best_epoch = self.progress.epoch
            self._write(
                self.run.best, {"system": self.system.state_dict(), "metrics": metrics, "epoch": self.progress.epoch}
            )

    def out_of_patience(self) -> bool:
        """Whether the validation score has not improved for as many evaluations as the recipe allows."""
        patience = self.loop_settings.validation.patience
        return patience is not None and self.progress.evaluations_since_best >= patience

    # Inside a step ----------------------------------------------------------------------------------------------

    def _batches(self, plan: list[list[int]]) -> Iterator[list[Batch]]:
        """The batches of each step that is left of this epoch; the step moves them to the device, part by part."""
        accumulate = self.loop_settings.accumulate
        batches = self._load_batches(plan, self.progress.steps_in_epoch * accumulate)
        while group := list(itertools.islice(batches, accumulate)):
            yield group

    def _backward(self, batch: Batch, share: float, last: bool) -> Parts:
        """Add the gradient of a batch, times its share; returns the loss's parts."""
        with self.fabric.no_backward_sync(self.system, enabled=not last):
            parts = self._parts(batch)
            loss = torch.stack(list(parts.values())).sum()
            self.latest_loss = loss.item()
            if distributed.agree(not math.isfinite(self.latest_loss)):
                raise NonFiniteLossError(self._describe("loss", parts, [batch]))
            self.fabric.backward(loss * share)
        return {name: value.detach() for name, value in parts.items()}

    def _clip(self, parts: Sequence[Parts], batches: Sequence[Batch]) -> float:
        """Limit the gradient's norm if the recipe says so; returns the norm before."""
        settings = self.loop_settings
        norm = self.fabric.clip_gradients(self.system, self.optimizer, max_norm=math.inf, error_if_nonfinite=False)
        assert norm is not None
        norm = norm_of_all(norm, self.system)
        if settings.clip is not None:
            clip_grads_with_norm_(self.system.parameters(), settings.clip, norm)
        # Loss scaling meets infinite gradients now and then, skips those steps by itself and lowers its scale.
        self.skipped_steps = 0 if math.isfinite(norm.item()) else self.skipped_steps + 1
        if self.skipped_steps > (MOST_SKIPPED_STEPS if settings.precision == "16-mixed" else 0):
            raise NonFiniteLossError(self._describe("gradient", parts[-1], batches))
        return norm.item()

    def _set_learning_rates(self, epoch: float) -> None:
        settings = self.loop_settings.optimizer
        rate = settings.lr * self.loop_settings.schedule.factor(epoch, self.loop_settings.epochs)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * getattr(settings.factors, group["name"])

    def _describe(self, what: str, parts: Parts, batches: Sequence[Batch]) -> str:
        values = ", ".join(f"{name} = {value.item():g}" for name, value in parts.items())
        names = [self._name(row) for batch in batches for row in batch["rows"].tolist()]
        return f"step {self.progress.step + 1}: the {what} is not finite ({values}); its images: {', '.join(names)}"

    # Around the steps -------------------------------------------------------------------------------------------

    def _log_step(self, epoch: float, parts: Sequence[Parts], norm: float) -> None:
        names = parts[0]
        means = {name: distributed.mean(torch.stack([p[name] for p in parts]).mean()).item() for name in names}
        rates = {f"lr {group['name']}": group["lr"] for group in self.optimizer.param_groups}
        speed = {"gradient norm": norm, "images/s": self.samples_since_log / (time.monotonic() - self.speed_since)}
        more = self._more_values()
        self._restart_clock()
        if self.fabric.is_global_zero:
            values = {"loss": sum(means.values()), **means, **more, **rates, **speed}
            self.log.step(self.progress.step, epoch, values)

    def _restart_clock(self) -> None:
        self.samples_since_log, self.speed_since = 0, time.monotonic()

    def _show(self, steps: int) -> None:
        epoch = self.progress.epoch + self.progress.steps_in_epoch / steps
        self.bar.update(self.task, completed=epoch, note=self._summary())

    def _summary(self) -> str:
        settings = self.loop_settings
        best = f", best {settings.validation.metric} {self.progress.best:.4f}" if self.progress.best > 0 else ""
        return f"epoch {self.progress.epoch}/{settings.epochs}, loss {self.latest_loss:.4f}{best}"

    def _stop_if_asked(self) -> None:
        if distributed.agree(self.stop.asked):
            self.save()
            raise InterruptedRunError(
                f"stopped after step {self.progress.step} and saved; go on with: "
                f"vicinal {self.verb} --out {shlex.quote(str(self.run.path))} --resume"
            )

    def _save_if_time(self) -> None:
        if time.monotonic() - self.saved_at > 60 * self.loop_settings.checkpoint_minutes:
            self.save()

    # State ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Make the run folder, or read where the run in it stands."""
        if self.fabric.is_global_zero and not self.run.recipe.exists():
            self._write_start()
        distributed.barrier()
        if self.run.last.exists():
            self._load(load_checkpoint(self.run.last))
        else:
            self._begin()
        if self.fabric.is_global_zero:
            self.log = RunLog(self.run, self.progress.step, self.progress.epoch)
        self.saved_at = time.monotonic()

    def save(self) -> None:
        """Write the checkpoint that resuming starts from."""
        state = {
            "system": self.system.state_dict(),
            "optimizer": whole_state(self.optimizer.state_dict(), self.optimizer.optimizer, self.system),
            "precision": self.precision.state_dict(),
            "progress": asdict(self.progress),
            **self._more_state(),
        }
        self._write(self.run.last, state)
        self.saved_at = time.monotonic()

    def _write(self, path: Path, state: dict[str, Any]) -> None:
        if self.fabric.is_global_zero:
            save_checkpoint(path, state)

    def _load(self, state: dict[str, Any]) -> None:
        require_keys(self.run.last, state, "system", "optimizer", "precision", "progress", *self._more_state())
        self.system.load_state_dict(state["system"])
        self.optimizer.load_state_dict(own_state(state["optimizer"], self.optimizer.optimizer, self.system))
        self.precision.load_state_dict(state["precision"])
        self.progress = Progress(**state["progress"])
        self._load_more_state(state)
        log(f"continuing {self.run.path} at step {self.progress.step}")

    def finish(self) -> None:
        """Write the model, with the best weights if there was a validation, else with the last, and the curves."""
        distributed.barrier()  # the best weights are written by the first process and read by all
        metrics: dict[str, float] = {}
        if self.progress.best > -math.inf:
            best = load_checkpoint(self.run.best)
            self.system.load_state_dict(best["system"])
            metrics = {f"val {name}": value for name, value in best["metrics"].items()}
        try:
            self._write_model(metrics)
        finally:  # curves are there to see why, too, where no model is worth writing
            if self.fabric.is_global_zero:
                self.log.close()
                learning_curves(read_log(self.run.log), read_log(self.run.metrics), self.run.curves)
