"""Networks of timm as they are: with their own pooling and without a head."""

import json

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from vicinal.models import Embedder, default_transform
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
