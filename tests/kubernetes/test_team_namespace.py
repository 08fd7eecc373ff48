"""A team's namespace on a real API server: what its quotas let in, and what its people may do."""

import kube_api
import pytest

from launcher import teams, yamlio
from launcher.backends.kubernetes.client import ApiError
from launcher.backends.kubernetes.submit import validate

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


def place(kind, namespace, name):
    return f"/{PLACES[kind].format(namespace)}/{name}"


@pytest.fixture
def team(space):
    """Return a team whose objects are applied, two nodes large; its person is ada."""
    made = teams.read([f"team={space.name}", "instance_type=p5.48xlarge", "nodes=2"])
    for text in teams.files(made).values():
        for each in yamlio.load_documents(text):
            if each["kind"] in KUEUE:
                continue  # their schemas use keywords that this API server is too old for
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
