"""Pages about evaluated embeddings: HTML files that contain everything they show and open from disk."""

from vicinal.report.page.comparison import EvaluatedEmbeddings, write_comparison_page
from vicinal.report.page.labeled import write_page
from vicinal.report.page.unlabeled import write_unlabeled_page

__all__ = ["EvaluatedEmbeddings", "write_comparison_page", "write_page", "write_unlabeled_page"]
