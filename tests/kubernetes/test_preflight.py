"""What is asked of a cluster before anything is created: every fault at once, in the cluster's own words."""

from dataclasses import replace

import kube_api
import pytest
from certificates import Authority

from launcher.backends.kubernetes.connection import connect
from launcher.backends.kubernetes.submit import validate
from launcher.common.problems import ProblemsFound
from launcher.model import backend_registry

pytest_plugins = ("cluster_fixtures",)

KUEUE = "kueue.x-k8s.io/v1beta1"


def found(space, bundle):
    return validate(space.connection(), bundle).problems


def test_everything_that_is_missing_is_told_at_once(space, bundle):
    problems = found(
        space,
        bundle(
            "cluster.service_account_name=trainer",
            "cluster.priority_class_name=urgent",
            "cluster.persistent_volume_claims=[{claimName: data, mountPath: /data}]",
            "cluster.queue_name=team-queue",
            "cluster.workload_priority_class=high-priority",
            "env_vars.HF_TOKEN={secretKeyRef: {name: hf, key: token}}",
        ),
    )
    told = {(problem.code, problem.path, problem.value) for problem in problems}
    assert told >= {
        ("E349", "cluster.service_account_name", "trainer"),
        ("E349", "cluster.priority_class_name", "urgent"),
        ("E349", "cluster.persistent_volume_claims", "data"),
        ("E349", "env_vars.HF_TOKEN", None),  # its message names the Secret
        ("E347", "cluster.queue_name", "team-queue"),
        ("E347", "cluster.workload_priority_class", "high-priority"),
    }
    assert all("not found" in problem.message for problem in problems)


def test_what_is_there_is_not_missed(space, bundle):
    space.make("ServiceAccount", "trainer")
    space.make("Secret", "hf", stringData={"token": "x"})
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    space.make("PersistentVolumeClaim", "data", spec=claim)
    space.make("LocalQueue", "team-queue", KUEUE, spec={"clusterQueue": "team"})
    space.make("ClusterQueue", "team", KUEUE, spec={})
    made = bundle(
        "cluster.service_account_name=trainer",
        "cluster.persistent_volume_claims=[{claimName: data, mountPath: /data}]",
        "cluster.queue_name=team-queue",
        "env_vars.HF_TOKEN={secretKeyRef: {name: hf, key: token}}",
    )
    assert {problem.code for problem in found(space, made)} <= {"E365"}  # an empty queue covers no resource


def test_a_secret_is_never_read(space, bundle, monkeypatch):
    space.make("Secret", "hf", stringData={"token": "x"})
    answers = []
    connection = space.connection()
    send = connection.api.rest_client.request

    def request(method, url, *arguments, **more):
        answer = send(method, url, *arguments, **{**more, "_preload_content": "/secrets/" in url})
        if "/secrets/" in url:
            answers.append(answer.data)
            return answer.urllib3_response
        return answer

    monkeypatch.setattr(connection.api.rest_client, "request", request)
    validate(connection, bundle("env_vars.HF_TOKEN={secretKeyRef: {name: hf, key: token}}"))
    assert answers
    assert all(b"PartialObjectMetadata" in answer and b'"data"' not in answer for answer in answers)


@pytest.mark.parametrize(
    ("spec", "status", "words"),
    [
        ({"stopPolicy": "Hold"}, {}, "stopPolicy Hold"),
        ({}, {"type": "Active", "status": "False", "message": "ClusterQueue is stopped"}, "ClusterQueue is stopped"),
    ],
    ids=["stopped", "inactive"],
)
def test_a_queue_that_takes_no_jobs_is_told(space, bundle, spec, status, words):
    space.make("ClusterQueue", "other", KUEUE, spec={})
    queue = {"spec": {"clusterQueue": "other", **spec}, "status": {"conditions": [status] if status else []}}
    space.make("LocalQueue", "q", KUEUE, **queue)
    problems = [each for each in found(space, bundle("cluster.queue_name=q")) if each.code == "E347"]
    assert [words in problem.message for problem in problems] == [True]


