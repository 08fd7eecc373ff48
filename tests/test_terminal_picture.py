"""The README's picture of a terminal is what the program prints now."""

import html
import os
import re
import shlex
from pathlib import Path

import pytest
import typer
from conftest import ROOT
from terminals import on_a_terminal

from launcher.api.generated import reference, terminal_picture
from launcher.cli import main as cli

pytestmark = pytest.mark.slow
PICTURE = reference.PICTURE
GROUP = typer.main.get_command(cli.app)
CELL, LINE = 12.2, 24.4
"""Width of a character and height of a line, in the picture's own units."""
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def texts(svg):
    """Return the lines that a picture shows."""
    rows = {}
    for x, y, text in re.findall(r'<text class="plan-r\d+" x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', svg, re.S):
        row = rows.setdefault(round(float(y) / LINE), "")
        begin = round(float(x) / CELL)
        rows[round(float(y) / LINE)] = row.ljust(begin) + html.unescape(text).replace("\xa0", " ").rstrip("\n")
    return [rows.get(number, "").rstrip() for number in range(min(rows), max(rows) + 1)]


def test_the_picture_shows_the_command_and_what_it_prints_on_a_real_terminal():
    shown = "\n".join(texts((ROOT / PICTURE).read_text(encoding="utf-8")))
    words = shlex.split(terminal_picture.COMMAND.replace("\\\n", ""))[1:]
    printed = ESCAPES.sub("", on_a_terminal(*words, COLUMNS=str(terminal_picture.WIDTH), NO_COLOR="")).replace(
        "\r\n", "\n"
    )
    name = printed.split()[0]
    lines = [line.rstrip() for line in printed.replace(name, f"{name[:-5]}x068q").rstrip("\n").splitlines()]
    assert shown == "\n".join([f"$ {terminal_picture.COMMAND}", *lines])


def test_recipes_docs_makes_the_picture_and_finds_an_old_one(tmp_path):
    pages = reference.pages(GROUP)
    assert (ROOT / PICTURE).read_text(encoding="utf-8") == pages[PICTURE], "run `recipes docs`"
    reference.write(tmp_path, GROUP)
    assert reference.stale(tmp_path, GROUP) == []
    (tmp_path / PICTURE).write_text(pages[PICTURE].replace("uneven", "odd"), encoding="utf-8")
    assert reference.stale(tmp_path, GROUP) == [PICTURE]


def test_the_picture_has_the_colours_of_the_terminal_and_loads_nothing():
    svg = (ROOT / PICTURE).read_text(encoding="utf-8")
    assert len(re.findall(r"\.plan-r\d+ \{ fill: #", svg)) >= 4
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", svg) == []


def test_drawing_leaves_the_environment_as_it_was(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("COLUMNS", raising=False)
    before = dict(os.environ)
    assert "\x1b[" in terminal_picture.printed(GROUP)
    assert dict(os.environ) == before


def test_the_readme_has_the_picture_and_its_command():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"]({PICTURE})" in readme and terminal_picture.COMMAND in readme


def test_a_cluster_file_is_written_before_the_command_of_the_picture_needs_it(tmp_path, monkeypatch):
    reference.write(tmp_path, GROUP)
    file = Path("recipes_collection/cluster/k8s.yaml")
    (tmp_path / file).write_text("", encoding="utf-8")

    def fails_without_the_file(_group):
        assert (tmp_path / file).read_text(encoding="utf-8")
        return (ROOT / PICTURE).read_text(encoding="utf-8")

    monkeypatch.setattr(reference, "plan_picture", fails_without_the_file)
    assert reference.stale(tmp_path, GROUP) == [file]
    assert reference.write(tmp_path, GROUP) == [file]
    assert reference.stale(tmp_path, GROUP) == []
