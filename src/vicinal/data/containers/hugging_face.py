"""Hugging Face datasets: on the Hub, saved by `save_to_disk`, or folders that the library reads."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from vicinal.data.columns import SPLIT_NAMES
from vicinal.data.containers.arrow_images import BATCH_SIZE, ImageColumns, choose_columns
from vicinal.data.containers.listing import ListedImages, NamedColumns, Sample, file_versions, list_folder, list_images
from vicinal.utils.arrays import Integers
from vicinal.utils.console import condensed_retries, log
from vicinal.utils.errors import InputError, import_extra, one_line

QUERY_NAMES = ("query", "queries")
COLUMNS = ("query-id", "corpus-id", "score")
SAVED = ("dataset_dict.json", "state.json")  # one of them is in a folder of save_to_disk
SIDES = ("corpus", "query")
HUB_NAME = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)?")


def relevance_configurations(names: Sequence[str]) -> dict[str, str] | None:
    """The configurations that hold the corpus, the queries and their relevance; None if one is missing."""
    query = next((name for name in QUERY_NAMES if name in names), None)
    return {"corpus": "corpus", "query": query, "qrels": "qrels"} if query and {"corpus", "qrels"} <= {*names} else None


def relevance_samples(loaded: Mapping[str, Any], source: object, columns: NamedColumns) -> Iterator[Sample]:
    """The images of the corpus, which become the gallery, and those of the queries; all are the split test.

    Images that are relevant for the same queries are one class. A query whose image is in the corpus is relevant for
    itself, and is later excluded from its own ranking, since both are one file.
    """
    corpus, queries = (_Side(loaded[side], columns, f"{source}, {side}") for side in ("corpus", "query"))
    relevant = _relevant(loaded["qrels"], queries.ids, corpus.ids, str(source))
    corpus_rows: dict[bytes, list[int]] = {}
    for row, digest in enumerate(corpus.digests):
        corpus_rows.setdefault(digest, []).append(row)
    for own, digest in zip(relevant, queries.digests, strict=True):
        own.update(corpus_rows.get(digest, []))
    gallery_labels, query_labels = relevance_classes(relevant, len(corpus.ids), str(source))
    gallery = list(corpus.samples(0))
    flags = {"split": "test", "is_query": False, "is_gallery": True}
    for sample, label in zip(gallery, gallery_labels.tolist(), strict=True):
        yield Sample(sample.image, sample.name, sample.values | {"label": label} | flags)
    flags = {"split": "test", "is_query": True, "is_gallery": False}
    for sample, label, digest in zip(queries.samples(1), query_labels.tolist(), queries.digests, strict=True):
        same = corpus_rows.get(digest)
        image = gallery[same[0]].image if same else sample.image  # one file, which the query does not find
        yield Sample(image, sample.name, sample.values | {"label": label} | flags)


class _Side:
    def __init__(self, dataset: Any, columns: NamedColumns, source: str) -> None:
        self.dataset, self.source = dataset, source
        schema = dataset.features.arrow_schema
        if "id" not in schema.names:
            raise InputError(f"{source}: no column 'id'; the columns are {', '.join(schema.names)}")
        found = choose_columns(schema, NamedColumns(columns.image, None, False), source)
        self.columns = ImageColumns(found.image, None, ("id",), {})
        self.ids = [str(each) for each in dataset["id"]]
        self.digests = [self._digest(row, image) for row, image in enumerate(self._images())]
        if len(set(self.ids)) < len(self.ids):
            raise InputError(f"{source}: an id appears twice; every image needs its own")

    def samples(self, file: int) -> Iterator[Sample]:
        return self.columns.samples(self.dataset.with_format("arrow").iter(BATCH_SIZE), self.source, file)

    def _images(self) -> Iterator[dict[str, Any] | None]:
        for batch in self.dataset.select_columns([self.columns.image]).with_format("arrow").iter(BATCH_SIZE):
            yield from batch.column(self.columns.image).to_pylist()

    def _digest(self, row: int, image: dict[str, Any] | None) -> bytes:
        content = (image or {}).get("bytes")
        if content is None and (image or {}).get("path"):
            content = Path(image["path"]).read_bytes()  # type: ignore[index]
        if content is None:
            raise InputError(f"{self.source}, row {row}: no image; every row needs one")
        return hashlib.sha256(content).digest()


def _relevant(qrels: Any, query_ids: Sequence[str], corpus_ids: Sequence[str], source: str) -> list[set[int]]:
    if not {*COLUMNS} <= set(qrels.column_names):
        raise InputError(f"{source}, qrels: the columns are {', '.join(qrels.column_names)}, not {', '.join(COLUMNS)}")
    rows = [{name: row for row, name in enumerate(ids)} for ids in (query_ids, corpus_ids)]
    relevant: list[set[int]] = [set() for _ in query_ids]
    for query, image, score in zip(*(qrels[column] for column in COLUMNS), strict=True):
        for name, known, side in ((str(query), rows[0], "query"), (str(image), rows[1], "corpus")):
            if name not in known:
                raise InputError(f"{source}, qrels: {side}-id {name!r} is not the id of an image in {side}")
        if score > 0:
            relevant[rows[0][str(query)]].add(rows[1][str(image)])
    return relevant


def relevance_classes(relevant: Sequence[set[int]], corpus_size: int, source: str) -> tuple[Integers, Integers]:
    """The class of each image of the corpus and of each query, by the rows of the corpus that are relevant for each
    query.

    An image that is relevant for no query is a class of its own, and so is a query without relevant images.
    """
    labels = np.full(corpus_size, -1)
    firsts = [min(rows) if rows else corpus_size + query for query, rows in enumerate(relevant)]
    for first, rows in zip(firsts, relevant, strict=True):
        labels[[row for row in rows if labels[row] < 0]] = first
    sizes = np.bincount(labels[labels >= 0], minlength=corpus_size)
    for query, (first, rows) in enumerate(zip(firsts, relevant, strict=True)):
        if rows and (len(rows) != sizes[first] or any(labels[row] != first for row in rows)):
            raise InputError(
                f"{source}: query {query} (counted from 0) shares some, but not all of its relevant images with "
                "another; only relevance by class can be read"
            )
    return np.where(labels < 0, np.arange(corpus_size), labels), np.array(firsts, dtype=np.int64)


@dataclass(frozen=True)
class DatasetName:
    """A folder, or a name on the Hub with a revision; and the configuration."""

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
            raise InputError(f"hf:{name}: neither a folder nor a name on the Hugging Face Hub, such as owner/name")
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

    Images in a folder of `save_to_disk` are read one by one. Any other dataset is converted as a whole by the library,
    and its images are written at once.
    """
    parsed = DatasetName.parse(name)
    dataset = _Dataset(parsed, columns)
    version = parsed.revision if parsed.folder is None else file_versions(_files(parsed.folder))
    short = parsed.path if parsed.folder is None else parsed.folder.resolve().name
    folder = list_folder(root, "hugging_face", short, columns, [parsed.configuration, version])
    return list_images(folder, str(parsed), dataset.samples, dataset.read, columns, whole=not parsed.is_saved)


class _Dataset:
    """A dataset that is loaded when it is first read."""

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
        raise InputError(f"{source}: the splits are {', '.join(loaded)}; there must be a test split, or only one")
    return loaded["test"] if "test" in loaded else next(iter(loaded.values()))


def _splits(loaded: Mapping[str, Any], name: DatasetName) -> Iterator[tuple[Any, dict[str, str]]]:
    """The known splits, and the column that tells them; a single split `train` gives no column."""
    unknown = [split for split in loaded if split.lower() not in SPLIT_NAMES]
    if len(loaded) > 1 and unknown:
        log(f"{name}: left out the splits {', '.join(unknown)}; the known ones are {', '.join(SPLIT_NAMES)}")
    for split, dataset in loaded.items():
        if len(loaded) > 1 and split in unknown:
            continue
        known = SPLIT_NAMES.get(split.lower())
        yield dataset, {"split": known} if known is not None and (len(loaded) > 1 or known != "train") else {}
