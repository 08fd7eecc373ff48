"""Elastic jobs that are launched from another machine: a real sshd in front of a real Slurm, and real agents."""

import json
import subprocess
import sys
import tomllib

import pytest
from background import Collected, await_true
from conftest import ROOT
from log_texts import log_texts
from test_slurm_elastic import JOB, ElasticJob
from test_slurm_jobs import refused
from test_slurm_ssh import OWN_FOLDER, THERE, server, there
from whole_jobs import ARGS, left_behind, records, run

from launcher.backends.slurm import preflight
from launcher.backends.slurm.backend import SlurmBackend
from launcher.common.names import EVENTS_FILE, METRICS_FILE, RUN_DIR
from launcher.common.problems import ProblemsFound
from launcher.job_store import registry
from launcher.model.job_spec import JobState, LogSelection
from launcher.operator.snapshot import STATE_FILE

__all__ = ["server"]
pytestmark = pytest.mark.whole_job
EPOCHS = 6


class ElasticJobThere(ElasticJob):
    """A job whose files are on the other machine; those of this machine's bundle are copies."""

    def __init__(self, folder, *words):
        super().__init__(folder, *THERE, *OWN_FOLDER, *words)
        self.handle = self.record.handle
        self.copies, self.run_dir = self.run_dir, there(self.handle.bundle_dir) / RUN_DIR


def test_a_job_is_followed_and_scaled_and_trains_on_every_sample_once(server, tmp_path):
    job = ElasticJobThere(tmp_path, f"{ARGS}.max_epochs={EPOCHS}")
    lines = Collected(log_texts(SlurmBackend(), job.handle, LogSelection(has_headings=True), follow=True))
    events = Collected(SlurmBackend().events(job.handle, follow=True))
    job.await_size(4)
    with pytest.raises(ProblemsFound, match="E413"):
        SlurmBackend().scale(job.handle, 9)
    assert run("scale", str(job.handle.bundle_dir), "--nodes", "2", cwd=tmp_path, module=True)[0] == 0
    job.await_size(2)
    status = SlurmBackend().status(job.handle)
    assert (status.state, status.nodes, status.restarts) == (JobState.RUNNING, 2, 1)
    server.stop()
    with pytest.raises(ProblemsFound, match="E455"):
        SlurmBackend().status(job.handle)
    server.start()
    job.scale(4)
    job.await_size(4)
    job.finish()
    assert job.sizes == [4, 2, 4], job.log
    job.assert_samples(EPOCHS)
    for name in (METRICS_FILE, EVENTS_FILE, STATE_FILE, "timeline.json"):
        assert (job.copies / name).read_bytes() == (job.run_dir / name).read_bytes()
    shown = [line for line in lines.result() if not line.startswith(("event  ", "fault  ", "scale  ", "== "))]
    headings = [line for line in lines.result() if line.startswith("== ")]
    assert [line.partition(",")[0] for line in headings] == [
        f"== attempt {number}: {size} nodes" for number, size in enumerate(job.sizes)
    ]
    assert [line for line in shown if line.startswith("finished at step 75,")]
    kinds = [(event.time_s, event.kind) for event in events.result()]
    assert kinds == [(event["time"], event["kind"]) for event in records(job.run_dir / EVENTS_FILE)]
    every = list(log_texts(SlurmBackend(), job.handle, LogSelection(ranks=None, attempt=2), follow=False))
    assert every == [f"rank 0 | {line}" for line in shown[len(shown) - len(every) :]]


def test_a_cancelled_job_saves_and_the_next_of_its_bundle_begins_anew(server, tmp_path):
    job = ElasticJobThere(tmp_path)
    job.await_size(4)
    SlurmBackend().cancel(job.handle)
    status = SlurmBackend().status(job.handle)
    assert status.state is JobState.CANCELLED, (status, job.log)
    assert [each["graceful"] for each in job.events("stopping")] == [True]
    assert records(job.run_dir / "checkpoints.jsonl")[-1]["step"] == job.step
    assert left_behind(job.run_dir.parent) == []
    others = ("sbatch", "--parsable", "--nodes=8", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    busy = server.cluster.command(*others).strip()
    await_true(lambda: server.cluster.nodes_of(busy) == 8)
    assert run("launch", "--again", str(job.handle.bundle_dir), cwd=tmp_path, module=True)[0] == 0
    again = registry.read(job.handle.bundle_dir).handle
    waiting = SlurmBackend().status(again)
    assert (waiting.state, waiting.restarts) == (JobState.PENDING, 0)
    SlurmBackend().cancel(again)
    assert SlurmBackend().status(again).message != status.message
    server.cluster.command("scancel", busy)


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    """Return a Python without packages."""
    folder = tmp_path_factory.mktemp("python")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin/python"


def test_a_python_that_cannot_run_the_operator_is_a_problem(server, tmp_path, bare_python, monkeypatch):
    words = (*JOB, *THERE[:2], *OWN_FOLDER)
    (problem,) = refused(tmp_path / "bare", *words, f"cluster.python={bare_python}")
    assert (problem.code, problem.path, problem.value) == ("E472", "cluster.python", str(bare_python))
    assert "torch is not installed" in problem.message and "pydantic is not installed" in problem.message
    image = ("container=/image", "cluster.container_runtime=apptainer")
    (problem,) = refused(tmp_path / "image", *words, *image, f"cluster.python={bare_python}")
    assert "torch" not in problem.message and "pydantic is not installed" in problem.message
    (problem,) = refused(tmp_path / "none", *words, "cluster.python=/no/python")
    assert problem.code == "E472" and "no such program" in problem.message
    monkeypatch.setitem(preflight.OPERATOR, "pydantic", "99.1")
    (problem,) = refused(tmp_path / "version", *words, THERE[2])
    assert "pydantic is of version" in problem.message
    monkeypatch.setattr(preflight, "PYTHON", (3, 99))
    (problem,) = refused(tmp_path / "old", *words, f"cluster.python={bare_python}")
    assert problem.message.endswith(f"it is Python 3.{sys.version_info.minor}")
    assert not [*(server.home / "my jobs").glob("tiny*bare*")]


IMPORTED = """\
import json, sys
names = set()
class Noted:
    def find_spec(self, name, path=None, target=None):
        frame = sys._getframe(1)
        while "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if frame.f_globals.get("__name__", "").startswith("launcher"):
            names.add(name.partition(".")[0])
sys.meta_path.insert(0, Noted())
import launcher.backends.slurm.operator, launcher.backends.slurm.node
print(json.dumps(sorted(names - set(sys.stdlib_module_names) - {"launcher"})))
"""
"""Prints the packages that modules of this one import."""


@pytest.mark.sample
def test_the_packages_that_the_operator_needs_are_those_that_it_imports():
    done = subprocess.run([sys.executable, "-c", IMPORTED], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == sorted(preflight.OPERATOR)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=" + ".".join(map(str, preflight.PYTHON))
    oldest = preflight.OPERATOR["pydantic"]
    assert [each for each in project["dependencies"] if each.startswith(f"pydantic>={oldest},")]
