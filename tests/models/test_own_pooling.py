"""Networks of timm as they are: with their own pooling or the projection of CLIP, and without a head."""

import json
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.refusals import refused_call
from vicinal.data import ImageTransform
from vicinal.models import INITIALIZATIONS, Embedder, default_pooling, default_transform
from vicinal.models.backbones import projection_dim
from vicinal.utils.errors import InputError

SMALL = {"depth": 1, "embed_dim": 64, "num_heads": 2}


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext", "vit_base_patch32_siglip_256.v2_webli"])
def test_features_without_a_head_are_those_of_the_network_with_its_own_pooling(tmp_path, name):
    arguments = SMALL if "siglip" in name else {}
    network = timm.create_model(name, num_classes=0, **arguments).eval()
    torch.save(network.state_dict(), tmp_path / "w.pth")
    model = Embedder(name, None, "backbone", "none", tmp_path / "w.pth", backbone_args=arguments).eval()
    images = torch.rand(2, 3, model.transform.size, model.transform.size)
    with torch.no_grad():
        torch.testing.assert_close(model(images), F.normalize(network(images)))
    assert model.dim == network.num_features
    model.save_pretrained(tmp_path / "model")
    assert Embedder.from_pretrained(tmp_path / "model").fingerprint() == model.fingerprint()


@pytest.mark.parametrize(
    "alias", [name for name, each in INITIALIZATIONS.items() if each.network.startswith("ViT") and not each.url]
)
def test_a_name_of_ours_and_that_of_timm_are_one_embedding(alias):
    each, models = INITIALIZATIONS[alias], []
    for name in (alias, each.backbone):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            more = {"backbone_args": SMALL, "transform": each.transform}
            models.append(Embedder(name, None, default_pooling(name), "none", False, **more))
    images = torch.rand(2, 3, each.size, each.size)
    with torch.no_grad():
        first, second = (model.eval()(images) for model in models)
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize(
    "name",
    ["vit_small_patch16_dinov3", "vit_tiny_patch16_dinov3_qkvb.eupe_lvd1689m", "vit_base_patch14_dinov2.lvd142m"],
)
def test_the_class_token_is_the_embedding_of_images(name):
    size = 28 if "patch14" in name else 32
    small, transform = {**SMALL, "img_size": size}, ImageTransform(size=size)
    model, token = (
        Embedder(name, None, pooling, "none", False, backbone_args=small, transform=transform).eval()
        for pooling in (default_pooling(name), "token")
    )
    token.load_state_dict(model.state_dict(), strict=False)
    images = torch.rand(2, 3, size, size)
    with torch.no_grad():
        torch.testing.assert_close(model(images), token(images))


def test_a_model_is_saved_under_the_names_of_timm(tmp_path):
    model = Embedder("vit_b16_clip_400m", 8, "token", pretrained=False, backbone_args=SMALL)
    assert model.transform == default_transform("vit_b16_clip_400m")
    model.save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["backbone"] == "vit_base_patch16_clip_quickgelu_224.openai"
    assert Embedder.from_pretrained(tmp_path / "model").fingerprint() == model.fingerprint()


def test_a_backbone_without_pooling_of_its_own_is_refused():
    model = Embedder("test_resnet", None, "backbone", pretrained=False)
    model.backbone = nn.Conv2d(3, 96, 1)
    refused_call("test_resnet has no pooling of its own; choose another", model, torch.zeros(1, 3, 32, 32))


@pytest.mark.parametrize("name", ["efficientvit_m0", "xcit_nano_12_p8_224", "pvt_v2_b0", "lambda_resnet26t"])
def test_networks_whose_stem_or_layers_are_of_another_kind(name):
    with torch.random.fork_rng(), torch.device("meta"):
        model = Embedder(name, None, "backbone", "none", pretrained=False)
    size = model.transform.size
    assert model(torch.zeros(2, 3, size, size, device="meta")).shape == (2, model.dim)
    weights = [parameter for parameter in model.backbone.parameters() if parameter.ndim == 4]
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)


