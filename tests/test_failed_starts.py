"""Workers that fail before the first start of a job that is resized in place: by an error, or by a signal.

The agent's own wait for them ends when one of them has: otherwise it would last until the operator gives up the node.
"""

import queue
from types import SimpleNamespace

import pytest
from conftest import ROOT
from whole_jobs import bundle_of, left_behind, program_of, records, run

from launcher.operator.types import Cause

agents = pytest.importorskip("launcher.runtime.hyperpodrun", reason="pip install hyperpod-elastic-agent==1.1.3")
from hyperpod_elastic_agent.ipc import HyperPodPLRException  # noqa: E402 it is optional
from hyperpod_elastic_agent.server import AgentState  # noqa: E402
from torch.distributed.elastic.agent.server.api import WorkerState  # noqa: E402

HEALTHY, SUCCEEDED, FAILED = WorkerState.HEALTHY, WorkerState.SUCCEEDED, WorkerState.FAILED


# The agent's wait


class Agent:
    """As the agent in its in-process mode: `states` are those of its workers, one for each look; the last one stays.

    `arrive` are the local ranks that come to the barrier, each after one look.
    """

    inprocess_timeout = None
    _process_level_start = False
    _worker_group = None

    def __init__(self, states, arrive=()):
        self._states, self._arrive = list(states), list(arrive)
        self._agent_state, self.at_barrier = AgentState.INIT, []
        self._training_stages_gen = iter([None])
        wg = SimpleNamespace(notify_rank_at_barrier=self.at_barrier.append)
        arrivals = queue.Queue()
        self._ipc_server = SimpleNamespace(_local_ranks={0, 1}, _clients_ready_queue=arrivals, ipc_wg=wg)

    def _monitor_workers(self, _group):
        if self._arrive:
            self._ipc_server._clients_ready_queue.put((None, {"local_rank": self._arrive.pop(0)}))
        return SimpleNamespace(state=self._states.pop(0) if len(self._states) > 1 else self._states[0])

    def set_agent_state(self, state):
        self._agent_state = state

    def stop_log_monitoring(self, *, clear_log_monitoring_configuration):
        assert not clear_log_monitoring_configuration


@pytest.mark.parametrize(
    ("states", "arrive", "state"),
    [
        ([HEALTHY], [1, 0], AgentState.READY),
        ([HEALTHY, FAILED], [0], AgentState.INIT),
        ([HEALTHY, HEALTHY, FAILED], [], AgentState.INIT),
        ([HEALTHY, SUCCEEDED], [], AgentState.READY),
    ],
    ids=["all at the barrier", "one fails while the other waits", "one fails", "all complete"],
)
def test_an_agent_is_ready_once_its_workers_are_and_looks_at_them_itself_once_one_has_failed(states, arrive, state):
    agent = Agent(states, arrive)
    agents.on_success(agent, "default", None)
    assert (agent._agent_state, agent.at_barrier) == (state, arrive)


@pytest.mark.parametrize("field", [{"_process_level_start": True}, {"_agent_state": AgentState.SHUTDOWN}], ids=str)
def test_the_wait_for_workers_ends_with_a_command(field):
    agent = Agent([HEALTHY])
    vars(agent).update(field)
    assert not agents.await_barrier(agent)


def test_workers_that_are_late_are_made_anew_by_the_agent():
    agent = Agent([HEALTHY])
    agent.inprocess_timeout = 1e-9
    with pytest.raises(HyperPodPLRException, match="local ranks"):
        agents.await_barrier(agent)


def test_other_states_of_the_agent_are_its_own(monkeypatch):
    asked = []
    monkeypatch.setattr(agents, "_on_success", lambda *words: asked.append(words))
    agent = Agent([HEALTHY])
    agent.set_agent_state(AgentState.RUNNING)
    agents.on_success(agent, "default", None)
    assert asked == [(agent, "default", None)]


# Whole jobs


def faults_of(folder):
    happened = records(bundle_of(folder) / "run" / "events.jsonl")
    return [event for event in happened if event["kind"] == "fault"]


def shown(folder, *words):
    """Return what a command shows of the job in a folder."""
    code, out, err = run(*words, cwd=folder, module=True)
    assert code in (0, 3), err
    return out + err


