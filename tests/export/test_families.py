"""Exports of the families of backbones equal their models, for a free batch and, where it is possible, a free size."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.export.conftest import build
from vicinal.export import export_model
from vicinal.utils.errors import InputError

pytestmark = pytest.mark.slow

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


@pytest.mark.parametrize(("backbone", "size", "options", "obstacle"), FAMILIES, ids=lambda each: str(each)[:30])
def test_a_family(backbone: str, size: int, options: dict, obstacle: str | None, tmp_path: Path) -> None:
    model = build(backbone, size, **options)
    report = export_model(model, tmp_path / "fixed.onnx", tolerance=2e-6)
    print(f"{backbone}: {report.vectors.largest:.1e}")
    if obstacle is None:
        export_model(model, tmp_path / "any.onnx", dynamic_size=True, tolerance=2e-6)
    else:
        with pytest.raises(InputError, match=obstacle):
            export_model(model, tmp_path / "any.onnx", dynamic_size=True)
