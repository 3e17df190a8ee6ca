"""Whether the device computes what the CPU does: kernels and PyTorch, losses, two-stage backpropagation, ranks.

Each row says passed or not, and the largest difference. Nothing that failed here is worth its time in other tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks import steps
from benchmarks.gpu import kernels
from benchmarks.gpu.losses import all_losses, step
from benchmarks.gpu.rows import Key, Measurement, Numbers
from benchmarks.gpu.timing import Settings
from vicinal.data import ImageTransform
from vicinal.data.images.augmentation import AugmentationSampler, augment
from vicinal.evaluation import Relevance, positive_ranks
from vicinal.losses import RecallAtKLoss
from vicinal.retrieval.scores import ScoreBuffer, UnitVectors
from vicinal.training.large_batch import embed_in_micro_batches
from vicinal.utils import distributed

KERNEL_SIZES = ((5, 1, 1), (7, 3, 20), (9, 11, 300), (64, 70, 5000), (1024, 3, 4096))
LOSS_SIZE, LARGE_SIZE = 256, 2048
SMALL_KERNEL_SIZES, SMALL_LOSS_SIZE = KERNEL_SIZES[:2], 32
NUM_CLASSES, DIM = 600, 512
SMOOTH = ("RS@k", "Smooth-AP", "SupAP", "SiMix of RS@k", "triplet, all", "multi-similarity", "NT-Xent", "NormSoftmax")
"""Losses that are compared in a large batch too, where a similarity that is rounded differently crosses no step."""
MAX_DIFFERENCE = 1e-3
"""Of gradients, relative to their norm: temperatures of 0.01 enlarge the rounding of similarities a hundredfold."""


def measurements(settings: Settings) -> Iterator[Measurement]:
    """All comparisons."""
    for operation in kernels.OPERATIONS:
        for size in SMALL_KERNEL_SIZES if settings.small else KERNEL_SIZES:
            key = Key("correctness", operation.name, "kernel = PyTorch", kernels.describe(size))
            yield Measurement(key, partial(_compare_kernel, operation, size, settings.device))
    for name, make in all_losses(NUM_CLASSES).items():
        for n in (SMALL_LOSS_SIZE,) if settings.small else (LOSS_SIZE, LARGE_SIZE)[: 1 + (name in SMOOTH)]:
            key = Key("correctness", name, "device = CPU", f"n = {n}")
            yield Measurement(key, partial(_compare_loss, make, n, settings.device))
    n = 300 if settings.small else 20_000
    for name, who, vectors, run in (
        ("ranks, exact scores with ties", "device = CPU", f"{n:,} vectors", _compare_exact_ranks),
        ("ranks, random vectors", "device = CPU", f"{n:,} vectors", _compare_random_ranks),
        ("scores of few and of many queries", "tiles of any size", f"{n:,} vectors", _compare_tiles),
        ("two-stage backpropagation", "two stages = one", "", _compare_two_stage),
        ("flip and color jitter", "device = CPU", "", _compare_augmentation),
        ("collective operations of one process", "received = sent", "", _compare_collectives),
    ):
        yield Measurement(Key("correctness", name, who, vectors), partial(run, n, settings.device))


def _compare_kernel(operation: kernels.Operation, size: tuple[int, int, int], device: torch.device) -> Numbers:
    pairs = zip(*(kernels.compute(operation, size, device, kernel) for kernel in (True, False)), strict=True)
    tensors = [(torch.as_tensor(one).double(), torch.as_tensor(other).double()) for one, other in pairs]
    largest = max(float(((one - other).abs() / (1 + other.abs())).max()) for one, other in tensors)
    return {"passed": largest == 0 if operation.exact else largest < 1e-4, "difference": largest}


def _compare_loss(make: Callable[[], Callable[[Tensor, Tensor], Tensor]], n: int, device: torch.device) -> Numbers:
    results = [_value_and_gradients(make, n, each) for each in (device, torch.device("cpu"))]
    largest = max(_difference(one, other) for one, other in zip(*results, strict=True))
    return {"passed": largest < MAX_DIFFERENCE, "difference": largest}


def _value_and_gradients(make: Callable[[], Any], n: int, device: torch.device) -> tuple[Tensor, ...]:
    torch.manual_seed(0)  # centers are drawn on the CPU
    loss = make().to(device)
    x, labels = steps.batch(n)
    return step(loss, x.detach().to(device).requires_grad_(), labels.to(device))


def _difference(one: Tensor, other: Tensor) -> float:
    """The norm of the difference, relative; infinite for values that are not finite."""
    one, other = one.detach().double().cpu(), other.detach().double().cpu()
    relative = (one - other).norm() / other.norm().clamp_min(1e-6)
    return float(relative) if bool(relative.isfinite()) else float("inf")


def _compare_two_stage(_: int, device: torch.device) -> Numbers:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 16))
    images, labels = torch.randn(96, 32), torch.arange(96) // 4
    network.to(device)
    gradients = []
    for micro_batch_size in (None, 20):
        embeddings = embed_in_micro_batches(network, images.to(device), micro_batch_size)
        value = RecallAtKLoss()(embeddings, labels.to(device))
        gradients.append(torch.autograd.grad(value, list(network.parameters())))
    largest = max(_difference(one, other) for one, other in zip(*gradients, strict=True))
    return {"passed": largest < MAX_DIFFERENCE, "difference": largest}


class _ManyProcesses(int):
    """One process, for which no message is left out."""

    def __eq__(self, other: object) -> bool:
        return False

    def __gt__(self, other: int) -> bool:
        return True

    __hash__ = int.__hash__


def _compare_collectives(_: int, device: torch.device) -> Numbers:
    """By NCCL on a GPU: one process receives what it has sent."""
    values = torch.randn(96, 16, generator=torch.Generator().manual_seed(0)).to(device)
    labels = torch.arange(96)
    backend, store = "nccl" if device.type == "cuda" else "gloo", dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        with patch.object(distributed, "world_size", lambda: _ManyProcesses(1)):
            leaf = values.clone().requires_grad_()
            rows, numbers = distributed.all_gather_labeled(leaf, labels)
            (gradient,) = torch.autograd.grad(rows, leaf, values)
            copy = values.clone()
            distributed.broadcast_tensors([copy])
            distributed.barrier()
            pairs = [
                *((numbers, labels), (distributed.broadcast_object([labels])[0], labels)),
                (distributed.all_reduce_values([labels.sum()])[0], labels.sum()),
                (distributed.all_gather_objects(labels)[0], labels),
                (distributed.all_reduce_logsumexp(values), values),
                *((found, values) for found in (rows, gradient, copy, distributed.all_reduce_sum(values))),
                *((found, values) for found in (distributed.all_gather(values), *distributed.all_to_all([values]))),
                (distributed.all_gather_parts(values, [len(values)]), values),
                (distributed.all_equal(values), 1),
            ]
    finally:
        dist.destroy_process_group()
    largest = max(_difference(torch.as_tensor(found), torch.as_tensor(sent)) for found, sent in pairs)
    return {"passed": largest < 1e-6, "difference": largest}


def _compare_tiles(n: int, device: torch.device) -> Numbers:
    """A score has the same bits in a small tile, in which positives are scored, as in a large one."""
    vectors = torch.nn.functional.normalize(torch.randn(n, DIM, generator=torch.Generator().manual_seed(0)).to(device))
    rows = min(n, 4096)
    many = ScoreBuffer(rows, n, device).product(vectors[:rows], vectors)[:64]
    sizes = (64, 100), (64, rows), (rows // 2, rows // 2)
    few = [ScoreBuffer(*size, device).product(vectors[: size[0]], vectors[: size[1]])[:64] for size in sizes]
    largest = max(float((scores - many[:, : scores.shape[1]]).abs().max()) for scores in few)
    return {"passed": largest == 0, "difference": largest}


def _compare_augmentation(_: int, device: torch.device) -> Numbers:
    """Of uint8 images: gray levels that differ, by 2 at most, which rounding may do."""
    transform = ImageTransform(flip=0.5, color_jitter=0.4)
    torch.manual_seed(0)
    sampler = AugmentationSampler(transform)
    pixels = torch.randint(0, 256, (64, 3, 64, 64), dtype=torch.uint8)
    parameters = torch.stack([sampler.draw() for _ in pixels])
    found, expected = (augment(pixels.to(to), parameters.to(to), transform).cpu().int() for to in (device, "cpu"))
    largest = int((found - expected).abs().max())
    return {"passed": largest <= 2, "difference": largest}


def _compare_exact_ranks(n: int, device: torch.device) -> Numbers:
    """All ranks and ties are equal."""
    vectors, labels = _signs(n)
    (one, ties), (other, other_ties) = (_ranks(vectors, labels, each) for each in (device, torch.device("cpu")))
    different = int((one != other).sum()) + abs(ties - other_ties)
    return {"passed": different == 0, "difference": float(different)}


def _signs(n: int) -> tuple[Any, Any]:
    """Vectors of 64 signs, whose similarities are exact in any order of additions, and their labels."""
    rng = np.random.default_rng(0)
    centers = rng.choice([-1.0, 1.0], (n // 5, 64))
    labels = rng.integers(0, len(centers), n)
    return (centers[labels] * rng.choice([-1.0, 1.0], (n, 64), p=[0.3, 0.7])).astype(np.float32), labels


def _compare_random_ranks(n: int, device: torch.device) -> Numbers:
    """Of similarities that are rounded differently, so that a few neighbors in rank change their order."""
    vectors, labels = _random(n)
    one, other = (_ranks(vectors, labels, each)[0] for each in (device, torch.device("cpu")))
    largest = float((np.abs(one - other) / other).mean())
    return {"passed": largest < 1e-3, "difference": largest}


def _random(n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, n // 5, n)
    vectors = rng.standard_normal((n // 5, DIM), dtype=np.float32)[labels]
    return vectors + 2 * rng.standard_normal((n, DIM), dtype=np.float32), labels


def _ranks(vectors: Any, labels: Any, device: torch.device, chunk_size: int | None = None) -> tuple[Any, int]:
    unit = UnitVectors(torch.from_numpy(vectors).to(device), "embedding")
    blocks = list(positive_ranks(unit, unit, Relevance(labels, labels, np.arange(len(labels))), chunk_size))
    return np.concatenate([block.ranks for block in blocks]), sum(block.num_ties for block in blocks)
