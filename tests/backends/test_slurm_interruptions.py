"""Jobs that a real Slurm interrupts: a lost node, preemption, the time limit, a controller that restarts."""

import json
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import slurm_cluster
from background import await_true
from conftest import written
from log_texts import log_texts
from test_slurm_jobs import PLAIN, SCRIPT, TINY, SlurmBackend, finished, headline

from launcher import pipeline
from launcher.backends.slurm import run_files
from launcher.common.names import METRICS_FILE, RUN_DIR, SAMPLES_DIR
from launcher.common.problems import ProblemsFound
from launcher.job_store import registry
from launcher.model.job_spec import JobState, LogSelection

pytestmark = pytest.mark.whole_job
BATCH, SAMPLES, SAVE_STEPS = 32, 384, 5
REQUEUE_WAIT_S = 120
"""Time for which Slurm keeps a requeued job from starting."""
MORE = """\
SlurmdTimeout=15
KillWait=30
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=low Nodes=ALL PriorityTier=1 GraceTime=120
PartitionName=high Nodes=ALL PriorityTier=10
"""
PACED = (
    *TINY,
    f"recipes.training_config.datasets.train_data.limit={SAMPLES}",
    f"recipes.training_config.training_args.train_batch_size={BATCH}",
    f"recipes.training_config.training_args.save_steps={SAVE_STEPS}",
    "recipes.training_config.training_args.min_step_seconds=0.4",
    "recipes.training_config.training_args.log_samples=true",
)
"""A training that takes 12 steps of at least 0.4 s."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm_cluster.used(tmp_path_factory.mktemp("slurm"), num_nodes=4, more=MORE) as cluster:
        yield cluster


def steps_of(record):
    """Return the steps that a job has trained so far, with their attempts."""
    path = record.handle.bundle_dir / RUN_DIR / METRICS_FILE
    lines = path.read_text().splitlines() if path.exists() else []
    return [(line["step"], line["attempt"]) for line in map(json.loads, lines)]


def await_step(record, step):
    await_true(lambda: any(done >= step for done, _ in steps_of(record)))


def restart(cluster, record):
    """Start a job that Slurm has returned to the queue, which otherwise waits for two minutes.

    A node refuses a job that starts again within the second in which it ended: "Job credential revoked".
    """
    await_true(lambda: "BeginTime" in SlurmBackend().status(record.handle).message)
    cluster.command("scontrol", "update", f"JobId={record.handle.native_id}", "StartTime=now+3")


def trained(record):
    """Return how often each sample was trained on; of a step that was repeated, the last attempt counts."""
    of_step = {}
    for path in (record.handle.bundle_dir / RUN_DIR / SAMPLES_DIR).glob("rank-*.jsonl"):
        for each in map(json.loads, path.read_text().splitlines()):
            of_step.setdefault(each["step"], {}).setdefault(each["attempt"], []).extend(each["samples"])
    return Counter(sample for attempts in of_step.values() for sample in attempts[max(attempts)])


def kinds(record):
    return [event.kind for event in SlurmBackend().events(record.handle, follow=False)]


def lines_of(record, attempt):
    return list(log_texts(SlurmBackend(), record.handle, LogSelection(attempt=attempt), follow=False))


def test_a_lost_node_sends_the_job_back_and_each_sample_counts_once(cluster, tmp_path):
    """Its processes are killed, too, as by a machine that loses power."""
    record = pipeline.submit(written(tmp_path, *PACED), SlurmBackend())
    await_step(record, SAVE_STEPS + 1)
    cluster.lose(batch_host(cluster, record, is_first=False))
    restart(cluster, record)
    assert finished(record).restarts == 1
    assert trained(record) == Counter(range(SAMPLES))
    (resumed,) = (line for line in lines_of(record, 1) if line.startswith("resumed from step "))
    assert int(resumed.split()[3]) % SAVE_STEPS == 0
    assert kinds(record) == ["Started", "Stopped", "Started", "Completed"]
    cluster.await_ready()


def batch_host(cluster, record, *, is_first):
    """Return the node of a job that runs its batch script, or the other one."""
    shown = cluster.command("squeue", "--noheader", "--format=%N", "--jobs", record.handle.native_id)
    names = cluster.command("scontrol", "show", "hostnames", shown.strip()).split()
    return names[0 if is_first else -1]


def test_a_preempted_job_saves_within_the_grace_period_and_returns(cluster, tmp_path):
    record = pipeline.submit(written(tmp_path, *PACED, "cluster.partition=low"), SlurmBackend())
    await_step(record, SAVE_STEPS + 2)
    # Its steps pause, so that it does not complete first; Slurm lets them go on as it preempts the job.
    cluster.command("scancel", "--signal=STOP", record.handle.native_id)
    urgent = ("sbatch", "--parsable", "--partition=high", "--nodes=4", "--exclusive", f"--output={tmp_path}/urgent")
    cluster.command(*urgent, "--wrap=true")
    assert finished(record).restarts == 1
    assert trained(record) == Counter(range(SAMPLES))
    done = steps_of(record)
    last = max(step for step, attempt in done if attempt == 0)
    assert [step for step, attempt in done if attempt == 1] == list(range(last + 1, SAMPLES // BATCH + 1))
    assert any(line.startswith(f"resumed from step {last} ") for line in lines_of(record, 1))
    assert kinds(record) == ["Started", "Stopped", "Started", "Completed"]
    _, stopped, restarted, _ = SlurmBackend().events(record.handle, follow=False)
    assert restarted.time_s - stopped.time_s < REQUEUE_WAIT_S
    await_true(lambda: not any(name.endswith("-release") for name in waiting_names(cluster)))


def waiting_names(cluster):
    return cluster.command("squeue", "--noheader", "--format=%j").split()


def test_a_job_beyond_its_time_limit_has_failed(cluster, tmp_path):
    words = (*SCRIPT, "training_cfg.run.nodes=1", "cluster.time=1", f"training_cfg.entry_script={tmp_path}/sleep.py")
    (tmp_path / "sleep.py").write_text(f"import time; open('{tmp_path}/asleep', 'w'); time.sleep(1000)")
    record = pipeline.submit(written(tmp_path, *words), SlurmBackend())
    await_true((tmp_path / "asleep").exists)  # Slurm refuses a step that starts after the job's end
    cluster.command("scontrol", "update", f"JobId={record.handle.native_id}", "EndTime=now+1")
    status = finished(record, JobState.FAILED)
    assert (headline(status), status.restarts) == ("the time limit was reached", 0)
    assert kinds(record) == ["Started", "TimedOut"]
    own = run_files.jobs_folder(record.handle.bundle_dir) / record.handle.native_id
    own.rename(own.with_name("999999"))  # an id that this controller does not know
    assert headline(SlurmBackend().status(replace(record.handle, native_id="999999"))) == headline(status)


def test_launches_at_the_same_time_submit_each_job_once(cluster, tmp_path):
    bundles = [written(tmp_path / str(number), *PLAIN) for number in range(10)]
    with ThreadPoolExecutor(20) as pool:
        handles = list(pool.map(lambda bundle: SlurmBackend().submit(bundle), [*bundles, *bundles]))
    assert sum(handle.is_new for handle in handles) == 10
    assert [each.native_id for each in handles[:10]] == [each.native_id for each in handles[10:]]
    assert len({each.native_id for each in handles}) == 10
    for handle in handles[:10]:
        *_, status = SlurmBackend().wait(handle)
        assert status.state is JobState.SUCCEEDED


def names_in_queue(cluster):
    return cluster.command("squeue", "--noheader", "--states=all", "--format=%j").split()


def test_a_launch_waits_for_a_controller_that_restarts(cluster, tmp_path):
    bundle = written(tmp_path, *PLAIN)
    cluster.stop("slurmctld")
    with ThreadPoolExecutor(1) as pool:
        submission = pool.submit(pipeline.submit, bundle, SlurmBackend())
        cluster.start("slurmctld")
        record = submission.result()
    finished(record)
    assert sum(bundle.digest[:12] in name for name in names_in_queue(cluster)) == 1


def test_an_answer_that_is_lost_with_the_controller_leaves_one_job(cluster, tmp_path, monkeypatch):
    """The controller ends when it has accepted the job, before sbatch has its answer."""
    bundle, controller = written(tmp_path, *PLAIN), cluster.daemons["slurmctld"]
    lost = "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"
    real = shutil.which("sbatch")
    (tmp_path / "sbatch").write_text(f"""#!/bin/bash
{real} "$@" || exit
[[ "$*" == *--test-only* ]] && exit
kill {controller.pid}
echo "{lost}" >&2
exit 1
""")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with ThreadPoolExecutor(1) as pool:
        submission = pool.submit(pipeline.submit, bundle, SlurmBackend())
        await_true(lambda: controller.poll() is not None)
        cluster.start("slurmctld")
        record = submission.result()
    assert record.handle.is_new
    again = pipeline.submit(bundle, SlurmBackend())
    assert again.handle.native_id == record.handle.native_id
    finished(record)
    assert sum(bundle.digest[:12] in name for name in names_in_queue(cluster)) == 1


def test_a_job_that_the_controller_lists_after_its_answer_is_lost_is_found(cluster, tmp_path, monkeypatch):
    bundle, released = written(tmp_path, *PLAIN), tmp_path / "released"
    lost = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    real = shutil.which("sbatch")
    (tmp_path / "sbatch").write_text(f"""#!/bin/bash
