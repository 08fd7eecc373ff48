"""One job, one run: against a real sqlite store and a real MLflow server."""

import contextlib
import functools
import importlib.metadata
import io
import os
import re
import shutil
import sqlite3
import sys
import time
from pathlib import Path

import commands
import mlflow_server
import ports
import pytest
from conftest import LLAMA_K8S, ROOT, SHORT, frozen_context
from launch_records import Job, rehearse

from launcher import pipeline
from launcher.backends.local.backend import LocalBackend
from launcher.cli import terminal
from launcher.common import yaml_io
from launcher.common.problems import ProblemsFound
from launcher.job_store import registry, tracking, tracking_store
from launcher.model.job_spec import JobState, JobStatus

MLFLOW = "recipes.training_config.mlflow"
RENDERED = (SHORT, "cluster=k8s")


def tracked_bundle(context, *overrides):
    """Return a job with its run reserved, and its bundle, which is written."""
    job = pipeline.track(pipeline.prepare(overrides, context), context)
    bundle = pipeline.render(job, context)
    pipeline.write(bundle)
    return job, bundle


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """Run the command at the end of a job, by a shell as it is, but for a port of its own; yield its URL and the job.

    It is an MLflow tracking server like any other.
    """
    folder = tmp_path_factory.mktemp("shown")
    job, bundle = tracked_bundle(frozen_context(folder), f"++{MLFLOW}.tracking_uri='{folder}/a store/mlflow.db'")
    tracking.start(bundle)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        terminal.show_end(bundle, JobStatus(JobState.SUCCEEDED, 0), is_here=True, can_resume=False)
    (line,) = [line for line in out.getvalue().splitlines() if line.startswith("mlflow ui ")]
    (port,) = ports.free_ports(1)
    command = line.replace("mlflow ui", f"exec mlflow ui --port {port} --workers 1", 1)
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with mlflow_server.started(command, port, folder, environment, shell=True) as url:
        yield url, job


@pytest.fixture
def server(shown):
    """Return the URL of an MLflow tracking server."""
    return shown[0]


@pytest.fixture
def tracked_first(context):
    """Return a function from overrides to a reserved job and its written bundle, where there is no store yet."""
    return functools.partial(tracked_bundle, context)


@pytest.fixture
def reserved(tracked_first, store):
    """Return the same, where there is a store."""
    return tracked_first


@pytest.fixture
def tracked(reserved):
    """Return the same, with the run of a job that is being launched."""

    def track(*overrides):
        job, bundle = reserved(*overrides)
        tracking.start(bundle)
        return job, bundle

    return track


