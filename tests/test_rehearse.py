"""Rehearsals of Ray jobs: the cluster of a bundle, the check of its program, and real Ray clusters here."""

import dataclasses
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
from background import await_true, command_lines
from conftest import ROOT, rendered
from manifest_schemas import DATA
from terminals import on_a_terminal

from launcher.api import rehearsing
from launcher.cli import main as cli
from launcher.common import yaml_io
from launcher.common.problems import ProblemsFound
from launcher.model.ray_job import Pool, RayJob, ResourceCheck
from launcher.rehearsal import plan, report, run

LEGACY = "fine-tuning/qwen/verl-grpo-rlvr-qwen-3-8b-lora"
NEW = "fine-tuning/nemotron-0_7_0/verl-grpo-rlvr-nemotron-3-super-120b-lora"
SCRIPT = ("training/custom/script", "cluster=ray", "training_cfg.entry_script=train.py")
JOB = "manifests/job.yaml"
WORKER = {"CPU": 48, "GPU": 8}
HEAD = {"CPU": 16, "GPU": 0}
POOL = Pool("global_pool", 2, 8, {"CPU": 3, "GPU": 1}, "nnodes=2 × gpus=8")
CHECK = ResourceCheck((POOL,), "STRICT_PACK", 1, "the engine loads the model", "its code")


def grpo(render, recipe, cluster, *words):
    image = ("container=me/image:1",) if cluster == "k8s" else ()
    return render(f"recipes={recipe}", f"cluster={cluster}", *image, *DATA, *words)


def rehearsal(bundle, cluster):
    return plan.rehearsal_of(bundle, cluster)


def with_workers(bundle, number):
    """Return a bundle whose RayJob has another number of workers, as if its recipe set only that."""
    text = re.sub(r"(?m)^(\s+(?:\w+R|r)eplicas: )\d+$", rf"\g<1>{number}", bundle.files[JOB])
    return dataclasses.replace(bundle, files={**bundle.files, JOB: text})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster", "words", "head", "workers", "source"),
    [
        ("k8s", (), HEAD, [WORKER] * 2, JOB),
        ("slurm", (), {"CPU": 192, "GPU": 8}, [{"CPU": 192, "GPU": 8}], "slurm/job.sh and slurm/ray.sh"),
        (
            "slurm",
            ("cluster.exclusive=false", "cluster.cpus_per_task=4"),
            {"CPU": 32, "GPU": 8},
            [{"CPU": 32, "GPU": 8}],
            "slurm/job.sh and slurm/ray.sh",
        ),
        ("ray", (), {}, [{"GPU": 8}] * 2, "recipes.trainer.num_nodes and devices; cluster=ray"),
    ],
    ids=["k8s", "slurm", "slurm-shared", "ray"],
)
def test_the_cluster_is_that_of_the_bundle(render, cluster, words, head, workers, source):
    job = rehearsal(grpo(render, LEGACY, cluster, "recipes.trainer.num_nodes=2", *words), cluster).job
    assert (job.head, list(job.workers)) == (head, workers) and job.source.startswith(source)


