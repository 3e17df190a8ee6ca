"""The context of the embeddings that a refiner is trained on: their neighbors, and augmentation by noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vicinal.models import ContextRefiner
from vicinal.retrieval import Refinement
from vicinal.retrieval.query_gallery import QueryGallery
from vicinal.retrieval.scores import UnitVectors
from vicinal.training.base_trainer import Batch
from vicinal.training.recipes.refiner_settings import ContextAugmentation, NoiseCovariance
from vicinal.utils.arrays import Integers
from vicinal.utils.seeds import derive_seed

MAX_NOISE = 2.0  # beyond it little is left of an embedding
MAX_CLASSES = 100  # per draw; more would only cost time
NUM_DRAWS = 32
NUM_HALVINGS = 8  # of the interval of the noise, to less than 0.01


def noise_factor(embeddings: Tensor, noise: float, covariance: NoiseCovariance) -> Tensor:
    """The matrix [dim, dim] by which standard normal vectors become noise of the wanted norm and covariance."""
    dim = embeddings.shape[1]
    if covariance == "isotropic":
        return torch.eye(dim, device=embeddings.device) * (noise / math.sqrt(dim))
    values, vectors = torch.linalg.eigh(torch.cov(embeddings.double().T, correction=0))
    deviations = values.clamp_min(0).sqrt()
    factor = (vectors * (noise * deviations / deviations.norm().clamp_min(1e-12))).T
    return factor.to(embeddings.dtype)


def matching_noise(
    training: Tensor, labels: Integers, unseen: Tensor, unseen_labels: Integers, covariance: NoiseCovariance, seed: int
) -> float:
    """The noise with which training images are found as often as images of other classes without noise.

    Recall@1 is compared with two images of each class, among as many classes on both sides, so that it does not matter
    how many classes and images there are. The result is the expected norm, from 0 to 2; 0 if training images are not
    easier to find, as where the embedder never saw their classes, or if there are too few images to tell.
    """
    num_classes = min(MAX_CLASSES, *(len(_classes_of_pairs(each)) for each in (labels, unseen_labels)))
    if num_classes < 2:
        return 0.0
    rng = np.random.default_rng(seed)
    clean = training[draw_pairs(labels, num_classes, rng)]
    target = pair_recall(unseen[draw_pairs(unseen_labels, num_classes, rng)])
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(clean.shape, generator=generator).to(clean) @ noise_factor(training, 1.0, covariance)

    def is_easier(noise: float) -> bool:
        return pair_recall(F.normalize(clean + noise * direction, dim=-1)) > target

    low, high = 0.0, MAX_NOISE
    if not is_easier(low):
        return low
    for _ in range(NUM_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_easier(middle) else (low, middle)
    return low


def draw_pairs(labels: Integers, num_classes: int, rng: np.random.Generator) -> Integers:
    """Sample 32 batches with two images from each of `num_classes` classes: rows, int64 [32, 2 * num_classes].

    The two images of a class are beside each other.
    """
    classes = _classes_of_pairs(labels)
    images = [np.flatnonzero(labels == label) for label in classes]
    return np.stack(
        [
            np.concatenate(
                [rng.choice(images[i], 2, replace=False) for i in rng.permutation(len(images))[:num_classes]]
            )
            for _ in range(NUM_DRAWS)
        ]
    )


def pair_recall(vectors: Tensor) -> float:
    """The fraction of vectors, float [draws, 2 * classes, dim], whose nearest neighbor in the draw is their partner."""
    similarities = vectors @ vectors.transpose(1, 2)
    similarities.diagonal(dim1=1, dim2=2).fill_(-math.inf)
    partners = torch.arange(vectors.shape[1], device=vectors.device) ^ 1
    return float((similarities.argmax(dim=2) == partners).float().mean())


def _classes_of_pairs(labels: Integers) -> Integers:
    classes, counts = np.unique(labels, return_counts=True)
    return classes[counts >= 2]


class TrainingContext:
    """The training embeddings, of length 1 and with the noise of the epoch, and the rows of their neighbors, [n, k].

    An epoch depends on the seed and its number only, a batch also on its own number, so that a resumed run sees the
    same batches as an uninterrupted one.
    """

    def __init__(
        self,
        refiner: ContextRefiner,
        vectors: UnitVectors,
        labels: Integers,
        augmentation: ContextAugmentation,
        seed: int,
    ) -> None:
        self.method, self.augmentation, self.seed = Refinement(refiner), augmentation, seed
        self.clean, self.labels = vectors.block(0, len(vectors)), labels
        self.noise_factor = noise_factor(self.clean, augmentation.noise or 0.0, augmentation.noise_covariance)
        self.embeddings = self.clean
        self.neighbors = self._find_neighbors(None)
        self.epoch = -1

    def start_epoch(self, epoch: int) -> None:
        """Draw the noise of each image and the bank of an epoch, and search the neighbors again."""
        if epoch == self.epoch:
            return
        self.epoch, augmentation = epoch, self.augmentation
        if not augmentation.changes_neighbors:
            return
        generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch))
        self.embeddings = self.clean
        if augmentation.noise_per == "image":
            self.embeddings = self._with_noise(self.clean, generator)
        sizes = augmentation.class_sizes
        self.neighbors = self._find_neighbors(draw_bank(self.labels, sizes, generator) if sizes else None)

    def _find_neighbors(self, bank: Integers | None) -> Tensor:
        """The neighbors of each image among those of the bank, or all; the image itself without neighbors."""
        itself = np.arange(len(self.embeddings))
        if self.method.refiner.context == "self":
            return torch.from_numpy(itself[:, None]).to(self.clean.device)
        unit = UnitVectors(self.embeddings, "embedding")
        if bank is None:
            neighbors = self.method.find_context(QueryGallery(unit, unit, itself))
        else:
            columns = np.full(len(itself), -1)
            columns[bank] = np.arange(len(bank))
            neighbors = bank[self.method.find_context(QueryGallery(unit, unit.subset(bank), columns))]
        return torch.from_numpy(neighbors).to(self.clean.device)

    def batch(self, rows: Sequence[int], number: int) -> Batch:
        """The batch of this number in the epoch: these rows with their neighbors."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed, self.epoch, number))
        index = torch.tensor(rows)
        labels = torch.from_numpy(self.labels)[index].to(self.clean.device, non_blocking=True)
        index = index.to(self.clean.device, non_blocking=True)
        neighbors = self.neighbors[index]
        add_noise = self._with_noise if self.augmentation.noise_per == "neighbor" else lambda vectors, _: vectors
        return {
            "rows": index,
            "labels": labels,
            "embeddings": add_noise(self.embeddings[index], generator),
            "context": add_noise(self.embeddings[neighbors], generator),
            "mask": self._mask(neighbors, generator),
        }

    def _with_noise(self, vectors: Tensor, generator: torch.Generator) -> Tensor:
        if not self.augmentation.noise:
            return vectors
        noise = torch.randn(vectors.shape, generator=generator).to(vectors, non_blocking=True) @ self.noise_factor
        return F.normalize(vectors + noise, dim=-1)

    def _mask(self, neighbors: Tensor, generator: torch.Generator) -> Tensor:
        """The neighbors that a batch shows, bool [n, k]."""
        augmentation, (n, k) = self.augmentation, neighbors.shape
        if self.method.refiner.context == "self":
            return torch.ones_like(neighbors, dtype=torch.bool)
        mask = torch.rand(n, k, generator=generator) >= augmentation.neighbor_dropout
        if augmentation.random_num_neighbors and k:
            mask &= torch.arange(k) < torch.randint(1, k + 1, (1,), generator=generator)
        return mask.to(neighbors.device, non_blocking=True)


def draw_bank(labels: Integers, sizes: Sequence[int], generator: torch.Generator) -> Integers:
    """Draw one of the sizes for each class, and that number of its images, or all if it has fewer: rows, ascending."""
    counts = np.bincount(labels)
    drawn = np.array(sizes)[torch.randint(len(sizes), (len(counts),), generator=generator).numpy()]
    shuffled = torch.randperm(len(labels), generator=generator).numpy()
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    ranks = np.arange(len(labels)) - np.repeat(counts.cumsum() - counts, counts)  # within its class
    return np.sort(by_class[ranks < drawn[labels[by_class]]])
