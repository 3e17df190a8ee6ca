"""A network as an ONNX model."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vicinal.export.graph import ExportGraph
from vicinal.utils.errors import InputError, import_extra, one_line

if TYPE_CHECKING:
    import onnx

MAX_BYTES = 2**31 - 2**24
"""An ONNX file is one message of protobuf, which holds at most 2 GiB; a little of it is not weights."""
EXAMPLES = 2  # with one image, torch would take its number for a constant


def export_onnx(graph: ExportGraph, path: Path, fingerprint: str) -> None:
    """Write a network as an ONNX model with float32 weights, whose batch size is free.

    Args:
        graph: The network.
        path: The file, which is written.
        fingerprint: Of the model; it is stored in the file.

    Raises:
        InputError: The network cannot be exported, or is too large for one file.
    """
    tensors = [*graph.parameters(), *graph.buffers()]
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if num_bytes > MAX_BYTES:
        raise InputError(f"the exported model would have {num_bytes / 2**30:.1f} GiB; an ONNX file has at most 2 GiB")
    model = _export(graph)
    _name_dimensions(model, graph)
    _forget_origin(model)
    model.producer_name = "vicinal"
    _onnx().helper.set_model_props(model, {"fingerprint": fingerprint})
    _onnx().save(model, str(path))


def _onnx() -> Any:
    import_extra("onnxscript", "export", "the export to ONNX")
    return import_extra("onnx", "export", "the export to ONNX")


def _export(graph: ExportGraph) -> onnx.ModelProto:
    """Trace the network by torch.export, for which `DYNAMIC` means an error where a dimension becomes a constant."""
    _onnx()
    size, settings = graph.model.transform.size, graph.settings
    free = [0, *(sides(settings.layout) if settings.dynamic_size else ())]
    example = graph.example(EXAMPLES, size, size)
    with quiet(), torch.no_grad():
        try:
            program = torch.onnx.export(
                graph,
                (example,),
                dynamo=True,
                dynamic_shapes={"images": dict.fromkeys(free, torch.export.Dim.DYNAMIC)},
                input_names=["images"],
                output_names=["embeddings"],
                verbose=False,
            )
        except Exception as error:  # what torch and the network's own code raise
            name = graph.model.config["backbone"]
            hint = " with images of any size; leave out dynamic_size" if settings.dynamic_size else ""
            cause = error.__cause__ or error
            raise InputError(f"{name} cannot be exported{hint} ({one_line(cause, 200)})") from error
    return program.model_proto  # type: ignore[union-attr]


@contextmanager
def quiet() -> Iterator[None]:
    """A context without the warnings and messages of exporters, which are about torch's own code."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)


def sides(layout: str) -> tuple[int, int]:
    """The dimensions of height and width."""
    return (1, 2) if layout == "nhwc" else (2, 3)


def _name_dimensions(model: onnx.ModelProto, graph: ExportGraph) -> None:
    """Name the free dimensions; torch calls them s77 and the like."""
    names = {0: "batch", **dict(zip(sides(graph.settings.layout), ("height", "width"), strict=True))}
    del model.graph.value_info[:]  # shapes of inner values, in which the old names are; runtimes find them out
    (images,), (embeddings,) = model.graph.input, model.graph.output
    for number, dimension in enumerate(images.type.tensor_type.shape.dim):
        if dimension.dim_param:
            dimension.dim_param = names[number]
    embeddings.type.tensor_type.shape.dim[0].dim_param = "batch"


def _forget_origin(model: onnx.ModelProto) -> None:
    """Remove what torch notes of each node for debugging: stack traces, with paths of this machine."""
    for each in (*model.graph.node, *model.graph.initializer):
        del each.metadata_props[:]
        each.doc_string = ""
    model.doc_string = model.graph.doc_string = ""
    del model.metadata_props[:], model.graph.metadata_props[:]