@pytest.mark.slow
def test_workers_are_counted_in_the_manifest_and_their_cpus_are_limits_before_requests(render):
    words = ("recipes.trainer.num_nodes=2", "recipes.ray_cluster.worker_nodes.cpuLimit=63500m")
    bundle = grpo(render, LEGACY, "k8s", *words)
    found = rehearsal(with_workers(bundle, 1), "k8s")
    assert found.job.workers == ({"CPU": 64, "GPU": 8},)
    assert found.check.accelerators == 16
    assert yaml_io.load(bundle.files[JOB])["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "cpus", "release"), [(LEGACY, 1, "verl 0.6"), (NEW, 3, "verl 0.7")])
def test_the_program_reserves_by_its_own_configuration(render, recipe, cpus, release):
    check = rehearsal(grpo(render, recipe, "k8s", "recipes.trainer.num_nodes=2"), "k8s").check
    assert [(pool.nodes, pool.processes, pool.bundle) for pool in check.pools] == [(2, 8, {"CPU": cpus, "GPU": 1})]
    assert check.source.startswith(release) and "(vllm)" in check.next_step


@pytest.mark.slow
def test_words_of_the_start_command_resize_the_program_and_not_the_cluster(render):
    words = "python -m verl.trainer.main_ppo trainer.nnodes=3 +trainer.n_gpus_per_node=4 reward_model.nnodes=1"
    words += " reward_model.n_gpus_per_node=2 reward_model.enable_resource_pool=True"
    command = f"cluster.command=[{','.join(repr(word) for word in words.split())}]"
    found = rehearsal(grpo(render, NEW, "k8s", "recipes.trainer.num_nodes=2", command), "k8s")
    assert [(pool.name, pool.nodes, pool.processes) for pool in found.check.pools] == [
        ("global_pool", 3, 4),
        ("reward_pool", 1, 2),
    ]
    assert found.check.accelerators == 14 and len(found.job.workers) == 2


def lines(workers, result, check=CHECK, head=HEAD):
    job = RayJob(head, tuple(workers), JOB, ())
    found = tuple(report.findings(job, check, report.Result(*result)))
    return [*map(str, found), *report.conclusion(check, found, job)]


def test_a_check_that_passes_says_why_it_ends_and_what_is_proven():
    assert lines([WORKER] * 2, (True, 16, (2,))) == [
        "ok    16 GPUs needed (nnodes=2 × gpus=8), 16 offered by 2 nodes with 8",
        "ok    global_pool: 2 of 2 placement groups ready, each 8 × {CPU: 3, GPU: 1} on one node (STRICT_PACK)",
        "the rehearsal ends here, as planned: next, the engine loads the model",
        "proven: the cluster has the nodes, accelerators and CPUs that the program reserves; "
        "not proven: that model, data and batches fit the accelerators",
        "the check is the launcher's own, after its code",
    ]


@pytest.mark.parametrize(
    ("workers", "result", "expected"),
    [
        (
            [WORKER],
            (True, 8, (1,)),
            ["16 GPUs needed", "8 offered by 1 node with 8: the program stops with an error"],
        ),
        ([WORKER], (True, 8, (1,)), ["1 of 2 placement groups ready", "1 node can hold one", f"that of {JOB}"]),
        ([{"CPU": 20, "GPU": 8}] * 2, (True, 16, (0,)), ["0 nodes can hold one; a worker has 20 of 24 CPUs"]),
        (
            [{"CPU": 20, "GPU": 8}] * 2,
            (True, 16, (0,)),
            ["waits for ever", "2 nodes must have 24 CPUs and 8 GPUs"],
        ),
        ([{"CPU": 48, "GPU": 4}] * 4, (True, 16, (0,)), ["a worker has 4 of 8 GPUs: the program waits for ever"]),
        ([{"GPU": 4}] * 4, (True, 16, (0,)), ["0 nodes can hold one; a worker has 4 of 8 GPUs: the"]),
        ([{"CPU": 48}] * 2, (True, 0, (0,)), ["0 nodes can hold one; a worker has 0 of 8 GPUs"]),
        ([{"CPU": 20, "GPU": 4}] * 4, (True, 16, (0,)), ["a worker has 20 of 24 CPUs and 4 of 8 GPUs: the"]),
        ([{"CPU": 20, "GPU": 4}, {"CPU": 20, "GPU": 12}], (True, 16, (0,)), ["; a worker has 20 of 24 CPUs: the"]),
        ([WORKER] * 2, (False, 16, (2,)), ["no node has the 1 CPU of the program's main loop"]),
        ([WORKER] * 3, (True, 24, (2,)), ["note  8 GPUs of the cluster would be idle", "as planned"]),
        ([{"GPU": 8}] * 2, (True, 16, (2,)), ["2 of 2 placement groups ready", "as planned"]),
        ([], (True, 0, (0,)), ["0 offered by no node", "0 nodes can hold one"]),
    ],
    ids=[
        *("gpus", "groups", "cpus", "waits", "gpus-of-a-node", "gpus-alone", "no-gpus", "both", "nearest"),
        *("driver", "idle", "unknown-cpus", "no-workers"),
    ],
)
def test_a_finding_has_the_numbers_of_both_sides(workers, result, expected):
    text = "\n".join(lines(workers, result))
    assert [each for each in expected if each not in text] == [], text
    assert ("as planned" in text) == ("fails" not in text)


def test_a_check_that_fails_names_both_sides_and_the_remedy():
    check = CHECK._replace(pools=(POOL, Pool("reward_pool", 1, 2, {"CPU": 3, "GPU": 1}, "reward=1 × 2")))
    assert lines([WORKER, {"GPU": 4}], (False, 12, (1, 1)), check) == [
        "fails no node has the 1 CPU of the program's main loop",
        "fails 18 GPUs needed (nnodes=2 × gpus=8 + reward=1 × 2), 12 offered by 1 node with 8 and 1 node with 4: "
        "the program stops with an error",
        "fails global_pool: 1 of 2 placement groups ready, each 8 × {CPU: 3, GPU: 1} on one node (STRICT_PACK); "
        "1 node can hold one; a worker has 4 of 8 GPUs",
        "ok    reward_pool: 1 of 1 placement group ready, each 2 × {CPU: 3, GPU: 1} on one node (STRICT_PACK)",
        "the job would not start: the program reserves by nnodes=2 × gpus=8 and reward=1 × 2, "
        f"the cluster is that of {JOB}",
        "remedy: recipes.trainer.num_nodes and devices set both sides; 2 nodes must have 24 CPUs and 8 GPUs free",
    ]


def test_the_result_of_a_check_is_a_line_of_json_with_a_number_for_each_pool():
    found = report.read_result('{"is_driver_placed": true, "available": 16, "ready": [2, 1]}')
    assert found == report.Result(True, 16, (2, 1)) and isinstance(found.ready, tuple)
    with pytest.raises(ValueError, match="shorter"):
        lines([WORKER] * 2, (True, 16, ()))


def test_pools_that_fill_the_same_nodes_are_not_said_to_lack_them():
    check = CHECK._replace(pools=(POOL, Pool("reward_pool", 1, 8, POOL.bundle, "reward=1 × 8")))
    text = "\n".join(lines([{"CPU": 48, "GPU": 12}] * 2, (True, 24, (2, 0)), check))
    assert "24 GPUs needed (nnodes=2 × gpus=8 + reward=1 × 8), 24 offered by 2 nodes with 12" in text
    assert "reward_pool: 0 of 1 placement group ready" in text
    assert "2 nodes can hold one, which the program has filled before: the program waits for ever" in text


def test_equal_nodes_are_listed_together():
    job = RayJob({}, (WORKER, {"CPU": 1, "GPU": 1}, WORKER), JOB, ())
    assert list(report.cluster_lines(job)) == [
        "head: an unknown number of CPUs, taken as enough, 0 GPUs",
        "2 workers: 48 CPUs, 8 GPUs each",
        "1 worker: 1 CPU, 1 GPU",
    ]
    assert list(report.cluster_lines(RayJob(HEAD, (), JOB, ())))[1:] == ["no workers"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("fine-tuning/qwen-0_7_0/verl-sft-qwen-3-8b-lora", "cluster=k8s", *DATA), "E426"),
        (("training/tiny/tiny_lm_cpu",), "E426"),
        ((LEGACY, *DATA), "E113"),
        ((LEGACY, "cluster=k8s"), "E122"),
        ((*SCRIPT, "cluster.working_dir=absent"), "E826"),
    ],
    ids=["another-program", "local", "roles", "recipe", "code"],
)
def test_a_job_that_cannot_be_rehearsed_is_a_problem(recipes, words, code):
    exit_code, out, err = recipes("rehearse", *words)
    assert (exit_code, out) == (2, "") and err.startswith(code), err


