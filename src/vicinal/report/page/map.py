"""The map of the embeddings on the page: its section, and the data that the script draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from vicinal.analysis import QueryNeighbors, embedding_map
from vicinal.report.page.frames import SMALL, ImageFrames
from vicinal.report.page.markup import Section, render, section
from vicinal.retrieval.scores import Array
from vicinal.utils.arrays import Integers

SIDE = 10_000  # coordinates are whole numbers from 0 to this
LEAD = (
    "The embeddings in two dimensions (t-SNE): what is near here is similar, but distances between groups say little. "
)


def map_section(
    embeddings: Array, frames: ImageFrames, neighbors: QueryNeighbors, max_images: int, seed: int
) -> tuple[Section, dict[str, Any] | None]:
    """The section with the map, and the map's data; None if there is no map."""
    if not max_images:
        return section("map", "Map", "No map was asked for."), None
    points = embedding_map(embeddings, frames.table, max_images, seed)
    if points.empty:
        return section("map", "Map", "There are too few images for a map, or all are the same."), None
    is_labeled = frames.table.has("label")
    classes = [frames.labels[row] if is_labeled else "image" for row in points["row"]]
    labels, codes, counts = np.unique(classes, return_inverse=True, return_counts=True)
    total = len(neighbors.gallery)
    shown = f"{len(points):,} of {total:,} images, drawn at random{' class by class' if is_labeled else ''}."
    lead = LEAD + (shown if len(points) < total else f"All {total:,} images.")
    content = render("map.html", is_labeled=is_labeled, counts=dict(zip(labels, counts, strict=True)), size=len(points))
    return section("map", "Map", lead, content), _data(points, labels.tolist(), codes.tolist(), frames, neighbors)


def _data(
    points: pd.DataFrame, classes: list[str], labels: list[int], frames: ImageFrames, neighbors: QueryNeighbors
) -> dict[str, Any]:
    """What the script needs to draw the map."""
    x, y = np.rint(points[["x", "y"]].to_numpy() * SIDE).astype(np.int64).T
    return {
        "side": SIDE,
        "classes": classes,
        "x": x.tolist(),
        "y": y.tolist(),
        "label": labels,
        "image": [frames.thumbnails.number(frames.table, row, SMALL) for row in points["row"].tolist()],
        "match": _nearest_is_match(neighbors)[points["row"]].tolist(),
    }


def _nearest_is_match(neighbors: QueryNeighbors) -> Integers:
    """For each image 1 or 0, whether its nearest is of its class; -1 if it is no query that can find its class."""
    match = np.full(len(neighbors.table), -1)
    queries = neighbors.with_positives()
    match[queries.queries] = queries.same_class[:, 0]
    return match
