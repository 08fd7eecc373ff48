"""What a job produced, as values: its metrics, and the places of adapters, models and checkpoints."""

import json

import pytest
from conftest import LLAMA

import launcher
from launcher.api.job import Job
from launcher.common.names import METRICS_FILE, RUN_DIR

ARGS = "training_config.training_args"


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Return a function that compiles and writes a job of a fixed name, which is never launched."""
    monkeypatch.chdir(tmp_path)
    session = launcher.Session(tmp_path, "ada", suffix=lambda: "x068q")

    def write(recipe, overrides=(), **given) -> Job:
        return Job(launcher.compile(recipe, overrides, session=session, **given).write())

    return write


def places(job: Job) -> dict[str, tuple[str, bool | None]]:
    return {row["kind"]: (row["path"], row["exists"]) for row in job.results}


@pytest.mark.slow
def test_metrics_are_rows_of_steps_and_what_was_measured_after_them(written):
    job = written("tiny_lm_cpu")
    (job.folder / RUN_DIR).mkdir()
    assert job.metrics() == ()
    step = {"step": 1, "loss": 2.5, "time": 1.5, "attempt": 0, "further": {"grad_norm": 0.5, "loss": 9.0}}
    after = {"step": 1, "time": 2.0, "attempt": 0, "further": {"eval_loss": float("nan")}}
    lines = [json.dumps(step), "not JSON", "[1]", json.dumps(after), json.dumps(step)[:20]]
    (job.folder / RUN_DIR / METRICS_FILE).write_text("\n".join(lines))
    first, second = job.metrics()
    assert first == {"step": 1, "loss": 2.5, "time": 1.5, "attempt": 0, "grad_norm": 0.5}
    assert second["eval_loss"] != second["eval_loss"]
    assert job.metrics().columns == ("step", "loss", "time", "attempt", "grad_norm", "eval_loss")
    pandas = pytest.importorskip("pandas")
    frame = job.metrics().frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["grad_norm"].isna()) == [False, True]


def test_a_notebook_shows_the_start_and_the_end_of_a_long_table():
    shown = launcher.Table([{"step": step} for step in range(100_000)])._repr_html_()
    assert shown.count("<tr>") == 62
    assert "… 99940 rows" in shown
    assert "<td>99999</td>" in shown
    assert launcher.Table([{"a": 1}, {"b": 2}])._repr_html_().count("<th>") == 2


def test_results_of_a_job_on_this_machine_are_marked_once_they_exist(written, tmp_path):
    job = written("tiny_lm_cpu")
    folder = job.folder / "run/checkpoints"
    assert places(job) == {"checkpoints": (str(folder), False)}
    folder.mkdir(parents=True)
    assert places(job) == {"checkpoints": (str(folder), True)}
    named = written("tiny_lm_cpu", {f"{ARGS}.training_dir": "mine", "run.name": "other"})
    assert places(named) == {"checkpoints": (str(tmp_path / "mine"), False)}


S3_JOB = {
    "cluster.sm_jobs_config.role": "arn:aws:iam::123456789012:role/training",
    "cluster.sm_jobs_config.output_path": "s3://my-bucket/results/",
    "cluster.sm_jobs_config.inputs.s3": {"train": "s3://my-bucket/train"},
    "cluster.sm_jobs_config.checkpoints.s3_uri": "s3://my-bucket/saved",
}
OUTPUT = "{}/llama-3-1-8b-instruct-x068q/output/{}".format
OPEN = {
    "container": "me/image:1",
    "cluster.trainer": "open",
    "rehearse": True,
    "training_config.model_config.model_save_name": "mine",
}
CPU = {"instance_type": "ml.m5.2xlarge", "elastic_policy.is_elastic": False}
TIER = "checkpointing.persistent.path"


@pytest.mark.parametrize(
    ("cluster", "recipe", "overrides", "expected"),
    [
        pytest.param("k8s", LLAMA, {}, {}, id="the image decides"),
        pytest.param(
            "k8s",
            LLAMA,
            {**OPEN, f"{ARGS}.training_dir": "/data/out"},
            {
                "checkpoints": ("/data/out", None),
                "adapters": ("/data/out/rehearsal-mine", None),
                "model": ("/data/out/rehearsal-mine/merged", None),
            },
            id="a folder of pods",
        ),
        pytest.param(
            "k8s",
            "tiny_lm_cpu",
            {**CPU, TIER: "s3://my-bucket/tier/", "checkpointing.namespace": "ns", "container": "me/image:1"},
            {"checkpoints": ("s3://my-bucket/tier/ns", None)},
            id="a tier in S3",
        ),
        pytest.param(
            "slurm",
            LLAMA,
            {
                **OPEN,
                f"{ARGS}.merge_weights": False,
                f"{ARGS}.strategy.fsdp_config.state_dict_type": "SHARDED_STATE_DICT",
            },
            {
                "checkpoints": ("{bundle}/run/checkpoints", False),
                "adapters": ("{bundle}/run/model/rehearsal-mine", False),
            },
            id="a login node sees the files",
        ),
        pytest.param(
            "slurm",
            LLAMA,
            {
                **OPEN,
                "cluster.ssh": "me@login",
                "cluster.ssh_folder": "/home/me",
                "cluster.code": "folder",
                f"{ARGS}.training_dir": "/fsx/out",
            },
            {
                "checkpoints": ("/fsx/out", None),
                "adapters": ("/fsx/out/rehearsal-mine", None),
                "model": ("/fsx/out/rehearsal-mine/merged", None),
            },
            id="a login node by ssh",
        ),
        pytest.param(
            "sm_jobs",
            LLAMA,
            {**S3_JOB, f"{ARGS}.training_dir": "/opt/ml/model"},
            {
                "model": (OUTPUT("s3://my-bucket/results", "model.tar.gz"), None),
                "output": (OUTPUT("s3://my-bucket/results", "output.tar.gz"), None),
                "checkpoints": ("s3://my-bucket/saved", None),
            },
            id="a training job",
        ),
        pytest.param(
            "sm_local",
            LLAMA,
            {**OPEN, "cluster.sm_jobs_config.output_path": "file:///nowhere"},
            {
                "model": (OUTPUT("file:///nowhere", "model.tar.gz"), False),
                "output": (OUTPUT("file:///nowhere", "output.tar.gz"), False),
            },
            id="a training job on this machine",
        ),
        pytest.param(
            "ray",
            "verl-grpo-rlaif-deepseek-r1-distilled-llama-8b-lora",
            {"training_config.trainer.default_local_dir": "/data/out", "training_config.data.train_files": "/a"},
            {"checkpoints": ("/data/out", None)},
            id="a Ray cluster",
        ),
        pytest.param(
            "k8s",
            "nova_lite_2_0_p5_gpu_lora_sft",
            {"run.output_s3_path": "s3://my-bucket/out/", "run.data_s3_path": "s3://my-bucket/data.jsonl"},
            {"output": ("s3://my-bucket/out/", None)},
            id="a family's own key",
        ),
    ],
)
def test_results_of_every_backend_are_where_its_bundle_writes_them(written, cluster, recipe, overrides, expected):
    given = {"instance_type": "ml.p5.48xlarge"} if recipe == LLAMA else {}
    job = written(recipe, {**given, **overrides}, cluster=cluster)
    assert places(job) == {kind: (path.format(bundle=job.folder), seen) for kind, (path, seen) in expected.items()}
