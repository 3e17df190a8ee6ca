"""`vicinal embed` and `vicinal whiten`: embeddings of images, and whitening learned from them."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from vicinal.cli import inputs
from vicinal.cli.flags import Arguments, Parser, flag_type, integer_from, print_result
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

SHARD = re.compile(r"([1-9]\d{0,5})/([1-9]\d{0,5})")


def add_embed(parser: Parser) -> None:
    parser.add_argument("source", nargs="?", help=inputs.SOURCE)
    parser.add_argument(
        "--out", metavar="PATH",
        help=".parquet, or .npy with a .table.csv of paths and labels; with --shard or --ray, a folder for all shards",
    )  # fmt: skip
    inputs.add_refiner(parser, "refines every embedding by its nearest neighbors among the others")
    parser.add_argument("--adapter", metavar="FILE", help="a file of vicinal adapt: map the embeddings, stored ones or "
                        "queries, from one model to the other")  # fmt: skip
    inputs.add_embedding(parser)
    group = parser.add_argument_group("shards of many images")
    group.add_argument(
        "--shard", type=_shard, metavar="I/N",
        help="embed the I-th of N equal shards of the source, I from 1, into a folder of its own in --out; the same "
        "command resumes a shard whose process was killed, and unreadable images are left out and listed",
    )  # fmt: skip
    group.add_argument(
        "--ray", metavar="ADDRESS",
        help="embed the source, or the shard, on a Ray cluster: local (started on this machine), auto (the one this "
        "machine belongs to) or HOST:PORT; CPUs read images, and each GPU runs a model",
    )  # fmt: skip
    group.add_argument(
        "--part_size", type=integer_from(1), metavar="INT",
        help="images per part file of a shard; it is resumed after its last part (default: 10,000)",
    )  # fmt: skip
    group.add_argument(
        "--merge", metavar="FOLDER", help="merge all shards in a folder into the file --out, as one call would write it"
    )
    group.add_argument("--verify", metavar="FOLDER", help="check that a folder holds all shards, by their checksums")


def _shard(text: str) -> tuple[int, int]:
    """The number of a shard and that of all, from I/N."""
    match = SHARD.fullmatch(text)
    if match is None or int(match[1]) > int(match[2]):
        raise argparse.ArgumentTypeError(f"{text} is not a shard I/N with I from 1 to N, such as 1/8")
    return int(match[1]), int(match[2])


def embed(arguments: Arguments) -> None:
    """Embed images, and save the vectors with their paths and labels."""
    _check_combination(arguments)
    if arguments.verify is not None or arguments.merge is not None:
        return _merge(arguments)
    inputs.check_source(arguments.source)
    inputs.check_embedding(arguments)
    inputs.check_files(arguments.adapter)
    if arguments.shard is not None or arguments.ray is not None:
        return _embed_shard(arguments)
    from vicinal.data import save_embeddings

    if arguments.adapter is not None:
        from vicinal.retrieval import LinearAdapter

        adapter = LinearAdapter.load(arguments.adapter)
    refiner = inputs.load_refiner(arguments)
    embedded = inputs.read_embedding(arguments).embed(arguments.source, arguments.split)
    vectors, fingerprint = embedded.vectors, embedded.fingerprint
    if refiner is not None:
        from vicinal.retrieval import refine

        inputs.check_refiner(refiner, embedded)
        vectors = refine(refiner, embedded.vectors)
        fingerprint = None if fingerprint is None else f"{fingerprint}+{refiner.fingerprint()}"
    if arguments.adapter is not None:
        adapter.check_model(fingerprint)
        vectors, fingerprint = adapter.apply(vectors), adapter.target
    save_embeddings(arguments.out, vectors, embedded.table, fingerprint, embedded.engine)
    log("{} embeddings of {} dimensions".format(*vectors.shape))
    print_result(arguments.out)


def _check_combination(arguments: Arguments) -> None:
    given = [name for name in ("source", "merge", "verify") if getattr(arguments, name) is not None]
    in_parts = arguments.shard is not None or arguments.ray is not None
    message = None
    if len(given) != 1:
        message = "give the images to embed, or else --merge or --verify with a folder of shards"
    elif arguments.out is None and given != ["verify"]:
        message = "--out is missing: name the file or folder"
    elif arguments.out is not None and given == ["verify"]:
        message = "--verify writes nothing; leave out --out, or use --merge, which verifies them too"
    elif arguments.shard is not None and given != ["source"]:
        message = "--shard embeds images of a source; --merge and --verify work on all shards"
    elif arguments.ray is not None and given != ["source"]:
        message = "--ray embeds images of a source; --merge and --verify need no cluster"
    elif arguments.part_size is not None and not in_parts:
        message = "--part_size is for the parts of a shard; give --shard or --ray too"
    elif arguments.ray is not None and getattr(arguments, "num_workers", None):
        message = "with --ray all CPUs of the cluster read images; leave out --num_workers"
    elif hasattr(arguments, "labels") and given != ["source"]:
        message = "--labels is for one file of embeddings; merge the shards first, and give that file as source"
    elif arguments.refiner is not None and (in_parts or given != ["source"]):
        message = "--refiner needs all embeddings; embed the shards first, and refine their folder as a source"
    elif arguments.adapter is not None and (in_parts or given != ["source"] or arguments.refiner is not None):
        message = "--adapter maps the embeddings of one source without --refiner; embed or merge the shards first"
    elif in_parts and Path(arguments.out).suffix.lower() in (".parquet", ".npy"):
        message = f"{arguments.out}: with {'--shard' if arguments.ray is None else '--ray'}, --out is a folder"
    if message is not None:
        raise InputError(message)


def _embed_shard(arguments: Arguments) -> None:
    if arguments.ray is not None:
        from vicinal.workflows.ray_job import check_reachable

        check_reachable(arguments.ray)
    from vicinal.utils.console import counted
    from vicinal.workflows.shards import PART_SIZE

    reader, (shard, num_shards) = inputs.read_embedding(arguments), arguments.shard or (1, 1)
    what, part_size = (reader, arguments.source, arguments.out), arguments.part_size or PART_SIZE
    if arguments.ray is None:
        from vicinal.workflows.shards import embed_shard

        done = embed_shard(*what, shard, num_shards, arguments.split, part_size)
    else:
        from vicinal.workflows.ray_job import embed_on_ray

        done = embed_on_ray(*what, arguments.ray, shard, num_shards, arguments.split, part_size)
    numbers = f"{counted(done.num_embeddings, 'embedding')} in {counted(len(done.parts), 'part')}"
    log(f"shard {done.name}: {numbers}, {counted(len(done.unreadable), 'image')} left out")
    print_result(str(done.folder(arguments.out)))


def _merge(arguments: Arguments) -> None:
    folder = arguments.merge or arguments.verify
    inputs.check_files(folder)
    from vicinal.data import merge_shards, verify_shards
    from vicinal.utils.console import counted, listed

    shards = verify_shards(folder) if arguments.merge is None else merge_shards(folder, arguments.out)
    text = f"{counted(len(shards.manifests), 'shard')}, {counted(shards.num_parts, 'part')}, "
    text += f"{counted(shards.num_embeddings, 'embedding')} of {shards.dim} dimensions"
    if shards.unreadable:
        log(f"{counted(len(shards.unreadable), 'image')} could not be read:")
        for line in listed(list(shards.unreadable.values())):
            log(line)
    if arguments.merge is None:
        return print_result(f"{folder}: {text}")
    log(text)
    print_result(arguments.out)


def add_whiten(parser: Parser) -> None:
    parser.add_argument("source", help=f"the training images: {inputs.SOURCE}")
    parser.add_argument("--out", required=True, metavar="FILE", help=".safetensors file for --whitening of other verbs")
    parser.add_argument("--dim", type=integer_from(1), metavar="INT",
                        help="dimension of whitened vectors (default: the dimension before)")  # fmt: skip
    parser.add_argument(
        "--shrinkage", type=flag_type(float), default=0.0, metavar="FLOAT",
        help="from 0 to 1: how much the scaling of directions of low variance is reduced (default: 0)",
    )  # fmt: skip
    inputs.add_embedding(parser, whitening=False)


def whiten(arguments: Arguments) -> None:
    """Learn PCA whitening from the embeddings of the split train, if there is one, for --whitening of other verbs."""
    inputs.check_source(arguments.source)
    inputs.check_embedding(arguments)
    from vicinal.retrieval import PCAWhitening

    reader = inputs.read_embedding(arguments, default_split="train", dim=None)  # --dim is that of the whitening
    embedded = reader.embed(arguments.source, arguments.split)
    whitening = PCAWhitening.fit(embedded.vectors, arguments.dim, arguments.shrinkage)
    whitening.save(arguments.out)
    numbers = [f"{len(embedded.table.subset(split)):,} of the split {split}" for split in embedded.table.splits]
    splits = f": {', '.join(numbers)}" if numbers else "; they have no splits"
    log(f"whitening to {whitening.dim} dimensions, learned from {len(embedded.vectors):,} embeddings{splits}")
    print_result(arguments.out)
