"""Parts of the Kubernetes backend against an API in memory: what is checked, made, removed, found and shown."""

import dataclasses
import json
import socket
from collections import Counter

import pytest
from conftest import LLAMA_K8S
from http_api import HttpApi, connection
from urllib3.exceptions import ProtocolError

from launcher.backends.kubernetes import (
    clusters,
    interact,
    operator_log,
    pod_logs,
    pod_report,
    preflight,
    security,
    server,
    submit,
    target,
)
from launcher.backends.kubernetes.api_errors import ApiError
from launcher.backends.kubernetes.api_objects import DIGEST, manifests
from launcher.backends.kubernetes.backend import BACKEND
from launcher.backends.kubernetes.clusters import KubernetesCluster
from launcher.backends.kubernetes.description import DESCRIPTION
from launcher.backends.kubernetes.job_options import LabelSelector, Settings
from launcher.bundle import store as bundles
from launcher.common.problems import ProblemsFound
from launcher.model.job_spec import JobHandle, LogSelection

NAMESPACE, REVIEWS = "/api/v1/namespaces/default", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
HYPERPOD, KUEUE = "/apis/sagemaker.amazonaws.com/v1", "/apis/kueue.x-k8s.io"
JOBS = f"{HYPERPOD}/namespaces/default/hyperpodpytorchjobs"


@pytest.fixture
def api():
    """Return an API that has the namespace and the job's kind, and neither Kueue nor other objects."""
    made = HttpApi()
    made.objects[NAMESPACE] = {"metadata": {"name": "default"}}
    made.objects[HYPERPOD] = {"resources": [{"kind": "HyperPodPyTorchJob"}]}
    return made


def reasons(api, bundle):
    return {(each.code, each.path) for each in preflight.examine(connection(api), manifests(bundle)).problems}


def codes(refused):
    return [each.code for each in refused.value.problems]


@pytest.fixture
def bundle(render):
    return render(*LLAMA_K8S)


def paths(bundle):
    config, job = (each.path for each in manifests(bundle))
    return config, job


@pytest.mark.slow
def test_a_bundle_without_faults_has_no_reason_against_it_and_nothing_is_made(api, bundle):
    before = dict(api.objects)
    assert reasons(api, bundle) == set()
    assert api.objects == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        ({NAMESPACE: None}, ("E345", "cluster.namespace")),
        ({NAMESPACE: {"status": {"phase": "Terminating"}}}, ("E345", "cluster.namespace")),
        ({HYPERPOD: None}, ("E346", "cluster.use_hyperpod_pytorch_job")),
    ],
    ids=["no namespace", "a namespace that is deleted", "no operator"],
)
def test_an_unusable_cluster_is_one_reason(api, bundle, objects, expected):
    api.objects.update(objects)
    assert reasons(api, bundle) == {expected}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "answer", "expected"),
    [
        ("GET", NAMESPACE, 401, ("E343", "cluster.kube_context")),
        ("GET", NAMESPACE, ProtocolError("broken"), ("E342", "cluster.kube_context")),
        ("GET", HYPERPOD, 500, ("E342", "cluster.use_hyperpod_pytorch_job")),
        ("POST", REVIEWS, 403, ("E344", "cluster.namespace")),
    ],
    ids=["unknown user", "no answer", "a failing server", "no review"],
)
def test_a_check_that_is_not_answered_is_a_reason(api, bundle, method, path, answer, expected):
    api.fail(method, path, answer, answer)
    assert expected in reasons(api, bundle)


@pytest.mark.slow
def test_what_a_user_of_one_namespace_may_not_read_is_no_reason(api, render):
    bundle = render(*LLAMA_K8S, "cluster.priority_class_name=high")
    api.fail("GET", NAMESPACE, 403)
    api.fail("GET", "/apis/scheduling.k8s.io/v1/priorityclasses/high", 403)
    assert reasons(api, bundle) == set()


def test_objects_that_pods_need_must_exist(api, render):
    bundle = render(
        *LLAMA_K8S,
        "cluster.priority_class_name=high",
        "cluster.service_account_name=me",
        "cluster.persistent_volume_claims=[{claimName: data, mountPath: /data}]",
        "+env_vars.HF_TOKEN={secretKeyRef: {name: hub, key: token}}",
    )
    keys = {"cluster.priority_class_name", "cluster.service_account_name", "cluster.persistent_volume_claims"}
    assert reasons(api, bundle) == {("E349", key) for key in (*keys, "env_vars.HF_TOKEN")}
    assert ("GET", f"{NAMESPACE}/secrets/hub") in api.seen