@pytest.mark.whole_job
def test_a_missing_file_is_the_error_of_the_job(tmp_path):
    data = "recipes.training_config.datasets.train_data.file_path=/nowhere/corpus.txt"
    code, out, err = run(data, "recipes.training_config.mlflow.enabled=false", cwd=tmp_path)
    error = "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/corpus.txt'"
    assert code == 3 and "exited with code 1" in err, out
    (fault,) = faults_of(tmp_path)
    assert (fault["node"], fault["cause"], fault["message"].endswith(error)) == (0, Cause.WORKER, True)
    name = bundle_of(tmp_path).name
    status = shown(tmp_path, "status", name)
    assert f"first error rank {status.partition('first error rank ')[2][0]} on node 0" in status
    assert error in status and "file_missing" in status and "ready in time" not in status
    for rank in (0, 1):
        lines = shown(tmp_path, "logs", name, f"--rank={rank}", "--stderr").splitlines()
        assert error in lines and "Traceback (most recent call last):" in lines
    assert "attempt 0: 1 node, 2 ranks" in shown(tmp_path, "logs", name)
    assert error in " ".join(shown(tmp_path, "timeline", name).split())
    assert left_behind(tmp_path) == []


@pytest.mark.whole_job
def test_a_script_that_one_rank_cannot_import_names_that_rank(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os\n"
        "from launcher.runtime import elastic\n"
        "if os.environ['LOCAL_RANK'] == '1':\n"
        "    import there_is_no_such_module\n"
        "elastic.run(lambda: None)\n"
    )
    words = ("recipes=training/custom/elastic_script", "cluster=local", f"training_cfg.entry_script={script}")
    code, out, err = run(*words, cwd=tmp_path)
    assert code == 3, out
    assert "rank 1 (node 0, local rank 1) exited with code 1" in err
    assert "first error rank 1 on node 0" in err and "No module named 'there_is_no_such_module'" in err
    assert [fault["cause"] for fault in faults_of(tmp_path)] == [Cause.WORKER]
    assert left_behind(tmp_path) == []


TRAPS = """
import os, signal, time
from pathlib import Path

RUN_DIR = Path(os.environ["RECIPES_RUN_DIR"])


def is_first(name):
    try:
        (RUN_DIR / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


if is_first("killed"):
    os.kill(os.getpid(), signal.SIGKILL)
if (RUN_DIR / "metrics.jsonl").exists() and is_first("lacking"):
    raise FileNotFoundError("no such corpus")
"""
HOLD = """
        while job.step == 12 and '"abandoned"' not in (RUN_DIR / "events.jsonl").read_text():
            time.sleep(0.05)
"""
"""A rank continues once the operator has dropped the new node."""


@pytest.mark.whole_job
@pytest.mark.usefixtures("store")
def test_a_worker_that_is_killed_gets_a_successor_and_a_new_node_whose_worker_fails_is_dropped(tmp_path):
    loop = "    for points, labels in job.steps(loader):"
    head, _, body = (ROOT / "examples" / "train_elastic.py").read_text().partition(loop)
    assert body
    own = program_of(f"{TRAPS}{head}{loop}{HOLD}{body}", tmp_path)
    size = ("recipes.trainer.num_nodes=1", "recipes.trainer.devices=1", "++recipes.scale_config=auto")
    size += ("recipes.elastic_policy.resize=in_place",)
    code, out, err = run(own, *size, "+cluster.events=[{at:{step:5},capacity:2}]", cwd=tmp_path)
    assert code == 0, out + err
    killed, lacking = faults_of(tmp_path)
    assert (killed["node"], killed["warming"]) == (0, False) and "SIGKILL" in killed["message"]
    assert (lacking["node"], lacking["warming"]) == (2, True)
    assert lacking["message"].endswith("FileNotFoundError: no such corpus")
    starts = [each for each in records(bundle_of(tmp_path) / "run" / "events.jsonl") if each["kind"] == "starting"]
    assert (starts[0]["attempt"], starts[0]["nodes"]) == (0, [1])
    assert left_behind(tmp_path) == []
