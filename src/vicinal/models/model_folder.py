"""The folder of a saved model: `model.safetensors`, `config.json` in one of two formats, `README.md`; not trusted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from vicinal.models.model_card import embedder_card, refiner_card
from vicinal.utils.errors import InputError, one_line, raise_if_of_system
from vicinal.utils.files import replace_folder, write_bytes

# Limits of the numbers in a configuration: building a network of a billion layers would take hours before it failed.
MAX_NUMBER = 16_384
MAX_DIM = 65_536
MAX_DEPTH = 1_000

COMMON_TYPES: dict[str, tuple[type, ...]] = {"recipe": (dict,), "metrics": (dict,)}
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
CARD = "README.md"
CALIBRATION = "calibration.json"  # of `vicinal calibrate`; a model that is saved again loses it
VERSION = 1
FLOAT_TYPES = ("F16", "BF16", "F32", "F64")
# Much larger than any real configuration, and much smaller than a problem for the parser.
MAX_CONFIG_BYTES = 10_000_000
IN_RUNS = ("model", "refiner")  # the folders of models in the folders of runs


@dataclass(frozen=True)
class ModelFormat:
    """A kind of saved model."""

    name: str  # the value of `format` in the configuration
    noun: str  # the kind of model in messages
    usage: str  # for messages where another kind was expected
    types: Mapping[str, tuple[type, ...]]  # of the values of the configuration; messages name the first one
    limits: Mapping[str, int]  # of absolute values of numbers, also inside lists and mappings
    card: Callable[[str, Mapping[str, Any]], str]  # from the name of the model and its configuration


EMBEDDER = ModelFormat(
    name="vicinal-embedder",
    noun="an embedder",
    usage="give it with --model, or load it with Embedder.from_pretrained",
    types={
        "backbone": (str,),
        "backbone_args": (dict,),
        "pooling": (str,),
        "p": (int, float),
        "learned_p": (bool,),
        "norm": (str,),
        "hidden": (int, type(None)),
        "dim": (int, type(None)),
        "dropout": (int, float),
        "projector": (int, type(None)),
        "freeze_batch_norm": (str,),
        "transform": (dict,),
        **COMMON_TYPES,
    },
    limits={"backbone_args": MAX_NUMBER, "transform": MAX_NUMBER},
    card=embedder_card,
)

REFINER = ModelFormat(
    name="vicinal-refiner",
    noun="a context refiner",
    usage="give it with --refiner, or load it with ContextRefiner.from_pretrained",
    types={
        "dim": (int,),
        "depth": (int,),
        "num_heads": (int,),
        "neighbors": (int,),
        "dropout": (int, float),
        "context": (str,),
        "attention_start": (str,),
        "temperature": (float, int),
        "learn_temperature": (bool,),
        "null_similarity": (float, int, type(None)),
        "residual_gate": (bool,),
        "inner_ratio": (float, int),
        "mlp_ratio": (float, int),
        "tie_weights": (bool,),
        "min_similarity": (float, int, type(None)),
        "model_fingerprint": (str, type(None)),
        **COMMON_TYPES,
    },
    limits={"dim": MAX_DIM, "depth": MAX_DEPTH, "num_heads": MAX_NUMBER, "neighbors": MAX_NUMBER},
    card=refiner_card,
)

FORMATS = {model_format.name: model_format for model_format in (EMBEDDER, REFINER)}


def write(
    folder: str | Path, model_format: ModelFormat, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write a model folder atomically; a folder with only a saved model of the same kind is replaced."""
    folder = Path(folder)
    _check_replaceable(folder, model_format)
    try:
        text = json.dumps({"format": model_format.name, "version": VERSION, **config}, indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"the model's config, recipe and metrics must be JSON values: {one_line(error)}") from error
    _check_limits(folder / CONFIG, config, model_format)
    card = model_format.card(folder.resolve().name, config)
    # safetensors refuses tensors that share memory or are not contiguous.
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    with replace_folder(folder) as new:
        write_bytes(new / WEIGHTS, safetensors.torch.save(copies, metadata={"format": "pt"}))
        write_bytes(new / CONFIG, (text + "\n").encode())
        write_bytes(new / CARD, card.encode())


def find_folder(source: str | Path, revision: str | None = None) -> Path:
    """The local folder of a saved model, also of a run, or one downloaded by its name on the Hugging Face hub."""
    folder = Path(os.path.expanduser(source))
    if folder.is_dir():
        of_run = (folder / name for name in IN_RUNS if (folder / name / CONFIG).is_file())
        return folder if (folder / CONFIG).exists() else next(of_run, folder)
    if folder.exists():
        raise InputError(f"model: {source} is a file; give the folder that holds {CONFIG} and {WEIGHTS}")
    if isinstance(source, Path) or source.count("/") != 1:
        raise InputError(f"model: no such folder {source}")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, revision=revision, allow_patterns=[CONFIG, WEIGHTS, CARD]))
    except Exception as error:  # networks fail in many ways
        raise InputError(f"model: no folder {source} here, and none from the hub: {one_line(error)}") from error


