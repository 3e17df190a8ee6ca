"""Images whose neighbors agree on another class."""

from __future__ import annotations

from vicinal.analysis import QueryNeighbors, label_errors
from vicinal.report.page.frames import ImageFrames, entry, entry_list
from vicinal.report.page.markup import Section, section

NUM_VOTES, MIN_VOTES = 5, 3
MAX_ERRORS = 12


def label_errors_section(frames: ImageFrames, neighbors: QueryNeighbors) -> Section:
    """The most certain errors, each with the neighbors that agree on another class."""
    errors = label_errors(neighbors, NUM_VOTES, MIN_VOTES)
    shown = errors.head(MAX_ERRORS)
    lead = (
        f"Queries whose {NUM_VOTES} nearest images are all of one other class (or as many as it has, "
        f"but at least {MIN_VOTES}): check the label. "
    )
    lead += f"There are {len(errors):,}" if len(errors) else "There are none"
    lead += f"; the {len(shown)} with the most similar neighbors are shown." if len(shown) < len(errors) else "."
    entries = [
        entry(
            f"Labeled as {each.label}; neighbors' label: {each.suggested_label}",
            frames.ranking(neighbors, each.row, each.num_votes),
        )
        for each in shown.itertuples()
    ]
    shown_errors = entry_list(entries, side_by_side=True) if entries else None
    return section("label-errors", "Probable label errors", lead, shown_errors)
