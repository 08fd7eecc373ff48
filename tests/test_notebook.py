"""The API in a notebook: the example runs, mistakes are readable, and a kernel that ends leaves no process."""

import contextlib
import re
import signal

import psutil
import pytest
from background import await_true, suspend
from conftest import ROOT
from whole_jobs import left_behind, processes_of

import launcher
from launcher import JobState

pytest.importorskip("ipykernel")
pytest.importorskip("hyperpod_elastic_agent")
pytestmark = pytest.mark.whole_job

ARGS = "training_config.training_args"
LONG = f'launcher.compile("tiny_lm_cpu", {{"{ARGS}.max_epochs": 3000, "{ARGS}.min_step_seconds": 0.05}})'


class Kernel:
    """A kernel of IPython in a folder, and the cells that it has run."""

    def __init__(self, manager, client):
        self.manager, self.client = manager, client

    def start(self, code) -> str:
        return self.client.execute(code)

    def end(self, cell) -> tuple[str, str]:
        """Return what a cell printed or shows, and the name of its exception."""
        shown, name, state = [], "", ""
        while state != "idle":
            message = self.client.get_iopub_msg(timeout=300)
            if message["parent_header"].get("msg_id") != cell:
                continue
            content = message["content"]
            state = content.get("execution_state", state)
            shown.append(content.get("text", "") or content.get("data", {}).get("text/html", ""))
            shown += content.get("traceback", [])
            name = content.get("ename", name)
        return "\n".join(filter(None, shown)), name

    def run(self, code) -> tuple[str, str]:
        return self.end(self.start(code))


@pytest.fixture
def kernel(tmp_path, monkeypatch, store):
    from jupyter_client.manager import KernelManager

    monkeypatch.chdir(tmp_path)
    for name, value in {"IPYTHONDIR": str(tmp_path / "ipython"), "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    manager = KernelManager()
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=120)
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        with contextlib.suppress(ProcessLookupError):
            manager.shutdown_kernel(now=True)


@pytest.mark.usefixtures("store")
def test_the_notebook_of_the_examples_runs(tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    for name, value in {"IPYTHONDIR": str(tmp_path / "ipython"), "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(ROOT / "examples/notebook.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not kept: they would get stale"
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output["output_type"] == "stream"], "nothing prints"
    (job,) = launcher.jobs(tmp_path / "results")
    assert job.status.state is JobState.SUCCEEDED
    await_true(lambda: not left_behind(tmp_path), "the processes to end")


def test_a_mistake_is_shown_without_a_traceback(kernel):
    kernel.run("import launcher")
    shown, name = kernel.run('"a cell"\nplan = launcher.compile("tiny_lm_cpu", {"trainer.num_nodes": "two"})')
    assert name == "ProblemsFound"
    lines = re.sub(r"\x1b\[[\d;]*m", "", shown).splitlines()
    assert lines[:3] == [
        "ProblemsFound:",
        '  line 2: plan = launcher.compile("tiny_lm_cpu", {"trainer.num_nodes": "two"})',
        "E102 recipes.trainer.num_nodes",
    ]
    assert not any("launcher/" in line for line in lines)
    assert (
        "<pre>E102 recipes.trainer.num_nodes\n"
        in kernel.run('launcher.compile("tiny_lm_cpu", {"trainer.num_nodes": "two"}, strict=False)')[0]
    )


def test_a_job_of_a_kernel_survives_an_interrupt_and_ends_with_a_killed_kernel(kernel, tmp_path):
    kernel.run(f"import launcher; job = {LONG}.submit(name='bound', detach=False)")
    job = launcher.attach(tmp_path / "results/bound")
    following = kernel.start("job.wait()")
    await_true(lambda: len(job.metrics()) > 2, "steps")
    kernel.manager.interrupt_kernel()
    assert kernel.end(following)[1] == "KeyboardInterrupt"
    shown, error = kernel.run("print(job.status.state.value)")
    assert (shown.strip(), error) == ("running", "")
    kernel.manager.signal_kernel(signal.SIGKILL)
    assert job.wait(timeout=200).state.is_final
    await_true(lambda: not left_behind(job.folder), "the processes to end")


def test_an_interrupted_submission_leaves_no_process(kernel, tmp_path):
    def follower() -> psutil.Process | None:
        found = [each for each in processes_of(tmp_path / "results") if "launcher.api.detached" in each.cmdline()]
        return found[0] if found else None

    kernel.run(f"import launcher; plan = {LONG}")
    submitting = kernel.start("job = plan.submit()")
    await_true(lambda: follower(), "the process that launches the job")
    held = follower()
    suspend(held.pid)  # it cannot answer before the interrupt
    kernel.manager.interrupt_kernel()
    held.resume()
    assert kernel.end(submitting)[1] == "KeyboardInterrupt"
    await_true(lambda: not left_behind(tmp_path / "results"), "the processes to end")
