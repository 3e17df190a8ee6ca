"""`vicinal search` and `vicinal serve`: the nearest images of an index, once or as an HTTP service."""

from __future__ import annotations

import argparse
import copy
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from vicinal.cli import inputs
from vicinal.cli.flags import Arguments, Parser, add_settings, flag_type, integer_from, print_result, read_settings
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.models import ContextRefiner
    from vicinal.report import MatchedPair
    from vicinal.retrieval import ImageIndex, LocalReranking, SearchResult
    from vicinal.workflows.local_features import LocalSearch

DEFAULT_K = 10
SERVICE_MODULES = ("fastapi", "uvicorn", "prometheus_client", "python_multipart")
NOT_ABOUT_MODELS = (
    "root", "path_column", "label_column", "labels", "where", "batch_size", "num_workers", "on_error"
)  # fmt: skip
MAX_PORT = 65_535


def add_search(parser: Parser) -> None:
    parser.add_argument("index", help=inputs.INDEX)
    parser.add_argument("queries", nargs="+", help="images, folders of images, tables, or one file of embeddings")
    parser.add_argument(
        "-k", type=integer_from(1), metavar="INT",
        help=f"number of matches per query (default: {DEFAULT_K}, or all of an index with fewer images)",
    )  # fmt: skip
    parser.add_argument("--exclude_self", action="store_true", help="leave out the match with the query's own path")
    parser.add_argument(
        "--where", metavar="CONDITION", help="find only images whose columns in the index match this condition, such "
        "as \"category == 'cup' and price < 20\"",
    )  # fmt: skip
    parser.add_argument(
        "--group_by", metavar="COLUMN", help="find only the best image per value of a column, such as product"
    )
    number: dict[str, Any] = {"type": flag_type(float), "metavar": "FLOAT"}
    parser.add_argument("--min_score", **number, help="leave out matches with a lower score")
    parser.add_argument("--min_probability", **number, help="leave out matches less likely than this to be right, "
                        "by the calibration of the index (vicinal calibrate)")  # fmt: skip
    parser.add_argument("--grid", metavar="PICTURE", help="draw queries and matches, such as found.png; further sheets "
                        "are found_2.png and so on")  # fmt: skip
    parser.add_argument(
        "--patches", metavar="PICTURE", help="draw queries beside their matches, with lines between matching patches; "
        "with --rerank local",
    )  # fmt: skip
    inputs.add_refiner(
        parser, "that of the index, if it was built with one: refines every query by its nearest neighbors in the index"
    )
    inputs.add_reranking(
        parser, "each query is compared with all images that may be found, and scores are those of the method"
    )
    inputs.add_embedding(parser, split=False, where=False)
    inputs.add_json(parser)
    parser.show_first(
        "k", "exclude_self", "where", "group_by", "min_score", "min_probability", "grid", "rerank", "patches", "model",
        "json",
    )  # fmt: skip


def search(arguments: Arguments) -> None:
    """Find the nearest images in an index, for images, folders of images, or embeddings."""
    inputs.check_index(arguments.index)
    for source in arguments.queries:
        inputs.check_source(source)
    inputs.check_embedding(arguments)
    reranking: Any = inputs.read_reranking(arguments)
    if arguments.patches is not None and arguments.rerank != "local":
        raise InputError("--patches draws what --rerank local finds; give that too")
    from vicinal.retrieval import Index

    index = Index.load(arguments.index)
    reader, refiner = inputs.reader_for(index, arguments, arguments.queries, where=None)  # --where is for the index
    find = _search_function(arguments, index, is_reranked=reranking is not None)
    found: list[SearchResult] = []
    local: LocalSearch | None = None
    pairs: list[MatchedPair] = []
    flags = inputs.made_with(arguments, arguments.queries[0])
    for queries in reader.embed_sources(arguments.queries):
        inputs.check_models(index, refiner, queries, flags)
        if arguments.rerank == "local":
            local = local or _local_search(arguments, index, queries.origin)
            reranking = local.reranking(queries.table)
        results = find(
            index,
            queries.vectors,
            queries.table,
            arguments.k or max(1, index.count(at_most=DEFAULT_K)),
            arguments.exclude_self,
            refiner=refiner,
            where=arguments.where,
            group_by=arguments.group_by,
            reranking=reranking,
        )
        found += results
        if arguments.patches:
            pairs += _matched_pairs(reranking, results)
    if arguments.patches:
        _draw_patches(pairs, local, arguments.patches)
    if arguments.grid:
        _draw(found, arguments.grid)
    print_result([each.to_dict() for each in found] if arguments.json else "\n\n".join(map(str, found)))


