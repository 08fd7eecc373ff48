"""A request over HTTP to a stand-in of AWS: submitted, followed, stopped, and what goes wrong on the way.

The stand-in is ours (aws_standin.py): moto's SageMaker completes every job at once and validates nothing.
"""

import dataclasses
import json
import os
import signal
import threading

import pytest
from aws_standin import Aws, AwsError
from background import await_true
from conftest import rendered, written
from job_suite import *  # noqa: F403  # with this module's stage
from job_suite import NODES
from log_texts import log_texts, shown

from launcher.backends.sagemaker import client, follow
from launcher.backends.sagemaker.backend import BACKEND, SageMakerBackend
from launcher.cli import launch
from launcher.cli import main as cli
from launcher.common.names import JOB_FILE
from launcher.common.problems import ProblemsFound
from launcher.common.process import USER_ERROR
from launcher.model.job_spec import JobState, JobStatus, LogLine, LogSelection

pytest.importorskip("boto3", reason="pip install '.[sagemaker]'")

BASE = (
    "recipes=training/tiny/tiny_lm_cpu",
    "cluster=sm_jobs",
    "instance_type=m5.2xlarge",
    "container=me/image:1",
    "cluster.sm_jobs_config.role=arn:aws:iam::123456789012:role/train",
    "cluster.sm_jobs_config.output_path=s3://results/out",
    "cluster.sm_jobs_config.region=eu-west-1",
    "recipes.elastic_policy.is_elastic=false",
    "recipes.training_config.mlflow.enabled=false",
    "recipes.trainer.devices=1",
    f"recipes.trainer.num_nodes={NODES}",
)


class SageMakerStage:
    """Jobs at the stand-in; their hosts write what a test says."""

    def __init__(self, aws, folder):
        self._aws, self._folder = aws, folder

    def backend(self):
        return SageMakerBackend(poll_s=0.05)

    def bundle(self, name):
        return written(self._folder, *BASE, f"recipes.run.name={name}")

    def _job(self, handle):
        """Return a job that trains by now."""
        job = self._aws.jobs[handle.native_id]
        if job.secondary == "Starting":
            job.move("InProgress", "Downloading", "Downloading input data")
            job.move("InProgress", "Training", "Training image download completed. Training in progress.")
            for number in range(1, NODES + 1):
                job.streams[f"{job.name}/algo-{number}-1700000000"] = []
        return job

    def say(self, handle, rank, line):
        with self._aws.lock:
            self._job(handle).streams[f"{handle.native_id}/algo-{rank + 1}-1700000000"].append(line)

    def end(self, handle, state):
        with self._aws.lock:
            job = self._job(handle)
            if state is JobState.SUCCEEDED:
                job.move("InProgress", "Uploading", "Uploading generated training model")
                job.move("Completed", "Completed", "Training job completed")
            else:
                reason = "AlgorithmError: the loss is not a number"
                job.move("Failed", "Failed", "Training job failed", failure=reason)


@pytest.fixture(scope="module")
def aws(tmp_path_factory):
    """Return the stand-in, which boto3 takes for AWS."""
    services = Aws()
    with pytest.MonkeyPatch.context() as patch:
        empty = tmp_path_factory.mktemp("aws")
        patch.setenv("AWS_CONFIG_FILE", str(empty / "config"))
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(empty / "credentials"))
        for name, value in {
            "AWS_ENDPOINT_URL": services.url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_EC2_METADATA_DISABLED": "true",
        }.items():
            patch.setenv(name, value)
        yield services
    services.close()


@pytest.fixture(scope="module")
def stage(aws, tmp_path_factory):
    """Return the stage whose jobs train by themselves: they run as soon as they are described twice."""
    stage = SageMakerStage(aws, tmp_path_factory.mktemp("bundles"))
    described = aws.on_DescribeTrainingJob

    def moving(body):
        job = aws.job(body)
        if job.secondary == "Starting" and job.request["TrainingJobName"] not in HELD:
            stage._job(type("Handle", (), {"native_id": job.name}))
        return described(body)

    aws.on_DescribeTrainingJob = moving
    return stage


HELD = set()
"""Jobs that stay as they are made."""


