"""The command `vicinal`: one verb a function, no logic of its own.

Results go to stdout, progress and messages to stderr. Exit status: 0 done, 2 bad input (one line says what is wrong),
1 another failure, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from typing import Any, NoReturn

from vicinal.console import is_first_process, log
from vicinal.errors import InputError, TrainingStoppedError

# Threads that spin while they wait for a core that another job uses can slow training thirtyfold. OpenMP reads this
# when torch is imported, which is one reason why the verbs import what they need themselves.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

Arguments = argparse.Namespace


def data(arguments: Arguments) -> None:
    """Look at a set of labelled images, divide its classes, put noise into it, and save it as a table."""
    from vicinal.data import Table, add_noise

    table = Table.load(arguments.source, root=arguments.root, label_column=None)
    if arguments.shares and len(dict(arguments.shares)) < len(arguments.shares):
        raise InputError("--shares names a split twice; give each one share")
    if arguments.shares:
        table = table.split_classes(shares=dict(arguments.shares), seed=arguments.seed)
    foreign = arguments.foreign, arguments.foreign_share, arguments.foreign_root
    labels = arguments.confusions, arguments.confused_labels, arguments.open_set_labels, arguments.open_set_cluster_size
    table = add_noise(table, arguments.first_classes, arguments.random_labels, *foreign, *labels, seed=arguments.seed)
    if arguments.out:
        table.save(arguments.out)
        log(f"wrote {arguments.out}")
    statistics = table.statistics()
    _result(asdict(statistics) if arguments.json else str(statistics))


def train(arguments: Arguments) -> None:
    """Train a model on labelled images; leaves a run folder with the model, its recipe and its logs."""
    from vicinal.training import Recipe, recipe_parser, resume, train

    if arguments.help:
        return _result(arguments.parser.format_help() + "\n" + recipe_parser().format_help())
    settings = list(arguments.rest)
    path = settings.pop(0) if settings and not settings[0].startswith("-") else None
    recipe = None if arguments.resume and path is None and not settings else Recipe.load(path, settings)
    if arguments.out is None:
        raise InputError("--out is missing: name the run's folder, such as --out run")
    run = resume(arguments.out, recipe) if arguments.resume or recipe is None else train(recipe, arguments.out)
    log(f"the model lies in {run.model}; measure it with: vicinal evaluate {shlex.quote(str(run.path))} [--split test]")
    _result(str(run.model))


def evaluate(arguments: Arguments) -> None:
    """Measure how well images of one class find each other: recall@k, mAP@R, R-precision and mAP."""
    from vicinal.evaluation import Comparison, Evaluation, compare, evaluate, wrong_labels

    method = _reranking(arguments)
    embedded = _reading(arguments).embed(arguments.source, arguments.split)
    vectors, table, recall_at = embedded.vectors, embedded.table, arguments.recall_at
    result: Evaluation | Comparison
    if method is None:
        result = evaluate(vectors, table, recall_at=recall_at)
    else:
        result = compare(vectors, table, method, recall_at=recall_at)
    wrong, labels = wrong_labels(table)
    if wrong:
        log(f"{wrong:,} of the {labels:,} labels evaluated were made wrong on purpose (noisy_label)")
    _result(result.to_dict() if arguments.json else str(result))


def embed(arguments: Arguments) -> None:
    """Turn images into vectors and save them with their paths and labels."""
    from vicinal.data import save_embeddings

    embedded = _reading(arguments).embed(arguments.source, arguments.split)
    save_embeddings(arguments.out, embedded.vectors, embedded.table)
    log("{} embeddings of {} dimensions".format(*embedded.vectors.shape))
    _result(arguments.out)


def index(arguments: Arguments) -> None:
    """Build an index to search in, add to it, delete from it, or say what it holds."""
    from vicinal.retrieval import Index

    reading = _reading(arguments)
    if arguments.kind and not arguments.source:
        raise InputError("--kind says how to build an index; give --source too")
    if arguments.split and not (arguments.source or arguments.add):
        raise InputError("--split chooses images of a source; give --source or --add too")
    if arguments.source:
        embedded = reading.embed(arguments.source, arguments.split)
        index = Index.build(embedded.vectors, embedded.table, arguments.kind or "auto", embedded.fingerprint)
    else:
        index = Index.load(arguments.index)
    if arguments.add:
        embedded = reading.embed(arguments.add, arguments.split)
        index.check_model(embedded.fingerprint)
        index.add(embedded.vectors, embedded.table)
    if arguments.delete:
        index.delete(arguments.delete)
    if arguments.source or arguments.add or arguments.delete:
        index.save(arguments.index)
    facts = index.describe()
    _result(facts if arguments.json else "\n".join(f"{name:18s} {value}" for name, value in facts.items()))


def search(arguments: Arguments) -> None:
    """Find the nearest images in an index, for images, folders of images, or embeddings."""
    from vicinal.report.plots import neighbor_grid
    from vicinal.retrieval import Index, find

    index = Index.load(arguments.index)
    found = []
    for queries in _reading(arguments).embed_each(arguments.queries):
        index.check_model(queries.fingerprint)
        found += find(index, queries.vectors, queries.table, arguments.k, arguments.leave_out_itself)
    if arguments.grid:
        neighbor_grid([each.query for each in found], [each.matches for each in found], arguments.grid)
        log(f"drew {arguments.grid}")
    _result([each.to_dict() for each in found] if arguments.json else "\n\n".join(map(str, found)))


# The parser ---------------------------------------------------------------------------------------------------------

Add = Callable[[argparse.ArgumentParser], None]

SOURCE = (
    "a folder with one folder of images per class, a .csv or .parquet table with the columns path and label, "
    "or a benchmark: digits, omniglot, glyphs"
)
EMBEDDABLE = f"a run folder, a file of embeddings (.parquet or .npy), or images: {SOURCE}"


RERANKINGS = ("contextual", "reciprocal", "query-expansion", "database-augmentation")
RERANK_OPTIONS: dict[str, tuple[type, str]] = {
    "k": (int, "contextual: size of a neighbourhood, the image itself among them (default: 16)"),
    "beta": (float, "contextual: weight of shared neighbours, from 0 to below 1 (default: 0.1)"),
    "epsilon": (float, "contextual: how much farther than the last still counts as a neighbour (default: 0)"),
    "k1": (int, "reciprocal: neighbours looked at (default: 20)"),
    "k2": (int, "reciprocal: images averaged, at most k1 (default: 6)"),
    "lam": (float, "reciprocal: weight of the original distance, from 1e-30 to 1 (default: 0.3)"),
    "n": (int, "query-expansion, database-augmentation: neighbours added (default: 10)"),
    "alpha": (float, "query-expansion, database-augmentation: the larger, the less far neighbours count (default: 3)"),
}


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        sys.exit(_fail(self.prog, f"{message}; `{self.prog} --help` explains", 2))


def build_parser() -> Parser:
    """The command's parser, one sub-parser a verb."""
    parser = Parser(prog="vicinal", description="Image retrieval from labelled pictures.", epilog=_EXAMPLE)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", parser_class=Parser)
    for verb, add in VERBS.items():
        text = (verb.__doc__ or "").strip()
        own = verbs.add_parser(verb.__name__, help=text, description=text, add_help=verb is not train)
        own.set_defaults(verb=verb, parser=own)
        add(own)
    return parser


