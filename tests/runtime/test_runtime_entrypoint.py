import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ports import free_ports
from runtime_ranks import metrics, tiny_config, uneven

from launcher.common import names
from launcher.runtime import agent
from launcher.runtime.checkpoint import latest_progress

ROOT = Path(__file__).parents[2]


def write_configs(folder: Path, **tracking) -> None:
    folder.mkdir()
    for nodes, changes in ((1, {}), (3, {"uneven_batch": uneven(2, 3, 6)})):
        config = tiny_config(nodes, max_epochs=1, **changes)
        config["training_config"]["mlflow"] = tracking or {"enabled": False}
        (folder / names.config_name(nodes)).write_text(yaml.safe_dump(config))


def start(folder: Path, processes: int, local_processes: int, **env: str) -> list[subprocess.Popen]:
    (port,) = free_ports(1)
    common = (
        os.environ
        | env
        | {
            "PYTHONPATH": os.pathsep.join(filter(None, (env.get("PYTHONPATH"), str(ROOT)))),
            names.ENV_RUN_DIR: str(folder / "run"),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(local_processes),
            "CUDA_VISIBLE_DEVICES": "",
        }
    )
    return [
        subprocess.Popen(
            [sys.executable, "-m", "launcher.runtime.entrypoint", "--config-path", str(folder / "configs")],
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank % local_processes)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]


@pytest.mark.slow
def test_ranks_pick_the_configuration_of_their_cluster_size(tmp_path):
    write_configs(tmp_path / "configs")
    ranks = start(tmp_path, processes=3, local_processes=1)
    outputs = [rank.communicate(timeout=200) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0], outputs
    assert "finished at step 5, loss" in outputs[0][0]
    assert outputs[1][0] == ""
    assert {line["nodes"] for line in metrics(tmp_path / "run")} == {3}


@pytest.mark.slow
def test_the_first_step_does_not_wait_for_mlflow(tmp_path):
    write_configs(tmp_path / "configs", enabled=True, tracking_uri="http://127.0.0.1:9", run_id="r")
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "mlflow.py").write_text(  # its import ends only after the last step
        "import pathlib, time\n"
        f"steps = pathlib.Path({str(tmp_path / 'run' / 'metrics.jsonl')!r})\n"
        "while not steps.exists() or steps.read_text().count('\\n') < 5:\n"
        "    time.sleep(0.05)\n"
        "from nowhere import nothing\n"
    )
    (rank,) = start(tmp_path, 1, 1, PYTHONPATH=str(slow))
    try:
        output, errors = rank.communicate(timeout=200)
    finally:
        rank.kill()
    assert rank.returncode == 0, errors
    assert len(metrics(tmp_path / "run")) == 5 and "finished at step 5" in output


@pytest.mark.slow
def test_a_fault_prints_its_traceback_and_exits_nonzero(tmp_path):
    write_configs(tmp_path / "configs")
    path = tmp_path / "configs" / names.config_name(1)
    path.write_text(path.read_text().replace("tiny_lm", "huge_lm"))
    (rank,) = start(tmp_path, 1, 1)
    _, errors = rank.communicate(timeout=200)
    assert rank.returncode == 1
    assert "Traceback" in errors and "run.model_type='huge_lm'; this trainer builds tiny_lm" in errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "mode", "says"),
    [
        ("importing", "distributed", "True True\n"),
        ("installed", "distributed", "True True\n"),
        ("importing", "disabled", "False False\n"),
    ],
    ids=["during_the_import", "after_it", "coordination_disabled"],
)
def test_the_stop_signal_survives_the_import_of_its_handler(when, mode, says):
    pytest.importorskip(agent.PACKAGE)
    handler = f"{agent.PACKAGE}.elastic_event_handler"
    program = f"""
import os, signal, sys
from launcher.runtime import agent

class Stop:
    def find_spec(name, path=None, target=None):
        if name == {handler!r}:
            os.kill(os.getpid(), signal.SIGUSR1)

if {when!r} == "importing":
    sys.meta_path.insert(0, Stop)
agent.install_event_handler()
if {when!r} == "installed":
    os.kill(os.getpid(), signal.SIGUSR1)
from {handler} import elastic_event_detected
print(agent.event_pending(), elastic_event_detected())
"""
    env = os.environ | {"HYPERPOD_SIGNAL_COORDINATION": mode, "PYTHONPATH": str(ROOT)}
    process = subprocess.run([sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, text=True)
    assert (process.returncode, process.stdout) == (0, says)


def test_without_the_agent_there_are_no_events(monkeypatch):
    before = signal.getsignal(signal.SIGUSR1)
    monkeypatch.setattr(agent, "PACKAGE", "no_such_package")
    agent.install_event_handler()
    assert signal.getsignal(signal.SIGUSR1) == before
    assert not agent.event_pending()


@pytest.mark.slow
def test_an_event_on_one_rank_stops_all_with_a_checkpoint(tmp_path):
    pytest.importorskip(agent.PACKAGE)
    write_configs(tmp_path / "configs")
    path = tmp_path / "configs" / names.config_name(1)
    path.write_text(path.read_text().replace("max_epochs: 1", "max_epochs: 5000"))
    ranks = start(tmp_path, 2, 2, HYPERPOD_SIGNAL_COORDINATION="distributed")
    assert "step 1/" in ranks[0].stdout.readline()
    ranks[1].send_signal(signal.SIGUSR1)
    outputs = [rank.communicate(timeout=200) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    done = metrics(tmp_path / "run")[-1]["step"]
    assert f"stopped at step {done} as requested" in outputs[0][0]
    assert latest_progress(tmp_path / "run" / names.CHECKPOINT_DIR)[1].step == done


@pytest.mark.parametrize(("given", "ranks", "threads"), [("3", 4, 3), ("2,1", 4, 2), ("", 1000, 1), (None, 1000, 1)])
def test_processes_of_a_node_share_its_cores(given, ranks, threads, monkeypatch):
    import torch

    from launcher.runtime import entrypoint
    from launcher.runtime.process_group import Place

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    before = torch.get_num_threads()
    try:
        entrypoint._share_cores(Place(0, ranks, 0, ranks, torch.device("cpu")))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