@pytest.fixture
def one(aws, tmp_path):
    """Return the bundle of a job of its own, which stays as it is made; and take it away afterwards."""
    bundle = written(tmp_path, *BASE, "recipes.run.name=one")
    aws.objects.clear()
    HELD.add(bundle.job_name)
    yield bundle
    await_true(lambda: not aws.unanswered)  # a request that its sender has given up would meet the next test
    aws.jobs.pop(bundle.job_name, None)
    aws.errors.clear()
    aws.lost.clear()
    aws.objects.clear()
    aws.stops_slowly = False


@pytest.fixture
def impatient(monkeypatch):
    """Let calls be repeated once."""
    monkeypatch.setattr(client, "_ATTEMPTS", 1)
    client._connect.cache_clear()
    yield
    client._connect.cache_clear()


def refusal(bundle):
    with pytest.raises(ProblemsFound) as refused:
        SageMakerBackend().submit(bundle)
    (problem,) = refused.value.problems
    return problem


@pytest.mark.slow
def test_the_recipe_is_in_s3_before_the_job_and_the_request_is_the_bundles(aws, one):
    aws.calls.clear()
    handle = SageMakerBackend().submit(one)
    assert aws.calls[0] == "DescribeTrainingJob" and aws.calls[-1] == "CreateTrainingJob"
    assert aws.jobs[one.job_name].request == json.loads(one.files["request.json"])
    (channel,) = aws.jobs[one.job_name].request["InputDataConfig"]
    uri = channel["DataSource"]["S3DataSource"]["S3Uri"]
    place = uri.replace("s3://", "/")
    assert aws.objects == {
        f"{place}config.yaml": one.files["configs/config.yaml"].encode(),
        f"{place}start.sh": one.files["start.sh"].encode(),
    }
    assert (handle.native_id, handle.context, handle.is_new) == (one.job_name, "eu-west-1", True)
    assert handle.uid.endswith(one.job_name)


@pytest.mark.slow
def test_an_answer_that_was_lost_makes_one_job(aws, one):
    aws.lost["CreateTrainingJob"] = 1
    handle = SageMakerBackend().submit(one)
    assert aws.calls.count("CreateTrainingJob") >= 2
    assert handle.uid.endswith(one.job_name) and one.job_name in aws.jobs


@pytest.mark.slow
def test_a_job_whose_answer_is_lost_for_good_keeps_its_recipe(aws, one, impatient):
    aws.lost["CreateTrainingJob"] = 2
    with pytest.raises(ProblemsFound) as refused:
        SageMakerBackend().submit(one)
    assert [problem.code for problem in refused.value.problems] == ["E396", "E352"]
    assert one.job_name in aws.jobs and len(aws.objects) == 2
    assert not SageMakerBackend().submit(one).is_new


@pytest.fixture
def released(aws, monkeypatch):
    """Hold requests for jobs until the event is set; the launcher gives up sooner."""
    event = threading.Event()
    monkeypatch.setattr(client, "_READ_TIMEOUT_S", 0.5)
    monkeypatch.setitem(aws.held, "CreateTrainingJob", event)
    aws.holding.clear()
    yield event
    event.set()


@pytest.mark.slow
@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_unanswered_request_is_remembered_and_its_job_found(aws, one, impatient, released, capsys, number):
    def interrupt():
        await_true(lambda: "CreateTrainingJob" in aws.holding)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt) if number else None
    if thread:
        thread.start()
    assert cli.run(["launch", str(one.directory)]) == (128 + number if number else USER_ERROR)
    if thread:
        thread.join()
    told = capsys.readouterr().err
    assert "E352 job" in told and f"recipes status {one.directory.name}" in told
    assert one.job_name not in aws.jobs and len(aws.objects) == 2  # the job still needs its recipe
    assert cli.run(["status", str(one.directory)]) == 0
    assert "may still create it" in capsys.readouterr().out
    assert cli.run(["cancel", str(one.directory)]) == 2 and "E508" in capsys.readouterr().err
    released.set()
    await_true(lambda: one.job_name in aws.jobs)
    assert cli.run(["status", str(one.directory)]) == 0
    assert "may still" not in capsys.readouterr().out
    assert not SageMakerBackend().submit(one).is_new


