"""The embedder: it maps images to L2-normalized embeddings, and is saved with its image transform as one folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from vicinal.data.batches.image_dataset import CPU_BATCH
from vicinal.data.images.image_ops import normalized
from vicinal.data.images.transforms import ImageTransform
from vicinal.models import backbones, execution, head
from vicinal.models.backbones import FrozenBatchNorm
from vicinal.models.downloads import is_downloaded
from vicinal.models.execution import DTYPES, Precision
from vicinal.models.head import ClassToken, NormName, PoolingName
from vicinal.models.initializations import (
    check_backbone_args,
    check_backbone_name,
    chosen_transform,
    create_backbone,
)
from vicinal.models.inputs import Images, embed_images
from vicinal.models.model_card import IMPORT
from vicinal.models.model_folder import EMBEDDER
from vicinal.models.saving import SavedModel
from vicinal.utils.arguments import check_plain_values, shown
from vicinal.utils.arrays import Floats
from vicinal.utils.errors import InputError


class Embedder(SavedModel):
    """A network that maps images to L2-normalized embeddings: backbone, pooling, normalization, linear layer.

    The model of Recall@k Surrogate ("Architectures") has ``pooling="gem"`` and ``norm="layer"``; for vision
    transformers ``pooling="token"`` and ``norm="none"``. The layer normalization has no affine parameters, since the
    linear layer after it contains them.
    Random weights are drawn from torch's default generator: set ``torch.manual_seed`` for reproducible ones.

    Args:
        backbone: Any timm model, such as resnet50; bn_inception or googlenet; or a name of published weights, such as
            vit_b16_clip_400m, of :data:`~vicinal.models.initialization_table.INITIALIZATIONS`.
        dim: Dimension of the embeddings, 1 to 65,536; None: no linear layer, the embeddings are the pooled features.
        pooling: How a feature map becomes a vector: avg, max, gem (generalized mean), avg+max (their sum), token
            (a transformer's class token), backbone (the network's own: mean, class token or attention), or projection
            (its own, and CLIP's projection into the space of images and texts). Those before token pool a
            transformer's patch tokens.
        norm: Normalization of the pooled features before the linear layer: layer, layer_affine (with learned weight and
            bias), l2, or none.
        pretrained: Initial weights of the backbone: true (published ones, downloaded), false (random), or a local file
            (.safetensors, .pth, .pt, .bin, .ckpt, .torch).
        hidden: Width of a hidden layer with ReLU before the linear layer; None: there is none.
        head_whitening: A whitening that `vicinal whiten` or :meth:`vicinal.retrieval.PCAWhitening.save` wrote, whose
            linear map is the initial one of the linear layer; without it, weights are random. Learn it on the
            embeddings of this backbone and pooling with ``dim=None, norm="none"``, and use it with ``norm="l2"``, as
            Recall@k Surrogate does for landmarks.
        p: Exponent of gem, 0.001 to 10,000: 1 is the mean, large ones approach the maximum.
        learned_p: Learn the exponent of gem, with initial value p.
        dropout: Dropout probability of the embeddings in training, before L2 normalization (0.2 for small datasets in
            Center Contrastive Loss).
        projector: Width of a linear layer after the embedding in training only, or none (2048 for CUB and Cars in
            Contextual Similarity). In training the model returns its L2-normalized outputs; it is saved with the
            model but not used for embeddings.
        freeze_batch_norm: The frozen part of the backbone's batch normalization: none; statistics,
            which are then used in training too, while weight and bias are learned, as in the papers' published code;
            all, statistics, weight and bias; or auto, the statistics of a pretrained backbone, and else none.
        transform: The image transform in training and tests; by default that of the backbone's pretrained weights,
            whereas a default `ImageTransform` has ImageNet's mean and std.
        backbone_args: More arguments of timm.create_model, such as {channels: [16, 32, 64, 128]} for the widths of a
            small ResNet or {drop_path_rate: 0.1}.

    Attributes:
        recipe: How the model was trained, as JSON values; empty if unknown.
        metrics: The metrics of the model, as JSON values; empty if unknown.
        normalize_in_training: Whether the outputs are L2-normalized in training; False for losses that use their norm.
        memory_format: The order in memory of images and convolutions, which is chosen by the backbone.
        features_in_training: Whether the outputs in training are followed by the pooled features; True for losses that
            use these. `split_output` separates them.

    Raises:
        InputError: An argument is invalid, or backbone and pooling do not fit.

    Example:
        >>> model = Embedder("test_resnet", dim=8, pretrained=False, transform=ImageTransform(size=32)).eval()
        >>> model(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 8])
    """

    model_format = EMBEDDER

    def __init__(
        self,
        backbone: str = "resnet50",
        dim: int | None = 512,
        pooling: PoolingName = "backbone",
        norm: NormName = "layer",
        pretrained: bool | str | Path = True,
        *,
        hidden: int | None = None,
        head_whitening: str | Path | None = None,
        p: float = 3.0,
        learned_p: bool = False,
        dropout: float = 0.0,
        projector: int | None = None,
        freeze_batch_norm: FrozenBatchNorm = "auto",
        transform: ImageTransform | Mapping[str, Any] | None = None,
        backbone_args: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        head.check_head(dim, norm, dropout, projector, hidden)
        check_backbone_args(backbone_args)
        freeze_batch_norm = backbones.choose_frozen(freeze_batch_norm, is_pretrained=pretrained is not False)
        self.config: dict[str, Any] = {
            "backbone": backbones.timm_name(backbone),
            "backbone_args": dict(backbone_args or {}),
            "pooling": pooling,
            "p": p,
            "learned_p": learned_p,
            "norm": norm,
            "hidden": hidden,
            "dim": dim,
            "dropout": dropout,
            "projector": projector,
            "freeze_batch_norm": freeze_batch_norm,
        }
        self.normalize_in_training, self._normalizes = True, True
        self.features_in_training = False
        self.freeze_batch_norm = freeze_batch_norm
        self.pooling = head.build_pooling(pooling, p, learned_p)
        self.transform = chosen_transform(transform, backbone)
        self.backbone = self._checked_backbone(backbone, pretrained)
        self.memory_format = backbones.memory_format(self.backbone)
        if self.memory_format == torch.channels_last:
            backbones.to_channels_last(self.backbone)
        projection = pooling == "projection"
        self.num_features = backbones.num_features(self.backbone, projection)
        self.dim = self.num_features if dim is None else dim
        self.head = head.build_head(self.num_features, dim, norm, dropout, hidden)
        if head_whitening is not None:
            head.set_to_whitening(self.head[1], head_whitening)
        self.projector = None if projector is None else nn.Linear(self.dim, projector)
        backbones.freeze_weights(self.backbone, freeze_batch_norm)
        self.train()

    def _checked_backbone(self, name: str, pretrained: bool | str | Path) -> nn.Module:
        """Create the network; mistakes are found before its weights are downloaded."""
        check_backbone_name(name)
        if pretrained is True and not is_downloaded(name):
            with torch.random.fork_rng(devices=[]), torch.device("meta"):
                self._create_backbone(name, False)
        return self._create_backbone(name, pretrained)

    def _create_backbone(self, name: str, pretrained: bool | str | Path) -> nn.Module:
        """Create the network, and check that it fits pooling and transform."""
        channels, size = self.transform.channels, self.transform.size
        own_pooling, projection = isinstance(self.pooling, nn.Identity), self.config["pooling"] == "projection"
        arguments = self.config["backbone_args"]
        backbone = create_backbone(name, pretrained, channels, size, arguments, own_pooling, projection)
        if self.transform.longest is None:
            backbones.check_patches(backbone, name, size)
        else:
            backbones.check_any_size(backbone, name)
        if isinstance(self.pooling, ClassToken) and not backbones.has_class_token(backbone):
            raise InputError(f"pooling 'token': {name} has no class token; choose avg, max, gem or avg+max")
        return backbone

    def forward(self, images: Tensor) -> Tensor:
        """Embed transformed images.

        Args:
            images: Float [n, C, H, W], or uint8, pixels that are normalized here. Or their pooled features,
                float [n, num_features].

        Returns:
            L2-normalized [n, dim], computed in at least float32. In training it is [n, projector] if there is a
            projector, not normalized if `normalize_in_training` is False, and followed by the pooled features,
            [n, num_features], if `features_in_training` is True.
        """
        features = self.pooled_features(images)
        vectors = self._project(features, with_projector=self.training)
        if self.normalize_in_training if self.training else self._normalizes:
            vectors = execution.unit_vectors(vectors, self.training)
        if self.training and self.features_in_training:
            return torch.cat([vectors, features.to(vectors)], dim=1)
        return vectors

    def pooled_features(self, images: Tensor) -> Tensor:
        """Compute the pooled features of transformed images, [n, num_features], which embeddings are computed from."""
        if images.ndim == 2:  # features that were computed before
            return images
        if images.dtype == torch.uint8:
            images = normalized(images, self.transform).to(next(self.parameters()).dtype)
        features = self.backbone(images.contiguous(memory_format=self.memory_format))
        if not isinstance(self.pooling, (ClassToken, nn.Identity)):
            features = head.to_feature_maps(
                features,
                self.num_features,
                channels_last=getattr(self.backbone, "output_fmt", "NCHW") == "NHWC",
                num_prefix_tokens=backbones.num_prefix_tokens(self.backbone),
            )
        pooled: Tensor = self.pooling(features)
        if getattr(pooled, "shape", (0,))[1:] != (self.num_features,):
            name = self.config["backbone"]
            raise InputError(f"pooling 'backbone': {name} has no pooling of its own; choose another, such as avg")
        return pooled

    def unnormalized(self, images: Tensor, with_projector: bool = False) -> Tensor:
        """Compute embeddings [n, dim] before L2 normalization; those of the projector, if any and asked for."""
        return self._project(self.pooled_features(images), with_projector)

    def split_output(self, output: Tensor) -> tuple[Tensor, Tensor | None]:
        """Split an output in training into embeddings and, with `features_in_training`, features [n, num_features]."""
        if not self.features_in_training:
            return output, None
        return output[:, : self.train_output_dim], output[:, self.train_output_dim :]

    def _project(self, features: Tensor, with_projector: bool) -> Tensor:
        vectors: Tensor = self.head(features)
        if with_projector and self.projector is not None:
            vectors = self.projector(vectors)
        return vectors.to(torch.promote_types(vectors.dtype, torch.float32))

    @contextmanager
    def without_linear(self) -> Iterator[nn.Linear]:
        """In this context, embeddings are the inputs of the linear layer, not normalized; it yields the layer."""
        linear, dim = self.head[1], self.dim
        assert isinstance(linear, nn.Linear)
        self.head[1], self.dim, self._normalizes = nn.Identity(), linear.in_features, False
        try:
            yield linear
        finally:
            self.head[1], self.dim, self._normalizes = linear, dim, True

    @property
    def train_output_dim(self) -> int:
        """The dimension of the outputs in training, which is the projector's width, or `dim` without a projector."""
        return self.dim if self.projector is None else self.projector.out_features

    def train(self, mode: bool = True) -> Embedder:
        """Set training mode, or evaluation mode if `mode` is False; frozen batch normalization stays in the latter.

        Besides `freeze_batch_norm`, a batch normalization is frozen if its weight does not require a gradient.
        """
        super().train(mode)
        backbones.freeze_statistics(self.backbone, self.freeze_batch_norm)
        return self

    def __repr__(self) -> str:
        """The main arguments; `print(model.backbone)` shows the layers."""
        names = ("backbone", "dim", "pooling", "norm")
        given = ", ".join(f"{name}={self.config[name]!r}" for name in names)
        parameters = sum(each.numel() for each in self.parameters())
        return f"{type(self).__name__}({given}; images of {self.transform.size} px, {parameters:,} parameters)"

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """The parameters that are trained, by part: `backbone`, `pooling`, `head` and `projector`.

        Frozen parameters of the backbone, such as those with LoRA adapters, are in none of them. A part without
        parameters, such as a pooling whose p is not learned, has an empty list.
        """
        return {
            "backbone": [parameter for parameter in self.backbone.parameters() if parameter.requires_grad],
            "pooling": list(self.pooling.parameters()),
            "head": list(self.head.parameters()),
            "projector": list(self.projector.parameters()) if self.projector is not None else [],
        }

    def embed(
        self,
        source: Images,
        batch_size: int = 64,
        num_workers: int = 0,
        precision: Precision = "auto",
        device: str | torch.device | None = None,
        progress: bool = True,
        on_error: Literal["raise", "skip"] = "raise",
        dim: int | None = None,
    ) -> Floats:
        """Embed images in evaluation mode, without gradients; the mode of the model is restored afterwards.

        Args:
            source: A table; an `ImageDataset` with this model's transform; a list of paths, of PIL images or of
                transformed images [C, H, W]; or transformed images as one tensor [n, C, H, W].
            batch_size: Images per batch.
            num_workers: Processes that read files.
            precision: 32; bf16 or 16, which are computed by autocast; or auto, which is bf16 on a GPU that computes in
                bfloat16, else 32. The result is float32 in all cases.
            device: The device to which the model is moved first, such as cuda; None: do not move it.
            progress: Show a progress bar.
            on_error: Raise an error at a file that cannot be read, or skip it. To know which rows are left, embed an
                `ImageDataset`, which then leaves out the others.
            dim: Return only this number of first dimensions, normalized, as for a model that was trained with
                :class:`~vicinal.matryoshka.Matryoshka`; None: all.

        Returns:
            float32 [n, dim], L2-normalized, in the order of `source`.

        Raises:
            InputError: `source` is none of these, an image cannot be read, an embedding is not finite, or has fewer
                dimensions than `dim`.

        Example:
            >>> from PIL import Image
            >>> model = Embedder("test_resnet", dim=8, pretrained=False, transform=ImageTransform(size=32))
            >>> model.embed([Image.new("L", (40, 50))]).shape
            (1, 8)
        """
        if precision not in ("auto", *DTYPES):
            raise InputError(f"precision is {precision!r}; choose auto, {', '.join(DTYPES)}")
        if device is not None:
            execution.check_device(device)
            self.to(device)
        if dim is not None:
            head.check_dim(dim, self.dim)
        with self.embedding_function(precision) as embed_batch:
            vectors = embed_images(
                embed_batch,
                source,
                self.transform,
                self.dim,
                batch_size=batch_size,
                num_workers=num_workers,
                on_error=on_error,
                device=self.device,
                progress=progress,
                in_threads=self.is_thread_safe,
            )
        check_embeddings(vectors, execution.used_precision(precision, self.device))
        return head.shortened(vectors, dim)

    @contextmanager
    def embedding_function(self, precision: Precision = "auto") -> Iterator[Callable[[Tensor], Floats]]:
        """The function that :meth:`embed` applies to batches, in a context in which the model is in evaluation mode.

        It maps transformed images or pixels, [b, C, H, W], to embeddings, float32 [b, dim]. A CPU computes a few of
        them at a time, so that activations stay in its caches. Several threads may call it if the model
        `is_thread_safe`.

        Args:
            precision: As in :meth:`embed`.
        """
        weight = next(self.parameters())
        used = execution.used_precision(precision, weight.device)
        is_whole = weight.device.type != "cpu" or is_sharded(self)  # processes gather shards equally often

        def embed_batch(images: Tensor) -> Floats:
            # Not in inference mode, in which sharded weights cannot be gathered.
            with torch.no_grad(), execution.autocast_to(used, weight.device):
                parts = torch.split(images, len(images) if is_whole else CPU_BATCH)
                dtype = images.dtype if images.dtype == torch.uint8 else weight.dtype  # pixels are normalized there
                inputs = (part.to(weight.device, dtype, non_blocking=True) for part in parts)
                return torch.cat([self(each).float().cpu() for each in inputs]).numpy()

        with execution.eval_mode(self):
            yield embed_batch

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    @property
    def is_thread_safe(self) -> bool:
        """Whether several threads may embed at once. Whole images may not, as networks keep state for their sizes."""
        return self.transform.longest is None and not is_sharded(self)

    def _get_config(self) -> dict[str, Any]:
        return {**self.config, "transform": self.transform.to_dict()}

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        transform: ImageTransform,
        dim: int | None = None,
        path: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Embedder:
        """Wrap any module that maps images to vectors, which are L2-normalized then.

        It is saved as the import path of its constructor, with its weights. Loading such a folder imports code, so it
        needs `allow_imports` of :meth:`from_pretrained`, or `--allow_import` on the command line.

        Args:
            module: Maps transformed images, float [n, C, H, W], to vectors [n, dim].
            transform: The transform of the images.
            dim: Dimension of the vectors; None: it is found by embedding one image.
            path: Import path of a class or function that builds the module, such as `my_models.build`; None: that of
                the class of the module.
            arguments: Its arguments, plain values as in a recipe; None: none.

        Raises:
            InputError: The module does not map an image to a vector, or `dim` is another one.

        Example:
            >>> module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
            >>> model = Embedder.from_module(module, ImageTransform(size=8))
            >>> model.embed(torch.zeros(2, 3, 8, 8)).shape
            (2, 4)
        """
        from vicinal.models.module_embedder import ModuleEmbedder, module_output  # is a subclass

        if not isinstance(module, nn.Module):
            raise InputError(f"module is {shown(module)}; it must be a torch.nn.Module")
        arguments = dict(arguments or {})
        check_plain_values("arguments", arguments)
        found = len(module_output(module, transform))
        if dim not in (None, found):
            raise InputError(f"dim is {dim}, but the module gives vectors of {found} dimensions")
        path = path or f"{type(module).__module__}.{type(module).__qualname__}"
        return ModuleEmbedder(module, transform, found, path, arguments)

    @classmethod
    def _from_config(cls, config: Mapping[str, Any], allow_imports: Sequence[str] = ()) -> Embedder:
        transform = ImageTransform.from_dict(config["transform"])
        for key in transform.to_dict():
            if key not in config["transform"]:
                raise InputError(f"transform: {key} is missing")
        if config["backbone"].startswith(IMPORT):
            from vicinal.models.module_embedder import ModuleEmbedder  # is a subclass

            return ModuleEmbedder.from_imported(config, transform, allow_imports)
        arguments = {key: value for key, value in config.items() if key not in ("recipe", "metrics")}
        return cls(**{**arguments, "transform": transform, "pretrained": False})


def is_sharded(model: nn.Module) -> bool:
    """Whether the weights of a model are divided among processes."""
    return hasattr(next(model.parameters()), "device_mesh")  # of a DTensor, whose import takes time


def check_embeddings(vectors: Floats, precision: str, first_row: int = 0) -> None:
    """Raise InputError if a component of an embedding is not finite; `first_row` is the number of the first image."""
    invalid = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(invalid):
        hint = "try precision 32" if precision != "32" else "its weights or the image are not finite"
        raise InputError(
            f"the embedding of image {first_row + invalid[0]} is not finite ({len(invalid)} of {len(vectors)}); {hint}"
        )