def test_a_queue_must_exist_and_accept_jobs(api, render):
    bundle = render(*LLAMA_K8S, "cluster.queue_name=q")
    assert reasons(api, bundle) == {("E347", "cluster.queue_name")}  # no Kueue
    api.objects[KUEUE] = {"preferredVersion": {"version": "v1beta1"}}
    queues = f"{KUEUE}/v1beta1/namespaces/default/localqueues"
    api.objects[queues] = {"items": [{"metadata": {"name": name}} for name in ("b", "a")]}
    (problem,) = preflight.examine(connection(api), manifests(bundle)).problems
    assert (problem.code, problem.allowed) == ("E347", "a, b")
    condition = {"type": "Active", "status": "False", "message": "no flavor"}
    api.objects[f"{queues}/q"] = {
        "spec": {"stopPolicy": "Hold", "clusterQueue": "c"},
        "status": {"conditions": [condition]},
    }
    found = preflight.examine(connection(api), manifests(bundle)).problems
    assert [each.code for each in found] == ["E347"] * 3
    assert "stopPolicy Hold" in found[0].message and "no flavor" in found[1].message and found[2].value == "c"


def test_a_name_is_taken_by_any_object_that_is_not_the_bundles(api, bundle):
    config, job = paths(bundle)
    api.objects[config] = {"metadata": {"name": "x", "annotations": {DIGEST: "other"}}}
    api.objects[job] = {"metadata": {"name": "x", "deletionTimestamp": "now"}}
    found = [each.message for each in preflight.examine(connection(api), manifests(bundle)).problems]
    assert any("does not come from this bundle" in each for each in found)
    assert any("is being deleted" in each for each in found)


def test_fields_that_the_cluster_drops_are_named(api, bundle):
    job = manifests(bundle)[-1]
    spec = {key: value for key, value in job.body["spec"].items() if key != "runPolicy"}
    kept = {**job.body, "spec": spec}
    assert list(preflight._lost(job.body, kept, "")) == ["spec.runPolicy"]
    assert list(preflight._lost({"a": [{"b": 1}], "c": {}, "d": None}, {"a": [{}]}, "")) == ["a[0].b"]


@pytest.mark.slow
def test_a_submission_makes_the_job_last_and_the_owner_of_the_rest(api, bundle):
    config, job = paths(bundle)
    made = submit.submit(connection(api), bundle)
    assert made.is_new and made.job["metadata"]["uid"] == f"uid-{bundle.job_name}"
    (owner,) = api.objects[config]["metadata"]["ownerReferences"]
    assert owner["uid"] == made.job["metadata"]["uid"]
    api.seen.clear()
    assert not submit.submit(connection(api), bundle).is_new
    assert {method for method, _ in api.seen} == {"GET"}
    assert [str(each) for each in submit.existing(connection(api), bundle)] == [str(m) for m in manifests(bundle)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "expected"),
    [(403, ["E344"]), (503, ["E342"]), (500, ["E342", "E352"]), (ProtocolError("lost"), ["E342", "E352"])],
    ids=["refused", "not accepted", "failed", "no answer"],
)
def test_a_failed_submission_removes_what_it_made_and_names_what_may_come(api, bundle, answer, expected):
    config, job = paths(bundle)
    before = dict(api.objects)
    tried = Counter()

    def request(method, url, **rest):
        path = url.removeprefix("https://api").partition("?")[0]
        if (method, path) == ("PATCH", job) and "dryRun" not in url:
            tried[path] += 1
            api.fail(method, path, answer)
        return HttpApi.request(api, method, url, **rest)

    api.request = request
    with pytest.raises(ProblemsFound) as refused:
        submit.submit(connection(api), bundle)
    assert codes(refused) == expected and tried[job] == 1
    assert api.objects == before and ("DELETE", config) in api.seen


@pytest.mark.parametrize(
    ("answers", "was_found", "expected"),
    [([True], False, False), ([False], False, True), ([False], True, False), ([False, True], True, True)],
    ids=["answered", "lost", "lost but found", "one of two lost"],
)
def test_a_request_without_answer_may_still_create_its_object(answers, was_found, expected):
    requests = submit.Requests()
    for is_answered in answers:
        try:
            with requests.sending("p"):
                if not is_answered:
                    raise ApiError(500, "no")
        except ApiError:
            pass
    assert requests.may_be_created("p", was_found=was_found) is expected


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [(409, "", True), (500, "", False), (500, "failed calling webhook x", True), (504, "", False), (503, "", True)],
)
def test_a_refusal_is_final_unless_the_server_may_have_acted(status, message, expected):
    assert submit.is_final(ApiError(status, message)) is expected


