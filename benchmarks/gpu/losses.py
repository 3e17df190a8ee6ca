"""Forward and backward pass of every loss beside the floor, pytorch-metric-learning and the papers' formulas.

Losses with a Triton kernel are measured without it too.

The floor of pair-based losses is the product of all embeddings with all, forward and backward; that of center-based
losses the product with the centers, of as many classes as SOP has. All of them in float32, with TF32 off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import centers, formulas, losses, ranking, steps
from benchmarks.gpu.kernels import with_kernels
from benchmarks.gpu.rows import FLOOR, FORMULA, NO_KERNELS, OURS, PEER, Key, Measurement, Numbers
from benchmarks.gpu.timing import Settings, kernel_milliseconds, measured, tf32
from vicinal.losses import ContextualLoss, ContrastiveLoss

SIZES, SMALL_SIZES = (4096, 16384), (64, 128)
NUM_CLASSES, SMALL_NUM_CLASSES = 11_318, 40
CENTERS_FLOOR = "floor with centers"
Make = Callable[[], Callable[[Tensor, Tensor], Tensor]]

PAIRS: dict[str, Make] = {
    **losses.OURS,
    **ranking.OURS,
    "contextual": ContextualLoss,
    "contextual + contrastive": lambda: 0.8 * ContextualLoss() + 0.2 * ContrastiveLoss(),
}
PAIR_PEERS: Mapping[str, Make] = {**losses.PEERS, **ranking.PEERS}
PAIR_FORMULAS: dict[str, Make] = {
    "RS@k": lambda: formulas.recall_at_k,
    "Smooth-AP": lambda: formulas.smooth_ap,
    "multi-similarity + miner": lambda: formulas.multi_similarity,
    "contextual": lambda: formulas.contextual,
}
HAVE_KERNELS = (
    *("RS@k", "SiMix of RS@k", "Smooth-AP", "SupAP", "ROADMAP", "blackbox AP"),
    *("triplet, all", "triplet, semi-hard", "triplet, batch hard"),
)


def measurements(settings: Settings) -> Iterator[Measurement]:
    """The floors of each size, then every loss; who fails is left out at larger sizes."""
    smaller: int | None = None
    for n in SMALL_SIZES if settings.small else SIZES:
        for key, run in _all(n, settings):
            after = None if smaller is None else key._replace(size=_size(smaller))
            yield Measurement(key, run, after=after)
        smaller = n
    _batch.cache_clear()


def all_losses(num_classes: int) -> dict[str, Make]:
    """Name -> makes our loss."""
    return {**PAIRS, **{name: partial(make, num_classes) for name, make in centers.OURS.items()}}


def step(loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """One forward and backward pass: the value, the gradient of the embeddings and of what the loss learns."""
    learned = [each for each in loss.parameters() if each.requires_grad] if isinstance(loss, nn.Module) else []
    value = loss(x, labels)
    gradients = torch.autograd.grad(value, [x, *learned], value.detach(), allow_unused=True)  # of a floor a matrix
    return (value.detach(), *(each for each in gradients if each is not None))


def _all(n: int, settings: Settings) -> Iterator[tuple[Key, Callable[[], Numbers]]]:
    classes = SMALL_NUM_CLASSES if settings.small else NUM_CLASSES
    for who, product in {"float32": steps.floor, "TF32": _floor_in_tf32, "bfloat16": _floor_in_bfloat16}.items():
        yield Key("losses", FLOOR, who, _size(n)), partial(_measure_floor, product, n, settings)
    with_centers = partial(_measure, partial(centers.Floor, classes), CENTERS_FLOOR, n, settings)
    yield Key("losses", CENTERS_FLOOR, "float32", _size(n)), with_centers
    peers: dict[str, Make] = {**PAIR_PEERS, **{name: partial(make, classes) for name, make in centers.PEERS.items()}}
    plain: dict[str, Make] = {**PAIR_FORMULAS, "CCL": lambda: formulas.CenterContrast(classes, steps.DIM)}
    for name, make in all_losses(classes).items():
        for who, makers in ((OURS, {name: make}), (PEER, peers), (FORMULA, plain)):
            if name in makers:
                floor = CENTERS_FLOOR if name in centers.OURS else FLOOR
                yield Key("losses", name, who, _size(n)), partial(_measure, makers[name], floor, n, settings)
        if name in HAVE_KERNELS:
            yield Key("losses", name, NO_KERNELS, _size(n)), partial(_measure_without_kernels, make, n, settings)


def _measure(make: Make, floor: str, n: int, settings: Settings) -> Numbers:
    """The numbers of a loss, and what their floor is called."""
    torch.manual_seed(0)
    loss: Any = make()
    if isinstance(loss, nn.Module):
        loss.to(settings.device)
    return {**_measure_step(partial(step, loss, *_batch(n, settings.device)), settings), "floor": floor}


def _measure_without_kernels(make: Make, n: int, settings: Settings) -> Numbers:
    with with_kernels(False):
        return _measure(make, FLOOR, n, settings)


def _measure_floor(floor: Callable[[Tensor, Tensor], object], n: int, settings: Settings) -> Numbers:
    return _measure_step(partial(floor, *_batch(n, settings.device)), settings)


def _measure_step(run: Callable[[], object], settings: Settings) -> Numbers:
    return {**measured(run, settings), **kernel_milliseconds(run, settings.device)}


@lru_cache(maxsize=1)
def _batch(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    x, labels = steps.batch(n)
    return x.detach().to(device).requires_grad_(), labels.to(device)


def _floor_in_tf32(x: Tensor, labels: Tensor) -> object:
    with tf32(x.device):
        return steps.floor(x, labels)


def _floor_in_bfloat16(x: Tensor, _: Tensor) -> object:
    similarity = (normalized := F.normalize(x).bfloat16()) @ normalized.T
    return torch.autograd.grad(similarity, x, similarity.detach())


def _size(n: int) -> str:
    return f"n = {n}"
