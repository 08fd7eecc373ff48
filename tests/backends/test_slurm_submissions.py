"""Submissions that get no answer: the next launch waits until the controller no longer acts on them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from background import await_true
from conftest import written
from test_slurm_rendering import OPEN, PUBLISHED

from launcher.backends.slurm import place, queue
from launcher.backends.slurm.backend import SlurmBackend
from launcher.backends.slurm.place import RECENT
from launcher.backends.slurm.programs import LOST
from launcher.common import variables
from launcher.common.problems import ProblemsFound

pytestmark = pytest.mark.slow

SBATCH = """\
#!/bin/bash
[[ "$*" == *--test-only* ]] && exit
for word; do case $word in --job-name=*) name=${word#*=} ;; esac; done
echo "$name" >> {folder}/requests
[[ -e {folder}/answers ]] && {{ echo "$name" >> {folder}/listed; echo 7; exit; }}
"""
"""Keeps a request, as a controller whose request waits for its locks; it is handled when `answers` exists."""
SQUEUE = """\
#!/bin/bash
echo look >> {folder}/looks
[[ $(wc -l < {folder}/looks) -ge $(cat {folder}/lists_at) ]] && cp {folder}/requests {folder}/listed
[[ -e {folder}/listed ]] && awk '{{ print NR + 6 "|PENDING|Priority|1|0|" $1 "|" }}' {folder}/listed
exit 0
"""
ACCOUNTED = "#!/bin/bash\nexit 0\n"
PLAIN = "#!/bin/bash\necho 'Slurm accounting storage is disabled' >&2\nexit 1\n"
SCONTROL = """\
#!/bin/bash
[[ $* == *config* ]] && printf 'MessageTimeout = 1 sec\\n'
[[ $* == *partition* ]] && echo 'PartitionName=main Default=YES State=UP'
exit 0
"""
SSH = '#!/bin/bash\nfor last; do :; done\n[[ $last == cluster ]] && exit\nHOME={folder}/home exec sh -c "$last"\n'


class Controller:
    """Slurm's commands as scripts; `requests` has what sbatch has sent, `listed` what squeue shows."""

    def __init__(self, folder):
        self.folder = folder
        self.lists_at(1000)

    def script(self, name, text):
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("{folder}", str(self.folder)).replace("{{", "{").replace("}}", "}"))
        path.chmod(0o755)

    def lists_at(self, look):
        """Let squeue list what was requested from its n-th look on."""
        (self.folder / "lists_at").write_text(str(look))

    def count(self, name):
        path = self.folder / name
        return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture(params=["accounting", "plain", "ssh"])
def controller(request, tmp_path, monkeypatch):
    made = Controller(tmp_path)
    (tmp_path / "home").mkdir()
    scripts = {"squeue": SQUEUE, "scontrol": SCONTROL, "sacctmgr": ACCOUNTED, "scancel": ACCOUNTED, "ssh": SSH}
    for name, text in {**scripts, "sacct": PLAIN if request.param == "plain" else ACCOUNTED}.items():
        made.script(name, text)
    made.ends_with("exit 1")
    made.words = ("cluster.ssh=cluster", "cluster.code=folder") if request.param == "ssh" else ()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    (tmp_path / "home" / ".bash_profile").write_text(f"PATH={os.environ['PATH']}\n")
    monkeypatch.setattr(RECENT, "_answers", {})
    monkeypatch.setattr(queue, "POLL_S", 0.05)
    return made


def _ends_with(self, *lines):
    self.script("sbatch", SBATCH + "\n".join(lines) + "\n")


Controller.ends_with = _ends_with


@pytest.fixture
def bundle(controller, tmp_path):
    return written(tmp_path, *PUBLISHED, *OPEN, *controller.words)


@pytest.mark.parametrize(
    "end",
    [*(f"echo 'sbatch: error: {part}' >&2; exit 1" for part in LOST), "kill -9 $$", "exit 137", "exit 0"],
    ids=[*LOST, "killed", "killed below a shell", "no id"],
)
def test_a_request_that_is_still_in_the_controller_is_not_sent_again(controller, bundle, end):
    controller.ends_with(end)
    with pytest.raises(ProblemsFound, match="E352"):
        SlurmBackend().submit(bundle)
    controller.lists_at(controller.count("looks") + 3)
    handle = SlurmBackend().submit(bundle)
    assert (handle.native_id, handle.is_new) == ("7", False)
    assert controller.count("requests") == 1


