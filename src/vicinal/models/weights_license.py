"""The license of the published weights of a backbone."""

from __future__ import annotations

from timm.models import get_pretrained_cfg

from vicinal.models.initialization_table import INITIALIZATIONS, timm_name


def weights_license(backbone: str) -> str | None:
    """The license of a backbone's published weights, as timm or their package gives it; None if neither has them.

    Args:
        backbone: A name, as for :func:`~vicinal.models.create_backbone`.

    Example:
        >>> weights_license("resnet50_in1k"), weights_license("vit_b16_diht")
        ('bsd-3-clause', None)
    """
    if backbone in INITIALIZATIONS and INITIALIZATIONS[backbone].url is not None:
        return None
    if backbone in INITIALIZATIONS and INITIALIZATIONS[backbone].package is not None:
        return "apache-2.0"
    cfg = get_pretrained_cfg(timm_name(backbone))
    license_name: str | None = None if cfg is None else cfg.license
    return license_name