def training_job(name="j", created="2026-01-02T00:00:00Z", **spec):
    template = {"metadata": {"labels": {"recipe-launcher/job": name, "app": name}}, "spec": {"containers": [{}]}}
    parts = [{"name": "pods", "replicas": 2, "template": template}]
    metadata = {"name": name, "namespace": "default", "uid": f"u-{name}", "creationTimestamp": created}
    return {
        "apiVersion": "v1",
        "kind": "HyperPodPyTorchJob",
        "metadata": metadata,
        "spec": {"replicaSpecs": parts, **spec},
    }


def listing(*items):
    return {"metadata": {"resourceVersion": "1"}, "items": list(items)}


def test_jobs_are_listed_oldest_first_and_a_status_of_any_form_hides_none(api):
    api.objects[JOBS] = listing(training_job("b"), {**training_job("a", "2026-01-01T00:00:00Z"), "status": "odd"})
    api.objects[f"{NAMESPACE}/pods"] = listing()
    assert [job.name for job in clusters.jobs(connection(api), "default")] == ["a", "b"]
    api.fail("GET", f"{NAMESPACE}/pods", 403)
    assert {job.nodes for job in clusters.jobs(connection(api), "default")} == {None}


def test_a_cluster_without_kinds_of_jobs_and_one_that_hides_them_are_refused(api):
    with pytest.raises(ProblemsFound) as refused:
        clusters.jobs(connection(api), "default")
    assert codes(refused) == ["E346"]
    api.fail("GET", JOBS, 403)
    with pytest.raises(ProblemsFound) as refused:
        clusters.jobs(connection(api), "default")
    assert codes(refused) == ["E344"]


def test_a_job_is_found_by_name_unless_two_kinds_have_it(api):
    api.objects[f"{JOBS}/j"] = training_job()
    assert clusters.find(connection(api), "default", "j", None)["metadata"]["uid"] == "u-j"
    api.objects["/apis/kubeflow.org/v1/namespaces/default/pytorchjobs/j"] = training_job()
    for name, kind, code in (("j", None, "E386"), ("k", None, "E386"), ("J_", None, "E386")):
        with pytest.raises(ProblemsFound) as refused:
            clusters.find(connection(api), "default", name, kind)
        assert codes(refused) == [code]
    assert clusters.find(connection(api), "default", "j", "PyTorchJob")["kind"] == "PyTorchJob"
    with pytest.raises(ProblemsFound) as refused:
        clusters.require_namespace(connection(api), "nowhere")
    assert codes(refused) == ["E345"]


@pytest.mark.parametrize(
    ("given", "limits", "processes"),
    [("4", {}, "4"), ("auto", {"nvidia.com/gpu": "8"}, "8"), ("gpu", {}, "1")],
)
def test_an_outline_keeps_sizes_and_labels_and_nothing_that_pods_run(given, limits, processes):
    job = training_job(nprocPerNode=given)
    container = {"image": "secret/image", "env": [{"name": "K", "value": "v"}], "resources": {"limits": limits}}
    job["spec"]["replicaSpecs"][0]["template"]["spec"]["containers"] = [container]
    found = clusters.outline(job)
    assert found["spec"]["nprocPerNode"] == processes and found["spec"]["replicaSpecs"][0]["replicas"] == 2
    assert "image" not in json.dumps(found) and "env" not in json.dumps(found)


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        ("https://a ca:1 uid:x", "https://b ca:2 uid:x", True),
        ("https://a ca:1 uid:x", "https://a ca:1 uid:y", False),
        ("https://a ca:1", "https://b ca:1 uid:y", True),
        ("https://a", "https://a ca:1", True),
        ("https://a", "https://b", False),
    ],
)
def test_a_cluster_is_known_by_its_uid_then_its_authority_then_its_url(then, now, expected):
    first, second = server.Server.from_text(then), server.Server.from_text(now)
    assert (str(first), first.is_same(second)) == (then, expected)


def test_a_job_of_another_cluster_is_not_commanded(api):
    api.objects["/api/v1/namespaces/kube-system"] = {"metadata": {"uid": "x"}}
    server.require(connection(api), "https://old uid:x")
    server.require(connection(api), None)
    with pytest.raises(ProblemsFound) as refused:
        server.require(connection(api), "https://old uid:y")
    assert codes(refused) == ["E348"]


