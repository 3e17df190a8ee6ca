"""Noise that makes embeddings of training classes as hard to find as those of classes never trained on."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vicinal.training.recipes.refiner_settings import NoiseCovariance
from vicinal.utils.arrays import Integers

MAX_NOISE = 2.0  # beyond it little is left of an embedding
MAX_CLASSES = 100  # per draw; more would only cost time
NUM_DRAWS = 32
NUM_HALVINGS = 8  # of the interval of the noise, to less than 0.01


def noise_factor(embeddings: Tensor, noise: float, covariance: NoiseCovariance) -> Tensor:
    """The matrix by which standard normal vectors become noise of the wanted norm and covariance.

    Args:
        embeddings: float [n, dim].
        noise: expected norm.
        covariance: that of the embeddings, or the same variance in all directions.

    Returns:
        float [dim, dim].
    """
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

    What is compared is recall@1 with two images of each class, among as many classes on both sides, so that it does not
    matter how many classes and images there are.

    Args:
        training: float [n, dim], L2-normalized.
        labels: int64 [n], their classes.
        unseen: float [m, dim], L2-normalized, of other classes.
        unseen_labels: int64 [m].
        covariance: of the noise, as for :func:`noise_factor`.
        seed: of the random numbers.

    Returns:
        Expected norm of the noise, from 0 to 2; 0 if training images are not easier to find, as where the embedder
        never saw their classes, or if there are too few images to tell.

    Example:
        >>> training = F.normalize(torch.randn(40, 8, generator=torch.Generator().manual_seed(0)), dim=1)
        >>> perfect = torch.eye(8).repeat_interleave(2, dim=0)
        >>> matching_noise(training, np.arange(40) // 4, perfect, np.arange(16) // 2, "embeddings", seed=0)
        0.0
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
    """Draw two images of each of so many classes, again and again: rows, int64 [32, 2 * num_classes].

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
    """The classes of two images or more."""
    classes, counts = np.unique(labels, return_counts=True)
    return classes[counts >= 2]
