"""docs/architecture.md, its picture and CONTRIBUTING.md describe the packages that exist."""

import re

import pytest
from conftest import ROOT
from matplotlib.patches import FancyBboxPatch

from launcher.api.generated import architecture, reference
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


@pytest.mark.slow
def test_texts_of_the_picture_overlap_neither_each_other_nor_the_edge_of_a_box():
    figure = architecture._figure()
    figure.draw_without_rendering()
    (axes,) = figure.axes
    texts = {each.get_text(): each.get_window_extent() for each in axes.texts if each.get_text()}
    boxes = [patch.get_window_extent() for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    assert len(texts) > len(boxes) > 15
    for text, extent in texts.items():
        assert figure.bbox.x0 <= extent.x0 and extent.x1 <= figure.bbox.x1, text
        assert [other for other, its in texts.items() if other != text and extent.overlaps(its)] == [], text
        centre = (extent.x0 + extent.x1) / 2, (extent.y0 + extent.y1) / 2
        for box in (box for box in boxes if box.contains(*centre)):
            assert box.y0 <= extent.y0 and extent.y1 <= box.y1 and box.x0 <= extent.x0 and extent.x1 <= box.x1, text
