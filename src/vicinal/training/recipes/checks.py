"""Checks of settings: an error names the setting, its value and what is expected of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import TYPE_CHECKING, Any

from vicinal.data.images.transforms import ImageTransform
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.training.recipes.settings import TrainingSettings


def require(condition: bool, key: str, value: object, expected: str) -> None:
    """Raise InputError, naming the setting and what is expected of it, unless the condition holds."""
    if not condition:
        raise InputError(f"{key} = {value} must be {expected}")


def require_left_out(settings: Any, prefix: str, names: tuple[str, ...], unless: str) -> None:
    """Raise InputError if one of the fields of a dataclass, which would have no effect, is not at its default."""
    for each in fields(settings):
        if each.name in names:
            value = getattr(settings, each.name)
            require(value == _default(each), f"{prefix}{each.name}", value, f"left out unless {unless}")


def _default(each: Field[Any]) -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()


NO_AUGMENTATION: dict[str, Any] = {
    "scale": (1.0, 1.0),
    "ratio": (1.0, 1.0),
    "flip": 0.0,
    "color_jitter": 0.0,
    "rotation": 0.0,
}


def check_frozen_settings(settings: TrainingSettings) -> None:
    """Raise InputError if a setting of a run has no effect with its `features`."""
    if settings.features == "trained":
        return require_left_out(settings, "", ("feature_cache", "feature_dtype"), "features is frozen")
    require_left_out(settings, "", ("freeze_backbone_epochs",), "features is trained: frozen is frozen throughout")
    unless = "features is trained: frozen trains the head only"
    require_left_out(settings.optimizer.lr_factors, "optimizer.lr_factors.", ("backbone", "pooling"), unless)
    unless = "features is trained: frozen embeds each image once, without augmentation"
    require_left_out(settings.data, "data.", ("augmentation",), unless)
    for name, none in NO_AUGMENTATION.items():
        value = getattr(settings.transform, name)
        fits = value in (none, getattr(ImageTransform, name))
        require(fits, f"transform.{name}", value, "left out with features = frozen, which embeds each image once")


def check_frozen_model(model: Mapping[str, Any]) -> None:
    """Raise InputError if arguments of the model leave nothing to train, or would train more than its head."""
    if model["learned_p"]:
        raise InputError("model.learned_p = true must be false with features = frozen, which includes the pooling")
    if model["dim"] is None and model["norm"] != "layer_affine":
        raise InputError("model.dim = null must be a number with features = frozen: there is no head to train")