def _search_function(
    arguments: Arguments, index: ImageIndex, is_reranked: bool
) -> Callable[..., Sequence[SearchResult]]:
    """The function that searches the index: with probabilities if it is calibrated, without matches below a minimum."""
    from vicinal.retrieval import match_images, search_images
    from vicinal.workflows.calibration_places import warn_of_larger_gallery

    has_minimum = arguments.min_score is not None or arguments.min_probability is not None
    if not has_minimum and (index.match_calibration is None or is_reranked):
        return search_images
    warn_of_larger_gallery(arguments.index, index)
    return partial(match_images, min_score=arguments.min_score, min_probability=arguments.min_probability)


def _local_search(arguments: Arguments, index: ImageIndex, model: object) -> LocalSearch:
    from vicinal.workflows.local_features import LocalSearch
    from vicinal.workflows.settings import LocalSettings

    is_given = any(name.startswith("local.") for name in vars(arguments))
    settings = read_settings(LocalSettings, arguments, "local.") if is_given else None
    weight = getattr(arguments, "rerank.weight")
    return LocalSearch(index, model, settings, inputs.read_reranking(arguments), weight)


def _matched_pairs(reranking: LocalReranking, found: Sequence[SearchResult]) -> list[MatchedPair]:
    from vicinal.report import MatchedPair

    pairs = []
    for row, each in enumerate(found):
        shown = [match for match in each.matches if "path" in match]
        matches = reranking.matches(row, [match["id"] for match in shown]) if shown else []
        for match, patches in zip(shown, matches, strict=True):
            caption, boxes = f"{match['score']:.2f} {match.get('label', '')}", (each.query.get("box"), match.get("box"))
            pairs.append(MatchedPair(each.query["path"], match["path"], patches, caption, *boxes))
    return pairs


def _draw_patches(pairs: Sequence[MatchedPair], local: LocalSearch | None, path: str) -> None:
    from vicinal.report import draw_matching_patches
    from vicinal.report.matching_patches import MAX_PAIRS

    assert local is not None
    draw_matching_patches(pairs, local.transform, path)
    log(f"drew {path}" + (f": the first {MAX_PAIRS} of {len(pairs):,} pairs" if len(pairs) > MAX_PAIRS else ""))


def _draw(found: Sequence[SearchResult], path: str) -> None:
    """Draw queries and matches, each with its first further column, such as the price."""
    from vicinal.report import neighbor_grid
    from vicinal.retrieval.search import further_columns

    def item(record: dict[str, Any]) -> dict[str, Any]:
        caption = next((f"{name} {value}" for name, value in further_columns(record).items()), None)
        return {**record, "caption": caption}

    queries = [item(each.query) for each in found]
    for sheet in neighbor_grid(queries, [[item(match) for match in each.matches] for each in found], path):
        log(f"drew {sheet}")


def add_serve(parser: Parser) -> None:
    from vicinal.serving.limits import Limits
    from vicinal.workflows.models import EmbeddingOptions

    parser.add_argument("index", help="the folder of the index, or the URL of one in a database, such as "
                        "postgresql://USER@HOST/DATABASE?table=TABLE")  # fmt: skip
    parser.add_argument(
        "--onnx", metavar="FILE", help="embed images with a model that `vicinal export` wrote, in place of --model"
    )
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on; 127.0.0.1 (the default) is for "
                        "this machine only, and any other needs a token")  # fmt: skip
    parser.add_argument("--port", type=_port, default=8000, help="0 takes a free one (default: 8000)")
    parser.add_argument("--token_file", metavar="FILE", help="a file with the token that requests must have "
                        "(Authorization: Bearer TOKEN); without it, the variable VICINAL_TOKEN")  # fmt: skip
    parser.add_argument("--read_only", action="store_true", help="read only, and follow the changes of other "
                        "processes")  # fmt: skip
    parser.add_argument("--cors_origin", nargs="+", default=[], metavar="ORIGIN", help="allow requests from pages of "
                        "these origins, such as https://shop.example")  # fmt: skip
    parser.add_argument("--allow_url", nargs="+", default=[], metavar="HOST", help="hosts from which a request may "
                        "have images fetched by https (default: none)")  # fmt: skip
    parser.add_argument("--no_access_log", action="store_true", help="do not log each request to stderr")
    inputs.add_refiner(parser, "that of the index, if it was built with one")
    add_settings(parser.add_argument_group("embedding of images"), EmbeddingOptions, skip=NOT_ABOUT_MODELS)
    add_settings(parser.add_argument_group("limits"), Limits)


