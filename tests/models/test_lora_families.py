"""LoRA on the families of networks: which layers get adapters, that they learn, and that merging changes nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from vicinal.data.images.transforms import ImageTransform
from vicinal.models import Embedder
from vicinal.models.lora import add_lora

pytest.importorskip("peft")

VIT = {"depth": 2, "embed_dim": 48, "num_heads": 3}
SWIN = {"depths": [1, 1], "embed_dim": 24, "num_heads": [2, 4], "window_size": 4}
WIDTHS = {"depths": [1, 1, 1, 1], "dims": [8, 16, 24, 32]}
ATTENTION = {"attn.qkv", "attn.proj"}
MLP = {"mlp.fc1", "mlp.fc2"}
FAMILIES = {
    "swin_tiny_patch4_window7_224": ("avg", 32, SWIN, ATTENTION),
    "swinv2_tiny_window8_256": ("avg", 32, SWIN, {"attn.proj"} | MLP),
    "eva_giant_patch14_224": ("token", 28, VIT, {"attn.proj"} | MLP),
    "eva02_base_patch14_448": ("token", 28, VIT, {f"attn.{each}_proj" for each in "qkv"} | {"attn.proj"}),
    "vit_small_patch16_dinov3": ("token", 32, VIT, ATTENTION),
    "vit_base_patch16_siglip_224": ("backbone", 32, VIT, ATTENTION),
    "convnext_tiny": ("avg", 32, WIDTHS, MLP),
    "convnextv2_tiny": ("avg", 32, WIDTHS, MLP),
    "efficientnet_b0": ("avg", 32, {}, {"conv_pw", "conv_pwl", "conv_head", "conv_reduce", "conv_expand"}),
    "resnet18": ("gem", 32, {"channels": [8, 8, 16, 24]}, {"conv1", "conv2", "downsample.0"}),
    "resnet50": ("gem", 32, {"channels": [8, 8, 16, 24], "layers": [1, 1, 1, 1]}, {"conv2", "conv3", "downsample.0"}),
}
ALIKE = ("swinv2_tiny_window8_256", "eva_giant_patch14_224", "convnextv2_tiny", "resnet50")
"""Their layers are adapted as those of another family are."""


@pytest.mark.parametrize(
    "backbone", [pytest.param(each, marks=pytest.mark.slow) if each in ALIKE else each for each in FAMILIES]
)
def test_adapters_learn_and_are_merged(backbone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pooling, size, arguments, expected = FAMILIES[backbone]
    torch.manual_seed(0)
    transform = ImageTransform(size=size)
    model = Embedder(backbone, 8, pooling, norm="layer", pretrained=False, transform=transform, backbone_args=arguments)  # type: ignore[arg-type]
    for name, parameter in model.named_parameters():
        if "gamma" in name or (
            parameter.ndim == 1 and name.endswith("weight")
        ):  # some begin near 0: a block does nothing
            torch.nn.init.ones_(parameter)
    names = add_lora(model, rank=2, alpha=8.0)
    assert {end for end in expected if any(f".{name}".endswith(f".{end}") for name in names)} == expected
    assert all(any(f".{name}".endswith(f".{end}") for end in {*expected, "conv1"}) for name in names)
    images = torch.randn(4, 3, size, size)
    before = model.eval()(images)
    adapters = [parameter for parameter in model.backbone.parameters() if parameter.requires_grad]
    assert len(adapters) == 2 * len(names)
    optimizer = torch.optim.SGD(adapters, lr=1.0)
    for _ in range(2):  # the first step moves B alone, which is zero at first
        (model(images) * torch.randn(8)).sum().backward()
        assert all(parameter.grad is not None for parameter in adapters)
        torch.nn.utils.clip_grad_norm_(adapters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    after = model(images).detach()
    assert not torch.allclose(after, before, atol=1e-3)
    model.save_pretrained(tmp_path / "model")
    monkeypatch.setitem(sys.modules, "peft", None)
    loaded = Embedder.from_pretrained(tmp_path / "model")
    assert not any("lora" in name for name, _ in loaded.named_parameters())
    torch.testing.assert_close(loaded(images), after, rtol=0, atol=1e-5)
