"""Submission against a real API server: whole, once, or not at all."""

import dataclasses
import json

import pytest
from kube_api import CANARY, USER_TOKEN

from launcher.backends.kubernetes.api_objects import DIGEST, path
from launcher.backends.kubernetes.backend import KubernetesBackend
from launcher.backends.kubernetes.connection import Connection
from launcher.backends.kubernetes.submit import submit, validate
from launcher.common.problems import ProblemsFound
from launcher.model.job_spec import JobState

pytest_plugins = ("cluster_fixtures",)

JOB, MAP = "HyperPodPyTorchJob", "ConfigMap"


def refused(connection, bundle):
    with pytest.raises(ProblemsFound) as caught:
        submit(connection, bundle)
    return caught.value.problems


def nothing_is_left(space):
    return not space.names(JOB) and not [name for name in space.names(MAP) if name != "kube-root-ca.crt"]


def test_makes_the_objects_of_a_bundle(space, bundle):
    made = bundle()
    submitted = submit(space.connection(), made)
    job = space.get(JOB, made.job_name)
    config = space.get(MAP, f"training-config-{made.job_name}")
    assert submitted.is_new and submitted.job["metadata"]["uid"] == job["metadata"]["uid"]
    assert job["spec"]["elasticPolicy"]["maxReplicas"] == 16
    assert job["metadata"]["annotations"][DIGEST] == config["metadata"]["annotations"][DIGEST] == made.digest
    assert config["data"]["config-n4.yaml"] == made.files["configs/config-n4.yaml"]
    (owner,) = config["metadata"]["ownerReferences"]
    assert owner["uid"] == job["metadata"]["uid"]
    managers = {entry["manager"] for entry in job["metadata"]["managedFields"]}
    assert managers == {f"recipe-launcher-{made.digest[:12]}"}


def test_the_same_bundle_again_changes_nothing(space, bundle):
    made, connection = bundle(), space.connection()
    first = submit(connection, made)
    space.cluster.proxy.seen.clear()
    second = submit(connection, made)
    assert not second.is_new
    assert second.job["metadata"]["resourceVersion"] == first.job["metadata"]["resourceVersion"]
    assert not [line for line in space.cluster.proxy.seen if not line.startswith("GET ")]


def test_another_bundle_of_that_name_is_refused(space, bundle):
    submit(space.connection(), bundle())
    other = bundle("base_results_dir=other", "++recipes.elastic_policy.scaling_timeout=7")
    problems = refused(space.connection(), other)
    assert {problem.code for problem in problems} == {"E350"}
    assert {problem.value for problem in problems} == {other.job_name, f"training-config-{other.job_name}"}
    assert space.get(JOB, other.job_name)["spec"]["elasticPolicy"]["scalingTimeoutInSeconds"] == 600


def test_a_half_made_bundle_is_made_whole(space, bundle):
    made, connection = bundle(), space.connection()
    submit(connection, made)
    space.admin.delete(
        f"/api/v1/namespaces/{space.name}/configmaps/training-config-{made.job_name}", uid_of(space, made)
    )
    again = submit(connection, made)
    assert again.is_new and space.get(MAP, f"training-config-{made.job_name}")["metadata"]["ownerReferences"]


def uid_of(space, made):
    return space.get(MAP, f"training-config-{made.job_name}")["metadata"]["uid"]


def test_what_an_earlier_job_left_goes_with_the_new_one(space, bundle):
    made, connection = bundle(), space.connection()
    old = submit(connection, made).job["metadata"]["uid"]
    space.admin.delete(path(JOB, space.name, made.job_name), old)  # nothing collects what it owned yet
    new = submit(connection, made).job["metadata"]["uid"]
    (owner,) = space.get(MAP, f"training-config-{made.job_name}")["metadata"]["ownerReferences"]
    assert old != new == owner["uid"]


def test_an_ended_job_that_is_cleared_can_be_submitted_again(space, bundle):
    made, backend = bundle(), KubernetesBackend()
    first = backend.submit(made)
    space.conditions(made.job_name, "Completed")
    assert backend.status(first).state is JobState.SUCCEEDED
    backend.clear(first)
    assert nothing_is_left(space)
    second = backend.submit(made)
    assert second.is_new and second.uid != first.uid
    backend.clear(first)  # the record of an earlier job: its name now is another one's
    assert backend.status(second).state is not JobState.DELETED