def serve(arguments: Arguments) -> None:
    """Serve an index: search, add and delete by HTTP, and a page to drop a picture on."""
    from vicinal.serving.limits import Limits
    from vicinal.utils.errors import import_extra

    _check_flags(arguments)
    limits = read_settings(Limits, arguments)
    for module in SERVICE_MODULES + ("httpx",) * bool(arguments.allow_url):
        import_extra(module, "serve", "vicinal serve")
    from vicinal.serving.security import access_for, read_token

    access = access_for(arguments.host, read_token(arguments.token_file), tuple(arguments.cors_origin))
    from vicinal.retrieval import Index
    from vicinal.serving.app import run
    from vicinal.serving.service import Service
    from vicinal.serving.workers import start_early

    index = Index.load(arguments.index)
    if "model" in {*vars(arguments), *index.made_with}:
        start_early()
    embedder = _embedder(arguments, index)
    loaded = index if isinstance(index, Index) else None
    if loaded is None:  # the service connects by itself
        index.close()
    service = Service(
        arguments.index, embedder, limits, arguments.read_only, inputs.load_refiner(arguments), arguments.allow_url,
        loaded, lambda settings: _models_after_upgrade(arguments, settings),
    )  # fmt: skip
    run(service, arguments.host, arguments.port, access, not arguments.no_access_log)


def _check_flags(arguments: Arguments) -> None:
    """Raise InputError for flags that exclude each other, or name missing files; --onnx becomes --model."""
    if inputs.is_url(arguments.index) and arguments.refiner is not None:
        raise InputError("an index of refined embeddings is kept in a folder, not in a database; leave out --refiner")
    inputs.check_index(arguments.index)
    inputs.check_files(arguments.token_file, arguments.onnx)
    if arguments.onnx is not None:
        if getattr(arguments, "model", None) is not None:
            raise InputError("--onnx replaces --model; give one of them")
        arguments.model = arguments.onnx
    inputs.check_embedding(arguments)


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) <= MAX_PORT):
        raise argparse.ArgumentTypeError(f"{text} is not a port; use 0 to {MAX_PORT}")
    return int(text)


def _models_after_upgrade(arguments: Arguments, settings: Mapping[str, Any]) -> tuple[Any, ContextRefiner | None]:
    """The embedder and the refiner of an index that was upgraded, by the flags that it remembers."""
    from vicinal.retrieval.index.made_with import FLAGS, model_mismatch_error

    made_with, fingerprint = settings.get("made_with") or {}, settings.get("model_fingerprint")
    if "model" not in made_with:
        raise InputError("the index does not say which model made its new embeddings; restart the service with it")
    flags = copy.copy(arguments)
    for name in set(FLAGS) & set(vars(flags)) - {"engine"}:
        delattr(flags, name)
    flags.refiner = None
    inputs.use_flags_of_index(flags, made_with, [])
    embedder = _embedder_of(flags)
    if fingerprint not in (None, embedder.fingerprint):
        raise model_mismatch_error(str(fingerprint), str(embedder.fingerprint), made_with, made_with)
    return embedder, inputs.load_refiner(flags)


def _embedder(arguments: Arguments, index: ImageIndex) -> Any:
    """The embedder of the images of the index; None if no model is known."""
    if "model" in index.made_with:
        inputs.use_flags_of_index(arguments, index.made_with, [])
    if getattr(arguments, "model", None) is None:
        log(f"{arguments.index} does not say which model made its embeddings, so queries must be vectors or ids; "
            "with --model, images too")  # fmt: skip
        return None
    embedder = _embedder_of(arguments)
    index.check_model(embedder.fingerprint, inputs.made_with(arguments, str(arguments.index)))
    return embedder


def _embedder_of(arguments: Arguments) -> Any:
    from vicinal.serving.embedders import TorchEmbedder
    from vicinal.workflows.embedding_reader import BatchEmbedder

    reader, name = inputs.read_embedding(arguments), os.path.basename(os.path.normpath(arguments.model))
    batches = BatchEmbedder(reader.loaded_model, reader, num_images=None)
    return TorchEmbedder(batches, batches.transform, name, reader.fingerprint, reader.loaded_model)
