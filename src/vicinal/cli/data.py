"""`vicinal data` and `vicinal clean`: statistics, splits and noise of a dataset, and its possible problems."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from vicinal.cli import inputs
from vicinal.cli.flags import Arguments, Parser, add_settings, integer_from, print_result, read_settings
from vicinal.data.benchmarks import BENCHMARKS
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.data import Table
    from vicinal.data.settings import DataSettings

OF_READING = ("num_workers", "augmentation", "on_error")
PAGE = "cleaning.html"
SUFFIXES = {"out": (".html", ".htm"), "csv": (".csv", ".parquet")}


def add_data(parser: Parser) -> None:
    """The flags are the keys of the group `data` of a recipe."""
    from vicinal.data.settings import DataSettings, NoiseSettings

    parser.add_argument("source", help=inputs.IMAGES)
    add_settings(parser, DataSettings, skip=("source", "noise", "cache", *OF_READING))
    parser.add_argument(
        "--seed", type=integer_from(0), default=0, metavar="INT", help="seed of the splits and the noise (default: 0)"
    )
    parser.add_argument(
        "--no_check", action="store_true", help="do not read the images to find broken and duplicate files"
    )
    parser.add_argument(
        "--where", metavar="CONDITION", help="keep only the rows that match this condition, such as "
        "\"category == 'cup' and price < 20\"",
    )  # fmt: skip
    parser.add_argument("--apply", metavar="FILE", help="first drop and relabel images by the decisions in this .csv "
                        "file, such as one saved from the page of vicinal clean; image files do not "
                        "change")  # fmt: skip
    parser.add_argument("--out", metavar="FILE", help="save the table of paths, labels and splits as .csv or .parquet")
    inputs.add_json(parser)
    parser.epilog = f"benchmarks: {', '.join(BENCHMARKS)}"
    noise = parser.add_argument_group("noise, added to the split train or to a table without splits")
    add_settings(noise, NoiseSettings, prefix="noise.")


def data(arguments: Arguments) -> None:
    """Show statistics of a dataset and problems of its files; split its classes, add noise, and save it."""
    from vicinal.data.settings import DataSettings, NoiseSettings

    settings = read_settings(DataSettings, arguments, noise=read_settings(NoiseSettings, arguments, "noise."))
    inputs.check_source(settings.source)
    inputs.check_files(settings.root, arguments.apply)
    if arguments.apply and arguments.out and os.path.realpath(arguments.apply) == os.path.realpath(arguments.out):
        raise InputError(f"--out {arguments.out}: holds the decisions to apply, which would be lost; name another file")
    from vicinal.data import add_noise, split_fingerprint
    from vicinal.data.dataset import divide
    from vicinal.data.image_files import check_image_files

    table, other_files = _load(arguments, settings)
    table = add_noise(divide(table, settings, arguments.seed), settings.noise, arguments.seed)
    if arguments.out:
        table.save(arguments.out)
        log(f"wrote {arguments.out}")
    statistics = table.statistics()
    problems = check_image_files(table) if table.has("path") and not arguments.no_check else None
    problems = problems and replace(problems, others=other_files)
    fingerprint = split_fingerprint(table) if table.has("path") else None
    if arguments.json:
        result = asdict(statistics) | {"split_fingerprint": fingerprint}
        print_result(result | ({} if problems is None else {"files": asdict(problems)}))
    else:
        parts = (str(statistics), fingerprint and f"split fingerprint: {fingerprint}", str(problems or ""))
        print_result("\n\n".join(filter(None, parts)))


def _load(arguments: Arguments, settings: DataSettings) -> tuple[Table, dict[str, int]]:
    """The selected rows of the table, with the decisions applied, and the number of other files by suffix."""
    from vicinal.data import load_table
    from vicinal.data.columns import column_aliases

    label_column = getattr(arguments, "label_column", None)  # labels are optional unless their column is named
    table = load_table(arguments.source, settings.root, settings.path_column, label_column)
    other_files = dict(table.other_files)
    if arguments.apply is not None:
        from vicinal.data.cleaning_decisions import apply_decisions

        table = apply_decisions(table, arguments.apply)
    if arguments.where is not None:
        columns = {"path_column": settings.path_column, "label_column": label_column}
        table = table.where(arguments.where, column_aliases(columns))
        if not len(table):
            raise InputError(f"{arguments.source}: no row matches {arguments.where}")
    return table, other_files


def add_clean(parser: Parser) -> None:
    from vicinal.workflows.settings import CleanSettings

    parser.add_argument("source", help=f"{inputs.SOURCE}. Labels are optional")
    parser.add_argument("--out", default=PAGE, metavar="PAGE", help=f"the page to write (default: {PAGE})")
    parser.add_argument("--csv", metavar="FILE", help="also write the findings to this .csv or .parquet file, with "
                        "columns for decisions")  # fmt: skip
    parser.add_argument("--decisions", metavar="FILE", help="decisions.csv of an earlier page, to preload in the new "
                        "page")  # fmt: skip
    parser.add_argument("--title", help="the title of the page")
    inputs.add_json(parser)
    add_settings(parser.add_argument_group("criteria of findings"), CleanSettings)
    inputs.add_embedding(parser)
    parser.show_first(
        "out", "csv", "decisions", "title", "json", "min_similarity", "min_pixel_similarity", "model", "split", "where",
        "engine",
    )  # fmt: skip


def clean(arguments: Arguments) -> None:
    """Find broken files, duplicates, label errors, outliers and more, and write a page to look through."""
    from vicinal.workflows.settings import CleanSettings

    inputs.check_source(arguments.source)
    _check_files_to_write(arguments)
    settings = read_settings(CleanSettings, arguments)
    inputs.check_embedding(arguments)
    inputs.check_files(arguments.decisions)
    from pathlib import Path

    from vicinal.data.table_files import write_table
    from vicinal.report.page.cleaning import write_cleaning_page
    from vicinal.workflows.clean import find_problems_of_source, images_folder

    reader = inputs.read_embedding(arguments)
    findings = find_problems_of_source(reader, arguments.source, settings, arguments.split)
    if arguments.csv is not None:
        write_table(Path(arguments.csv), findings.to_frame())
        log(f"wrote {arguments.csv}")
    title = arguments.title or Path(arguments.source).resolve().name or arguments.source
    folder = images_folder(reader, arguments.source, arguments.split)
    write_cleaning_page(arguments.out, findings, title=title, folder=folder, decisions=arguments.decisions)
    counts = findings.counts
    if arguments.json:
        print_result({"images": len(findings.table), "findings": counts, "page": str(arguments.out)})
    else:
        width = max(map(len, counts))
        lines = [f"{name.replace('_', ' '):{width}}  {number:,}" for name, number in counts.items()]
        print_result("\n".join([*lines, str(arguments.out)]))


def _check_files_to_write(arguments: Arguments) -> None:
    """Refuse, before anything is read, to write over the source, over decisions, or one file over another."""
    taken = {os.path.realpath(arguments.source): "the source"}
    if hasattr(arguments, "labels"):
        taken[os.path.realpath(arguments.labels)] = "--labels"
    for flag, suffixes in SUFFIXES.items():
        file = getattr(arguments, flag)
        if file is None:
            continue
        if not file.lower().endswith(suffixes):
            raise InputError(f"--{flag} {file}: name a file ending in {' or '.join(suffixes)}")
        if os.path.isdir(file):
            raise InputError(f"--{flag} {file}: is a folder; name a file")
        other = taken.setdefault(os.path.realpath(file), f"--{flag}")
        if other != f"--{flag}":
            raise InputError(f"--{flag} {file}: is {other} too; name another file")
        if flag == "csv" and os.path.exists(file):
            check_not_decided(file)


def check_not_decided(file: str) -> None:
    """Refuse to write over a file of decisions."""
    from vicinal.workflows.clean import num_decisions

    if number := num_decisions(file):
        raise InputError(f"--csv {file}: holds {number} decisions, which would be lost; name another file")
