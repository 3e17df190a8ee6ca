"""Pictures, and the self-contained HTML page about an evaluation."""

from typing import TYPE_CHECKING

from vicinal.utils.lazy import lazy_imports

if TYPE_CHECKING:
    from vicinal.report.page.comparison import write_comparison_page
    from vicinal.report.page.single import write_page
    from vicinal.report.plots import learning_curves, neighbor_grid
    from vicinal.report.refiner_depths import depth_curve, depth_curves

__all__ = [
    "depth_curve",
    "depth_curves",
    "learning_curves",
    "neighbor_grid",
    "write_comparison_page",
    "write_page",
]

__getattr__, __dir__ = lazy_imports(__name__)
