"""How far pairs of one class stand apart from pairs of two, drawn."""

from __future__ import annotations

from vicinal.report.page.charts import bins_table, histogram_chart
from vicinal.report.page.markup import Markup, Section, figure, percent, section
from vicinal.report.page.pairs import PairSimilarities, histogram

LEAD = "How similar two images of one class are, and two of different classes; the less these overlap, the better."


def similarities_section(similarities: PairSimilarities) -> Section | None:
    """Histograms of pairs of one class and of two; None where there are none of a kind."""
    drawn = similarities_figure(similarities)
    return None if drawn is None else section("similarities", "Similarities", LEAD, drawn)


def similarities_figure(similarities: PairSimilarities) -> Markup | None:
    """The histograms, with means and overlap below."""
    if not len(similarities.positive) or not len(similarities.negative):
        return None
    counted = histogram(similarities)
    groups = {"of one class": 100 * counted.positive, "of two classes": 100 * counted.negative}
    x_name, y_name = "cosine similarity", "% of the pairs"
    text = _text(similarities, counted.overlap)
    numbers = bins_table("% of the pairs, by similarity", x_name, counted.edges, groups, ".3f")
    return figure(histogram_chart(counted.edges, groups, x_name, y_name, text), text, numbers)


def _text(similarities: PairSimilarities, overlap: float) -> str:
    positive, negative = similarities
    return (
        f"{len(positive):,} pairs of one class (mean {positive.mean():.3f}) and {len(negative):,} of two "
        f"(mean {negative.mean():.3f}), drawn by chance. The histograms overlap by {percent(overlap)}."
    )
