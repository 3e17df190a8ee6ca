"""LoRA adapters: where they go, what they train, and that a saved model needs nothing of them."""

import sys
from pathlib import Path

import pytest
import torch

from tests.refusals import refused_call
from vicinal.data import ImageTransform
from vicinal.models import Embedder, add_lora
from vicinal.utils.errors import InputError

pytest.importorskip("peft")


def embedder(backbone: str = "test_vit", pooling: str = "token", size: int = 160, **more: object) -> Embedder:
    torch.manual_seed(0)
    transform = ImageTransform(size=size)
    return Embedder(backbone, dim=8, pooling=pooling, pretrained=False, transform=transform, **more)  # type: ignore[arg-type]


def test_all_adapters_get_a_gradient() -> None:
    """BEiT takes the weight of `qkv` without calling it: an adapter of it would have none."""
    model = embedder("beit_base_patch16_224", "token", 32, backbone_args={"depth": 2, "embed_dim": 48, "num_heads": 3})
    names = add_lora(model)
    assert names == [f"blocks.{i}.{layer}" for i in (0, 1) for layer in ("attn.proj", "mlp.fc1", "mlp.fc2")]
    model(torch.randn(2, 3, 32, 32)).sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    with pytest.raises(InputError, match=r"targets: blocks.0.attn.qkv of beit.*: it is used without being called"):
        add_lora(embedder("beit_base_patch16_224", "token", 32, backbone_args={"depth": 1}), targets=["qkv"])


def test_batch_normalization_of_a_frozen_backbone_stays() -> None:
    model = embedder("test_resnet", "gem", 32)
    add_lora(model)
    buffers = [buffer.clone() for buffer in model.backbone.buffers()]
    model.train()(torch.randn(4, 3, 32, 32)).sum().backward()
    assert all(map(torch.equal, buffers, model.backbone.buffers()))


def test_invalid_adapters_are_refused() -> None:
    model = embedder()
    for arguments, message in (
        ({"targets": ["atn.qkv"]}, r"test_vit has no layer 'atn.qkv'; nearest: attn.qkv, "),
        ({"targets": ["xyz"]}, r"test_vit has no layer 'xyz'; its layers are patch_embed.proj, attn.qkv"),
        ({"targets": "qkv"}, "it must be a list of names of layers"),
        ({"rank": 0}, "rank is 0; it must be an integer, 1 or more"),
        ({"alpha": float("nan")}, "alpha is nan; it must be a number above 0"),
        ({"dropout": 1}, "dropout is 1; it must be a number from 0 to below 1"),
    ):
        refused_call(message, add_lora, model, **arguments)
        assert all(parameter.requires_grad for parameter in model.parameters())


def test_peft_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    refused_call(r"LoRA: needs the package peft; pip install 'vicinal\[lora\]'", add_lora, embedder())


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
    model = embedder(backbone, pooling, size, norm="layer", backbone_args=arguments)
    for name, parameter in model.named_parameters():
        is_scale = "gamma" in name or (parameter.ndim == 1 and name.endswith("weight"))
        if is_scale:  # some begin near 0: a block does nothing
            torch.nn.init.ones_(parameter)
    images = torch.randn(4, 3, size, size)
    before, fingerprint = model.eval()(images), model.fingerprint()
    names = add_lora(model, rank=2, alpha=8.0)
    assert torch.equal(model(images), before)
    assert model.fingerprint() == fingerprint
    assert {end for end in expected if any(f".{name}".endswith(f".{end}") for name in names)} == expected
    assert all(any(f".{name}".endswith(f".{end}") for end in {*expected, "conv1"}) for name in names)
    adapters = [parameter for parameter in model.backbone.parameters() if parameter.requires_grad]
    assert len(adapters) == 2 * len(names)
    assert all(parameter.requires_grad for parameter in model.head.parameters())
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
    assert loaded.fingerprint() == model.fingerprint() != fingerprint
    assert not any("lora" in name for name, _ in loaded.named_parameters())
    torch.testing.assert_close(loaded(images), after, rtol=0, atol=1e-5)
