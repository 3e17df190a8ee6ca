"""`vicinal models`: the pretrained models that can be named wherever a model is asked for."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace

from vicinal.cli.flags import Arguments, Parser, integer_from, print_result
from vicinal.cli.inputs import add_json
from vicinal.utils.console import log
from vicinal.utils.errors import InputError


def add_models(parser: Parser) -> None:
    """Add the flags of `vicinal models`."""
    parser.add_argument(
        "--filter", metavar="TEXT", help="those with this text in their name, such as dino, clip or resnet50, of timm "
        "too; without it, those of the papers",
    )  # fmt: skip
    parser.add_argument(
        "--measure", action="store_true", help="measure the images that each network embeds per second on this "
        "machine, with random weights and without reading files; takes a few seconds per model",
    )  # fmt: skip
    parser.add_argument(
        "--batch_size", type=integer_from(1), metavar="INT", help="with --measure: images per batch (default: 16)"
    )
    parser.add_argument("--device", help="with --measure: such as cpu or cuda (default: a GPU where there is one)")
    add_json(parser)


def models(arguments: Arguments) -> None:
    """List pretrained models: dimension, pixels, parameters, pooling and license; nothing is downloaded."""
    for flag in ("batch_size", "device"):
        if getattr(arguments, flag) is not None and not arguments.measure:
            raise InputError(f"--{flag} is about measuring; give --measure too")
    from vicinal.utils.console import track
    from vicinal.workflows.model_list import described_models, measured_speed, model_names, models_text
    from vicinal.workflows.models import usable_device

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
