"""The training loop: epochs of steps with validation, which can be stopped and resumed after any step.

A step is a pure function of the state before it and of the recipe: the order of the samples, their augmentation and
dropout are seeded by the number of the step. A checkpoint therefore needs no states of random generators, and a run
that was killed and resumed ends with exactly the same weights as one that was not.
"""

from __future__ import annotations

import itertools
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from vicinal.training.checkpoint import load_checkpoint, save_checkpoint
from vicinal.training.engine import Engine, WeightAverage
from vicinal.training.processes import StopRequest, killing_children
from vicinal.training.progress import Progress, ProgressDisplay, RunLog, Throughput
from vicinal.training.recipes.base_settings import BaseSettings
from vicinal.training.step_message import FiniteCheck, StepMessage
from vicinal.utils import distributed
from vicinal.utils.console import log
from vicinal.utils.errors import InterruptedRunError, prefixed_errors
from vicinal.utils.run_folder import RunFolder, TrainingCost, read_log
from vicinal.utils.seeds import derive_seed

Batch = dict[str, Tensor]
LossTerms = dict[str, Tensor]


class BaseTrainer(ABC):
    """The training loop; subclasses define the module, its batches and its evaluation.

    Args:
        settings: the settings that all recipes share.
        run: the run's folder; training resumes from a checkpoint in it.
        find_unused_parameters: whether some parameters get no gradient in some steps.
    """

    verb: str  # of the command, for messages

    def __init__(self, settings: BaseSettings, run: RunFolder, find_unused_parameters: bool = False) -> None:
        self.settings, self.length = settings, settings.length
        self.run = run
        self.progress = Progress()
        self.latest_loss = math.nan
        self.finite = FiniteCheck(settings.precision == "16-mixed", self._sample_name)
        self.throughput = Throughput()
        self.stop = StopRequest()
        self.engine = Engine(settings, find_unused_parameters)
        self._start_clock()

    @property
    def module(self) -> nn.Module:
        """The module that is trained, wrapped for precision and processes."""
        return self.engine.module

    # What a subclass defines ----------------------------------------------------------------------------------------

    @abstractmethod
    def _write_start(self) -> None:
        """Write the first files of the run folder; the recipe last, because a folder with a recipe is a run."""

    @abstractmethod
    def _plan(self) -> list[list[int]]:
        """The rows of every batch of this epoch."""

    @abstractmethod
    def _load_batches(self, plan: list[list[int]], start: int) -> Generator[Batch, None, None]:
        """The batches of a plan from number `start` on, each with its `labels` and `rows`."""

    @abstractmethod
    def _loss_terms(self, batch: Batch) -> LossTerms:
        """The terms of a batch's loss, by name; their sum is the loss."""

    @abstractmethod
    def _evaluate(self) -> dict[str, float] | None:
        """The metrics on the validation split, or None without such a split; every process calls this."""

    @abstractmethod
    def _write_model(self, metrics: Mapping[str, float]) -> None:
        """Write the finished model; every process calls this."""

    @abstractmethod
    def _sample_name(self, row: int) -> str:
        """The name of a row of the training split in messages."""

    def _evaluate_training(self) -> dict[str, float]:
        """The metrics on training images, for the log; every process calls this."""
        return {}

    def _score(self, metrics: Mapping[str, float]) -> float:
        """The score that decides which weights are best."""
        return metrics[self.settings.validation.metric]

    def _on_start(self) -> None:  # noqa: B027 - optional
        """Called at the start of a new run."""

    def _on_epoch_start(self) -> None:
        self.module.train()

    def _on_epoch_end(self) -> None:  # noqa: B027 - optional
        """Called at the end of every epoch."""

    def _num_trained(self) -> int:
        """The number of parameters of the model that are trained, without those of the loss."""
        groups = self.engine.optimizer.param_groups
        return sum(each.numel() for group in groups if group["name"] != "loss" for each in group["params"])

    @property
    def _memory_format(self) -> str | None:
        """The order in memory in which the model computes, for the record of the run; None: not applicable."""
        return None

    def _extra_log_values(self) -> dict[str, float]:
        """Values for the log beside the loss, the learning rates and the like; every process calls this."""
        return {}

    def _extra_state(self) -> dict[str, Any]:
        """State for the checkpoint beside the engine's and the progress; every process calls this."""
        return {}

    def _load_extra_state(self, state: dict[str, Any]) -> None:  # noqa: B027 - optional
        """Restore the state of :meth:`_extra_state`."""

    # The loop -------------------------------------------------------------------------------------------------------

    def fit(self) -> None:
        """Train to the end, from the last checkpoint if there is one."""
        self.start()
        with killing_children(), self.watching():
            if self.progress.step == 0:
                self.validate_start()
            while not self.length.is_reached(self.progress) and not self.out_of_patience():
                self.train_epoch()
                self.finish_epoch()
        self._log_end()
        self.finish()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Treat Ctrl-C as a request to stop after the step, and show progress and the remaining time."""
        with StopRequest() as self.stop, self.display.bar():
            yield

    def train_epoch(self) -> None:
        """Take the remaining steps of an epoch; fewer if the run ends within the epoch."""
        self._on_epoch_start()
        self.throughput.restart()
        plan, per_step = self._plan(), self.settings.accumulate_grad_batches
        steps = math.ceil(len(plan) / per_step)
        steps_to_take = self.length.steps_of_epoch(self.progress, steps)
        num_steps = self.length.num_steps(self.progress, steps)
        self.display.start(self.progress, num_steps)
        with closing(self._batches_of_steps(plan[: steps_to_take * per_step])) as batches_of_steps:
            for batches in batches_of_steps:
                epoch = self.progress.epoch + self.progress.steps_in_epoch / steps
                last = self.progress.steps_in_epoch + 1 == steps_to_take
                self.train_step(batches, epoch=epoch, num_steps=num_steps, last=last)
                self.display.step(self.progress, self.latest_loss, num_steps)
                if self.message.is_saving:
                    self.save()
                self._stop_if_requested()

    def train_step(self, batches: Sequence[Batch], epoch: float, num_steps: int, last: bool = False) -> None:
        """Take one optimizer step with the mean gradient of the batches; the last step of an epoch is always logged."""
        torch.manual_seed(derive_seed(self.settings.seed, self.progress.step, distributed.rank()))
        self.engine.set_learning_rates(epoch, self.progress.step, num_steps)
        is_logged = last or (self.progress.step + 1) % self.settings.log_every == 0
        with distributed.equal_lengths():  # the sampler gives all processes equally many images
            terms = [self._backward(batch, 1 / len(batches), last=batch is batches[-1]) for batch in batches]
        norm = self.engine.unscale_gradients()
        self.message = self._exchange(terms, is_logged)
        self.finite.check_loss(self.progress.step + 1, self.message.is_finite, terms, batches)
        grad_norm = self.engine.clip_gradients(norm, self.message.shard_squares)
        self.finite.check_gradient(self.progress.step + 1, grad_norm, terms[-1], batches)
        self.engine.step()
        self.progress.count_step()
        self.average.update(self.progress.step)
        self.throughput.add(sum(len(batch["labels"]) for batch in batches) * distributed.world_size())
        if is_logged:
            self._log_step(epoch, self.message.terms, grad_norm)

    def finish_epoch(self) -> None:
        """Validate if it is time, and write the checkpoint."""
        self.progress.count_epoch()
        last = self.length.is_reached(self.progress)
        if last or self.progress.epoch % self.settings.validation.every == 0:
            self.validate()
        self.display.epoch(self.progress)
        self._on_epoch_end()
        self.save()

    def validate(self) -> None:
        """Evaluate on the validation split, if there is one, and save the weights if they are the best so far."""
        with self.average.in_module():
            self._validate()

    def _validate(self) -> None:
        distributed.broadcast_tensors([*self.engine.bare_module.buffers()])  # such as those of batch normalization
        metrics = self._evaluate()
        values = {**(metrics or {}), **self._evaluate_training()}
        if self.is_main_process and values:
            self.log.metrics(self.progress.step, self.progress.epoch, values)
        # If each process evaluated for itself, a rounding error could make one of them stop before the others.
        metrics = distributed.broadcast_object(metrics)
        if metrics is None:
            return
        if self.progress.count_evaluation(self._score(metrics)):
            state = {"module": self.engine.module_state(), "metrics": metrics, "epoch": self.progress.epoch}
            if self.is_main_process:
                save_checkpoint(self.run.best, state)

    def validate_start(self) -> None:
        """Evaluate before the first step."""
        self.validate()

    def out_of_patience(self) -> bool:
        """Whether the last `validation.patience` evaluations brought no new best score."""
        patience = self.settings.validation.patience
        return patience is not None and self.progress.evaluations_since_best >= patience

    def _log_end(self) -> None:
        if self.out_of_patience() and not self.length.is_reached(self.progress):
            validation = self.settings.validation
            best = f"no {validation.metric} better than that of epoch {self.progress.best_epoch}"
            log(f"stopped early: {best} within validation.patience = {validation.patience} evaluations")

    # Inside a step --------------------------------------------------------------------------------------------------

    def _batches_of_steps(self, plan: list[list[int]]) -> Generator[list[Batch], None, None]:
        """The batches of each remaining step of this epoch, not yet on the device."""
        per_step = self.settings.accumulate_grad_batches
        with closing(self._load_batches(plan, self.progress.steps_in_epoch * per_step)) as batches:
            while step := list(itertools.islice(batches, per_step)):
                yield step

    def _backward(self, batch: Batch, scale: float, last: bool) -> LossTerms:
        """Add the gradient of a batch's loss times `scale`, and return the terms of the loss."""
        with self.engine.no_sync(enabled=not last):
            terms = self._loss_terms(batch)
            loss = torch.stack(list(terms.values())).sum()
            self.engine.backward(loss * scale)
        return {name: value.detach() for name, value in terms.items()}

    def _exchange(self, terms: Sequence[LossTerms], is_logged: bool) -> StepMessage:
        """Exchange the state of this step with the other processes, and add its loss to the sum of the epoch."""
        is_late = time.monotonic() - self.saved_at > 60 * self.settings.checkpoint_minutes
        message = StepMessage.exchange(
            terms,
            with_terms=is_logged,
            is_stopping=self.stop.requested,
            is_saving=is_late and self.is_main_process,  # the clocks of other processes differ
            shard_squares=self.engine.shard_squares(),
        )
        self.latest_loss = message.loss
        self.progress.loss_sum += message.loss
        return message

    # Around the steps -----------------------------------------------------------------------------------------------

    def _log_step(self, epoch: float, means: Mapping[str, float], grad_norm: float) -> None:
        rates = {f"lr {name}": lr for name, lr in self.engine.learning_rates.items()}
        speed = {"gradient norm": grad_norm, "images/s": self.throughput.per_second()}
        extra = self._extra_log_values()
        self._restart_counts()
        if self.is_main_process:
            values = {"loss": sum(means.values()), **means, **extra, **rates, **speed}
            self.log.step(self.progress.step, epoch, values)

    def _restart_counts(self) -> None:
        """Called when the values of one line of the log are complete."""
        self.throughput.restart()

    def _stop_if_requested(self) -> None:
        # A single process sends no message, so it also stops if the request came after the message of its step.
        if self.message.is_stopping or (distributed.world_size() == 1 and self.stop.requested):
            self.save()
            distributed.barrier()  # an error of one process ends all others, even one that is still writing
            raise InterruptedRunError(
                f"stopped after step {self.progress.step} and saved the state; {self.resume_hint}"
            )

    @property
    def resume_hint(self) -> str:
        """The command that resumes the run, for messages."""
        return f"resume with: {self.run.resume_command(self.verb)}"

    # Start, checkpoints, end ----------------------------------------------------------------------------------------

    @property
    def is_main_process(self) -> bool:
        """Whether this process writes the files."""
        return self.engine.fabric.is_global_zero

    def start(self) -> None:
        """Write the first files of a new run, or load the last checkpoint of the run in the folder."""
        if self.is_main_process and not self.run.recipe.exists():
            self._write_start()
        if self.run.last.exists():
            self._load()
        else:
            self._on_start()
            self.average = self._new_average()
        if self.is_main_process:
            self.log = RunLog(self.run, self.progress.step, self.progress.epoch)
        self.display = ProgressDisplay(self.length, self.settings.validation.metric, self.progress)
        self.saved_at = time.monotonic()

    def _start_clock(self) -> None:
        self.counted_until = time.monotonic()

    def _count_seconds(self) -> None:
        self.progress.seconds += time.monotonic() - self.counted_until
        self._start_clock()

    def save(self) -> None:
        """Write the checkpoint from which a run resumes."""
        self._count_seconds()
        with self.average.in_module():
            average = self.average.select(self.engine.module_state())
        progress = asdict(self.progress)
        state = {**self.engine.state_dict(), "average": average, "progress": progress, **self._extra_state()}
        if self.is_main_process:
            save_checkpoint(self.run.last, state)
        self.saved_at = time.monotonic()

    def _load(self) -> None:
        keys = ("module", "frozen", "optimizer", "precision", "average", "progress", *self._extra_state())
        state = load_checkpoint(self.run.last, *keys)
        self._load_weights(state)
        self.progress = Progress(**state["progress"])
        self._load_extra_state(state)
        log(f"resuming {self.run.path} at step {self.progress.step}")

    def _load_weights(self, state: dict[str, Any]) -> None:
        with prefixed_errors(self.run.last):
            self.engine.load_state_dict(state)
        self.average = self._new_average()
        with self.average.in_module():
            self.engine.load_module_state({**state["module"], **state["average"]})

    def _new_average(self) -> WeightAverage:
        return WeightAverage(self.engine.bare_module, self.engine.trained, self.settings.ema_decay)

    def finish(self) -> None:
        """Write the learning curves and the model, with the best weights if there was a validation, else the last."""
        distributed.barrier()  # the best weights are written by the first process and read by all
        metrics: dict[str, float] = {}
        if self.progress.best > -math.inf:
            best = load_checkpoint(self.run.best, "module", "metrics")
            self.engine.load_module_state(best["module"])
            metrics = {f"val {name}": value for name, value in best["metrics"].items()}
        else:
            self.average.swap()
        try:
            self._write_model(metrics)
            self._count_seconds()
            if self.is_main_process:
                cost = TrainingCost(self.progress.seconds, self._num_trained(), self._memory_format)
                cost.save(self.run.training)
        finally:  # the curves also show why no model was worth writing
            if self.is_main_process:
                self._write_curves()

    def _write_curves(self) -> None:
        from vicinal.report.plots import learning_curves  # needs matplotlib

        self.log.close()
        kept = self.progress.best_epoch if self.progress.best > -math.inf else None
        learning_curves(read_log(self.run.log), read_log(self.run.metrics), self.run.curves, kept)
