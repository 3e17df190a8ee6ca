"""No product of a loss is in TF32, whatever torch's settings allow; how much TF32 would change the gradients."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vicinal import losses
from vicinal.mixing import SiMix

CLASSES, DIM = 32, 64

LOSSES: dict[str, Callable[[], losses.Loss]] = {
    "contrastive": lambda: losses.ContrastiveLoss(negative_margin=0.2),
    "triplet": losses.TripletLoss,
    "margin": losses.MarginLoss,
    "multi-similarity": losses.MultiSimilarityLoss,
    "lifted structure": losses.LiftedStructureLoss,
    "NT-Xent": losses.NTXentLoss,
    "recall@k": lambda: losses.RecallAtKLoss(k=[1, 2, 4, 8]),
    "SiMix": lambda: SiMix(losses.RecallAtKLoss(k=[1, 2, 4, 8])),
    "smooth AP": losses.SmoothAPLoss,
    "contextual": losses.ContextualLoss,
    "normalized softmax": lambda: losses.NormSoftmaxLoss(CLASSES, DIM),
    "ArcFace": lambda: losses.ArcFaceLoss(CLASSES, DIM),
    "proxy anchor": lambda: losses.ProxyAnchorLoss(CLASSES, DIM),
    "center contrastive": lambda: losses.CenterContrastiveLoss(CLASSES, DIM),
    "soft triple": lambda: losses.SoftTripleLoss(CLASSES, DIM),
}
BOUNDS = {
    **dict.fromkeys(("multi-similarity", "lifted structure", "NT-Xent", "normalized softmax"), 0.001),
    **dict.fromkeys(("ArcFace", "proxy anchor", "center contrastive", "soft triple"), 0.002),
    **dict.fromkeys(("triplet", "recall@k", "SiMix", "smooth AP"), 0.005),
    "contextual": 0.05,  # some neighbors are others
    "contrastive": 0.05,  # some pairs are on the other side of the margin
    "margin": 0.1,  # the miner samples other pairs
}
"""The largest relative error of the gradient by TF32, in the L2 norm over the batch."""


class Products(TorchDispatchMode):
    """Sees the factors of every product of float32 matrices.

    Args:
        change: maps a factor to what is multiplied in its place.
    """

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.change = change

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::").strip("_")
        if name in ("mm", "bmm"):
            args = (*map(self._factor, args),)
        elif name in ("addmm", "baddbmm"):
            args = (args[0], *map(self._factor, args[1:3]), *args[3:])
        return func(*args, **(kwargs or {}))

    def _factor(self, tensor: Tensor) -> Tensor:
        return self.change(tensor) if tensor.dtype == torch.float32 else tensor


def to_tf32(tensor: Tensor) -> Tensor:
    """The nearest numbers with 10 bits after the point, ties to even."""
    bits = tensor.view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def batch() -> tuple[Tensor, Tensor]:
    """Eight images of each class, around its center."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(8 * CLASSES) // 8
    centers = torch.randn(CLASSES, DIM, generator=generator)
    return centers[labels] + 1.2 * torch.randn(len(labels), DIM, generator=generator), labels


def gradient(create: Callable[[], losses.Loss]) -> Tensor:
    torch.manual_seed(0)
    loss, (embeddings, labels) = create(), batch()
    embeddings.requires_grad_()
    loss(embeddings, labels).backward()  # type: ignore[no-untyped-call]
    assert embeddings.grad is not None
    return embeddings.grad


@pytest.fixture
def rounding() -> Iterator[None]:
    """With the setting by which a CPU may round to bfloat16, and a GPU to TF32."""
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "soft triple"])
def test_no_product_is_rounded_whatever_the_settings_are(name: str, rounding: None) -> None:
    """Neither forward nor backward. Autograd differentiates the regularizer of soft triple, a product per class."""
    seen = []

    def note(factor: Tensor) -> Tensor:
        seen.append(torch.backends.mkldnn.matmul.fp32_precision)
        return factor

    with Products(note):
        gradient(LOSSES[name])
    assert seen
    assert set(seen) == {"ieee"}
    assert torch.get_float32_matmul_precision() == "medium"


@pytest.mark.parametrize("name", BOUNDS)
def test_tf32_would_change_the_gradient_by_less_than_is_stated(name: str) -> None:
    exact = gradient(LOSSES[name])
    with Products(to_tf32):
        rounded = gradient(LOSSES[name])
    error = ((rounded - exact).norm() / exact.norm()).item()
    assert BOUNDS[name] / 10 < error < BOUNDS[name]
