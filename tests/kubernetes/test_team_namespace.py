"""A team's namespace on a real API server: what its quotas let in, and what its people may do."""

import definitions
import kube_api
import pytest

from launcher.backends.kubernetes.connection import ApiError
from launcher.backends.kubernetes.submit import validate
from launcher.cli import main as cli
from launcher.common import yaml_io
from launcher.governance import team_manifests

pytest_plugins = ("cluster_fixtures",)

PLACES = {
    "Namespace": "api/v1/namespaces",
    "ResourceQuota": "api/v1/namespaces/{}/resourcequotas",
    "LimitRange": "api/v1/namespaces/{}/limitranges",
    "ServiceAccount": "api/v1/namespaces/{}/serviceaccounts",
    "Role": "apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "PodDisruptionBudget": "apis/policy/v1beta1/namespaces/{}/poddisruptionbudgets",
    "PriorityClass": "apis/scheduling.k8s.io/v1/priorityclasses",
}
KUEUE = {"WorkloadPriorityClass", "ResourceFlavor", "ClusterQueue", "LocalQueue"}
POLICIES = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}


def place(kind, namespace, name):
    return f"/{PLACES[kind].format(namespace)}/{name}"


@pytest.fixture
def team(space):
    """Return a team whose objects are applied, two nodes large; its person is ada."""
    made = team_manifests.read([f"team={space.name}", "instance_type=p5.48xlarge", "nodes=2"])
    for text in team_manifests.files(made).values():
        for each in yaml_io.load_documents(text):
            if each["kind"] in KUEUE | POLICIES:
                continue  # this API server is too old for their schemas, and for policies
            if each["kind"] == "PodDisruptionBudget":
                each["apiVersion"] = "policy/v1beta1"  # the version this API server has
            if each["kind"] == "RoleBinding":  # its tokens have no groups
                each["subjects"] = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ada"}]
            where = place(each["kind"], made.namespace, each["metadata"]["name"])
            there = space.admin.apply(where, each, "test")
            if each["kind"] == "ResourceQuota":  # no controller runs that would count
                status = {"hard": there["spec"]["hard"], "used": dict.fromkeys(there["spec"]["hard"], "0")}
                space.admin.merge(f"{where}/status", {"status": status}, "controller")
    return made


def run_pod(space, team, name, **limits):
    resources = {"resources": {"limits": limits}} if limits else {}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
    body["spec"] = {"containers": [{"name": "c", "image": "i", **resources}]}
    made = space.admin.apply(f"/api/v1/namespaces/{team.namespace}/pods/{name}", body, "test")
    return made["spec"]["containers"][0]["resources"]


