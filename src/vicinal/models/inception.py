"""BN-Inception and GoogLeNet as models of timm, which has neither: many papers of metric learning start from them.

BN-Inception is the network of the papers of multi-similarity, Proxy-Anchor and PRISM. Its weights for ImageNet were
trained in Caffe, on images in the order BGR with values up to 255; the file of them that papers use is
``bn_inception-52deb4733.pth``. Reversing the input channels of the first convolution, and giving the mean and standard
deviation in units of 255, makes it the same network for RGB images with values up to 1.
"""

from __future__ import annotations

import re
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import create_classifier
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn
from torchvision.models import GoogLeNet as TorchvisionGoogLeNet

NUM_FEATURES = 1024
CAFFE_FIRST_CONV = "conv1_7x7_s2.weight"

# Blocks of BN-Inception: widths of 1 x 1, of 3 x 3 (reduction, convolution), of double 3 x 3 (reduction, convolutions)
# and of the projection after pooling; 0 where there is none. Blocks without a projection halve the resolution.
BLOCKS = {
    "3a": (64, 64, 64, 64, 96, 32),
    "3b": (64, 64, 96, 64, 96, 64),
    "3c": (0, 128, 160, 64, 96, 0),
    "4a": (224, 64, 96, 96, 128, 128),
    "4b": (192, 96, 128, 96, 128, 128),
    "4c": (160, 128, 160, 128, 160, 128),
    "4d": (96, 128, 192, 160, 192, 128),
    "4e": (0, 128, 192, 192, 256, 0),
    "5a": (352, 192, 320, 160, 224, 128),
    "5b": (352, 192, 320, 192, 224, 128),
}

# The layers of torchvision's GoogLeNet before its pooling.
GOOGLENET_LAYERS = (
    *("conv1", "maxpool1", "conv2", "conv3", "maxpool2", "inception3a", "inception3b", "maxpool3", "inception4a"),
    *("inception4b", "inception4c", "inception4d", "inception4e", "maxpool4", "inception5a", "inception5b"),
)


class InceptionNetwork(nn.Module):
    """The interface of models of timm: features, pooling, classifier; subclasses define the features."""

    def __init__(self, num_classes: int = 1000, global_pool: str = "avg") -> None:
        super().__init__()
        self.num_features, self.num_classes = NUM_FEATURES, num_classes
        self.global_pool, self.classifier = create_classifier(NUM_FEATURES, num_classes, pool_type=global_pool)

    def forward_features(self, images: Tensor) -> Tensor:
        """Images [n, C, H, W] -> feature maps [n, 1024, H / 32, W / 32]."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        """Images -> scores of the classes, pooled features or feature maps."""
        outputs: Tensor = self.classifier(self.global_pool(self.forward_features(images)))
        return outputs


class ConvNormReLU(nn.Module):
    """Convolution with bias, batch normalization, ReLU."""

    def __init__(self, in_channels: int, channels: int, kernel_size: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, channels, kernel_size, stride, padding=kernel_size // 2)
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps [n, in_channels, H, W] -> [n, channels, H / stride, W / stride]."""
        return F.relu(self.bn(self.conv(maps)))


