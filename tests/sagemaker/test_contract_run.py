"""Training jobs on this machine: what their programs find, what they leave, and how they end."""

import errno
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import commands
import pytest
from background import await_true
from conftest import ROOT
from contract_jobs import TIMEOUT_S, J, operator_of, processes_of, start, write_bundle
from log_texts import log_texts

from launcher import pipeline
from launcher.backends.sagemaker_local import isolation
from launcher.backends.sagemaker_local.backend import ContractBackend
from launcher.backends.sagemaker_local.record import PID_FILE
from launcher.cli import launch
from launcher.cli import main as cli
from launcher.common.names import RUN_DIR
from launcher.job_store import registry
from launcher.model import backend_registry
from launcher.model.job_spec import JobState, LogSelection
from launcher.operator.snapshot import OPERATOR_LOG

pytest_plugins = ("s3_server",)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

SOON_S = 40.0
"""A job that waits for a store that does not answer takes a minute or more: boto3's default of one attempt."""
BEST = isolation.probe()
needs_namespaces = pytest.mark.skipif(BEST is isolation.FOLDERS, reason="this kernel does not allow namespaces")

LOOK = """
import json, os, pathlib, socket
config = pathlib.Path("/opt/ml/input/config")
me = socket.gethostname()
found = {file.stem: json.loads(file.read_text()) for file in config.iterdir()}
found["addresses"] = {name: socket.gethostbyname(name) for name in found["resourceconfig"]["hosts"]}
found["environment"] = dict(os.environ)
found["pid"] = os.getpid()
found["processes"] = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
found["cwd"] = os.getcwd()
found["opt"] = sorted(os.listdir("/opt"))
found["recipe"] = os.listdir("/opt/ml/input/data/recipe")
pathlib.Path(f"/opt/ml/model/{me}.json").write_text(json.dumps(found))
pathlib.Path(f"/opt/ml/output/data/{me}").write_text(me)
print(f"done on {me}", flush=True)
"""


def fleet(tmp_path, program, **options):
    job = start(tmp_path, program, **options)
    assert job.end().state is JobState.SUCCEEDED, job.log()
    return job, {name.removesuffix(".json"): json.loads(text) for name, text in job.archived().items()}


@pytest.mark.slow
@needs_namespaces
@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(BEST, id="best"),
        pytest.param(isolation.AS_USER[0], id="user namespace"),
        pytest.param(isolation.AS_USER[1], id="shared process numbers"),
    ],
)
def test_hosts_find_the_contract(chosen, tmp_path):
    words = (f"{J}.environment={{A: 'b c'}}", f'{J}.hyperparameters={{lr: 0.1, name: "it\'s"}}', "env_vars={E: 1}")
    job = start(tmp_path, LOOK, *words, nodes=2, chosen=chosen)
    assert job.end().state is JobState.SUCCEEDED, job.log()
    seen = {name.removesuffix(".json"): json.loads(text) for name, text in job.archived().items()}
    assert sorted(seen) == ["algo-1", "algo-2"]
    for name, found in seen.items():
        assert found["hyperparameters"] == {"lr": "0.1", "name": "it's"}
        assert found["inputdataconfig"] == {
            "recipe": {
                "TrainingInputMode": "File",
                "S3DistributionType": "FullyReplicated",
                "RecordWrapperType": "None",
            }
        }
        group = {"instance_group_name": "homogeneousCluster", "instance_type": "ml.m5.2xlarge"}
        assert found["resourceconfig"] == {
            "current_host": name,
            "current_instance_type": "ml.m5.2xlarge",
            "current_group_name": "homogeneousCluster",
            "hosts": ["algo-1", "algo-2"],
            "instance_groups": [group | {"hosts": ["algo-1", "algo-2"]}],
            "network_interface_name": "lo",
        }
        assert found["addresses"] == {"algo-1": "127.1.0.1", "algo-2": "127.1.0.2"}
        environment, job_name = found["environment"], job.handle.job_name
        assert (environment["A"], environment["E"]) == ("b c", "1")
        assert environment["TRAINING_JOB_NAME"] == job_name
        assert environment["TRAINING_JOB_ARN"] == job.handle.uid
        assert job.handle.uid.endswith(f":training-job/{job_name}")
        assert found["recipe"] == ["config.yaml"]
        assert found["cwd"] == "/opt/ml/code"
        assert set(os.listdir("/opt")) | {"ml"} == set(found["opt"])
    assert job.archived("output.tar.gz") == {"algo-1": "algo-1", "algo-2": "algo-2"}
    assert job.statuses() == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    assert chosen.note in job.told()
    assert not (job.run_dir / "hosts").exists()