def test_a_refused_job_is_not_recorded(aws, one):
    aws.errors["CreateTrainingJob"] = [AwsError("ValidationException", "no")]
    assert cli.run(["launch", str(one.directory)]) == USER_ERROR
    assert not (one.directory / JOB_FILE).exists()


@pytest.mark.slow
def test_a_recipes_place_is_read_as_it_stands(aws, tmp_path):
    words = (*BASE, "recipes.run.name=odd", 'cluster.sm_jobs_config.recipe_path="s3://results/a#b?c"')
    SageMakerBackend().submit(rendered(tmp_path, *words))
    assert [name for name in aws.objects if "/results/a%23b%3Fc/" in name], list(aws.objects)
    aws.objects.clear()


@pytest.mark.slow
@pytest.mark.parametrize("code", ["ValidationException", "ResourceNotFound"])
def test_a_missing_job_is_known_by_its_errors_code_in_any_words(aws, one, code):
    backend = SageMakerBackend()
    handle = backend.submit(one)
    aws.errors["DescribeTrainingJob"] = [AwsError(code, "La ressource demandée n'existe pas.")]
    assert backend.status(handle).state is JobState.DELETED


def test_words_of_an_error_do_not_make_a_job_gone(aws, one):
    backend = SageMakerBackend()
    handle = backend.submit(one)
    aws.errors["DescribeTrainingJob"] = [AwsError("AccessDeniedException", "the policy was not found")]
    with pytest.raises(ProblemsFound, match="E395"):
        backend.status(handle)


@pytest.mark.slow
def test_a_launch_never_claims_that_nothing_was_submitted_where_a_job_may_run(aws, one, impatient, capsys):
    aws.lost["CreateTrainingJob"] = 2
    assert cli.run(["launch", str(one.directory)]) == USER_ERROR
    told = capsys.readouterr().err
    assert one.job_name in aws.jobs
    assert "E352 job" in told and "may have started" in told and "nothing was" not in told


@pytest.mark.slow
def test_a_submitted_job_that_cannot_be_followed_was_submitted(aws, one, impatient, capsys):
    aws.errors["DescribeTrainingJob"] = [
        AwsError("ValidationException", "none yet"),
        *[AwsError("AccessDeniedException", "not yours")] * 9,
    ]
    assert cli.run(["launch", str(one.directory), "--wait"]) == USER_ERROR
    told = capsys.readouterr().err
    assert f"the job was submitted as {one.job_name}" in told and "nothing was" not in told


@pytest.mark.slow
def test_throttling_is_waited_out(aws, one):
    throttled = AwsError("ThrottlingException", "Rate exceeded")
    aws.errors = {"DescribeTrainingJob": [throttled], "CreateTrainingJob": [throttled]}
    assert SageMakerBackend().submit(one).is_new


@pytest.mark.slow
def test_throttling_without_end_is_a_problem(aws, one, impatient):
    aws.errors["DescribeTrainingJob"] = [AwsError("ThrottlingException", "Rate exceeded")] * 9
    problem = refusal(one)
    assert problem.code == "E396" and "Rate exceeded" in problem.message


@pytest.mark.slow
def test_a_name_that_another_job_has_is_refused(aws, one):
    SageMakerBackend().submit(one)
    aws.jobs[one.job_name].request = {**aws.jobs[one.job_name].request, "Environment": {"OTHER": "1"}}
    problem = refusal(one)
    assert problem.code == "E397" and problem.value == one.job_name
    assert [each.code for each in SageMakerBackend().validate(one)] == ["E397"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("AccessDeniedException", 400, "E395"),
        ("UnrecognizedClientException", 400, "E394"),
        ("ExpiredTokenException", 400, "E394"),
        ("ResourceLimitExceeded", 400, "E397"),
        ("ValidationException", 400, "E397"),
    ],
)
def test_a_refused_job_leaves_nothing_and_says_why(aws, one, code, status, expected):
    aws.errors["CreateTrainingJob"] = [AwsError(code, "the service's own words", status)]
    problem = refusal(one)
    assert problem.code == expected and "the service's own words" in problem.message
    assert aws.objects == {} and one.job_name not in aws.jobs


