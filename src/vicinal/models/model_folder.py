"""The folder a saved model is: `model.safetensors`, `config.json`, `README.md`. Written whole, read with suspicion."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from huggingface_hub import snapshot_download
from torch import Tensor

from vicinal.errors import InputError
from vicinal.files import replacing_folder, write_bytes
from vicinal.models.initializations import one_line
from vicinal.models.model_format import FORMATS, ModelFormat

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
CARD = "README.md"
VERSION = 1

# Far above any real config, far below what a parser would choke on.
MAX_CONFIG_BYTES = 10_000_000


def write(
    folder: str | Path, model_format: ModelFormat, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write a model folder, atomically, in the place of a former one.

    Args:
        folder: Where; must not exist, be empty or be a saved model of this format with nothing else in it.
        model_format: What kind of model it is.
        config: JSON values, the keys those of the format.
        tensors: Weights and buffers by name.

    Raises:
        InputError: `folder` holds something else, or `config` is not JSON.
        OSError: it cannot be written, as on a full disk; what was there stays.
    """
    folder = Path(folder)
    _check_replaceable(folder, model_format)
    try:
        text = json.dumps({"format": model_format.name, "version": VERSION, **config}, indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"the model's config, recipe and metrics must be JSON values: {one_line(error)}") from error
    _check_numbers(folder / CONFIG, config, model_format)
    card = model_format.card(folder.resolve().name, config)
    # Cloned because safetensors refuses tensors that share memory, contiguous because it stores nothing else.
    plain = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    with replacing_folder(folder) as new:
        write_bytes(new / WEIGHTS, safetensors.torch.save(plain, metadata={"format": "pt"}))
        write_bytes(new / CONFIG, (text + "\n").encode())
        write_bytes(new / CARD, card.encode())


def locate(source: str | Path, revision: str | None = None) -> Path:
    """The folder of a saved model: a local one, else the download of that name from the Hugging Face hub.

    Raises:
        InputError: there is neither.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise InputError(f"model: {source} is a file; give the folder that holds {CONFIG} and {WEIGHTS}")
    if isinstance(source, Path) or source.count("/") != 1:
        raise InputError(f"model: there is no folder {source}")
    try:
        return Path(snapshot_download(source, revision=revision, allow_patterns=[CONFIG, WEIGHTS, CARD]))
    except Exception as error:  # the network has many ways to fail
        raise InputError(f"model: no folder {source} here, and none from the hub: {one_line(error)}") from error


def read_config(folder: Path, model_format: ModelFormat) -> dict[str, Any]:
    """The config of a saved model, without `format` and `version`; its keys and their kinds are checked.

    Raises:
        InputError: it is missing, not JSON, not of this format, of another version, or a key of it is missing, unknown
            or wrong.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise InputError(f"model: {folder} has no {CONFIG}; is it the folder of a saved Vicinal model?")
    config, found = _read_ours(path, model_format)
    if found is not model_format:
        raise InputError(f"model: {folder} is {found.noun}, not {model_format.noun}; {found.use}")
    version = config.pop("version", None)
    if version != VERSION or isinstance(version, bool):
        raise InputError(f"{path}: version is {version!r}; this Vicinal reads version {VERSION}")
    _check_keys(path, config, model_format)
    _check_numbers(path, config, model_format)
    return config


def _read_ours(path: Path, wanted: ModelFormat) -> tuple[dict[str, Any], ModelFormat]:
    """The config without its `format`, and that; it may be another than the wanted one."""
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise InputError(f"{path}: {path.stat().st_size:,} bytes is too large for a config")
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {one_line(error)}") from error
    name = config.pop("format", None) if isinstance(config, dict) else None
    for known in FORMATS:
        if known.name == name:
            return config, known
    raise InputError(f'{path}: not the config of a Vicinal model ("format" is not "{wanted.name}")')


def read_tensors(folder: Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a saved model, which must be exactly the expected ones in name, shape and kind.

    The header is compared before any tensor is read; pickled weights are never opened.

    Args:
        folder: A saved model.
        expected: What the config calls for; meta tensors suffice.

    Raises:
        InputError: the file is missing, truncated or holds other tensors.
    """
    path = folder / WEIGHTS
    if not path.is_file():
        pickles = sorted(file.name for suffix in ("bin", "pt", "pth", "pkl") for file in folder.glob(f"*.{suffix}"))
        hint = f"; {pickles[0]} is a pickle, which could run code and is never opened" if pickles else ""
        raise InputError(f"model: {folder} has no {WEIGHTS}{hint}")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            _check_names(path, set(file.keys()), expected)
            for name, tensor in expected.items():
                _check_shape(path, name, file.get_slice(name).get_shape(), tensor)
            tensors = {name: file.get_tensor(name) for name in expected}
    except safetensors.SafetensorError as error:
        raise InputError(f"{path}: not a whole safetensors file: {one_line(error)}") from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() != expected[name].is_floating_point():
            raise InputError(f"{path}: {name} is {tensor.dtype}; {expected[name].dtype} is needed")
    return tensors


def _check_keys(path: Path, config: Mapping[str, Any], model_format: ModelFormat) -> None:
    known = model_format.kinds
    for key in (*known, *config):
        if key not in config:
            raise InputError(f"{path}: {key} is missing")
        if key not in known:
            raise InputError(f"{path}: unknown key {key!r}; the keys are {', '.join(known)}")
        value, kinds = config[key], known[key]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise InputError(f"{path}: {key} is {one_line(repr(value), 80)}; it must be {kinds[0].__name__}")


def _check_numbers(path: Path, config: Mapping[str, Any], model_format: ModelFormat) -> None:
    for key, largest in model_format.largest.items():
        for number in _numbers(config[key]):
            if not abs(number) <= largest:  # so that NaN is refused as well
                raise InputError(f"{path}: {key}: {number} is too large; at most {largest:,}")


def _numbers(value: object) -> Iterator[float]:
    if isinstance(value, (int, float)):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _numbers(item)


def _check_names(path: Path, names: set[str], expected: Mapping[str, Tensor]) -> None:
    for wrong, kind in ((expected.keys() - names, "lacks"), (names - expected.keys(), "has the unknown")):
        if wrong:
            first = min(wrong)
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise InputError(f"{path}: {kind} tensor {first}{more}; it does not go with {CONFIG}")


def _check_shape(path: Path, name: str, shape: list[int], expected: Tensor) -> None:
    if tuple(shape) != tuple(expected.shape):
        raise InputError(f"{path}: {name} has shape {tuple(shape)}; {CONFIG} calls for {tuple(expected.shape)}")


def _check_replaceable(folder: Path, model_format: ModelFormat) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"cannot save a model to {folder}: it is a file; give a folder")
    names = sorted(entry.name for entry in folder.iterdir())
    foreign = [name for name in names if name not in (WEIGHTS, CONFIG, CARD)]
    if foreign or (names and CONFIG not in names):
        raise InputError(f"cannot save a model to {folder}: it holds {(foreign or names)[0]}; give a folder of its own")
    if names:
        try:
            _, found = _read_ours(folder / CONFIG, model_format)
        except (InputError, OSError) as error:
            raise InputError(f"cannot save a model to {folder}: {error}; give a folder of its own") from error
        if found is not model_format:
            raise InputError(
                f"cannot save {model_format.noun} to {folder}: it holds {found.noun}; give a folder of its own"
            )
