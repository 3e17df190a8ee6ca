"""An embedder around any module that maps images to vectors, saved by the import path of its constructor."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vicinal.data.images.transforms import ImageTransform
from vicinal.models.backbones import memory_format
from vicinal.models.embedder import Embedder
from vicinal.models.execution import eval_mode
from vicinal.models.model_card import IMPORT
from vicinal.models.model_folder import EMBEDDER, MAX_DIM
from vicinal.models.saving import SavedModel, merged_state_dict
from vicinal.utils.errors import InputError, one_line
from vicinal.utils.imports import import_allowed

TOLERANCE = 0.01
"""Maximum relative difference of the vectors of two modules with equal weights; half precision changes them less."""


class ModuleEmbedder(Embedder):
    """A module in place of backbone, pooling and head; :meth:`Embedder.from_module` checks and wraps it."""

    def __init__(
        self, module: nn.Module, transform: ImageTransform, dim: int, path: str, arguments: Mapping[str, Any]
    ) -> None:
        SavedModel.__init__(self)  # the module replaces all that an embedder builds
        defaults = {name: each.default for name, each in inspect.signature(Embedder).parameters.items()}
        own = {"backbone": IMPORT + path, "backbone_args": dict(arguments), "dim": dim, "norm": "none"}
        config = {**defaults, **own, "pooling": "backbone"}
        self.config = {key: config[key] for key in EMBEDDER.types if key in config and key != "transform"}
        self.normalize_in_training, self._normalizes, self.features_in_training = True, True, False
        self.freeze_batch_norm = "none"
        self.memory_format = memory_format(module)
        self.transform, self.backbone = transform, module
        self.num_features = self.dim = dim
        self.pooling, self.head, self.projector = nn.Identity(), nn.Sequential(), None

    @classmethod
    def from_imported(
        cls, config: Mapping[str, Any], transform: ImageTransform, allow_imports: Sequence[str]
    ) -> ModuleEmbedder:
        """Build the module of a saved configuration, whose code the user must allow to be imported."""
        path, dim = config["backbone"].removeprefix(IMPORT), config["dim"]
        if not isinstance(dim, int) or not 1 <= dim <= MAX_DIM:
            raise InputError(f"dim is {dim}; it must be an integer from 1 to {MAX_DIM:,}")
        module = _build(path, config["backbone_args"], allow_imports)
        return cls(module, transform, dim, path, config["backbone_args"])

    @property
    def is_thread_safe(self) -> bool:
        """False, since a module of others may keep state in its forward pass."""
        return False

    def save_pretrained(
        self, folder: str | Path, recipe: Mapping[str, Any] | None = None, metrics: Mapping[str, Any] | None = None
    ) -> None:
        """Save the model as a folder, as :meth:`Embedder.save_pretrained`, if its module can be built again."""
        path, arguments = self.config["backbone"].removeprefix(IMPORT), self.config["backbone_args"]
        hint = "say how it is built with path= and arguments="
        if path.startswith("__main__.") or "<locals>" in path:
            raise InputError(f"cannot save the module {path}: it is not in a module that can be imported; {hint}")
        with torch.random.fork_rng(devices=[]):
            built = _build(path, arguments, [path.partition(".")[0]])
        weights = merged_state_dict(self.backbone)
        if _shapes(built.state_dict()) != _shapes(weights):
            raise InputError(f"cannot save the module: {path} builds one with other weights; {hint}")
        built.to(next(self.backbone.parameters())).load_state_dict(weights)
        expected, found = (module_output(module, self.transform) for module in (self.backbone, built))
        if (found - expected).norm() > TOLERANCE * expected.norm():
            raise InputError(f"cannot save the module: {path} builds one that gives other vectors; {hint}")
        super().save_pretrained(folder, recipe, metrics)


def _build(path: str, arguments: Mapping[str, Any], allow_imports: Sequence[str]) -> nn.Module:
    create = import_allowed(path, allow_imports)
    try:
        module = create(**arguments)
    except InputError:
        raise
    except Exception as error:  # whatever the user's own code raises
        raise InputError(f"{path} with the arguments {dict(arguments)} fails: {one_line(error)}") from error
    if not isinstance(module, nn.Module):
        raise InputError(f"{path} builds {type(module).__name__}; it must build a torch.nn.Module")
    return module


def module_output(module: nn.Module, transform: ImageTransform) -> Tensor:
    """The vector that a module gives for a fixed image, float32 [dim]."""
    weight = next(module.parameters(), None)
    if weight is None:
        raise InputError("the module has no weights; there is nothing to embed with")
    shape = (1, transform.channels, transform.size, transform.size)
    images = torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(weight)
    with eval_mode(module), torch.no_grad():
        try:
            output = module(images)
        except Exception as error:  # whatever the user's own code raises
            raise InputError(f"the module fails for an image {list(shape)}: {one_line(error)}") from error
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != 1 or not 1 <= output.shape[1] <= MAX_DIM:
        given = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise InputError(f"the module maps an image {list(shape)} to {given}; it must give vectors [1, dim]")
    return output[0].float()


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
