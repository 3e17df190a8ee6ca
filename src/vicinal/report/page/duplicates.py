"""Images that are nearly the same; those with two labels first."""

from __future__ import annotations

from vicinal.analysis import QueryNeighbors, near_duplicates
from vicinal.analysis.duplicates import DUPLICATE_SIMILARITY
from vicinal.report.page.frames import ImageFrames, entry, entry_list, frame_list
from vicinal.report.page.markup import Markup, Section, section
from vicinal.utils.wording import counted

MAX_PAIRS = 24


def duplicates_section(frames: ImageFrames, neighbors: QueryNeighbors) -> Section:
    """Pairs with two labels, then the others, the most similar pair first."""
    pairs = near_duplicates(neighbors).sort_values("same_label", kind="stable")
    lead = (
        f"Images that are probably the same: among the {neighbors.k} nearest of each query, "
        f"more similar than {DUPLICATE_SIMILARITY}. "
    )
    if pairs.empty:
        return section("duplicates", "Duplicates", f"{lead}There are none.")
    shown = pairs.head(MAX_PAIRS)
    is_labeled = frames.table.has("label")
    lead += f"There are {counted(len(pairs), 'pair')}"
    lead += f", {(~pairs['same_label']).sum():,} with two labels." if is_labeled else "."
    if len(shown) < len(pairs):
        lead += f" {len(shown)} are shown, {'those with two labels' if is_labeled else 'the most similar'} first."
    entries = (_pair(frames, each.first, each.second, each.similarity) for each in shown.itertuples())
    return section("duplicates", "Duplicates", lead, entry_list(entries, side_by_side=True))


def _pair(frames: ImageFrames, first: int, second: int, similarity: float) -> Markup:
    images = [frames.frame(first, "query", "first", "first of two"), frames.neighbor(first, second, 1, similarity)]
    return entry(f"Similarity {similarity:.5f}", frame_list(images))
