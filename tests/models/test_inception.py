"""BN-Inception and GoogLeNet against independent computations, from weights in the formats of their published files."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from PIL import Image

from vicinal.models import create_backbone, default_transform
from vicinal.models.inception import BNInception, GoogLeNet

RANDOM_PHOTO = np.random.default_rng(0).integers(0, 256, (96, 96, 3), dtype=np.uint8)


def transformed(name):
    """The photo as the network of this name takes it, neither resized nor cropped."""
    return replace(default_transform(name), size=96, resize=96).test()(Image.fromarray(RANDOM_PHOTO))[None]


def randomize(state):
    """Give all weights and statistics random values by which features depend on the image."""
    generator = torch.Generator().manual_seed(0)
    for name, tensor in state.items():
        if tensor.ndim == 4:
            torch.nn.init.kaiming_normal_(tensor, nonlinearity="relu", generator=generator)
        elif tensor.ndim == 1:
            center = 0.0 if name.endswith(("bias", "running_mean")) else 1.0
            tensor.copy_(center + torch.rand(tensor.shape, generator=generator) - 0.5)
    return state


def caffe_name(name):
    return name.replace(".conv.", ".").replace(".bn.", "_bn.").replace(".", "_", name.count("inception"))


@pytest.fixture(scope="module")
def caffe_state():
    """Weights as in the file converted from Caffe: its names and no counts of batches."""
    torch.manual_seed(0)
    state = randomize(BNInception(num_classes=0).state_dict())
    state = {caffe_name(name): tensor for name, tensor in state.items() if "num_batches" not in name}
    return state | {"last_linear.weight": torch.zeros(1000, 1024), "last_linear.bias": torch.zeros(1000)}


def caffe_conv(state, name, maps, stride=1):
    weight = state[f"{name}.weight"]
    maps = F.conv2d(maps, weight, state[f"{name}.bias"], stride, padding=weight.shape[-1] // 2)
    statistics = (state[f"{name}_bn.{kind}"] for kind in ("running_mean", "running_var", "weight", "bias"))
    return F.relu(F.batch_norm(maps, *statistics))


def caffe_block(state, name, maps):
    def conv(layer, maps, stride=1):
        return caffe_conv(state, f"inception_{name}_{layer}", maps, stride)

    stride = 2 if name in ("3c", "4e") else 1
    branches = [] if stride == 2 else [conv("1x1", maps)]
    branches.append(conv("3x3", conv("3x3_reduce", maps), stride))
    branches.append(conv("double_3x3_2", conv("double_3x3_1", conv("double_3x3_reduce", maps)), stride))
    if stride == 2:
        branches.append(F.max_pool2d(maps, 3, 2, ceil_mode=True))
    else:
        branches.append(conv("pool_proj", (F.max_pool2d if name == "5b" else F.avg_pool2d)(maps, 3, 1, 1)))
    return torch.cat(branches, 1)


def caffe_features(state, images):
    """The published network, on BGR images from 0 to 255 less their mean."""
    maps = F.max_pool2d(caffe_conv(state, "conv1_7x7_s2", images, 2), 3, 2, ceil_mode=True)
    maps = caffe_conv(state, "conv2_3x3", caffe_conv(state, "conv2_3x3_reduce", maps))
    maps = F.max_pool2d(maps, 3, 2, ceil_mode=True)
    for name in ("3a", "3b", "3c", "4a", "4b", "4c", "4d", "4e", "5a", "5b"):
        maps = caffe_block(state, name, maps)
    return maps


@pytest.mark.parametrize("shape", ["[C]", "[1, C]"])
def test_the_file_from_caffe_gives_the_features_of_the_network_for_bgr(tmp_path, caffe_state, shape):
    bgr = torch.from_numpy(RANDOM_PHOTO[:, :, ::-1].copy()).permute(2, 0, 1).float()
    expected = caffe_features(caffe_state, (bgr - torch.tensor([104.0, 117.0, 128.0]).view(3, 1, 1))[None])
    file = {name: tensor[None] if "_bn." in name and shape == "[1, C]" else tensor for name, tensor in
            caffe_state.items()}  # fmt: skip
    # Files of that time are not zip archives.
    torch.save(file, tmp_path / "bn_inception-52deb4733.pth", _use_new_zipfile_serialization=False)
    backbone = create_backbone("bn_inception", tmp_path / "bn_inception-52deb4733.pth").eval()
    features = backbone(transformed("bn_inception"))
    assert features.shape == (1, 1024, 3, 3)
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-5 * expected.max().item())


def test_a_file_of_googlenet_gives_the_features_of_torchvision(tmp_path):
    torch.manual_seed(0)
    network = torchvision.models.googlenet(aux_logits=True, init_weights=False, transform_input=True).eval()
    randomize(network.state_dict())
    torch.save(network.state_dict(), tmp_path / "googlenet-1378be20.pth")
    backbone = create_backbone("googlenet", tmp_path / "googlenet-1378be20.pth", own_pooling=True).eval()
    network.fc = torch.nn.Identity()
    pixels = torch.from_numpy(RANDOM_PHOTO).permute(2, 0, 1)[None] / 255
    expected = network(
        torchvision.transforms.functional.normalize(pixels, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    )
    features = backbone(transformed("googlenet"))
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-5 * expected.max().item())
    assert create_backbone("googlenet", False, channels=1)(torch.zeros(2, 1, 64, 64)).shape == (2, 1024, 2, 2)
    assert GoogLeNet(num_classes=5)(torch.zeros(2, 3, 32, 32)).shape == (2, 5)
