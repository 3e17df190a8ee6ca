"""PRISM: samples that are unlike the past samples of their class are left out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vicinal.losses import Loss
from vicinal.models import Embedder
from vicinal.similarity.embeddings import normalize
from vicinal.similarity.pair_source import PairSource
from vicinal.training.training_module import TrainingModule
from vicinal.utils import distributed


class PrismSelector(nn.Module):
    """Selects the samples of a batch whose labels are probably clean, by a memory of past samples.

    The probability that sample x belongs to its class y is a softmax over classes of the mean similarity to the
    entries of each class in the memory,

        p = exp(x v_y) / sum_j exp(x v_j),   v_j the mean of the unit embeddings of class j in the memory.

    Samples are selected whose p is above a threshold: the quantile of p at `noise_rate` within a batch, averaged over
    the last `window` batches (the paper's smooth top-R). A sample whose class has no entry yet is selected. Only
    selected samples are put into the memory, a queue.

    Reference: Liu et al., "Noise-resistant Deep Metric Learning with Ranking-based Instance Selection", CVPR 2021,
    Section 3.

    Args:
        noise_rate: assumed fraction of noisy labels, from 0 to below 1.
        memory_size: number of entries of the memory.
        window: number of batches over which the threshold is averaged.

    Attributes:
        active: whether samples are left out; if not, all are selected, and the memory fills.

    Example:
        >>> prism = PrismSelector(noise_rate=0.25, memory_size=100, window=1)
        >>> x, labels = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [1.0, 0.1]]), torch.tensor([0, 0, 1, 1])
        >>> prism(x[:3], labels[:3])  # the memory is empty
        tensor([True, True, True])
        >>> prism(x, labels)  # the last one looks like class 0
        tensor([ True,  True,  True, False])
    """

    def __init__(self, noise_rate: float, memory_size: int, window: int) -> None:
        super().__init__()
        self.noise_rate, self.memory_size, self.window = noise_rate, memory_size, window
        self.active = True
        # A ring buffer: its entries, and the position of the next one. Labels are on the CPU, so that the host need not
        # wait for a GPU to know the classes.
        self.embeddings: Tensor | None = None
        self.labels: Tensor | None = None
        self.next_position = 0
        self.quantiles: list[Tensor] = []

    @torch.no_grad()
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The selected samples of embeddings [n, d] with labels int [n]; then they enter the memory.

        Returns:
            bool [n], on the CPU.
        """
        unit, labels = normalize(embeddings.float()), labels.cpu()
        if self.embeddings is not None:  # that of a checkpoint is on the CPU
            self.embeddings = self.embeddings.to(unit.device)
        if self.active and self.noise_rate > 0 and self.embeddings is not None:
            selected = self._probably_clean(unit, labels).cpu()
        else:
            selected = torch.ones_like(labels, dtype=torch.bool)
        if self.training:
            rows = selected.nonzero()[:, 0]
            self._remember(unit[rows.to(unit.device, non_blocking=True)], labels[rows])
        return selected

    def _probably_clean(self, unit: Tensor, labels: Tensor) -> Tensor:
        assert self.embeddings is not None
        assert self.labels is not None

        def moved(numbers: Tensor) -> Tensor:
            return numbers.to(unit.device, non_blocking=True)

        known, positions = torch.unique(self.labels, return_inverse=True)
        means = unit.new_zeros(len(known), unit.shape[1]).index_add_(0, moved(positions), self.embeddings)
        means /= moved(positions.bincount(minlength=len(known)))[:, None]
        own = torch.searchsorted(known, labels).clamp_max(len(known) - 1)
        is_known = known[own] == labels
        similarity = unit @ means.T
        log_probability = similarity.gather(1, moved(own)[:, None])[:, 0] - similarity.logsumexp(dim=1)
        probability = log_probability.exp().double()
        if is_known.any():
            quantile = probability[moved(is_known.nonzero()[:, 0])].quantile(self.noise_rate)
            self.quantiles = [*self.quantiles, quantile][-self.window :]
        if not self.quantiles:
            return torch.ones_like(is_known)
        threshold = torch.stack([moved(each) for each in self.quantiles]).mean()
        return moved(~is_known) | (probability >= threshold)

    def _remember(self, unit: Tensor, labels: Tensor) -> None:
        unit, labels = unit[-self.memory_size :], labels[-self.memory_size :]
        if self.embeddings is None or self.labels is None:
            self.embeddings, self.labels = unit[:0], labels[:0]
        room = self.memory_size - len(self.embeddings)
        if room > 0:  # the ring buffer still grows
            self.embeddings = torch.cat([self.embeddings, unit[:room]])
            self.labels = torch.cat([self.labels, labels[:room]])
            unit, labels = unit[room:], labels[room:]
        positions = (self.next_position + torch.arange(len(unit))) % self.memory_size
        self.embeddings[positions.to(unit.device, non_blocking=True)], self.labels[positions] = unit, labels
        self.next_position = (self.next_position + len(unit)) % self.memory_size

    def get_extra_state(self) -> dict[str, Any]:
        """The memory and the last quantiles, for a checkpoint."""
        return {name: getattr(self, name) for name in ("embeddings", "labels", "next_position", "quantiles")}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the state of :meth:`get_extra_state`."""
        for name, value in state.items():
            setattr(self, name, value.clone() if isinstance(value, Tensor) else value)


class PrismModule(TrainingModule):
    """A training module whose loss is computed on the samples that PRISM selects.

    Args:
        embedder: the model.
        loss: the loss.
        selector: selects the samples.
        warmup_epochs: number of epochs before any samples are left out.
        micro_batch_size: as for :class:`~vicinal.training.training_module.TrainingModule`.
    """

    def __init__(
        self,
        embedder: Embedder,
        loss: Loss,
        selector: PrismSelector,
        *,
        warmup_epochs: int,
        micro_batch_size: int | None = None,
    ) -> None:
        super().__init__(embedder, loss, micro_batch_size)
        self.selector, self.warmup_epochs = selector, warmup_epochs

    def start_epoch(self, epoch: int) -> None:
        self.selector.active = epoch >= self.warmup_epochs

    def forward(self, images: Tensor, labels: Tensor, augmentation: Tensor | None = None) -> dict[str, Tensor]:
        own = self._embed(self.embedder, images, augmentation)
        # Every process computes the loss of all selected samples: their numbers may differ between processes.
        embeddings, labels = distributed.all_gather_labeled(own, labels)
        selected = self.selector(embeddings.detach(), labels)
        self.selected = selected.chunk(distributed.world_size())[distributed.rank()]
        rows = selected.nonzero()[:, 0]
        chosen = labels[rows.to(labels.device)].to(own.device, non_blocking=True)
        return self.loss.parts(PairSource.from_batch(embeddings[rows.to(own.device, non_blocking=True)], chosen))