class InceptionBlock(nn.ModuleDict):
    """Up to four branches, concatenated: 1 x 1, 3 x 3, two times 3 x 3, and pooling with a projection; see `BLOCKS`."""

    def __init__(self, in_channels: int, widths: tuple[int, int, int, int, int, int], max_pool: bool = False) -> None:
        one, reduce, three, double_reduce, double, projection = widths
        self.stride = 1 if projection else 2
        self.max_pool = max_pool
        layers = {
            "3x3_reduce": ConvNormReLU(in_channels, reduce),
            "3x3": ConvNormReLU(reduce, three, 3, self.stride),
            "double_3x3_reduce": ConvNormReLU(in_channels, double_reduce),
            "double_3x3_1": ConvNormReLU(double_reduce, double, 3),
            "double_3x3_2": ConvNormReLU(double, double, 3, self.stride),
        }
        if projection:
            layers |= {"1x1": ConvNormReLU(in_channels, one), "pool_proj": ConvNormReLU(in_channels, projection)}
        super().__init__(layers)
        self.out_channels = one + three + double + (projection or in_channels)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps [n, in_channels, H, W] -> [n, out_channels, H / stride, W / stride]."""
        branches = [self["1x1"](maps)] if "1x1" in self else []
        branches.append(self["3x3"](self["3x3_reduce"](maps)))
        branches.append(self["double_3x3_2"](self["double_3x3_1"](self["double_3x3_reduce"](maps))))
        return torch.cat([*branches, self._pool(maps)], dim=1)

    def _pool(self, maps: Tensor) -> Tensor:
        if self.stride == 2:
            # Caffe's pooling, which rounds sizes up; padded by two, odd sizes get as many outputs as the convolutions.
            return F.max_pool2d(F.pad(maps, (0, 2, 0, 2)), 3, stride=2)
        pool = F.max_pool2d if self.max_pool else F.avg_pool2d
        projected: Tensor = self["pool_proj"](pool(maps, 3, stride=1, padding=1))
        return projected


class BNInception(InceptionNetwork):
    """BN-Inception: GoogLeNet with batch normalization, and two 3 x 3 convolutions in place of each 5 x 5.

    Reference: Ioffe and Szegedy, "Batch Normalization", ICML 2015, Fig. 5.
    """

    def __init__(self, num_classes: int = 1000, in_chans: int = 3, global_pool: str = "avg") -> None:
        super().__init__(num_classes, global_pool)
        self.conv1_7x7_s2 = ConvNormReLU(in_chans, 64, 7, stride=2)
        self.conv2_3x3_reduce = ConvNormReLU(64, 64)
        self.conv2_3x3 = ConvNormReLU(64, 192, 3)
        channels = 192
        for name, widths in BLOCKS.items():
            block = InceptionBlock(channels, widths, max_pool=name == "5b")
            self.add_module(f"inception_{name}", block)
            channels = block.out_channels

    def forward_features(self, images: Tensor) -> Tensor:
        """Images [n, C, H, W] -> feature maps [n, 1024, H / 32, W / 32]."""
        maps = F.max_pool2d(self.conv1_7x7_s2(images), 3, stride=2, ceil_mode=True)
        maps = F.max_pool2d(self.conv2_3x3(self.conv2_3x3_reduce(maps)), 3, stride=2, ceil_mode=True)
        for name in BLOCKS:
            maps = self.get_submodule(f"inception_{name}")(maps)
        return maps


class GoogLeNet(InceptionNetwork):
    """GoogLeNet (Inception v1) as torchvision has it: with batch normalization, and 3 x 3 in place of 5 x 5.

    Reference: Szegedy et al., "Going Deeper with Convolutions", CVPR 2015.
    """

    def __init__(self, num_classes: int = 1000, in_chans: int = 3, global_pool: str = "avg") -> None:
        super().__init__(num_classes, global_pool)
        network = TorchvisionGoogLeNet(aux_logits=False, init_weights=False)
        if in_chans != 3:
            network.conv1.conv = nn.Conv2d(in_chans, 64, 7, stride=2, padding=3, bias=False)
        for name in GOOGLENET_LAYERS:
            self.add_module(name, getattr(network, name))

    def forward_features(self, images: Tensor) -> Tensor:
        """Images [n, C, H, W] -> feature maps [n, 1024, H / 32, W / 32]."""
        maps = images
        for name in GOOGLENET_LAYERS:
            maps = self.get_submodule(name)(maps)
        return maps


def checkpoint_filter_fn(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Rename the weights of published files, as timm's functions of this name do; others are returned as they are."""
    if CAFFE_FIRST_CONV in state:
        state = dict(map(_from_caffe, state, state.values()))
    # torchvision's file has two more classifiers, for training.
    names = {name: re.sub(r"^(fc|last_linear)\.", "classifier.", name) for name in state}
    return {names[name]: tensor for name, tensor in state.items() if not name.startswith(("aux1.", "aux2."))}


def _from_caffe(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    if name == CAFFE_FIRST_CONV:
        tensor = tensor.flip(1)  # BGR -> RGB
    layer, _, kind = re.sub(r"^(inception_\d[a-e])_", r"\1/", name).rpartition(".")
    if layer == "last_linear":
        return name, tensor
    if layer.endswith("_bn"):
        return f"{layer.removesuffix('_bn').replace('/', '.')}.bn.{kind}", tensor.squeeze()  # some files have [1, C]
    return f"{layer.replace('/', '.')}.conv.{kind}", tensor


def _cfg(url: str, mean: tuple[float, ...], std: tuple[float, ...], first_conv: str) -> dict[str, Any]:
    return {
        "url": url,
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "pool_size": (7, 7),
        "crop_pct": 0.875,
        "interpolation": "bilinear",
        "mean": mean,
        "std": std,
        "first_conv": first_conv,
        "classifier": "classifier",
    }


default_cfgs = generate_default_cfgs(
    {
        "bn_inception.caffe_in1k": _cfg(
            url="http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth",
            mean=(128 / 255, 117 / 255, 104 / 255),
            std=(1 / 255, 1 / 255, 1 / 255),
            first_conv="conv1_7x7_s2.conv",
        ),
        "googlenet.tv_in1k": _cfg(
            url="https://download.pytorch.org/models/googlenet-1378be20.pth",
            mean=(0.5, 0.5, 0.5),
            std=(0.5, 0.5, 0.5),
            first_conv="conv1.conv",
        ),
    }
)


@register_model  # type: ignore[untyped-decorator]
def bn_inception(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """BN-Inception of Ioffe and Szegedy (ICML 2015)."""
    return build_model_with_cfg(
        BNInception, "bn_inception", pretrained, pretrained_filter_fn=checkpoint_filter_fn, **kwargs
    )


@register_model  # type: ignore[untyped-decorator]
def googlenet(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """GoogLeNet of Szegedy et al. (CVPR 2015), as torchvision has it."""
    return build_model_with_cfg(GoogLeNet, "googlenet", pretrained, pretrained_filter_fn=checkpoint_filter_fn, **kwargs)
