"""Hugging Face datasets: on the Hub, saved by `save_to_disk`, or folders that the library reads."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from vicinal.data.columns import SPLIT_NAMES
from vicinal.data.containers.arrow_images import BATCH_SIZE, choose_columns
from vicinal.data.containers.listing import (
    ListedImages,
    NamedColumns,
    Sample,
    file_versions,
    list_folder,
    list_images,
)
from vicinal.data.containers.relevance import relevance_configurations, relevance_samples
from vicinal.utils.arrays import Integers
from vicinal.utils.console import condensed_retries, log
from vicinal.utils.errors import InputError, import_extra, one_line

SAVED = ("dataset_dict.json", "state.json")  # one of them is in a folder of save_to_disk
SIDES = ("corpus", "query")
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


def list_hugging_face(name: str, root: str | Path | None, columns: NamedColumns) -> ListedImages:
    """The images of a Hugging Face dataset; :func:`~vicinal.data.containers.list_container` has the rules.

    Those of a folder of `save_to_disk` are read one by one. The library itself converts all of any other dataset, whose
    images are written at once.
    """
    parsed = DatasetName.parse(name)
    dataset = _Dataset(parsed, columns)
    version = parsed.revision if parsed.folder is None else file_versions(_files(parsed.folder))
    short = parsed.path if parsed.folder is None else parsed.folder.resolve().name
    folder = list_folder(root, "hugging_face", short, columns, [parsed.configuration, version])
    return list_images(folder, str(parsed), dataset.samples, dataset.read, columns, whole=not parsed.is_saved)


class _Dataset:
    """A dataset that is loaded when it is first read.

    Args:
        name: What is read.
        columns: The columns that the user names.
    """

    def __init__(self, name: DatasetName, columns: NamedColumns) -> None:
        self.name, self.columns, self.scratch = name, columns, ""

    def samples(self, scratch: Path) -> Iterator[Sample]:
        """All images; the library converts the dataset in the folder `scratch`."""
        self.scratch = str(scratch)
        with _one_line_errors(self.name):
            if self._has_relevance:
                yield from relevance_samples(self._loaded, self.name, self.columns)
                return
            for number, (dataset, values) in enumerate(self._parts):
                chosen = choose_columns(dataset.features.arrow_schema, self.columns, str(self.name))
                batches = dataset.with_format("arrow").iter(BATCH_SIZE)
                for sample in chosen.samples(batches, f"{self.name}, split {dataset.split}", number):
                    yield Sample(sample.image, sample.name, sample.values | values)

    def read(self, locations: Integers) -> Iterator[bytes]:
        """The bytes of the images of some rows."""
        with _one_line_errors(self.name):
            for number, (dataset, _) in enumerate(self._parts):
                image = choose_columns(dataset.features.arrow_schema, self.columns, str(self.name)).image
                rows = locations[locations[:, 0] == number, 1].tolist()
                chosen = dataset.select_columns([image]).with_format("arrow")
                for first in range(0, len(rows), BATCH_SIZE):
                    for content in chosen[rows[first : first + BATCH_SIZE]].column(image).to_pylist():
                        yield content["bytes"]

    @cached_property
    def _loaded(self) -> dict[str, Any]:
        """The datasets of each split; or the corpus, the queries and their relevance.

        Downloads are kept in the library's own cache; `scratch` is for what it converts them to.
        """
        datasets = import_extra("datasets", "datasets", str(self.name))
        if self.name.is_saved:
            loaded = datasets.load_from_disk(self.name.path)
            return {str(loaded.split or "train"): loaded} if hasattr(loaded, "split") else dict(loaded)
        with condensed_retries():
            load = partial(datasets.load_dataset, self.name.path, revision=self.name.revision, cache_dir=self.scratch)
            known = datasets.get_dataset_config_names(self.name.path, revision=self.name.revision)
            parts = relevance_configurations(known) if self.name.configuration is None else None
            if parts is None:
                return dict(load(self.name.configuration))
            return {part: _test_split(load(each), f"{self.name}, {each}") for part, each in parts.items()}

    @cached_property
    def _parts(self) -> list[tuple[Any, dict[str, str]]]:
        """The datasets with images, and what is known of each."""
        loaded = self._loaded
        return [(loaded[each], {}) for each in SIDES] if self._has_relevance else list(_splits(loaded, self.name))

    @property
    def _has_relevance(self) -> bool:
        return {*self._loaded} == {*SIDES, "qrels"}


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


def _test_split(loaded: Any, source: str) -> Any:
    if "test" not in loaded and len(loaded) > 1:
        raise InputError(f"{source}: the splits are {', '.join(loaded)}; there must be a test split, or one only")
    return loaded["test"] if "test" in loaded else next(iter(loaded.values()))


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
