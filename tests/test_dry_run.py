"""A dry run of a tracked job: no run, no store, no MLflow. Its bundle gets a run when it is launched."""

import os
import re
import subprocess
import sys

import pytest
from backends.test_conformance import BACKENDS, planned
from conftest import LLAMA_K8S, frozen_context

from launcher import pipeline
from launcher.api import running
from launcher.bundle import store as bundles
from launcher.cli import launch
from launcher.common import yaml_io
from launcher.common.names import NAME_FILE, RUN_ID_AT_LAUNCH, RUN_ID_FILE
from launcher.common.problems import ProblemsFound
from launcher.job_store import tracking
from launcher.model import backend_registry
from launcher.planning.job_planner import with_run
from launcher.runtime.training_config import tracking_of

MLFLOW = "recipes.training_config.mlflow"
TINY = "recipes=training/tiny/tiny_lm_cpu"
NOWHERE = "http://127.0.0.1:9"
"""A server that does not answer."""
ROLE = "cluster.sm_jobs_config.role=arn:aws:iam::123456789012:role/train"
OUTPUT = "cluster.sm_jobs_config.output_path=s3://results/out"
DRY_RUNS = {
    "local": (TINY, "cluster=local", "dry_run=true"),
    "slurm": (TINY, "cluster=slurm", "recipes.instance_types=[ml.p5.48xlarge]", "dry_run=true"),
    "slurm-files-only": (
        *(TINY, "cluster=slurm", "recipes.instance_types=[ml.p5.48xlarge]"),
        "cluster.slurm_create_submission_file_only=true",
    ),
    "k8s": (*LLAMA_K8S, f"{MLFLOW}.tracking_uri={NOWHERE}", "dry_run=true"),
    "sm_jobs": (LLAMA_K8S[0], "cluster=sm_jobs", ROLE, OUTPUT, f"{MLFLOW}.tracking_uri={NOWHERE}", "dry_run=true"),
}
RUN_ID = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def dry(context):
    """Return a function from overrides to the bundle of a dry run, on disk."""

    def run(*overrides):
        job = pipeline.track(pipeline.prepare(overrides, context), context, is_launched=False)
        bundle = pipeline.render(job, context)
        pipeline.write(bundle)
        return bundle

    return run


@pytest.mark.slow
@pytest.mark.parametrize("words", DRY_RUNS.values(), ids=DRY_RUNS)
def test_a_dry_run_imports_no_mlflow_and_makes_neither_run_nor_store(words, tmp_path):
    code = (
        "import sys; from launcher.cli import launch; assert launch.main(sys.argv[1:]) == 0;"
        "print(sorted({'mlflow', 'sqlalchemy', 'sqlite3', 'torch', 'pandas', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    (bundle,) = (tmp_path / "results").iterdir()
    assert RUN_ID_AT_LAUNCH in (bundle / "configs" / "config.yaml").read_text()


@pytest.mark.parametrize("cluster", BACKENDS)
def test_the_bundle_of_a_dry_run_with_its_run_is_that_of_a_launch(cluster, tmp_path):
    recipes = {"local": "training/tiny/tiny_lm_cpu", "ray": "training/custom/script"}
    job = planned(recipes.get(cluster, LLAMA_K8S[0][8:]), cluster, tmp_path)
    context = frozen_context(tmp_path)
    settings = {"tracking_uri": NOWHERE, "experiment_name": "e", "run_name": "r"}
    dry, launched = (
        pipeline.render(with_run(job, **settings, run_id=run_id), context) for run_id in (RUN_ID_AT_LAUNCH, RUN_ID)
    )
    pipeline.write(dry)
    assert tracking.lacks_run(dry) and tracking.run_of(dry) is None
    completed = bundles.assign_run(dry, RUN_ID)
    assert completed.digest == dry.digest
    assert bundles.read(dry.directory) == (completed, job.backend)
    assert tracking.run_of(completed) == tracking.TrackedRun(NOWHERE, RUN_ID)
    files, expected = ({**each.files, bundles.MANIFEST: ""} for each in (completed, launched))
    if backend_registry.described(cluster).programs.toolkit_key:  # a digest of the recipe is in its channel's URI
        files, expected = ({k: re.sub(r"/recipe/\w+/", "", v) for k, v in f.items()} for f in (files, expected))
    assert files == expected


def test_a_launch_that_was_interrupted_while_it_wrote_the_run_is_repeated(dry):
    bundle = dry(TINY)
    (bundle.directory / RUN_ID_FILE).write_text(f'{{"run_id": "{RUN_ID}"}}')
    config = bundle.directory / "configs" / "config.yaml"
    config.write_text(config.read_text().replace(RUN_ID_AT_LAUNCH, RUN_ID))
    (config.parent / f".config-n1.yaml.{RUN_ID}.partial").write_text("half")
    again, _ = bundles.read(bundle.directory)
    assert all(RUN_ID_AT_LAUNCH not in text for text in again.files.values())
    assert tracking.assign_run(bundle) == again
    assert all(RUN_ID_AT_LAUNCH not in (bundle.directory / name).read_text() for name in bundle.files)
    config.write_text(config.read_text().replace("epochs", "epoch"))
    with pytest.raises(ProblemsFound, match="E704"):
        bundles.read(bundle.directory)


@pytest.mark.parametrize("name", ["configs/config.yaml", "bundle.json", "plan.json"])
def test_a_bundle_with_a_pipe_is_refused_and_the_pipe_is_not_opened(dry, name):
    folder = dry(TINY).directory
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ProblemsFound, match=f"{name} is damaged: it is a FIFO"):
        bundles.read(folder)