PODS = target.Places("j", (("pods", 2),), 1)
JOB = target.Target(
    "HyperPodPyTorchJob", "default", "j", "u-j", {"recipe-launcher/job": "j"}, target.Places("j", (("pods", 2),), 1)
)


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({"uid": "u-j"}, True),
        ({"kind": "Pod", "name": "j-pods-3"}, True),
        ({"kind": "Pod", "name": "k-pods-3"}, False),
        ({"kind": "StatefulSet", "name": "set", "uid": "s"}, True),
        ({"kind": "Pod", "name": "set-0"}, True),
        ({"kind": "StatefulSet", "name": "set", "uid": "t"}, False),
        ({"kind": "Node", "name": "j-pods-3"}, False),
    ],
)
def test_events_of_a_job_are_those_about_it_its_sets_and_its_pods(about, expected):
    job = {"status": {"jobPods": [{"kind": "StatefulSet", "name": "set", "uid": "s"}]}}
    assert target.is_event_of({"involvedObject": about}, JOB, job, ()) is expected


POLICY = {"kind": "ValidatingAdmissionPolicy", "apiVersion": "v1", "metadata": {"name": "p"}, "spec": {}}
FLAVOR = {
    "kind": "ResourceFlavor",
    "apiVersion": "kueue.x-k8s.io/v1beta1",
    "metadata": {"name": "f"},
    "spec": {"topologyName": "rack"},
}
ADMISSION = "/apis/admissionregistration.k8s.io/v1"


def cluster(api):
    return KubernetesCluster(connection(api), "k8s")


def test_the_clusters_version_of_kueue_is_used_if_objects_can_be_made_for_it(api):
    def version(given=None, known=("v1beta1",)):
        return cluster(api).kueue_version(known, given)

    with pytest.raises(ProblemsFound) as refused:
        version()
    assert codes(refused) == ["E347"]
    served = [{"version": each} for each in ("v1beta2", "v1beta1")]
    api.objects[KUEUE] = {"preferredVersion": {"version": "v1beta2"}, "versions": served}
    assert version() == "v1beta1" and version(known=("v1beta1", "v1beta2")) == "v1beta2"
    for given in ("v1alpha1", None):
        with pytest.raises(ProblemsFound) as refused:
            version(given, known=("v1alpha1",))
        assert codes(refused) == ["E347"]


def test_a_team_needs_the_policys_kind_and_its_topology_once_each(api):
    found = list(cluster(api).lacks([POLICY, POLICY, FLAVOR, FLAVOR]))
    assert [each.code for each in found] == ["E346", "E347"]
    api.objects[ADMISSION] = {"resources": [{"kind": "ValidatingAdmissionPolicy"}]}
    api.objects[f"{KUEUE}/v1beta1/topologies/rack"] = {}
    assert list(cluster(api).lacks([POLICY, FLAVOR])) == []


def test_shared_objects_of_a_team_are_read_from_the_cluster(api):
    assert cluster(api).existing([FLAVOR, POLICY]) == ()
    api.objects[f"{KUEUE}/v1beta1/resourceflavors/f"] = {"spec": {}}
    (found,) = cluster(api).existing([FLAVOR, POLICY])
    assert found["kind"] == "ResourceFlavor"
    for answer, code in ((403, "E344"), (ProtocolError("broken"), "E342")):
        api.fail("GET", f"{KUEUE}/v1beta1/resourceflavors/f", answer)
        with pytest.raises(ProblemsFound) as refused:
            cluster(api).existing([FLAVOR])
        assert codes(refused) == [code]


PLACES = target.Places("j", (("base", 2), ("elastic", 3)), 4)


def pod(name, phase="Running", created="2026-01-01T00:00:00Z", **status):
    metadata = {"name": name, "uid": name, "creationTimestamp": created}
    return {"metadata": metadata, "spec": {"containers": [{"name": "c"}]}, "status": {"phase": phase, **status}}


@pytest.mark.parametrize(
    ("name", "place"), [("j-base-1", 1), ("j-elastic-0", 2), ("j-elastic-2-x7", 4), ("k-base-0", None)]
)
def test_a_pods_place_is_counted_over_all_replica_specs(name, place):
    assert PLACES.place(name) == place


def test_lines_are_of_the_rank_that_wrote_them_or_of_the_whole_pod():
    shown = pod_logs.Filter(LogSelection(ranks=frozenset({5, 6})), PLACES)
    assert [shown.wants(name) for name in ("j-base-0", "j-base-1", "other")] == [False, True, False]
    line = shown.reader("j-base-1")
    assert line(("line", None, "[default1]:loss"), 0).shown(with_writer=True) == "rank 5 | [default1]:loss"
    assert line(("line", None, "[default0]:loss"), 0) is None
    assert line(("line", None, "starting"), 0).shown(with_writer=True) == "rank 4-7 | starting"


