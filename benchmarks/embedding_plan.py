"""What it takes to embed a hundred million images: hours, dollars and bytes. Nothing is measured here, all is computed.

    python -m benchmarks.embedding_plan
    python -m benchmarks.embedding_plan --images 1e9 --cores 32

The rate of a GPU is the smaller of two: operations, the peak of the data sheet in bf16 times the fraction of it that
the network is assumed to reach, over those of an image; and reading, the cores beside the GPU times the JPEGs of
500 x 375 pixels that one core reads per second, as measured in RESULTS.md. Prices are assumptions; take your own.
"""

from __future__ import annotations

import argparse

GPUS = {"H100": (989e12, 3.0), "A100": (312e12, 1.5), "L4": (121e12, 0.7)}
"""Operations per second in bf16 without sparsity, by the data sheets, and dollars per hour with 16 cores, assumed."""
NETWORKS = {"ResNet-50": (8.2e9, 0.10), "ViT-B/16": (35.1e9, 0.30)}
"""Operations per image of 224 pixels, and the fraction of the peak, assumed: small convolutions wait for memory."""
READ_PER_CORE, JPEG_BYTES = 577, 53e3
COLUMN_BYTES = 70
"""Of paths and labels in Parquet, for an image, as measured with a path of 34 characters."""
DIMS = (512, 128)


def rate(gpu: str, network: str, cores: int) -> tuple[float, str]:
    """Images per second of a GPU, and what limits it."""
    operations, fraction = NETWORKS[network]
    by_gpu, by_reading = fraction * GPUS[gpu][0] / operations, float(READ_PER_CORE * cores)
    return min((by_gpu, "GPU"), (by_reading, "reading"))


def main() -> None:
    """Compute and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=float, default=1e8)
    parser.add_argument("--cores", type=int, default=16, help="beside each GPU")
    given = parser.parse_args()
    print(f"{given.images:,.0f} images, {given.cores} cores beside each GPU; computed\n")
    print("| GPU | network | images/s | limited by | GPU hours | dollars | hours with 8 | GB/s read per GPU |")
    print("|---|---|---|---|---|---|---|---|")
    for gpu, (_, price) in GPUS.items():
        for network in NETWORKS:
            found, limit = rate(gpu, network, given.cores)
            hours = given.images / found / 3600
            cells = (f"{found:,.0f}", limit, f"{hours:.1f}", f"{hours * price:.0f}", f"{hours / 8:.1f}")
            print(f"| {gpu} | {network} | {' | '.join(cells)} | {found * JPEG_BYTES / 1e9:.2f} |")
    print("\n| dimensions | vectors, GB | Parquet with columns, GB |\n|---|---|---|")
    for dim in DIMS:
        vectors = given.images * 4 * dim
        print(f"| {dim} | {vectors / 1e9:.0f} | {(vectors + given.images * COLUMN_BYTES) / 1e9:.0f} |")


if __name__ == "__main__":
    main()
