"""docs/architecture.md, its picture and CONTRIBUTING.md describe the packages that exist."""

import re

import pytest
from conftest import ROOT

from launcher.cli.devtools import architecture, reference
from launcher.common import pictures

PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PACKAGES = {path.parent.name for path in (ROOT / "launcher").glob("*/__init__.py")}


def test_every_package_has_a_place_in_the_order_of_imports():
    placed = [package.name for layer in architecture.outline().layers for package in layer]
    assert len(placed) == len(set(placed))
    assert PACKAGES | {"pipeline"} == set(placed)


def test_every_package_says_what_it_is_for():
    for layer in architecture.outline().layers:
        for package in layer:
            assert len(package.purpose.split()) > 3, package


def test_the_flow_begins_with_overrides_and_has_a_stage_between_values():
    flow = architecture.outline().flow
    assert flow[0] == "overrides" and len(flow) % 2 == 1 and "Bundle" in flow[::2]


@pytest.mark.slow
def test_the_picture_shows_the_packages_of_now(tmp_path):
    picture = ROOT / reference.ARCHITECTURE
    assert pictures.shows(picture, repr(architecture.outline())), "run `recipes docs`"
    architecture.draw(tmp_path / picture.name)
    assert (tmp_path / picture.name).read_bytes() == picture.read_bytes(), "run `recipes docs`"
    assert f"](pictures/{picture.name})" in PAGE


def test_the_tree_of_the_page_has_every_package():
    (tree,) = re.findall(r"```text\n(launcher/.*?)```", PAGE, re.S)
    assert {name.rstrip("/") for name in re.findall(r"^  (\w+/)", tree, re.M)} == PACKAGES


@pytest.mark.parametrize("page", [PAGE, GUIDE], ids=["architecture", "contributing"])
def test_files_that_the_pages_name_exist(page):
    named = re.findall(r"`((?:launcher|tests|docs|templates|recipes_collection|examples)/[\w/.-]+)`", page)
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []
