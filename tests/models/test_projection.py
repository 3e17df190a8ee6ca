"""The image towers of CLIP with their projection, against an independent network in the layout of OpenCLIP's files."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vicinal.models import Embedder, default_pooling, default_transform
from vicinal.models.backbones import projection_dim
from vicinal.utils.errors import InputError

WIDTH, SIZE, PATCH, DIM = 64, 32, 16, 512
SMALL = {"depth": 2, "embed_dim": WIDTH, "num_heads": 2}


class QuickGELU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class Block(nn.Module):
    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, 2), nn.LayerNorm(WIDTH)
        layers = [("c_fc", nn.Linear(WIDTH, 4 * WIDTH)), ("act", activation), ("c_proj", nn.Linear(4 * WIDTH, WIDTH))]
        self.mlp = nn.Sequential(OrderedDict(layers))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.ln_1(x)
        x = x + self.attn(normed, normed, normed, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Tower(nn.Module):
    """The vision transformer of CLIP, with the names of its published files."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTH, PATCH, PATCH, bias=False)
        self.class_embedding = nn.Parameter(torch.empty(WIDTH))
        self.positional_embedding = nn.Parameter(torch.empty((SIZE // PATCH) ** 2 + 1, WIDTH))
        self.ln_pre, self.ln_post = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.transformer = nn.ModuleDict({"resblocks": nn.ModuleList([Block(activation), Block(activation)])})
        self.proj = nn.Parameter(torch.empty(WIDTH, DIM))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.2)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.conv1(images).flatten(2).permute(2, 0, 1)
        tokens = torch.cat([self.class_embedding.expand(1, len(images), -1), patches])
        tokens = self.ln_pre(tokens + self.positional_embedding[:, None])
        for block in self.transformer["resblocks"]:
            tokens = block(tokens)
        return self.ln_post(tokens[0]) @ self.proj


@pytest.fixture(params=["vit_base_patch16_clip_224", "vit_b16_clip_400m"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tower(name: str) -> Tower:
    torch.manual_seed(0)
    return Tower(QuickGELU() if name == "vit_b16_clip_400m" else nn.GELU()).eval()


def embedder(name: str, weights: Path | bool, pooling: str = "projection") -> Embedder:
    transform = replace(default_transform(name), size=SIZE, resize=SIZE)
    return Embedder(name, None, pooling, "none", weights, transform=transform, backbone_args=SMALL).eval()  # type: ignore[arg-type]


@torch.no_grad()
def test_the_embedding_is_that_of_the_published_model(tmp_path: Path, name: str, tower: Tower) -> None:
    torch.save({f"visual.{key}": value for key, value in tower.state_dict().items()}, tmp_path / "open_clip.pt")
    model, images = embedder(name, tmp_path / "open_clip.pt"), torch.randn(3, 3, SIZE, SIZE)
    assert model.dim == DIM
    expected = F.normalize(tower(images))
    torch.testing.assert_close(model(images), expected, atol=1e-5, rtol=0)
    arguments = dict(SMALL, img_size=SIZE, num_classes=DIM)
    network = timm.create_model(model.config["backbone"], **arguments).eval()
    network.load_state_dict(model.backbone.state_dict())
    torch.testing.assert_close(F.normalize(network(images)), expected, atol=1e-5, rtol=0)
    model.save_pretrained(tmp_path / "model")
    torch.testing.assert_close(Embedder.from_pretrained(tmp_path / "model")(images), model(images))
    assert embedder(name, tmp_path / "open_clip.pt", "token").dim == WIDTH  # without the projection


def test_weights_without_the_projection_are_refused(tmp_path: Path, name: str, tower: Tower) -> None:
    state = {f"visual.{key}": value for key, value in tower.state_dict().items() if key != "proj"}
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(InputError, match=r"w\.pt does not fit .*head\.weight"):
        embedder(name, tmp_path / "w.pt")


def test_networks_without_a_projection_are_refused() -> None:
    for name, pretrained in (("test_vit", False), ("vit_base_patch32_clip_224", True)):  # the latter's was replaced
        with pytest.raises(InputError, match=f"'projection': {name} has no projection of CLIP"):
            Embedder(name, None, "projection", pretrained=pretrained)


def test_every_image_tower_of_clip_is_recognized() -> None:
    widths = {384, 512, 640, 768, 1024, 1152, 1280}  # classifiers have other numbers of classes
    for name in timm.list_pretrained():
        num_classes = timm.get_pretrained_cfg(name).num_classes
        assert projection_dim(name) == (num_classes if num_classes in widths else None), name


def test_the_default_pooling_is_that_of_the_published_embedding() -> None:
    for pooling, names in {
        "projection": ["vit_l14_clip_2b", "vit_b32_diht", "resnet50_clip.openai", "vit_pe_core_base_patch16_224"],
        "token": ["vit_b16_swag", "vit_b14_dinov2"],
        "backbone": ["vit_b16_siglip2", "vit_base_patch32_clip_224", "vit_small_patch14_dinov2", "resnet50"],
    }.items():
        assert {default_pooling(name) for name in names} == {pooling}
