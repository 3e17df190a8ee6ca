"""The image embedding that the weights of a backbone were published with: its pooling, and CLIP's projection."""

from __future__ import annotations

import re

import timm
from timm.models import get_pretrained_cfg

from vicinal.models.initialization_table import INITIALIZATIONS, timm_name
from vicinal.models.pooling import PoolingName

# The image towers of CLIP in timm: their last layer is the projection into the space of images and texts, except where
# it was replaced by the classifier of a fine-tuning.
CLIP = re.compile(r"clip|_pe_core_")
FINE_TUNED = re.compile(r"_in\d+k")


def projection_dim(name: str, published: bool = False) -> int | None:
    """The dimension into which CLIP's projection maps the pooled features of a backbone; None if it has none.

    Args:
        name: A backbone, as for :func:`~vicinal.models.create_backbone`.
        published: Whether the weights are those published under that name, which may have been fine-tuned and then have
            a classifier in place of the projection; else those of a file.

    Example:
        >>> projection_dim("vit_b16_clip_400m"), projection_dim("vit_base_patch16_siglip_224.v2_webli")
        (512, None)
        >>> projection_dim("vit_base_patch16_clip_224.openai_ft_in1k") is None
        True
    """
    architecture, _, tag = timm_name(name).partition(".")
    if published and not tag and not (name in INITIALIZATIONS and INITIALIZATIONS[name].url):
        names = [architecture]  # of the tag that timm takes without one
    else:
        names = [timm_name(name)] if tag else timm.list_pretrained(f"{architecture}.*")
    return next((dim for each in names if (dim := _projection_dim(each))), None)


def _projection_dim(name: str) -> int | None:
    cfg = get_pretrained_cfg(name)
    if cfg is None or not CLIP.search(f"{cfg.architecture}.{cfg.tag}") or FINE_TUNED.search(cfg.tag or ""):
        return None
    return cfg.num_classes or None


def default_pooling(name: str) -> PoolingName:
    """The pooling of the image embedding that a backbone's weights were published with.

    It is `projection` for the image towers of CLIP, the pooling in `INITIALIZATIONS` for other names in it, and
    `backbone`, the network's own, for all others: class token for DINOv2, DINOv3 and EUPE, attention pooling for
    SigLIP, the mean for convolutional networks.

    Args:
        name: A backbone, as for :func:`~vicinal.models.create_backbone`.

    Example:
        >>> default_pooling("vit_b16_clip_400m"), default_pooling("vit_s14_dinov2"), default_pooling("resnet50")
        ('projection', 'token', 'backbone')
    """
    if projection_dim(name, published=True) is not None:
        return "projection"
    return INITIALIZATIONS[name].pooling if name in INITIALIZATIONS else "backbone"