_EXAMPLE = """\
from a folder of images to searched neighbours:
  vicinal train --data.source photos/ --out run
  vicinal evaluate run --split test
  vicinal index gallery --source photos/ --model run
  vicinal search gallery picture.jpg --model run --grid found.png

`vicinal VERB --help` explains each verb."""


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help=SOURCE)
    parser.add_argument("--root", help="folder that a table's paths start from, or that holds a benchmark's files")
    parser.add_argument(
        "--shares", nargs="+", type=_share, metavar="SPLIT=SHARE",
        help="divide the classes, such as train=0.7 val=0.1 test=0.2; no class is in two splits",
    )  # fmt: skip
    noise = parser.add_argument_group("noise on purpose, in the split train or in a table without splits")
    noise.add_argument("--first-classes", type=float, metavar="CLASSES", help="keep only the first classes by name: "
                       "up to 1 a share of them, above 1 their number")  # fmt: skip
    noise.add_argument("--random-labels", type=float, default=0.0, metavar="SHARE",
                       help="give this share of the images another class's label")  # fmt: skip
    noise.add_argument("--confused-labels", type=float, default=0.0, metavar="SHARE",
                       help="give this share of the images of confused classes the other's label")  # fmt: skip
    noise.add_argument("--confusions", metavar="FILE", help="what is confused: a .csv with the columns "
                       "label and confused_with, a pair a line")  # fmt: skip
    noise.add_argument("--open-set-labels", type=float, default=0.0, metavar="SHARE", help="dissolve whole classes, "
                       "with this share of the images, into small clusters under other labels")  # fmt: skip
    noise.add_argument("--open-set-cluster-size", type=float, default=2.0, metavar="IMAGES",
                       help="how many images such a cluster has on average (default: 2)")  # fmt: skip
    noise.add_argument("--foreign", metavar="SOURCE", help="images foreign to all classes, the same kinds of sources")
    noise.add_argument("--foreign-share", type=float, default=0.0, metavar="SHARE",
                       help="put foreign ones in the place of this share of the images")  # fmt: skip
    noise.add_argument("--foreign-root", help="as --root, for the foreign images")
    parser.add_argument("--seed", type=_whole(0), default=0, help="of the division and the noise (default: 0)")
    parser.add_argument("--out", help="save the table with paths, labels and splits as .csv or .parquet")
    _add_json(parser)