THROTTLED = AwsError("ThrottlingException", "Rate exceeded")
NO = AwsError("ResourceLimitExceeded", "no such quota")


@pytest.mark.parametrize(
    ("answers", "lost", "codes"),
    [
        ([THROTTLED, NO], 0, ["E397"]),
        ([AwsError("SlowDown", "Rate exceeded", 503), NO], 0, ["E397"]),
        ([THROTTLED, THROTTLED, THROTTLED], 0, ["E396"]),
        ([AwsError("InternalFailure", "oops", 500), NO], 0, ["E397", "E352"]),
        ([THROTTLED, NO], 1, ["E397", "E352"]),
    ],
    ids=["throttled", "slowed down", "throttled to the end", "a server's fault", "an answer was lost"],
)
@pytest.mark.slow
def test_a_refusal_is_final_unless_an_attempt_before_it_may_have_started_the_job(
    aws, one, monkeypatch, answers, lost, codes
):
    monkeypatch.setattr(client, "_ATTEMPTS", 2)  # retries
    client._connect.cache_clear()
    aws.errors["CreateTrainingJob"], aws.lost["CreateTrainingJob"] = list(answers), lost
    with pytest.raises(ProblemsFound) as refused:
        SageMakerBackend().submit(one)
    client._connect.cache_clear()
    assert [problem.code for problem in refused.value.problems] == codes
    assert bool(aws.objects) == ("E352" in codes)  # a job that may start needs its recipe


def test_a_bucket_that_refuses_makes_no_job(aws, one):
    aws.errors["PutObject"] = [AwsError("AccessDenied", "not yours", 403)]
    assert refusal(one).code == "E395"
    assert one.job_name not in aws.jobs


