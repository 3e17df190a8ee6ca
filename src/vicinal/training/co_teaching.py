"""Co-teaching: two networks, each trained on what the other finds easy."""

from __future__ import annotations

import torch
from torch import Tensor

from vicinal import distributed
from vicinal.losses import Loss
from vicinal.models import Embedder
from vicinal.similarity import Source
from vicinal.training.large_batch import embed_in_micro_batches
from vicinal.training.system import System


class CoTeachingSystem(System):
    """Two models with a loss each. In every batch each picks the samples of smallest loss, and the other learns these.

    The share that is picked falls from 1 to 1 - noise_rate over the first epochs: 1 - noise_rate min(epoch / ramp, 1).
    The run's model is the first of the two. A step takes twice the time.

    Reference: Han et al., "Co-teaching: Robust Training of Deep Neural Networks with Extremely Noisy Labels", NeurIPS
    2018, Algorithm 1.

    Args:
        embedder, loss, micro_batch: as of :class:`~vicinal.training.system.System`.
        peer: the second model.
        peer_loss: its loss.
        noise_rate: share of samples that are taken to be wrong, the paper's tau.
        ramp: epochs after which so many are left out, the paper's T_k; 0: from the first on.
    """

    def __init__(
        self,
        embedder: Embedder,
        loss: Loss,
        micro_batch: int | None,
        peer: Embedder,
        peer_loss: Loss,
        noise_rate: float,
        ramp: int,
    ) -> None:
        super().__init__(embedder, loss, micro_batch)
        self.peer, self.peer_loss, self.noise_rate, self.ramp = peer, peer_loss, noise_rate, ramp
        self.peer.keeps_length = self.embedder.keeps_length
        self.share_kept = 1.0

    @property
    def embedders(self) -> list[Embedder]:
        return [self.embedder, self.peer]

    def losses(self) -> list[Loss]:
        return [self.loss, self.peer_loss]

    def start_epoch(self, epoch: int) -> None:
        self.share_kept = 1 - self.noise_rate * (min(epoch / self.ramp, 1.0) if self.ramp else 1.0)

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        parts = [embed_in_micro_batches(model, images, self.micro_batch) for model in self.embedders]
        batches = [distributed.gather(part) for part in parts]
        labels = distributed.gather(labels.to(batches[0].device))
        easy = [self._easiest(loss, batch.detach(), labels) for loss, batch in zip(self.losses(), batches, strict=True)]
        self.kept = easy[1].chunk(distributed.world_size())[distributed.rank()]
        own = self.loss.parts_of(Source.of(batches[0][easy[1]], labels[easy[1]]))
        of_peer = self.peer_loss.parts_of(Source.of(batches[1][easy[0]], labels[easy[0]]))
        return {**own, **{f"{name} (peer)": value for name, value in of_peer.items()}}

    def _easiest(self, loss: Loss, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The samples of smallest loss, bool [n]."""
        values = loss.values(Source.of(embeddings, labels))
        number = max(1, round(self.share_kept * len(labels)))
        return torch.zeros_like(labels, dtype=torch.bool).index_fill_(0, values.argsort(stable=True)[:number], True)
