"""A memory of past batches, which any loss compares the batch with as well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vicinal.arguments import check_at_least_one, check_not_negative
from vicinal.errors import InputError
from vicinal.losses.base import Loss
from vicinal.similarity import Source


class CrossBatchMemory(Loss):
    """Cross-batch memory: a loss whose references are the batch and the embeddings of the batches before it.

    The memory is a queue of the last `size` embeddings, L2-normalised, without gradient, in at least float32, and of
    their labels. Anchors are those of the batch; it is compared with itself and with the memory at once, and takes its
    place in the memory afterwards. So an embedding is never a pair of its own entry, and within the batch both sides of
    a pair get their gradients. In evaluation mode (`eval()`) nothing is stored.

    An image that comes back while an earlier embedding of it is still in the memory has that one as a positive; a
    memory much larger than the training set is therefore of no use.

    Over several processes each of them stores the batches of all, so all hold the same memory.

    Reference: Wang et al., "Cross-Batch Memory for Embedding Learning", CVPR 2020. There the batch is stored first and
    compared with the memory alone, itself in it, through which no gradient flows.

    Args:
        loss: any loss, or sum of losses; the parts are named as its own.
        size: entries, embeddings of all processes.
        warmup: calls at the start in which the batch is stored but compared with itself only, since early embeddings
            drift too fast to be of use later.

    Raises:
        InputError: size is below 1 or warmup is negative; the loss compares with class centers alone; when called:
            with references or masks, since the memory is the references and keeps labels; with embeddings or labels of
            another shape than those in the memory; when a state is loaded: it is that of a memory of another size.

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
            raise InputError(f"CrossBatchMemory: loss must be a loss without a memory of its own, not {loss!r}")
        alone = [type(part).__name__ for part in loss.modules() if isinstance(part, Loss) and not part.takes_references]
        if alone:
            raise InputError(
                f"CrossBatchMemory: {alone[0]} compares with class centers, not with a memory; add it outside"
            )
        check_at_least_one(self, size=size)
        check_not_negative(self, warmup=warmup)
        self.loss = loss
        self.size = size
        self.warmup = warmup
        self.calls = 0
        # Neither is a buffer: their shape is known after the first call only, and DistributedDataParallel would send
        # all buffers from the first process to the others at every step. They are in the state all the same.
        self.embeddings: Tensor | None = None
        self.labels: Tensor | None = None

    def _parts(self, source: Source) -> dict[str, Tensor]:
        extended = self._with_memory(source)
        parts = self.loss._parts(source if self.calls < self.warmup else extended)
        if self.training:
            assert extended.reference_labels is not None
            # Counted as far as it matters: torch.compile makes a new graph for every number.
            self.calls = min(self.calls + 1, self.warmup)
            self.embeddings = extended.references.detach()[-self.size :]
            self.labels = extended.reference_labels[-self.size :]
        return parts

    def _with_memory(self, source: Source) -> Source:
        """The source with the memory in front of its references; the oldest come first."""
        if source.masks is not None:
            raise InputError("CrossBatchMemory: masks say nothing of pairs with the memory; give labels or a relation")
        if source.references is not source.anchors and not source.shared:
            raise InputError("CrossBatchMemory: the memory is the references; give embeddings and labels alone")
        if self.embeddings is None:
            return source
        assert self.labels is not None
        assert source.reference_labels is not None
        assert source.offset is not None
        _check_same_shape("embeddings", self.embeddings, source.references)
        _check_same_shape("labels", self.labels, source.reference_labels)
        return replace(
            source,
            references=torch.cat([self.embeddings.to(source.references), source.references]),
            reference_labels=torch.cat([self.labels.to(source.reference_labels.device), source.reference_labels]),
            offset=len(self.embeddings) + source.offset,
        )

    def get_extra_state(self) -> dict[str, Any]:
        """What `state_dict` holds of the memory itself."""
        # Copies: each is a part of a longer tensor, which is not to be saved with it.
        embeddings, labels = (None if part is None else part.clone() for part in (self.embeddings, self.labels))
        return {"size": self.size, "calls": self.calls, "embeddings": embeddings, "labels": labels}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take over such a state.

        Raises:
            InputError: it is that of a memory of another size.
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