@pytest.mark.slow
def test_without_namespaces_variables_name_each_hosts_folder_and_the_job_says_so(tmp_path):
    program = """
import os, json, pathlib, sys
base = os.environ["SAGEMAKER_BASE_DIR"]
assert sys.argv[1:] == ["--out", base + "/model"], sys.argv
resources = json.load(open(base + "/input/config/resourceconfig.json"))
me = os.environ["SM_CURRENT_HOST"]
assert resources["current_host"] == me and json.loads(os.environ["SM_HOSTS"]) == resources["hosts"]
assert json.loads(os.environ["SM_HPS"]) == {"at": base + "/input", "lr": 0.1}
assert os.environ["SM_HP_AT"] == base + "/input" and os.environ["SM_CHANNELS"] == '["recipe"]'
assert os.listdir(os.environ["SM_CHANNEL_RECIPE"]) == ["config.yaml"]
pathlib.Path(os.environ["SM_MODEL_DIR"], me).write_text(base)
"""
    words = (f"{J}.container_arguments=[--out,/opt/ml/model]", f"{J}.hyperparameters={{lr: 0.1, at: /opt/ml/input}}")
    job = start(tmp_path, program, *words, nodes=2, chosen=isolation.FOLDERS)
    assert job.end().state is JobState.SUCCEEDED, job.log() + (job.run_dir / OPERATOR_LOG).read_text()
    assert len(set(job.archived().values())) == 2
    assert isolation.FOLDERS.note in job.told()


@pytest.mark.slow
@needs_namespaces
def test_eight_hosts_run(tmp_path):
    _, seen = fleet(tmp_path, LOOK, nodes=8)
    assert sorted(seen) == [f"algo-{n}" for n in range(1, 9)]
    assert len({tuple(found["addresses"].values()) for found in seen.values()}) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "first"),
    [pytest.param(BEST, "algo-1", id="best"), pytest.param(isolation.FOLDERS, "127.0.0.1", id="folders")],
)
def test_the_recipes_own_program_is_started_by_start_sh(chosen, first, tmp_path):
    fake = tmp_path / "bin" / "torchrun"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\necho "$@" > "$RECIPES_RUN_DIR/$4"\n', encoding="utf-8")
    fake.chmod(0o755)
    words = f"env_vars={{PATH: '{fake.parent}:{os.environ['PATH']}'}}"
    job = start(tmp_path, None, words, nodes=2, chosen=chosen)
    assert job.end().state is JobState.SUCCEEDED, job.log()
    found = job.archived("output.tar.gz")
    assert sorted(found) == ["0", "1"]
    tail = f"--master_addr {first} --master_port 7777 -m launcher.runtime.entrypoint --config-path /"
    for rank, words in found.items():
        assert words.startswith(f"--nnodes 2 --node_rank {rank} --nproc_per_node 1 {tail}")
        assert words.rstrip().endswith("/input/data/recipe")


FAILS = """
import os, pathlib, socket, time
pathlib.Path("/opt/ml/model/kept").write_text("kept")
pathlib.Path("/opt/ml/output/data/kept").write_text("data")
both = pathlib.Path(__file__).parent  # of this machine, which all hosts see
(both / socket.gethostname()).touch()
while socket.gethostname() == "algo-1" or not (both / "algo-1").exists():
    time.sleep(0.01)
{write}
os._exit(9)
"""


@pytest.mark.slow
@needs_namespaces
@pytest.mark.parametrize(
    ("write", "reason"),
    [
        pytest.param("", "AlgorithmError: , exit code: 9", id="exit code"),
        pytest.param(
            "pathlib.Path('/opt/ml/output/failure').write_text('é€😀' * 1000)",
            ("é€😀" * 1000)[:1024],
            id="first 1024 characters",
        ),
        pytest.param(
            "pathlib.Path('/opt/ml/output/failure').write_bytes(b'no \\xff text')", "no � text", id="no UTF-8"
        ),
    ],
)
def test_one_failing_host_fails_the_job_whose_output_is_kept(write, reason, tmp_path):
    began_s = time.monotonic()
    job = start(tmp_path, FAILS.format(write=write), nodes=2)
    status = job.end()
    assert (status.state, status.message) == (JobState.FAILED, reason)
    assert job.described()["FailureReason"] == reason
    assert time.monotonic() - began_s < 100
    assert (job.archived(), job.archived("output.tar.gz")) == ({"kept": "kept"}, {"kept": "data"})
    assert job.statuses()[-2:] == ["Uploading", "Failed"]
    clash = "model/kept is on algo-1 and on algo-2: the first is kept"
    assert clash in job.told() and f"output/{clash.replace('model', 'data')}" in job.told()
    await_true(lambda: not processes_of(tmp_path))


