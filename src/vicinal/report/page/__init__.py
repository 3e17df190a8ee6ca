"""Pages of evaluated sets: one HTML file each, which holds all it shows and opens from disk."""

from vicinal.report.page.comparison import write_comparison_page
from vicinal.report.page.evaluated import EvaluatedSet
from vicinal.report.page.single import write_page

__all__ = ["EvaluatedSet", "write_comparison_page", "write_page"]
