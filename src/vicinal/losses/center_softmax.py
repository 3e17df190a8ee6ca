"""CenterSoftmaxLoss: the negative log-likelihood of a softmax over class centers, and NormSoftmax."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vicinal.losses.center_based import CenterBasedLoss
from vicinal.losses.row_functions import softplus
from vicinal.similarity.center_sum import sum_over_anchors, values_of_anchors
from vicinal.similarity.class_centers import CenterRows, ClassCenters, RowValues, dense_logits
from vicinal.similarity.pair_source import PairSource
from vicinal.utils import distributed
from vicinal.utils.arguments import check_fraction, check_positive, check_seed
from vicinal.utils.devices import ieee_products
from vicinal.utils.errors import InputError
from vicinal.utils.seeds import derive_seed

MIN_SAMPLE_RATE = 1e-9


class CenterSoftmaxLoss(CenterBasedLoss):
    """The mean over all anchors of the negative log-likelihood of a softmax over classes.

    A new loss is one method, `positive_logit`: the logit of an anchor's own class. The logits of other classes
    are scale x cosine.

    Args:
        num_classes: number of classes of the training set; None: the trainer of a recipe sets it.
        dim: dimension of the embeddings; None: the trainer of a recipe sets it.
        scale: positive factor of the similarities.
        label_smoothing: fraction of the target probability that is divided evenly among the other classes, in [0, 1].
        sample_rate: fraction of all classes that a batch is compared with, but at least as many as it has samples:
            its own classes and random others, over which the softmax is taken. Partial FC (An et al., "Partial FC:
            Training 10 Million Identities on a Single Machine", 2021), where it is 0.1. 1: all classes.
        seed: of the sampling.
        sharded: whether each process holds the centers of only some classes; value and gradient remain those of all
            classes.
        centers_per_class: number of centers of each class.
    """

    calls: Tensor

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        scale: float = 20.0,
        label_smoothing: float = 0.0,
        sample_rate: float = 1.0,
        seed: int = 0,
        sharded: bool = False,
        centers_per_class: int = 1,
    ) -> None:
        super().__init__(num_classes, dim, centers_per_class, sharded)
        check_positive(self, scale=scale)
        check_seed(self, seed)
        check_fraction(self, label_smoothing=label_smoothing, sample_rate=sample_rate)
        if sample_rate < MIN_SAMPLE_RATE:
            raise InputError(f"{type(self).__name__}: sample_rate = {sample_rate} must be above 0")
        self.scale, self.label_smoothing = scale, label_smoothing
        self.sample_rate, self.seed = sample_rate, seed
        if sample_rate < 1:
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def positive_logit(self, own: Tensor) -> Tensor:
        """Compute the logit of an anchor's own class, [rows], from its similarities [rows, centers_per_class]."""
        return self.scale * own[:, 0]

    def row_values(self, rows: CenterRows) -> Tensor:
        """Compute one value per anchor, [rows]."""
        positive = self.positive_logit(rows.own)
        value = softplus(rows.others - positive)
        if self.label_smoothing == 0 or rows.num_classes == 1:
            return value
        # A fraction of the target probability moves from the own class to the mean of the others.
        mean_other = (rows.num_classes * rows.mean - self.scale * rows.own[:, 0]) / (rows.num_classes - 1)
        return value + self.label_smoothing * (positive - mean_other)

    @torch.no_grad()
    def class_logits(self, embeddings: Tensor) -> Tensor:
        """Compute the logits of all classes, without margin: their softmax are the class probabilities.

        Args:
            embeddings: float [n, d].

        Returns:
            float [n, num_classes], without gradient.

        Example:
            >>> loss = NormSoftmaxLoss(num_classes=2, dim=2, scale=10)
            >>> loss.set_centers(torch.tensor([0, 1]), torch.eye(2))
            >>> loss.class_logits(torch.tensor([[0.6, 0.8]]))
            tensor([[6., 8.]])
        """
        labels = torch.zeros(len(embeddings), dtype=torch.int64, device=embeddings.device)
        with torch.autocast(embeddings.device.type, enabled=False), ieee_products(embeddings.device):
            anchors = self._check_source(PairSource.from_batch(embeddings, labels)).anchors
            centers = self._class_centers(self.all_centers())
            return dense_logits(anchors, centers, *centers.parameters(anchors.dtype))[1]

    def mean_value(self, source: PairSource) -> Tensor:
        return self._mean_with_centers(self._require_centers(), source)

    def _mean_with_centers(self, centers: Tensor, source: PairSource, row_values: RowValues | None = None) -> Tensor:
        """The mean over all anchors of the loss or of `row_values`, with these centers, which may be detached."""
        selected = self._select_centers(centers, source)
        if self.sample_rate < 1 and self.training:
            self.calls += 1
        values = row_values or self.row_values
        return sum_over_anchors(source.anchors, self._labels(source), selected, values) / len(source)

    def _anchor_values(self, source: PairSource) -> Tensor:
        return self._values_of_rows(source, self.row_values)

    def _values_of_rows(self, source: PairSource, row_values: RowValues) -> Tensor:
        """The value of each anchor, [n], without gradient."""
        anchors = self._check_source(source)
        if not len(anchors):
            return anchors.anchors.new_zeros(0)
        centers = self._select_centers(self._require_centers().detach(), anchors)
        values = values_of_anchors(anchors.anchors, self._labels(anchors), centers, row_values)
        # Where centers are sharded, the values are those of the anchors of all processes.
        return values if len(anchors) == len(source) else values[source.offset :][: len(source)]

    def _select_centers(self, centers: Tensor, source: PairSource) -> ClassCenters:
        """The centers that a batch is compared with."""
        if self.sample_rate == 1 and not self.is_sharded:
            return self._class_centers(centers)
        ids = self._sample_classes(source) if self.sample_rate < 1 else None
        if ids is not None:
            k = self.centers_per_class
            centers = centers[(ids[:, None] * k + torch.arange(k, device=ids.device)).flatten()]
        classes_per_process: list[int] = []
        if self.is_sharded:
            first, num_local = self._first_class(), len(centers) // self.centers_per_class
            local = torch.arange(num_local, device=centers.device) if ids is None else ids
            ids = local + first
            classes_per_process = [self._num_sampled(classes, len(source)) for classes in self.classes_per_process()]
        return replace(self._class_centers(centers), class_ids=ids, classes_per_process=tuple(classes_per_process))

    def _class_centers(self, centers: Tensor) -> ClassCenters:
        """Centers, and how the similarity to a class is computed."""
        return ClassCenters(centers, self.scale, self.centers_per_class, needs_mean=self.label_smoothing > 0)

    def _num_sampled(self, num_classes: int, num_anchors: int) -> int:
        """The number of classes that a process selects: at least the number of anchors, if possible."""
        if self.sample_rate == 1:
            return num_classes
        return min(num_classes, max(round(self.sample_rate * num_classes), num_anchors, 2))

    def _sample_classes(self, source: PairSource) -> Tensor:
        """The selected classes of this process, ascending: those of the batch, and random others."""
        num_local = len(self._require_centers()) // self.centers_per_class
        rank = distributed.rank() if self.is_sharded else 0
        generator = torch.Generator().manual_seed(derive_seed(self.seed, int(self.calls), rank))
        index, is_local = self._locate(self._labels(source))
        priority = torch.rand(num_local, generator=generator).to(index.device)
        priority.index_put_((index,), is_local.to(priority), accumulate=True)  # classes of the batch have 1 and more
        return priority.topk(self._num_sampled(num_local, len(index))).indices.sort().values


class NormSoftmaxLoss(CenterSoftmaxLoss):
    """Normalized softmax: the mean over all anchors i with class y of

        -log( exp(scale cos(x_i, c_y)) / sum_j exp(scale cos(x_i, c_j)) )

    with the centers c_j of all classes.

    Reference: Zhai and Wu, "Classification is a Strong Baseline for Deep Metric Learning", BMVC 2019, Eq. (4), with
    its temperature 0.05 as 1 / scale; Cai et al., "Center Contrastive Loss for Metric Learning", 2023, Eq. (8).

    Args:
        num_classes: number of classes of the training set; None: the trainer of a recipe sets it.
        dim: dimension of the embeddings; None: the trainer of a recipe sets it.
        scale: positive factor of the similarities.
        label_smoothing: fraction of the target probability that is divided evenly among the other classes, in [0, 1].
        sample_rate: fraction of the classes that a batch is compared with; see :class:`CenterSoftmaxLoss`.
        seed: of the sampling.
        sharded: whether the centers are divided among the processes; see :class:`CenterSoftmaxLoss`.

    Raises:
        InputError: an argument is out of range; see also :class:`~vicinal.losses.center_based.CenterBasedLoss`.

    Example:
        >>> loss = NormSoftmaxLoss(num_classes=3, dim=2, scale=4)
        >>> loss.set_centers(torch.tensor([0, 1, 2]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
        >>> loss(torch.tensor([[1.0, 0.0], [0.6, 0.8]]), torch.tensor([0, 1])).detach()
        tensor(0.1961)
    """

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        scale: float = 20.0,
        label_smoothing: float = 0.0,
        sample_rate: float = 1.0,
        seed: int = 0,
        sharded: bool = False,
    ) -> None:
        super().__init__(num_classes, dim, scale, label_smoothing, sample_rate=sample_rate, seed=seed, sharded=sharded)
