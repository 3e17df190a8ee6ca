"""Networks of timm as they are: with their own pooling and without a head."""

import json

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from vicinal.data import ImageTransform
from vicinal.models import INITIALIZATIONS, Embedder, default_pooling, default_transform
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
    with pytest.raises(InputError, match="test_resnet has none of its own; choose another"):
        model(torch.zeros(1, 3, 32, 32))


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
