"""Embedding images by an exported model, and the choice of the engine that embeds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vicinal.data.images.transforms import ImageTransform
from vicinal.export.onnx_embedder import OnnxEmbedder, OpenVinoEmbedder, runtime_options
from vicinal.export.settings import SUFFIXES, Format
from vicinal.models.model_card import IMPORT
from vicinal.utils.console import log
from vicinal.utils.errors import InputError, import_extra, one_line
from vicinal.utils.files import DIGESTS, cache_folder, changed_file, replace_folder, write_digests

if TYPE_CHECKING:
    from torch import Tensor

    from vicinal.models.embedder import Embedder
    from vicinal.models.inputs import Images
    from vicinal.utils.arrays import Floats

Engine = Literal["auto", "torch", "openvino", "onnx"]
TOLERANCE = 1e-4
"""How much a component of a unit vector may differ from PyTorch's."""
MIN_IMAGES = 500
"""For fewer images, `auto` does not export a model, which takes about as long as embedding them."""
REFUSED = "refused.txt"
PACKAGES: dict[Format, tuple[str, str]] = {"openvino": ("openvino", "openvino"), "onnx": ("onnxruntime", "export")}
NAMES: dict[Format, str] = {"openvino": "OpenVINO", "onnx": "ONNX Runtime"}


def is_exported(path: str | Path) -> bool:
    """Whether a path is that of a file that `vicinal export` writes, by its ending."""
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
    try:
        return (OpenVinoEmbedder if is_openvino else OnnxEmbedder)(path, **options)
    except Exception as error:  # runtimes raise errors of their own
        raise InputError(one_line(error) if isinstance(error, ValueError) else f"{path}: {one_line(error)}") from None


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
        """Embed pixels, [b, channels, height, width] from 0 to 255, float32 [b, dim]. Several threads may call it.

        Raises:
            InputError: The exported model fails, or gives something else than unit vectors.
        """
        try:
            return self.engine.run(images.numpy().round().astype(np.uint8))
        except ValueError as error:
            raise InputError(one_line(error)) from error


def with_engine(
    model: Embedder, engine: Engine, device: str, num_images: int | None = None, obstacle: str | None = None
) -> Embedder | ExportedEmbedder:
    """Return the embedder for an engine: the model itself, or the model exported for the engine.

    `auto` takes OpenVINO if it is installed, the device is a CPU, the network is convolutional, and the exported model
    gives the same unit vectors up to `TOLERANCE`; else PyTorch, which runs transformers as fast. Exported models are
    kept in the folder `engines` of ~/.cache/vicinal (or of the environment variable VICINAL_DATA), by the fingerprint
    of the model, so that each is exported and compared once; one whose files have changed is exported again.

    `num_images` is the number of images to embed; None: many, by calls of unknown size. `obstacle` says why only
    PyTorch can embed these images.
    """
    if obstacle is None and not device.startswith("cpu"):
        obstacle = f"the device is {device}, and other engines run on a CPU"
    if engine == "auto":
        return model if obstacle else _choose_engine(model, num_images)
    if engine == "torch":
        return model
    if obstacle:
        raise InputError(f"engine = {engine}: {obstacle}; use --engine torch")
    import_extra(*PACKAGES[engine], f"engine = {engine}")
    folder = _folder(model, engine)
    try:
        return _open(_ensure_exported(model, engine, folder), engine, num_images)
    except InputError as error:
        raise InputError(f"engine = {engine}: {error}; use --engine torch") from None


def engine_name(model: Embedder | ExportedEmbedder) -> str:
    """The engine by which a model embeds, as vectors record it."""
    if not isinstance(model, ExportedEmbedder):
        return "torch"
    return next(engine for engine, suffix in SUFFIXES.items() if suffix == model.engine.path.suffix)


def _choose_engine(model: Embedder, num_images: int | None) -> Embedder | ExportedEmbedder:
    """The model for OpenVINO, or the model itself where that is not possible or not worth it."""
    import torch

    is_convolutional = model.memory_format == torch.channels_last
    if find_spec("openvino") is None or _is_imported(model) or not is_convolutional:
        return model
    is_few = num_images is not None and num_images < MIN_IMAGES
    if is_few and not _engines_folder().is_dir():  # the fingerprint takes time
        return model
    folder = _folder(model, "openvino")
    if (folder / REFUSED).is_file() or (is_few and not _file(folder, "openvino").is_file()):
        return model
    try:
        return _open(_ensure_exported(model, "openvino", folder), "openvino", num_images)
    except (InputError, OSError) as error:
        log(f"embedding with PyTorch, since OpenVINO cannot: {error}")
        return model


def _is_imported(model: Embedder) -> bool:
    """Whether code of the user builds the network, which may change while the fingerprint stays the same."""
    return str(model.config["backbone"]).startswith(IMPORT)


def _engines_folder() -> Path:
    """The folder of all exported models."""
    return cache_folder() / "engines"


def _folder(model: Embedder, engine: Format) -> Path:
    runtime = version(PACKAGES[engine][0])
    return _engines_folder() / f"{model.fingerprint()}-{engine}-{runtime}"


def _file(folder: Path, engine: Format) -> Path:
    return folder / f"model{SUFFIXES[engine]}"


def _ensure_exported(model: Embedder, engine: Format, folder: Path) -> Path:
    """The file of the exported model, which is written if it is not there or damaged; a failure is remembered."""
    from vicinal.export.exporter import export_model  # loads torch's exporter

    path = _file(folder, engine)
    if changed_file(folder) is None and path.is_file() and not _is_imported(model):
        return path
    if (folder / DIGESTS).exists():
        log(f"exporting again, since {folder} has changed or is damaged")
    try:
        with replace_folder(folder) as new:
            report = export_model(model, _file(new, engine), format=engine, tolerance=TOLERANCE, with_speed=False)
            write_digests(new)  # a damaged weight gives other vectors, and no error
    except InputError as error:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / REFUSED).write_text(f"{error}\n", encoding="utf-8")
        raise
    log(
        f"embedding with {NAMES[engine]}: its vectors differ by at most {report.vectors.largest:.0e} from those of "
        f"PyTorch (--engine torch)"
    )
    return path


def _open(path: Path, engine: Format, num_images: int | None) -> ExportedEmbedder:
    """Open an exported model: for many images one stream per thread, for a few all threads at once."""
    import torch

    from vicinal.data.batches.image_dataset import CPU_BATCH

    threads = torch.get_num_threads()
    streams = threads if num_images is not None and num_images > CPU_BATCH else 1
    return ExportedEmbedder(open_exported(path, **runtime_options(engine, threads, streams)))
