"""`vicinal clean`: what may be wrong with images, as a page to look through and as a table."""

from __future__ import annotations

import os

from vicinal.cli.flags import Arguments, Parser, add_settings, print_result, read_settings
from vicinal.cli.inputs import (
    SOURCE,
    add_embedding,
    add_json,
    check_embedding,
    check_files,
    check_source,
    read_embedding,
)
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

PAGE = "cleaning.html"
SUFFIXES = {"out": (".html", ".htm"), "csv": (".csv", ".parquet")}


def add_clean(parser: Parser) -> None:
    """Add the flags of `vicinal clean`."""
    from vicinal.workflows.settings import CleanSettings

    parser.add_argument("source", help=f"{SOURCE}. Labels are optional")
    parser.add_argument("--out", default=PAGE, metavar="PAGE", help=f"the page to write (default: {PAGE})")
    parser.add_argument("--csv", metavar="FILE", help="also write the findings to this .csv or .parquet file, with "
                        "columns for decisions")  # fmt: skip
    parser.add_argument("--decisions", metavar="FILE", help="decisions.csv of an earlier page, with which the new "
                        "page begins")  # fmt: skip
    parser.add_argument("--title", help="the title of the page")
    add_json(parser)
    add_settings(parser.add_argument_group("what counts as a finding"), CleanSettings)
    add_embedding(parser)
    parser.show_first(
        "out", "csv", "decisions", "title", "json", "min_similarity", "min_pixel_similarity", "model", "split", "where",
        "engine",
    )  # fmt: skip


def clean(arguments: Arguments) -> None:
    """Find broken files, duplicates, label errors, outliers and more, and write a page to look through."""
    from vicinal.workflows.settings import CleanSettings

    check_source(arguments.source)
    _check_files_to_write(arguments)
    settings = read_settings(CleanSettings, arguments)
    check_embedding(arguments)
    check_files(arguments.decisions)
    from pathlib import Path

    from vicinal.report.page.cleaning import write_cleaning_page
    from vicinal.workflows.clean import find_problems_of_source, images_folder, write_findings

    reader = read_embedding(arguments)
    findings = find_problems_of_source(reader, arguments.source, settings, arguments.split)
    if arguments.csv is not None:
        write_findings(arguments.csv, findings)
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
            _check_undecided(file)


def _check_undecided(file: str) -> None:
    """Refuse to write over findings in which decisions have been filled in."""
    from vicinal.workflows.clean import num_decisions

    if number := num_decisions(file):
        raise InputError(f"--csv {file}: holds {number} decisions, which would be lost; name another file")