@pytest.mark.slow
def test_a_machine_that_cannot_rehearse_is_a_problem(render, monkeypatch):
    bundle = grpo(render, LEGACY, "k8s", "recipes.trainer.num_nodes=2")
    with monkeypatch.context() as patch:
        patch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 30))
        with pytest.raises(ProblemsFound, match="E428") as small:
            rehearsal(bundle, "k8s")
    assert small.value.problems[0].allowed == "at most 2 nodes, the head included"
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else found(name))
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ProblemsFound) as absent:
        rehearsal(bundle, "k8s")
    assert [(each.code, each.remedy) for each in absent.value.problems] == [
        ("E427", "pip install '.[ray]'"),
        ("E427", None),
    ]


@pytest.mark.slow
def test_a_bundle_takes_no_overrides(recipes):
    assert recipes("render", LEGACY, "cluster=k8s", "container=me/image:1", *DATA, "recipes.run.name=known")[0] == 0
    (folder,) = (path for path in os.listdir("results") if path.startswith("known"))
    code, _, err = recipes("rehearse", folder, "recipes.trainer.num_nodes=2")
    assert code == 2 and err.startswith("E801 recipes rehearse")


@pytest.mark.slow
def test_refusals_of_other_clusters_name_the_rehearsal(problems):
    found = problems(f"recipes={LEGACY}", "cluster=local", "rehearse=true", *DATA)
    remedies = {each.code: each.remedy for each in found}
    assert "recipes rehearse" in remedies["E113"] and "recipes rehearse" in remedies["E115"]