def _add_train(parser: argparse.ArgumentParser) -> None:
    parser.usage = "vicinal train [RECIPE] --out RUN [--resume] [--SETTING VALUE ...]"
    parser.allow_abbrev = False  # a setting's name may begin like one of ours
    parser.epilog = (
        "RECIPE is a YAML file with settings; without one all have their defaults. Every setting can also be given "
        "here, with dots, such as --optimizer.lr 0.001 --loss.alpha 2, and wins over the recipe. The settings:"
    )
    parser.add_argument("--out", metavar="RUN", help="the run's folder; must be new, or hold the run to resume")
    parser.add_argument("--resume", action="store_true", help="continue the run in RUN where it was stopped or killed")
    parser.add_argument("-h", "--help", action="store_true", help="show this help and all settings")


def _add_evaluate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help=EMBEDDABLE)
    parser.add_argument(
        "--recall-at",
        nargs="+",
        type=int,
        metavar="K",
        help="the k of recall@k (default: 1 2 4 8, as far as there are images)",
    )
    _add_reranking(parser)
    _add_reading(parser)
    _add_json(parser)


def _add_embed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help=EMBEDDABLE)
    parser.add_argument("--out", required=True, help=".parquet, or .npy with a .table.csv of paths and labels")
    _add_reading(parser)


