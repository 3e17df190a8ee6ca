"""`vicinal adapt` and `vicinal evaluate --cross`: a new model for the stored embeddings of an old one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.cli import inputs
from vicinal.cli.flags import Arguments, Parser, flag_type, print_result
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.workflows.embedded_table import EmbeddedTable
    from vicinal.workflows.settings import EvaluationSettings

EXCLUDED = ("compare", "average", "per_query", "rerank", "refiner", "group_by", "clusters", "open_set", "devices",
            "csv")  # fmt: skip


def add_adapt(parser: Parser) -> None:
    parser.add_argument("old", help=f"embeddings to be mapped: {inputs.SOURCE}; with --images: a model")
    parser.add_argument("new", help="embeddings of the same images by the other model, or with --images: that model")
    parser.add_argument("--out", required=True, metavar="FILE", help=".safetensors file for --adapter of other verbs")
    parser.add_argument("--images", metavar="SOURCE", help=f"embed these images with both models: {inputs.IMAGES}")
    parser.add_argument(
        "--method", choices=["procrustes", "ridge"], default="procrustes",
        help="procrustes: a rotation, for equal dimensions; ridge: ridge regression, for any (default: procrustes)",
    )  # fmt: skip
    parser.add_argument("--alpha", type=flag_type(float), metavar="FLOAT",
                        help="strength of the regularization of ridge (default: 1)")  # fmt: skip
    inputs.add_embedding(parser)


def adapt(arguments: Arguments) -> None:
    """Learn a linear map from the embeddings of an old model to those of a new one, for --adapter of other verbs."""
    if arguments.alpha is not None and arguments.method != "ridge":
        raise InputError("--alpha is for ridge; give --method ridge too")
    if arguments.old == arguments.new:
        raise InputError(f"{arguments.old} is named twice; an adapter needs two models")
    check = inputs.check_source if arguments.images is None else inputs.check_model
    check(arguments.old), check(arguments.new)
    inputs.check_source(arguments.images)
    inputs.check_embedding(arguments)
    if arguments.images is not None and getattr(arguments, "model", None) is not None:
        raise InputError("with --images the two sources are the models; leave out --model")
    from vicinal.workflows.compatibility import learn_adapter
    from vicinal.workflows.embedding_reader import embed_several

    reader, names = inputs.read_embedding(arguments, default_split="train"), [arguments.old, arguments.new]
    several = embed_several(reader, names, arguments.split, images=arguments.images, keep_models=True)
    old, new = (embedded for _, embedded in several)
    adapter = learn_adapter(old, new, arguments.method, 1.0 if arguments.alpha is None else arguments.alpha)
    adapter.save(arguments.out)
    log(f"adapter from {old.vectors.shape[1]} to {new.vectors.shape[1]} dimensions, learned from {len(old.table):,} "
        "embeddings")  # fmt: skip
    print_result(arguments.out)


def add_cross(parser: Parser) -> None:
    group = parser.add_argument_group("an old model and a new one")
    group.add_argument("--cross", action="store_true", help="two sources, OLD and NEW: also evaluate queries of the "
                       "new model against the unchanged gallery of the old one")  # fmt: skip
    group.add_argument("--adapter", metavar="FILE", help="with --cross: a file of vicinal adapt, to map the gallery to "
                       "the new model, or queries to the old one")  # fmt: skip
    group.add_argument(
        "--tolerance", type=flag_type(float), metavar="FLOAT",
        help="with --cross: warn if the upgrade loses more than this of recall@1 or mAP@R against re-embedding the "
        "gallery, from 0 to 1 (default: 0.01)",
    )  # fmt: skip


def check_cross(arguments: Arguments) -> None:
    """Raise InputError if flags about two models are given without --cross, or with flags that exclude it."""
    if not arguments.cross:
        for name in ("adapter", "tolerance"):
            if getattr(arguments, name) is not None:
                raise InputError(f"--{name} needs an old and a new model; give --cross too")
        return
    if len(arguments.sources) != 2:
        raise InputError(f"--cross needs two sources, an old model and a new one, not {len(arguments.sources)}")
    for name in EXCLUDED:
        if getattr(arguments, name, None) not in (None, False):
            raise InputError(f"--{name} cannot be combined with --cross; leave one of them out")
    if arguments.intervals == "none":
        raise InputError("--cross needs intervals; leave out --intervals none")
    tolerance = arguments.tolerance
    if tolerance is not None and not 0 <= tolerance <= 1:
        raise InputError(f"--tolerance {tolerance:g} must be from 0 to 1")
    inputs.check_files(arguments.adapter)


def evaluate_cross(arguments: Arguments, sources: dict[str, EmbeddedTable], settings: EvaluationSettings) -> None:
    """Print the scores across two models, and log what an upgrade without embedding again loses."""
    from vicinal.retrieval import LinearAdapter
    from vicinal.workflows.compatibility import compare_across

    adapter = None if arguments.adapter is None else LinearAdapter.load(arguments.adapter)
    tolerance = 0.01 if arguments.tolerance is None else arguments.tolerance
    results, warnings = compare_across(sources, settings, adapter, tolerance)
    print_result(results.to_json() if arguments.json else str(results))
    for warning in warnings:
        log(f"warning: {warning}")
