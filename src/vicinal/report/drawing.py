"""Colors, axes and files of all pictures."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import TABLEAU_COLORS
from matplotlib.figure import Figure

from vicinal.utils.errors import InputError
from vicinal.utils.files import write_bytes

RIGHT, WRONG, UNKNOWN, QUERY = "#1a9850", "#d73027", "#9aa0a6", "#30343b"
INK, PALE, EMPTY = "#24272c", "#6b7178", "#eceef0"
DPI = 150
COLORS: tuple[str, ...] = (  # dark enough for thin lines on white
    *map(str, TABLEAU_COLORS.values()),
    *("#1a237e", "#00574b", "#8d0f2e", "#b8860b", "#4a2c8f", "#3f6b00", "#c2185b", "#000000", "#0097e6", "#a0522d"),
)

QUIET: dict[str, Any] = {"frameon": False, "fontsize": 8, "labelcolor": INK, "borderaxespad": 0.0}  # of legends


def tidy(axes: Axes, name: str) -> None:
    """Remove clutter from the axes, and name the y axis."""
    axes.set_ylabel(name, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e6e9", linewidth=0.8)
    axes.tick_params(colors=PALE, labelsize=8)


def picture_format(path: Path) -> str:
    """The format that a file's suffix stands for."""
    form, known = path.suffix.lower().removeprefix("."), FigureCanvasAgg.get_supported_filetypes()
    if form not in known:
        raise InputError(f"{path}: pictures end in .{', .'.join(sorted(known))}")
    return form


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the file's suffix; the file is written as a whole or not at all."""
    canvas, form = FigureCanvasAgg(figure), picture_format(path)
    buffer = BytesIO()
    try:
        figure.savefig(buffer, format=form, facecolor="white")
    except (ValueError, OSError) as error:  # raised for a picture that is too large for its format
        width, height = canvas.get_width_height()
        raise InputError(
            f"{path}: a picture of {width} x {height} pixels cannot be written as {form} ({error}); "
            "use .png, or draw fewer images"
        ) from None
    write_bytes(path, buffer.getvalue())
