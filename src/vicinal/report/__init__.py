"""Pictures, and self-contained HTML pages about an evaluation or a search."""

from typing import TYPE_CHECKING

from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal.report.contact_sheets import draw_grid as draw_grid
    from vicinal.report.contact_sheets import neighbor_grid as neighbor_grid
    from vicinal.report.matching_patches import MatchedPair as MatchedPair
    from vicinal.report.matching_patches import draw_matching_patches as draw_matching_patches
    from vicinal.report.page.cleaning import write_cleaning_page as write_cleaning_page
    from vicinal.report.page.comparison import write_comparison_page as write_comparison_page
    from vicinal.report.page.labeled import write_page as write_page
    from vicinal.report.page.proposals import write_proposals_page as write_proposals_page
    from vicinal.report.page.study import StudyTrial as StudyTrial
    from vicinal.report.page.study import write_study_page as write_study_page
    from vicinal.report.page.unlabeled import write_unlabeled_page as write_unlabeled_page
    from vicinal.report.plots import depth_curve as depth_curve
    from vicinal.report.plots import learning_curves as learning_curves


__getattr__, __dir__ = lazy_imports(__name__)
