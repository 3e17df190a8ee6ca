"""Where a context refiner moves embeddings, on a map in two dimensions: Fig. 4 of the context refiner paper.

The map is made of the embeddings e^0 and stays. Every vector is placed on it by itself, e^0 and e^T by the same rule,
so that an embedding that does not change does not move:

- "pca": it is projected onto the first two components.
- "tsne": its neighbors among the others are weighted as in t-SNE, by a Gaussian of the given perplexity, and it is
  placed at their weighted mean, the usual way to place vectors that were not there when the map was made. (So e^0 is
  also slightly off its own point of the map, towards its neighbors.)

The paper optimizes the positions of e^T so that their similarities to all e^0 match; it does not say how. Colors are
classes. In a good picture arrows of one color meet.

Run `python examples/figures/refiner_map.py refiner/model embeddings.parquet --out map.png`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.special import entr
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from vicinal.analysis.refiner import refiner_input
from vicinal.data import Table, load_embeddings
from vicinal.data.class_samples import round_robin
from vicinal.models.refiner import ContextRefiner
from vicinal.report.contact_sheets import short
from vicinal.report.drawing import COLORS, DPI, INK, QUIET, picture_format, write_figure
from vicinal.retrieval.query_gallery import QueryGallery
from vicinal.retrieval.refinement import Refinement
from vicinal.retrieval.scores import Array
from vicinal.utils.arrays import Doubles, Integers
from vicinal.utils.errors import InputError

FRAME = "#d5d8dc"
MIN_IMAGES = 5
PERPLEXITY = 20.0  # less on a map of few images
IN_DATA: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "scale": 1, "units": "inches"}  # length of arrows

Points = tuple[Doubles, Doubles]


class Movement(NamedTuple):
    """Positions of embeddings on a map in two dimensions, before and after refinement.

    Attributes:
        rows: int64 [m], their rows in the table, ascending.
        before: float64 [m, 2], of e^0.
        after: float64 [m, 2], of e^T.
    """

    rows: Integers
    before: Doubles
    after: Doubles


def movement(
    refiner: ContextRefiner,
    embeddings: Array,
    table: Table,
    max_images: int = 500,
    method: Literal["tsne", "pca"] = "tsne",
    seed: int = 0,
) -> Movement:
    """Compute where embeddings are on the map before and after refinement.

    The images are drawn class by class: at most 20 classes with two images or more, and of each in turn one image,
    until there are enough. Their neighbors are searched among all that is evaluated, on the map or not.

    Args:
        refiner: trained on embeddings of the same model.
        embeddings: float [rows, dim].
        table: one row per embedding, with labels.
        max_images: the number of images on the map.
        method: "tsne" or "pca".
        seed: of the sample and of t-SNE.

    Raises:
        InputError: another dimension or number of rows, no labels, an unknown method, or too few images for a map.
    """
    if method not in POSITIONS:
        raise InputError(f"method = {method!r} must be {' or '.join(POSITIONS)}")
    evaluated = refiner_input(refiner, embeddings, table)
    sample = sample_images(evaluated.table.labels, max_images, seed)
    chosen, refinement = evaluated.vectors.subset(sample), Refinement(refiner)
    base = chosen.block(0, len(chosen)).cpu().double().numpy()
    if len(base) < MIN_IMAGES or refiner.dim < 2 or (base == base[0]).all():
        raise InputError(
            f"no map of {len(base)} images of {refiner.dim} dimensions; it needs {MIN_IMAGES} images of classes "
            "with two images or more, not all the same, and 2 dimensions"
        )
    neighbors = refinement.find_context(QueryGallery(chosen, evaluated.vectors, sample))
    refined = refinement.refine_vectors(chosen, evaluated.vectors, neighbors).astype(np.float64)
    return Movement(evaluated.rows[sample], *POSITIONS[method](base, refined, seed))


def sample_images(labels: Integers, max_images: int, seed: int) -> Integers:
    """Rows of classes with several images, ascending; the classes take turns."""
    generator = np.random.default_rng(seed)
    several = np.flatnonzero(np.bincount(labels) > 1)
    classes = generator.permutation(several)[: min(len(COLORS), max_images // 2)]
    shuffled = generator.permutation(np.flatnonzero(np.isin(labels, classes)))
    return np.sort(round_robin(shuffled, labels)[:max_images])


def pca_positions(base: Doubles, refined: Doubles, seed: int) -> Points:
    """Project both onto the first two components of the base."""
    pca = PCA(n_components=2, random_state=seed).fit(base)
    return pca.transform(base), pca.transform(refined)


def tsne_positions(base: Doubles, refined: Doubles, seed: int) -> Points:
    """Place both on the t-SNE map of the base, by their neighbors."""
    perplexity = min(PERPLEXITY, (len(base) - 1) / 3)
    fixed = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(base).astype(np.float64)
    before, after = (neighbor_weights(distances(each, base), perplexity) @ fixed for each in (base, refined))
    return before, after


def distances(vectors: Doubles, base: Doubles) -> Doubles:
    """Squared distances of unit vectors, [m, m]; infinite from each vector to the one that it was."""
    squared = 2 - 2 * vectors @ base.T
    np.fill_diagonal(squared, np.inf)
    return squared


def neighbor_weights(squared: Doubles, perplexity: float) -> Doubles:
    """The conditional probabilities of t-SNE, from squared distances [m, m].

    They are ``exp(-b_i d_ij)`` divided by the sum of the row. Each b_i is such that the entropy of the row is the
    logarithm of the perplexity, as far as equal distances allow.
    """
    squared = squared - squared.min(axis=1, keepdims=True)  # the same weights, and not all of them 0
    low, high = np.full((len(squared), 1), -10.0), np.full((len(squared), 1), 30.0)  # of the logarithm of b
    for _ in range(40):
        middle = (low + high) / 2
        weights = np.exp(-np.exp(middle) * squared)
        weights /= weights.sum(axis=1, keepdims=True)
        is_wide = entr(weights).sum(axis=1, keepdims=True) > math.log(perplexity)
        low, high = np.where(is_wide, middle, low), np.where(is_wide, high, middle)
    return weights


POSITIONS: dict[str, Callable[[Doubles, Doubles, int], Points]] = {"tsne": tsne_positions, "pca": pca_positions}


def movement_map(
    refiner: ContextRefiner,
    embeddings: Array,
    table: Table,
    path: str | Path,
    max_images: int = 500,
    method: Literal["tsne", "pca"] = "tsne",
    seed: int = 0,
) -> None:
    """Draw :func:`movement` as arrows, with the names of the classes beside the map."""
    picture_format(Path(path))
    moved = movement(refiner, embeddings, table, max_images, method, seed)
    labels = table.frame["label"].iloc[moved.rows].tolist()
    colors = dict(zip(sorted(set(labels)), COLORS, strict=False))
    figure = Figure(figsize=(7.2, 6.2), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    draw_arrows(axes, moved, [colors[label] for label in labels])
    name = {"tsne": "t-SNE", "pca": "PCA"}[method]
    title = f"{name} of {len(labels):,} embeddings, arrows to where {refiner.depth} blocks move them"
    axes.set_title(title, fontsize=10, color=INK)
    handles = [Line2D([], [], color=color, linewidth=2.5, label=short(label)) for label, color in colors.items()]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.0), **QUIET)
    write_figure(figure, Path(path))


def draw_arrows(axes: Axes, moved: Movement, colors: Sequence[str]) -> None:
    """Draw each embedding as a point, and an arrow to where it moves."""
    (x, y), shift = moved.before.T, moved.after - moved.before
    axes.scatter(x, y, s=7, c=colors, alpha=0.45, linewidths=0)
    axes.quiver(x, y, *shift.T, color=colors, width=0.009, headwidth=4.5, headlength=6, minlength=0.5, **IN_DATA)
    axes.set(xticks=(), yticks=(), aspect="equal")
    axes.spines[:].set_color(FRAME)
    axes.update_datalim(moved.after)  # matplotlib ignores the tips of arrows
    axes.margins(0.03)
    axes.autoscale_view()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("refiner", help="the folder of a refiner, such as refiner/model")
    parser.add_argument("embeddings", help="embeddings of the same model, a .parquet file with labels")
    parser.add_argument("--method", choices=POSITIONS, default="tsne", help="how the map is made")
    parser.add_argument("--max_images", type=int, default=500, help="images on the map")
    parser.add_argument("--seed", type=int, default=0, help="of the sample and of t-SNE")
    parser.add_argument("--out", default="refiner_map.png", help="the picture (png, jpg, webp, pdf, svg)")
    given = parser.parse_args()
    refiner = ContextRefiner.from_pretrained(given.refiner)
    movement_map(
        refiner, *load_embeddings(given.embeddings), given.out, given.max_images, method=given.method, seed=given.seed
    )
