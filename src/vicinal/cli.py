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
from dataclasses import asdict
from typing import Any

from vicinal import cli_choices as choices
from vicinal.cli_arguments import (
    Parser,
    add_data,
    add_embed,
    add_evaluate,
    add_index,
    add_recipe,
    add_report,
    add_search,
    add_whiten,
    fail,
)
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
    from vicinal.training import Recipe, resume, train

    run = _from_recipe(arguments, Recipe, train, resume)
    if run is not None:
        again = f"vicinal evaluate {shlex.quote(str(run.path))} [--split test]"
        log(f"the model lies in {run.model}; measure it with: {again}")
        _result(str(run.model))


def refine(arguments: Arguments) -> None:
    """Train a context refiner, which moves embeddings by what their nearest look like, on finished embeddings."""
    from vicinal.refining import resume_refiner, train_refiner
    from vicinal.training import RefinerRecipe

    run = _from_recipe(arguments, RefinerRecipe, train_refiner, resume_refiner)
    if run is not None:
        embedder = run.embedder if run.embedder.is_dir() else "RUN"
        again = f"vicinal evaluate {embedder} --refiner {shlex.quote(str(run.path))}"
        log(f"the refiner lies in {run.model}; measure it with: {again}")
        _result(str(run.model))


def evaluate(arguments: Arguments) -> None:
    """Measure how well images of one class find each other: recall@k, mAP@R, R-precision, mAP and more."""
    choices.check_evaluate(arguments)
    measuring, method = choices.measuring(arguments), choices.method(arguments)
    sources = choices.sources(arguments)
    choices.check_labelled(sources)
    for name, embedded in sources.items():
        _tell_wrong_labels(name, embedded.table)
    if arguments.compare or arguments.average:
        together = measuring.compared if arguments.compare else measuring.averaged
        results = [together(sources, method)]
    else:
        results = [measuring.one(name, embedded, method) for name, embedded in sources.items()]
        if arguments.per_query:
            _write_per_query(arguments.per_query, results[0].evaluation, sources)
    _result(_shown(results, arguments))


def report(arguments: Arguments) -> None:
    """Write a page about an evaluated set, or several side by side: one HTML file that opens from disk."""
    from vicinal.reporting import default_page, write_report

    out, measuring = arguments.out or default_page(arguments.sources), choices.measuring(arguments)
    if len(arguments.sources) > 1 and arguments.map_images is not None:
        raise InputError("--map-images is about the page of one source; a comparison has no map")
    sources = choices.sources(arguments)
    choices.check_labelled(sources)
    write_report(out, sources, measuring, arguments.title, arguments.map_images)
    _result(str(out))


def whiten(arguments: Arguments) -> None:
    """Learn PCA whitening from the embeddings of training images, for --whitening of other verbs."""
    from vicinal.retrieval import PCAWhitening

    embedded = choices.reading(arguments).embed(arguments.source, arguments.split)
    whitening = PCAWhitening.fit(embedded.vectors, arguments.dim, arguments.shrinkage)
    whitening.save(arguments.out)
    log(f"whitening to {whitening.dim} dimensions, learned from {len(embedded.vectors):,} embeddings")
    _result(arguments.out)


def embed(arguments: Arguments) -> None:
    """Turn images into vectors and save them with their paths and labels."""
    from vicinal.data import save_embeddings

    refiner = choices.refiner(arguments)
    embedded = choices.reading(arguments).embed(arguments.source, arguments.split)
    vectors, made_by = embedded.vectors, embedded.fingerprint
    if refiner is not None:
        vectors, made_by = choices.refined(refiner, embedded)
    save_embeddings(arguments.out, vectors, embedded.table, made_by)
    log("{} embeddings of {} dimensions".format(*vectors.shape))
    _result(arguments.out)


def index(arguments: Arguments) -> None:
    """Build an index to search in, add to it, delete from it, or say what it holds."""
    from vicinal.retrieval import Index

    reading, refiner = choices.reading(arguments), choices.refiner(arguments)
    if arguments.kind and not arguments.source:
        raise InputError("--kind says how to build an index; give --source too")
    if arguments.split and not (arguments.source or arguments.add):
        raise InputError("--split chooses images of a source; give --source or --add too")
    if refiner and not (arguments.source or arguments.add):
        raise InputError("--refiner refines images that come in; give --source or --add too")
    if arguments.source:
        embedded = reading.embed(arguments.source, arguments.split)
        if refiner is not None:
            choices.check_refiner(refiner, embedded)
        known = {"model_fingerprint": embedded.fingerprint, "refiner": refiner}
        index = Index.build(embedded.vectors, embedded.table, arguments.kind or "auto", **known)
    else:
        index = Index.load(arguments.index)
    if arguments.add:
        index.check_refiner(refiner)
        embedded = reading.embed(arguments.add, arguments.split)
        choices.check_models(index, refiner, embedded)
        index.add(embedded.vectors, embedded.table, refiner)
    if arguments.delete:
        index.delete(arguments.delete)
    if arguments.source or arguments.add or arguments.delete:
        index.save(arguments.index)
    facts = index.describe()
    _result(facts if arguments.json else "\n".join(f"{name:20s} {value}" for name, value in facts.items()))


