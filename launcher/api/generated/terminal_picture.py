"""The picture of a command's terminal output, an SVG by rich."""

import contextlib
import io
import os
import re
import shlex

import click

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


def plan_picture(group: click.Group) -> str:
    """Return the SVG of COMMAND, one of a group's, and its output. The same plan yields the same bytes."""
    from rich.console import Console  # start-up time: only this picture needs rich
    from rich.text import Text

    output = Text.from_ansi(printed(group).rstrip("\n"))
    console = Console(record=True, file=io.StringIO(), width=WIDTH, force_terminal=True, color_system="truecolor")
    console.print(Text.assemble((f"$ {COMMAND}\n", "bold cyan"), output), soft_wrap=True, end="")
    svg = console.export_svg(title="", code_format=_FORMAT, unique_id="plan")
    return "\n".join(line.rstrip() for line in svg.splitlines())


def printed(group: click.Group) -> str:
    """Return what COMMAND prints on a terminal, escape codes included, its job's name with a fixed suffix."""
    from unittest import mock  # start-up time

    with mock.patch.dict(os.environ, _VARIABLES), contextlib.redirect_stdout(_Terminal()) as output:
        os.environ.pop("NO_COLOR", None)
        group.main(shlex.split(COMMAND.replace("\\\n", ""))[1:], prog_name="recipes", standalone_mode=False)
    return _SUFFIX.sub(_FIXED, output.getvalue(), count=1)