def of_rank(api, rank, *pods):
    for each in pods:
        each["metadata"] |= {"ownerReferences": [{"kind": "HyperPodPyTorchJob", "uid": "u-j"}], "uid": str(id(each))}
    api.objects[f"{JOBS}/j"], api.objects[f"{NAMESPACE}/pods"] = training_job(), listing(*pods)
    return interact.PodOfRank(connection(api), dataclasses.replace(JOB, places=PLACES), rank)


def test_the_pod_of_a_rank_is_the_newest_that_runs(api):
    pods = [pod("j-base-0"), pod("j-base-0", created="2026-01-02T00:00:00Z"), pod("j-base-1", "Pending")]
    assert of_rank(api, 3, *pods).now()["metadata"]["creationTimestamp"] == "2026-01-02T00:00:00Z"
    for rank, code, word in ((4, "E381", "is not running: Pending"), (8, "E381", "no pod"), (20, "E707", "rank")):
        with pytest.raises(ProblemsFound) as refused:
            of_rank(api, rank, *pods).now()
        assert codes(refused) == [code] and word in refused.value.problems[0].message


def test_a_port_that_is_in_use_is_refused_before_anything_is_forwarded(api):
    wanted = of_rank(api, 0, pod("j-base-0"))
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ProblemsFound) as refused:
        interact.forward(wanted, [(taken.getsockname()[1], 80)])
    assert codes(refused) == ["E383"]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"reason": "Evicted", "message": "low on memory.\nmore"}, "Evicted: low on memory"),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "PodInitializing"}}}]}, ""),
        (
            {"containerStatuses": [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]},
            "OOMKilled, exit code 137 (SIGKILL)",
        ),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]},
            "FailedScheduling: 0/3 nodes",
        ),
        ({"phase": "Failed", "containerStatuses": "odd"}, "Failed"),
    ],
    ids=["evicted", "starting", "killed", "unscheduled", "failed"],
)
def test_a_pod_reports_why_it_waits_or_failed(status, expected):
    assert pod_report.reason(pod("p", **status)) == expected


def test_failures_name_each_reason_once():
    pods = [pod(f"p{i}", "Failed", reason="Evicted") for i in range(3)]
    assert list(pod_report.failures([*pods, pod("q")])) == ["p0 and 2 more: Evicted"]


def test_an_operator_that_is_absent_or_hidden_is_a_problem(api):
    place = "/api/v1/namespaces/aws-hyperpod/pods"
    api.objects[place] = {"items": [pod("other-0")]}
    with pytest.raises(ProblemsFound) as refused:
        list(operator_log.lines(connection(api), JOB))
    assert codes(refused) == ["E385"]
    api.fail("GET", place, 403)
    with pytest.raises(ProblemsFound) as refused:
        list(operator_log.lines(connection(api), JOB))
    assert codes(refused) == ["E344"]


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ({}, ["allowPrivilegeEscalation", "root", "capabilities", "seccomp"]),
        ({"privileged": True, "runAsUser": 0}, ["privileged", "user 0"]),
        ({"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE", "SYS_ADMIN"]}}, ["capabilities SYS_ADMIN"]),
        ({"seLinuxOptions": {"type": "spc_t"}, "appArmorProfile": {"type": "Unconfined"}}, ["AppArmor", "seLinux"]),
    ],
)
def test_exceptions_from_the_restricted_profile_are_named(context, expected):
    found = "; ".join(security._of_container(context))
    assert all(word in found for word in expected)


def test_labels_that_select_spot_capacity_are_found_wherever_they_stand():
    selector = LabelSelector(required={"node/capacity-type": ["spot"]}, preferred={"zone": ["spot"]})
    options = Settings.model_construct(label_selector=selector, node_selector={"capacityType": "SPOT", "a": "spot"})
    keys = [key for key, _ in DESCRIPTION.instances.spot_keys(options)]
    assert keys == ["cluster.label_selector.required.node/capacity-type", "cluster.node_selector.capacityType"]


@pytest.mark.parametrize("command", ["cancel", "clear", "status"])
def test_a_cluster_that_does_not_answer_for_a_job_whose_launch_was_killed_is_a_problem(
    api, bundle, monkeypatch, command
):
    bundles.write(bundle)
    handle = JobHandle("k8s", bundle.job_name, bundle.directory, uid=None)
    monkeypatch.setattr("launcher.backends.kubernetes.connection.connect", lambda _context: connection(api))
    api.fail("GET", paths(bundle)[1], ProtocolError("broken"))
    with pytest.raises(ProblemsFound) as refused:
        getattr(BACKEND, command)(handle)
    assert codes(refused) == ["E342"]
