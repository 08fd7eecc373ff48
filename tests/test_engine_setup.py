"""The set-up of the engines, and CI around it: a step that fails, or does nothing, never passes."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT
from engine_cache import cached

ENGINES = ROOT / "tests/engines"
SCRIPTS = sorted(ENGINES.glob("*.sh"))
BUILD, PROGRAMS, TOOLKIT = (
    ENGINES / name for name in ("build_kube_apiserver.sh", "install_programs.sh", "install_toolkit.sh")
)
COMMANDS = (
    "bash",
    "cat",
    "cp",
    "cut",
    "dirname",
    "echo",
    "id",
    "mkdir",
    "mktemp",
    "mv",
    "rm",
    "sed",
    "sha256sum",
    "touch",
)
"""What the scripts need beside the programs that a test stands in for."""
APT_GET = r"""#!/usr/bin/env bash
# Reads the list of sources as apt does: by the ending of its name.
echo "$*" >>"$CALLS"
for word in "$@"; do
  case $word in
    Dir::Etc::SourceList=*) list=${word#*=} ;;
    source) is_source=yes ;;
  esac
done
[[ -n ${is_source-} ]] || exit 0
case $list in
  *.sources) wanted='^Types: deb-src$' ;;
  *.list) wanted='^deb-src ' ;;
  *) wanted='^$.' ;;
esac
if ! while read -r line; do [[ $line =~ $wanted ]] && break; done <"$list"; then
  echo "E: You must put some 'deb-src' URIs in your sources.list" >&2
  exit 100
