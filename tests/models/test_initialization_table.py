"""The table of initializations says what the networks are, and its names are backbones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import timm
import torch
from timm.models import get_pretrained_cfg

from tests.conftest import ROOT
from vicinal import Recipe
from vicinal.models import INITIALIZATIONS, create_backbone, default_transform
from vicinal.utils.errors import InputError

ACTIVATIONS = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu"}
TABLE_5 = {
    "ImageNet-21k": {"ViT-B/32", "ViT-B/16", "ViT-L/16"},
    "CLIP, 400M images": {"ViT-B/32", "ViT-B/16", "ViT-L/14"},
    "CLIP, LAION-2B": {"ViT-B/32", "ViT-B/16", "ViT-L/14"},
    "DiHT": {"ViT-B/32", "ViT-B/16", "ViT-L/14"},
    "SWAG": {"ViT-B/16", "ViT-L/16"},
    "DINOv2": {"ViT-L/14"},
}


def on_meta(name):
    """The network of one block, with its own pooling, without memory for its weights."""
    with torch.device("meta"):
        return timm.create_model(INITIALIZATIONS[name].backbone, depth=1, num_classes=0)


@pytest.mark.parametrize("name", [name for name, each in INITIALIZATIONS.items() if "gelu" in each.activation])
def test_activation_patches_and_pooling_of_transformers(name):
    each, network = INITIALIZATIONS[name], on_meta(name)
    assert each.activation == ACTIVATIONS[type(network.blocks[0].mlp.act).__name__]
    assert network.patch_embed.patch_size[0] == int(each.network.rpartition("/")[2])
    # timm pools the patch tokens of DINOv3; its authors recommend the class token for whole images.
    pooling = {"token": "token", "map": "backbone", "avg": "token" if each.weights == "DINOv3" else "avg"}
    assert each.pooling == pooling[network.global_pool]
    assert network.embed_dim == {"S": 384, "B": 768, "L": 1024}[each.network.partition("/")[0][-1]]


@pytest.mark.parametrize("name", [name for name, each in INITIALIZATIONS.items() if each.url is None])
def test_normalization_and_size_are_those_of_the_weights(name):
    each = INITIALIZATIONS[name]
    published = get_pretrained_cfg(each.backbone)
    assert published.has_weights
    assert (each.mean, each.std) == (published.mean, published.std)
    assert each.interpolation == published.interpolation
    # The paper trains all networks on images of 224 pixels.
    assert each.size == (224 if each.weights in ("DINOv2", "DINOv3") else published.input_size[-1])


@pytest.mark.parametrize("name", ["efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2"])
def test_packaged_weights_have_the_transform_of_their_network(name):
    transform, expected = default_transform(name), default_transform(f"tf_{name}")
    assert replace(transform, resize=transform.resize or expected.resize) == expected
    with torch.device("meta"):
        network = timm.create_model(INITIALIZATIONS[name].backbone)
    assert isinstance(network.bn1.act, torch.nn.ReLU6)


def test_table_5_of_the_paper_is_complete():
    for weights, networks in TABLE_5.items():
        assert networks <= {each.network for each in INITIALIZATIONS.values() if each.weights == weights}, weights


def test_a_name_is_a_backbone_with_its_transform():
    transform = default_transform("vit_l14_clip_2b")
    assert (transform.size, transform.resize, transform.mean, transform.std) == (224, None, (0.5,) * 3, (0.5,) * 3)
    backbone = create_backbone("vit_b16_clip_400m", False, backbone_args={"depth": 1})
    assert type(backbone.blocks[0].mlp.act).__name__ == "QuickGELU"


def test_a_recipe_takes_the_transform_of_the_name():
    transform = Recipe.load(overrides=["--data.source=digits", "--model.backbone=bn_inception_in1k"]).settings.transform
    assert transform == default_transform("bn_inception_in1k")
    assert transform.std == (1 / 255,) * 3


def test_misspelled_names_are_corrected():
    with pytest.raises(InputError, match=r"no model 'vit_b16_clip_400'; nearest: vit_b16_clip_400m"):
        create_backbone("vit_b16_clip_400", False)


def test_the_table_of_the_guide_is_true():
    lines = (ROOT / "docs" / "guides" / "models.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    names = {(0.485, 0.456, 0.406): "ImageNet", (0.5,) * 3: "0.5", (0.48145466, 0.4578275, 0.40821073): "CLIP"}
    assert [row[:7] for row in rows] == [
        [f"`{name}`", each.network, each.weights, each.activation, str(each.size), names.get(each.mean, "Caffe"),
         each.pooling]
        for name, each in INITIALIZATIONS.items()
    ]  # fmt: skip
    for row, each in zip(rows, INITIALIZATIONS.values(), strict=True):
        assert row[7].startswith(f"`{each.backbone}`")
        assert each.url is None or f"({each.url})" in row[7]
