"""`vicinal models` and `vicinal export`: pretrained models, and models for ONNX Runtime or OpenVINO."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace

from vicinal.cli import inputs
from vicinal.cli.flags import Arguments, Parser, add_settings, integer_from, print_result, read_settings
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

OF_READER = ("weights", "pooling", "allow_import", "root", "path_column", "label_column", "on_error")


def add_models(parser: Parser) -> None:
    parser.add_argument(
        "--filter", metavar="TEXT", help="models whose name contains this text, such as dino, clip or resnet50, also "
        "of timm; without it, those of the papers",
    )  # fmt: skip
    parser.add_argument(
        "--measure", action="store_true", help="measure the images that each network embeds per second on this "
        "machine, with random weights and without reading files; takes a few seconds per model",
    )  # fmt: skip
    parser.add_argument(
        "--batch_size", type=integer_from(1), metavar="INT", help="with --measure: images per batch (default: 16)"
    )
    parser.add_argument("--device", help="with --measure: such as cpu or cuda (default: a GPU if available)")
    inputs.add_json(parser)


def models(arguments: Arguments) -> None:
    """List pretrained models: dimension, pixels, parameters, pooling and license; nothing is downloaded."""
    for flag in ("batch_size", "device"):
        if getattr(arguments, flag) is not None and not arguments.measure:
            raise InputError(f"--{flag} is for measuring; give --measure too")
    from vicinal.models.execution import usable_device
    from vicinal.utils.console import track
    from vicinal.workflows.model_costs import described_models, measured_speed, model_names, models_text

    device = usable_device(arguments.device)
    names = model_names(arguments.filter)
    found = list(track(described_models(names), "models", len(names), sys.stderr.isatty()))
    if arguments.measure:
        measured = []
        for each in track(found, "measuring", len(found), sys.stderr.isatty()):
            try:
                speed = None if each.pooling is None else measured_speed(each.name, device, arguments.batch_size or 16)
            except InputError as error:
                log(f"{each.name} is not measured: {error}")
                speed = None
            measured.append(replace(each, images_per_second=speed))
        found = measured
    if arguments.filter is None:
        log("these are networks of the papers; --filter finds those of timm, such as --filter dinov2")
    print_result([asdict(each) for each in found] if arguments.json else models_text(found))


def add_export(parser: Parser) -> None:
    from vicinal.export.settings import ExportSettings
    from vicinal.workflows.models import EmbeddingOptions

    parser.add_argument(
        "source", help="a run, a model folder, a model on the Hugging Face Hub, or a backbone such as timm/resnet50"
    )
    parser.add_argument(
        "--out", required=True, metavar="FILE", help="the exported model, .onnx or for OpenVINO .xml; beside it are "
        "its preprocessing and its parity report"
    )  # fmt: skip
    add_settings(parser, ExportSettings)
    for precision in ("fp16", "int8"):
        parser.add_argument(f"--{precision}", dest="precision", action="store_const", const=precision,
                            default=argparse.SUPPRESS, help=f"short for --precision {precision}")  # fmt: skip
    images = parser.add_argument_group("images of the report and of int8")
    images.add_argument("--check", metavar="SOURCE", help="labeled images on which recall@1 and mAP@R are compared "
                        f"before and after (default: the split val of a run): {inputs.IMAGES}")  # fmt: skip
    images.add_argument("--split", help="use only the images of this split of --check or of the run, such as test")
    images.add_argument("--calibration_images", metavar="SOURCE", help="images for calibrating int8 (default: "
                        "the split train of a run)")  # fmt: skip
    skipped = [name for name in EmbeddingOptions.__dataclass_fields__ if name not in OF_READER]
    add_settings(images, EmbeddingOptions, skip=skipped)
    refined = parser.add_argument_group("refinement as part of the exported model")
    inputs.add_refiner(refined, "needs --gallery")
    refined.add_argument("--gallery", metavar="SOURCE", help="the embeddings among which the refiner finds neighbors: "
                         "a .npy or .parquet file, the folder of an index, or images")  # fmt: skip
    hub = parser.add_argument_group("upload")
    hub.add_argument("--push_to_hub", metavar="NAME", help="upload the model, its card and the exported one to the "
                     "Hugging Face Hub, under a name such as me/birds; the token is from HF_TOKEN or "
                     "`hf auth login`")  # fmt: skip
    hub.add_argument("--private", action="store_true", help="make a new model on the Hub private")
    inputs.add_json(parser)


def export(arguments: Arguments) -> None:
    """Export a model for ONNX Runtime or OpenVINO, from pixels to the unit vector, if it loses next to nothing."""
    inputs.check_model(arguments.source)
    if arguments.private and arguments.push_to_hub is None:
        raise InputError("private is for a model on the Hugging Face Hub; give --push_to_hub too, such as me/birds")
    for source in (arguments.check, arguments.calibration_images, arguments.gallery):
        inputs.check_source(source)
    inputs.check_folder(arguments.refiner, "refiner")
    inputs.check_files(getattr(arguments, "root", None), getattr(arguments, "weights", None))
    from vicinal.export.settings import ExportSettings
    from vicinal.workflows.embedding_reader import EmbeddingReader
    from vicinal.workflows.export import export_source

    settings = read_settings(ExportSettings, arguments)
    report = export_source(
        arguments.source,
        arguments.out,
        settings,
        read_settings(EmbeddingReader, arguments, batch_size=settings.batch_size),
        check=arguments.check,
        split=arguments.split,
        calibration_images=arguments.calibration_images,
        refiner=inputs.load_refiner(arguments),
        gallery=arguments.gallery,
        push_to_hub=arguments.push_to_hub,
        private=arguments.private,
    )
    print_result(report.to_dict() if arguments.json else f"{report}\n{arguments.out}")