def test_a_launch_that_died_before_its_last_step_is_finished_by_the_next(space, bundle):
    made, connection = bundle(), space.connection()
    submit(connection, made)
    where = path(MAP, space.name, f"training-config-{made.job_name}")
    space.admin.merge(where, {"metadata": {"ownerReferences": None}}, "test")
    job = submit(connection, made).job
    (owner,) = space.admin.get(where)["metadata"]["ownerReferences"]
    assert owner["uid"] == job["metadata"]["uid"] and not submit(connection, made).is_new


def test_a_job_that_is_being_removed_is_not_taken_for_a_submitted_one(space, bundle):
    made, connection = bundle(), space.connection()
    where = path(JOB, space.name, made.job_name)
    job = submit(connection, made).job
    space.admin.merge(where, {"metadata": {"finalizers": ["example.com/hold"]}}, "operator")
    space.admin.delete(where, job["metadata"]["uid"])
    (problem,) = refused(connection, made)
    assert problem.code == "E350" and "is being deleted" in problem.message
    assert validate(connection, made).problems == (problem,)
    space.admin.merge(where, {"metadata": {"finalizers": None}}, "operator")
    assert submit(connection, made).is_new


def test_a_job_that_its_operator_changed_before_an_answer_came_is_kept(space, bundle):
    made = bundle()
    space.cluster.proxy.fail(method="PATCH", path=REQUESTS["job"], is_lost=True)
    space.cluster.proxy.fail(method="PATCH", path=REQUESTS["job"], status=409)
    job = submit(space.connection(), made).job
    assert space.get(JOB, made.job_name)["metadata"]["uid"] == job["metadata"]["uid"] and uid_of(space, made)


def test_validate_creates_nothing_and_finds_nothing_wrong(space, bundle):
    assert validate(space.connection(), bundle()).problems == ()
    assert nothing_is_left(space)


PASSING = {
    "throttled": {"status": 429, "retry_after": "0", "times": 3},
    "in-trouble": {"status": 500, "times": 2},
    "unavailable": {"status": 503, "times": 2},
    "refused": {"is_refused": True, "times": 2},
    "answer-lost": {"is_lost": True, "times": 2},
    "answer-cut": {"cut_after": 300, "times": 2},
    "slow": {"delay_s": 0.3, "times": 4},
}


@pytest.mark.parametrize("method", ["GET", "PATCH"])
@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
def test_what_passes_by_is_outlasted_and_nothing_is_made_twice(space, bundle, fault, method):
    made = bundle()
    space.cluster.proxy.fail(method=method, path=space.name, **fault)
    submitted = submit(space.connection(), made)
    job = space.get(JOB, made.job_name)
    assert submitted.job["metadata"]["uid"] == job["metadata"]["uid"]
    assert job["metadata"]["generation"] == 1
    assert space.names(JOB) == [made.job_name]
    assert uid_of(space, made)


REQUESTS = {"config": "configmaps/[^?]*[?](?!.*dryRun)", "job": "hyperpodpytorchjobs/[^?]*[?](?!.*dryRun)"}
WEBHOOK_FAILED = {"kind": "Status", "message": "Internal error occurred: failed calling webhook: deadline exceeded"}
LASTING = {
    "throttled": ({"status": 429, "retry_after": "0"}, "E342"),
    "webhook-failed": ({"status": 500, "body": json.dumps(WEBHOOK_FAILED).encode()}, "E342"),
    "unprocessable": ({"status": 422}, "E351"),
    "conflict": ({"status": 409}, "E351"),
    "forbidden": ({"status": 403}, "E344"),
    "unknown-user": ({"status": 401}, "E343"),
}


@pytest.mark.parametrize(("place", "skip"), [("config", 0), ("job", 0), ("config", 1)], ids=["first", "job", "owner"])
@pytest.mark.parametrize(("fault", "code"), LASTING.values(), ids=LASTING)
def test_what_does_not_pass_leaves_nothing_behind(space, bundle, fault, code, place, skip):
    space.cluster.proxy.fail(method="PATCH", path=REQUESTS[place], times=10**6, skip=skip, **fault)
    problems = refused(space.connection(patience_s=0.5), bundle())
    assert [problem.code for problem in problems] == [code]
    assert "everything this launch created was removed" in problems[0].message
    assert nothing_is_left(space)


UNANSWERED = {"in-trouble": {"status": 500}, "answers-lost": {"is_lost": True}, "cut-off": {"is_refused": True}}


