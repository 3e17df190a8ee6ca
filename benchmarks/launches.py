"""What a training step of each loss costs a GPU, counted without one: waits of the host, launches, bytes.

    python -m benchmarks.launches [--size 4096] [--dim 512] [--per_class 4]

Forward and backward on a pretend device of 80 GB: operations are counted, nothing is timed. Bytes are those of the
tensors that operations take and return; Triton kernels count as one launch. The time is computed, not measured: 5 us a
launch or the bytes at 3.35 TB/s (H100), whichever is more, and the products at 60 TFLOP/s in float32.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from benchmarks.table import print_machine
from tests.pretend_device import module_on_device, on_device, pretend_device
from vicinal import losses
from vicinal.mixing import SiMix
from vicinal.utils import tile_size

LAUNCH, BANDWIDTH, FLOPS = 5e-6, 3.35e12, 60e12
LOSSES: dict[str, Callable[[int, int], losses.Loss]] = {
    "contrastive": lambda *_: losses.ContrastiveLoss(),
    "multi-similarity": lambda *_: losses.MultiSimilarityLoss(),
    "NT-Xent": lambda *_: losses.NTXentLoss(),
    "triplet, all": lambda *_: losses.TripletLoss(),
    "Smooth-AP": lambda *_: losses.SmoothAPLoss(),
    "RS@k": lambda *_: losses.RecallAtKLoss(),
    "RS@k + SiMix": lambda *_: SiMix(losses.RecallAtKLoss()),
    "ROADMAP": lambda *_: losses.RoadmapLoss(),
    "contextual": lambda *_: losses.ContextualLoss(),
    "NormSoftmax": lambda classes, dim: losses.NormSoftmaxLoss(classes, dim),
    "Proxy Anchor": lambda classes, dim: losses.ProxyAnchorLoss(classes, dim),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4096, help="embeddings in the batch")
    parser.add_argument("--dim", type=int, default=512, help="dimension of the embeddings")
    parser.add_argument("--per_class", type=int, default=4, help="embeddings of each class")
    args = parser.parse_args()
    tile_size.MIN_GPU_ELEMENTS = tile_size.MAX_GPU_ELEMENTS  # those of 80 GB
    print_machine()
    print(f"\nn = {args.size}, d = {args.dim}, {args.per_class} of each class; counted, but for the time\n")
    print("| | waits | launches | bytes per similarity | computed time, ms |\n|---|---|---|---|---|")
    for name in LOSSES:
        print(f"| {name} | {' | '.join(_counts(name, args.size, args.dim, args.per_class))} |", flush=True)


def _counts(name: str, size: int, dim: int, per_class: int) -> list[str]:
    torch.manual_seed(0)
    loss = LOSSES[name](-(-size // per_class), dim)
    with pretend_device(has_kernels=True) as device:
        x, labels = on_device(torch.randn(size, dim).requires_grad_()), on_device(torch.arange(size) // per_class)
        module_on_device(loss)(x, labels).backward()
    products = 3 * 2 * size * size * dim / FLOPS  # the similarities, and the gradients of both sides
    seconds = max(device.launches * LAUNCH, device.bytes / BANDWIDTH) + products
    per_similarity = device.bytes / size**2
    return [str(device.waits.total()), f"{device.launches:,}", f"{per_similarity:,.0f}", f"{1e3 * seconds:.1f}"]


if __name__ == "__main__":
    main()
