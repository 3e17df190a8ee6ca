"""Hugging Face datasets: on the Hub, saved by `save_to_disk`, or folders that the library reads."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vicinal.data.columns import SPLIT_NAMES
from vicinal.data.containers.arrow_images import BATCH_SIZE, choose_columns
from vicinal.data.containers.export import NamedColumns, Sample, export_folder, export_images, file_versions
from vicinal.data.containers.listing import ListedImages, list_images
from vicinal.data.containers.relevance import relevance_configurations, relevance_samples
from vicinal.data.table import Table
from vicinal.utils.arrays import Integers
from vicinal.utils.console import condensed_retries, log
from vicinal.utils.errors import InputError, import_extra, one_line

SAVED = ("dataset_dict.json", "state.json")  # one of them is in a folder of save_to_disk
HUB_NAME = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)?")


@dataclass(frozen=True)
class DatasetName:
    """What is read: a folder, or a name on the Hub with a revision; and the configuration."""

    path: str
    configuration: str | None = None
    revision: str | None = None

    @classmethod
    def parse(cls, name: str) -> DatasetName:
        """Parse `folder`, `folder:configuration` or `owner/name@revision:configuration`."""
        if os.path.exists(name):
            return cls(name)
        base, _, configuration = name.partition(":")
        if os.path.exists(base):
            return cls(base, configuration or None)
        path, _, revision = base.partition("@")
        if not HUB_NAME.fullmatch(path):
            raise InputError(f"hf:{name}: no such folder, nor a name on the Hugging Face Hub, such as owner/name")
        return cls(path, configuration or None, revision or None)

    def __str__(self) -> str:
        return f"hf:{self.path}" + (f":{self.configuration}" if self.configuration else "")

    @property
    def folder(self) -> Path | None:
        """The folder; None for a name on the Hub."""
        return Path(self.path) if os.path.exists(self.path) else None

    @property
    def is_saved(self) -> bool:
        """Whether it is a folder of `save_to_disk`."""
        return self.folder is not None and any((self.folder / name).is_file() for name in SAVED)


def read_hugging_face(name: str, root: str | Path | None, columns: NamedColumns) -> Table:
    """The table of a Hugging Face dataset; :func:`~vicinal.data.containers.load_container` has the rules."""
    parsed = DatasetName.parse(name)

    def read(scratch: Path) -> Iterator[Sample]:
        with _one_line_errors(parsed):
            loaded, has_relevance = _load(parsed, str(scratch))
            yield from (relevance_samples if has_relevance else _samples)(loaded, parsed, columns)

    return export_images(_export_folder(parsed, root, columns), str(parsed), read, columns)


def list_saved_dataset(name: str, root: str | Path | None, columns: NamedColumns) -> ListedImages | None:
    """The same table without the bytes of images, of which those of single ones are read.

    Returns:
        None unless the dataset is a folder of `save_to_disk`: the library itself converts all of any other.
    """
    parsed = DatasetName.parse(name)
    if not parsed.is_saved:
        return None

    def samples() -> Iterator[Sample]:
        with _one_line_errors(parsed):
            for number, (dataset, values) in enumerate(_splits(_load(parsed, "")[0], parsed)):
                chosen = choose_columns(dataset.features.arrow_schema, columns, str(parsed))
                for sample in chosen.listed(dataset.with_format("arrow").iter(BATCH_SIZE), str(parsed), number):
                    yield Sample(sample.image, sample.name, sample.values | values)

    folder = _export_folder(parsed, root, columns)
    return list_images(folder, str(parsed), samples, partial(_read_located, parsed, columns), columns)


def _read_located(name: DatasetName, columns: NamedColumns, locations: Integers) -> Iterator[bytes]:
    """The bytes of the images of some rows."""
    with _one_line_errors(name):
        for number, (dataset, _) in enumerate(_splits(_load(name, "")[0], name)):
            image = choose_columns(dataset.features.arrow_schema, columns, str(name)).image
            rows = locations[locations[:, 0] == number, 1].tolist()
            chosen = dataset.select_columns([image]).with_format("arrow")
            for first in range(0, len(rows), BATCH_SIZE):
                for content in chosen[rows[first : first + BATCH_SIZE]].column(image).to_pylist():
                    yield content["bytes"]


def _export_folder(name: DatasetName, root: str | Path | None, columns: NamedColumns) -> Path:
    version = name.revision if name.folder is None else file_versions(_files(name.folder))
    short = name.path if name.folder is None else name.folder.resolve().name
    return export_folder(root, "hugging_face", short, columns, [name.configuration, version])


@contextmanager
def _one_line_errors(name: DatasetName) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # the library raises errors of many types
        raise InputError(f"{name}: {one_line(error)}") from None


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise InputError(f"hf:{folder}: is a file; give a folder, or a .parquet file without hf:")
    return sorted(Path(parent, name) for parent, _, names in os.walk(folder) for name in names)


def _load(name: DatasetName, cache: str) -> tuple[dict[str, Any], bool]:
    """The datasets of each split; or the corpus, the queries and their relevance, and whether it is these.

    Downloads are kept in the library's own cache; `cache` is for what it converts them to.
    """
    datasets = import_extra("datasets", "datasets", str(name))
    if name.is_saved:
        loaded = datasets.load_from_disk(name.path)
        return ({str(loaded.split or "train"): loaded} if hasattr(loaded, "split") else dict(loaded)), False
    with condensed_retries():
        known = datasets.get_dataset_config_names(name.path, revision=name.revision)
        parts = relevance_configurations(known) if name.configuration is None else None
        load = partial(datasets.load_dataset, name.path, revision=name.revision, cache_dir=cache)
        if parts is None:
            return dict(load(name.configuration)), False
        return {part: _test_split(load(each), f"{name}, {each}") for part, each in parts.items()}, True


def _test_split(loaded: Any, source: str) -> Any:
    if "test" not in loaded and len(loaded) > 1:
        raise InputError(f"{source}: the splits are {', '.join(loaded)}; there must be a test split, or one only")
    return loaded["test"] if "test" in loaded else next(iter(loaded.values()))


def _samples(loaded: Mapping[str, Any], name: DatasetName, columns: NamedColumns) -> Iterator[Sample]:
    """The images of all splits."""
    for dataset, values in _splits(loaded, name):
        chosen = choose_columns(dataset.features.arrow_schema, columns, str(name))
        batches = dataset.with_format("arrow").iter(BATCH_SIZE)
        for sample in chosen.samples(batches, name.folder, f"{name}, split {dataset.split}"):
            yield Sample(sample.image, sample.name, sample.values | values)


def _splits(loaded: Mapping[str, Any], name: DatasetName) -> Iterator[tuple[Any, dict[str, str]]]:
    """The known splits, and the column that tells them; a single split `train` is none."""
    unknown = [split for split in loaded if split.lower() not in SPLIT_NAMES]
    if len(loaded) > 1 and unknown:
        log(f"{name}: left out the splits {', '.join(unknown)}; the known ones are {', '.join(SPLIT_NAMES)}")
    for split, dataset in loaded.items():
        if len(loaded) > 1 and split in unknown:
            continue
        known = SPLIT_NAMES.get(split.lower())
        yield dataset, {"split": known} if known is not None and (len(loaded) > 1 or known != "train") else {}