@pytest.mark.parametrize(
    ("place", "skip", "kind"),
    [("config", 0, MAP), ("job", 0, JOB), ("config", 1, MAP)],
    ids=["first", "job", "owner"],
)
@pytest.mark.parametrize("fault", UNANSWERED.values(), ids=UNANSWERED)
def test_what_may_still_be_created_is_named_and_the_rest_is_removed(space, bundle, fault, place, skip, kind):
    space.cluster.proxy.fail(method="PATCH", path=REQUESTS[place], times=10**6, skip=skip, **fault)
    problems = refused(space.connection(patience_s=0.5), bundle())
    assert [problem.code for problem in problems] == ["E342", "E352"]
    assert "removed" not in problems[0].message
    assert problems[1].message.startswith(f"{kind} ") and "may still be created" in problems[1].message
    assert nothing_is_left(space)


def test_what_cannot_be_taken_back_is_named(space, bundle):
    space.cluster.proxy.fail(method="PATCH", path=REQUESTS["job"], times=10**6, status=422)
    space.cluster.proxy.fail(method="DELETE", times=10**6, status=500)
    made = bundle()
    problems = refused(space.connection(patience_s=0.5), made)
    assert [problem.code for problem in problems] == ["E351", "E352"]
    assert f"ConfigMap training-config-{made.job_name}" in problems[1].message
    space.cluster.proxy.faults.clear()
    assert submit(space.connection(), made).is_new  # as it says, launching it again settles it


def test_an_interrupt_leaves_nothing_behind(space, bundle, monkeypatch):
    apply, calls = Connection.apply, []

    def interrupted(self, path, body, manager, **how):
        made = apply(self, path, body, manager, **how)
        calls.append(path)
        if "dry_run" not in how and "hyperpodpytorchjobs" in path:
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(Connection, "apply", interrupted)
    with pytest.raises(KeyboardInterrupt):
        submit(space.connection(), bundle())
    assert calls and nothing_is_left(space)


def test_a_user_without_rights_is_told_everything_at_once(space, bundle):
    problems = refused(space.connection(USER_TOKEN), bundle())
    assert {problem.code for problem in problems} == {"E344"}
    words = " ".join(problem.message for problem in problems)
    assert 'User "ada" cannot get resource "hyperpodpytorchjobs"' in words


RULES = [
    {"apiGroups": ["sagemaker.amazonaws.com"], "resources": ["hyperpodpytorchjobs"], "verbs": ["*"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create", "patch", "delete"]},
]


def grant(space, rules):
    api = "/apis/rbac.authorization.k8s.io/v1/namespaces/" + space.name
    head = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "launch"}}
    space.admin.apply(f"{api}/roles/launch", {**head, "kind": "Role", "rules": rules}, "test")
    binding = {
        **head,
        "kind": "RoleBinding",
        "subjects": [{"kind": "User", "name": "ada", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"kind": "Role", "name": "launch", "apiGroup": "rbac.authorization.k8s.io"},
    }
    space.admin.apply(f"{api}/rolebindings/launch", binding, "test")


def test_rights_in_the_namespace_alone_are_enough(space, bundle):
    grant(space, RULES)
    made = bundle()
    submit(space.connection(USER_TOKEN), made)
    assert space.names(JOB) == [made.job_name]


def test_who_may_not_delete_is_told_before_anything_is_made(space, bundle):
    grant(space, [{**rule, "verbs": ["get", "create", "patch"]} for rule in RULES])
    problems = refused(space.connection(USER_TOKEN), bundle())
    assert [problem.code for problem in problems] == ["E344", "E344"]
    assert all("may not delete" in problem.message for problem in problems)
    assert nothing_is_left(space)


def test_a_field_that_the_operator_would_drop_is_told(space, bundle):
    made = bundle()
    text = made.files["manifests/job.yaml"].replace("  elasticPolicy:", "  elasticPolcy: {x: 1}\n  elasticPolicy:")
    changed = dataclasses.replace(made, files={**made.files, "manifests/job.yaml": text})
    (problem,) = refused(space.connection(), changed)
    assert problem.code == "E346" and "spec.elasticPolcy" in problem.message
    assert nothing_is_left(space)


def test_no_output_holds_the_credentials(space, bundle, capfd, logged):
    made = bundle()
    problems = refused(space.connection(CANARY), made)
    space.make("Secret", "hf", stringData={"token": CANARY})
    space.cluster.proxy.fail(method="PATCH", path=REQUESTS["job"], times=10**6, status=500)
    problems += refused(space.connection(patience_s=0.5), made)
    output = "".join([*map(str, problems), *capfd.readouterr(), logged.getvalue(), json.dumps(dict(made.files))])
    assert problems and CANARY not in output
