"""How similar pairs of one class are, and pairs of two classes, drawn as histograms."""

from __future__ import annotations

from vicinal.analysis import PairSimilarities
from vicinal.report.page.charts import bins_table, histogram_chart
from vicinal.report.page.markup import Markup, Section, figure, percent, section

LEAD = "How similar two images of one class are, and two of different classes; the less these overlap, the better."


def similarities_section(similarities: PairSimilarities) -> Section | None:
    """Histograms of positive and of negative pairs; None if there are no pairs of a kind."""
    chart = similarities_figure(similarities)
    return None if chart is None else section("similarities", "Similarities", LEAD, chart)


def similarities_figure(similarities: PairSimilarities) -> Markup | None:
    """The histograms, with means and overlap in the caption; None if there are no pairs of a kind."""
    if not len(similarities.positive) or not len(similarities.negative):
        return None
    histogram = similarities.histogram()
    groups = {"of one class": 100 * histogram.positive, "of two classes": 100 * histogram.negative}
    x_name, y_name = "cosine similarity", "% of the pairs"
    text = _text(similarities, histogram.overlap)
    numbers = bins_table("% of the pairs, by similarity", x_name, histogram.edges, groups, ".3f")
    return figure(histogram_chart(histogram.edges, groups, x_name, y_name, text), text, numbers)


def _text(similarities: PairSimilarities, overlap: float) -> str:
    positive, negative = similarities.positive, similarities.negative
    return (
        f"{len(positive):,} pairs of one class (mean {positive.mean():.3f}) and {len(negative):,} of two "
        f"(mean {negative.mean():.3f}), drawn at random. The histograms overlap by {percent(overlap)}."
    )
