"""Which classes are found in place of which others."""

from __future__ import annotations

from typing import Any

import pandas as pd

from vicinal.analysis import QueryNeighbors, confusion_matrix, confusions
from vicinal.report.page.frames import ImageFrames, entry, entry_list, frame_list
from vicinal.report.page.markup import Markup, Section, breakable, element, percent, section, table, tall
from vicinal.utils.wording import counted

MAX_CONFUSIONS, MAX_EXAMPLES = 30, 12
MAX_CLASSES = 16  # of a matrix
TITLE = "Confusions between classes"


def confusions_section(frames: ImageFrames, neighbors: QueryNeighbors) -> Section:
    """A matrix if there are few classes, and the most frequent confusions with an example of each."""
    neighbors = neighbors.with_positives()
    pairs = confusions(neighbors)
    lead = "Which class the nearest image is of where it is not the query's. "
    if pairs.empty:
        return section("confusions", TITLE, f"{lead}Every query that has something to find has its class nearest.")
    queries = counted(len(neighbors.queries), "query", "queries")
    lead += f"So it is for {pairs['num_queries'].sum():,} of {queries} with something to find, "
    lead += f"in {counted(len(pairs), 'pair')} of classes."
    has_matrix = len(frames.table.classes) <= MAX_CLASSES
    return section(
        "confusions",
        TITLE,
        lead,
        _matrix(confusion_matrix(neighbors)) if has_matrix else None,
        tall(_pairs_table(pairs.head(MAX_CONFUSIONS))),
        element("h3", "The most similar mismatch of each"),
        entry_list((_example(frames, each) for each in pairs.head(MAX_EXAMPLES).itertuples()), side_by_side=True),
    )


def _matrix(counts: pd.DataFrame) -> Markup:
    fractions = counts.div(counts.sum(axis=1).clip(lower=1), axis=0).to_numpy()
    names = [str(name) for name in counts.columns]
    size = range(len(names))
    lines = [
        [names[row], *(_count(counts.iat[row, column], fractions[row, column], row == column) for column in size)]
        for row in size
    ]
    heads = [element("span", breakable(name), class_="head", title=name) for name in names]
    caption = "Queries by class (rows) and by the class of their nearest image (columns); dark: much of a class"
    return element("div", table(caption, ["class", *heads], lines, range(1, len(names) + 1)), class_="matrix")


def _count(count: Any, fraction: float, is_match: bool) -> Markup:
    """A cell of the matrix, the darker the larger its fraction of the class."""
    kind = "match" if is_match else "mismatch"
    style = f"--fraction:{fraction:.3f}" if count else None
    return element("span", f"{count:,}", class_=f"fraction {kind}", style=style)


def _pairs_table(pairs: pd.DataFrame) -> Markup:
    values = zip(pairs["label"], pairs["nearest_label"], pairs["num_queries"], pairs["fraction"], strict=True)
    lines = [(label, nearest, f"{count:,}", percent(fraction)) for label, nearest, count, fraction in values]
    columns = ("class of the query", "class of its nearest image", "queries", "of the class")
    return table(f"The {len(lines)} most frequent pairs", columns, lines, (2, 3))


def _example(frames: ImageFrames, pair: Any) -> Markup:
    images = [frames.query(pair.query), frames.neighbor(pair.query, pair.neighbor, 1, pair.similarity)]
    return entry(f"{pair.label} → {pair.nearest_label}", frame_list(images))
