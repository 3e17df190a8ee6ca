"""`vicinal enroll` and `vicinal identify`: a gallery of individuals, and who new photos show."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vicinal.cli import inputs
from vicinal.cli.build_index import add_images, build_index, check_source, fill_local
from vicinal.cli.data import check_not_decided
from vicinal.cli.flags import Arguments, Parser, flag_type, print_result
from vicinal.cli.index import add_common
from vicinal.utils.console import log
from vicinal.utils.errors import IndexExistsError, InputError

if TYPE_CHECKING:
    import pandas as pd

    from vicinal.data import Table
    from vicinal.retrieval import ImageIndex
    from vicinal.utils.arrays import Integers
    from vicinal.workflows.embedded_table import EmbeddedTable

GALLERY = f"an index whose labels are the identities: {inputs.INDEX}"


def _add_common(parser: Parser, source: str) -> None:
    parser.add_argument("index", metavar="gallery", help=GALLERY)
    parser.add_argument("--source", required=True, help=source)
    parser.set_defaults(refiner=None)
    inputs.add_embedding(parser)
    add_common(parser)


def add_enroll(parser: Parser) -> None:
    _add_common(parser, f"the photos, with one folder or label per identity: {inputs.SOURCE}. With --decisions: the "
                "photos that were identified")  # fmt: skip
    parser.add_argument("--decisions", metavar="FILE", help="enroll photos by the decisions in this .csv file of "
                        "vicinal identify: columns path, decision (same, new or not sure) and identity")  # fmt: skip
    parser.set_defaults(kind=None, rescore=None)
    parser.show_first("source", "decisions", "model", "label_column", "split", "where", "root", "json")


def enroll(arguments: Arguments) -> None:
    """Add photos of individuals to a gallery, and say which of them are small, blurred or unlike their identity."""
    inputs.check_files(arguments.decisions)
    check_source(arguments)
    if arguments.decisions is not None:
        inputs.check_index(arguments.index)
        return _enroll_decided(arguments)
    from vicinal.retrieval import Index
    from vicinal.workflows.individuals import enrolled_quality, enrollment_text
    from vicinal.workflows.source import Source
    from vicinal.workflows.sync import index_exists

    source, is_stored = arguments.source, Source(arguments.source).is_stored
    reader = inputs.read_embedding(arguments)
    table = reader.embed(source, arguments.split).table if is_stored else reader.read_table(source, arguments.split)
    inputs.require_labels(source, table, "an enrollment")
    is_added = not is_stored or index_exists(arguments.index, arguments.timeout)
    if not is_added:
        try:
            build_index(arguments)
        except IndexExistsError:  # another process built it while this one did
            is_added = True
    if is_added:
        add_images(arguments)
    with Index.load(arguments.index, arguments.timeout) as index:
        quality = enrolled_quality(index, table)
        if arguments.json:
            return print_result(_records(quality))
        print_result(enrollment_text(quality, index))


def _enroll_decided(arguments: Arguments) -> None:
    from vicinal.retrieval import Index
    from vicinal.workflows.individuals import apply_identity_decisions

    with Index.load(arguments.index, arguments.timeout) as index:
        table, embed = _photos(arguments, index, on_error="raise")
        counts = apply_identity_decisions(arguments.index, table, arguments.decisions, embed, arguments.timeout)
        fill_local(arguments)
        words = ", ".join(f"{number:,} {action}" for action, number in counts.items())
        print_result(counts if arguments.json else f"{words}; the gallery has {len(index):,} photos")


def _photos(
    arguments: Arguments, index: ImageIndex, **options: Any
) -> tuple[Table, Callable[[Integers], EmbeddedTable]]:
    """The photos of the source, and the function that embeds some rows of them by the model of the index."""
    from vicinal.workflows.source import Source
    from vicinal.workflows.sync import with_file_facts

    index.check_refiner(None)
    source, flags = arguments.source, inputs.made_with(arguments, arguments.source)
    reader = inputs.reader_for(index, arguments, [source])[0]
    stored = reader.embed(source, arguments.split) if Source(source).is_stored else None
    table = reader.read_table(source, arguments.split) if stored is None else stored.table

    def embed(rows: Integers) -> EmbeddedTable:
        if stored is not None:
            embedded = replace(stored, vectors=stored.vectors[rows], table=table.take(rows))
        else:
            embedded = replace(reader, **options).embed_function(source)(with_file_facts(table.take(rows)))
        index.check_model(embedded.fingerprint, flags)
        return embedded

    return table, embed


def add_identify(parser: Parser) -> None:
    _add_common(parser, f"the photos: {inputs.SOURCE}. Those in the gallery are left out")
    parser.add_argument("--min_score", type=flag_type(float), metavar="FLOAT", help="minimum similarity to the best "
                        "photo of an identity, and within a new one, in place of the calibration of the gallery "
                        "(vicinal calibrate --index)")  # fmt: skip
    parser.add_argument("--ask_again", action="store_true", help="also identify photos that were not sure")
    parser.add_argument("--page", metavar="PAGE", help="also write a page to review the result, such as "
                        "proposals.html, which saves decisions.csv for vicinal enroll")  # fmt: skip
    parser.add_argument("--csv", metavar="FILE", help="also write the result to this .csv file, with a column decision "
                        "to be filled in: same, new or not sure")  # fmt: skip
    parser.show_first("source", "page", "min_score", "ask_again", "csv", "model", "split", "where", "json")


def identify(arguments: Arguments) -> None:
    """Say which individuals of a gallery new photos show, and which show new ones."""
    inputs.check_index(arguments.index)
    inputs.check_source(arguments.source)
    inputs.check_embedding(arguments)
    _check_output(arguments)
    import numpy as np

    from vicinal.retrieval import Index
    from vicinal.retrieval import identify as identify_photos
    from vicinal.workflows.calibration_places import warn_of_larger_gallery
    from vicinal.workflows.individuals import identification_text, is_undecided

    index = Index.load(arguments.index, arguments.timeout)
    table, embed = _photos(arguments, index)
    is_left = is_undecided(index, table, arguments.ask_again)
    if not is_left.all():
        log(f"left out {int((~is_left).sum()):,} photos that were decided before")
    if not is_left.any():
        return print_result([] if arguments.json else "all photos were decided before")
    warn_of_larger_gallery(arguments.index, index)
    embedded = embed(np.flatnonzero(is_left))
    found = identify_photos(index, embedded.vectors, embedded.table, min_score=arguments.min_score)
    if arguments.page is not None:
        _write_page(arguments, found, embedded.table, index, table)
    paths = embedded.table.image_keys if embedded.table.has("path") else [f"row {row}" for row in found.index]
    found.insert(0, "path", paths)
    if arguments.csv is not None:
        from vicinal.data.table_files import write_table

        write_table(Path(arguments.csv), found.assign(decision=""))
        log(f"wrote {arguments.csv}")
    print_result(_records(found) if arguments.json else identification_text(found))


def _check_output(arguments: Arguments) -> None:
    for flag, suffix in (("csv", ".csv"), ("page", ".html")):
        file = getattr(arguments, flag)
        if file is not None and not file.lower().endswith(suffix):
            raise InputError(f"--{flag} {file}: name a file ending in {suffix}")
    if arguments.csv is not None and os.path.exists(arguments.csv):
        check_not_decided(arguments.csv)


def _write_page(arguments: Arguments, found: pd.DataFrame, identified: Table, index: ImageIndex, photos: Table) -> None:
    """Write the page on which the user decides about the identified photos."""
    from vicinal.data.cleaning_decisions import common_folder
    from vicinal.report.page.proposals import write_proposals_page
    from vicinal.retrieval import enrolled_photos

    words = ["vicinal", "enroll", arguments.index, "--source", arguments.source, "--decisions", "decisions.csv"]
    gallery, folder = enrolled_photos(index)[1], common_folder(photos.paths) if photos.has("path") else None
    write_proposals_page(arguments.page, found, identified, gallery, command=shlex.join(words), folder=folder)
    log(f"wrote {arguments.page}")


def _records(frame: pd.DataFrame) -> list[dict[str, object]]:
    """The rows, ready for JSON: None in place of NaN."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")
