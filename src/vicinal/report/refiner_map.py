"""Where a context refiner moves embeddings, on a map of two dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.special import entr

from vicinal.data import Table
from vicinal.errors import InputError
from vicinal.models.refiner import ContextRefiner
from vicinal.report.cells import short
from vicinal.report.compared import compared
from vicinal.report.drawing import COLORS, DPI, INK, QUIET, picture_format, write_figure
from vicinal.retrieval.refine import Refinement
from vicinal.retrieval.scores import Array
from vicinal.retrieval.sides import Sides

FRAME = "#d5d8dc"
FEWEST_IMAGES = 5  # of a map

PERPLEXITY = 20.0  # about how many images count as near to one; less on a map of few images

IN_DATA: dict[str, Any] = {
    "angles": "xy",
    "scale_units": "xy",
    "scale": 1,
    "units": "inches",
}  # arrows, not their width

Integers = npt.NDArray[np.int64]

Floats = npt.NDArray[np.float64]

Points = tuple[Floats, Floats]


class Movement(NamedTuple):
    """Where embeddings are on a map of two dimensions, before and after refinement.

    Attributes:
        rows: int64 [m], which row of the table each is, ascending.
        before: float64 [m, 2], of e^0.
        after: float64 [m, 2], of e^T.
    """

    rows: Integers
    before: Floats
    after: Floats


def movement(
    refiner: ContextRefiner,
    embeddings: Array,
    table: Table,
    images: int = 500,
    method: Literal["tsne", "pca"] = "tsne",
    seed: int = 0,
) -> Movement:
    """Where embeddings move on a map of two dimensions when they are refined.

    The map is made of e^0 and stays. Every vector is placed on it by itself, e^0 and e^T by the same rule, so that an
    embedding that does not change does not move:

    - "pca": it is projected on the first two components.
    - "tsne": its neighbours among the others are weighted as t-SNE does, by a Gaussian as wide as the perplexity says,
      and it is put at the mean of their places, the usual way for vectors that were not there when the map was made.
      (So e^0 too is a little off its place on the map itself, towards its neighbours.)

    The paper optimises the places of e^T so that their similarities to all e^0 match; it does not say how.

    The images on the map are drawn class by class: at most 20 classes that have two images or more, by chance, and of
    each in turn one image, by chance, until there are enough or no others. Their neighbours are searched among all
    that is evaluated, on the map or not.

    Reference: Context Refiner, section 4.6 and Fig. 4.

    Args:
        refiner: trained on embeddings of the same model.
        embeddings: float [rows, dim].
        table: one row an embedding, with labels.
        images: how many at most.
        method: "tsne" or "pca".
        seed: of the choice, and of t-SNE.

    Raises:
        InputError: another dimension or number of rows, no labels, an unknown method, or too few images for a map.

    Example:
        >>> embeddings, table = np.eye(8), Table(pd.DataFrame({"label": [0, 0, 0, 0, 1, 1, 1, 1]}))
        >>> moved = movement(ContextRefiner(8, depth=1, heads=1), embeddings, table, method="pca")
        >>> moved.before.shape, bool(np.allclose(moved.before, moved.after))  # a new refiner moves nothing
        ((8, 2), True)
    """
    _check_map(images, method)
    vectors, evaluated, rows = compared(refiner, embeddings, table)
    drawn = _images_of_classes(evaluated.labels, images, seed)
    chosen, refinement = vectors.subset(drawn), Refinement(refiner)
    base = chosen.block(0, len(chosen)).cpu().double().numpy()
    if len(base) < FEWEST_IMAGES or refiner.dim < 2 or (base == base[0]).all():
        raise InputError(
            f"no map of {len(base)} images of {refiner.dim} dimensions; "
            f"it takes {FEWEST_IMAGES}, not all the same, of classes with two images or more, and 2 dimensions"
        )
    neighbors = refinement.neighbors_of_queries(Sides(chosen, vectors, drawn))
    refined = refinement.refined(chosen, vectors, neighbors).astype(np.float64)
    return Movement(rows[drawn], *_PLACES[method](base, refined, seed))


def movement_map(
    refiner: ContextRefiner,
    embeddings: Array,
    table: Table,
    path: str | Path,
    images: int = 500,
    method: Literal["tsne", "pca"] = "tsne",
    seed: int = 0,
) -> None:
    """Draw :func:`movement`: a map of the embeddings, and arrows to where they are after refinement.

    Colours are classes, with their names beside the map. In a good picture arrows of one colour meet.

    Reference: Context Refiner, Fig. 4.

    Args:
        refiner: trained on embeddings of the same model.
        embeddings: float [rows, dim].
        table: one row an embedding, with labels.
        path: the picture; its suffix says the format (png, jpg, webp, pdf, svg).
        images: how many at most, of at most 20 classes.
        method: "tsne" or "pca".
        seed: of the choice, and of t-SNE.

    Raises:
        InputError: as :func:`movement`, or an unknown suffix.
        OSError: the picture cannot be written.

    Example:
        >>> import tempfile
        >>> embeddings, table = np.eye(8), Table(pd.DataFrame({"label": [0, 0, 0, 0, 1, 1, 1, 1]}))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     movement_map(ContextRefiner(8, heads=1), embeddings, table, f"{folder}/map.png", method="pca")
    """
    picture_format(Path(path))
    moved = movement(refiner, embeddings, table, images, method, seed)
    labels = table.frame["label"].iloc[moved.rows].tolist()
    colors = dict(zip(sorted(set(labels)), COLORS, strict=False))
    figure = Figure(figsize=(7.2, 6.2), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    _arrows(axes, moved, [colors[label] for label in labels])
    name = {"tsne": "t-SNE", "pca": "PCA"}[method]
    title = f"{name} of {len(labels):,} embeddings, arrows to where {refiner.depth} blocks move them"
    axes.set_title(title, fontsize=10, color=INK)
    handles = [Line2D([], [], color=color, linewidth=2.5, label=short(label)) for label, color in colors.items()]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.0), **QUIET)
    write_figure(figure, Path(path))


def _check_map(images: int, method: str) -> None:
    if method not in _PLACES:
        raise InputError(f"method = {method!r} must be {' or '.join(_PLACES)}")
    if images < FEWEST_IMAGES:
        raise InputError(f"images = {images} must be at least {FEWEST_IMAGES}")


def _images_of_classes(labels: Integers, images: int, seed: int) -> Integers:
    """Rows, ascending: of classes with several images an image each in turn, until there are enough."""
    generator = np.random.default_rng(seed)
    several = np.flatnonzero(np.bincount(labels) > 1)
    classes = generator.permutation(several)[: min(len(COLORS), images // 2)]
    order = generator.permutation(np.flatnonzero(np.isin(labels, classes)))
    turns = pd.Series(labels[order]).groupby(labels[order]).cumcount().to_numpy()
    return np.sort(order[np.argsort(turns, kind="stable")][:images])


def _pca_places(base: Floats, refined: Floats, seed: int) -> Points:
    from sklearn.decomposition import PCA  # takes a second to import, and few need it

    pca = PCA(n_components=2, random_state=seed).fit(base)
    return pca.transform(base), pca.transform(refined)


def _tsne_places(base: Floats, refined: Floats, seed: int) -> Points:
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(base) - 1) / 3)
    fixed = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(base).astype(np.float64)
    before, after = (
        _neighbor_weights(_distances_to_others(each, base), perplexity) @ fixed for each in (base, refined)
    )
    return before, after


def _distances_to_others(vectors: Floats, base: Floats) -> Floats:
    """Squared, [m, m], of unit vectors; infinite from each to the vector that it was."""
    distances = 2 - 2 * vectors @ base.T
    np.fill_diagonal(distances, np.inf)
    return distances


def _neighbor_weights(squared: Floats, perplexity: float) -> Floats:
    """The conditional probabilities of t-SNE, from squared distances [m, m].

    They are ``exp(-b_i d_ij)`` divided by the sum of the row. Each b_i is such that the entropy of the row is the
    logarithm of the perplexity, as far as equal distances allow.
    """
    squared = squared - squared.min(axis=1, keepdims=True)  # the same weights, and none of them all 0
    low, high = np.full((len(squared), 1), -10.0), np.full((len(squared), 1), 30.0)  # of the logarithm of b
    for _ in range(40):
        middle = (low + high) / 2
        weights = np.exp(-np.exp(middle) * squared)
        weights /= weights.sum(axis=1, keepdims=True)
        is_wide = entr(weights).sum(axis=1, keepdims=True) > math.log(perplexity)
        low, high = np.where(is_wide, middle, low), np.where(is_wide, high, middle)
    return weights


_PLACES: dict[str, Callable[[Floats, Floats, int], Points]] = {"tsne": _tsne_places, "pca": _pca_places}


def _arrows(axes: Axes, moved: Movement, colors: Sequence[str]) -> None:
    (x, y), shift = moved.before.T, moved.after - moved.before
    axes.scatter(x, y, s=7, c=colors, alpha=0.45, linewidths=0)
    axes.quiver(x, y, *shift.T, color=colors, width=0.009, headwidth=4.5, headlength=6, minlength=0.5, **IN_DATA)
    axes.set(xticks=(), yticks=(), aspect="equal")
    axes.spines[:].set_color(FRAME)
    axes.update_datalim(moved.after)  # arrows do not count by themselves
    axes.margins(0.03)
    axes.autoscale_view()