@pytest.mark.slow
@needs_namespaces
def test_what_an_upload_leaves_out_is_printed_as_the_job_ends_and_by_every_command(tmp_path, capfd):
    program = "import pathlib, socket; pathlib.Path('/opt/ml/model/same').write_text(socket.gethostname())"
    bundle = write_bundle(tmp_path, program, nodes=2)
    assert launch.launch(bundle, "contract") == 0
    clash = "model/same is on algo-1 and on algo-2: the first is kept"
    lines = capfd.readouterr().out.splitlines()
    assert any(line.startswith("fault  Uploading: ") and line.endswith(clash) for line in lines)
    for command in ("status", "events", "logs -f"):
        assert cli.run([*command.split(), str(bundle.directory)]) == 0
        assert clash in capfd.readouterr().out, command


@pytest.mark.slow
@needs_namespaces
def test_a_job_whose_record_is_damaged_while_it_runs_was_started(tmp_path, capfd):
    program = f"""
import glob, pathlib, signal
(path,) = glob.glob({str(tmp_path)!r} + "/results/*/run/training-job.json")
pathlib.Path(path).write_text("{{")
signal.pause()
"""
    bundle = write_bundle(tmp_path, program)
    try:
        assert launch.launch(bundle, "contract") == launch.JOB_FAILED
    finally:
        os.killpg(int((bundle.directory / RUN_DIR / PID_FILE).read_text()), signal.SIGKILL)
    told = capfd.readouterr().err
    assert "E414" in told and "the job was started, but its final status cannot be read" in told
    assert "nothing was" not in told
    await_true(lambda: not processes_of(tmp_path))


@pytest.mark.slow
@needs_namespaces
def test_models_stay_files_where_compression_is_none(tmp_path):
    program = "import pathlib; p = pathlib.Path('/opt/ml/model/a'); p.mkdir(); (p / 'b c').write_text('b')"
    job = start(tmp_path, program, f"{J}.output_compression=NONE")
    assert job.end().state is JobState.SUCCEEDED
    output = job.out / job.handle.job_name / "output"
    assert (output / "model/a/b c").read_text() == "b"
    assert not (output / "model.tar.gz").exists() and not (output / "output.tar.gz").exists()
    assert job.described()["ModelArtifacts"] == {"S3ModelArtifacts": f"file://{output}/model/"}


STAYS = """
import pathlib, signal, sys, time
def stop(*_):
    pathlib.Path("/opt/ml/model/saved").write_text("saved")
    {then}
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
@needs_namespaces
@pytest.mark.parametrize(
    ("then", "patience_s"),
    [pytest.param("sys.exit(0)", 60, id="ends by itself"), pytest.param("time.sleep(60)", 0.3, id="is killed")],
)
def test_stopping_is_sigterm_then_patience_then_sigkill(then, patience_s, tmp_path):
    job = start(tmp_path, STAYS.format(then=then), patience_s=patience_s)
    job.await_line("ready")
    assert job.backend.status(job.handle).state is JobState.RUNNING
    job.backend.cancel(job.handle)
    assert job.backend.status(job.handle).state is JobState.CANCELLED
    assert job.statuses() == ["Starting", "Downloading", "Training", "Stopping", "Uploading", "Stopped"]
    assert job.archived() == {"saved": "saved"}
    assert not processes_of(tmp_path) and not (job.run_dir / "hosts").exists()
    job.backend.cancel(job.handle)  # one that has ended is left alone


@pytest.mark.slow
@needs_namespaces
def test_a_job_is_stopped_when_its_time_is_over(tmp_path):
    job = start(tmp_path, STAYS.format(then="sys.exit(0)"), f"{J}.stopping_condition.max_runtime_s=1")
    status = job.end()
    assert (status.state, job.described()["TrainingJobStatus"]) == (JobState.FAILED, "Stopped")
    assert job.statuses()[-3:] == ["Stopping", "Uploading", "MaxRuntimeExceeded"]
    assert job.archived() == {"saved": "saved"}


CHECKPOINTS = """
import os, pathlib, signal, time
folder = pathlib.Path("/opt/ml/checkpoints")
print(sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()), flush=True)
if (folder / "deep/step-1").exists():
    (folder / "deep/step-2").write_text("two")
