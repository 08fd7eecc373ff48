"""The wheel and the sdist: what they hold, and that the core alone, installed from them, compiles a recipe."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest
from conftest import LLAMA, ROOT
from packaging.requirements import Requirement

pytestmark = pytest.mark.slow
NOT_SOURCE = (
    ".git",
    ".venv",
    ".gpu-site",
    ".wheels",
    "__pycache__",
    "results",
    "build",
    "*.egg-info",
    ".*_cache",
    ".hypothesis",
    ".benchmarks",
)
PLACES = {
    "launcher": "launcher",
    "recipes_collection": "launcher/recipes_collection",
    "templates": "launcher/templates",
}
"""The folders of a checkout whose files are installed, and where they are installed."""
BUILD = "import setuptools.build_meta as build, sys; getattr(build, 'build_' + sys.argv[1])(sys.argv[2])"


@pytest.fixture(scope="session")
def checkout(tmp_path_factory) -> Path:
    """Return a copy of the checkout, since a build writes into the folder it builds from."""
    return shutil.copytree(ROOT, tmp_path_factory.mktemp("build") / "src", ignore=shutil.ignore_patterns(*NOT_SOURCE))


@pytest.fixture(scope="session")
def sdist(checkout, tmp_path_factory) -> Path:
    """Return the sdist of the checkout, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    (archive,) = built("sdist", checkout, folder)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return Path(str(archive).removesuffix(".tar.gz"))


@pytest.fixture(scope="session")
def wheel(sdist, tmp_path_factory) -> Path:
    """Return the wheel built from the sdist."""
    (path,) = built("wheel", sdist, tmp_path_factory.mktemp("wheel"))
    return path


@pytest.fixture(scope="session")
def environment(wheel, tmp_path_factory) -> Path:
    """Return the programs of a fresh virtual environment that has the wheel and what its core requires, no more."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    programs = folder / "bin"
    (packages,) = folder.glob("lib/python*/site-packages")
    for source in core_files():
        if not (packages / source.name).exists():
            (packages / source.name).symlink_to(source)
    install = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(wheel)]
    run(sys.executable, "-m", "pip", "--python", str(programs / "python"), *install, cwd=folder)
    return programs


def built(kind: str, source: Path, folder: Path) -> list[Path]:
    """Build with the setuptools of this environment, so without a network; return the new files."""
    run(sys.executable, "-c", BUILD, kind, str(folder), cwd=source)
    return [*folder.iterdir()]


def run(*command: str, cwd: Path) -> str:
    """Run a program that inherits no paths of this checkout; return its output."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def core_files() -> Iterator[Path]:
    """Yield the top-level files and folders of every package that the launcher requires without an extra."""
    seen, waiting = {"recipe-launcher"}, ["recipe-launcher"]
    while waiting:
        for text in metadata.requires(waiting.pop()) or ():
            requirement = Requirement(text)
            name = re.sub(r"[-_.]+", "-", requirement.name).lower()
            if name not in seen and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
                seen.add(name)
                waiting.append(name)
                found = metadata.distribution(name)
                tops = {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}
                yield from (Path(str(found.locate_file(top))) for top in sorted(tops))


def contents(wheel: Path) -> dict[str, int]:
    """Return the files of a wheel with their checksums."""
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.CRC for entry in archive.infolist()}


def about(wheel: Path) -> Message:
    """Return the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel, checkout):
    expected = {
        f"{place}/{path.relative_to(checkout / folder).as_posix()}"
        for folder, place in PLACES.items()
        for path in (checkout / folder).rglob("*")
        if path.is_file()
    }
    assert {name for name in contents(wheel) if ".dist-info/" not in name} == expected
    assert "launcher/py.typed" in expected


def test_the_wheel_names_its_licence_and_carries_the_text(wheel):
    assert about(wheel)["License-Expression"] == "Apache-2.0"
    assert about(wheel)["Author"] == "the project's authors"
    assert [name for name in contents(wheel) if name.endswith("/licenses/LICENSE")]
    assert (ROOT / "LICENSE").read_text(encoding="utf-8").split()[:4] == ["Apache", "License", "Version", "2.0,"]


def test_the_sdist_builds_the_wheel_that_the_checkout_builds(wheel, checkout, tmp_path):
    (direct,) = built("wheel", checkout, tmp_path)
    assert contents(direct) == contents(wheel)


def test_the_sdist_is_a_complete_checkout(sdist, checkout):
    ours, theirs = (
        {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()} for folder in (checkout, sdist)
    )
    left_out = {path for path in ours - theirs if path.parts[0] not in (".ci", ".github", "build")}
    assert {str(path) for path in left_out if not path.match("*.egg-info/*")} <= {
        ".gitignore",
        ".pre-commit-config.yaml",
    }


def test_the_installed_core_compiles_a_recipe_from_an_empty_folder(environment, tmp_path):
    run(
        str(environment / "recipes"),
        "render",
        LLAMA,
        "++recipes.elastic_policy.is_elastic=true",
        "cluster=k8s",
        cwd=tmp_path,
    )
    (bundle,) = (tmp_path / "results").iterdir()
    assert {"bundle.json", "plan.json"} <= {path.name for path in bundle.iterdir()}
    assert [*bundle.rglob("*.yaml")]


def test_the_installed_core_is_the_wheel_without_torch(environment, tmp_path):
    text = "import importlib.util, launcher; print(launcher.__file__, importlib.util.find_spec('torch'))"
    file, torch = run(str(environment / "python"), "-c", text, cwd=tmp_path).split()
    assert file.startswith(str(environment.parent)) and torch == "None"


def test_the_installed_core_lists_the_recipes_of_the_checkout(environment, tmp_path, recipes):
    theirs, ours = run(str(environment / "recipes"), "list", "--json", cwd=tmp_path), recipes("list", "--json")[1]
    assert [entry["name"] for entry in json.loads(theirs)] == [entry["name"] for entry in json.loads(ours)]


def test_the_readme_states_the_size_of_the_wheel(wheel):
    stated = re.search(
        r"\| the wheel itself \| ([\d.]+) MB \| ([\d.]+) MB \|", (ROOT / "README.md").read_text("utf-8")
    )
    with zipfile.ZipFile(wheel) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    sizes = (wheel.stat().st_size / 1e6, unpacked / 1e6)
    assert tuple(map(float, stated.groups())) == pytest.approx(sizes, rel=0.15)