BEFORE: set[str] = set()
"""Folders that were there when a test began: what one test leaves fails no other."""


@pytest.fixture(autouse=True)
def _before() -> None:
    BEFORE.update(os.listdir("/tmp"))


def left():
    """Return what rehearsals of this machine have left: processes by their folder, and folders."""
    found = [name for name in os.listdir("/tmp") if name.startswith("recipes-rehearsal-") and name not in BEFORE]
    return [*found, *command_lines("/tmp/recipes-rehearsal-", "launcher.rehearsal")]


def test_a_process_with_a_number_that_another_had_is_killed(tmp_path, monkeypatch):
    """psutil keeps the objects of earlier calls; that of the process before refuses every signal."""
    with subprocess.Popen(
        ["sleep", "600"], env={run._FOLDER: str(tmp_path)}, executable=shutil.which("sleep")
    ) as process:
        before = psutil.Process(process.pid)
        before._ident = (process.pid, 0.0)
        monkeypatch.setitem(psutil._pmap, process.pid, before)
        killed = run._kill_members(tmp_path)
        process.kill()
        assert [each.pid for each in killed] == [process.pid]


def real(test):
    """Mark a test that starts a Ray cluster."""
    needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: pip install '.[ray]'")
    for mark in (pytest.mark.whole_job, pytest.mark.slow, needs_ray):
        test = mark(test)
    return test


@real
def test_grpo_ends_at_its_resource_check_and_the_output_explains_why(tmp_path):
    words = (LEGACY, "cluster=k8s", "container=me/image:1", "recipes.trainer.num_nodes=2", *DATA)
    shown = on_a_terminal("rehearse", *words, RAY_ADDRESS="127.0.0.1:9", http_proxy="http://127.0.0.1:9")
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", shown).split())
    assert "0 of 3 nodes of the Ray cluster are up" in text and "3 of 3 nodes" in text
    assert "16 GPUs needed (trainer.nnodes=2 × trainer.n_gpus_per_node=8), 16 offered by 2 nodes with 8" in text
    assert "global_pool: 2 of 2 placement groups ready" in text
    assert "as planned: next, the rollout engine (vllm) loads the model onto the GPUs" in text
    assert left() == []


@real
def test_a_wrong_worker_count_is_found(tmp_path, monkeypatch, capsys):
    words = (f"recipes={LEGACY}", "cluster=k8s", "container=me/image:1", "recipes.trainer.num_nodes=2", *DATA)
    bundle = rendered(tmp_path, *words)
    made = rehearsing.rehearsal_of(with_workers(bundle, 1), "k8s")
    monkeypatch.setattr(rehearsing, "rehearsal", lambda name, overrides: made)
    assert cli.run(("rehearse", LEGACY)) == 3
    out = capsys.readouterr().out
    assert "fails 16 GPUs needed (trainer.nnodes=2 × trainer.n_gpus_per_node=8), 8 offered by 1 node with 8" in out
    assert "fails global_pool: 1 of 2 placement groups ready" in out and f"that of {JOB}" in out
    assert left() == []


@real
@pytest.mark.long
def test_workers_with_too_few_cpus_are_found_by_the_placement_alone(recipes):
    words = ("cluster=k8s", "container=me/image:1", *DATA, "recipes.ray_cluster.worker_nodes.cpu=6")
    code, out, _ = recipes("rehearse", LEGACY, *words)
    assert code == 3 and "ok    8 GPUs needed" in out
    assert "0 of 1 placement group ready" in out and "a worker has 6 of 8 CPUs: the program waits for ever" in out