else:
    (folder / "deep").mkdir()
    (folder / "deep/step-1").write_text("one")
    while not pathlib.Path({kept!r}, "deep/step-1").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@needs_namespaces
def test_a_lost_host_starts_the_job_again_from_the_checkpoints_in_the_store(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "old").write_text("old")
    words = (f"{J}.max_retries=2", f"{J}.checkpoints.s3_uri=file://{kept}")
    job = start(tmp_path, CHECKPOINTS.format(kept=str(kept)), *words, sync_s=0.05)
    status = job.end()
    assert status.state is JobState.SUCCEEDED, job.log()
    assert status.restarts == 1
    assert (job.log(attempt=0), job.log(attempt=1)) == ("['old']\n", "['deep/step-1', 'old']\n")
    assert sorted(str(p.relative_to(kept)) for p in kept.rglob("*") if p.is_file()) == [
        "deep/step-1",
        "deep/step-2",
        "old",
    ]
    assert "InternalServerError: algo-1 was lost" in job.told()


@pytest.mark.slow
@needs_namespaces
def test_a_lost_host_fails_a_job_without_retries(tmp_path):
    job = start(tmp_path, "import os; os.kill(os.getpid(), 9)")
    status = job.end()
    assert (status.state, status.message) == (JobState.FAILED, "InternalServerError: algo-1 was lost")


@pytest.mark.slow
@needs_namespaces
def test_a_checkpoint_that_cannot_be_kept_fails_the_job_and_its_model_is_kept(tmp_path):
    kept = tmp_path / "kept"
    program = f"""
import pathlib
pathlib.Path("/opt/ml/model/w").write_text("w")
pathlib.Path("/opt/ml/checkpoints/step").write_text("s")
pathlib.Path({str(kept)!r}).write_text("no folder")
"""
    job = start(tmp_path, program, f"{J}.checkpoints.s3_uri=file://{kept}")
    status = job.end()
    assert status.state is JobState.FAILED and status.message.startswith(f"ClientError: file://{kept}/step")
    assert job.archived() == {"w": "w"}


@pytest.mark.slow
@needs_namespaces
def test_data_that_is_not_there_fails_the_job_before_it_trains(tmp_path):
    job = start(tmp_path, "print('never')", f"{J}.inputs.s3={{train: 'file://{tmp_path}/none/'}}")
    status = job.end()
    assert status.state is JobState.FAILED and status.message.startswith("ClientError: ")
    assert job.statuses()[-1] == "Failed" and "Training" not in job.statuses()
    assert job.log() == ""


