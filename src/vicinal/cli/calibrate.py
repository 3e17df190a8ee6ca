"""`vicinal calibrate`: a threshold for "match or none" and probabilities of matches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vicinal.cli import inputs
from vicinal.cli.flags import Arguments, Parser, add_settings, print_result, read_settings
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.workflows.embedded_table import EmbeddedTable
    from vicinal.workflows.embedding_reader import EmbeddingReader


def add_calibrate(parser: Parser) -> None:
    from vicinal.workflows.settings import CalibrationSettings

    parser.add_argument(
        "source", help=f"{inputs.SOURCE}, with labels; with --images: a model. Its split val, if it has one"
    )
    parser.add_argument("--images", metavar="SOURCE", help=f"calibrate on these images: {inputs.IMAGES}. The source is "
                        "then a run or a model")  # fmt: skip
    parser.add_argument("--gallery", metavar="SOURCE", help="also compare with these labeled images, of all splits: "
                        "the index to be searched, or training images. The rate holds for galleries of about this "
                        "size")  # fmt: skip
    parser.add_argument("--ood", metavar="SOURCE", help="unlabeled out-of-distribution images, such as pictures of "
                        "other shops; the rate is a limit for these too")  # fmt: skip
    inputs.add_groups(parser)
    parser.add_argument("--index", metavar="FOLDER_OR_URL", help="store the calibration in this index, so that "
                        "searches report match or none; it must hold embeddings of the same model")  # fmt: skip
    parser.add_argument("--out", metavar="FILE", help="write the calibration to this .json file")
    add_settings(parser, CalibrationSettings)
    inputs.add_embedding(parser)
    inputs.add_json(parser)


def calibrate(arguments: Arguments) -> None:
    """Choose a threshold for "match or none", by how many queries of unknown classes may be accepted."""
    from vicinal.workflows.settings import CalibrationSettings

    settings = read_settings(CalibrationSettings, arguments)
    _check(arguments)
    from vicinal.data.groups import with_groups
    from vicinal.workflows.calibrate import calibrate_source
    from vicinal.workflows.calibration_places import keep_calibration, model_folder
    from vicinal.workflows.series import warn_of_series

    source, model = arguments.source, getattr(arguments, "model", None)
    if arguments.images is not None:
        source, model = arguments.images, arguments.source
        arguments.model = model
    reader = inputs.read_embedding(arguments, query_gallery_only=True, folder_on_error="raise", default_split="val")
    embedded = reader.embed(source, arguments.split)
    inputs.require_labels(source, embedded.table, "a calibration")
    embedded = replace(embedded, table=with_groups(embedded.table, arguments.group_pattern, arguments.group_minutes))
    warn_of_series(source, embedded)
    gallery = None if arguments.gallery is None else _gallery(arguments.gallery, reader, model or source)
    ood = None if arguments.ood is None else _gallery(arguments.ood, reader, model or source)
    out = None if arguments.out is None else Path(arguments.out)
    calibrated = calibrate_source(embedded, settings, gallery, ood)
    kept = keep_calibration(calibrated.calibration, arguments.index, model_folder(model or source), out)
    log(f"kept in {', '.join(kept)}" if kept else "calibration not stored; give --index FOLDER or --out FILE.json")
    print_result(calibrated.describe() if arguments.json else str(calibrated))


def _gallery(gallery: str, reader: EmbeddingReader, model: str) -> EmbeddedTable:
    """The embeddings of all images of a gallery; stored embeddings are taken as they are."""
    from vicinal.workflows.source import Source

    kind = Source(gallery).kind
    options: dict[str, Any] = {"where": None, "labels": None, "query_gallery_only": False, "model": model}
    if kind in ("embeddings", "index"):
        options |= {"model": None, "weights": None, "pooling": None, "scales": None, "max_size": None}
    if kind == "index":
        options["whitening"] = None
    return replace(reader, **options).embed(gallery, "all")


def _check(arguments: Arguments) -> None:
    """Raise InputError if the flags contradict each other or a source does not exist; before anything slow."""
    inputs.check_embedding(arguments)
    if arguments.index is not None:
        inputs.check_index(arguments.index)
    inputs.check_source(arguments.gallery)
    inputs.check_source(arguments.ood)
    if arguments.out is not None and not arguments.out.lower().endswith(".json"):
        raise InputError(f"--out {arguments.out}: name a file ending in .json")
    if arguments.images is None:
        return inputs.check_source(arguments.source)
    if getattr(arguments, "model", None) is not None:
        raise InputError("with --images the source is the model; leave out --model")
    inputs.check_model(arguments.source)
    inputs.check_source(arguments.images)
