"""Co-teaching and Co-teaching+: two models, each trained on the samples with the smallest loss of the other."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from vicinal.losses import Loss
from vicinal.models import Embedder
from vicinal.similarity.pair_source import PairSource
from vicinal.training.class_centers import class_predictor
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

    def forward(self, images: Tensor, labels: Tensor, augmentation: Tensor | None = None) -> dict[str, Tensor]:
        own = [self._embed(model, images, augmentation) for model in self.embedders]
        first, labels = distributed.all_gather_labeled(own[0], labels.to(own[0].device, non_blocking=True))
        batches = [first, *(distributed.all_gather(embeddings) for embeddings in own[1:])]
        detached = [batch.detach() for batch in batches]
        candidates = self._candidates(detached)
        easy = [
            self._easiest(loss, batch, labels, candidates) for loss, batch in zip(self.losses, detached, strict=True)
        ]
        selected = torch.zeros_like(labels, dtype=torch.bool).index_fill_(0, easy[1], True)
        self.selected = selected.chunk(distributed.world_size())[distributed.rank()]
        terms = self.loss.parts(PairSource.from_batch(batches[0][easy[1]], labels[easy[1]]))
        peer_terms = self.peer_loss.parts(PairSource.from_batch(batches[1][easy[0]], labels[easy[0]]))
        return {**terms, **{f"{name} (peer)": value for name, value in peer_terms.items()}}

    def _candidates(self, batches: list[Tensor]) -> Tensor | None:
        """The samples that may be selected, bool [n], given the embeddings of both models; None: all."""
        return None

    def _easiest(self, loss: Loss, embeddings: Tensor, labels: Tensor, candidates: Tensor | None) -> Tensor:
        """The rows of the candidates of smallest loss, ascending."""
        values, total = loss.anchor_values(PairSource.from_batch(embeddings, labels)), len(labels)
        if candidates is not None:
            values, total = values.masked_fill(~candidates, math.inf), int(candidates.sum())
        number = max(min(1, total), round(self.selected_fraction * total))
        return values.argsort(stable=True)[:number].sort().values


class CoTeachingPlusModule(CoTeachingModule):
    """Co-teaching in which only samples that the two models classify differently can be selected.

    In every batch B, with the predicted class c(x) of largest probability,

        B' = { x in B : c_1(x) != c_2(x) },

    each model selects the fraction 1 - noise_rate min(epoch / warmup, 1) of B' with the smallest loss, at least one
    sample, to train the other. Models that learn the same samples would become the same; these stay different. If B' is
    empty, the batch trains neither.

    Reference: Yu et al., "How does Disagreement Help Generalization against Label Corruption?", ICML 2019, Algorithm 1.
    Its published code begins with some epochs of co-teaching, 20 of 200 for CIFAR-10.

    Args:
        embedder: the first model.
        loss: its loss, with class probabilities.
        peer: the second model.
        peer_loss: its loss.
        noise_rate: as for :class:`CoTeachingModule`.
        warmup_epochs: as there.
        co_teaching_epochs: number of first epochs in which all samples can be selected.
        micro_batch_size: as for :class:`~vicinal.training.training_module.TrainingModule`.

    Raises:
        InputError: not exactly one part of the loss has class probabilities.
    """

    def __init__(
        self, embedder: Embedder, loss: Loss, peer: Embedder, peer_loss: Loss, *, co_teaching_epochs: int, **more: Any
    ) -> None:
        super().__init__(embedder, loss, peer, peer_loss, **more)
        self.predictors = [class_predictor(each, "sample_selection.method = co-teaching+") for each in self.losses]
        self.co_teaching_epochs = co_teaching_epochs
        self.selects_all = co_teaching_epochs > 0

    def start_epoch(self, epoch: int) -> None:
        super().start_epoch(epoch)
        self.selects_all = epoch < self.co_teaching_epochs

    def _candidates(self, batches: list[Tensor]) -> Tensor | None:
        if self.selects_all:
            return super()._candidates(batches)
        first, second = (
            predictor.class_logits(batch).argmax(dim=1)
            for predictor, batch in zip(self.predictors, batches, strict=True)
        )
        return first != second