NODE = {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32"}


def test_pods_of_whole_nodes_fit_as_often_as_there_are_nodes(space, team):
    given = run_pod(space, team, "a", **NODE)
    assert given["limits"] == NODE | {"cpu": "192", "memory": "640Gi"}
    assert given["requests"] == NODE | {"cpu": "172800m", "memory": "640Gi"}
    run_pod(space, team, "b", **NODE)
    with pytest.raises(ApiError, match="exceeded quota"):
        run_pod(space, team, "c", **NODE)


def test_devices_are_limited_by_the_second_quota_only(space, team):
    small = {"cpu": "1", "memory": "1Gi"}
    with pytest.raises(
        ApiError, match=f"exceeded quota: {team.namespace}-objects, requested: requests.nvidia.com/gpu"
    ):
        run_pod(space, team, "a", **{"nvidia.com/gpu": "17"}, **small)
    objects = place("ResourceQuota", team.namespace, f"{team.namespace}-objects")
    assert space.admin.delete(objects, space.admin.get(objects)["metadata"]["uid"])
    compute = space.admin.get(place("ResourceQuota", team.namespace, f"{team.namespace}-compute"))
    assert compute["spec"]["hard"]["nvidia.com/gpu"] == "16"
    run_pod(space, team, "b", **{"nvidia.com/gpu": "17"}, **small)


def test_a_container_larger_than_a_node_is_refused(space, team):
    with pytest.raises(ApiError, match="maximum memory usage per Container is 2Ti"):
        run_pod(space, team, "a", cpu="1", memory="2049Gi")


def test_the_teams_people_may_launch_in_their_namespace_and_nowhere_else(space, team, bundle):
    ada = space.connection(kube_api.USER_TOKEN)
    assert validate(ada, bundle(f"cluster.namespace={team.namespace}")).problems == ()
    quota = place("ResourceQuota", team.namespace, f"{team.namespace}-compute")
    assert ada.get(quota)["spec"]["hard"]["requests.cpu"] == "384"
    for forbidden in (
        lambda: ada.merge(quota, {"spec": {"hard": {"requests.cpu": "9999"}}}, "ada"),
        lambda: ada.get(f"/api/v1/namespaces/{team.namespace}/secrets"),
        lambda: ada.get(f"/api/v1/namespaces/{space.name}/pods"),
        lambda: ada.get("/api/v1/nodes"),
    ):
        with pytest.raises(ApiError) as caught:
            forbidden()
        assert caught.value.status == 403
    assert validate(ada, bundle(suffix="other")).problems


def test_the_teams_people_make_no_pods_and_lift_no_restriction(space, team):
    """Their pods come from jobs; the policy and the namespace's label, which decide about those, are not theirs."""
    ada = space.connection(kube_api.USER_TOKEN)
    asked = {
        ("create", "", "pods"): False,
        ("update", "", "pods/ephemeralcontainers"): False,
        ("create", "", "pods/exec"): False,
        ("patch", "", "namespaces"): False,
        ("patch", "", "serviceaccounts"): False,
        ("create", "", "persistentvolumes"): False,
        ("create", "apps", "deployments"): False,
        ("create", "batch", "jobs"): False,
        ("delete", "admissionregistration.k8s.io", "validatingadmissionpolicies"): False,
        ("patch", "admissionregistration.k8s.io", "validatingadmissionpolicybindings"): False,
        ("create", "rbac.authorization.k8s.io", "rolebindings"): False,
        ("create", "sagemaker.amazonaws.com", "hyperpodpytorchjobs"): True,
    }
    allowed = {}
    for verb, group, resource in asked:
        name, _, subresource = resource.partition("/")
        attributes = {"namespace": team.namespace, "verb": verb, "group": group, "resource": name}
        review = {"spec": {"resourceAttributes": {**attributes, "subresource": subresource}}}
        review |= {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        answer = ada.ask("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        allowed[verb, group, resource] = answer["status"]["allowed"]
    assert allowed == asked


# recipes governance --cluster

NO_EFA = ("instance_type=g5.xlarge", "nodes=2")


@pytest.fixture
def governance(space, capsys, monkeypatch):
    """Return a function that runs `recipes governance --cluster` for teams of this test: code, output, errors."""

    def run(*words, token=kube_api.ADMIN_TOKEN):
        monkeypatch.setenv("KUBECONFIG", str(space.kubeconfig(token)))
        code = cli.run(["governance", f"team={space.name}", "--cluster", *words])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def shared(space):
    """Return a function that makes an object of the whole cluster, until the test ends."""
    made = []

    def make(kind, name, api, **body):
        plural = {"PriorityClass": "priorityclasses", "ResourceFlavor": "resourceflavors"}.get(kind) or "topologies"
        where = f"/apis/{api}/{plural}/{name}"
        there = space.admin.apply(
            where, {"apiVersion": api, "kind": kind, "metadata": {"name": name}, **body}, "test"
        )
        made.append((where, there["metadata"]["uid"]))

    yield make
    for where, uid in made:
        space.admin.delete(where, uid)


def test_the_clusters_version_of_kueue_is_written(governance):
    code, out, err = governance(*NO_EFA, "cohort=c", "priorities={own: 7}")
    assert code == 0, err
    made = [each for each in yaml_io.load_documents(out) if "kueue" in each["apiVersion"]]
    assert {each["apiVersion"] for each in made} == {f"kueue.x-k8s.io/{definitions.KUEUE_VERSION}"}
    (queue,) = [each for each in made if each["kind"] == "ClusterQueue"]
    assert queue["spec"]["cohort"] == "c" and "cohortName" not in queue["spec"]


def test_a_version_that_the_cluster_does_not_serve_is_refused(governance):
    code, out, err = governance(*NO_EFA, "kueue_version=v1beta2")
    assert (code, out) == (2, "")
    assert "E347 kueue_version" in err and "of the cluster: v1beta1" in err


def test_objects_of_the_cluster_that_differ_are_refused(governance, shared):
    shared("PriorityClass", "own-priority", "scheduling.k8s.io/v1", value=8, preemptionPolicy="Never")
    spec = {"nodeLabels": {"beta.kubernetes.io/instance-type": "ml.g5.xlarge"}, "topologyName": "racks"}
    shared("ResourceFlavor", "ml.g5.xlarge", f"kueue.x-k8s.io/{definitions.KUEUE_VERSION}", spec=spec)
    code, out, err = governance(*NO_EFA, "priorities={own: 7}")
    assert (code, out) == (2, "")
    assert [line for line in err.splitlines() if line.startswith("E")] == ["E363 priorities.own", "E363 topology"]
    assert "allowed: 8, as the cluster" in err and "allowed: racks, as the cluster" in err


def test_objects_of_the_cluster_that_are_the_same_are_no_problem(governance, shared):
    shared("PriorityClass", "own-priority", "scheduling.k8s.io/v1", value=7, preemptionPolicy="Never")
    assert governance(*NO_EFA, "priorities={own: 7}")[0] == 0


def test_a_topology_that_is_not_there_is_a_problem(governance, shared):
    code, _, err = governance(*NO_EFA, "priorities={own: 7}", "topology=racks")
    assert code == 2 and "E347 topology" in err
    shared("Topology", "racks", f"kueue.x-k8s.io/{definitions.KUEUE_VERSION}", spec={})
    assert governance(*NO_EFA, "priorities={own: 7}", "topology=racks")[0] == 0


def test_a_cluster_that_knows_no_policies_is_a_problem(governance):
    """Otherwise the namespace would be privileged, and nothing would restrict it."""
    words = ("instance_type=p5.48xlarge", "nodes=1", "priorities={own: 7}")
    code, out, err = governance(*words)
    assert (code, out) == (2, "")
    assert "E346 pod_security" in err
    assert governance(*words, "pod_security=restricted")[0] == 0


def test_a_user_without_the_right_to_read_the_clusters_objects_gets_a_problem(governance):
    code, out, err = governance(*NO_EFA, "priorities={own: 7}", token=kube_api.USER_TOKEN)
    assert (code, out) == (2, "")
    assert "E344" in err
