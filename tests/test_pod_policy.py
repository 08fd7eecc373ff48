"""The admission policy of a team's namespace, its CEL evaluated on pods: jobs' own, and those that must stay out."""

import copy

import celpy
import pytest
from conftest import ELASTIC, LLAMA_K8S
from manifest_schemas import templates

from launcher.common import yaml_io
from launcher.governance import team_manifests

TEAM = ("team=a", "instance_type=ml.p5.48xlarge", "nodes=2")
EFA = {"vpc.amazonaws.com/efa": "4"}


class Policy:
    """A rendered ValidatingAdmissionPolicy, evaluated as the API server does: variables first, then validations."""

    def __init__(self, *words):
        text = team_manifests.files(team_manifests.read([*TEAM, *words]))["0-policy.yaml"]
        self.policy, self.binding = yaml_io.load_documents(text)
        environment = celpy.Environment()

        def compiled(entry):
            return environment.program(environment.compile(entry["expression"]))

        spec = self.policy["spec"]
        self._variables = [(entry["name"], compiled(entry)) for entry in spec["variables"]]
        self._validations = [(entry["message"], compiled(entry)) for entry in spec["validations"]]

    def refusals(self, pod):
        """Return the message of each validation that refuses a pod."""
        variables = celpy.celtypes.MapType()
        known = {"object": celpy.json_to_cel(pod), "variables": variables}
        for name, program in self._variables:
            variables[celpy.celtypes.StringType(name)] = program.evaluate(known)
        return [message for message, program in self._validations if not program.evaluate(known)]


@pytest.fixture(scope="module")
def policy():
    return Policy()


def pod(context=None, limits=None, metadata=None, container=None, **spec):
    """Return a pod of one container, as strict as baseline asks, with what is given changed."""
    body = {"name": "c", "image": "i", **(container or {})}
    if context is not None:
        body["securityContext"] = context
    if limits is not None:
        body["resources"] = {"limits": limits}
    return {"metadata": {"name": "p", **(metadata or {})}, "spec": {"containers": [body], **spec}}


def job_pods(render, *words):
    for template in templates(yaml_io.load(render(*LLAMA_K8S, *words).files["manifests/job.yaml"])):
        yield {"metadata": {"name": "p", **template["metadata"]}, "spec": template["spec"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        (),
        (ELASTIC,),
        ("cluster.runtime=launcher", "container=me/image:1"),
        ("cluster.run_as_root=false",),
        ("cluster.persistent_volume_claims=[{claimName: fsx, mountPath: /fsx}]",),
    ],
    ids=["static", "elastic-with-efa", "own-image", "no-root", "claim"],
)
def test_jobs_run_under_the_policy(policy, render, words):
    for each in job_pods(render, *words):
        assert policy.refusals(each) == []


def test_a_job_on_efa_locks_memory_and_one_without_may_not(policy, render):
    (elastic,) = job_pods(render, ELASTIC)
    (container,) = elastic["spec"]["containers"]
    assert "IPC_LOCK" in container["securityContext"]["capabilities"]["add"]
    assert not policy.refusals(elastic)
    limits = container["resources"]["limits"]
    for without in (limits | {"vpc.amazonaws.com/efa": "0"}, {"cpu": "1"}):
        container["resources"]["limits"] = without
        (refusal,) = policy.refusals(elastic)
        assert "IPC_LOCK" in refusal


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "path", "is_allowed"),
    [
        ((), "/fsx", False),
        (("host_paths=[/fsx]",), "/fsx", True),
        (("host_paths=[/fsx]",), "/", False),
        (("host_paths=[/fsx]",), "/fsx/team", False),
        (("host_paths=[/fsx]",), "/fsx2", False),
        (("host_paths=[/data]",), "/fsx", False),
    ],
    ids=["none-listed", "listed", "root", "below", "beside", "another"],
)
def test_a_job_mounts_the_folders_that_its_team_lists_and_no_other(render, words, path, is_allowed):
    volume = f"cluster.volumes=[{{volumeName: v, hostPath: {path}, mountPath: /m}}]"
    for each in job_pods(render, volume):
        assert (Policy(*words).refusals(each) == []) is is_allowed


@pytest.mark.crossed
@pytest.mark.parametrize("place", ["containers", "initContainers", "ephemeralContainers"])
@pytest.mark.parametrize(
    "context",
    [
        {"privileged": True},
        {"capabilities": {"add": ["SYS_ADMIN"]}},
        {"capabilities": {"add": ["IPC_LOCK"]}},
        {"capabilities": {"add": ["CHOWN", "NET_RAW"]}},
        {"procMount": "Unmasked"},
        {"seccompProfile": {"type": "Unconfined"}},
        {"appArmorProfile": {"type": "Unconfined"}},
        {"seLinuxOptions": {"type": "spc_t"}},
        {"seLinuxOptions": {"user": "system_u"}},
        {"seLinuxOptions": {"role": "system_r"}},
        {"windowsOptions": {"hostProcess": True}},
    ],
    ids=str,
)
def test_what_baseline_refuses_is_refused_in_every_container(policy, context, place):
    body = pod()
    body["spec"].setdefault(place, [])
    body["spec"][place] = [*body["spec"][place], {"name": "x", "image": "i", "securityContext": context}]
    assert len(policy.refusals(body)) == 1