def test_a_quota_that_the_smallest_size_exceeds_is_told(space, bundle):
    space.make("ResourceQuota", "small", spec={"hard": {"requests.nvidia.com/gpu": "8"}})
    (problem,) = found(space, bundle("recipes.elastic_policy.min_nodes=2"))
    assert problem.code == "E364" and "ResourceQuota small" in problem.allowed


def test_an_elastic_job_that_the_quota_keeps_small_is_no_fault(space, bundle):
    space.make("ResourceQuota", "small", spec={"hard": {"requests.nvidia.com/gpu": "32"}})
    findings = validate(space.connection(), bundle())
    assert findings.problems == ()
    assert [notice.code for notice in findings.notices] == ["N123"]


def test_an_elastic_job_that_nothing_bounds_is_told(space, bundle, capsys):
    (notice,) = validate(space.connection(), bundle()).notices
    assert notice.code == "N129" and "requests 16 nodes" in notice.message
    assert backend_registry.load_backend("k8s").validate(bundle("base_results_dir=b")) == ()
    assert "N129" in capsys.readouterr().err
    assert validate(space.connection(), bundle("base_results_dir=c", is_elastic=False)).notices == ()
    space.make("ResourceQuota", "large", spec={"hard": {"requests.nvidia.com/gpu": "128"}})
    assert validate(space.connection(), bundle("base_results_dir=d")).notices == ()


def test_a_namespace_that_is_not_there_is_the_only_thing_told(space, bundle):
    (problem,) = found(space, bundle("cluster.namespace=nowhere", "cluster.queue_name=q"))
    assert (problem.code, problem.value) == ("E345", "nowhere")
    assert problem.message == 'namespaces "nowhere" not found'


def test_a_cluster_without_the_operator_is_told(space, bundle):
    space.cluster.proxy.fail(path="/apis/sagemaker.amazonaws.com/v1$", status=404, times=10)
    (problem,) = found(space, bundle())
    assert problem.code == "E346" and "HyperPodPyTorchJob" in problem.message


def test_a_cluster_that_does_not_answer_is_told(space, bundle, closed_port):
    kube_api.kubeconfig(
        space.folder / "kubeconfig.json", f"https://127.0.0.1:{closed_port}", space.cluster.engine.ca_file, "t"
    )
    (problem,) = validate(replace(connect(None), patience_s=0.2), bundle()).problems
    assert problem.code == "E342" and "refused" in problem.message


def config_problem(space, monkeypatch, context=None, **cluster):
    proxy = space.cluster.proxy
    where = kube_api.kubeconfig(space.folder / "other.json", proxy.url, proxy.ca_file, "t", **cluster)
    monkeypatch.setenv("KUBECONFIG", str(where))
    with pytest.raises(ProblemsFound) as caught:
        connect(context)
    (problem,) = caught.value.problems
    return problem


def test_an_unknown_context_is_told_with_those_there_are(space, monkeypatch):
    problem = config_problem(space, monkeypatch, "prod")
    assert (problem.code, problem.value, problem.allowed) == ("E341", "prod", "test")


def test_a_cluster_that_is_not_to_be_verified_is_refused(space, monkeypatch):
    problem = config_problem(space, monkeypatch, **{"insecure-skip-tls-verify": True})
    assert problem.code == "E341" and "insecure-skip-tls-verify" in problem.message


def test_a_certificate_of_another_authority_is_refused(space, bundle, tmp_path):
    (tmp_path / "ca").mkdir()
    stranger = Authority.made(tmp_path / "ca")
    kube_api.kubeconfig(space.folder / "kubeconfig.json", space.cluster.proxy.url, stranger.ca_file, "t")
    (problem,) = validate(replace(connect(None), patience_s=0.2), bundle()).problems
    assert problem.code == "E342" and "CERTIFICATE_VERIFY_FAILED" in problem.message


def test_no_kubeconfig_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ProblemsFound) as caught:
        connect(None)
    assert [problem.code for problem in caught.value.problems] == ["E341"]
