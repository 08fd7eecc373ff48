"""The wheel and the sdist: what they hold, and that the core alone, installed from them, compiles a recipe."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import venv
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from email.message import Message
from email.parser import Parser
from importlib import metadata
from pathlib import Path, PurePosixPath

import pytest
from commands import run as run_command
from conftest import LLAMA, ROOT
from packaging.requirements import Requirement
from page_commands import A_JOB, Command, commands

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
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
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
    return installed(wheel, tmp_path_factory.mktemp("environment"), [])


@pytest.fixture(scope="session")
def complete_environment(wheel, tmp_path_factory) -> Path:
    """Return the programs of another one, which has what the README's commands for this machine require too."""
    pytest.importorskip("hyperpod_elastic_agent", reason="pip install --no-deps hyperpod-elastic-agent==1.1.3")
    return installed(wheel, tmp_path_factory.mktemp("complete"), ["local", "trainer"], "hyperpod-elastic-agent")


def installed(wheel: Path, folder: Path, extras: Sequence[str], *further: str) -> Path:
    """Install the wheel in a new virtual environment, with what it requires and single distributions; return bin/."""
    venv.create(folder, with_pip=False)
    programs = folder / "bin"
    (packages,) = folder.glob("lib/python*/site-packages")
    for source in [*required_files(extras), *itertools.chain(*map(files_of, further))]:
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
    done = subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def required_files(extras: Sequence[str]) -> Iterator[Path]:
    """Yield the top-level files and folders of every package that the launcher requires, with these extras."""
    seen = {("recipe-launcher", extra) for extra in ("", *extras)}
    waiting = list(seen)
    while waiting:
        name, extra = waiting.pop()
        for requirement in map(Requirement, metadata.requires(name) or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                named = {(normal(requirement.name), wanted) for wanted in ("", *requirement.extras)}
                waiting += named - seen
                seen |= named
    for name in sorted({name for name, _ in seen} - {"recipe-launcher"}):
        yield from files_of(name)


def normal(name: str) -> str:
    """Return a distribution's name as all spellings of it are written."""
    return re.sub(r"[-_.]+", "-", name).lower()


def files_of(name: str) -> Iterator[Path]:
    """Yield the top-level files and folders of a distribution."""
    found = metadata.distribution(name)
    for top in sorted({file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}):
        yield Path(str(found.locate_file(top)))


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


def test_no_package_of_the_wheel_is_a_slip(wheel):
    """Not `__init__/__init__.py`, and no package of one file, which would be a module."""
    modules = [PurePosixPath(name) for name in contents(wheel) if name.endswith(".py")]
    assert not [path for path in modules if any(part.startswith("__") for part in path.parts[:-1])]
    files = Counter(folder for path in modules for folder in path.parents)
    assert not [folder for folder, count in files.items() if count == 1]


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


WORDS_OF_README = [command for command in commands("README.md") if command.words[0] in ("python", "recipes")]
FOR_A_JOB = [command for command in WORDS_OF_README if A_JOB & set(command.words)]
TINY = ("recipes.training_config.training_args.max_epochs=1", "++recipes.training_config.mlflow.enabled=false")
SMALL = (*TINY, "recipes.trainer.devices=1", "recipes.training_config.datasets.train_data.limit=16")


def as_installed(command: Command) -> list[str]:
    """Return the words of a command of the README, as they are typed where there is no checkout."""
    words = list(command.words)
    return ["recipes", "run", *words[2:]] if words[:2] == ["python", "main.py"] else words


@pytest.fixture(scope="module")
def user_folder(tmp_path_factory) -> Path:
    """Return an empty folder, of which no parent is a checkout."""
    return tmp_path_factory.mktemp("user")


@pytest.mark.long
@pytest.mark.parametrize("command", [c for c in WORDS_OF_README if c not in FOR_A_JOB and not c.serves], ids=str)
def test_the_installed_wheel_takes_every_command_of_the_readme(complete_environment, user_folder, command):
    program, *words = as_installed(command)
    dry = ["dry_run=true"] if words[0] == "run" else []
    run(str(complete_environment / program), *words, *dry, cwd=user_folder)


@pytest.mark.long
def test_the_installed_wheel_serves_the_page(complete_environment, user_folder):
    command = [str(complete_environment / "recipes"), "ui", "--no-browser"]
    environment = ENVIRONMENT | {"XDG_STATE_HOME": str(user_folder / "state")}
    with subprocess.Popen(command, cwd=user_folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().strip()
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            text = opener.open(address, timeout=60).read().decode()
            style = opener.open(address.partition("/jobs")[0] + "/files/page.css", timeout=60).read()
        finally:
            process.terminate()
    assert "<h1>Jobs</h1>" in text and b"--paper" in style


@pytest.mark.whole_job
def test_the_installed_wheel_trains_on_two_nodes_and_takes_the_readme_s_commands_for_that_job(
    complete_environment, tmp_path
):
    recipes = str(complete_environment / "recipes")
    out = run(recipes, "run", "--name", "mine", "recipes.trainer.num_nodes=2", *TINY, cwd=tmp_path)
    assert "succeeded" in out
    (bundle,) = (path.parent for path in (tmp_path / "results").glob("*/bundle.json"))
    for command in FOR_A_JOB:
        words = [str(bundle) if word in A_JOB else word for word in command.words[1:]]
        again = ["--again"] if words[0] == "launch" else []
        run(recipes, *words, *again, cwd=tmp_path)
    assert "mine" in run(recipes, "jobs", "--state", "succeeded", cwd=tmp_path)


@pytest.mark.whole_job
def test_the_installed_wheel_rehearses_a_published_recipe(complete_environment, tmp_path):
    (command,) = (c for c in WORDS_OF_README if "rehearse=true" in c.words)
    words = [*as_installed(command)[1:], *SMALL]
    assert "succeeded" in run(str(complete_environment / "recipes"), *words, cwd=tmp_path)


def test_recipes_run_of_the_wheel_is_main_py_of_the_checkout(environment, tmp_path):
    """The same words, flags, output and exit codes, but for the name of the program."""
    (tmp_path / "own" / "recipes").mkdir(parents=True)
    own = f"defaults:\n  - /recipes/{LLAMA}@_here_\n  - _self_\nrun:\n  name: mine\n"
    (tmp_path / "own" / "recipes" / "mine.yaml").write_text(own, encoding="utf-8")
    for words in (
        ["--help"],
        ["--version"],
        ["--cfg", "job", f"recipes={LLAMA}", "cluster=k8s"],
        ["--config-dir", "own", "recipes=mine", "cluster=k8s", "--cfg", "job", "--package", "recipes.run"],
        ["--multirun", f"recipes={LLAMA}", "cluster=k8s", "debug=true,nonsense", "dry_run=true"],
        ["--name"],
        ["--nonsense"],
        ["recipes=nothing/like/it"],
        ["--hydra-help"],
    ):
        ours, theirs = (
            run_command([*program, *words], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
            for program in ([sys.executable, str(ROOT / "main.py")], [str(environment / "recipes"), "run"])
        )
        assert theirs.returncode == ours.returncode, theirs.stderr
        assert anonymous(theirs.stdout) == anonymous(ours.stdout)
        assert anonymous(theirs.stderr) == anonymous(ours.stderr)


def anonymous(text: str) -> str:
    """Return output without a job's random part, the digest, in which the git revision is, and the program's name."""
    text = text.replace(f"python {ROOT / 'main.py'}", "recipes run")
    return re.sub(r"-[a-z0-9]{5}\b|(?<=digest )\w+", "", text)
