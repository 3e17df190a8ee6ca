"""The engine of a training run: module, optimizer, precision and processes behind `backward` and `step`."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision, Precision
from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.utilities.exceptions import MisconfigurationException
from lightning_fabric.wrappers import _FabricOptimizer
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import get_total_norm

from vicinal.training import strategy
from vicinal.training.recipes.base_settings import BaseSettings, OptimizerSettings
from vicinal.utils import distributed
from vicinal.utils.console import log
from vicinal.utils.errors import InputError
from vicinal.utils.launch import Launch

WARMUP = 10  # steps; without them a run of a few thousand would be evaluated with nearly its initial weights


class Engine:
    """Joins the processes of a run, wraps its module and optimizer for them, and takes the optimizer's steps.

    After :meth:`setup`, `bare_module` is the trained module, and `module` the same one wrapped for precision and
    processes. `trained` lists the names of the optimizer's parameters; `frozen` has the other parameters by name, which
    checkpoints do not hold.
    """

    def __init__(self, settings: BaseSettings, find_unused_parameters: bool = False) -> None:
        self.settings, self.launch = settings, settings.launch
        self.precision = create_precision(settings)
        self.fabric = create_fabric(settings, self.precision, find_unused_parameters)
        join_processes(self.fabric)
        if distributed.world_size() > 1:
            log(f"training with {distributed.world_size()} processes")

    def setup(
        self,
        module: nn.Module,
        parameter_groups: Mapping[str, list[nn.Parameter]],
        lr_factors: Mapping[nn.Parameter, float] | None = None,
    ) -> dict[str, list[nn.Parameter]]:
        """Wrap the module, and create the optimizer of its parameter groups.

        `lr_factors` of single parameters are multiplied by the factor of their group. Returns the groups, with sharded
        parameters in place of the original ones.
        """
        names = {parameter: name for name, parameter in module.named_parameters()}
        named_groups = {group: [names[each] for each in parameters] for group, parameters in parameter_groups.items()}
        factors = {names[each]: factor for each, factor in (lr_factors or {}).items()}
        self._frozen_digest: str | None = None
        self.bare_module = module
        strategy.exclude_from_ddp(module, self.settings.precision)
        self.module = self.fabric.setup_module(module)
        own = dict(module.named_parameters())
        groups = {group: [own[name] for name in names] for group, names in named_groups.items()}
        trained = {name for names in named_groups.values() for name in names}
        self.trained = [name for name in own if name in trained]
        self.frozen = {name: each for name, each in own.items() if name not in trained}
        lr_factors = {own[name]: factor for name, factor in factors.items()}
        optimizer = create_optimizer(self.settings.optimizer, groups, lr_factors)
        self.optimizer = cast(_FabricOptimizer, self.fabric.setup_optimizers(optimizer))  # one in, one out
        return groups

    def no_sync(self, enabled: bool) -> AbstractContextManager[None]:
        """In this context, forward and backward passes accumulate gradients without an exchange between processes."""
        # Sharded gradients are accumulated in shards: whole gradients would need the memory of the whole model.
        return self.fabric.no_backward_sync(self.module, enabled=enabled and not self.settings.shards_weights)

    def backward(self, loss: Tensor) -> None:
        self.fabric.backward(loss)

    def unscale_gradients(self) -> Tensor:
        """Undo loss scaling, and return the norm of the gradient, with this process's shards, []."""
        self.precision.unscale_gradients(self.optimizer.optimizer)
        if self.settings.shards_weights:
            shards = {*strategy.sharded_centers(self.bare_module)}
            strategy.average_gradients(each for each in self.bare_module.parameters() if each not in shards)
        return get_total_norm(self._gradients())

    def _gradients(self) -> list[Tensor]:
        return [strategy.own_part(each.grad) for each in self.module.parameters() if each.grad is not None]

    def shard_squares(self) -> Tensor | None:
        """The squares that :meth:`clip_gradients` needs of all processes; None if nothing is sharded."""
        return strategy.shard_squares(self.module)

    def clip_gradients(self, norm: Tensor, total_squares: float | None = None) -> float:
        """Clip the elements and then the norm of the gradient, as the settings say; return the norm before clipping.

        `norm` is the result of :meth:`unscale_gradients`, `total_squares` the sum over processes of
        :meth:`shard_squares`.
        """
        max_value, max_norm = self.settings.max_grad_value, self.settings.max_grad_norm
        norm = clipped = strategy.global_grad_norm(norm, self.module, total_squares)
        gradients = self._gradients()
        if max_value is not None:
            torch._foreach_clamp_min_(gradients, -max_value)
            torch._foreach_clamp_max_(gradients, max_value)
        if max_value is not None and max_norm is not None:
            clipped = strategy.global_grad_norm(get_total_norm(gradients), self.module)
        if max_norm is not None:
            torch._foreach_mul_(gradients, (max_norm / (clipped + 1e-6)).clamp_max(1.0))
        return norm.item()

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def set_learning_rates(self, epoch: float, step: int, num_steps: int) -> None:
        """Set learning rates, and momentum if it changes, for a step; arguments as for :meth:`Schedule.factor`."""
        settings = self.settings
        lr = settings.optimizer.lr * settings.schedule.factor(epoch, step, num_steps)
        momentum = settings.schedule.momentum(step, num_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * settings.optimizer.lr_factor(group["name"]) * group.get("lr_factor", 1.0)
            if momentum is not None:
                group.update({"betas": (momentum, group["betas"][1])} if "betas" in group else {"momentum": momentum})

    @property
    def learning_rates(self) -> dict[str, float]:
        """The learning rate of each parameter group; the highest one of several groups with the same name."""
        return {group["name"]: group["lr"] for group in self.optimizer.param_groups}

    def state_dict(self) -> dict[str, Any]:
        """The state of module, optimizer and precision, gathered on rank 0; every process must call this."""
        optimizer = strategy.gather_optimizer_state(
            self.optimizer.state_dict(), self.optimizer.optimizer, self.bare_module
        )
        return {
            "module": self.module_state(),
            "frozen": self.frozen_digest(),
            "optimizer": optimizer,
            "precision": self.precision.state_dict(),
        }

    def module_state(self) -> dict[str, Tensor]:
        """The state of the module without the parameters that are not trained; every process must call this."""
        state = {name: value for name, value in self.bare_module.state_dict().items() if name not in self.frozen}
        return cast(dict[str, Tensor], strategy.gathered(state))

    def load_module_state(self, state: Mapping[str, Tensor]) -> None:
        own = dict(self.bare_module.named_parameters())
        parts = {name: strategy.part_like(own[name], value) if name in own else value for name, value in state.items()}
        self.bare_module.load_state_dict({**self.frozen, **parts})

    def frozen_digest(self) -> str:
        """A hash of the frozen parameters, so that a resumed run begins with the same; every process must call this."""
        if self._frozen_digest is None:
            digest = hashlib.sha256()
            for name, parameter in self.frozen.items():
                digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
                values = strategy.whole(parameter.detach()).cpu().contiguous()
                digest.update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
            self._frozen_digest = digest.hexdigest()
        return self._frozen_digest

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of :meth:`state_dict`, if the frozen parameters are those of the run that wrote it."""
        if state["frozen"] != self.frozen_digest():
            raise InputError(
                "the frozen weights differ from those at the start of the run, and its checkpoint does not hold them: "
                "the pretrained weights, or the version of torch or timm, have changed"
            )
        self.load_module_state(state["module"])
        optimizer_state = strategy.shard_optimizer_state(state["optimizer"], self.optimizer.optimizer, self.bare_module)
        self.optimizer.load_state_dict(optimizer_state)
        self.precision.load_state_dict(state["precision"])


def create_precision(settings: BaseSettings) -> Precision:
    """The numerical precision of the network; float16 scales the loss so that small gradients do not underflow.

    Fabric itself would train in bfloat16 where float16 is asked for on a CPU.
    """
    if settings.precision == "auto" or settings.precision == "32":  # a recipe knows what auto stands for
        return Precision()
    gpu = settings.accelerator == "gpu" or (settings.accelerator == "auto" and torch.cuda.is_available())
    device = "cuda" if gpu else "cpu"
    scaler = torch.amp.GradScaler(device) if settings.precision == "16-mixed" else None
    return MixedPrecision(settings.precision, device, scaler)


def create_fabric(settings: BaseSettings, precision: Precision, find_unused_parameters: bool = False) -> Fabric:
    """Create Fabric for the devices and processes of the settings; raise InputError if Fabric cannot be created."""
    launch = settings.launch
    devices, num_nodes = launch.processes_per_node, launch.num_nodes
    if launch.launcher is None and settings.num_processes > 1:
        raise InputError(
            f"devices = {settings.num_processes}: only vicinal train starts these processes; start your own program by "
            f"torchrun --nproc_per_node {settings.num_processes}"
        )
    try:
        return Fabric(
            accelerator=settings.accelerator,
            devices=devices,
            num_nodes=num_nodes,
            strategy=strategy.create_strategy(devices * num_nodes, settings.shards_weights, find_unused_parameters),
            plugins=[precision, cluster_environment(launch)],
        )
    except (RuntimeError, ValueError, MisconfigurationException) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"accelerator = {settings.accelerator}, devices = {devices}: {reason}") from None


def join_processes(fabric: Fabric) -> None:
    """Join the processes that torchrun or SLURM has started, without Lightning's messages about it."""
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        fabric.launch()
    finally:
        logging.disable(before)


def cluster_environment(launch: Launch) -> ClusterEnvironment:
    if launch.launcher == "torchrun":
        return TorchElasticEnvironment()
    if launch.launcher == "SLURM":
        os.environ.setdefault("SLURM_NTASKS_PER_NODE", str(launch.processes_per_node))  # `srun -n 8` sets none
        return SLURMEnvironment(auto_requeue=False)
    return LightningEnvironment()


def create_optimizer(
    settings: OptimizerSettings,
    parameter_groups: Mapping[str, list[nn.Parameter]],
    lr_factors: Mapping[nn.Parameter, float],
) -> torch.optim.Optimizer:
    """The optimizer of the parameter groups, given by name; the trainer sets the learning rates.

    A group whose parameters have different learning-rate factors becomes several groups of the same name.
    """
    decay = settings.weight_decay
    loss_decay = decay if settings.loss_weight_decay is None else settings.loss_weight_decay
    decays = {"loss": loss_decay, "pooling": 0.0}  # decay of GeM's exponent does not regularize
    groups = [
        {"params": same, "name": name, "weight_decay": decays.get(name, decay), "lr_factor": factor}
        for name, parameters in parameter_groups.items()
        for factor, same in _by_factor(parameters, lr_factors)
    ]
    fused = settings.fused or None  # None leaves the choice to torch
    if settings.name == "sgd":
        nesterov = settings.momentum > 0  # torch has no Nesterov momentum of 0
        return torch.optim.SGD(
            groups, settings.lr, settings.momentum, weight_decay=decay, nesterov=nesterov, fused=fused
        )
    kind = torch.optim.Adam if settings.name == "adam" else torch.optim.AdamW
    return kind(groups, settings.lr, settings.betas, settings.eps, weight_decay=decay, fused=fused)


def _by_factor(
    parameters: list[nn.Parameter], lr_factors: Mapping[nn.Parameter, float]
) -> list[tuple[float, list[nn.Parameter]]]:
    """The parameters by their factor of the learning rate, the lowest first."""
    groups: dict[float, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(lr_factors.get(parameter, 1.0), []).append(parameter)
    return sorted(groups.items(), key=lambda group: group[0])


class WeightAverage:
    """An exponential moving average of parameters, and of the statistics of batch normalization.

    After step t = 1, 2, ..., ``average = d * average + (1 - d) * weights`` with ``d = min(decay, (1 + t) / (10 + t))``,
    from the initial weights on. Without a decay nothing is averaged.

    Reference: Polyak and Juditsky, SIAM J. Control Optim. 1992; the decay of the first steps is that of TensorFlow's
    `ExponentialMovingAverage`.
    """

    def __init__(self, module: nn.Module, names: Iterable[str], decay: float | None) -> None:
        self.decay = decay
        self.tensors = _averaged_tensors(module, names) if decay is not None else {}
        self.averages = [tensor.clone() for tensor in self._parts()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights after a step, counted from 1, to the average."""
        if self.decay is not None:
            decay = min(self.decay, (1 + step) / (WARMUP + step))
            torch._foreach_lerp_(self.averages, self._parts(), 1 - decay)

    @contextmanager
    def in_module(self) -> Iterator[None]:
        """In this context the average replaces the weights; weights loaded within it become the new average."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    @torch.no_grad()
    def swap(self) -> None:
        for tensor, average in zip(self._parts(), self.averages, strict=True):
            value = tensor.clone()
            tensor.copy_(average)
            average.copy_(value)

    def _parts(self) -> list[Tensor]:
        """The parts of the averaged tensors that this process holds."""
        return [strategy.own_part(tensor.detach()) for tensor in self.tensors.values()]

    def select(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A copy of the part of a module's state that is averaged."""
        return {name: value.detach().clone() for name, value in state.items() if name in self.tensors}


def _averaged_tensors(module: nn.Module, names: Iterable[str]) -> dict[str, Tensor]:
    parameters = dict(module.named_parameters())
    statistics = {
        f"{name}.{key}": buffer
        for name, norm in module.named_modules()
        if isinstance(norm, _BatchNorm)
        for key, buffer in norm.named_buffers()
        if buffer.is_floating_point()
    }
    return {**{name: parameters[name] for name in names}, **statistics}
