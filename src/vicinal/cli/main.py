"""The command `vicinal`: its verbs, and how errors become exit statuses.

Results go to stdout, messages and progress to stderr. Exit status: 0 success, 1 failure, 2 invalid input, with one line
that says what is wrong, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence

from vicinal.cli.calibrate import add_calibrate, calibrate
from vicinal.cli.compatibility import adapt, add_adapt
from vicinal.cli.data import add_clean, add_data, clean, data
from vicinal.cli.embed import add_embed, add_whiten, embed, whiten
from vicinal.cli.evaluate import add_evaluate, evaluate
from vicinal.cli.flags import Arguments, Parser, fail, print_result, with_dashes_replaced
from vicinal.cli.index import INDEX_VERBS, delete, index
from vicinal.cli.individuals import add_enroll, add_identify, enroll, identify
from vicinal.cli.models import add_export, add_models, export, models
from vicinal.cli.report import add_report, report
from vicinal.cli.search import add_search, add_serve, search, serve
from vicinal.cli.train import add_recipe, refine, train
from vicinal.cli.tune import add_sweep, add_tune, sweep, tune
from vicinal.utils.console import is_main_process, log
from vicinal.utils.errors import explained, is_lost_connection, one_line
from vicinal.utils.launch import SUPERVISOR
from vicinal.utils.memory import keep_large_blocks

# Threads that spin while they wait for a core that another process uses can slow training thirtyfold. OpenMP reads
# this when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

Verb = Callable[[Arguments], None]
AddFlags = Callable[[Parser], None]
VERBS: dict[Verb, AddFlags | Mapping[Verb, AddFlags]] = {
    data: add_data,
    clean: add_clean,
    models: add_models,
    train: add_recipe,
    tune: add_tune,
    sweep: add_sweep,
    evaluate: add_evaluate,
    calibrate: add_calibrate,
    report: add_report,
    embed: add_embed,
    refine: add_recipe,
    whiten: add_whiten,
    adapt: add_adapt,
    index: INDEX_VERBS,
    search: add_search,
    enroll: add_enroll,
    identify: add_identify,
    serve: add_serve,
    export: add_export,
}
WITH_RECIPE = (train, tune, sweep, refine)  # arguments that are not flags of these verbs are settings
WITH_MORE = {evaluate: "sources", report: "sources", delete: "images"}  # positional arguments may come after flags

EXAMPLE = """\
Flags are spelled as the parameters in Python and the keys of recipes; --batch-size is the same as --batch_size.

from a folder of images to searched neighbors:
  vicinal train --data.source photos/ --out run
  vicinal evaluate run --split test
  vicinal report run --split test
  vicinal index build gallery photos/ --model run
  vicinal search gallery picture.jpg --grid found.png

`vicinal VERB --help` explains each verb."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return the exit status. `argv` defaults to that of this process, which must end then."""
    status = _main(argv)
    if argv is None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C while the interpreter exits would print a traceback
    return status


def _main(argv: Sequence[str] | None) -> int:
    words = with_dashes_replaced(sys.argv[1:] if argv is None else argv)
    arguments, rest = parse(words)
    arguments.words = words
    if arguments.version:
        from vicinal import __version__

        print_result(__version__)
    elif "verb" not in arguments:
        print_result(arguments.parser.format_help().rstrip())
    else:
        return _run(arguments, rest)
    return 0


def parse(words: Sequence[str]) -> tuple[Arguments, list[str]]:
    """Parse the command line, and return the words that are not flags of the verb separately."""
    parser = Parser(prog="vicinal", description="Deep metric learning and image retrieval.", epilog=EXAMPLE)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.set_defaults(parser=parser)
    parser.add_argument("--version", action="store_true", help="print the version")
    arguments, rest = parser.parse_known_args(_with_verbs(parser, VERBS, words))
    if rest and arguments.parser is parser:
        parser.reject(rest[0])
    return arguments, rest


def _with_verbs(
    parser: Parser, verbs: Mapping[Verb, AddFlags | Mapping[Verb, AddFlags]], words: Sequence[str]
) -> list[str]:
    """Add verbs to a parser, with the flags of the one that the words begin with; returns the words, separated."""
    choices = parser.add_subparsers(title="verbs", metavar="VERB", parser_class=Parser)
    for verb, flags in verbs.items():
        name, text = verb.__name__.rstrip("_"), (verb.__doc__ or "").strip()
        verb_parser = choices.add_parser(name, help=text, description=text, add_help=verb not in (train, refine))
        verb_parser.set_defaults(verb=verb, parser=verb_parser)
        if name not in words[:1]:  # its flags are not needed
            continue
        if isinstance(flags, Mapping):
            words = [name, *_with_verbs(verb_parser, flags, words[1:])]
        else:
            flags(verb_parser)
            words = [name, *verb_parser.separated(words[1:])]
    return list(words)


def _run(arguments: Arguments, rest: list[str]) -> int:
    """Run a verb; errors that a user can cause become one line and an exit status."""
    name = arguments.parser.prog
    arguments.rest = rest
    keep_large_blocks()
    unknown = [word for word in rest if word.startswith("-") or arguments.verb not in WITH_MORE]
    if unknown and arguments.verb not in WITH_RECIPE:
        arguments.parser.reject(unknown[0])
    if arguments.verb in WITH_MORE:
        getattr(arguments, WITH_MORE[arguments.verb]).extend(rest)
    try:
        if SUPERVISOR in os.environ:
            from vicinal.training.processes import end_with_supervisor

            end_with_supervisor()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Image size .* exceeds limit")  # of Pillow; Vicinal has its own
            warnings.showwarning = lambda message, *_, **__: log(f"{name}: warning: {message}")
            arguments.verb(arguments)
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (Exception, KeyboardInterrupt) as error:
        if (status := _explain(name, error)) is None:
            raise
        return status
    return 0


def _explain(name: str, error: BaseException) -> int | None:
    """Print an error that a user can cause in one line, and return the exit status; None for any other."""
    if SUPERVISOR in os.environ:
        from vicinal.training.processes import leave_error

        if (status := leave_error(error)) is not None:
            return status
    if (known := explained(error)) is not None:
        is_said = is_main_process() or not isinstance(error, KeyboardInterrupt)  # which reaches all processes
        return fail(name, *known) if is_said else known[1]
    if is_lost_connection(error):
        return fail(name, f"the connection to another process of the run was lost ({one_line(error)})", 1)
    return None