def read_config(folder: Path, model_format: ModelFormat) -> dict[str, Any]:
    """Read the configuration of a saved model, without `format` and `version`, and check its keys, types and limits."""
    path = folder / CONFIG
    if not path.is_file():
        raise InputError(f"model: {folder} has no {CONFIG}; is it the folder of a saved Vicinal model?")
    config = _read_json(path)
    found = _pop_format(path, config, model_format)
    if found is not model_format:
        raise InputError(f"model: {folder} is {found.noun}, not {model_format.noun}; {found.usage}")
    version = config.pop("version", None)
    if version != VERSION or isinstance(version, bool):
        raise InputError(f"{path}: version is {version!r}; this Vicinal reads version {VERSION}")
    _check_types(path, config, model_format)
    _check_limits(path, config, model_format)
    return config


def _read_json(path: Path) -> Any:
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise InputError(f"{path}: {path.stat().st_size:,} bytes is too large for a config")
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {one_line(error)}") from error


def _pop_format(path: Path, config: Any, expected: ModelFormat) -> ModelFormat:
    name = config.pop("format", None) if isinstance(config, dict) else None
    if not isinstance(name, str) or name not in FORMATS:
        raise InputError(f'{path}: not the config of a Vicinal model ("format" is not "{expected.name}")')
    return FORMATS[name]


def count_tensors(folder: Path) -> int:
    """The number of tensors of a saved model, from the header of its weights."""
    with _open_weights(folder) as file:
        return len(file.keys())


def check_tensors(folder: Path, expected: Mapping[str, Tensor]) -> None:
    """Check that the weights of a saved model have exactly the expected names and shapes, and types of the same kind.

    Only the header is read. Pickled weights are never opened. `expected` may hold meta tensors.
    """
    path = folder / WEIGHTS
    with _open_weights(folder) as file:
        _check_names(path, set(file.keys()), expected)
        for name, tensor in expected.items():
            header = file.get_slice(name)
            _check_tensor(f"{path}: {name}", tuple(header.get_shape()), header.get_dtype(), tensor)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read the tensors of a saved model, which :func:`check_tensors` has checked."""
    with _open_weights(folder) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - the file is not a mapping


@contextmanager
def _open_weights(folder: Path) -> Iterator[Any]:
    path = _weights(folder)
    try:
        with open(path, "rb"), safetensors.safe_open(path, framework="pt") as file:  # the former says what is wrong
            yield file
    except (safetensors.SafetensorError, OSError) as error:
        raise_if_of_system(error, path)
        raise InputError(f"{path}: not a complete safetensors file: {one_line(error)}") from error


def _weights(folder: Path) -> Path:
    path = folder / WEIGHTS
    if path.is_file():
        return path
    pickles = sorted(file.name for suffix in ("bin", "pt", "pth", "pkl") for file in folder.glob(f"*.{suffix}"))
    hint = f"; {pickles[0]} is a pickle, which could run code and is never opened" if pickles else ""
    raise InputError(f"model: {folder} has no {WEIGHTS}{hint}")


def _check_types(path: Path, config: Mapping[str, Any], model_format: ModelFormat) -> None:
    types = model_format.types
    for key in (*types, *config):
        if key not in config:
            raise InputError(f"{path}: {key} is missing")
        if key not in types:
            raise InputError(f"{path}: unknown key {key!r}; the keys are {', '.join(types)}")
        value = config[key]
        if not isinstance(value, types[key]) or (isinstance(value, bool) and bool not in types[key]):
            raise InputError(f"{path}: {key} is {one_line(repr(value), 80)}; it must be {types[key][0].__name__}")


def _check_limits(path: Path, config: Mapping[str, Any], model_format: ModelFormat) -> None:
    for key, limit in model_format.limits.items():
        for number in _numbers(config[key]):
            if not abs(number) <= limit:  # also refuses NaN
                raise InputError(f"{path}: {key}: {number} is too large; at most {limit:,}")


def _numbers(value: object) -> Iterator[float]:
    if isinstance(value, (int, float)):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _numbers(item)


def _check_names(path: Path, names: set[str], expected: Mapping[str, Tensor]) -> None:
    for different, verb in ((expected.keys() - names, "lacks"), (names - expected.keys(), "has the unknown")):
        if different:
            more = f" and {len(different) - 1} more" if len(different) > 1 else ""
            raise InputError(f"{path}: {verb} tensor {min(different)}{more}; it does not match {CONFIG}")


def _check_tensor(name: str, shape: tuple[int, ...], dtype: str, expected: Tensor) -> None:
    if shape != tuple(expected.shape):
        raise InputError(f"{name} has shape {shape}; {CONFIG} calls for {tuple(expected.shape)}")
    is_float = dtype.startswith(("F", "BF"))
    if is_float != expected.is_floating_point():
        raise InputError(f"{name} is of type {dtype}; {expected.dtype} is needed")
    if is_float and dtype not in FLOAT_TYPES:
        raise InputError(f"{name} is of type {dtype}, in which networks cannot compute")


def _check_replaceable(folder: Path, model_format: ModelFormat) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"cannot save a model to {folder}: it is a file; give a folder")
    names = sorted(entry.name for entry in folder.iterdir())
    others = [name for name in names if name not in (WEIGHTS, CONFIG, CARD, CALIBRATION)]
    if others or (names and CONFIG not in names):
        raise InputError(f"cannot save a model to {folder}: it holds {(others or names)[0]}; give a folder of its own")
    if names:
        try:
            found = _pop_format(folder / CONFIG, _read_json(folder / CONFIG), model_format)
        except (InputError, OSError) as error:
            raise InputError(f"cannot save a model to {folder}: {error}; give a folder of its own") from error
        if found is not model_format:
            raise InputError(
                f"cannot save {model_format.noun} to {folder}: it holds {found.noun}; give a folder of its own"
            )
