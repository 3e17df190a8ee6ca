"""Matryoshka representation learning: a loss of several prefixes of the embeddings, each usable on its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeGuard

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vicinal.distillation import MAX_DIM, S2SD
from vicinal.losses.base import Loss, WeightedSum, loss_terms, unused_name, zero_loss
from vicinal.losses.center_based import CenterBasedLoss
from vicinal.losses.row_loss import RowLoss
from vicinal.memory import CrossBatchMemory
from vicinal.similarity.pair_source import PairSource
from vicinal.utils.arguments import check_list, check_nonnegative, is_integer, shown
from vicinal.utils.devices import default_tile_rows, ieee_products
from vicinal.utils.errors import InputError

__all__ = ["Matryoshka"]


def __dir__() -> list[str]:
    return __all__


FIELDS = tuple(field.name for field in fields(PairSource))  # a constant, which torch.compile can read


class Matryoshka(Loss):
    """Matryoshka representation learning: the weighted sum of a loss of several prefixes of the embeddings,

        sum_m c_m L(x_1 ... x_m)

    over the dimensions m of `dims`, each prefix normalized by itself. The first m dimensions of a trained embedding can
    then be used alone: `Embedder.embed(..., dim=m)`, or `--dim m` of the commands.

    Value and gradient are those of separate losses. Pair-based and ranking losses without parameters go over batches of
    one tile (1,024 embeddings, more with several threads or on a GPU) once: the pairs are found once, and the rows of
    all prefixes are one call of the loss. Larger batches, where that saves nothing, and all other losses take one call
    per prefix.

    All prefixes use the same parameters of the loss: class centers are cut like the embeddings (the paper's efficient
    variant, MRL-E); the biases of `CrossEntropyLoss` and the boundary of `MarginLoss` are the same for all prefixes,
    and so are random choices. The moving averages of `ClusterContrastLoss` follow the longest prefix.

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
        # In a tuple, so that the loss is not registered a second time.
        factors = loss.weights if isinstance(loss, WeightedSum) else [1.0]
        self._terms = tuple((_Term(term), factor) for term, factor in zip(loss_terms(loss), factors, strict=True))
        self.weights = [1.0] * len(dims) if weights is None else [float(weight) for weight in weights]

    def parts(self, source: PairSource) -> dict[str, Tensor]:
        self._check_dim(source)
        by_prefix: list[dict[str, Tensor]] = [{} for _ in self.dims]
        for term, factor in self._terms:
            for parts, weight, found in zip(by_prefix, self.weights, self._parts_of(term, source), strict=True):
                for name, value in found.items():
                    parts[unused_name(name, parts)] = weight * factor * value
        named = zip(self.dims, by_prefix, strict=True)
        return {f"{name} ({dim})": value for dim, parts in named for name, value in parts.items()}

    def _parts_of(self, term: _Term, source: PairSource) -> list[dict[str, Tensor]]:
        """The parts of one loss, by each prefix."""
        with torch.autocast(source.anchors.device.type, enabled=False), ieee_products(source.anchors.device):
            if source.is_empty or len(self.dims) == 1 or not (_is_of_rows(term.loss) and _is_small(source)):
                return self._call_by_prefix(term, "parts", source)
            term.loss._check_device(source.anchors.device)
            values = term.loss.value(_PrefixPairSource.from_source(source, self.dims)) + zero_loss(source).detach()
            return [{type(term.loss).__name__: value} for value in values]

    def _anchor_values(self, source: PairSource) -> Tensor:
        self._check_dim(source)
        return torch.stack(
            [
                weight * factor * value
                for term, factor in self._terms
                for weight, value in zip(
                    self.weights, self._call_by_prefix(term, "_anchor_values", source), strict=True
                )
            ]
        ).sum(dim=0)

    def _call_by_prefix(self, term: _Term, method: str, source: PairSource) -> list[Any]:
        """The results of a method of a loss, one per prefix. Counters and moving averages are kept from the last."""
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


def _is_of_rows(loss: Loss) -> TypeGuard[RowLoss]:
    """Whether a loss is a function of rows alone, so that those of all prefixes are one call."""
    return isinstance(loss, RowLoss) and type(loss).value is RowLoss.value and next(loss.parameters(), None) is None


def _is_small(source: PairSource) -> bool:
    """Whether the similarities of one prefix are one tile: with more of them, a call for all prefixes is no faster."""
    tile_rows = default_tile_rows(source.num_references, source.anchors.device)
    return torch.compiler.is_compiling() or len(source) <= tile_rows


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


@dataclass(frozen=True, kw_only=True)
class _PrefixPairSource(PairSource):
    """Prefixes of embeddings. A span of anchors has their rows by the first prefix, then those by the second, ...

    So a loss is called once for all prefixes, and the pairs are found once. Sums over anchors have one entry per
    prefix.
    """

    prefixes: tuple[PairSource, ...]

    @classmethod
    def from_source(cls, source: PairSource, dims: Sequence[int]) -> _PrefixPairSource:
        """Cut and normalize the prefixes of these dimensions."""
        kept = {name: getattr(source, name) for name in FIELDS}
        return cls(**kept, prefixes=tuple(source.prefix(dim) for dim in dims))

    @property
    def parts(self) -> Sequence[PairSource]:
        return self.prefixes

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(tensor for prefix in self.prefixes for tensor in prefix.inputs)

    def similarity(self, span: slice) -> Tensor:
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return torch.cat([prefix.similarity(span) for prefix in self.prefixes])
        size = span.stop - span.start  # written where they belong, which saves a copy
        similarity = self.anchors.new_empty(len(self.prefixes) * size, self.num_references)
        for part, prefix in zip(torch.split(similarity, size), self.prefixes, strict=True):
            torch.mm(prefix.anchors[span], prefix.references.T, out=part)
        return similarity

    def identities(self, span: slice) -> tuple[Tensor | None, Tensor, Tensor | int]:
        labels, keys, _ = super().identities(span)
        times = len(self.prefixes)
        dims = torch.tensor([prefix.dim for prefix in self.prefixes], device=keys.device)
        labels = None if labels is None else labels.repeat(times, *[1] * (labels.ndim - 1))
        return labels, keys.repeat(times), dims.repeat_interleave(len(keys))[:, None]
