"""A figure as SVG, PNG and PDF bytes that depend on the figure alone: no dates, no random ids, no program versions."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from reports.style import house_style

FORMATS = ("svg", "png", "pdf")
_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def render(figure: Figure) -> dict[str, bytes]:
    """The figure in each of `FORMATS`. The Agg canvas is chosen by hand: MPLBACKEND and DISPLAY are never asked."""
    FigureCanvasAgg(figure)
    rendered = {}
    with house_style():
        # Lay out once: the three formats differ in resolution alone, and the solver costs more than the drawing.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for kind in FORMATS:
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, metadata=_METADATA[kind])
            rendered[kind] = buffer.getvalue()
    return rendered
