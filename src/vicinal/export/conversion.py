"""A network as a model for ONNX Runtime or OpenVINO, in float32 or in half precision."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vicinal.export.graph import ExportGraph
from vicinal.export.onnx_embedder import openvino_core, runtime_options
from vicinal.utils.errors import InputError, import_extra, one_line

if TYPE_CHECKING:
    import onnx

    from vicinal.utils.arrays import Floats

MAX_BYTES = 2**31 - 2**24
"""An ONNX file is one message of protobuf, which holds at most 2 GiB; a little of it is not weights."""
EXAMPLES = 2  # with one image, torch would take its number for a constant
WITH_WEIGHTS = ("Conv", "Gemm", "MatMul")


def export_onnx(graph: ExportGraph, path: Path, fingerprint: str) -> None:
    """Write a network as an ONNX model with float32 weights and a fingerprint, whose batch size is free."""
    tensors = [*graph.parameters(), *graph.buffers()]
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if num_bytes > MAX_BYTES:
        raise InputError(f"the exported model would have {num_bytes / 2**30:.1f} GiB; an ONNX file has at most 2 GiB")
    model = _export(graph)
    _name_dimensions(model, graph)
    _strip_debug_info(model)
    model.producer_name = "vicinal"
    _onnx().helper.set_model_props(model, {"fingerprint": fingerprint})
    _onnx().save(model, str(path))


def _onnx() -> Any:
    import_extra("onnxscript", "export", "the export to ONNX")
    return import_extra("onnx", "export", "the export to ONNX")


def _export(graph: ExportGraph) -> onnx.ModelProto:
    """Trace the network by torch.export; `DYNAMIC` makes it an error if a dimension becomes a constant."""
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
        except Exception as error:  # torch and the network's own code raise any type
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
    del model.graph.value_info[:]  # shapes of inner values, which have the old names; runtimes infer them
    (images,), (embeddings,) = model.graph.input, model.graph.output
    for number, dimension in enumerate(images.type.tensor_type.shape.dim):
        if dimension.dim_param:
            dimension.dim_param = names[number]
    embeddings.type.tensor_type.shape.dim[0].dim_param = "batch"


def _strip_debug_info(model: onnx.ModelProto) -> None:
    """Remove torch's notes on each node for debugging: stack traces, with paths of this machine."""
    for each in (*model.graph.node, *model.graph.initializer):
        del each.metadata_props[:]
        each.doc_string = ""
    model.doc_string = model.graph.doc_string = ""
    del model.metadata_props[:], model.graph.metadata_props[:]


def to_fp16(source: Path, path: Path) -> None:
    """Write an ONNX model with weights and values in half precision.

    Input and output stay as they are, and so do the normalization of the pixels and that of the vectors.
    """
    onnx = import_extra("onnx", "export", "fp16")
    import_extra("onnxruntime", "export", "fp16")
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = onnx.load(str(source))
    try:
        half = convert_float_to_float16(model, keep_io_types=True, node_block_list=_boundary_nodes(model))
    except Exception as error:  # of many kinds
        raise InputError(f"fp16: onnxruntime cannot convert the model ({one_line(error, 200)})") from error
    _remove_redundant_casts(half, onnx.TensorProto)
    onnx.save(half, str(path))


def _boundary_nodes(model: onnx.ModelProto) -> list[str]:
    """The names of the nodes before the first and after the last layer with weights."""
    nodes = model.graph.node
    layers = [number for number, node in enumerate(nodes) if node.op_type in WITH_WEIGHTS]
    return [node.name for number, node in enumerate(nodes) if not layers[0] <= number <= layers[-1]]


def _remove_redundant_casts(model: onnx.ModelProto, types: Any) -> None:
    """Remove casts to half precision and back at once: onnxruntime puts both between two nodes."""
    makers = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        maker = makers.get(node.input[0]) if node.input else None
        if _cast_to(node) == types.FLOAT and maker is not None and _cast_to(maker) == types.FLOAT16:
            node.input[0] = maker.input[0]


def _cast_to(node: onnx.NodeProto) -> int | None:
    """The type that a node casts to; None if it is not a cast."""
    if node.op_type != "Cast":
        return None
    return next(attribute.i for attribute in node.attribute if attribute.name == "to")


def to_openvino(graph: ExportGraph, fingerprint: str) -> Any:
    """Convert a network to a model of OpenVINO with float32 weights and a fingerprint, whose batch size is free."""
    import openvino

    size, settings = graph.model.transform.size, graph.settings
    example = graph.example(EXAMPLES, size, size)
    shape = list(example.shape)
    for free in (0, *(sides(settings.layout) if settings.dynamic_size else ())):
        shape[free] = -1
    with quiet(), torch.no_grad():
        try:
            model = openvino.convert_model(graph, example_input=example, input=[openvino.PartialShape(shape)])
        except Exception as error:  # torch, OpenVINO and the network's own code raise any type
            name = graph.model.config["backbone"]
            raise InputError(f"{name} cannot be exported ({one_line(error, 200)})") from error
    model.set_rt_info(fingerprint, "fingerprint")
    return model


def read_onnx(path: Path, fingerprint: str) -> Any:
    model = openvino_core().read_model(str(path))
    model.set_rt_info(fingerprint, "fingerprint")
    return model


def save_openvino(model: Any, path: Path, half: bool) -> None:
    import openvino

    openvino.save_model(model, str(path), compress_to_fp16=half)


def openvino_function(model: Any) -> Callable[[Floats], Floats]:
    """The function of a model of OpenVINO, in float32."""
    compiled = openvino_core().compile_model(model, **runtime_options("openvino", torch.get_num_threads()))
    return lambda images: compiled([images])[0]