def test_sizes_of_images_are_those_that_the_network_takes():
    with torch.device("meta"):
        assert Embedder("pvt_v2_b0", 8, "avg", pretrained=False, transform=ImageTransform(size=64)).dim == 8
        with pytest.raises(InputError, match=r"transform.size is 40; test_vit cuts images into 16 px"):
            Embedder("test_vit", 8, "avg", pretrained=False, transform=ImageTransform(size=40))
        with pytest.raises(InputError, match=r"transform.longest: levit_128s does not take images of any size"):
            Embedder("levit_128s", 8, "avg", pretrained=False, transform=ImageTransform(longest=64))


WIDTH, SIZE, PATCH, DIM = 64, 32, 16, 512
SMALL_TOWER = {"depth": 2, "embed_dim": WIDTH, "num_heads": 2}


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
    """The vision transformer of CLIP, with the names of its published files; DiHT's is the same."""

    def __init__(self, activation: nn.Module, size: int = SIZE) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTH, PATCH, PATCH, bias=False)
        self.class_embedding = nn.Parameter(torch.empty(WIDTH))
        self.positional_embedding = nn.Parameter(torch.empty((size // PATCH) ** 2 + 1, WIDTH))
        self.ln_pre, self.ln_post = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.transformer = nn.ModuleDict({"resblocks": nn.ModuleList([Block(activation), Block(activation)])})
        self.proj = nn.Parameter(torch.empty(WIDTH, DIM))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.2)

    def tokens(self, images: Tensor) -> Tensor:
        """The last layer's, [n, 1 + patches, width]."""
        patches = self.conv1(images).flatten(2).permute(2, 0, 1)
        tokens = torch.cat([self.class_embedding.expand(1, len(images), -1), patches])
        tokens = self.ln_pre(tokens + self.positional_embedding[:, None])
        for block in self.transformer["resblocks"]:
            tokens = block(tokens)
        return self.ln_post(tokens.transpose(0, 1))

    def forward(self, images: Tensor) -> Tensor:
        return self.tokens(images)[:, 0] @ self.proj


@pytest.fixture(params=["vit_base_patch16_clip_224", "vit_b16_clip_400m"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tower(name: str) -> Tower:
    torch.manual_seed(0)
    return Tower(QuickGELU() if name == "vit_b16_clip_400m" else nn.GELU()).eval()


def embedder(name: str, weights: Path | bool, pooling: str = "projection") -> Embedder:
    transform = replace(default_transform(name), size=SIZE, resize=SIZE)
    return Embedder(name, None, pooling, "none", weights, transform=transform, backbone_args=SMALL_TOWER).eval()  # type: ignore[arg-type]


@torch.no_grad()
def test_the_embedding_is_that_of_the_published_model(tmp_path: Path, name: str, tower: Tower) -> None:
    torch.save({f"visual.{key}": value for key, value in tower.state_dict().items()}, tmp_path / "open_clip.pt")
    model, images = embedder(name, tmp_path / "open_clip.pt"), torch.randn(3, 3, SIZE, SIZE)
    assert model.dim == DIM
    expected = F.normalize(tower(images))
    torch.testing.assert_close(model(images), expected, atol=1e-5, rtol=0)
    arguments = dict(SMALL_TOWER, img_size=SIZE, num_classes=DIM)
    network = timm.create_model(model.config["backbone"], **arguments).eval()
    network.load_state_dict(model.backbone.state_dict())
    torch.testing.assert_close(F.normalize(network(images)), expected, atol=1e-5, rtol=0)
    model.save_pretrained(tmp_path / "model")
    torch.testing.assert_close(Embedder.from_pretrained(tmp_path / "model")(images), model(images))
    assert embedder(name, tmp_path / "open_clip.pt", "token").dim == WIDTH  # without the projection


def test_weights_without_the_projection_are_refused(tmp_path: Path, name: str, tower: Tower) -> None:
    state = {f"visual.{key}": value for key, value in tower.state_dict().items() if key != "proj"}
    torch.save(state, tmp_path / "w.pt")
    refused_call(r"w\.pt does not fit .*head\.weight", embedder, name, tmp_path / "w.pt")


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
