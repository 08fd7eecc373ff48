"""Lines on standard output and standard error, coloured on a terminal. Imports rich only then."""

import os
import shlex
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from launcher.common import text_table
from launcher.common.problems import Notice, Problem
from launcher.common.texts import counted, plain

_SLOW_S = 2

if TYPE_CHECKING:
    from rich.console import Console


_INDENT_OF_PROBLEM, _INDENT_OF_NOTICE = " " * 7, " " * 11
"""Indents of the further lines of a wrapped line: slightly deeper than a Problem's line; under a notice's message."""


@contextmanager
def without_widgets() -> Iterator[None]:
    """Hide what tqdm, imported in the block, says in a notebook that has no ipywidgets."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "IProgress not found")
        yield


@contextmanager
def slow(text: str) -> Iterator[None]:
    """Print a line on standard error if the block takes longer than two seconds."""
    from threading import Timer  # most blocks are in commands that are fast

    timer = Timer(_SLOW_S, say, (text, "dim"), {"stderr": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def say(text: str, style: str = "", *, stderr: bool = False) -> None:
    """Print a line, in `style` (as rich names it) on a terminal with colours; without control sequences in it."""
    say_all([(text, style)], stderr=stderr)


def say_lines(lines: Sequence[str]) -> None:
    """Print many lines without a style at once."""
    lines = [plain(line) for line in lines]
    write = getattr(sys.stdout, "write_lines", None)  # that of `redaction`
    if write:
        write(lines)
        sys.stdout.flush()
    else:
        print("\n".join(lines), flush=True)


def say_all(lines: Iterable[tuple[str, str]], *, stderr: bool = False) -> None:
    """Print lines, each with its style; they share one console, which is slow to create."""
    stream, console = sys.stderr if stderr else sys.stdout, None
    for text, style in lines:
        if style and _shows_colours(stream):
            console = console or _console(stderr=stderr)
            console.print(plain(text), style=style, markup=False)
        else:
            print(plain(text), file=stream)
    stream.flush()


def width() -> int | None:
    """Return the columns of the terminal; None if output goes elsewhere, where nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _shows_colours(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that accepts escape codes.

    Source: https://no-color.org
    """
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _console(*, stderr: bool) -> "Console":
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def show_problems(problems: tuple[Problem, ...], outcome: str = "nothing was written or submitted") -> None:
    """Print every Problem on standard error, then the outcome."""
    for problem in problems:
        show_problem(str(problem))
    say(f"{counted(len(problems), 'problem')}; {outcome}", stderr=True)


def show_problem(text: str) -> None:
    """Print a Problem on standard error, its first line highlighted."""
    head, *rest = text.splitlines()
    say(head, "bold red", stderr=True)
    for line in rest:
        for part in _wrapped(line, _INDENT_OF_PROBLEM, sys.stderr):
            say(part, stderr=True)


def show_notice(*notices: Notice, stderr: bool = False) -> None:
    """Print notices."""
    for notice in notices:
        for line in _wrapped(str(notice), _INDENT_OF_NOTICE, sys.stderr if stderr else sys.stdout):
            say(line, "yellow", stderr=stderr)


def say_fitted(text: str, style: str = "") -> None:
    """Print a line, wrapped between words on a narrow terminal."""
    for part in _wrapped(text, "  ", sys.stdout):
        say(part, style)


def say_wrapped(head: str, text: str, style: str = "") -> None:
    """Print a head and a text: in one line if it fits or there is no terminal, else the text below it, indented."""
    line, columns = f"{head}  {text}", width()
    if columns is None or len(line) <= columns:
        say(line, style)
    else:
        _say_below(head, text, style, columns)


def _say_below(head: str, text: str, style: str, columns: int) -> None:
    """Print a head, and below it a text that is indented and wrapped between words to fit so many columns."""
    indent = _INDENT_OF_NOTICE
    say(head, style)
    for part in textwrap.wrap(text, columns, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False):
        say(part, style)


def show_table(head: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()) -> None:
    """Print rows as aligned columns.

    On a terminal too narrow for a row, its last cell moves below it; on one too narrow for the other columns, all
    cells but the first two do, each with its column's name; the heading has those of the first two.
    """
    first, *lines = text_table.table([head, *rows])
    columns, begin = width(), first.rindex(head[-1])
    if columns is None:
        say_lines([first, *lines])  # styles are for terminals
        return
    is_narrow = max((len(line[:begin].rstrip()) for line in lines), default=0) > columns
    if is_narrow:
        say("  ".join(head[:2]), "dim")
    else:
        say(first if len(first) <= columns else first[:begin].rstrip(), "dim")
    for line, cells, style in zip(lines, rows, styles or [""] * len(lines), strict=True):
        if is_narrow:
            bare = [cell.strip() for cell in cells]
            named = (f"{name.strip()} {cell}" for name, cell in zip(head[2:], bare[2:], strict=True) if cell)
            _say_below("  ".join(bare[:2]), ", ".join(named), style, columns)
        elif len(line) <= columns or not cells[-1]:
            say(line, style)
        else:
            _say_below(line[:begin].rstrip(), cells[-1], style, columns)


def _wrapped(line: str, indent: str, stream: TextIO) -> list[str]:
    """Return a line in pieces that fit a terminal, cut between words; uncut for other streams."""
    if not stream.isatty() or len(line) <= (columns := shutil.get_terminal_size().columns):
        return [line]
    return textwrap.wrap(line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


@contextmanager
def _passing() -> Iterator[Callable[[str], None]]:
    """Yield a function that prints a text in place of the last one, erased at the end; on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda _text: None
        return
    widest = 0

    def write(text: str) -> None:
        nonlocal widest
        widest = max(widest, len(text))
        print(f"\r{text}", end="", file=sys.stderr, flush=True)

    try:
        yield write
    finally:
        write(" " * widest + "\r")


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows how many are done, and of how many, on a terminal only."""
    with _passing() as write:
        yield lambda done, total: write(f"{done} of {total} {what}")


@contextmanager
def while_waiting(what: str) -> Iterator[None]:
    """Show a line until the block ends, on a terminal only."""
    with _passing() as write:
        write(plain(what))
        yield


def shown_path(path: Path) -> str:
    """Return the shortest form of a path from the current folder."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def typed_path(path: Path) -> str:
    """Return the shortest form of a path from the current folder, quoted for a shell."""
    return shlex.quote(shown_path(path))
