"""Images that are neighbors of very many others."""

from __future__ import annotations

from vicinal.analysis import QueryNeighbors, hubness
from vicinal.report.page.frames import ImageFrames, entry, entry_list, frame_list
from vicinal.report.page.markup import Markup, Section, note, percent, section

MAX_HUBS = 12


def hubs_section(frames: ImageFrames, neighbors: QueryNeighbors) -> Section:
    """The images that are in the most lists of neighbors."""
    result = hubness(neighbors)
    lead = (
        f"Images that are among the {neighbors.k} nearest of very many queries: on average an image is in "
        f"{result.mean:.1f} of these lists. Images in none of them: {result.num_antihubs:,}."
    )
    skewness = (
        f"Skewness of the number of lists: {result.skewness:.2f}. "
        "At 0 all images are found alike; far above 0 a few are in very many lists."
    )
    top = result.occurrences.query("k_occurrence > 1").head(MAX_HUBS)
    hubs = [_hub(frames, *each) for each in top.itertuples(index=False)]
    shown = entry_list([entry("In most lists", frame_list(hubs))]) if hubs else None
    return section("hubs", "Hubs", lead, note(skewness), shown)


def _hub(frames: ImageFrames, row: int, count: int, same_class_fraction: float) -> Markup:
    text = f"in {count:,} lists"
    if frames.table.has("label"):
        text += f", {percent(same_class_fraction)} of them of its class"
    return frames.frame(row, "plain", f"{count:,} lists", text)
