"""What is put together around an export: the refiner of a graph, calibration images, sizes."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper

from tests.models.refiner_reference import trained
from vicinal.data import Table
from vicinal.export import ExportSettings, OnnxEmbedder
from vicinal.export.exporter import _calibration_batches
from vicinal.export.graph import ExportGraph, GalleryRefiner, exportable
from vicinal.export.parity import check_shapes
from vicinal.export.quantization import BiasCorrection, to_int8
from vicinal.models import Embedder
from vicinal.retrieval import refine
from vicinal.utils.errors import InputError

RNG = np.random.default_rng(0)


def save_graph(
    path: Path, nodes: list[onnx.NodeProto], ends: list[tuple[str, list[int | None]]], weights: dict[str, np.ndarray]
) -> Path:
    """A model of these nodes from the first end to the second, in float32."""
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in ends]
    stored = [onnx.numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "tiny", values[:1], values[1:], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


@pytest.mark.parametrize(("context", "num_gallery"), [("neighbors", 30), ("neighbors", 3), ("self", 30)])
def test_a_refiner_of_a_graph_equals_refine(context: str, num_gallery: int) -> None:
    refiner = trained(8, depth=2, num_heads=2, context=context, neighbors=5).float()
    vectors, gallery = (RNG.normal(size=(n, 8)).astype(np.float32) for n in (6, num_gallery))
    unit = torch.nn.functional.normalize(torch.from_numpy(vectors))
    with torch.inference_mode():
        found = GalleryRefiner(refiner, gallery)(unit).numpy()
    np.testing.assert_allclose(found, refine(refiner, vectors, gallery), atol=1e-5)
    assert np.abs(found - unit.numpy()).max() > 0.01


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("input_", ["pixels", "tensor"])
def test_calibration_images_are_what_the_exported_model_will_get(
    input_: str, layout: str, model: Embedder, table: Table
) -> None:
    settings = ExportSettings(input=input_, layout=layout, num_calibration_images=20, seed=1)
    graph = ExportGraph(exportable(model, settings), settings)
    (first, second) = _calibration_batches(graph, table)
    reader = OnnxEmbedder.__new__(OnnxEmbedder)
    transform = model.transform
    reader.preprocessing = {**transform.to_dict(), "resize": 40, "input": input_, "layout": layout}
    taken = []
    reader.infer = lambda inputs: taken.append(inputs) or np.full((len(inputs), 8), 8**-0.5, np.float32)
    reader.dim = 8
    rows = np.random.default_rng(1).permutation(len(table))[:20]
    reader.embed([table.paths[row] for row in rows])
    assert first.dtype == taken[0].dtype
    np.testing.assert_allclose(np.concatenate([first, second]), taken[0], atol=1e-5)


def test_products_of_two_activations_stay_in_float32(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "weights"], ["q"], "linear")]
    nodes += [helper.make_node("Softmax", ["q"], ["s"]), helper.make_node("MatMul", ["s", "s"], ["y"], "attention")]
    ends = [("x", [2, 4, 4]), ("y", [2, 4, 4])]
    tiny = save_graph(tmp_path / "tiny.onnx", nodes, ends, {"weights": RNG.normal(size=(4, 4))})
    to_int8(tiny, tmp_path / "int8.onnx", iter([RNG.normal(size=(2, 4, 4)).astype(np.float32)]))
    found = {node.name: node.input for node in onnx.load(str(tmp_path / "int8.onnx")).graph.node}
    assert list(found["attention"]) == ["s", "s"]
    assert not {"x", "weights"} & set(found["linear"])


@pytest.mark.parametrize(
    ("channels", "groups", "stays"),
    [
        ((4, 4, 4, 4, 4), (1, 4, 1, 2), [True, True, False, False]),  # the first one, and a depthwise one
        ((4, 8, 8, 256, 256), (1, 1, 1, 1), [True, True, False, False]),  # 64 of 67,680 weights
    ],
)
def test_sensitive_layers_stay_in_float32(
    channels: tuple[int, ...], groups: tuple[int, ...], stays: list[bool], tmp_path: Path
) -> None:
    shapes = [(channels[n + 1], channels[n] // group, 1, 1) for n, group in enumerate(groups)]
    weights = {f"w{number}": RNG.normal(size=shape) for number, shape in enumerate(shapes)}
    nodes = [helper.make_node("Conv", [f"x{number}", f"w{number}"], [f"x{number + 1}"], f"c{number}", group=group)
             for number, group in enumerate(groups)]  # fmt: skip
    ends = [(f"x{number}", [2, channels[number], 5, 5]) for number in (0, 4)]
    file, images = save_graph(tmp_path / "a.onnx", nodes, ends, weights), RNG.normal(size=(2, 4, 5, 5))
    to_int8(file, tmp_path / "b.onnx", iter([images.astype(np.float32)]))
    found = {node.name: node.input for node in onnx.load(str(tmp_path / "b.onnx")).graph.node}
    assert [f"w{number}" in found[f"c{number}"] for number in range(4)] == stays


@pytest.mark.parametrize(("kind", "groups"), [("Conv", 1), ("Conv", 4), ("Gemm", 1)])
def test_rounded_weights_leave_the_mean_of_each_channel(kind: str, groups: int, tmp_path: Path, monkeypatch) -> None:
    sides = (5, 5) if kind == "Conv" else ()
    images = RNG.random((64, 16, *sides)).astype(np.float32)
    shapes = {"u": (16, 16), "w": (16, 16 // groups)}
    tensors = {name: RNG.normal(size=(*shape, *(1 for _ in sides))) for name, shape in shapes.items()}
    tensors |= {f"{name} bias": RNG.normal(size=16) for name in tensors}
    more = {"group": groups} if kind == "Conv" else {"transB": 1}
    first = {"group": 1} if kind == "Conv" else more
    nodes = [helper.make_node(kind, ["x", "u", "u bias"], ["h"], "first", **first)]
    nodes += [helper.make_node("Relu", ["h"], ["r"], "relu")]
    nodes += [helper.make_node(kind, ["r", "w", "w bias"], ["y"], "second", **more)]
    save_graph(tmp_path / "a.onnx", nodes, [(name, [None, 16, *sides]) for name in "xy"], tensors)

    def means(name: str) -> np.ndarray:
        (found,) = onnxruntime.InferenceSession(tmp_path / name).run(None, {"x": images})
        return found.mean(axis=(0, *range(2, found.ndim)))

    to_int8(tmp_path / "a.onnx", tmp_path / "corrected.onnx", iter([images[:40], images[40:]]))
    monkeypatch.setattr(BiasCorrection, "apply", lambda *_: None)
    to_int8(tmp_path / "a.onnx", tmp_path / "rounded.onnx", iter([images]))
    corrected, rounded = (np.abs(means(f"{name}.onnx") - means("a.onnx")).mean() for name in ("corrected", "rounded"))
    assert corrected < 0.6 * rounded


def test_an_export_that_takes_two_images_only_is_refused(model: Embedder) -> None:
    settings = ExportSettings()
    graph = ExportGraph(exportable(model, settings), settings)

    def infer(images: np.ndarray) -> np.ndarray:
        if len(images) != 2:
            raise RuntimeError("Got invalid dimensions for input: images")
        with torch.inference_mode():
            return graph(torch.from_numpy(images)).numpy()

    with pytest.raises(InputError, match=r"^the export fails for a batch of 1, 32 x 32 px \(Got invalid dimensions"):
        check_shapes(graph, infer, [(32, 32)])
