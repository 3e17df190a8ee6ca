"""Exports equal their models, say what they lose, and are written as a whole or not at all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from tests.export.conftest import build
from tests.models.refiner_reference import PAPER
from tests.refusals import refused_call
from vicinal.data import ImageTransform, Table
from vicinal.export import ExportSettings, export_model, open_exported
from vicinal.export.conversion import read_onnx, save_openvino, to_fp16
from vicinal.export.quantization import to_int8
from vicinal.models import ContextRefiner, Embedder
from vicinal.retrieval import refine
from vicinal.utils.errors import InputError

RNG = np.random.default_rng(0)


def pixels(number: int = 6, height: int = 32, width: int = 32) -> np.ndarray:
    return RNG.integers(0, 256, (number, 3, height, width), dtype=np.uint8)


def embedded(model: Embedder, images: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        return model(torch.from_numpy(images)).numpy()


def difference(path: Path, model: Embedder, images: np.ndarray) -> float:
    return float(np.abs(open_exported(path).run(images) - embedded(model, images)).max())


def test_the_files_of_an_export(model: Embedder, onnx_file: Path, table: Table) -> None:
    names = ["model.onnx", "model.parity.json", "model.parity.md", "model.preprocessing.json"]
    assert sorted(os.listdir(onnx_file.parent)) == names
    report = json.loads(onnx_file.with_suffix(".parity.json").read_text())
    assert report["vectors"]["num_images"] == len(table)
    assert report["vectors"]["largest"] < 1e-6
    assert report["metrics"]["recall@1"]["before"] == report["metrics"]["recall@1"]["after"]
    value, low, high = report["metrics"]["mAP@R"]["before"]
    assert 0.5 < low <= value <= high <= 1
    assert "| recall@1 |" in onnx_file.with_suffix(".parity.md").read_text()
    preprocessing = json.loads(onnx_file.with_suffix(".preprocessing.json").read_text())
    assert preprocessing["mean"] == list(model.transform.mean)
    assert (preprocessing["size"], preprocessing["resize"]) == (32, 40)


def test_the_batch_is_free_and_nothing_tells_of_this_machine(model: Embedder, onnx_file: Path) -> None:
    exported = onnx.load(str(onnx_file))
    shape = exported.graph.input[0].type.tensor_type.shape.dim
    assert [each.dim_param or each.dim_value for each in shape] == ["batch", 3, 32, 32]
    assert b".py" not in exported.SerializeToString()
    for number in (1, 2, 5):
        assert difference(onnx_file, model, pixels(number)) < 1e-6, number


def test_half_precision_and_8_bits(model: Embedder, onnx_file: Path, tmp_path: Path) -> None:
    images = pixels(16)
    expected, sizes = embedded(model, images), {"exact": onnx_file.stat().st_size}
    to_fp16(onnx_file, tmp_path / "half.onnx")
    to_int8(onnx_file, tmp_path / "int8.onnx", iter([images]))
    for name, limit in (("half", 1e-3), ("int8", 0.05)):
        path = tmp_path / f"{name}.onnx"
        found = onnxruntime.InferenceSession(str(path)).run(None, {"images": images})[0]
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6, err_msg=name)
        assert 0 < np.abs(found - expected).max() < limit, name
        sizes[name] = path.stat().st_size
    assert sizes["half"] < 0.55 * sizes["exact"]
    assert sizes["int8"] < 0.35 * sizes["exact"]
    scales = [each for each in onnx.load(str(tmp_path / "int8.onnx")).graph.initializer if "weight_scale" in each.name]
    assert max(len(onnx.numpy_helper.to_array(each).ravel()) for each in scales) > 1, "one scale per channel"


def to_openvino_file(onnx_file: Path, model: Embedder, path: Path, half: bool = False) -> None:
    save_openvino(read_onnx(onnx_file, model.fingerprint()), path, half)
    path.with_suffix(".preprocessing.json").write_text(onnx_file.with_suffix(".preprocessing.json").read_text())


def test_openvino(model: Embedder, onnx_file: Path, tmp_path: Path) -> None:
    for name, half, limit in (("exact", False, 1e-6), ("half", True, 1e-3)):
        path = tmp_path / f"{name}.xml"
        to_openvino_file(onnx_file, model, path, half)
        for number in (1, 5):
            assert difference(path, model, pixels(number)) < limit, name
    sizes = [(tmp_path / f"{name}.bin").stat().st_size for name in ("exact", "half")]
    assert sizes[1] < 0.55 * sizes[0]


SIGNALED = """
import faulthandler, gc, signal, sys, threading
from vicinal.export import open_exported
faulthandler.enable()  # as pytest and others do: the main thread has a stack for signals, which OpenVINO replaces
signal.signal(signal.SIGTERM, lambda *_: print("handled"))
models = [open_exported(sys.argv[1])]
thread = threading.Thread(target=lambda: (models.clear(), gc.collect()))
thread.start()
thread.join()
signal.raise_signal(signal.SIGTERM)
"""


def test_signals_are_handled_after_openvino_was_closed_in_another_thread(
    model: Embedder, onnx_file: Path, tmp_path: Path
) -> None:
    """OpenVINO unmaps the stack that the main thread handles signals on; that was a segmentation fault."""
    path = tmp_path / "model.xml"
    to_openvino_file(onnx_file, model, path)
    command = [sys.executable, "-c", SIGNALED, str(path)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "handled\n"


@pytest.mark.slow
def test_a_module_of_the_user_with_images_of_any_size_channels_last(tmp_path: Path) -> None:
    layers = torch.nn.Conv2d(3, 8, 5, stride=3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1)
    model = Embedder.from_module(torch.nn.Sequential(*layers, torch.nn.Flatten()), ImageTransform(size=32)).eval()
    path = tmp_path / "any.onnx"
    report = export_model(model, path, size=40, dynamic_size=True, layout="nhwc")
    assert report.results is None
    assert report.metrics() is None
    assert "no labels" in path.with_suffix(".parity.md").read_text()
    for size in ((32, 32), (48, 80), (33, 37)):
        assert difference(path, model, pixels(2, *size)) < 1e-6, size
    assert open_exported(path).preprocessing["size"] == 40
    assert report.fingerprint != model.fingerprint()  # another size gives other vectors of the same image


@pytest.mark.slow
def test_a_vision_transformer_from_normalized_tensors_with_a_refiner(table: Table, tmp_path: Path) -> None:
    model = build("test_vit", 160, pooling="token", norm="none")
    gallery = model.embed(table, progress=False)
    torch.manual_seed(0)
    refiner = ContextRefiner(8, depth=2, num_heads=2, neighbors=4, **PAPER)
    for block in refiner.blocks:
        torch.nn.init.normal_(block.output, std=0.5)
    path = tmp_path / "refined.onnx"
    settings = ExportSettings(input="tensor", dynamic_size=True, tolerance=1e-5)
    report = export_model(model, path, settings, check=table, refiner=refiner, gallery=gallery)
    assert report.fingerprint == f"{model.fingerprint()}+{refiner.fingerprint()}"
    plain = model.embed(table.paths[:5], progress=False)
    expected = refine(refiner, plain, gallery)
    assert np.abs(expected - plain).max() > 0.01
    np.testing.assert_allclose(open_exported(path).embed(table.paths[:5]), expected, atol=1e-5)


def test_an_export_that_loses_too_much_leaves_what_was_there(
    model: Embedder, onnx_file: Path, table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export_worse(graph: object, path: Path, fingerprint: str) -> None:
        path.write_bytes(onnx_file.read_bytes())

    monkeypatch.setattr("vicinal.export.conversion.export_onnx", export_worse)
    (tmp_path / "model.parity.md").write_text("of before")
    with pytest.raises(InputError, match=r"the vectors of the export differ by up to .*nothing was written"):
        export_model(model, tmp_path / "model.onnx", check=table, tolerance=1e-12)
    other = build(norm="l2")
    refused_call(r"differ by .* on random images; nothing was written", export_model, other, tmp_path / "model.onnx")
    assert os.listdir(tmp_path) == ["model.parity.md"]
    assert (tmp_path / "model.parity.md").read_text() == "of before"


def test_impossible_settings(model: Embedder, tmp_path: Path) -> None:
    for options, message in (
        ({"precision": "int8"}, "int8 needs calibration_images"),
        ({"gallery": np.eye(8)}, "refiner and gallery belong together"),
        ({"precision": "bf16"}, "precision is 'bf16'; choose fp32 or fp16 or int8"),
        ({"tolerance": -1}, "tolerance"),
    ):
        refused_call(message, export_model, model, tmp_path / "model.onnx", **options)
        assert not os.listdir(tmp_path)


def test_the_files_beside_an_export_of_another_format_are_left_alone(model: Embedder, tmp_path: Path) -> None:
    (tmp_path / "folder.onnx").mkdir()
    refused_call(
        r"folder\.onnx, which is a folder; give the name of a file", export_model, model, tmp_path / "folder.onnx"
    )
    (tmp_path / "model.xml").touch()
    with pytest.raises(InputError, match=r"model\.onnx would share its preprocessing and report with model\.xml"):
        export_model(model, tmp_path / "model.onnx")


def test_sizes_that_a_backbone_does_not_take(tmp_path: Path) -> None:
    out, vit = tmp_path / "model.onnx", build("vit_tiny_patch16_224", 224, backbone_args={"depth": 1})
    refused_call(
        "dynamic_size: vit_tiny_patch16_224 takes images of 224 px only", export_model, vit, out, dynamic_size=True
    )
    refused_call("size is 96, but vit_tiny_patch16_224 takes images of 224 px only", export_model, vit, out, size=96)
    with pytest.raises(InputError, match=r"dynamic_size: tf_.* pads by the size of its images"):
        export_model(build("tf_mobilenetv3_small_minimal_100", 32), out, dynamic_size=True)
    with pytest.raises(InputError, match="whole images of at most 64 px; add dynamic_size"):
        export_model(build(transform=ImageTransform(longest=64)), out)


def test_another_size_keeps_the_margin() -> None:
    from vicinal.export.graph import resized_transform

    resized = resized_transform(build(transform=ImageTransform(size=32, resize=40)), 48)
    assert (resized.size, resized.resize) == (48, 60)


TOKEN = {"pooling": "token", "norm": "none"}
# Backbone, side of its images, more arguments, and what is the matter with images of any size.
FAMILIES = [
    ("resnet18", 64, {}, None),
    ("convnext_atto", 64, {}, None),
    ("tf_efficientnet_b0", 64, {}, "pads by the size of its images"),
    ("repvgg_a0", 64, {}, None),
    ("fastvit_t8", 64, {}, None),
    ("mobilenetv4_conv_small", 64, {}, None),
    ("swin_tiny_patch4_window7_224", 224, {"pooling": "avg"}, "takes images of 224 px only"),
    ("vit_small_patch16_224", 224, TOKEN, "takes images of 224 px only"),
    ("vit_base_patch32_clip_224", 224, {**TOKEN, "backbone_args": {"depth": 2}}, "takes images of 224 px only"),
    ("vit_base_patch16_siglip_224", 224, {"pooling": "backbone", "backbone_args": {"depth": 2}}, "224 px only"),
    ("eva02_tiny_patch14_224", 224, {"pooling": "avg"}, "takes images of 224 px only"),
    ("vit_small_patch14_dinov2", 224, {**TOKEN, "backbone_args": {"dynamic_img_size": True}}, None),
    ("vit_small_patch16_dinov3", 224, {"pooling": "avg"}, None),
    ("test_vit", 160, TOKEN, None),
]


@pytest.mark.slow
@pytest.mark.parametrize(("backbone", "size", "options", "obstacle"), FAMILIES, ids=lambda each: str(each)[:30])
def test_a_family(backbone: str, size: int, options: dict, obstacle: str | None, tmp_path: Path) -> None:
    model = build(backbone, size, **options)
    report = export_model(model, tmp_path / "fixed.onnx", tolerance=2e-6)
    print(f"{backbone}: {report.vectors.largest:.1e}")
    if obstacle is None:
        export_model(model, tmp_path / "any.onnx", dynamic_size=True, tolerance=2e-6)
    else:
        refused_call(obstacle, export_model, model, tmp_path / "any.onnx", dynamic_size=True)
