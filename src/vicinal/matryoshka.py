"""Matryoshka representation learning: a loss of several prefixes of the embeddings, each usable on its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vicinal.distillation import MAX_DIM, S2SD
from vicinal.losses.base import Loss
from vicinal.losses.center_based import CenterBasedLoss
from vicinal.memory import CrossBatchMemory
from vicinal.similarity.pair_source import PairSource
from vicinal.utils.arguments import check_list, check_nonnegative, is_integer, shown
from vicinal.utils.devices import ieee_products
from vicinal.utils.errors import InputError

__all__ = ["Matryoshka"]


def __dir__() -> list[str]:
    return __all__


class Matryoshka(Loss):
    """Matryoshka representation learning: the weighted sum of a loss of several prefixes of the embeddings,

        sum_m c_m L(x_1 ... x_m)

    over the dimensions m of `dims`, each prefix normalized by itself. The first m dimensions of a trained embedding can
    then be used alone: `Embedder.embed(..., dim=m)`, or `--dim m` of the commands.

    Value and gradient are those of separate losses: the loss is called once per prefix. All prefixes use the same
    parameters of the loss: class centers are cut like the embeddings (the paper's efficient variant, MRL-E); the biases
    of `CrossEntropyLoss` and the boundary of `MarginLoss` are the same for all prefixes, and so are random choices. The
    moving averages of `ClusterContrastLoss` follow the longest prefix.

    The longest prefix should be the whole embedding, because dimensions beyond it are not trained. A `CrossBatchMemory`
    or `S2SD` goes around Matryoshka, `SiMix` and `ForwardCorrection` go inside.

    Reference: Kusupati et al., "Matryoshka Representation Learning", NeurIPS 2022, Eq. (1), with weights of 1.

    Args:
        loss: any loss, or sum of losses.
        dims: the dimensions of the prefixes, ascending.
        weights: the weight c_m of each prefix, not negative; None: 1 each.

    Raises:
        InputError: the loss has a memory or heads of its own, `dims` does not ascend, or there are not as many weights;
            when called: the embeddings have fewer dimensions, or as the loss itself.

    Example:
        >>> from vicinal.losses import ContrastiveLoss
        >>> loss = Matryoshka(ContrastiveLoss(), dims=[2, 4])
        >>> embeddings, labels = torch.tensor([[1.0, 0, 0, 1], [0.6, 0.8, 0, 0], [0, 1, 1, 0]]), torch.tensor([7, 7, 9])
        >>> list(loss.parts(PairSource.from_batch(embeddings, labels)))
        ['ContrastiveLoss (2)', 'ContrastiveLoss (4)']
        >>> short, full = ContrastiveLoss()(embeddings[:, :2], labels), ContrastiveLoss()(embeddings, labels)
        >>> loss(embeddings, labels) == short + full
        tensor(True)
    """

    uses_prefixes: ClassVar[bool] = True

    def __init__(
        self, loss: Loss, dims: Sequence[int] = (32, 64, 128, 256), weights: Sequence[float] | None = None
    ) -> None:
        super().__init__()
        _check_loss(loss)
        check_list("Matryoshka: dims", dims, "dimensions, ascending")
        dims = list(dims)
        is_ascending = all(is_integer(dim) for dim in dims) and dims == sorted(set(dims))
        if not (dims and is_ascending and 1 <= dims[0] <= dims[-1] <= MAX_DIM):
            raise InputError(f"Matryoshka: dims = {shown(dims)} must be whole numbers from 1 to {MAX_DIM:,}, ascending")
        if weights is not None:
            check_list("Matryoshka: weights", weights, "numbers, one per prefix")
            if len(weights) != len(dims):
                raise InputError(f"Matryoshka: {len(weights)} weights and {len(dims)} dims; give one weight per prefix")
            for weight in weights:
                check_nonnegative(self, weights=weight)
        self.loss, self.dims = loss, dims
        self._term = (_Term(loss),)  # in a tuple, so that the loss is not registered a second time
        self.weights = [1.0] * len(dims) if weights is None else [float(weight) for weight in weights]

    def parts(self, source: PairSource) -> dict[str, Tensor]:
        with torch.autocast(source.anchors.device.type, enabled=False), ieee_products(source.anchors.device):
            by_prefix = self._call_by_prefix("parts", source)
        return {
            f"{name} ({dim})": weight * value
            for dim, weight, parts in zip(self.dims, self.weights, by_prefix, strict=True)
            for name, value in parts.items()
        }

    def _anchor_values(self, source: PairSource) -> Tensor:
        values = self._call_by_prefix("_anchor_values", source)
        return torch.stack([weight * value for weight, value in zip(self.weights, values, strict=True)]).sum(dim=0)

    def _call_by_prefix(self, method: str, source: PairSource) -> list[Any]:
        """The results of a method of the loss, one per prefix. Counters and moving averages are kept from the last."""
        self._check_dim(source)
        (term,) = self._term
        results = []
        for dim in self.dims:
            is_last = dim == self.dims[-1]
            changed = _cut_centers(term, dim, source.dim, is_last)
            if not is_last:
                changed |= {name: buffer.clone() for name, buffer in term.named_buffers()}
            arguments = (method, source.prefix(dim))
            results.append(functional_call(term, changed, arguments) if changed else term(*arguments))
        return results

    def _check_dim(self, source: PairSource) -> None:
        if source.dim < self.dims[-1]:
            raise InputError(
                f"Matryoshka: embeddings have {source.dim} dimensions, fewer than the longest prefix, {self.dims[-1]}; "
                f"give dims up to {source.dim}"
            )


class _Term(nn.Module):
    """A loss whose methods are forward passes, as `functional_call` needs them."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, method: str, source: PairSource) -> Any:
        return getattr(self.loss, method)(source)


def _check_loss(loss: object) -> None:
    if not isinstance(loss, Loss):
        raise InputError(f"Matryoshka: loss must be a loss such as MultiSimilarityLoss(), not {shown(loss)}")
    for part in loss.modules():
        if isinstance(part, (CrossBatchMemory, Matryoshka, S2SD)):
            name = type(part).__name__
            raise InputError(
                f"Matryoshka: {name} does not go inside; give {name}(Matryoshka(...)), or one of them alone"
            )


def _cut_centers(loss: nn.Module, dim: int, full_dim: int, is_last: bool) -> dict[str, Tensor]:
    """The first dimensions of all class centers in a loss, by name; those that are moving averages are copied."""
    cut = {}
    for prefix, part in loss.named_modules():
        own = part.named_parameters(recurse=False) if isinstance(part, CenterBasedLoss) else ()
        for name, centers in own:
            if centers.ndim == 2:
                if centers.shape[1] != full_dim:
                    raise InputError(
                        f"Matryoshka: embeddings have {full_dim} dimensions and centers {centers.shape[1]}"
                    )
                first = centers[:, :dim]
                cut[f"{prefix}.{name}" if prefix else name] = first if part.learns_centers or is_last else first.clone()
    return cut
