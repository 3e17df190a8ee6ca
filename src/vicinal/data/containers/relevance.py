"""Datasets of queries, a corpus and their relevance, as MTEB has them, as classes with queries and a gallery."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vicinal.data.containers.arrow_images import BATCH_SIZE, ImageColumns, choose_columns
from vicinal.data.containers.listing import NamedColumns, Sample
from vicinal.utils.arrays import Integers
from vicinal.utils.errors import InputError

QUERY_NAMES = ("query", "queries")
COLUMNS = ("query-id", "corpus-id", "score")


def relevance_configurations(names: Sequence[str]) -> dict[str, str] | None:
    """The configurations that hold the corpus, the queries and their relevance; None if there are no such ones.

    Example:
        >>> relevance_configurations(["corpus", "qrels", "queries"])
        {'corpus': 'corpus', 'query': 'queries', 'qrels': 'qrels'}
    """
    query = next((name for name in QUERY_NAMES if name in names), None)
    return {"corpus": "corpus", "query": query, "qrels": "qrels"} if query and {"corpus", "qrels"} <= {*names} else None


def relevance_samples(loaded: Mapping[str, Any], source: object, columns: NamedColumns) -> Iterator[Sample]:
    """The images of the corpus, which become the gallery, and those of the queries; all are the split test.

    Images of one class are those that are relevant for the same queries. A query whose image is in the corpus is
    relevant for itself, and is later excluded from its own ranking, since both are one file.

    Args:
        loaded: The datasets `corpus`, `query` and `qrels`.
        source: Where they come from, for messages.
        columns: The columns that the user names.

    Raises:
        InputError: A column is missing, an id is unknown, or relevance is not that of classes.
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
    """The corpus or the queries: their ids, and what their images are."""

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
            raise InputError(f"{source}: an id is there twice; every image needs its own")

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
            raise InputError(f"{self.source}, row {row}: no image; every one is needed")
        return hashlib.sha256(content).digest()


def _relevant(qrels: Any, query_ids: Sequence[str], corpus_ids: Sequence[str], source: str) -> list[set[int]]:
    """For each query, the rows of the corpus that are relevant for it."""
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
    """The classes that explain which images are relevant for which queries.

    Args:
        relevant: For each query, the rows of the corpus that are relevant for it.
        corpus_size: The number of images in the corpus.
        source: Where they come from, for messages.

    Returns:
        The class of each image of the corpus and of each query, as integers. An image that is relevant for no query is
        a class of its own, and so is a query without relevant images.

    Raises:
        InputError: Two queries have some, but not all of their relevant images in common.

    Example:
        >>> relevance_classes([{0, 2}, {1}, {0, 2}], 4, "birds")
        (array([0, 1, 0, 3]), array([0, 1, 0]))
    """
    labels = np.full(corpus_size, -1)
    firsts = [min(rows) if rows else corpus_size + query for query, rows in enumerate(relevant)]
    for first, rows in zip(firsts, relevant, strict=True):
        labels[[row for row in rows if labels[row] < 0]] = first
    sizes = np.bincount(labels[labels >= 0], minlength=corpus_size)
    for query, (first, rows) in enumerate(zip(firsts, relevant, strict=True)):
        if rows and (len(rows) != sizes[first] or any(labels[row] != first for row in rows)):
            raise InputError(
                f"{source}: query {query} (counted from 0) has some, but not all of its relevant images in common with "
                "another; that is no relevance of classes, which is all that can be read"
            )
    return np.where(labels < 0, np.arange(corpus_size), labels), np.array(firsts, dtype=np.int64)