def test_a_request_that_the_controller_never_lists_is_sent_again_when_its_time_is_over(controller, bundle):
    controller.ends_with("echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1")
    with pytest.raises(ProblemsFound, match="E352"):
        SlurmBackend().submit(bundle)
    (controller.folder / "requests").unlink()
    (controller.folder / "answers").touch()
    before = controller.count("looks")
    handle = SlurmBackend().submit(bundle)
    assert handle.is_new and controller.count("requests") == 1
    assert controller.count("looks") > before + 2
    looks = controller.count("looks")
    assert not SlurmBackend().submit(bundle).is_new
    assert controller.count("looks") <= looks + 1, "its answer is known"


def test_an_sbatch_that_outlives_its_launch_keeps_the_job_from_being_submitted(controller, bundle):
    """It may send its request late: it waits for a controller that is busy."""
    late = f"(while [[ ! -e {controller.folder}/go ]]; do sleep 0.05; done; echo late >> {controller.folder}/sent) &"
    controller.ends_with("exec > /dev/null 2>&1", late, "exit 137")
    with pytest.raises(ProblemsFound, match="E352"):
        SlurmBackend().submit(bundle)
    with pytest.raises(ProblemsFound, match="E352") as refused:
        SlurmBackend().submit(bundle)
    assert "an earlier launch still asks" in refused.value.problems[0].message
    assert controller.count("requests") == 1
    (controller.folder / "go").touch()
    await_true(lambda: controller.count("sent"))


def test_a_launch_that_is_killed_while_sbatch_runs_is_looked_for(controller, bundle, monkeypatch):
    def interrupt(*_arguments, **_options):
        raise KeyboardInterrupt

    controller.ends_with("exit 137")
    with monkeypatch.context() as patch:
        patch.setattr("launcher.backends.slurm.submit._looked_up", interrupt)
        with pytest.raises(KeyboardInterrupt):
            SlurmBackend().submit(bundle)
    controller.lists_at(controller.count("looks") + 3)
    assert not SlurmBackend().submit(bundle).is_new
    assert controller.count("requests") == 1


def test_a_refused_job_is_submitted_again_at_once(controller, bundle):
    controller.ends_with("echo 'sbatch: error: Invalid qos specification' >&2; exit 1")
    with pytest.raises(ProblemsFound, match="E445"):
        SlurmBackend().submit(bundle)
    looks = controller.count("looks")
    (controller.folder / "answers").touch()
    assert SlurmBackend().submit(bundle).is_new
    assert controller.count("looks") <= looks + 1


SCRIPT = (
    *("recipes=training/custom/script", "cluster=slurm", "training_cfg.entry_script=a.py"),
    "training_cfg.run.ntasks_per_node=8",
)
GIT = """\
#!/bin/bash
for last; do :; done
[[ $1 == clone ]] && mkdir -p "$last/.git" && printf %s "$RECIPES_GIT_TOKEN" > {folder}/token
[[ $* == *rev-parse* ]] && echo 0123
exit 0
"""


def test_a_token_of_the_code_goes_to_git_and_not_with_the_job(controller, tmp_path):
    controller.script("git", GIT)
    controller.ends_with(f"env > {tmp_path}/sent", "echo 7")
    words = [word for word in controller.words if "code" not in word]
    words += ["git.repo_url_or_path=https://example.org/a/b.git", "git.token={env: GH}", "env_vars.HUB={env: MINE}"]
    bundle = written(tmp_path / "own", *SCRIPT, *words)
    with variables.using({**os.environ, "GH": "s3cret", "MINE": "of the job"}):
        SlurmBackend().submit(bundle)
    sent = (tmp_path / "sent").read_text()
    assert "\nMINE=of the job\n" in sent and "s3cret" not in sent
    assert (tmp_path / "token").read_text() == "s3cret"


@pytest.mark.parametrize("controller", ["plain"], indirect=True)
def test_a_job_of_an_installed_launcher_imports_it_and_not_its_neighbours(controller, tmp_path, monkeypatch):
    """Its Python may be of another version, for which the compiled packages beside the launcher are not made."""
    site = tmp_path / "site-packages"
    (site / "launcher").mkdir(parents=True)
    (site / "launcher/__init__.py").touch()
    (site / "neighbour.py").touch()
    for name, value in {"HOME": str(site), "PACKAGE": site / "launcher", "CHECKOUT": None}.items():
        monkeypatch.setattr(place, name, value)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    controller.ends_with(f'printf %s "$RECIPES_PYTHONPATH" > {tmp_path}/path', "echo 7")
    SlurmBackend().submit(written(tmp_path / "own", *SCRIPT))
    code = "import importlib.util as u; print(u.find_spec('launcher').origin, u.find_spec('neighbour'))"
    env = {"PYTHONPATH": (tmp_path / "path").read_text()}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True)
    origin, neighbour = done.stdout.split()
    assert Path(origin).resolve() == site / "launcher/__init__.py" and neighbour == "None"
