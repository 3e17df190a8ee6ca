"""The options by which images become embeddings, shared by the verbs of the command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vicinal.utils.arguments import check_nonnegative, check_positive_integer, given
from vicinal.utils.errors import InputError


@dataclass(frozen=True)
class EmbeddingOptions:
    """How images become embeddings.

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
        engine: what runs the model: torch; openvino or onnx (ONNX Runtime), by a model that is exported once, which is
            faster on a CPU; or auto, which is openvino on a CPU where it is installed, for 500 images or more and if
            its vectors are those of torch up to 0.0001, else torch.
        on_error: "raise" stops at an unreadable image, "skip" leaves it out and lists it. None takes, for a
            run, the setting of its training; for other images, skip in folders that are embedded, indexed or searched,
            else raise.
        scales: factors of the image size at which each image is embedded; the embeddings are averaged. None embeds each
            image once, at its own size.
        max_size: with scales, the whole image is embedded after its longer side was reduced to this number of pixels;
            None embeds the model's own square crop.
        whitening: a file of PCA whitening that is applied to all embeddings.
        dim: use only the first dimensions of the embeddings, so many, normalized: shorter vectors of a model that was
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
            raise InputError("max_size is about embedding at several scales; give --scales too, such as --scales 1")
