"""Exporting an embedder: the files of the exported model, its preprocessing and its parity report."""

from __future__ import annotations

import copy
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vicinal.data.batches.image_dataset import ImageDataset
from vicinal.data.images.image_ops import normalized
from vicinal.data.table import Table
from vicinal.export import conversion, parity
from vicinal.export.exported_embedder import ExportedEmbedder, open_exported
from vicinal.export.graph import ExportGraph, GalleryRefiner, exportable, other_size, resized_transform
from vicinal.export.onnx_embedder import runtime_options
from vicinal.export.parity import AFTER, BEFORE, ParityReport
from vicinal.export.quantization import to_int8
from vicinal.export.settings import SUFFIXES, ExportSettings
from vicinal.models.embedder import Embedder
from vicinal.models.inputs import image_batches
from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.refinement import refine
from vicinal.utils.arrays import Floats
from vicinal.utils.console import log
from vicinal.utils.errors import InputError, import_extra

CALIBRATION_BATCH = 16
SHAPE_TOLERANCE = 1e-3
"""How much the export in float32 may differ on random images, which networks were not trained for."""


def export_model(
    model: Embedder,
    out: str | Path,
    settings: ExportSettings | None = None,
    *,
    check: Table | None = None,
    calibration: Table | None = None,
    refiner: ContextRefiner | None = None,
    gallery: Floats | None = None,
    with_speed: bool = True,
    **options: Any,
) -> ParityReport:
    """Export an embedder, compare the result with it, and write both only if it does not lose too much.

    Beside the model `NAME.onnx` (`NAME.xml` and `NAME.bin` for OpenVINO) are `NAME.preprocessing.json`, which says how
    an image becomes its input, and the parity report, `NAME.parity.json` and `NAME.parity.md`.

    Args:
        model: The embedder.
        out: The file of the exported model.
        settings: Format, precision and input; by default ONNX in float32.
        check: Images on which the exported model is compared with the embedder, with labels for the metrics; None:
            random ones, for fp32 only.
        calibration: Images by which int8 is calibrated, as they will be embedded.
        refiner: A refiner that becomes part of the exported model, with the gallery of its neighbors.
        gallery: float [g, dim], embeddings of the model.
        with_speed: Measure the speed of both models for the report, which takes a few seconds.
        options: Fields of :class:`ExportSettings`, if there are no settings.

    Raises:
        InputError: The model cannot be exported like this, images cannot be read, or the exported model loses more than
            the tolerance. Nothing is written then.

    Example:
        >>> from vicinal.data import ImageTransform
        >>> model = Embedder("test_resnet", dim=8, pretrained=False, transform=ImageTransform(size=32)).eval()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = export_model(model, f"{folder}/model.onnx")
        ...     sorted(os.listdir(folder))
        ['model.onnx', 'model.parity.json', 'model.parity.md', 'model.preprocessing.json']
        >>> report.vectors.largest < 1e-5
        True
    """
    settings, out = settings or ExportSettings(**options), Path(out)
    _check(out, settings, check, calibration, refiner, gallery)
    reference = copy.copy(model) if model.device.type == "cpu" else copy.deepcopy(model).cpu()
    reference.transform = resized_transform(model, settings.size)
    refined = None if refiner is None or gallery is None else GalleryRefiner(refiner, gallery)
    graph = ExportGraph(exportable(model, settings), settings, refined)
    fingerprint = reference.fingerprint() + ("" if refiner is None else f"+{refiner.fingerprint()}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
        new, work = Path(folder, "new"), Path(folder, "work")
        new.mkdir()
        work.mkdir()
        _write(new / out.with_suffix(".preprocessing.json").name, _preprocessing(graph, fingerprint))
        log(f"exporting {model.config['backbone']}")
        _write_model(graph, work, new / out.name, fingerprint, calibration)
        report = _compare(reference, graph, new / out.name, fingerprint, check, gallery, with_speed)
        report.check()
        _write(new / out.with_suffix(".parity.json").name, report.to_dict())
        (new / out.with_suffix(".parity.md").name).write_text(report.to_markdown(), encoding="utf-8")
        for file in sorted(new.iterdir(), key=lambda file: file.name == out.name):  # the model last
            os.replace(file, out.with_name(file.name))
    return report


def _check(
    out: Path,
    settings: ExportSettings,
    check: Table | None,
    calibration: Table | None,
    refiner: ContextRefiner | None,
    gallery: Floats | None,
) -> None:
    suffix, precision = SUFFIXES[settings.format], settings.precision
    if out.suffix != suffix:
        raise InputError(f"out is {out}; a model for {settings.format} ends in {suffix}")
    if out.is_dir():
        raise InputError(f"out is {out}, which is a folder; give the name of a file")
    for other in SUFFIXES.values():
        if other != suffix and out.with_suffix(other).exists():
            taken = out.with_suffix(other).name
            raise InputError(f"{out} would share its preprocessing and report with {taken}; choose another name")
    if (refiner is None) != (gallery is None):
        raise InputError("refiner and gallery belong together: the refiner moves vectors by neighbors of the gallery")
    if precision == "int8" and refiner is not None:
        raise InputError("int8 is for a model without refiner; export it without, and refine its vectors")
    if precision == "int8" and calibration is None:
        raise InputError("int8 needs calibration_images: some images like those to be embedded")
    if precision != "fp32" and (check is None or not check.has("label")):
        raise InputError(f"measuring what {precision} loses needs labeled images; give check")
    if settings.format == "openvino":
        import_extra("openvino", "openvino", "the export for OpenVINO")
    if settings.format == "onnx" or precision == "int8":
        import_extra("onnxruntime", "export", "the export")


def _preprocessing(graph: ExportGraph, fingerprint: str) -> dict[str, Any]:
    """The preprocessing of images for the exported model, and its output."""
    transform, settings = graph.model.transform.to_dict(), graph.settings
    used = ("size", "resize", "longest", "interpolation", "fast", "channels", "mean", "std")
    return {
        "format": "vicinal-preprocessing",
        "version": 1,
        "fingerprint": fingerprint,
        "backbone": graph.model.config["backbone"],
        "dim": graph.model.dim,
        "precision": settings.precision,
        "input": settings.input,
        "layout": settings.layout,
        "dynamic_size": settings.dynamic_size,
        **{name: transform[name] for name in used},
    }


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _write_model(graph: ExportGraph, work: Path, path: Path, fingerprint: str, calibration: Table | None) -> None:
    """Write the files of the exported model; before its precision is reduced, it is compared with the network."""
    settings = graph.settings
    if settings.format == "openvino" and settings.precision != "int8":
        model = conversion.to_openvino(graph, fingerprint)
        _check_exact(graph, conversion.openvino_function(model))
        return conversion.save_openvino(model, path, half=settings.precision == "fp16")
    import onnxruntime

    exact = converted = work / "fp32.onnx"
    conversion.export_onnx(graph, exact, fingerprint)
    session = onnxruntime.InferenceSession(str(exact), providers=["CPUExecutionProvider"])
    _check_exact(graph, lambda images: session.run(None, {"images": images})[0])
    if settings.precision == "int8" and calibration is not None:
        converted = work / "int8.onnx"
        to_int8(exact, converted, _calibration_batches(graph, calibration))
    elif settings.precision == "fp16":
        converted = work / "fp16.onnx"
        conversion.to_fp16(exact, converted)
    if settings.format == "onnx":
        os.replace(converted, path)
    else:
        conversion.save_openvino(conversion.read_onnx(converted, fingerprint), path, half=False)
    return None


def _check_exact(graph: ExportGraph, infer: Callable[[Floats], Floats]) -> None:
    """Compare the export in float32 with the network on random images."""
    found = parity.check_shapes(graph, infer, _sizes(graph))
    if not found <= max(SHAPE_TOLERANCE, graph.settings.limit) and graph.refiner is None:
        raise InputError(f"the vectors of the export differ by {found:.2g} on random images; nothing was written")


def _sizes(graph: ExportGraph) -> list[tuple[int, int]]:
    """The sizes of images for which the export is checked."""
    size = graph.model.transform.size
    return [(size, size), *([other_size(graph.model)] if graph.settings.dynamic_size else [])]


def _calibration_batches(graph: ExportGraph, table: Table) -> Iterator[Floats]:
    """Random images of a table as the input of the exported model."""
    settings, transform = graph.settings, graph.model.transform
    number = min(settings.num_calibration_images, len(table))
    rows = np.random.default_rng(settings.seed).permutation(len(table))[:number]
    batches, _ = image_batches(ImageDataset(table.take(rows), transform), transform, CALIBRATION_BATCH)
    for images in batches:
        inputs = normalized(images, transform) if settings.input == "tensor" else images
        yield (inputs.permute(0, 2, 3, 1) if settings.layout == "nhwc" else inputs).contiguous().numpy()


def _compare(
    reference: Embedder,
    graph: ExportGraph,
    path: Path,
    fingerprint: str,
    check: Table | None,
    gallery: Floats | None,
    with_speed: bool,
) -> ParityReport:
    settings = graph.settings
    engine = open_exported(path, **runtime_options(settings.format, torch.get_num_threads()))
    if not np.isfinite(parity.check_shapes(graph, engine.infer, _sizes(graph))):
        raise InputError(f"the export gives vectors that are not finite in {settings.precision}; use fp32")
    shape = (parity.SPEED_BATCH, reference.transform.channels, *_sizes(graph)[0])
    pixels = np.random.default_rng(settings.seed).integers(0, 256, shape, dtype=np.uint8)
    tensors = (torch.from_numpy(pixels) - graph.mean) / graph.std
    embed = partial(reference.embed, batch_size=settings.batch_size, precision="32")
    if check is None:
        before, after = embed(tensors, progress=False), engine.run(pixels)
    else:
        exported = ExportedEmbedder(engine)
        before = embed(ImageDataset(check, reference.transform))
        after = exported.embed(ImageDataset(check, exported.transform), settings.batch_size)
    if graph.refiner is not None and gallery is not None:
        before = refine(graph.refiner.refiner, before, gallery)
    num_written = sum(file.stat().st_size for file in (path, path.with_suffix(".bin")) if file.is_file())
    return ParityReport(
        settings,
        fingerprint,
        reference.config["backbone"],
        "images of random pixels" if check is None else "check images",
        parity.Differences.of(before, after),
        parity.compare(before, after, check, settings.seed),
        {
            BEFORE: sum(each.numel() * each.element_size() for each in reference.state_dict().values()),
            AFTER: num_written,
        },
        parity.speeds(
            {BEFORE: lambda: embed(tensors, progress=False), AFTER: lambda: engine.run(pixels)} if with_speed else {}
        ),
        parity.machine("openvino" if settings.format == "openvino" else "onnxruntime"),
        graph.refiner is not None,
    )
