"""`vicinal embed` and `vicinal whiten`: embeddings of images, and whitening learned from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.cli.flags import Arguments, Parser, integer_from, print_result
from vicinal.cli.inputs import (
    SOURCE,
    add_embedding,
    add_refiner,
    check_embedding,
    check_refiner,
    check_source,
    load_refiner,
    read_embedding,
)
from vicinal.utils.console import log

if TYPE_CHECKING:
    from vicinal.data import Table


def add_embed(parser: Parser) -> None:
    """Add the flags of `vicinal embed`."""
    parser.add_argument("source", help=SOURCE)
    parser.add_argument(
        "--out", required=True, metavar="FILE", help=".parquet, or .npy with a .table.csv of paths and labels"
    )
    add_refiner(parser, "refines every embedding by its nearest neighbors among the others")
    add_embedding(parser)


def embed(arguments: Arguments) -> None:
    """Embed images, and save the vectors with their paths and labels."""
    check_source(arguments.source)
    check_embedding(arguments)
    from vicinal.data import save_embeddings

    refiner = load_refiner(arguments)
    embedded = read_embedding(arguments).embed(arguments.source, arguments.split)
    vectors, fingerprint = embedded.vectors, embedded.fingerprint
    if refiner is not None:
        from vicinal.retrieval import refine

        check_refiner(refiner, embedded)
        vectors = refine(refiner, embedded.vectors)
        fingerprint = None if fingerprint is None else f"{fingerprint}+{refiner.fingerprint()}"
    save_embeddings(arguments.out, vectors, embedded.table, fingerprint)
    log("{} embeddings of {} dimensions".format(*vectors.shape))
    print_result(arguments.out)


def add_whiten(parser: Parser) -> None:
    """Add the flags of `vicinal whiten`."""
    parser.add_argument("source", help=f"the training images: {SOURCE}")
    parser.add_argument("--out", required=True, metavar="FILE", help=".safetensors file for --whitening of other verbs")
    parser.add_argument(
        "--dim",
        type=integer_from(1),
        metavar="INT",
        help="dimension of whitened vectors (default: the dimension before)",
    )
    parser.add_argument(
        "--shrinkage", type=float, default=0.0, metavar="FLOAT",
        help="from 0 to 1: how much the scaling of directions of low variance is reduced (default: 0)",
    )  # fmt: skip
    add_embedding(parser, whitening=False)


def whiten(arguments: Arguments) -> None:
    """Learn PCA whitening from the embeddings of the split train, if there is one, for --whitening of other verbs."""
    check_source(arguments.source)
    check_embedding(arguments)
    from vicinal.retrieval import PCAWhitening

    reader = read_embedding(arguments, default_split="train", dim=None)  # --dim is that of the whitening
    embedded = reader.embed(arguments.source, arguments.split)
    whitening = PCAWhitening.fit(embedded.vectors, arguments.dim, arguments.shrinkage)
    whitening.save(arguments.out)
    log(
        f"whitening to {whitening.dim} dimensions, learned from {len(embedded.vectors):,} embeddings"
        + _of_splits(embedded.table)
    )
    print_result(arguments.out)


def _of_splits(table: Table) -> str:
    """Which splits the rows of a table are of, with their numbers."""
    numbers = [f"{len(table.subset(split)):,} of the split {split}" for split in table.splits]
    return f": {', '.join(numbers)}" if numbers else "; they have no splits"
