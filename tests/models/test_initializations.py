import pickle
from dataclasses import replace

import pytest
import safetensors.torch
import timm
import torch
from timm.models import get_pretrained_cfg

from tests.conftest import ROOT
from tests.refusals import refused_call
from vicinal.models import INITIALIZATIONS, create_backbone, default_transform
from vicinal.models.initializations import chosen_transform
from vicinal.models.weight_files import read_weights


def trained(name, **arguments):
    """A timm model with its classifier, all of whose weights and statistics are random."""
    model = timm.create_model(name, **arguments)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) * 0.2 + 0.1)
    return model.eval()


def saved(model, path, wrap=lambda state: state):
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(wrap(state), path)
    else:
        torch.save(wrap(state), path)
    return path


def under(prefix, state):
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


@pytest.mark.parametrize(
    ("name", "suffix"),
    [*((f"test_{name}", ".pth") for name in ("resnet", "convnext", "efficientnet", "mambaout")),
     ("test_vit", ".safetensors"), ("test_vit", ".bin")],
)  # fmt: skip
def test_a_local_file_gives_the_features_of_the_model_it_came_from(tmp_path, name, suffix):
    model = trained(name)
    backbone = create_backbone(name, saved(model, tmp_path / f"weights{suffix}")).eval()
    model.reset_classifier(0, "")
    images = torch.rand(2, 3, 160, 160)
    assert torch.equal(backbone(images), model(images))


def test_wrapped_files(tmp_path):
    model = trained("test_resnet")
    for kind, wrap in {
        "state_dict": lambda state: {"state_dict": state, "epoch": 3},
        "model": lambda state: {"model": state},
        "module.": lambda state: {"state_dict": under("module.", state)},
        "ema": lambda state: {"state_dict": {}, "state_dict_ema": state},
        "no classifier": lambda state: {key: value for key, value in state.items() if not key.startswith("fc.")},
        "Lightning": lambda state: {"state_dict": {**under("model.", state), "loss.proxies": torch.ones(3)}, "step": 3},
        "backbone.": lambda state: {**under("backbone.", state), "head.1.weight": torch.ones(3)},
        "nested": lambda state: {"model": under("module.model.backbone.", state)},
        "compiled": lambda state: {**under("model._orig_mod.", state), "model_ema.fc.bias": torch.ones(3)},
    }.items():
        backbone = create_backbone("test_resnet", saved(model, tmp_path / "w.pt", wrap))
        for name, tensor in backbone.state_dict().items():
            assert torch.equal(tensor, model.state_dict()[name]), (kind, name)


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_the_first_convolution_is_fitted_to_gray_images(tmp_path, name):
    model = trained(name)
    backbone = create_backbone(name, saved(model, tmp_path / "w.safetensors"), channels=1).eval()
    gray = torch.rand(2, 1, 160, 160)
    torch.testing.assert_close(backbone(gray), model.forward_features(gray.expand(-1, 3, -1, -1)), rtol=1e-3, atol=1e-4)


def test_widths_and_a_file_that_does_not_fit_them(tmp_path):
    small = {"channels": [8, 8, 16, 24]}
    assert create_backbone("test_resnet", False, backbone_args=small).num_features == 24
    path = saved(trained("test_resnet"), tmp_path / "w.pth")
    message = r"w\.pth does not fit test_resnet: .*size mismatch for layer1"
    refused_call(message, create_backbone, "test_resnet", path, backbone_args=small)


def test_weights_whose_last_norm_stands_after_pooling(tmp_path):
    model = trained("test_vit", global_pool="avg")
    assert "fc_norm.weight" in model.state_dict()
    backbone = create_backbone("test_vit", saved(model, tmp_path / "w.safetensors"))
    assert torch.equal(backbone.norm.weight, torch.ones(64))


def test_missing_and_unknown_keys_are_named(tmp_path):
    model = trained("test_resnet")
    missing = saved(model, tmp_path / "a.pt", lambda state: {k: v for k, v in state.items() if k != "bn1.weight"})
    refused_call(r"it lacks bn1\.weight$", create_backbone, "test_resnet", missing)
    extra = saved(model, tmp_path / "b.pt", lambda state: {**state, "layer9.weight": torch.zeros(1)})
    refused_call(r"it has the unknown layer9\.weight$", create_backbone, "test_resnet", extra)


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_hostile_pickle_runs_nothing(tmp_path):
    for write in (torch.save, lambda thing, path: path.write_bytes(pickle.dumps(thing))):
        write({"conv1.weight": Hostile(tmp_path / "made")}, tmp_path / "evil.pth")
        refused_call(r"evil\.pth cannot be read as weights", read_weights, tmp_path / "evil.pth")
        assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("length", [0, 7, 1000, -5])
def test_truncated_files(tmp_path, suffix, length):
    path = saved(trained("test_resnet"), tmp_path / f"w{suffix}")
    path.write_bytes(path.read_bytes()[:length])
    refused_call(r"cannot be read as weights", read_weights, path)


def test_files_of_other_things(tmp_path):
    for content in ({}, [], 3, {"lr": 0.1}, torch.zeros(2)):
        torch.save(content, tmp_path / "w.pt")
        refused_call(r"w\.pt", read_weights, tmp_path / "w.pt")


def test_unknown_backbones():
    for name, message in (
        ("resnet5", r"no model 'resnet5'; nearest: .*resnet50"),
        ("qqqqqqqq", "timm.list_models"),
        ("resnet50.nope", r"resnet50 has no weights 'nope'; available: .*a1_in1k"),
    ):
        refused_call(message, create_backbone, name, False)


def test_invalid_arguments():
    for arguments, message in (
        ({"chanels": [1]}, r"test_resnet cannot be built with backbone_args .*chanels"),
        ({"channels": "wide"}, "test_resnet cannot be built with backbone_args"),
        ({"pretrained_cfg_overlay": {"file": "x"}}, "'pretrained_cfg_overlay' cannot be set"),
        ({"checkpoint_path": "x"}, "'checkpoint_path' cannot be set"),
        ({"num_classes": 5}, "'num_classes' cannot be set"),
    ):
        refused_call(message, create_backbone, "test_resnet", False, backbone_args=arguments)


def test_a_failed_download_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    refused_call(r"could not be fetched.*pretrained=path/to/model\.safetensors", create_backbone, "test_resnet", True)


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


def test_another_size_keeps_the_part_of_the_image_that_weights_were_tested_with() -> None:
    found = chosen_transform({"size": 130, "flip": 0.0}, "efficientnet_lite2")
    assert (found.size, found.resize, found.flip) == (130, 146, 0.0)
