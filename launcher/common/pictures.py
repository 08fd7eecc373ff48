"""How pictures look and are saved. matplotlib is imported when one is drawn."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.common import os_errors
from launcher.common.problems import fail

FORMATS = (".png", ".svg")
INK, QUIET = "#24292f", "#6e7781"
_STYLE = {
    "svg.fonttype": "path",
    "text.parse_math": False,  # a job's name is no formula
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#c8cdd2",
    "xtick.color": QUIET,
    "ytick.color": QUIET,
}


def save(path: Path, salt: str, figure: Callable[[], Any]) -> None:
    """Draw a picture to a file whose suffix names the format. The same figure and salt give the same bytes.

    Args:
        path: The file.
        salt: What the ids inside an SVG are made from.
        figure: Makes the matplotlib figure.

    Raises:
        ProblemsFound: The suffix is none of `FORMATS`, matplotlib is missing, or the file cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise fail("E709", str(path), "is no picture this program draws", allowed=", ".join(FORMATS))
    if importlib.util.find_spec("matplotlib") is None:
        raise fail("E709", str(path), "drawing needs matplotlib", remedy="pip install matplotlib")
    import matplotlib

    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": salt}):
        made = figure()
        try:
            made.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
        except OSError as error:
            raise os_errors.refused("E709", str(path), error, path) from error