@pytest.mark.slow
@needs_namespaces
@pytest.mark.parametrize("who", ["cancelled", "left"])
def test_a_store_that_does_not_answer_is_not_waited_for(who, bucket, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"cluster.s3_endpoint=http://127.0.0.1:{silent.getsockname()[1]}"
        job = start(tmp_path, "print('never')", f"{J}.output_path={bucket.uri}/out", endpoint)
        silent.settimeout(TIMEOUT_S)
        with silent.accept()[0]:
            assert job.statuses() == ["Starting", "Downloading"]
            if who == "cancelled":
                job.backend.cancel(job.handle)
            else:
                job.backend._operators[job.handle.bundle_dir].stdin.close()
            assert job.end(SOON_S).state is JobState.CANCELLED
    assert job.log() == ""
    await_true(lambda: not processes_of(tmp_path))


@pytest.mark.slow
@needs_namespaces
@pytest.mark.parametrize("program", ["pass", STAYS.format(then="sys.exit(0)")], ids=["ended", "stopped"])
def test_a_second_wish_ends_a_job_whose_output_is_on_its_way(program, tmp_path, monkeypatch):
    pytest.importorskip("boto3", reason="pip install '.[sagemaker]'")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    program = f"open('/opt/ml/model/w', 'w').write('w')\n{program}"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"cluster.s3_endpoint=http://127.0.0.1:{silent.getsockname()[1]}"
        words = (f"{J}.output_path=s3://data/out", f"{J}.recipe_path='file://{tmp_path}/recipes'", endpoint)
        job = start(tmp_path, program, *words)
        ask = job.backend._services(job.handle).call
        if "signal" in program:
            job.await_line("ready")
            ask("sagemaker", "stop_training_job", TrainingJobName=job.handle.native_id)
        silent.settimeout(TIMEOUT_S)
        with silent.accept()[0]:
            if "signal" not in program:
                ask("sagemaker", "stop_training_job", TrainingJobName=job.handle.native_id)
            os.kill(operator_of(job.handle.bundle_dir), signal.SIGINT)
            assert job.end(SOON_S).state is JobState.CANCELLED
            await_true(lambda: not processes_of(tmp_path), timeout_s=SOON_S)
    assert job.statuses()[-2:] == ["Uploading", "Stopped"] and "incomplete output" in job.told()
    assert not (job.run_dir / "hosts").exists()


LEAVES = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(90)", {folder!r}], start_new_session=True)
print("ready", flush=True)
time.sleep(90)
"""


@pytest.mark.slow
@needs_namespaces
@pytest.mark.parametrize("victim", ["operator", "launcher", "nobody, by Ctrl-C"])
def test_nothing_is_left_when_a_process_of_the_job_is_killed(victim, tmp_path):
    tmp_path = tmp_path / "it's a folder"
    tmp_path.mkdir()
    program = LEAVES.format(folder=str(tmp_path))
    bundle = write_bundle(tmp_path, program, nodes=2)
    launch = commands.Popen(
        [sys.executable, "-m", "launcher", "launch", str(bundle.directory)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    log = bundle.directory / RUN_DIR / "logs" / "algo-2-00.log"
    await_true(lambda: log.exists() and "ready" in log.read_text() and registry.read(bundle.directory))
    if victim == "operator":
        os.kill(operator_of(bundle.directory), signal.SIGKILL)
    else:
        launch.send_signal(signal.SIGKILL if victim == "launcher" else signal.SIGINT)
    launch.wait(timeout=200)
    await_true(lambda: not processes_of(tmp_path))
    assert not (bundle.directory / RUN_DIR / "hosts").exists()
    record = registry.submitted(bundle.directory)
    status = ContractBackend().status(record.handle)
    assert status.state is (JobState.FAILED if victim == "operator" else JobState.CANCELLED)
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


MODEL = """
import os, pathlib
pathlib.Path("/opt/ml/model/w").write_bytes(os.urandom(3_000_000))
pathlib.Path("/opt/ml/output/data/d").write_bytes(b"d" * 1_000_000)
"""


@pytest.mark.slow
@needs_namespaces
def test_output_is_whole_or_absent_whenever_the_job_is_killed(tmp_path):
    bundle, backend, draw = write_bundle(tmp_path, MODEL), ContractBackend(), random.Random(7)
    output = tmp_path / "out" / bundle.job_name / "output"
    states = set()
    for _ in range(6):
        shutil.rmtree(output, ignore_errors=True)
        handle = backend.submit(bundle)
        time.sleep(draw.uniform(0, 0.6))
        if pid := operator_of(bundle.directory):
            os.kill(pid, signal.SIGKILL)
        states |= {status.state for status in backend.wait(handle, timeout_s=TIMEOUT_S)}
        await_true(lambda: not processes_of(tmp_path))
        found = sorted(os.listdir(output)) if output.exists() else []
        for name, size in zip(found, (3_000_000, 1_000_000), strict=False):
            with tarfile.open(output / name) as tar:
                assert [len(tar.extractfile(member).read()) for member in tar] == [size], name
        assert set(found) <= {"model.tar.gz", "output.tar.gz"}
    assert JobState.FAILED in states  # some were killed in time


@pytest.mark.slow
@needs_namespaces
def test_later_commands_find_the_job_from_its_record(recipes, tmp_path):
    bundle = write_bundle(tmp_path, LEAVES.format(folder=str(tmp_path)), nodes=2)
    record = pipeline.submit(bundle, ContractBackend(patience_s=0.2))
    folder = str(bundle.directory)
    again = backend_registry.load_backend(registry.submitted(bundle.directory).handle.backend)
    await_true(lambda: "ready" in "".join(log_texts(again, record.handle, LogSelection((1,)), follow=False)))
    assert recipes("status", folder)[1].startswith("running")
    code, out, _ = recipes("jobs", str(bundle.directory.parent))
    assert code == 0 and "sm_local" in out
    assert "Training" in recipes("events", folder)[1]
    assert recipes("logs", folder, "--rank", "1")[1].splitlines() == ["== attempt 0 on algo-2", "ready"]
    assert recipes("logs", folder, "--stderr")[0] == 2
    assert recipes("cancel", folder)[0] == 0
    assert recipes("wait", folder)[0] == 130


READS = """
import json, os, pathlib, stat, time
data = pathlib.Path("/opt/ml/input/data")
found = {"config": json.load(open("/opt/ml/input/config/inputdataconfig.json"))}
found["file"] = sorted(str(p.relative_to(data)) for p in (data / "train").rglob("*") if p.is_file())
found["fast"] = (data / "fast/a").read_text()
try:
    (data / "fast/new").write_text("")
except OSError as error:
    found["refused"] = error.errno
found["system"] = (data / "system/s").read_text()
for epoch in (0, 1):
    fifo = data / f"stream_{epoch}"
    while not fifo.exists():
        time.sleep(0.001)
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    found[f"stream{epoch}"] = fifo.read_bytes().decode()
pathlib.Path(f"/opt/ml/model/{os.uname().nodename}.json").write_text(json.dumps(found))
"""


@pytest.mark.slow
@needs_namespaces
def test_an_ordinary_user_has_every_kind_of_channel(tmp_path):
    for name, text in (("data/a", "A"), ("data/b", "B"), ("system/x/s", "S")):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    prefix = f"s3: 'file://{tmp_path}/data/'"
    system = "{file_system: {id: fs-01234567, type: EFS, directory_path: /x}}"
    channels = (
        f"{{train: {{{prefix}, distribution: ShardedByS3Key}}, fast: {{{prefix}, mode: FastFile}},"
        f" stream: {{{prefix}, mode: Pipe}}, system: {system}}}"
    )
    words = (f"{J}.inputs.channels={channels}", f"cluster.file_systems={{fs-01234567: '{tmp_path}/system'}}")
    job = start(tmp_path, READS, *words, nodes=2, chosen=isolation.AS_USER[0])
    assert job.end().state is JobState.SUCCEEDED, job.log() + job.told() + str(job.described().get("FailureReason"))
    seen = [json.loads(text) for _, text in sorted(job.archived().items())]
    assert sorted(name for found in seen for name in found["file"]) == ["train/a", "train/b"]
    for found in seen:
        assert (found["fast"], found["system"], found["stream0"], found["stream1"]) == ("A", "S", "AB", "AB")
        assert found["refused"] in (errno.EROFS, errno.EACCES, errno.EPERM)
        modes = {name: each["TrainingInputMode"] for name, each in found["config"].items()}
        assert modes == {"train": "File", "fast": "File", "stream": "Pipe", "system": "File", "recipe": "File"}
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
    await_true(lambda: not processes_of(tmp_path))


@pytest.mark.slow
@needs_namespaces
def test_a_whole_job_on_s3(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-to-be-told")
    bucket.put("train/a", b"A")
    bucket.put("ckpt/deep/step-1", b"one")
    program = """
import os, pathlib
assert pathlib.Path("/opt/ml/input/data/train/a").read_text() == "A"
assert pathlib.Path("/opt/ml/checkpoints/deep/step-1").read_text() == "one"
pathlib.Path("/opt/ml/checkpoints/deep/step-2").write_text("two")
pathlib.Path("/opt/ml/output/tensorboard").mkdir(exist_ok=True)
pathlib.Path("/opt/ml/output/tensorboard/events").write_text("tb")
pathlib.Path("/opt/ml/model/w").write_text(os.environ["AWS_ENDPOINT_URL_S3"])
"""
    words = (
        f"{J}.output_path={bucket.uri}/out",
        f"{J}.inputs.s3={{train: '{bucket.uri}/train/'}}",
        f"{J}.checkpoints.s3_uri={bucket.uri}/ckpt",
        f"{J}.tensorboard_config.output_path={bucket.uri}/tb",
        f"cluster.s3_endpoint={bucket.endpoint}",
    )
    job = start(tmp_path, program, *words)
    assert job.end().state is JobState.SUCCEEDED, job.log() + str(job.described().get("FailureReason"))
    name = job.handle.job_name
    keys = bucket.keys()
    assert f"out/{name}/output/model.tar.gz" in keys and f"tb/{name}/tensorboard-output/events" in keys
    assert any(key.startswith(f"out/{name}/recipe/") and key.endswith("/config.yaml") for key in keys)
    assert "ckpt/deep/step-2" in keys
    written = (path for folder in (job.handle.bundle_dir, job.run_dir) for path in folder.glob("*.*"))
    assert not [path for path in written if b"not-to-be-told" in path.read_bytes()]
