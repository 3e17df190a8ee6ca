"""Training with noisy labels: samples whose labels are probably noisy are left out, by PRISM or by co-teaching."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from vicinal.data import Table
from vicinal.losses import Loss
from vicinal.models import Embedder
from vicinal.similarity.embeddings import normalize
from vicinal.similarity.pair_source import PairSource
from vicinal.training.class_centers import class_predictor
from vicinal.training.training_module import TrainingModule
from vicinal.utils import distributed


class PrismSelector(nn.Module):
    """Selects the samples of a batch whose labels are probably clean, by a memory of past samples.

    The probability that sample x belongs to its class y is a softmax over classes of the mean similarity to the entries
    of each class in the memory,

        p = exp(x v_y) / sum_j exp(x v_j),   v_j the mean of the unit embeddings of class j in the memory.

    A sample is selected if its p is above a threshold: the quantile of p at `noise_rate` within a batch, averaged over
    the last `window` batches (the paper's smooth top-R). A sample whose class has no entry yet is selected. Only
    selected samples are put into the memory, a queue.

    Reference: Liu et al., "Noise-resistant Deep Metric Learning with Ranking-based Instance Selection", CVPR 2021,
    Section 3.
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
        """The selected samples of embeddings [n, d] with labels [n], on the CPU; then they enter the memory."""
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
        for name, value in state.items():
            setattr(self, name, value.clone() if isinstance(value, Tensor) else value)


class PrismModule(TrainingModule):
    """A training module whose loss is computed on the samples that PRISM selects, after some epochs on all samples."""

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


class CoTeachingModule(TrainingModule):
    """Two models with a loss each. In every batch, each selects the samples of smallest loss to train the other.

    The selected fraction falls from 1 to 1 - noise_rate over the first epochs: 1 - noise_rate min(epoch / warmup, 1),
    with the paper's tau and T_k. The run saves the first of the two models. A step takes twice the time.

    Reference: Han et al., "Co-teaching: Robust Training of Deep Neural Networks with Extremely Noisy Labels", NeurIPS
    2018, Algorithm 1.
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


def known_noisy(table: Table) -> Tensor | None:
    """The rows into which label or image noise was put, bool [rows]; None if the table has no such columns."""
    frame = table.frame
    if not {"label_clean", "noisy_image"} & set(frame.columns):
        return None
    noisy = torch.zeros(len(frame), dtype=torch.bool)
    if "label_clean" in frame:
        noisy |= torch.tensor((frame["label"] != frame["label_clean"]).to_numpy(bool))
    if "noisy_image" in frame:
        noisy |= torch.tensor(frame["noisy_image"].to_numpy(bool))
    return noisy


class SelectionReport:
    """Counts of the samples of all processes since the last reset: all, excluded, noisy, and excluded noisy ones."""

    def __init__(self, noisy: Tensor | None) -> None:
        self.noisy = noisy
        self.reset()

    def reset(self) -> None:
        self.counts = torch.zeros(4, dtype=torch.int64)

    def add(self, selected: Tensor, rows: Tensor) -> None:
        """Count a batch, from its selected samples, bool [n], and their rows in the table, int [n]."""
        excluded = ~selected
        noisy = torch.zeros_like(excluded)
        if self.noisy is not None:
            noisy = self.noisy[rows.cpu()].to(excluded.device, non_blocking=True)
        counts = (torch.ones_like(excluded), excluded, noisy, excluded & noisy)
        # On the device of the selection, so that the host does not wait for it in each step.
        added = torch.stack([count.sum() for count in counts])
        self.counts = self.counts.to(added.device, non_blocking=True) + added

    def values(self) -> dict[str, float]:
        """The excluded fraction and, if the noisy samples are known, precision and recall; NaN for 0 / 0.

        Precision is the fraction of noisy samples among the excluded ones, recall the fraction of excluded samples
        among the noisy ones.
        """
        num_samples, num_excluded, num_noisy, num_both = distributed.all_reduce_sum(self.counts).cpu().tolist()
        values = {"excluded fraction": _ratio(num_excluded, num_samples)}
        if self.noisy is not None:
            values |= {"noise precision": _ratio(num_both, num_excluded), "noise recall": _ratio(num_both, num_noisy)}
        return values

    def __str__(self) -> str:
        values = self.values()
        text = f"sample selection excluded {values['excluded fraction']:.1%} of the images"
        if self.noisy is None:
            return text
        precision, recall = values["noise precision"], values["noise recall"]
        return f"{text}: {precision:.1%} of them are noisy (precision), {recall:.1%} of the noisy ones (recall)"


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
