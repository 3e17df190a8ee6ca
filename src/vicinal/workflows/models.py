"""The models for the verbs of the command: their options, and loading them.

Importing this module loads nothing heavy, as help shows the options.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vicinal.utils.arguments import check_nonnegative, check_positive_integer, given
from vicinal.utils.console import condensed_retries, log
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import RunFolder

if TYPE_CHECKING:
    from vicinal.data.images.transforms import ImageTransform
    from vicinal.export.exported_embedder import ExportedEmbedder
    from vicinal.models import ContextRefiner, Embedder, PoolingName
    from vicinal.models.execution import UsedPrecision
    from vicinal.workflows.embedded_table import Postprocessing

TIMM = "timm/"
PREFIX = "embedder."  # of the embedder's part of a checkpoint


@dataclass(frozen=True)
class EmbeddingOptions:
    """How images become embeddings, with the model that the options name, loaded when it is first used.

    Args:
        model: a model folder, a run folder, the name of a model on the Hugging Face Hub, or the name of a pretrained
            model of timm, such as timm/vit_small_patch14_dinov2.lvd142m or resnet50; needed for images, unless a run
            is given in their place, which has its own model.
        weights: a file of weights for a model of timm, such as tf_efficientnet_lite0, in place of the published ones: a
            state dict or checkpoint (.safetensors, .pth, .pt, .bin, .ckpt, .torch).
        pooling: the pooling of a model of timm; backbone is its own, and projection its own with CLIP's projection.
            None takes that of the image embedding which its weights were published with.
        allow_import: packages whose code a model that was saved by its import path may name, such as my_models; they
            are imported. None allows none.
        root: the folder that a table's paths are relative to, or in which a benchmark is stored; for a run whose
            images have been moved, the folder where they are now.
        path_column: name of the table's column with the image paths. None takes path, or else the name that the model's
            run or the index was made with.
        label_column: name of the table's column with the labels; None as for path_column.
        labels: labels of a source that is a file of embeddings, with one row per embedding: a .csv or .parquet table
            with a column label (and coarse, group, split, is_query, is_gallery, ...), or a .npy file. None takes the
            table in the file of embeddings or beside it.
        where: use only the rows that fulfill this condition, such as "category == 'cup' and price < 20".
        batch_size: number of images embedded at a time.
        num_workers: number of processes that read images.
        precision: 32, bf16 or 16; auto is bf16 on a GPU that computes in bfloat16, else 32.
        device: such as cpu or cuda; None takes a GPU where there is one.
        engine: of the model: torch; openvino or onnx (ONNX Runtime), by a model that is exported once, which is faster
            on a CPU; or auto, which is openvino on a CPU where it is installed, for a convolutional network and
            500 images or more, if its vectors are those of torch up to 0.0001, else torch.
        on_error: "raise" stops at an unreadable image, "skip" leaves it out and lists it. None takes, for a
            run, the setting of its training; for other images, skip in folders that are embedded, indexed or searched,
            else raise.
        scales: factors of the image size at which each image is embedded; the embeddings are averaged. None embeds each
            image once, at its own size.
        max_size: with scales, the whole image is embedded after its longer side was reduced to this number of pixels;
            None embeds the model's own square crop.
        whitening: a file of PCA whitening that is applied to all embeddings.
        dim: use only this number of first dimensions of the embeddings, normalized: shorter vectors of a model that was
            trained with Matryoshka, or the first components after whitening.
    """

    model: str | None = None
    weights: str | None = None
    pooling: Literal["avg", "max", "gem", "avg+max", "token", "backbone", "projection"] | None = None
    allow_import: tuple[str, ...] | None = None
    root: str | None = None
    path_column: str | None = None
    label_column: str | None = None
    labels: str | None = None
    where: str | None = None
    batch_size: int = 64
    num_workers: int = 0
    precision: Literal["auto", "32", "bf16", "16"] = "auto"
    device: str | None = None
    engine: Literal["auto", "torch", "openvino", "onnx"] = "auto"
    on_error: Literal["raise", "skip"] | None = None
    scales: tuple[float, ...] | None = None
    max_size: int | None = None
    whitening: str | None = None
    dim: int | None = None

    def __post_init__(self) -> None:
        check_positive_integer(self, batch_size=self.batch_size, **given(max_size=self.max_size, dim=self.dim))
        check_nonnegative(self, num_workers=self.num_workers)
        if self.max_size is not None and self.scales is None:
            raise InputError("max_size is for embedding at several scales; give --scales too, such as --scales 1")
        _ = self.postprocessing  # an unreadable file is reported before anything is embedded

    @cached_property
    def fingerprint(self) -> str | None:
        """Identifies the model of the options and the steps after it, before anything is embedded; None without one."""
        if self.model is None:
            return None
        model = self.loaded_model
        return "+".join([model.fingerprint(), *self.image_steps, *self.postprocessing.names])

    @cached_property
    def loaded_model(self) -> Embedder | ExportedEmbedder:
        """The model of the options."""
        from vicinal.export.exported_embedder import ExportedEmbedder, is_exported, open_exported

        if not is_exported(str(self.model)):
            return load_model(str(self.model), self.pooling, self.allow_import or (), self.weights)
        for option in ("weights", "pooling", "scales", "device"):
            if getattr(self, option) is not None:
                raise InputError(f"{self.model} is an exported model, which has its own; leave out --{option}")
        if self.engine != "auto":
            raise InputError(f"{self.model} is an exported model, which has its own engine; leave out --engine")
        return ExportedEmbedder(open_exported(str(self.model)))

    def with_engine(
        self, model: Embedder | ExportedEmbedder, num_images: int | None = None
    ) -> Embedder | ExportedEmbedder:
        """The embedder by the engine of the options; see :func:`~vicinal.export.exported_embedder.with_engine`."""
        from vicinal.export.exported_embedder import ExportedEmbedder, with_engine
        from vicinal.models.execution import usable_device

        if isinstance(model, ExportedEmbedder):
            return model
        obstacle = None
        if self.scales is not None:
            obstacle = "images are embedded at several scales"
        elif model.transform.longest is not None:
            obstacle = "the model embeds whole images"
        elif self.used_precision != "32":
            obstacle = f"precision is {self.used_precision}, and other engines compute in float32"
        return with_engine(model, self.engine, usable_device(self.device), num_images, obstacle)

    @cached_property
    def postprocessing(self) -> Postprocessing:
        """The steps after the model."""
        from vicinal.retrieval.whitening import PCAWhitening
        from vicinal.workflows.embedded_table import Postprocessing

        return Postprocessing(None if self.whitening is None else PCAWhitening.load(self.whitening), self.dim)

    @property
    def used_precision(self) -> UsedPrecision:
        """The precision of the options, or what `auto` stands for; 32 for an exported model, which has its own."""
        from vicinal.export.exported_embedder import is_exported
        from vicinal.models.execution import usable_device, used_precision

        if self.precision == "auto" and self.model is not None and is_exported(self.model):
            return "32"
        return used_precision(self.precision, usable_device(self.device))

    def transform_for(self, model: Embedder | ExportedEmbedder) -> ImageTransform:
        """The transform of images for a model: its own, or that of whole images."""
        from vicinal.models.multi_scale import whole_image_transform

        return model.transform if self.max_size is None else whole_image_transform(model.transform, self.max_size)

    @property
    def image_steps(self) -> tuple[str, ...]:
        """The options that change embeddings of the model, as one name."""
        if self.scales is None:
            return ()
        return (f"scales {' '.join(f'{scale:g}' for scale in self.scales)}, max_size {self.max_size}",)


def backbone_name(model: str) -> str | None:
    """The backbone that a model's name stands for, with `timm/` before it or not; None for folders and Hub names.

    A folder or file of that name takes precedence.

    Example:
        >>> backbone_name("timm/resnet50"), backbone_name("resnet50"), backbone_name("someone/model")
        ('resnet50', 'resnet50', None)
    """
    name = model.removeprefix(TIMM)
    return None if not name or "/" in name or "\\" in name or os.path.exists(os.path.expanduser(model)) else name


def load_model(
    path: str, pooling: PoolingName | None = None, allow_imports: Sequence[str] = (), weights: str | None = None
) -> Embedder:
    """Load a model folder, the model of a run folder, a model of the Hugging Face Hub, or an untrained backbone.

    Args:
        path: the folder; the name on the Hub; or the name of a backbone, such as `resnet50` or `timm/resnet50`, whose
            embeddings are the image embeddings that its weights were published with, without a head.
        pooling: the pooling of an untrained backbone; None: that of
            :func:`~vicinal.models.default_pooling`.
        allow_imports: packages whose code a saved model may name, see :meth:`vicinal.Embedder.from_module`.
        weights: a file of weights for an untrained backbone; None: the published ones.

    Raises:
        InputError: the model is missing or damaged, or `pooling` or `weights` are given for one that has its own.
    """
    backbone = backbone_name(path)
    if backbone is not None:
        check_backbone(path)
        return _load_backbone(path, backbone, pooling, weights)
    for name, value in (("pooling", pooling), ("weights", weights)):
        if value is not None:
            raise InputError(f"{path} has its own {name}; {name} is for backbones, such as --model timm/resnet50")
    from vicinal.workflows.source import Source

    source, run = Source(path), RunFolder(Path(path))
    source.check_not_refiner_run()
    if source.kind == "run" and not run.model.is_dir() and run.best.is_file():
        return load_best(run, allow_imports)
    if source.kind == "run" and not run.model.is_dir():
        raise InputError(f"{path} has no finished model; continue the run with: {run.resume_command()}")
    from vicinal.models.embedder import Embedder  # loads timm

    return Embedder.from_pretrained(run.model if source.kind == "run" else path, allow_imports=allow_imports)


def check_backbone(model: str) -> None:
    """Check that a model which is neither a folder nor a Hub name is a backbone; the message names similar ones."""
    from vicinal.models.initializations import check_backbone_name  # loads timm

    name = backbone_name(model)
    try:
        check_backbone_name(name or model)
    except InputError as error:
        where = "" if model.startswith(TIMM) else "no such folder; "
        raise InputError(f"model {model}: {where}{error}") from None


def _load_backbone(model: str, name: str, pooling: PoolingName | None, weights: str | None) -> Embedder:
    from vicinal.models.backbones import default_pooling
    from vicinal.models.downloads import DownloadError
    from vicinal.models.embedder import Embedder

    pretrained = True if weights is None else weights
    try:
        with condensed_retries():
            return Embedder(name, None, pooling or default_pooling(name), "none", pretrained).eval()
    except DownloadError as error:
        use = f"use --weights with a file, --model with the folder of a saved model, or {error.place}"
        raise InputError(f"model {model}: {error.problem}; {use}") from None
    except InputError as error:
        raise InputError(f"model {model}: {str(error).removeprefix('pretrained: ')}") from None


def load_refiner(path: str) -> ContextRefiner:
    """Load a context refiner's model folder, that of the run folder it was trained in, or one of the Hugging Face Hub.

    Raises:
        InputError: the refiner does not exist, is damaged, or is another kind of model.
    """
    run = RunFolder(Path(path))
    if run.recipe.is_file() and not run.model.is_dir():
        raise InputError(
            f"{path} has no finished refiner: its run is not finished, or did not improve the scores; "
            f"continue it with: {run.resume_command('refine')}"
        )
    from vicinal.models.refiner import ContextRefiner

    return ContextRefiner.from_pretrained(run.model if run.model.is_dir() else path)


def load_best(run: RunFolder, allow_imports: Sequence[str] = ()) -> Embedder:
    """Load the embedder of an unfinished run, without adapters, by the checkpoint of its best evaluation."""
    from vicinal.training.checkpoint import load_checkpoint
    from vicinal.training.recipes.recipe import Recipe

    recipe = Recipe.load(run.recipe, allow_imports=allow_imports)
    best = load_checkpoint(run.best, "module", "epoch")
    embedder = recipe.create_embedder()
    state = {name.removeprefix(PREFIX): value for name, value in best["module"].items() if name.startswith(PREFIX)}
    own = embedder.state_dict()
    if any(name not in own or own[name].shape != value.shape for name, value in state.items()):
        raise InputError(f"{run.best} does not fit its recipe without adapters; finish the run with: "
                         f"{run.resume_command()}")  # fmt: skip
    embedder.load_state_dict({**own, **state})
    log(f"{run.path} is not finished: using the weights of its best evaluation so far, after epoch {best['epoch']}")
    return embedder.eval()