@pytest.mark.parametrize(
    "body",
    [
        pod(hostNetwork=True),
        pod(hostPID=True),
        pod(hostIPC=True),
        pod(container={"ports": [{"containerPort": 80, "hostPort": 80}]}),
        pod(volumes=[{"name": "v", "hostPath": {"path": "/"}}]),
        pod(securityContext={"seccompProfile": {"type": "Unconfined"}}),
        pod(securityContext={"appArmorProfile": {"type": "Unconfined"}}),
        pod(securityContext={"seLinuxOptions": {"type": "spc_t"}}),
        pod(securityContext={"windowsOptions": {"hostProcess": True}}),
        pod(securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}),
        pod(metadata={"annotations": {"container.apparmor.security.beta.kubernetes.io/c": "unconfined"}}),
        pod({"capabilities": {"add": ["ALL"]}}, EFA),
        pod({"capabilities": {"add": ["IPC_LOCK"]}}, {"nvidia.com/gpu": "8"}),
    ],
)
def test_what_baseline_refuses_of_a_pod_is_refused(policy, body):
    assert len(policy.refusals(body)) == 1


@pytest.mark.parametrize(
    "body",
    [
        pod(),
        pod({}, {}, volumes=[], hostNetwork=False, securityContext={}),
        pod({"privileged": False, "procMount": "Default", "capabilities": {"drop": ["ALL"]}}),
        pod({"capabilities": {"add": ["IPC_LOCK", "CHOWN"]}}, EFA),
        pod({"seccompProfile": {"type": "Localhost"}, "appArmorProfile": {"type": "RuntimeDefault"}}),
        pod({"seLinuxOptions": {"type": "container_t", "level": "s0", "user": ""}}),
        pod(container={"ports": [{"containerPort": 8080}, {"containerPort": 81, "hostPort": 0}]}),
        pod(securityContext={"fsGroup": 1000, "sysctls": [{"name": "net.ipv4.tcp_rmem", "value": "1"}]}),
        pod(metadata={"annotations": {"container.apparmor.security.beta.kubernetes.io/c": "runtime/default"}}),
        pod(metadata={"annotations": {"container.apparmor.security.beta.kubernetes.io/c": "localhost/x", "a": "b"}}),
        pod(volumes=[{"name": "a", "emptyDir": {}}, {"name": "b", "configMap": {"name": "c"}}]),
    ],
)
def test_what_baseline_allows_is_allowed(policy, body):
    assert policy.refusals(body) == []


def test_two_faults_are_two_refusals(policy):
    body = pod({"privileged": True}, hostPID=True)
    assert len(policy.refusals(body)) == 2
    assert len(policy.refusals(copy.deepcopy(body) | {"kind": "Pod"})) == 2


def test_the_policy_is_bound_to_the_teams_namespace_and_denies(policy):
    spec = policy.binding["spec"]
    assert spec["policyName"] == policy.policy["metadata"]["name"] == "hyperpod-ns-a-pods"
    assert "Deny" in spec["validationActions"]
    selector = spec["matchResources"]["namespaceSelector"]["matchLabels"]
    assert selector == {"kubernetes.io/metadata.name": "hyperpod-ns-a"}
    (rule,) = policy.policy["spec"]["matchConstraints"]["resourceRules"]
    assert set(rule["operations"]) == {"CREATE", "UPDATE"}
    assert set(rule["resources"]) == {"pods", "pods/ephemeralcontainers"}
    assert policy.policy["spec"]["failurePolicy"] == "Fail"


@pytest.mark.parametrize(
    ("words", "label"),
    [
        (("instance_type=ml.p5.48xlarge",), "privileged"),
        (("instance_type=ml.g5.xlarge",), "baseline"),
        (("instance_type=ml.g5.xlarge", "host_paths=[/fsx]"), "privileged"),
        (("instance_type=ml.p5.48xlarge", "pod_security=restricted"), "restricted"),
        (("instance_type=ml.p5.48xlarge", "pod_security=privileged"), "privileged"),
        (("instance_type=ml.g5.xlarge", "pod_security=policy"), "privileged"),
    ],
    ids=["efa", "no-efa", "folders", "restricted", "asked-for", "policy-asked-for"],
)
def test_a_namespace_that_enforces_no_profile_has_the_policy_unless_that_is_asked_for(words, label):
    team = team_manifests.read(["team=a", "nodes=1", *words])
    files = team_manifests.files(team)
    namespace = yaml_io.load(files["1-namespace.yaml"])
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == label
    has_policy = "0-policy.yaml" in files
    assert has_policy == (label == "privileged" and "pod_security=privileged" not in words)
    codes = {notice.code for notice in team_manifests.notices(team)}
    assert ("N145" in codes) == has_policy and ("N122" in codes) == (label == "privileged" and not has_policy)
