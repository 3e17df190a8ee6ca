"""Pictures, and self-contained HTML pages about an evaluation or a search."""

from typing import TYPE_CHECKING

from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal.report.contact_sheets import draw_grid, neighbor_grid
    from vicinal.report.matching_patches import MatchedPair, draw_matching_patches
    from vicinal.report.page.cleaning import write_cleaning_page
    from vicinal.report.page.comparison import write_comparison_page
    from vicinal.report.page.labeled import write_page
    from vicinal.report.page.proposals import write_proposals_page
    from vicinal.report.page.study import StudyTrial, write_study_page
    from vicinal.report.page.unlabeled import write_unlabeled_page
    from vicinal.report.plots import depth_curve, learning_curves

__all__ = [
    "MatchedPair",
    "StudyTrial",
    "depth_curve",
    "draw_grid",
    "draw_matching_patches",
    "learning_curves",
    "neighbor_grid",
    "write_cleaning_page",
    "write_comparison_page",
    "write_page",
    "write_proposals_page",
    "write_study_page",
    "write_unlabeled_page",
]

__getattr__, __dir__ = lazy_imports(__name__)
