"""Figures of matplotlib in files.

Its import, and errors for people where it is missing or a file cannot be written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .diagnostics import CuirError


def load_pyplot(command: str, subject: str = "a plot") -> Any:
    """Import matplotlib.pyplot, drawing into files.

    command: draws the plot once matplotlib is installed. Raises CuirError U120 without it.
    """
    try:
        import matplotlib
    except ImportError:
        raise CuirError.of(
            "U120",
            f"{subject} needs matplotlib, which is not installed",
            hint=f"pip install 'cubridge[bench]' (or matplotlib), then `{command}`",
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save_figure(figure: Any, path: Path, dpi: int = 130) -> None:
    """Write a figure as PNG or SVG, by the name's ending, and close it.

    Raises CuirError U108 if it cannot be written.
    """
    from matplotlib import pyplot

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=dpi)
    except (OSError, ValueError) as error:
        raise CuirError.of(
            "U108", f"cannot write {path}: {getattr(error, 'strerror', None) or error}", hint="a name that ends in .png or .svg"
        ) from None
    finally:
        pyplot.close(figure)