def search(arguments: Arguments) -> None:
    """Find the nearest images in an index, for images, folders of images, or embeddings."""
    from vicinal.report.plots import neighbor_grid
    from vicinal.retrieval import Index, find

    index, refiner = Index.load(arguments.index), choices.refiner(arguments)
    index.check_refiner(refiner)
    found = []
    for queries in choices.reading(arguments).embed_each(arguments.queries):
        choices.check_models(index, refiner, queries)
        found += find(index, queries.vectors, queries.table, arguments.k, arguments.leave_out_itself, refiner)
    if arguments.grid:
        neighbor_grid([each.query for each in found], [each.matches for each in found], arguments.grid)
        log(f"drew {arguments.grid}")
    _result([each.to_dict() for each in found] if arguments.json else "\n\n".join(map(str, found)))


Add = Callable[[argparse.ArgumentParser], None]
VERBS: dict[Callable[[Arguments], None], Add] = {
    data: add_data,
    train: add_recipe,
    evaluate: add_evaluate,
    report: add_report,
    embed: add_embed,
    refine: add_recipe,
    whiten: add_whiten,
    index: add_index,
    search: add_search,
}
WITH_SOURCES = (evaluate, report)
WITH_RECIPE = (train, refine)  # their arguments beyond our own are settings


def build_parser() -> Parser:
    """The command's parser, one sub-parser a verb."""
    parser = Parser(prog="vicinal", description="Image retrieval from labelled pictures.", epilog=_EXAMPLE)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", parser_class=Parser)
    for verb, add in VERBS.items():
        text = (verb.__doc__ or "").strip()
        own = verbs.add_parser(verb.__name__, help=text, description=text, add_help=verb not in WITH_RECIPE)
        own.set_defaults(verb=verb, parser=own)
        add(own)
    return parser


_EXAMPLE = """\
from a folder of images to searched neighbours:
  vicinal train --data.source photos/ --out run
  vicinal evaluate run --split test
  vicinal report run --split test
  vicinal index gallery --source photos/ --model run
  vicinal search gallery picture.jpg --model run --grid found.png

`vicinal VERB --help` explains each verb."""


def _from_recipe(arguments: Arguments, kind: Any, start: Callable[..., Any], resume: Callable[..., Any]) -> Any:
    """The run that a recipe of this kind gives, started or resumed; None where only help was wanted."""
    if arguments.help:
        return _result(arguments.parser.format_help() + "\n" + kind.parser().format_help())
    settings = list(arguments.rest)
    path = settings.pop(0) if settings and not settings[0].startswith("-") else None
    recipe = None if arguments.resume and path is None and not settings else kind.load(path, settings)
    if arguments.out is None:
        raise InputError("--out is missing: name the run's folder, such as --out run")
    return resume(arguments.out, recipe) if arguments.resume or recipe is None else start(recipe, arguments.out)


def _tell_wrong_labels(name: str, table: Any) -> None:
    from vicinal.evaluation import wrong_labels

    wrong, labels = wrong_labels(table)
    if wrong:
        log(f"{name}: {wrong:,} of the {labels:,} labels evaluated were made wrong on purpose (noisy_label)")


def _write_per_query(path: str, evaluation: Any, sources: dict[str, Any]) -> None:
    from vicinal.evaluating import write_per_query

    (embedded,) = sources.values()
    write_per_query(path, evaluation, embedded.table)
    log(f"wrote {path}")


def _shown(results: Sequence[Any], arguments: Arguments) -> Any:
    """Results as they are printed: a table each, CSV, or what JSON is made of."""
    from vicinal.evaluation.scorecard import scorecards_csv

    if arguments.json:
        return results[0].to_dict() if len(results) == 1 else [each.to_dict() for each in results]
    if not arguments.csv:
        heads = [f"{name}\n" for name in arguments.sources] if len(results) > 1 else [""]
        return "\n\n".join(f"{head}{each}" for head, each in zip(heads, results, strict=True))
    return (results[0].to_csv() if len(results) == 1 else scorecards_csv(results)).rstrip()


# Running it ---------------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = build_parser()
    arguments, rest = parser.parse_known_args(argv)
    if rest and "verb" not in arguments:
        return fail("vicinal", f"unknown argument {rest[0]}; `vicinal --help` explains", 2)
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
        if arguments.verb in WITH_SOURCES and not any(word.startswith("-") for word in rest):
            arguments.sources += rest  # those after options
        elif rest and arguments.verb not in WITH_RECIPE:
            raise InputError(f"unknown argument {rest[0]}; `{name} --help` explains")
        arguments.verb(arguments)
    except InputError as error:
        return fail(name, str(error), 2)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return fail(name, f"{error.filename or 'a file'}: {error.strerror or error}", 1)
    except TrainingStoppedError as error:
        return fail(name, str(error), error.exit_status)
    except KeyboardInterrupt:
        return fail(name, "interrupted", 130)
    except RuntimeError as error:
        from vicinal import distributed

        if distributed.world_size() == 1:
            raise
        return fail(name, f"another process of the run failed ({str(error).splitlines()[0]})", 1)
    return 0


def _result(result: Any) -> None:
    if is_first_process():
        print(result if isinstance(result, str) else json.dumps(result, indent=2))