fi
echo "'https://packages.example/kubernetes_$VERSION-1.dsc' kubernetes_$VERSION-1.dsc 1973"
"""


def program(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs a script with stand-ins for the programs that it starts; it returns its end."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in COMMANDS:
        (programs / name).symlink_to(shutil.which(name))

    def run(script: Path, **stand_ins: str) -> subprocess.CompletedProcess[str]:
        for name, text in stand_ins.items():
            program(programs / name.replace("_", "-"), text)
        variables = {"CALLS": str(tmp_path / "calls"), "VERSION": os.environ.get("VERSION", "1.20.2")}
        environment = {"PATH": str(programs), "HOME": str(tmp_path), "TMPDIR": str(tmp_path), **variables}
        environment |= {"XDG_CACHE_HOME": str(tmp_path), "PYTHON": str(programs / "python")}
        return subprocess.run([script], env=environment, capture_output=True, text=True, timeout=200)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return run


def built() -> Path:
    """Make the binary that an earlier run has built; return its path."""
    path = cached(BUILD.name, "kube-apiserver")
    path.parent.mkdir(exist_ok=True)
    return program(path, "")


needs_debian = pytest.mark.skipif(not Path("/etc/apt").is_dir(), reason="needs Debian's lists of packages")


@needs_debian
def test_a_built_server_is_taken_once_apt_has_found_its_sources(run, tmp_path):
    done = run(BUILD, apt_get=APT_GET, etcd="")
    assert done.returncode != 0, "nothing was built, and compiling is not possible here"
    path = built()
    done = run(BUILD, apt_get=APT_GET, etcd="")
    assert (done.returncode, done.stdout) == (0, f"{path}\n"), done.stderr
    assert "--print-uris source kubernetes" in (tmp_path / "calls").read_text()


@needs_debian
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        pytest.param(("packages.sources", "packages.config.hydra_sources"), "deb-src", id="name of the list"),
        pytest.param(("Types: deb-src", "Types: deb"), "deb-src", id="kind of packages"),
        pytest.param(("version=1.20.2", "version=1.99.9"), "no sources of kubernetes 1.99.9", id="version"),
    ],
)
def test_a_built_server_does_not_hide_that_its_sources_are_not_found(run, tmp_path, fault, says):
    old, new = fault
    text = BUILD.read_text(encoding="utf-8")
    assert old in text
    script = program(tmp_path / BUILD.name, text.replace(old, new))
    built().rename(tmp_path / f"recipe-launcher/kube-apiserver-{digest(script)}")
    done = run(script, apt_get=APT_GET, etcd="")
    assert done.returncode != 0 and says in done.stderr


def digest(script: Path) -> str:
    """Return the part of a cached path that stands for a script, as the scripts compute it."""
    return subprocess.check_output(f"sha256sum <'{script}' | cut -c1-12", shell=True, text=True).strip()


@pytest.mark.parametrize("script", [BUILD, TOOLKIT], ids=lambda path: path.stem)
def test_what_a_script_made_is_kept_for_that_version_of_the_script(script):
    assert cached(script.name, "made").name == f"made-{digest(script)}"


def test_programs_that_an_installation_does_not_bring_fail_it(run):
    done = run(PROGRAMS, apt_get="#!/bin/sh\n")
    assert done.returncode != 0 and "mpirun" in done.stderr


def test_a_toolkit_without_its_program_fails_and_is_installed_again(run, tmp_path):
    python = '#!/bin/sh\necho "$*" >>"$CALLS"\n[ "$2" != venv ] || { mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; }\n'
    for times in (1, 2):
        assert run(TOOLKIT, python=python).returncode != 0
        assert (tmp_path / "calls").read_text().count("-m venv") == times


@pytest.mark.parametrize("script", [*SCRIPTS, ROOT / ".ci/run"], ids=lambda path: path.name)
def test_a_script_is_clean_and_ends_at_its_first_fault(script, shellcheck):
    shellcheck(script)
    assert "\nset -euo pipefail\n" in script.read_text(encoding="utf-8")


def test_every_set_up_script_is_run_by_make_engines():
    text = "".join(path.read_text(encoding="utf-8") for path in SCRIPTS)
    named = [path.name for path in SCRIPTS if path.name != "set_up.sh"]
    assert [name for name in named if f"/{name}" not in text] == []


STEPS = ("lint types imports", "engines", "test", "test-rest MINUTES=70")


@pytest.mark.parametrize("failing", [*STEPS[:2], "none"])
def test_a_step_of_ci_that_fails_makes_it_red(run, tmp_path, failing):
    make = f'#!/bin/sh\necho "$*$PYTEST_ADDOPTS" >>"$CALLS"\n[ "$*" != "{failing}" ]\n'
    done = run(ROOT / ".ci/run", make=make, apt_get="", id="#!/bin/sh\necho 0\n")
    steps = (tmp_path / "calls").read_text().splitlines()
    options = "--no-skips --hypothesis-profile=long"
    expected = [step + (options if step.startswith("test") else "") for step in STEPS]
    assert steps == expected[: STEPS.index(failing) + 1 if failing in STEPS else None]
    assert (done.returncode == 0) is (failing == "none")


@pytest.mark.parametrize("is_again", [False, True], ids=["alone it passes", "it fails again"])
@pytest.mark.parametrize("failing", STEPS[2:])
def test_ci_runs_tests_that_failed_once_more(run, tmp_path, failing, is_again):
    fails = f'"{failing}"{" | test-failed" if is_again else ""}'
    make = f'#!/bin/sh\necho "$*" >>"$CALLS"\ncase "$*" in {fails}) exit 2;; esac\n'
    done = run(ROOT / ".ci/run", make=make, apt_get="", id="#!/bin/sh\necho 0\n")
    place = STEPS.index(failing) + 1
    expected = [*STEPS[:place], "test-failed", *(() if is_again else STEPS[place:])]
    assert (tmp_path / "calls").read_text().splitlines() == expected
    assert (done.returncode == 0) is not is_again


@pytest.mark.parametrize("lacks", ["root", "apt"])
def test_ci_without_the_engines_is_red(run, lacks):
    stand_ins = {"id": f"#!/bin/sh\necho {1000 if lacks == 'root' else 0}\n", "make": "#!/bin/sh\n"}
    done = run(ROOT / ".ci/run", **stand_ins, **({} if lacks == "apt" else {"apt_get": ""}))
    assert done.returncode == 1 and "make test" in done.stderr