@pytest.mark.parametrize("missing", [("AWS_SECRET_ACCESS_KEY",), ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")])
def test_nobody_to_ask_as_is_a_problem(aws, one, monkeypatch, missing):
    for name in missing:
        monkeypatch.delenv(name)
    assert refusal(one).code == "E394"


def test_an_expired_session_is_a_problem():
    from botocore import exceptions

    expired = exceptions.TokenRetrievalError(provider="sso", error_msg="Token has expired and refresh failed")
    for error in (expired, exceptions.LoginRefreshRequired()):
        assert client._unasked(error).problems[0].code == "E394"


def test_an_endpoint_that_is_no_url_is_a_problem(aws, one, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://a b")
    assert refusal(one).code == "E396"


def test_no_region_is_a_problem(aws, monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.delenv("AWS_REGION", raising=False)
    with pytest.raises(ProblemsFound, match="E393"):
        client.connect(None)


@pytest.mark.slow
def test_no_answer_is_a_problem(aws, one, impatient, monkeypatch, closed_port):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed_port}")
    assert refusal(one).code == "E396"


@pytest.mark.slow
def test_states_follow_the_life_of_a_job(aws, one):
    backend = SageMakerBackend(poll_s=0.01)
    handle = backend.submit(one)
    job = aws.jobs[one.job_name]
    seen = [backend.status(handle)]
    for status, secondary, message in (
        ("InProgress", "Pending", "Insufficient capacity error from EC2"),
        ("InProgress", "Training", "in progress"),
        ("InProgress", "Interrupted", "spot capacity was reclaimed"),
        ("InProgress", "Starting", "again"),
        ("InProgress", "Training", "in progress"),
        ("Stopping", "Stopping", ""),
        ("Stopped", "MaxRuntimeExceeded", "Training job runtime exceeded MaxRuntimeInSeconds"),
    ):
        job.move(status, secondary, message)
        seen.append(backend.status(handle))
    states = [(each.state.value, each.nodes) for each in seen]
    assert states == [
        ("pending", 0),
        ("pending", 0),
        ("running", NODES),
        ("pending", 0),
        ("pending", 0),
        ("running", NODES),
        ("running", NODES),
        ("failed", 0),
    ]
    assert seen[1].message == "pending: Insufficient capacity error from EC2"
    assert seen[-1].message == "Training job runtime exceeded MaxRuntimeInSeconds"
    assert [each.restarts for each in seen[-4:]] == [1, 1, 1, 1]
    kinds = [(event.kind, event.is_warning) for event in backend.events(handle, follow=False)]
    assert ("Interrupted", True) in kinds and ("Training", False) in kinds
    del aws.jobs[one.job_name]
    assert backend.status(handle).state is JobState.DELETED


@pytest.mark.slow
def test_a_serverless_job_has_no_recipe_to_upload_and_no_instances(aws, tmp_path):
    hub = "arn:aws:sagemaker:eu-west-1:aws:hub-content/SageMakerPublicHub"
    jobs = "cluster.sm_jobs_config"
    words = (
        "recipes=training/custom/script",
        *BASE[1:3],
        *(word for word in BASE if word.startswith(jobs)),
        "recipes.training_config.mlflow.enabled=false",
        "training_cfg.run.ntasks_per_node=1",
        f"{jobs}.serverless.base_model_arn={hub}/Model/llama/1.0.0",
        f"{jobs}.serverless.job_type=FineTuning",
    )
    bundle = written(tmp_path, *words)
    backend = SageMakerBackend()
    handle = backend.submit(bundle)
    HELD.add(bundle.job_name)
    assert aws.objects == {}
    aws.jobs[bundle.job_name].move("InProgress", "Training", "in progress")
    assert backend.status(handle) == JobStatus(JobState.RUNNING, 0)
    assert not backend.submit(bundle).is_new


@pytest.mark.slow
def test_a_message_that_grows_is_followed_as_it_grows(aws, one):
    backend = SageMakerBackend(poll_s=0.01)
    handle = backend.submit(one)
    job = aws.jobs[one.job_name]
    followed = (log_texts(backend, handle, follow=True), backend.events(handle, follow=True))
    assert next(followed[0]).endswith("Starting the training job")
    assert next(followed[1]).message == "Starting the training job"
    job.transitions[-1]["StatusMessage"] += "; one file is left out"
    job.move("Completed", "Completed", "Training job completed")
    assert list(followed[0]) == ["event  Starting: one file is left out", "event  Completed: Training job completed"]
    assert [event.message for event in followed[1]] == ["one file is left out", "Training job completed"]


@pytest.mark.slow
def test_a_job_that_ends_while_it_is_stopped_is_left_alone(aws, one, monkeypatch):
    backend = SageMakerBackend(poll_s=0.01)
    handle = backend.submit(one)
    job = aws.jobs[one.job_name]
    stop = aws.on_StopTrainingJob

    def late(body):
        job.move("Completed", "Completed", "Training job completed")
        return stop(body)

    monkeypatch.setattr(aws, "on_StopTrainingJob", late)
    backend.cancel(handle)
    assert backend.status(handle).state is JobState.SUCCEEDED


def test_a_job_without_a_log_yet_has_no_lines(aws, one):
    backend = SageMakerBackend()
    handle = backend.submit(one)
    assert list(log_texts(backend, handle, follow=False)) == []
    with pytest.raises(ProblemsFound, match="E398"):
        log_texts(backend, handle, LogSelection(is_stderr=True), follow=False)


@pytest.mark.slow
def test_lines_that_mpirun_marked_are_their_ranks(aws, one):
    backend = SageMakerBackend()
    handle = backend.submit(one)
    name = one.job_name
    aws.jobs[name].streams = {
        f"{name}/algo-1-1700000000": ["[1,mpirank:0,algo-1]<stdout>:zero", "[1,1]<stderr>: one", "plain"],
        f"{name}/algo-1-1700000900": ["after a restart"],
    }
    first = list(log_texts(backend, handle, LogSelection(attempt=0), follow=False))
    assert first == ["zero", "plain"]
    assert list(log_texts(backend, handle, LogSelection(attempt=1), follow=False)) == ["after a restart"]
    both = list(log_texts(backend, handle, LogSelection(None, has_headings=True), follow=False))
    assert both == [
        "== attempt 0 on algo-1",
        "rank 0 on algo-1 | zero",
        "rank 1 on algo-2 |  one",
        "rank 0 | plain",
        "== attempt 1 on algo-1",
        "rank 0 | after a restart",
    ]
    assert list(log_texts(backend, handle, LogSelection((1,)), follow=False)) == [" one"]


def test_ranks_beyond_nine_hosts_are_on_the_hosts_that_have_them():
    told = ["[1,mpirank:1,algo-2]<stdout>:x", "[1,21]<stderr>:y", "[1,22]<stdout>:none of ours"]

    class Logs:
        def call(self, service, operation, **arguments):
            if operation == "describe_log_streams":
                return {"logStreams": [{"logStreamName": "job/algo-1-1700000000"}]}
            events = [] if "nextToken" in arguments else [{"message": line, "timestamp": 1500} for line in told]
            return {"events": events, "nextForwardToken": "end"}

    def lines(ranks):
        job = follow.TrainingJob(Logs(), "job", 11, 2, "")
        return list(shown(follow.logs(job, LogSelection(ranks), 0, follow=False), LogSelection(ranks)))

    assert lines(None) == [
        "rank 1 on algo-1 | x",
        "rank 21 on algo-9 | y",
        "rank 0 | [1,22]<stdout>:none of ours",
    ]
    job = follow.TrainingJob(Logs(), "job", 11, 2, "")
    last = [
        *follow.logs(job, LogSelection(), 0, follow=False),
        *follow.logs(job, LogSelection((21,)), 0, follow=False),
    ]
    assert last == [
        LogLine("line", 0, told[2], 0, "algo-1", 1.5),
        LogLine("line", 21, "y", 0, "algo-9", 1.5, writer="rank 21 on algo-9"),
    ]
    told[0] = "[1,mpirank:2,algo-2]<stdout>:x"
    assert (lines((2, 3)), lines((2,))) == (["rank 2 on algo-10 | x"], ["x"])


def test_a_training_job_keeps_its_size(aws, one):
    backend = SageMakerBackend()
    handle = backend.submit(one)
    with pytest.raises(ProblemsFound, match="E413"):
        backend.scale(handle, 3)


def test_a_server_dry_run_creates_nothing(aws, one):
    aws.calls.clear()
    assert SageMakerBackend().validate(one) == ()
    assert aws.calls == ["DescribeTrainingJob"]


def test_an_edited_request_is_not_sent(one):
    request = json.loads(one.files["request.json"]) | {"RoleArn": "nobody"}
    edited = dataclasses.replace(one, files={**one.files, "request.json": json.dumps(request)})
    problems = SageMakerBackend().validate(edited)
    assert {problem.code for problem in problems} == {"E399"}
    damaged = dataclasses.replace(one, files={**one.files, "request.json": "{"})
    with pytest.raises(ProblemsFound, match="E703"):
        SageMakerBackend().submit(damaged)


@pytest.mark.slow
def test_a_launched_job_is_commanded_by_its_name(aws, recipes, tmp_path, monkeypatch):
    monkeypatch.setattr(BACKEND, "_poll_s", 0.05)
    assert launch.main([*BASE, "recipes.run.name=typed"]) == 0
    (name,) = (path.name for path in tmp_path.glob("results/typed-*"))
    HELD.add(name)
    code, out, _ = recipes("status", name)
    assert code == 0 and "pending" in out and "eu-west-1" in out
    aws.jobs[name].move("InProgress", "Training", "in progress")
    code, out, _ = recipes("events", name)
    assert code == 0 and "Training  in progress" in out
    code, out, err = recipes("cancel", name)
    assert code == 0 and "cancelled" in out + err
    assert recipes("wait", name)[0] == launch.INTERRUPTED
    code, out, _ = recipes("jobs")
    assert code == 0 and "sm_jobs" in out and "cancelled" in out


@pytest.mark.slow
def test_a_launch_that_waits_ends_as_its_job_does(aws, recipes, tmp_path, monkeypatch):
    monkeypatch.setattr(BACKEND, "_poll_s", 0.05)
    monkeypatch.setattr(aws, "on_DescribeTrainingJob", failing(aws))
    assert launch.main([*BASE, "recipes.run.name=waited", "cluster.sm_jobs_config.wait=true"]) == launch.JOB_FAILED


def failing(aws):
    """Return a DescribeTrainingJob whose jobs fail as soon as they are looked at."""

    def describe(body):
        job = aws.job(body)
        if job.status == "InProgress":
            job.move("Failed", "Failed", "Training job failed", failure="AlgorithmError: exit code 1")
        return job.described()

    return describe