def _add_index(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("index", help="the index's folder")
    parser.add_argument("--source", help=f"build the index, anew if there is one, from {EMBEDDABLE}")
    parser.add_argument("--add", metavar="SOURCE", help="add to the index; the same kinds of sources")
    parser.add_argument("--delete", nargs="+", type=_whole(0), metavar="ID", help="delete these ids from the index")
    parser.add_argument(
        "--kind", choices=["auto", "exact", "hnsw", "ivfpq"],
        help="exact compares with every image; hnsw is faster and nearly exact; ivfpq is small and approximate; "
        "auto (the default) is exact up to 100,000 images, then hnsw",
    )  # fmt: skip
    _add_reading(parser)
    _add_json(parser)


def _add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("index", help="the index's folder")
    parser.add_argument("queries", nargs="+", help="images, folders of images, tables, or one file of embeddings")
    parser.add_argument("-k", type=_whole(1), default=10, help="matches a query (default: 10)")
    parser.add_argument("--leave-out-itself", action="store_true", help="leave out the match with the query's own path")
    parser.add_argument("--grid", metavar="PICTURE", help="draw queries and matches, such as found.png")
    _add_reading(parser, split=False)
    _add_json(parser)


def _add_reading(parser: argparse.ArgumentParser, split: bool = True) -> None:
    group = parser.add_argument_group("how images are embedded")
    group.add_argument("--model", help="a model folder, a run folder, or a model's name on the Hugging Face Hub")
    if split:
        group.add_argument("--split", help="only the images of this split, such as test")
    group.add_argument("--root", help="folder that a table's paths start from, or that holds a benchmark's files")
    group.add_argument("--batch", type=_whole(1), default=64, help="images at a time (default: 64)")
    group.add_argument("--workers", type=_whole(0), default=0, help="processes that read images (default: 0)")
    group.add_argument("--precision", choices=["32", "bf16", "16"], default="32", help="of the network (default: 32)")
    group.add_argument("--device", help="such as cpu or cuda (default: a GPU where there is one)")
    group.add_argument("--on-error", choices=["raise", "skip"], default="raise", help="at an unreadable image: stop "
                       "(the default), or leave it out and count it")  # fmt: skip


def _add_reranking(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("re-ranking", "metrics before and after a second look at every ranking")
    group.add_argument(
        "--rerank", choices=RERANKINGS,
        help="contextual and reciprocal: images stand higher that have the same neighbours as the query; "
        "query-expansion: search again with each query moved towards what it found; "
        "database-augmentation: with each image of the gallery moved towards its neighbours",
    )  # fmt: skip
    for option, (kind, text) in RERANK_OPTIONS.items():
        group.add_argument(f"--rerank.{option}", type=kind, metavar=option.upper(), help=text)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


VERBS: dict[Callable[[Arguments], None], Add] = {
    data: _add_data,
    train: _add_train,
    evaluate: _add_evaluate,
    embed: _add_embed,
    index: _add_index,
    search: _add_search,
}


def _whole(least: int) -> Callable[[str], int]:
    """Reads a whole number that is not below `least`."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number from {least} on")
        return int(text)

    return read


def _share(text: str) -> tuple[str, float]:
    split, _, share = text.partition("=")
    try:
        return split, float(share)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not SPLIT=SHARE, such as train=0.7") from None


def _reranking(arguments: Arguments) -> Any:
    """The method of re-ranking that was asked for, None if none was."""
    from vicinal.retrieval import ContextualReranking, DatabaseAugmentation, QueryExpansion, ReciprocalReranking

    given = {name: getattr(arguments, f"rerank.{name}") for name in RERANK_OPTIONS}
    given = {name: value for name, value in given.items() if value is not None}
    if arguments.rerank is None:
        if given:
            raise InputError(f"--rerank.{next(iter(given))} says how to re-rank; give --rerank too")
        return None
    methods: tuple[Any, ...] = (ContextualReranking, ReciprocalReranking, QueryExpansion, DatabaseAugmentation)
    method = dict(zip(RERANKINGS, methods, strict=True))[arguments.rerank]
    known = [field.name for field in fields(method)]
    for name in given:
        if name not in known:
            raise InputError(f"--rerank.{name} is no option of {arguments.rerank}; its options: {', '.join(known)}")
    return method(**given)


def _reading(arguments: Arguments) -> Any:
    from vicinal.sources import Reading

    names = ("model", "root", "batch", "workers", "precision", "device", "on_error")
    return Reading(**{name: getattr(arguments, name) for name in names})


# Running it ---------------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = build_parser()
    arguments, rest = parser.parse_known_args(argv)
    if rest and "verb" not in arguments:
        return _fail("vicinal", f"unknown argument {rest[0]}; `vicinal --help` explains", 2)
    if arguments.version:
        from vicinal import __version__

        _result(__version__)
    elif "verb" in arguments:
        return _run(arguments, rest)
    else:
        parser.print_help()
    return 0


def _run(arguments: Arguments, rest: list[str]) -> int:
    """Run a verb; whatever a user can cause ends in one line and an exit status."""
    name = arguments.parser.prog
    warnings.showwarning = lambda message, *_, **__: log(f"{name}: warning: {message}")
    arguments.rest = rest
    try:
        if rest and arguments.verb is not train:
            raise InputError(f"unknown argument {rest[0]}; `{name} --help` explains")
        arguments.verb(arguments)
    except InputError as error:
        return _fail(name, str(error), 2)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _fail(name, f"{error.filename or 'a file'}: {error.strerror or error}", 1)
    except TrainingStoppedError as error:
        return _fail(name, str(error), error.exit_status)
    except KeyboardInterrupt:
        return _fail(name, "interrupted", 130)
    except RuntimeError as error:
        from vicinal import distributed

        if distributed.world_size() == 1:
            raise
        return _fail(name, f"another process of the run failed ({str(error).splitlines()[0]})", 1)
    return 0


def _fail(name: str, message: str, status: int) -> int:
    # Not through `log`: of several processes, the one in trouble may not be the one that speaks for all.
    print(f"{name}: error: {' '.join(message.split())}", file=sys.stderr)
    return status


def _result(result: Any) -> None:
    if is_first_process():
        print(result if isinstance(result, str) else json.dumps(result, indent=2))