[[ "$*" == *--test-only* ]] && exec {real} "$@"
(until [ -e {released} ]; do sleep 0.1; done; exec {real} "$@") > /dev/null 2>&1 &
echo "{lost}" >&2
exit 1
""")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(ProblemsFound) as refused:
        pipeline.submit(bundle, SlurmBackend())
    assert "E352" in [problem.code for problem in refused.value.problems]
    record = registry.submitted(bundle.directory)
    assert "may still create it" in registry.status(record, SlurmBackend()).message
    released.touch()
    await_true(lambda: "may still" not in registry.status(record, SlurmBackend()).message)
    assert not pipeline.submit(bundle, SlurmBackend()).handle.is_new
    finished(registry.submitted(bundle.directory))
    assert sum(bundle.digest[:12] in name for name in names_in_queue(cluster)) == 1


@pytest.mark.parametrize("name", ["events.jsonl", "exit_code", "room"])
def test_a_full_disk_in_the_job_s_folder_ends_the_job_with_the_reason(cluster, tmp_path, name):
    """Nothing can be written to these files; the last one tells a disk with a few bytes left from one with room."""
    words = (*PLAIN, "cluster.python=/bin/false", "cluster.additional_parameters={hold: true}")
    record = pipeline.submit(written(tmp_path, *words), SlurmBackend())
    own = run_files.jobs_folder(record.handle.bundle_dir) / record.handle.native_id
    own.mkdir(parents=True)
    (own / name).symlink_to("/dev/full")
    (own.parent.parent / f"slurm-{record.handle.native_id}.log").symlink_to("/dev/full")
    cluster.command("scontrol", "release", record.handle.native_id)
    *_, status = SlurmBackend().wait(record.handle)
    assert status.state is JobState.FAILED
    assert "its disk may be full" in status.message
