"""Fine-tuning of a backbone: its trained parameters, and ways to save time or memory in a step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from vicinal.utils.arguments import require, require_left_out
from vicinal.utils.errors import InputError, prefixed_errors

if TYPE_CHECKING:
    from torch import nn

    from vicinal.models import Embedder
    from vicinal.training.recipes.settings import TrainingSettings


@dataclass(frozen=True)
class FineTuning:
    """Which parameters of the backbone are trained; those of pooling, head, projector and loss always are.

    Args:
        method: "full"; "lora", low-rank adapters, which are merged into the saved model (Hu et al., ICLR 2022; extra
            lora); "last_blocks", the last `blocks` blocks; or "biases_norms", biases and the weights of normalization
            and layer scales. Other weights are frozen, and not in the checkpoints.
        rank: rank of the adapters.
        alpha: scale of the adapters times their rank.
        dropout: dropout probability of the inputs of the adapters.
        targets: names of the layers with adapters, or the ends of names, such as [attn.qkv, attn.proj]; null: the
            attention layers of a transformer, the MLPs of ConvNeXt, the convolutions of other networks.
        blocks: number of blocks of last_blocks.
    """

    method: Literal["full", "lora", "last_blocks", "biases_norms"] = "full"
    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    targets: list[str] | None = None
    blocks: int = 1

    def __post_init__(self) -> None:
        require(self.rank >= 1, "fine_tuning.rank", self.rank, "at least 1")
        require(0 < self.alpha < math.inf, "fine_tuning.alpha", self.alpha, "a positive number")
        require(0 <= self.dropout < 1, "fine_tuning.dropout", self.dropout, "from 0 to below 1")
        require(self.targets is None or len(self.targets) > 0, "fine_tuning.targets", "[]", "names of layers, or null")
        require(self.blocks >= 1, "fine_tuning.blocks", self.blocks, "at least 1")
        if self.method != "lora":
            names = ("rank", "alpha", "dropout", "targets")
            require_left_out(self, "fine_tuning.", names, "fine_tuning.method is lora")
        if self.method != "last_blocks":
            require_left_out(self, "fine_tuning.", ("blocks",), "fine_tuning.method is last_blocks")


def set_up_backbone(embedder: Embedder, settings: TrainingSettings) -> None:
    """Freeze parts of the backbone or add adapters to it, and set up gradient checkpointing and compilation."""
    _set_trained(embedder, settings.fine_tuning)
    if settings.gradient_checkpointing:
        _set_gradient_checkpointing(embedder)
    if settings.compile:
        _compile(embedder, gpu=settings.accelerator != "cpu")


def layer_factors(embedders: Iterable[Embedder], layer_decay: float) -> dict[nn.Parameter, float]:
    """The factor of the learning rate of each parameter of the backbones: `layer_decay` for each layer above it."""
    from vicinal.models.backbones import layer_depths

    factors: dict[nn.Parameter, float] = {}
    if layer_decay == 1:
        return factors
    for embedder in embedders:
        with prefixed_errors(f"optimizer.layer_decay = {layer_decay}"):
            depths = layer_depths(embedder.backbone, embedder.config["backbone"])
        parameters = embedder.backbone.named_parameters()
        factors |= {parameter: layer_decay ** depths[name] for name, parameter in parameters}
    return factors


def _set_trained(embedder: Embedder, fine_tuning: FineTuning) -> None:
    from vicinal.models import add_lora, train_biases_and_norms, train_last_blocks

    with prefixed_errors("fine_tuning"):
        if fine_tuning.method == "lora":
            add_lora(embedder, fine_tuning.rank, fine_tuning.alpha, fine_tuning.dropout, fine_tuning.targets)
        elif fine_tuning.method == "last_blocks":
            train_last_blocks(embedder, fine_tuning.blocks)
        elif fine_tuning.method == "biases_norms":
            train_biases_and_norms(embedder)


def _set_gradient_checkpointing(embedder: Embedder) -> None:
    from torch.nn.modules.batchnorm import _BatchNorm

    backbone, name = embedder.backbone, embedder.config["backbone"]
    if any(isinstance(module, _BatchNorm) and module.training for module in backbone.modules()):
        raise InputError(
            "gradient_checkpointing = true passes images through each block twice, and would count them twice in the "
            "statistics of batch normalization; set model.freeze_batch_norm to statistics"
        )
    try:
        cast(Any, backbone).set_grad_checkpointing(True)
    except (AttributeError, AssertionError, TypeError):  # timm asserts that it has it
        raise InputError(f"gradient_checkpointing = true: {name} does not support it") from None


def _compile(embedder: Embedder, gpu: bool) -> None:
    import torch
    from torch.utils._triton import has_triton

    try:
        if gpu and torch.cuda.is_available():
            if not has_triton():
                raise RuntimeError("triton is missing")
        else:
            from torch._inductor.cpp_builder import get_cpp_compiler

            get_cpp_compiler()
    except Exception as error:  # torch raises errors of its own kinds
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"compile = true needs a compiler, triton for a GPU or g++ for a CPU: {reason}") from None
    embedder.backbone.compile()
