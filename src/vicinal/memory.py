"""Cross-batch memory: embeddings of past batches as additional references of any loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vicinal.losses.base import Loss
from vicinal.similarity.pair_source import PairSource
from vicinal.utils.arguments import check_nonnegative_integer, check_positive_integer, shown
from vicinal.utils.errors import InputError

__all__ = ["CrossBatchMemory"]


def __dir__() -> list[str]:
    return __all__


class CrossBatchMemory(Loss):
    """Cross-batch memory: a loss whose references are the batch and the embeddings of the batches before it.

    The memory is a queue of the last `size` embeddings, L2-normalized, without gradient, in at least float32, and of
    their labels. The anchors are those of the batch. The batch is compared with itself and with the memory, and then
    added to the memory. So an embedding is never a pair with its own entry, and within the batch both embeddings of a
    pair get a gradient. In evaluation mode (`eval()`) nothing is stored.

    If an image recurs while an earlier embedding of it is in the memory, that embedding is one of its positives. A
    memory much larger than the training set is therefore useless.

    In distributed training each process stores the batches of all processes, so that all have the same memory.

    Reference: Wang et al., "Cross-Batch Memory for Embedding Learning", CVPR 2020. There the batch is stored first and
    compared only with the memory that contains it, which has no gradient.

    Args:
        loss: any loss, or sum of losses; the parts have its names.
        size: number of embeddings in the memory, those of all processes together.
        warmup: number of first calls in which the batch is stored but compared only with itself, because early
            embeddings change too fast to be useful later.

    Raises:
        InputError: size is below 1, warmup is negative, or the loss compares only with class centers; when called:
            there are references or masks, or embeddings or labels have another shape than those in the memory; when a
            state is loaded: it is from a memory of another size.

    Example:
        >>> from vicinal.losses import ContrastiveLoss
        >>> loss = CrossBatchMemory(ContrastiveLoss(), size=1000)
        >>> loss(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([7, 9]))  # no positive pair, no close negative
        tensor(0.)
        >>> loss(torch.tensor([[0.6, 0.8], [-1.0, 0.0]]), torch.tensor([7, 8]))  # 7 is too far from 7, and close to 9
        tensor(0.5000)
        >>> loss.embeddings.shape
        torch.Size([4, 2])
    """

    def __init__(self, loss: Loss, size: int, warmup: int = 0) -> None:
        super().__init__()
        if not isinstance(loss, Loss) or any(isinstance(part, CrossBatchMemory) for part in loss.modules()):
            raise InputError(f"CrossBatchMemory: loss must be a loss without a memory of its own, not {shown(loss)}")
        for part in loss.modules():
            if isinstance(part, Loss) and not part.supports_references:
                name = type(part).__name__
                raise InputError(f"CrossBatchMemory: {name} cannot compare with a memory; add it outside")
        check_positive_integer(self, size=size)
        check_nonnegative_integer(self, warmup=warmup)
        self.loss = loss
        self.size = size
        self.warmup = warmup
        self.calls = 0
        # Not buffers: their shapes are known only after the first call, and DistributedDataParallel would broadcast all
        # buffers at every step. `get_extra_state` adds them to the state.
        self.embeddings: Tensor | None = None
        self.labels: Tensor | None = None

    def parts(self, source: PairSource) -> dict[str, Tensor]:
        extended = self._with_memory(source)
        parts = self.loss.parts(source if self.calls < self.warmup else extended)
        if self.training:
            assert extended.reference_labels is not None
            # Stops at `warmup`, because torch.compile makes a new graph for every number.
            self.calls = min(self.calls + 1, self.warmup)
            self.embeddings = extended.references.detach()[-self.size :]
            self.labels = extended.reference_labels[-self.size :]
        return parts

    def _with_memory(self, source: PairSource) -> PairSource:
        """The source with the memory before its references, oldest first."""
        if source.masks is not None:
            raise InputError("CrossBatchMemory: masks do not cover pairs with the memory; give labels or a relation")
        if source.has_own_references:
            raise InputError("CrossBatchMemory: the memory is the references; give embeddings and labels alone")
        if self.embeddings is None:
            return source
        assert self.labels is not None
        assert source.reference_labels is not None
        assert source.offset is not None
        _check_same_shape("embeddings", self.embeddings, source.references)
        _check_same_shape("labels", self.labels, source.reference_labels)
        others = source.unnormalized if source.references is source.anchors else source.unnormalized_references
        if others is not None:  # another copy of the memory, which few losses need
            is_needed = any(part.uses_prefixes for part in self.modules() if isinstance(part, Loss))
            others = torch.cat([self.embeddings.to(others), others]) if is_needed else None
        return replace(
            source,
            references=torch.cat([self.embeddings.to(source.references), source.references]),
            unnormalized_references=others,
            reference_labels=torch.cat([self.labels.to(source.reference_labels.device), source.reference_labels]),
            offset=len(self.embeddings) + source.offset,
        )

    def get_extra_state(self) -> dict[str, Any]:
        """The memory, as part of `state_dict`."""
        # Copies, because each is a view of a longer tensor, which should not be saved with it.
        embeddings, labels = (None if part is None else part.clone() for part in (self.embeddings, self.labels))
        return {"size": self.size, "calls": self.calls, "embeddings": embeddings, "labels": labels}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the memory from a state.

        Raises:
            InputError: it is from a memory of another size.
        """
        if state["size"] != self.size:
            raise InputError(f"CrossBatchMemory: a state of size = {state['size']} does not fit size = {self.size}")
        self.calls, self.embeddings, self.labels = state["calls"], state["embeddings"], state["labels"]


def _check_same_shape(name: str, stored: Tensor, new: Tensor) -> None:
    if stored.shape[1:] != new.shape[1:]:
        raise InputError(
            f"CrossBatchMemory: {name} [n{''.join(f', {length}' for length in new.shape[1:])}] do not fit those in the "
            f"memory, [n{''.join(f', {length}' for length in stored.shape[1:])}]"
        )
