"""Style and saving of pictures. matplotlib is imported when one is drawn."""

import hashlib
import importlib.util
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from launcher.common import os_errors
from launcher.common.problems import fail

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
INK, QUIET = "#24292f", "#6e7781"
_DOTS_PER_INCH = 150
_FONT, _FONTS = "'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif"
"""The font of measuring, and those that a viewer of an SVG takes: letters of Verdana are as wide."""
_STYLE: dict[Any, object] = {  # matplotlib types its keys as a Literal of every setting
    "svg.fonttype": "none",  # text stays text: letters as outlines would be most of the file
    "text.parse_math": False,  # a job's name is not a formula
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#c8cdd2",
    "xtick.color": QUIET,
    "ytick.color": QUIET,
}


def save(path: Path, salt: str, drawn: Callable[[], "Figure"], source: str | None = None) -> None:
    """Draw a picture to a file whose suffix names the format. The same figure and salt give the same bytes.

    Args:
        salt: Seed of the ids inside an SVG.
        drawn: Draws the matplotlib figure.
        source: The text that the picture shows. Its digest is kept in the file, for `shows`.

    Raises:
        ProblemsFound: The suffix is none of `FORMATS`, matplotlib is missing, or the file cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise fail("E709", str(path), "is not a supported picture format", allowed=", ".join(FORMATS))
    with os_errors.refusing("E709", str(path), path):
        path.write_bytes(drawing(path.suffix.lower(), salt, drawn, source, str(path)))


def drawing(
    form: str, salt: str, drawn: Callable[[], "Figure"], source: str | None = None, place: str = "picture"
) -> bytes:
    """Return the bytes of a picture, one of `FORMATS`; the other arguments are those of `save`.

    Args:
        place: What lacks matplotlib, for its Problem.

    Raises:
        ProblemsFound: matplotlib is missing.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise fail("E709", place, "drawing needs matplotlib", remedy="pip install matplotlib")
    import matplotlib

    is_svg = form == ".svg"
    # Values that change with the date or the library are left out.
    metadata: dict[str, str | None] = {"Date": None} if is_svg else {}
    if source is not None:
        metadata["Identifier" if is_svg else "Source"] = _digest(source)
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": salt}):
        drawn().savefig(written := io.BytesIO(), format=form.removeprefix("."), metadata=metadata)
    found = written.getvalue()
    return found.replace(_FONT.encode(), _FONTS.encode()) if is_svg else found


def svg(salt: str, drawn: Callable[[], "Figure"]) -> str:
    """Return a picture as an SVG element. Raises and takes what `drawing` does."""
    text = drawing(".svg", salt, drawn).decode()
    return text[text.index("<svg") :]


def figure(width: float, height: float, **more: Any) -> "Figure":
    """Return an empty figure of a size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=_DOTS_PER_INCH, facecolor="white", **more)


def bare(axes: "Axes", grid: Literal["x", "y", "both"] | None = None) -> None:
    """Leave the frame open at the top and the right; lay a grid below the curves."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(axis=grid, color="#eaecef", linewidth=0.8)


def shows(path: Path, source: str) -> bool:
    """Return whether a file is a picture that was drawn from a text, by the digest that `save` keeps in it."""
    return path.is_file() and _digest(source).encode() in path.read_bytes()


def _digest(source: str) -> str:
    return f"sha256:{hashlib.sha256(source.encode()).hexdigest()}"


def count_axis(axis: Any) -> None:
    """Give an axis of counts ticks at whole numbers only, however few of them it shows."""
    from matplotlib.ticker import MaxNLocator  # start-up time: only a picture needs it

    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
