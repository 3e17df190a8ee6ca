"""Co-teaching: two models, each trained on the samples with the smallest loss of the other."""

from __future__ import annotations

import torch
from torch import Tensor

from vicinal.losses import Loss
from vicinal.models import Embedder
from vicinal.similarity.pair_source import PairSource
from vicinal.training.large_batch import embed_in_micro_batches
from vicinal.training.training_module import TrainingModule
from vicinal.utils import distributed


class CoTeachingModule(TrainingModule):
    """Two models with a loss each. In every batch, each selects the samples of smallest loss to train the other.

    The selected fraction falls from 1 to 1 - noise_rate over the first epochs: 1 - noise_rate min(epoch / warmup, 1).
    The run saves the first of the two models. A step takes twice the time.

    Reference: Han et al., "Co-teaching: Robust Training of Deep Neural Networks with Extremely Noisy Labels", NeurIPS
    2018, Algorithm 1.

    Args:
        embedder: the first model.
        loss: its loss.
        peer: the second model.
        peer_loss: its loss.
        noise_rate: assumed fraction of noisy labels, the paper's tau.
        warmup_epochs: number of epochs until the fraction 1 - noise_rate is reached, the paper's T_k.
        micro_batch_size: as for :class:`~vicinal.training.training_module.TrainingModule`.
    """

    def __init__(
        self,
        embedder: Embedder,
        loss: Loss,
        peer: Embedder,
        peer_loss: Loss,
        *,
        noise_rate: float,
        warmup_epochs: int,
        micro_batch_size: int | None = None,
    ) -> None:
        super().__init__(embedder, loss, micro_batch_size)
        self.peer, self.peer_loss = peer, peer_loss
        self.noise_rate, self.warmup_epochs = noise_rate, warmup_epochs
        self.peer.normalize_in_training = self.embedder.normalize_in_training
        self.selected_fraction = 1.0

    @property
    def embedders(self) -> list[Embedder]:
        return [self.embedder, self.peer]

    @property
    def losses(self) -> list[Loss]:
        return [self.loss, self.peer_loss]

    def start_epoch(self, epoch: int) -> None:
        progress = min(epoch / self.warmup_epochs, 1.0) if self.warmup_epochs else 1.0
        self.selected_fraction = 1 - self.noise_rate * progress

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        own = [embed_in_micro_batches(model, images, self.micro_batch_size) for model in self.embedders]
        batches = [distributed.all_gather(embeddings) for embeddings in own]
        labels = distributed.all_gather(labels.to(batches[0].device))
        easy = [self._easiest(loss, batch.detach(), labels) for loss, batch in zip(self.losses, batches, strict=True)]
        self.selected = easy[1].chunk(distributed.world_size())[distributed.rank()]
        terms = self.loss.parts(PairSource.from_batch(batches[0][easy[1]], labels[easy[1]]))
        peer_terms = self.peer_loss.parts(PairSource.from_batch(batches[1][easy[0]], labels[easy[0]]))
        return {**terms, **{f"{name} (peer)": value for name, value in peer_terms.items()}}

    def _easiest(self, loss: Loss, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The samples of smallest loss, bool [n]."""
        values = loss.anchor_values(PairSource.from_batch(embeddings, labels))
        number = max(1, round(self.selected_fraction * len(labels)))
        return torch.zeros_like(labels, dtype=torch.bool).index_fill_(0, values.argsort(stable=True)[:number], True)
