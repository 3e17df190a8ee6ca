"""Exported models, calibrations and decisions that are damaged, hostile or of another version: one line says why."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from vicinal.data import Table
from vicinal.data.cleaning_decisions import apply_decisions
from vicinal.export import ExportedEmbedder
from vicinal.export.exported_embedder import open_exported
from vicinal.retrieval.calibration import Calibration, example_calibration
from vicinal.utils.errors import InputError

NOISE = np.random.default_rng(0).bytes(1000)
DAMAGED = [b"", NOISE, b"\0" * 1000, b"[" * 100_000, b"null", b"9" * 5000, b"1e999"]


def refused(message: str, call: Callable[[], object]) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 700


CALIBRATIONS: list[tuple[bytes | dict[str, Any], str]] = [
    *((content, "it is not a calibration") for content in DAMAGED),
    (json.dumps(example_calibration().to_dict()).encode()[:200], "it is not a calibration"),
    ({"threshold": 10**400}, "threshold = 1000"),
    ({"confidence_level": 1e999}, "confidence_level = inf must be a number from 0 to 1"),
    ({"threshold_interval": [float("nan"), 1]}, "threshold_interval = nan must be"),
    ({"probabilities": None}, "probabilities must be"),
    ({"scores": 5, "probabilities": 5}, "scores must be a list of numbers"),
    ({"scores": [0.5], "probabilities": [10**400]}, "probabilities = 1000"),
]


@pytest.mark.parametrize(("content", "message"), CALIBRATIONS)
def test_calibrations(content: bytes | dict[str, Any], message: str, tmp_path: Path) -> None:
    values = (
        json.dumps({**example_calibration().to_dict(), **content}).encode() if isinstance(content, dict) else content
    )
    (tmp_path / "c.json").write_bytes(values)
    refused(message, lambda: Calibration.load(tmp_path / "c.json"))


NUMBERED = Table(pd.DataFrame({"label": ["a", "b"]}))
WITH_PATHS = Table(NUMBERED.frame.assign(path=["/p/1.jpg", "/p/2.jpg"]))
DECISIONS: list[tuple[Table, str | bytes, str]] = [
    *((WITH_PATHS, content, "d.csv") for content in DAMAGED),
    (WITH_PATHS, "path,decision,new_label\n1.jpg,relabel,owl\n2.j", "line 3: 1 fields where the header has 3"),
    (WITH_PATHS, "path,decision\n1.jpg,dr", "decision is 'dr'"),
    (WITH_PATHS, "path,decision\n1.jpg," + "x" * 90_000, "decision is 'xxx"),
    (WITH_PATHS, 'path,decision\n"1\n2",drop', "1 2 is not in the table"),
    (WITH_PATHS, "path,decision\n../../etc/passwd,drop", "is not in the table"),
    (WITH_PATHS, "path,decision,row,row\n1.jpg,drop,1,1", "2 columns are named row"),
    (WITH_PATHS, "path,decision,new_label,new_label\n1.jpg,relabel,a,b", "2 columns are named new_label"),
    *((NUMBERED, f"row,decision\n{row},drop", "the table has 2 rows") for row in ("9" * 5000, "9" * 30, -1, 0.5, "²")),
]


@pytest.mark.parametrize(("table", "content", "message"), DECISIONS)
def test_decisions(table: Table, content: str | bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(message, lambda: apply_decisions(table, tmp_path / "d.csv"))


PREPROCESSING = {
    "format": "vicinal-preprocessing", "version": 1, "fingerprint": "f", "backbone": "b", "dim": 4, "input": "pixels",
    "layout": "nchw", "size": 16, "resize": 18, "longest": None, "interpolation": "bicubic", "fast": True,
    "channels": 3, "mean": [0.5] * 3, "std": [0.5] * 3,
}  # fmt: skip


def onnx_file(weights: np.ndarray, kind: str = "FLOAT", side: int = 16, fingerprint: str = "f") -> bytes:
    """A model: the mean color of an image times the weights."""
    onnx = pytest.importorskip("onnx")
    make, types = onnx.helper, onnx.TensorProto
    nodes = [
        make.make_node("Cast", ["images"], ["values"], to=types.FLOAT),
        make.make_node("ReduceMean", ["values"], ["color"], axes=[2, 3], keepdims=0),
        make.make_node("MatMul", ["color", "weights"], ["product"]),
        make.make_node("LpNormalization", ["product"], ["unit"], axis=1, p=2),
        make.make_node("Cast", ["unit"], ["embeddings"], to=getattr(types, kind)),
    ]
    images = make.make_tensor_value_info("images", types.UINT8, ["batch", 3, side, side])
    vectors = make.make_tensor_value_info("embeddings", getattr(types, kind), ["batch", weights.shape[1]])
    initializer = onnx.numpy_helper.from_array(weights.astype(np.float32), "weights")
    graph = make.make_graph(nodes, "graph", [images], [vectors], [initializer])
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)
    make.set_model_props(model, {"fingerprint": fingerprint})
    data: bytes = model.SerializeToString()
    return data


def embed(folder: Path) -> object:
    Image.new("RGB", (20, 30), "orange").save(folder / "a.png")
    return ExportedEmbedder(open_exported(folder / "m.onnx")).embed([str(folder / "a.png")], progress=False)


def write_exported(folder: Path, model: bytes, preprocessing: bytes) -> None:
    (folder / "m.onnx").write_bytes(model)
    (folder / "m.preprocessing.json").write_bytes(preprocessing)


MODELS: list[tuple[Callable[[], bytes], str]] = [
    *((lambda content=content: content, "m.onnx") for content in DAMAGED),
    (lambda: onnx_file(np.eye(3, 4))[:150], "m.onnx"),
    (lambda: onnx_file(np.eye(3, 4), fingerprint="another"), "of another model than m.onnx"),
    (lambda: onnx_file(np.eye(3, 5)), "gives float32 [1, 5]; it must be float32 [1, 4]"),
    (lambda: onnx_file(np.eye(3, 4), kind="DOUBLE"), "gives float64 [1, 4]; it must be"),
    (lambda: onnx_file(np.full((3, 4), np.nan)), "gives vectors that are not of length 1"),
    (lambda: onnx_file(np.eye(3, 4), side=32), "m.onnx: fails for uint8 [1, 3, 16, 16]"),
]


@pytest.mark.parametrize(("model", "message"), MODELS)
def test_exported_models(model: Callable[[], bytes], message: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    write_exported(tmp_path, model(), json.dumps(PREPROCESSING).encode())
    refused(message, lambda: embed(tmp_path))


BESIDE: list[tuple[bytes | dict[str, Any], str]] = [
    *((content, "its content is invalid; copy it") for content in DAMAGED),
    ({"version": 2}, "version is invalid"),
    ({"dim": 10**400}, "dim is invalid"),
    ({"dim": 4.0}, "dim is invalid"),
    ({"size": 10**9}, "size is invalid"),
    ({"resize": 15}, "resize is invalid"),
    ({"longest": -1}, "longest is invalid"),
    ({"channels": True}, "channels is invalid"),
    ({"interpolation": []}, "interpolation is invalid"),
    ({"layout": "nwhc"}, "layout is invalid"),
    ({"mean": [0.5, 0.5]}, "mean is invalid"),
    ({"std": [0.5, 0, 0.5]}, "std is invalid"),
    ({"std": [1e999] * 3}, "std is invalid"),
    ({"backbone": None}, "backbone is invalid"),
]


@pytest.mark.parametrize(("content", "message"), BESIDE)
def test_preprocessing(content: bytes | dict[str, Any], message: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    values = json.dumps({**PREPROCESSING, **content}).encode() if isinstance(content, dict) else content
    write_exported(tmp_path, onnx_file(np.eye(3, 4)), values)
    refused(f"m.preprocessing.json: {message}", lambda: embed(tmp_path))


def test_the_sound_files_are_taken(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    write_exported(tmp_path, onnx_file(np.eye(3, 4)), json.dumps(PREPROCESSING).encode())
    assert np.asarray(embed(tmp_path)).shape == (1, 4)