def runs_of(job):
    """Return the runs that a user sees, each with its status."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=tracking.tracking(job).tracking_uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return [run.info.status for run in client.search_runs(experiments)]


def run_of(job):
    from mlflow import MlflowClient

    settings = tracking.tracking(job)
    client = MlflowClient(tracking_uri=settings.tracking_uri)
    return client, client.get_run(settings.run_id)


def artifacts(client, run, folder="bundle"):
    return {item.path for item in client.list_artifacts(run.info.run_id, folder)}


@pytest.mark.slow
def test_the_default_is_a_sqlite_file_beside_the_bundles(tracked_first, context):
    job, bundle = tracked_first()
    settings = tracking.tracking(job)
    assert settings.tracking_uri == f"sqlite:///{context.cwd}/results/mlflow.db"
    assert sorted(p.name for p in (context.cwd / "results").iterdir()) == ["mlflow.db", job.name]
    tracking.start(bundle)
    client, run = run_of(job)
    assert run.info.status == "RUNNING"
    assert run.data.params["training_config.training_args.train_batch_size"] == "32"
    assert run.data.params["scale_config.3.training_config.training_args.uneven_batch.large_local_batch_size"] == "6"
    expected = {"recipe": job.recipe, "backend": "local", "digest": bundle.digest, "git_revision": "0" * 40}
    assert run.data.tags.items() >= expected.items()
    assert {"bundle/bundle.json", "bundle/plan.md", "bundle/run.sh"} <= artifacts(client, run)
    assert sorted(p.name for p in (context.cwd / "results").iterdir()) == ["mlartifacts", "mlflow.db", job.name]


@pytest.mark.slow
def test_a_bundle_that_is_not_launched_leaves_no_run_and_a_launch_has_the_run_of_its_bundle(reserved):
    job, bundle = reserved()
    assert runs_of(job) == []
    tracking.start(bundle)
    assert runs_of(job) == ["RUNNING"]
    client, run = run_of(job)
    tracking.finish(bundle, JobState.SUCCEEDED)
    tracking.start(bundle)  # a second launch
    assert runs_of(job) == ["RUNNING"] and run_of(job)[1].info.run_id == tracking.run_of(bundle).run_id


@pytest.mark.slow
def test_a_launch_whose_run_cannot_be_described_leaves_no_run(reserved, monkeypatch):
    def fails(*arguments):
        raise KeyboardInterrupt

    job, bundle = reserved()
    monkeypatch.setattr(tracking, "_describe", fails)
    with pytest.raises(KeyboardInterrupt):
        tracking.start(bundle)
    assert runs_of(job) == []


@pytest.mark.slow
def test_a_dry_run_leaves_a_run_that_its_recipe_names_as_it_was(tracked, context):
    first, _ = tracked()
    client, before = run_of(first)
    job = pipeline.prepare((f"{MLFLOW}.run_id={before.info.run_id}", "recipes.run.name=other"), context)
    pipeline.write(pipeline.render(pipeline.track(job, context), context))
    after = client.get_run(before.info.run_id)
    assert after.to_dictionary() == before.to_dictionary()


@pytest.mark.slow
def test_printed_manifests_have_a_run_that_is_visible(server, recipes):
    code, out, err = recipes("render", *RENDERED, f"{MLFLOW}.tracking_uri={server}", "--stdout")
    assert code == 0, err
    from mlflow import MlflowClient

    (run_id,) = set(re.findall(r"run_id: ([0-9a-f]{32})", out))
    assert MlflowClient(tracking_uri=server).get_run(run_id).info.lifecycle_stage == "active"


@pytest.mark.slow
def test_the_run_s_id_is_in_every_size(tracked):
    job, bundle = tracked()
    run_id = tracking.tracking(job).run_id
    configs = [text for path, text in bundle.files.items() if path.startswith("configs/")]
    assert len(configs) == 5
    for text in configs:
        mlflow = yaml_io.load(text)["training_config"]["mlflow"]
        assert mlflow["run_id"] == run_id and mlflow["tracking_uri"].startswith("sqlite:////")


@pytest.mark.slow
def test_a_path_is_a_sqlite_file_there(tracked, tmp_path):
    job, _ = tracked(
        f"{MLFLOW}.tracking_uri={tmp_path}/elsewhere", f"{MLFLOW}.experiment_name=mine", f"++{MLFLOW}.run_name=r"
    )
    settings = tracking.tracking(job)
    assert settings.tracking_uri == f"sqlite:///{tmp_path}/elsewhere/mlflow.db"
    assert (settings.experiment_name, settings.run_name) == ("mine", "r")


@pytest.mark.slow
@pytest.mark.parametrize("uri", ["sqlite:///mine.db", "mine.db"])
def test_a_relative_store_lies_in_the_current_folder(tracked, context, empty_store, uri):
    shutil.copy(empty_store, context.cwd / "mine.db")
    job, _ = tracked(f"{MLFLOW}.tracking_uri={uri}")
    assert tracking.tracking(job).tracking_uri == f"sqlite:///{context.cwd}/mine.db"


@pytest.mark.slow
def test_a_store_that_cannot_be_made_is_a_problem(context):
    job = pipeline.prepare((f"{MLFLOW}.tracking_uri=/proc/nowhere/mlflow.db",), context)
    with pytest.raises(ProblemsFound, match="E502"):
        pipeline.track(job, context)


@pytest.mark.slow
def test_a_job_is_not_started_when_its_run_is_unknown(reserved, empty_store):
    class NeverStarted:
        def intent(self, bundle, known):
            return None

        def submit(self, bundle):
            raise AssertionError("started")

    job, bundle = reserved()
    store = Path(tracking.tracking(job).tracking_uri.removeprefix("sqlite:///"))
    shutil.copy(empty_store, store)
    with pytest.raises(ProblemsFound, match="(?s)E505.*render the recipe again"):
        pipeline.submit(bundle, NeverStarted())
    store.unlink()
    with pytest.raises(ProblemsFound, match="E502.*\n.*no longer exists"):
        pipeline.submit(bundle, NeverStarted())


@pytest.mark.slow
def test_a_launch_whose_bundle_is_removed_while_it_starts_is_refused(reserved, empty_store):
    class Late(LocalBackend):
        def submit(self, bundle):
            shutil.rmtree(bundle.directory)
            return super().submit(bundle)

    job, bundle = reserved()
    with pytest.raises(ProblemsFound, match="E703.*\n.*no longer exists"):
        pipeline.submit(bundle, Late())
    assert run_of(job)[1].info.status == "FAILED"
    with pytest.raises(ProblemsFound, match="E703"), registry.launching(bundle.directory):
        raise AssertionError("held")
    with pytest.raises(ProblemsFound, match="E703"), registry.following(bundle.directory, waits=True):
        raise AssertionError("held")


@pytest.mark.slow
def test_workers_send_metrics_to_the_run_of_the_launcher(tracked):
    from launcher.runtime.training_config import settings_of

    job, _ = tracked()
    for point in job.scales:
        assert settings_of(point.config, point.ranks).tracking.run_id == tracking.tracking(job).run_id


@pytest.mark.slow
def test_a_named_run_is_resumed(tracked, context):
    first, _ = tracked()
    settings = tracking.tracking(first)
    job = pipeline.prepare((f"{MLFLOW}.run_id={settings.run_id}", "recipes.run.name=other"), context)
    resumed = pipeline.track(job, context)
    assert tracking.tracking(resumed).run_id == settings.run_id


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "status"),
    [(JobState.SUCCEEDED, "FINISHED"), (JobState.FAILED, "FAILED"), (JobState.CANCELLED, "KILLED")],
)
def test_the_run_ends_as_the_job_did(tracked, state, status):
    job, bundle = tracked()
    assert run_of(job)[1].info.status == "RUNNING"
    tracking.finish(bundle, state)
    assert run_of(job)[1].info.status == status


@pytest.mark.slow
def test_the_run_holds_the_job_s_course_and_every_step_once(tracked):
    from launcher import timeline

    job, bundle = tracked()
    run_dir = bundle.directory / "run"
    rehearsal = rehearse(run_dir)
    course = timeline.refresh(run_dir)
    tracking.finish(bundle, JobState.SUCCEEDED, course)
    client, run = run_of(job)
    steps = [point.step for point in client.get_metric_history(run.info.run_id, "loss")]
    assert steps == list(range(1, rehearsal.step + 1))
    sizes = {point.value for point in client.get_metric_history(run.info.run_id, "world_size")}
    assert sizes == {2.0, 4.0, 6.0}
    metrics = run.data.metrics
    assert (metrics["restarts"], metrics["samples_lost"], metrics["samples_redone"]) == (6, 960, 960)
    assert metrics["goodput"] == pytest.approx(course.goodput) and metrics["wall_s"] == pytest.approx(course.wall_s)
    (point,) = client.get_metric_history(run.info.run_id, "goodput")
    assert point.step == course.last_step
    events = run.data.tags["events"].splitlines()
    assert len(events) == len(course.events) and events[0].endswith(" s  capacity becomes 2 nodes")
    expected = {f"timeline/{path.name}" for path in timeline.report_files(run_dir)}
    assert artifacts(client, run, "timeline") == expected >= {"timeline/timeline.txt", "timeline/timeline.json"}
    assert run.info.status == "FINISHED"


@pytest.mark.slow
def test_the_totals_of_a_launch_that_starts_anew_are_beside_its_own_curves(tracked):
    from launcher import timeline
    from launcher.runtime.reporting import Reporter

    job, bundle = tracked()
    run_dir, settings = bundle.directory / "run", tracking.tracking(job)
    for number in (1, 2):
        Reporter(run_dir, settings.tracking_uri, settings.run_id).begin_new_curves()
        rehearsal = rehearse(run_dir)
        tracking.finish(bundle, JobState.SUCCEEDED, timeline.refresh(run_dir))
        client, run = run_of(job)
        for name in ("loss", "wall_s", "launch-2/loss", "launch-2/wall_s")[: 2 * number]:
            points = client.get_metric_history(run.info.run_id, name)
            assert [point.step for point in points][-1:] == [rehearsal.step], name
            assert len(points) == (rehearsal.step if "loss" in name else 1)
    assert {"events", "launch-2/events"} <= run.data.tags.keys()
    assert artifacts(client, run, "launch-2/timeline") == {
        f"launch-2/timeline/{path.name}" for path in timeline.report_files(run_dir)
    }


@pytest.mark.slow
def test_the_events_of_launches_before_are_kept_as_far_as_a_tag_holds_them(tracked):
    from launcher import timeline

    job, bundle = tracked()
    run_dir = bundle.directory / "run"
    rehearsal = rehearse(run_dir)
    tracking.finish(bundle, JobState.FAILED, timeline.refresh(run_dir))
    first = run_of(job)[1].data.tags["events"]
    again = Job(run_dir, launched=rehearsal.now + 10)
    again.event("request", message="3 nodes")
    again.end()
    for _ in range(2):  # of the same launch
        tracking.finish(bundle, JobState.SUCCEEDED, timeline.refresh(run_dir))
    tag = run_of(job)[1].data.tags["events"]
    earlier, heading, event = tag.rsplit("\n", 2)
    assert earlier == first and heading.startswith("launched again at ") and event.endswith(" s  3 nodes")
    last = Job(run_dir, launched=again.now + 10)
    for number in range(66):
        last.event("request", message=f"{number} " + "x" * 60)
    last.end()
    tracking.finish(bundle, JobState.SUCCEEDED, timeline.refresh(run_dir))
    tag = run_of(job)[1].data.tags["events"]
    assert len(tag) == 5000 and tag.startswith("…") and " s  3 nodes\nlaunched again at " in tag


@pytest.mark.slow
def test_a_malformed_metrics_line_is_no_trouble_at_the_end(tracked):
    job, bundle = tracked()
    run_dir = bundle.directory / "run"
    run_dir.mkdir()
    (run_dir / "metrics.jsonl").write_text("what a script printed here\n")
    tracking.finish(bundle, JobState.SUCCEEDED)
    assert run_of(job)[1].info.status == "FINISHED"


@pytest.mark.slow
def test_more_events_than_a_tag_holds_are_cut(tracked):
    from launcher import timeline

    job, bundle = tracked()
    rehearsal = rehearse(bundle.directory / "run")
    for number in range(90):
        rehearsal.event("scenario", message=f"event {number} of very many events of a very long scenario")
    tracking.finish(bundle, JobState.SUCCEEDED, timeline.refresh(bundle.directory / "run"))
    tag = run_of(job)[1].data.tags["events"]
    assert len(tag) == 5000 and tag.endswith("…")


def test_off_means_off(tracked_first, context):
    job, bundle = tracked_first(f"{MLFLOW}.enabled=false")
    assert not (context.cwd / "results" / "mlflow.db").exists()
    assert tracking.run_of(bundle) is None
    assert "enabled" not in yaml_io.load(bundle.files["configs/config.yaml"])["training_config"]["mlflow"]


def test_a_cluster_job_without_a_store_is_not_tracked(tracked_first, context):
    tracked_first(*LLAMA_K8S)
    assert [p.name for p in (context.cwd / "results").iterdir()] == ["llama-3-1-8b-instruct-x068q"]


@pytest.mark.parametrize(
    ("uri", "code", "says"),
    [
        ("http://127.0.0.1:9", "E501", "cannot be reached"),
        ("arn:aws:sagemaker:us-east-1:123456789012:mlflow-tracking-server/t", "E503", "pip install sagemaker-mlflow"),
        ("/data/mlflow", "E504", "out of the job's reach"),
        ("postgresql://db/mlflow", "E507", "not a supported kind of tracking store"),
    ],
)
def test_a_store_that_cannot_serve_is_a_problem_and_nothing_is_written(context, uri, code, says):
    override = f"{MLFLOW}.tracking_uri={uri}"
    with pytest.raises(ProblemsFound, match=says) as caught:
        pipeline.track(pipeline.prepare((*LLAMA_K8S, override), context), context)
    assert [p.code for p in caught.value.problems] == [code]
    assert code == "E501" or caught.value.problems[0].where == override
    assert list(context.cwd.iterdir()) == []


@pytest.mark.parametrize(
    "uri", ["http://", "https://x y", "http://x:99999", "http://x:0", "http://[::1", "http://:1", "HTTP://m"]
)
@pytest.mark.parametrize(
    ("words", "key"),
    [
        (LLAMA_K8S, f"{MLFLOW}.tracking_uri"),
        (
            ("recipes=evaluation/open-source/open_source_deterministic_eval", "cluster=k8s"),
            "recipes.output.mlflow_tracking_uri",
        ),
    ],
    ids=["tracking", "evaluation"],
)
def test_the_address_of_a_server_has_a_host_and_a_port(words, key, uri, problems):
    found = problems(*words, f"{key}='{uri}'")
    assert [(each.code, each.value) for each in found if each.path == key] == [("E102", uri)]


@pytest.mark.parametrize("scheme", ["https", "postgresql"])
def test_credentials_in_a_url_are_refused_unseen(problems, scheme):
    (problem,) = problems(*LLAMA_K8S, f"{MLFLOW}.tracking_uri={scheme}://ada:hunter2@mlflow.example")
    assert problem.code == "E603" and "hunter2" not in str(problem)


@pytest.mark.slow
def test_an_http_server_gets_the_run_and_the_bundle(server, tracked):
    job, bundle = tracked(*LLAMA_K8S, f"{MLFLOW}.tracking_uri={server}")
    client, run = run_of(job)
    assert run.data.tags["digest"] == bundle.digest
    assert {"bundle/manifests", "bundle/bundle.json"} <= artifacts(client, run)


@pytest.mark.slow
def test_an_unknown_run_is_a_problem(server, context):
    job = pipeline.prepare((*LLAMA_K8S, f"{MLFLOW}.tracking_uri={server}", f"{MLFLOW}.run_id=nope"), context)
    with pytest.raises(ProblemsFound, match="E505"):
        pipeline.track(job, context)


@pytest.mark.slow
def test_main_says_soon_that_a_server_is_away(tmp_path):
    began = time.monotonic()
    result = commands.run(
        [sys.executable, ROOT / "main.py", *LLAMA_K8S, f"{MLFLOW}.tracking_uri=http://127.0.0.1:9"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2 and "E501" in result.stderr
    assert time.monotonic() - began < 60
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_command_at_the_end_of_a_run_shows_that_run(shown):
    from mlflow import MlflowClient

    url, job = shown
    run_id = tracking.tracking(job).run_id
    assert MlflowClient(tracking_uri=url).get_run(run_id).data.tags["job_name"] == job.name


def test_a_server_has_an_address_and_needs_no_command():
    assert tracking_store.ui_command("http://127.0.0.1:5000") is None
    assert tracking_store.ui_command("arn:aws:sagemaker:us-west-2:1:mlflow-tracking-server/x") is None


@pytest.mark.slow
@pytest.mark.parametrize("is_installed", [True, False], ids=["mlflow", "mlflow-skinny"])
def test_the_command_names_the_package_that_it_needs(monkeypatch, is_installed):
    def version(name):
        if not is_installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return "3"

    monkeypatch.setattr(importlib.metadata, "version", version)
    command = tracking_store.ui_command("sqlite:////tmp/mlflow.db")
    assert command.startswith("mlflow ui --backend-store-uri sqlite:////tmp/mlflow.db")
    assert command.endswith("  # needs: pip install mlflow") is not is_installed


@pytest.mark.slow
def test_an_interrupted_creation_leaves_no_store_and_the_next_makes_one(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    path = tmp_path / "results" / "mlflow.db"

    def interrupted(client, **_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "search_experiments", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tracking_store.client_of(f"sqlite:///{path}")
    assert list(path.parent.iterdir()) == []
    assert tracking_store.client_of(f"sqlite:///{path}").search_experiments()
    assert [each.name for each in path.parent.iterdir()] == ["mlflow.db"]


@pytest.mark.slow
def test_a_store_that_has_a_part_of_its_tables_is_named_with_what_to_do(tmp_path):
    path = tmp_path / "mlflow.db"
    with contextlib.closing(sqlite3.connect(path)) as half:
        half.execute("create table trace_info (request_id text)")
        half.commit()
    with pytest.raises(ProblemsFound) as caught, tracking_store.connected(f"sqlite:///{path}") as client:
        client.search_experiments()
    (problem,) = caught.value.problems
    assert (
        problem.code == "E502" and problem.remedy == f"remove {path}, which an interrupted launch has left incomplete"
    )
