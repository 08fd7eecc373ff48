"""Every command in the pages that people read is run, as it is written there; and what else they promise.

Commands that train get `dry_run=true`: whole jobs have tests of their own. Those for a job in `results/` get one that
trains.
"""

import itertools
import re
import shlex
import signal
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml
from background import await_true
from conftest import ROOT
from page_commands import A_JOB, PAGES, commands
from whole_jobs import ARGS, bundle_of, start

from launcher.cli import main as cli
from launcher.cli import run_command
from launcher.common.process import USER_ERROR
from launcher.model.job_spec import JobState
from launcher.operator.snapshot import read_snapshot

NAME = re.compile(r"[\w-]+")
ALL = [command for page in PAGES for command in commands(page)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Return a folder for each page, in which its commands are run one after another."""
    folders = {page: tmp_path_factory.mktemp("page") for page in PAGES}
    results = tmp_path_factory.mktemp("results")  # of all pages, as making a tracking store takes seconds
    for folder in folders.values():
        (folder / "results").symlink_to(results)
        (folder / "examples").symlink_to(ROOT / "examples")
    return folders


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Iterator[Path]:
    """Return the bundle of a job that trains until the last test of this file."""
    pytest.importorskip("hyperpod_elastic_agent", reason="pip install --no-deps hyperpod-elastic-agent==1.1.3")
    folder = tmp_path_factory.mktemp("job")
    process = start(f"{ARGS}.max_epochs=2000", f"{ARGS}.min_step_seconds=0.2", cwd=folder)
    try:
        await_true(
            lambda: (folder / "results").is_dir() and list(folder.glob("results/*/run/metrics.jsonl")), "a step"
        )
        yield bundle_of(folder)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=200)
    finally:
        process.kill()
    assert read_snapshot(bundle_of(folder) / "run").state is JobState.CANCELLED


def carry_out(words: Sequence[str]) -> int:
    """Run a command in this process; return its exit code."""
    if words[0] == "recipes" and words[1] != "run":
        return cli.run(words[1:])
    assert words[1] in ("main.py", "run")
    return run_command.run([*(word for word in words[2:] if word != "dry_run=true"), "dry_run=true"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [c for c in ALL if c.words[0] in ("python", "recipes") and not (A_JOB & set(c.words) or c.serves)],
    ids=str,
)
def test_a_command_in_the_pages_does_what_they_say(command, folders, monkeypatch, capsys):
    monkeypatch.chdir(folders[command.page])
    assert carry_out(command.words) == command.exit_code, capsys.readouterr().err


@pytest.mark.whole_job
@pytest.mark.parametrize("command", [c for c in ALL if c.words[0] == "recipes" and A_JOB & set(c.words)], ids=str)
def test_a_command_in_the_pages_for_a_job_is_taken(command, job, capsys):
    words = [str(job) if word in A_JOB else word for word in command.words[1:]]
    is_busy = words[0] in ("launch", "wait")  # the one is refused, the other would wait for the last test
    if words[0] == "wait":
        words += ["--timeout", "1"]
    assert cli.run(words) == (USER_ERROR if is_busy else command.exit_code), capsys.readouterr().err


@pytest.mark.parametrize("command", [c for c in ALL if c.words[0] == "make"], ids=str)
def test_a_target_in_the_pages_exists(command):
    done = subprocess.run(["make", "--dry-run", *command.words[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [c for c in ALL if c.words[0] == "pip"], ids=str)
def test_what_the_pages_install_is_what_the_makefile_installs(command):
    installed = (ROOT / "Makefile").read_text(encoding="utf-8")
    extras = re.search(r"'\.\[(.*)\]'", installed)
    what = command.words[-1]
    assert set(what[2:-1].split(",")) < set(extras[1].split(",")) if what.startswith(".[") else what in installed


@pytest.mark.parametrize("command", [c for c in ALL if c.words[0] == "torchrun"], ids=str)
def test_an_example_in_the_pages_is_one_that_is_tested(command):
    assert (ROOT / command.words[-1]).name in (ROOT / "tests" / "test_examples.py").read_text(encoding="utf-8")


def test_every_dependency_has_its_reason():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    installed = {NAME.match(each)[0] for each in itertools.chain(*lists)}
    installed |= set(re.findall(r"([\w-]+)==", (ROOT / "Makefile").read_text(encoding="utf-8")))
    table = (ROOT / "docs/decisions.md").read_text(encoding="utf-8").partition("## Dependencies")[2]
    reasoned = set(NAME.findall(" ".join(row.split("|")[1] for row in table.splitlines() if row[:1] == "|")))
    assert installed - reasoned == set()


@pytest.mark.parametrize("page", (*PAGES, "CHANGELOG.md"))
def test_links_of_the_pages_lead_somewhere(page):
    folder = (ROOT / page).parent
    for path, section in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", (ROOT / page).read_text("utf-8")):
        target = folder / path if path else ROOT / page
        assert target.exists(), path
        if section:
            heads = re.findall(r"^#+ (.+)$", target.read_text("utf-8"), re.M)
            assert section in [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads]


@pytest.mark.parametrize("page", PAGES)
def test_what_the_pages_show_can_be_pasted(page):
    text = (ROOT / page).read_text("utf-8")
    for block in re.findall(r"^```yaml\n(.*?)^```$", text, re.S | re.M):
        assert yaml.safe_load(block)
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
    overrides = [each for each in re.findall(r"`([^`]+)`", prose) if re.match(r"[\w.+]+=\S", each)]
    assert [each for each in overrides if len(shlex.split(each)) > 1 and re.search(r"=[\[{]", each)] == []


@pytest.mark.parametrize("page", PAGES)
def test_modules_that_the_pages_name_exist(page):
    names = {path.name for folder in ("launcher", "tests", "examples") for path in (ROOT / folder).rglob("*.py")}
    named = re.findall(r"`((?:\w+/)*\w+\.py)`", (ROOT / page).read_text("utf-8"))
    gone = [name for name in named if not (ROOT / name).exists() and ("/" in name or name not in names)]
    assert gone == []
