"""PRISM: leaving out samples that look little like the class they are said to be of."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from vicinal import distributed
from vicinal.losses import Loss
from vicinal.models import Embedder
from vicinal.similarity import Source, normalize
from vicinal.training.large_batch import embed_in_micro_batches
from vicinal.training.system import System


class PrismFilter(nn.Module):
    """Says which samples of a batch are probably labelled right, from a memory of past ones.

    The probability that sample x is of its class y is a softmax over classes of the mean similarity to the entries of
    each class in the memory,

        p = exp(x v_y) / sum_j exp(x v_j),   v_j the mean of the unit embeddings of class j in the memory.

    Samples are kept whose p is above a threshold: the quantile of p at `noise_rate` within a batch, averaged over the
    last `window` batches (the paper's smooth top-R). A sample whose class has no entry yet is kept. Only kept samples
    go into the memory, a queue.

    Reference: Liu et al., "Noise-resistant Deep Metric Learning with Ranking-based Instance Selection", CVPR 2021,
    Section 3.

    Args:
        noise_rate: share of samples that are taken to be wrong, from 0 to below 1.
        memory: entries.
        window: batches that the threshold is averaged over.

    Attributes:
        active: whether samples are left out; else all are kept, and the memory fills.

    Example:
        >>> prism = PrismFilter(noise_rate=0.25, memory=100, window=1)
        >>> x, labels = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [1.0, 0.1]]), torch.tensor([0, 0, 1, 1])
        >>> prism(x[:3], labels[:3])  # the memory is empty
        tensor([True, True, True])
        >>> prism(x, labels)  # the last one looks like class 0
        tensor([ True,  True,  True, False])
    """

    def __init__(self, noise_rate: float, memory: int, window: int) -> None:
        super().__init__()
        self.noise_rate, self.memory, self.window = noise_rate, memory, window
        self.active = True
        # A ring: the entries there are, and where the next one goes.
        self.embeddings: Tensor | None = None
        self.labels: Tensor | None = None
        self.next = 0
        self.quantiles: list[float] = []

    @torch.no_grad()
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Which samples to keep, bool [n], from embeddings [n, d] and labels int [n]; then remembers these."""
        unit = normalize(embeddings.float())
        if self.embeddings is not None and self.labels is not None:  # a checkpoint's are on the CPU
            self.embeddings, self.labels = self.embeddings.to(unit.device), self.labels.to(unit.device)
        filters = self.active and self.noise_rate > 0 and self.embeddings is not None
        kept = self._probably_right(unit, labels) if filters else None
        kept = torch.ones_like(labels, dtype=torch.bool) if kept is None else kept
        if self.training:
            self._remember(unit[kept], labels[kept])
        return kept

    def _probably_right(self, unit: Tensor, labels: Tensor) -> Tensor:
        assert self.embeddings is not None
        assert self.labels is not None
        known, places = torch.unique(self.labels, return_inverse=True)
        means = unit.new_zeros(len(known), unit.shape[1]).index_add_(0, places, self.embeddings)
        means /= places.bincount(minlength=len(known))[:, None]
        own = torch.searchsorted(known, labels).clamp_max(len(known) - 1)
        is_known = known[own] == labels
        similarity = unit @ means.T
        log_probability = similarity.gather(1, own[:, None])[:, 0] - similarity.logsumexp(dim=1)
        if is_known.any():
            quantile = log_probability[is_known].exp().double().quantile(self.noise_rate).item()
            self.quantiles = [*self.quantiles, quantile][-self.window :]
        threshold = sum(self.quantiles) / len(self.quantiles) if self.quantiles else -math.inf
        return ~is_known | (log_probability.exp().double() >= threshold)

    def _remember(self, unit: Tensor, labels: Tensor) -> None:
        unit, labels = unit[-self.memory :], labels[-self.memory :]
        if self.embeddings is None or self.labels is None:
            self.embeddings, self.labels = unit[:0], labels[:0]
        room = self.memory - len(self.embeddings)
        if room > 0:  # the ring still grows
            self.embeddings = torch.cat([self.embeddings, unit[:room]])
            self.labels = torch.cat([self.labels, labels[:room]])
            unit, labels = unit[room:], labels[room:]
        places = (self.next + torch.arange(len(unit), device=unit.device)) % self.memory
        self.embeddings[places], self.labels[places] = unit, labels
        self.next = (self.next + len(unit)) % self.memory

    def get_extra_state(self) -> dict[str, Any]:
        """The memory and the last thresholds: part of a checkpoint."""
        return {name: getattr(self, name) for name in ("embeddings", "labels", "next", "quantiles")}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take over such a state."""
        for name, value in state.items():
            setattr(self, name, value.clone() if isinstance(value, Tensor) else value)


class FilteredSystem(System):
    """A system whose loss sees the samples alone that a filter keeps.

    Args:
        embedder, loss, micro_batch: as of :class:`~vicinal.training.system.System`.
        keep: the filter.
        warmup: epochs before it leaves anything out.
    """

    def __init__(self, embedder: Embedder, loss: Loss, micro_batch: int | None, keep: PrismFilter, warmup: int) -> None:
        super().__init__(embedder, loss, micro_batch)
        self.keep, self.warmup = keep, warmup

    def start_epoch(self, epoch: int) -> None:
        self.keep.active = epoch >= self.warmup

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        own = embed_in_micro_batches(self.embedder, images, self.micro_batch)
        # Every process computes the loss of all that is kept: their parts of it may differ in size.
        embeddings, labels = distributed.gather(own), distributed.gather(labels.to(own.device))
        kept = self.keep(embeddings.detach(), labels)
        self.kept = kept.chunk(distributed.world_size())[distributed.rank()]
        return self.loss.parts_of(Source.of(embeddings[kept], labels[kept]))
