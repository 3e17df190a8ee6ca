"""The map on the page: what moves it, its words, and the data that the script draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vicinal.report.page.cells import Cells
from vicinal.report.page.map import SIDE, Map, embedding_map
from vicinal.report.page.markup import Markup, Section, element, section
from vicinal.report.page.pictures import SMALL
from vicinal.report.page.search import Neighborhood
from vicinal.retrieval.scores import Array

LEAD = (
    "The embeddings in two dimensions (t-SNE): what is near here is similar, but distances between groups say little. "
)
HELP = (
    "Point at a dot to see its image, click to enlarge it. Drag to move; zoom with the buttons, or with the wheel once "
    "the map was clicked. Keys: arrows go from image to image, + and − zoom, 0 shows all, Enter enlarges, "
    "Escape lets go."
)
BUTTONS = {"in": "Zoom in", "out": "Zoom out", "reset": "Whole map"}


def mapped(vectors: Array, cells: Cells, found: Neighborhood, images: int, seed: int) -> tuple[Section, Any]:
    """The section with the map, and the map's data: None where there is no map."""
    if not images:
        return section("map", "Map", "No map was asked for."), None
    drawn = embedding_map(vectors, cells.table.labels, found.gallery, images, seed)
    if drawn is None:
        return section("map", "Map", "There are too few images for a map, or all are the same."), None
    return map_section(drawn, cells, len(found.gallery)), map_data(drawn, cells, found)


def map_section(drawn: Map, cells: Cells, images: int) -> Section:
    """The canvas and what moves it."""
    return section(
        "map",
        "Map",
        LEAD + _part(len(drawn.rows), images),
        _controls([cells.names[at] for at in drawn.rows]),
        element("div", _canvas(len(drawn.rows)), _tip(), class_="plane"),
        element("p", id="map-said", class_="note", aria_live="polite"),
        _key(),
        element("ul", id="map-legend", class_="legend", aria_label="Classes on the map"),
        element("p", HELP, class_="note", id="map-help"),
    )


def map_data(drawn: Map, cells: Cells, found: Neighborhood) -> dict[str, Any]:
    """What the script needs to draw the map."""
    names = np.array([cells.names[at] for at in drawn.rows])
    classes, labels = np.unique(names, return_inverse=True)
    return {
        "side": SIDE,
        "classes": classes.tolist(),
        "x": drawn.places[:, 0].tolist(),
        "y": drawn.places[:, 1].tolist(),
        "label": labels.tolist(),
        "image": [cells.pictures.number(cells.table, int(at), SMALL) for at in drawn.rows],
        "right": _verdicts(found, len(cells.table))[drawn.rows].tolist(),
    }


def _verdicts(found: Neighborhood, images: int) -> npt.NDArray[np.int64]:
    """Of every image, 1 or 0 for whether its nearest is of its class, -1 where it is no query that counts."""
    right = np.full(images, -1)
    right[found.queries] = found.right[:, 0]
    return right


def _part(shown: int, images: int) -> str:
    return (
        f"{shown:,} of {images:,} images, drawn by chance class by class."
        if shown < images
        else f"All {images:,} images."
    )


def _controls(labels: list[str]) -> Markup:
    names, counts = np.unique(labels, return_counts=True)
    options = [element("option", f"all {len(names):,} classes", value=-1)]
    for at, (name, count) in enumerate(zip(names, counts, strict=True)):
        options.append(element("option", f"{name} ({count})", value=at))
    chooser = element("label", "Class ", element("select", *options, id="map-class"))
    buttons = [element("button", text, type="button", id=f"map-{name}") for name, text in BUTTONS.items()]
    return element("div", chooser, *buttons, class_="controls")


def _canvas(images: int) -> Markup:
    return element(
        "canvas",
        id="map-canvas",
        tabindex="0",
        role="application",
        aria_label=f"Map of {images:,} embeddings; arrow keys go from image to image",
        aria_describedby="map-help",
    )


def _tip() -> Markup:
    """What stands beside the dot that is pointed at."""
    parts = [element("img", id="map-tip-image", alt=""), element("strong", id="map-tip-label", dir="auto")]
    return element("div", *parts, element("span", id="map-tip-note"), id="map-tip", aria_hidden="true", hidden=True)


def _key() -> Markup:
    dot = element("svg", element("circle", cx=7, cy=7, r=5, class_="dot"), width=14, height=14, aria_hidden="true")
    ring = element("svg", element("circle", cx=7, cy=7, r=5, class_="ring"), width=14, height=14, aria_hidden="true")
    texts = [
        element("li", dot, "nearest image of its class, or no query with something to find"),
        element("li", ring, "nearest image of another class"),
        element("li", "colours are classes"),
    ]
    return element("ul", *texts, class_="legend", aria_label="Key of the map")