def test_a_name_that_is_a_pipe_is_no_name(tmp_path):
    os.mkfifo(tmp_path / NAME_FILE)
    assert bundles.given_name(tmp_path) is None


@pytest.mark.slow
def test_the_run_of_a_dry_run_is_made_at_its_launch_once(dry, store, context):
    from mlflow import MlflowClient

    bundle = dry(TINY)
    mode = (bundle.directory / "run.sh").stat().st_mode
    completed = running.completed(bundle, launch.SHOWN)
    settings = tracking.run_of(completed)
    client = MlflowClient(tracking_uri=settings.tracking_uri)
    run = client.get_run(settings.run_id)
    assert run.info.run_name == bundle.job_name and run.info.lifecycle_stage == "deleted"
    config = yaml_io.load((bundle.directory / "configs" / "config-n2.yaml").read_text())
    assert tracking_of(config["training_config"]).run_id == settings.run_id
    again = [running.completed(each, launch.SHOWN) for each in (bundle, completed)]
    assert again == [bundles.read(bundle.directory)[0]] * 2
    assert (bundle.directory / "run.sh").stat().st_mode == mode
    tracking.start(completed)
    assert client.get_run(settings.run_id).info.status == "RUNNING"
    assert client.get_run(settings.run_id).data.tags["digest"] == bundle.digest


def test_a_bundle_of_a_dry_run_that_is_started_by_hand_is_not_tracked(dry):
    config = yaml_io.load(dry(TINY).files["configs/config.yaml"])
    assert tracking_of(config["training_config"]).run_id == ""


def test_a_dry_run_reports_a_store_that_the_job_cannot_reach(context, tmp_path):
    with pytest.raises(ProblemsFound, match="E504"):
        pipeline.prepare((*LLAMA_K8S, f"{MLFLOW}.tracking_uri=/data/mlflow"), context)
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_leaves_a_run_that_its_recipe_names(dry):
    bundle = dry(TINY, f"{MLFLOW}.run_id={RUN_ID}")
    assert not tracking.lacks_run(bundle) and tracking.run_of(bundle).run_id == RUN_ID


@pytest.mark.slow
def test_a_checkout_is_named_by_its_commit_and_whether_it_is_changed(tmp_path, monkeypatch):
    from launcher.model import context

    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert context._git_revision(tmp_path) is None
    git("init", "-q")
    assert context._git_revision(tmp_path) is None  # no commit yet
    (tmp_path / "file").write_text("one")
    git("add", ".")
    git("commit", "-qm", "one")
    commit = git("describe", "--always", "--abbrev=40", "--exclude=*")
    (tmp_path / "untracked").write_text("")
    assert context._git_revision(tmp_path) == commit
    with monkeypatch.context() as hook:  # of another repository
        hook.setenv("GIT_DIR", str(tmp_path / "elsewhere/.git"))
        assert context._git_revision(tmp_path) == commit
    (tmp_path / "file").write_text("two")
    assert context._git_revision(tmp_path) == f"{commit}-dirty"


def test_a_launch_without_a_secret_that_its_job_reads_writes_nothing(recipes, tmp_path, monkeypatch):
    monkeypatch.delenv("NOT_SET", raising=False)
    words = (TINY, "env_vars={TOKEN: {env: NOT_SET}}", "recipes.training_config.mlflow.enabled=false")
    code, _, errors = recipes("run", *words)
    assert code == 2 and "E448 env_vars.TOKEN" in errors and "nothing was written or submitted" in errors
    assert not (tmp_path / "results").exists()
    assert recipes("run", *words, "dry_run=true")[0] == 0  # the launch may have it
    (folder,) = (tmp_path / "results").iterdir()
    code, _, errors = recipes("launch", folder.name)
    assert code == 2 and "E448 env_vars.TOKEN" in errors
    code, _, errors = recipes("rerun", folder.name, "dry_run=false", "--allow-changes")
    assert code == 2 and "E448 env_vars.TOKEN" in errors and "was written, nothing was submitted" in errors