@real
def test_two_actors_train_on_simulated_accelerators_of_a_network_without_an_exit(recipes, monkeypatch, tmp_path):
    monkeypatch.setenv("MINE", "hunter-two")
    training = (ROOT / "examples" / "train_ray.py").read_text()
    (tmp_path / "code").mkdir()
    shows = "print('network', [name for _, name in socket.if_nameindex()], os.environ['TOKEN'][::-1])"
    (tmp_path / "code" / "train.py").write_text(f"import os, socket\n{shows}\n{training}")
    words = ("training_cfg.run.nodes=2", "training_cfg.run.ntasks_per_node=8", "cluster.working_dir=code")
    words += ("training_cfg.script_args=[{--configs: bundle:configs}]", "++env_vars.TOKEN={env: MINE}")
    code, out, err = recipes("rehearse", *SCRIPT, *words)
    assert code == 0, (out, err)
    slopes = [float(each) for each in re.findall(r"(?m)^step \d+ slope (.*)", out)]
    assert len(slopes) == 40 and abs(slopes[-1] - 3) < 0.01 < abs(slopes[0] - 3)
    assert f"accelerators {sorted([*range(8), *range(8)])}" in out
    assert "network ['lo'] owt-retnuh" in out or "note  N191" in out
    assert out.rstrip().endswith("exit code 0 on simulated accelerators")
    assert sorted(os.listdir(tmp_path)) == ["code"] and left() == []


@real
@pytest.mark.long
def test_a_program_that_fails_or_does_not_end_is_reported(recipes, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("raise SystemExit(7)")
    (tmp_path / "code" / "waits.py").write_text("import time; print('waits', flush=True); time.sleep(900)")
    code, out, _ = recipes("rehearse", *SCRIPT, "cluster.working_dir=code")
    assert code == 3 and "fails the program has ended with exit code 7" in out
    words = ("cluster.working_dir=code", "training_cfg.entry_script=waits.py", "--timeout", "2")
    code, out, _ = recipes("rehearse", *SCRIPT[:2], *words)
    assert code == 3 and "waits" in out
    assert "fails the program ran longer than 2 seconds and was ended; --timeout sets that" in out
    assert left() == []


@real
@pytest.mark.parametrize(
    ("signum", "is_program_up", "code"),
    [(signal.SIGINT, True, 130), (signal.SIGTERM, False, 143), (signal.SIGKILL, True, -9)],
    ids=["ctrl-c", "sigterm-while-it-starts", "kill"],
)
def test_no_process_is_left_however_the_command_ends(tmp_path, signum, is_program_up, code):
    (tmp_path / "train.py").write_text("import time; print('waits', flush=True); time.sleep(900)")
    words = [sys.executable, "-m", "launcher", "rehearse", *SCRIPT, "cluster.working_dir=."]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout
        if is_program_up:
            assert any("waits" in line for line in command.stdout)
        else:
            await_true(lambda: any("gcs_server" in words for words in left()))
        assert left()
        command.send_signal(signum)
        assert command.wait(60) == code
    await_true(lambda: left() == [], timeout_s=60)


@real
@pytest.mark.long
def test_a_cluster_whose_process_is_killed_is_a_problem_and_leaves_nothing(recipes, tmp_path):
    (tmp_path / "train.py").write_text("import os; os.kill(os.getppid(), 9); import time; time.sleep(900)")
    code, _, err = recipes("rehearse", *SCRIPT, "cluster.working_dir=.")
    assert code == 2 and err.startswith("E429 recipes rehearse") and "its process has ended" in err
    await_true(lambda: left() == [], timeout_s=60)


@pytest.mark.slow
def test_a_process_may_get_a_network_of_its_own():
    text = "from launcher.rehearsal.cluster import isolate; import socket\n"
    text += "print(isolate(), [name for _, name in socket.if_nameindex()])\n"
    text += "server = socket.create_server(('127.0.0.1', 0))\n"
    text += "print(bool(socket.create_connection(server.getsockname())))"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=True)
    isolated, connected = done.stdout.splitlines()
    assert connected == "True"
    assert isolated == "True ['lo']" or isolated.startswith("False")
