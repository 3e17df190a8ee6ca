"""The page about one set of embeddings without labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vicinal.analysis import (
    QueryNeighbors,
    query_neighbors,
)
from vicinal.analysis.clustering import MAX_MAP_IMAGES
from vicinal.data.table import Table
from vicinal.report.page.common import (
    duplicates_section,
    hubs_section,
    map_section,
    statistics_table,
)
from vicinal.report.page.frames import ImageFrames, Thumbnails, entry, entry_list, image_frames
from vicinal.report.page.markup import (
    Section,
    document,
    header_line,
    left_out_text,
    model_text,
    section,
    splits_text,
    without_home,
)
from vicinal.retrieval.reranking.base import Reranking
from vicinal.retrieval.scores import Array
from vicinal.utils.console import counted
from vicinal.utils.files import write_bytes

NUM_QUERIES = 24


def write_unlabeled_page(
    path: str | Path,
    embeddings: Array,
    table: Table,
    *,
    title: str = "Images",
    backbone: str | None = None,
    num_left_out: int = 0,
    rerank: Reranking | None = None,
    map_images: int = MAX_MAP_IMAGES,
    seed: int = 0,
) -> None:
    """Write a page about images without labels: some with their neighbors, a map, hubs, duplicates, numbers.

    It is one HTML file that opens from disk without a network, as that of :func:`write_page`.

    Args:
        path: the file, such as `report.html`; it is replaced as a whole.
        embeddings: float [rows, dim].
        table: one row per embedding; without paths the page has no images.
        title: of the page.
        backbone: the name of the model's backbone, if it is known.
        num_left_out: the number of files that were left out, because they cannot be read or are not images.
        rerank: as for :func:`write_page`.
        map_images: the number of images on the map; 0: there is no map.
        seed: of all random choices.

    Raises:
        InputError: embeddings and table do not belong together, or there is only one image.
        OSError: the file cannot be written.

    Example:
        >>> import tempfile
        >>> import pandas as pd
        >>> table = Table(pd.DataFrame({"path": ["/a.png", "/b.png", "/c.png"]}))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_unlabeled_page(f"{folder}/report.html", np.eye(3), table)
        ...     "a.png" in Path(f"{folder}/report.html").read_text(encoding="utf-8")
        True
    """
    neighbors = query_neighbors(embeddings, table, rerank=rerank)
    thumbnails = Thumbnails()
    frames = image_frames(thumbnails, table, rerank)
    on_map, map_data = map_section(embeddings, frames, neighbors, map_images, seed)
    numbers = statistics_table("What was embedded", table.statistics())
    groups: dict[str, list[Section | None]] = {
        "Images": [_neighbors_section(frames, neighbors, seed), on_map],
        "Data": [
            hubs_section(frames, neighbors),
            duplicates_section(frames, neighbors if rerank is None else query_neighbors(embeddings, table)),
            section("data", "Data", "The number of images; they have no labels.", numbers),
        ],
    }
    images = thumbnails.encoded()
    line = header_line(
        splits_text(table),
        model_text(backbone, embeddings.shape[1]),
        f"{counted(len(table), 'image')} without labels",
        left_out_text(num_left_out),
        *thumbnails.notes(),
    )
    data = {"map": map_data, "images": images, **frames.data()}
    write_bytes(path, document(without_home(title), line, groups, data))


def _neighbors_section(frames: ImageFrames, neighbors: QueryNeighbors, seed: int) -> Section:
    rows = np.random.default_rng(seed).permutation(neighbors.queries)[:NUM_QUERIES].tolist()
    lead = (
        f"Images drawn at random, each with its neighbors, nearest first. The numbers are by {frames.numbers}. A "
        "click enlarges; arrow keys move to the next image."
    )
    entries = [entry(frames.labels[row], frames.ranking(neighbors, row)) for row in rows]
    return section("queries", "Images and their neighbors", lead, entry_list(entries))
