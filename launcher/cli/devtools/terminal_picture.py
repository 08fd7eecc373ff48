"""Pictures of a command's terminal output: SVG by rich, PNG by matplotlib.

Both libraries are imported when a picture is drawn. The PNG looks the same in every viewer; an SVG depends on the
viewer's fonts.
"""

import contextlib
import io
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.common import pictures
from launcher.common.problems import fail

if TYPE_CHECKING:
    from rich.style import Style
    from rich.terminal_theme import TerminalTheme
    from rich.text import Text

COMMAND = (
    "recipes plan fine-tuning/llama/llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora \\\n"
    "    ++recipes.elastic_policy.is_elastic=true cluster=k8s"
)
"""The command of the README's picture, as typed."""
WIDTH = 100
"""Columns of the terminal."""
_SUFFIX = re.compile(r"(?<=-)[a-z0-9]{5}(?=   )")
"""The random suffix of a job's name, in a plan's first line."""
_FIXED = "x068q"
_VARIABLES = {"TERM": "xterm-256color", "COLUMNS": str(WIDTH), "COLORTERM": "truecolor", "LINES": "50"}
_CELL, _DPI = 18, 144
"""Pixels per column of the PNG, and its dots per inch."""
_ADVANCE = 1233 / 2048
"""Width of each character of DejaVu Sans Mono relative to its font size."""
_LINE, _BASELINE, _BAR, _MARGIN = 2.1, 0.75, 3.0, 1.0
"""Height of a line, its baseline as a part of it, the window's bar and margin, in columns."""
_BUTTONS = ("#ff5f57", "#febc2e", "#28c840")
_FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
    <style>
    .{unique_id}-matrix {{
        font-family: monospace;
        font-size: {char_height}px;
        line-height: {line_height}px;
    }}
    {styles}
    </style>
    <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
    </clipPath>
    {lines}
    </defs>
    {chrome}
    <g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix" xml:space="preserve">
    {matrix}
    </g>
    </g>
</svg>
"""
"""rich's own, without a font that a browser would have to load."""


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def plan_picture() -> str:
    """Return the SVG of COMMAND and its output. The same plan yields the same bytes.

    Raises:
        ProblemsFound: The command fails.
    """
    from rich.console import Console

    console = Console(record=True, file=io.StringIO(), width=WIDTH, force_terminal=True, color_system="truecolor")
    console.print(_shown(), soft_wrap=True, end="")
    svg = console.export_svg(title="", code_format=_FORMAT, unique_id="plan")
    return "\n".join(line.rstrip() for line in svg.splitlines())


def draw_plan(path: Path, svg: str) -> None:
    """Draw COMMAND and its output as a PNG.

    Args:
        path: The file.
        svg: The same as an SVG; embedded in the file for `pictures.shows`.

    Raises:
        ProblemsFound: The command fails, or the file cannot be drawn.
    """
    text = _shown()
    pictures.save(path, "plan", lambda: _figure(text), source=svg)


def _shown() -> "Text":
    from rich.text import Text

    return Text.assemble((f"$ {COMMAND}\n", "bold cyan"), Text.from_ansi(printed().rstrip("\n")))


def _figure(text: "Text") -> Any:
    """Return a terminal window, one matplotlib text for each run of characters with the same style."""
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.terminal_theme import SVG_EXPORT_THEME as THEME

    console, lines = Console(width=WIDTH, color_system="truecolor"), text.split("\n")
    width, height = WIDTH + 2 * _MARGIN, len(lines) * _LINE + _BAR + _MARGIN
    figure = Figure(
        figsize=(width * _CELL / _DPI, height * _CELL / _DPI), dpi=_DPI, facecolor=THEME.background_color.hex
    )
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    for number, colour in enumerate(_BUTTONS):
        axes.plot(2 * _MARGIN + 2 * number, _BAR / 2, "o", color=colour, markersize=_CELL * 72 / _DPI)
    style: dict[str, Any] = {"family": "DejaVu Sans Mono", "fontsize": _CELL / _ADVANCE * 72 / _DPI, "va": "baseline"}
    for row, line in enumerate(lines):
        column = 0
        for run in line.render(console):
            axes.text(
                _MARGIN + column,
                _BAR + (row + _BASELINE) * _LINE,
                run.text.rstrip("\n"),
                color=_colour(run.style, THEME),
                fontweight="bold" if run.style and run.style.bold else "normal",
                **style,
            )
            column += run.cell_length
    return figure


def _colour(style: "Style | None", theme: "TerminalTheme") -> str:
    """Return the colour of a style, dimmed towards the background as rich's SVG does."""
    from rich.color import blend_rgb

    known = style.color if style else None
    colour = known.get_truecolor(theme) if known and not known.is_default else theme.foreground_color
    return (blend_rgb(colour, theme.background_color, 0.4) if style and style.dim else colour).hex


def printed() -> str:
    """Return what COMMAND prints on a terminal, escape codes included, its job's name with a fixed suffix.

    Raises:
        ProblemsFound: The command fails.
    """
    from launcher.cli import main

    with _terminal() as output:
        code = main.run(shlex.split(COMMAND.replace("\\\n", ""))[1:])
    if code:
        raise fail("E805", "docs/pictures/plan.svg", "the command of the picture fails", value=COMMAND)
    return _SUFFIX.sub(_FIXED, output.getvalue(), count=1)


@contextlib.contextmanager
def _terminal() -> Iterator[io.StringIO]:
    """Capture what the block prints, as if to a colour terminal of WIDTH columns."""
    known = {name: os.environ.get(name) for name in (*_VARIABLES, "NO_COLOR")}
    os.environ |= _VARIABLES
    os.environ.pop("NO_COLOR", None)
    try:
        with contextlib.redirect_stdout(_Terminal()) as output:
            yield output
    finally:
        for name, value in known.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
