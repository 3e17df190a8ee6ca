"""An exported model in the place of an embedder: it embeds tables and datasets as they are read for any model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vicinal.data.images.transforms import ImageTransform
from vicinal.export.onnx_embedder import OnnxEmbedder
from vicinal.export.settings import SUFFIXES, Format
from vicinal.utils.errors import InputError, import_extra, one_line

if TYPE_CHECKING:
    from torch import Tensor

    from vicinal.models.inputs import Images
    from vicinal.utils.arrays import Floats


def is_exported(path: str | Path) -> bool:
    """Whether a path is that of a file that `vicinal export` writes, by its ending.

    Example:
        >>> is_exported("model.onnx"), is_exported("run")
        (True, False)
    """
    return Path(path).suffix in SUFFIXES.values()


def open_exported(path: str | Path, **options: Any) -> OnnxEmbedder:
    """Open an exported model, by ONNX Runtime or, if it ends in .xml, by OpenVINO.

    Args:
        path: The file.
        options: As for :class:`OnnxEmbedder` or :class:`OpenVinoEmbedder`.

    Raises:
        InputError: A file is missing or damaged, or a package is not installed.
    """
    is_openvino = Path(path).suffix == SUFFIXES["openvino"]
    name, extra = ("openvino", "openvino") if is_openvino else ("onnxruntime", "export")
    import_extra(name, extra, str(path))
    from vicinal.export.openvino import OpenVinoEmbedder

    try:
        return (OpenVinoEmbedder if is_openvino else OnnxEmbedder)(path, **options)
    except Exception as error:  # runtimes raise errors of their own
        raise InputError(one_line(error) if isinstance(error, ValueError) else f"{path}: {one_line(error)}") from None


def runtime_options(format: Format, num_threads: int, num_streams: int = 1) -> dict[str, Any]:
    """The options of a runtime for a CPU, as :func:`open_exported` takes them.

    Args:
        format: Of the exported model.
        num_threads: Number of threads in all.
        num_streams: Number of threads that will call it, among which those are divided.
    """
    if format == "openvino":
        hints = {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": num_streams}
        return {"device_name": "CPU", "config": {"INFERENCE_NUM_THREADS": num_threads, **hints}}
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = max(1, num_threads // num_streams)
    return {"sess_options": options}


class ExportedEmbedder:
    """An exported model with the methods of :class:`vicinal.Embedder` by which images are embedded.

    Args:
        engine: The exported model.

    Attributes:
        transform: The transform of the images; it leaves pixels as they are, since the exported model normalizes them.
        dim: Dimension of the embeddings.
        config: The name of the `backbone`.

    Raises:
        InputError: The file beside the model does not describe a transform.
    """

    def __init__(self, engine: OnnxEmbedder) -> None:
        self.engine, self.dim = engine, engine.dim
        known = {field.name for field in fields(ImageTransform)}
        given = {key: value for key, value in engine.preprocessing.items() if key in known}
        transform, channels = ImageTransform.from_dict(given), given["channels"]
        self.transform = replace(transform, mean=(0.0,) * channels, std=(1 / 255,) * channels)
        self.config = {"backbone": engine.preprocessing["backbone"]}

    def fingerprint(self) -> str:
        """The fingerprint of the model that was exported."""
        return self.engine.fingerprint

    def embed(
        self,
        source: Images,
        batch_size: int = 64,
        num_workers: int = 0,
        precision: str = "auto",
        device: str | None = None,
        progress: bool = True,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> Floats:
        """Embed images, as :meth:`vicinal.Embedder.embed`; precision and device are those of the exported model.

        Raises:
            InputError: As there.
        """
        from vicinal.models.inputs import embed_images

        with self.embedding_function(precision) as embed_batch:
            return embed_images(
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

    is_thread_safe = True
    device = "cpu"

    @contextmanager
    def embedding_function(self, precision: str = "auto") -> Iterator[Callable[[Tensor], Floats]]:
        """The function of batches that :meth:`embed` applies, as of :meth:`vicinal.Embedder.embedding_function`."""
        if precision not in ("auto", "32"):
            raise InputError(f"precision is {precision}, but {self.engine.path} has its own; leave it out")
        yield self.embed_batch

    def embed_batch(self, images: Tensor) -> Floats:
        """Embed pixels, [b, channels, height, width] from 0 to 255, float32 [b, dim]. Several threads may call it."""
        return self.engine.run(images.numpy().round().astype(np.uint8))
