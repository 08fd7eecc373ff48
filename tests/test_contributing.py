"""What contributors are given works: hooks, templates, pages."""

import re
import subprocess

import pytest
import yaml
from conftest import ROOT

HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
TEMPLATES = [*sorted((ROOT / ".github").rglob("*.md")), ROOT / "CONTRIBUTING.md"]


def test_hooks_are_local_and_download_nothing():
    assert [repo["repo"] for repo in HOOKS] == ["local"]
    assert {hook["language"] for hook in HOOKS[0]["hooks"]} == {"system"}


@pytest.mark.parametrize("hook", HOOKS[0]["hooks"], ids=lambda hook: hook["id"])
def test_a_hook_runs_a_target_of_the_makefile(hook):
    make, target = hook["entry"].split()
    assert make == "make" and not hook["pass_filenames"]
    assert_target(target)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_template_names_commands_that_exist(path, recipes):
    text = path.read_text(encoding="utf-8")
    for command in re.findall(r"`recipes ([\w-]+)", text):
        assert recipes(command, "--help")[0] == 0
    for target in re.findall(r"`make ([\w-]+)`", text):
        assert_target(target)


def assert_target(name):
    done = subprocess.run(["make", "--dry-run", name], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
