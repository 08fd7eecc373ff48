"""What `recipes cluster` reads of a cluster, from the API's answers: nodes, quotas, and who waits for them."""

import json

import pytest

from launcher.backends.kubernetes import capacity
from launcher.backends.kubernetes.api_errors import ApiError

GPU, NEURON = "nvidia.com/gpu", "aws.amazon.com/neuron"
KUEUE, QUEUES = "/apis/kueue.x-k8s.io", "/apis/kueue.x-k8s.io/v1beta1/clusterqueues"
LOCAL, WORKLOADS = "/apis/kueue.x-k8s.io/v1beta1/localqueues", "/apis/kueue.x-k8s.io/v1beta1/workloads"
VISIBILITY = "/apis/visibility.kueue.x-k8s.io"


class Api:
    """The API's answers: lists and documents by path; any other path is forbidden."""

    def __init__(self, answers):
        self.answers, self.queries = answers, {}

    def get(self, path, query=None):
        self.queries[path] = query or {}
        answer = self.answers.get(path, 403)
        if isinstance(answer, int):
            raise ApiError(answer, "no")
        if isinstance(answer, dict):
            return answer
        each = [{**item, "metadata": {"uid": json.dumps(item), **item["metadata"]}} for item in answer]
        return {"metadata": {"resourceVersion": "1"}, "items": each}


def read(answers, namespace="team", *, kueue=True):
    if kueue:
        answers = {KUEUE: {"preferredVersion": {"version": "v1beta1"}}, **answers}
    return capacity.read(Api(answers), namespace)


def node(name, ready="True", allocatable=None, labels=None, **spec):
    conditions = [{"type": "MemoryPressure", "status": "True"}, {"type": "Ready", "status": ready}]
    status = {"conditions": conditions, "allocatable": allocatable or {}}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec, "status": status}


def pod(name, where, *containers, init=()):
    spec = {"containers": list(containers), "initContainers": list(init)}
    return {"metadata": {"name": name}, "spec": spec | ({"nodeName": where} if where else {})}


def uses(count, kind="limits", **further):
    return {"resources": {kind: {GPU: count}}, **further}


def test_nodes_are_listed_by_name_with_type_state_health_and_accelerators():
    prefix = "sagemaker.amazonaws.com/"
    labels = {
        "node.kubernetes.io/instance-type": "ml.p5.48xlarge",
        "beta.kubernetes.io/instance-type": "old",
        f"{prefix}node-health-status": "Schedulable",
        "other": "x",
    }
    found = read(
        {
            "/api/v1/nodes": [
                node("b", allocatable={GPU: "8", "cpu": "4"}, labels=labels),
                node("a", ready="Unknown", unschedulable=True),
                node("c", allocatable={GPU: "0", NEURON: "16"}, labels={"beta.kubernetes.io/instance-type": "trn1"}),
            ],
            "/api/v1/pods": [],
        },
        kueue=False,
    )
    a, b, c = found.nodes
    assert (a.name, a.instance, a.state, a.resource, a.accelerators, a.free) == (
        *("a", None, "NotReady, cordoned", None, 0, 0),
    )
    assert (b.name, b.instance, b.state, b.resource, b.accelerators, b.free) == (
        *("b", "ml.p5.48xlarge", "Ready", GPU, 8, 8),
    )
    assert (b.health, a.health) == ({"node-health-status": "Schedulable"}, {})
    assert (c.instance, c.resource, c.accelerators, c.free) == ("trn1", NEURON, 16, 16)
    assert (found.quotas, found.waiting, found.has_kueue, found.notices) == (None, None, False, ())


@pytest.mark.parametrize(
    ("pods", "free"),
    [
        ([pod("p", "n", uses(2), uses("1", "requests"))], 5),
        ([pod("p", "n", uses(2)), pod("q", "n", uses(3))], 3),
        ([pod("p", None, uses(2)), pod("q", "other", uses(4))], 8),
        ([pod("p", "n", uses(1), init=[uses(4), uses(3)])], 4),
        ([pod("p", "n", uses(2), init=[uses(1, restartPolicy="Always"), uses(1)])], 5),
        ([pod("p", "n", uses(1), init=[uses(2, restartPolicy="Always"), uses(4)])], 2),
        ([pod("p", "n", uses(0), init=[uses(2, restartPolicy="Always"), uses(1, restartPolicy="Always")])], 5),
        ([pod("p", "n", {"resources": {"limits": {GPU: 8}, "requests": {GPU: 2}}})], 6),
        ([pod("p", "n", {})], 8),
    ],
    ids=["sum", "pods", "elsewhere", "init", "sidecar", "sidecar-and-init", "sidecars", "requests-win", "none"],
)
def test_what_pods_request_is_not_free(pods, free):
    (found,) = read({"/api/v1/nodes": [node("n", allocatable={GPU: "8"})], "/api/v1/pods": pods}, kueue=False).nodes
    assert found.free == free


def test_what_may_not_be_read_is_left_out_and_named():
    found = read({})
    assert (found.nodes, found.quotas, found.waiting, found.has_kueue) == (None, None, None, True)
    assert [notice.code for notice in found.notices] == ["N150"] * len(found.notices)
    texts = [notice.message for notice in found.notices]
    assert texts[0] == "the nodes cannot be shown: ask for a ClusterRole that allows list on nodes"
    assert (
        texts[1]
        == "the quotas of ClusterQueues cannot be shown: ask for a ClusterRole that allows list on clusterqueues"
    )
    assert texts[2:] == [
        "LocalQueues cannot be shown: ask for a Role in team that allows list on localqueues",
        "pending workloads cannot be shown: ask for a Role in team that allows list on workloads",
    ]
    (seen,) = read({"/api/v1/nodes": [node("n", allocatable={GPU: "8"})]}, kueue=False).nodes
    assert (seen.accelerators, seen.free) == (8, None)


def test_any_other_refusal_is_raised():
    with pytest.raises(ApiError):
        read({"/api/v1/nodes": 500}, kueue=False)
    assert read({"/api/v1/nodes": 404}, kueue=False).nodes is None


def test_finished_pods_are_not_asked_for():
    api = Api({"/api/v1/nodes": [], "/api/v1/pods": []})
    capacity.read(api, "team")
    assert api.queries["/api/v1/pods"]["fieldSelector"] == "status.phase!=Succeeded,status.phase!=Failed"


def queue(name, flavors, usage=(), namespace=None, field="flavorsUsage", **spec):
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    groups = [{"flavors": [{"name": f, "resources": [{"name": GPU, "nominalQuota": q}]} for f, q in flavors]}]
    used = [{"name": f, "resources": [{"name": GPU, **amounts}]} for f, amounts in usage]
    return {"metadata": metadata, "spec": {"resourceGroups": groups, **spec}, "status": {field: used}}


def test_quotas_are_those_of_cluster_queues_and_the_use_of_local_ones():
    found = read(
        {
            QUEUES: [
                queue("z", [("spot", 4)]),
                queue("a", [("p5", "16"), ("g5", 8)], [("p5", {"total": "24", "borrowed": "8"})]),
            ],
            LOCAL: [
                queue("lq", [], [("p5", {"total": 3})], "team-b", clusterQueue="a"),
                queue("lq", [], [("g5", {"total": 2})], "team-a", field="flavorUsage", clusterQueue="a"),
            ],
            WORKLOADS: [],
        }
    )
    rows = [(q.queue, q.flavor, q.resource, q.used, q.nominal, q.borrowed) for q in found.quotas]
    assert rows == [
        ("a", "p5", GPU, "24", "16", "8"),
        ("a", "g5", GPU, "0", "8", "0"),
        ("z", "spot", GPU, "0", "4", "0"),
        ("team-a/lq", "g5", GPU, "2", None, "0"),
        ("team-b/lq", "p5", GPU, "3", None, "0"),
    ]
    assert found.waiting == ()


def workload(name, priority=0, created="2026-01-01T00:00:00Z", local="lq", owner=None, conditions=(), **spec):
    metadata = {"name": name, "namespace": "team", "creationTimestamp": created}
    owners = {"ownerReferences": [{"name": owner}]} if owner else {}
    body = {"queueName": local, "priority": priority, **spec}
    return {"metadata": metadata | owners, "spec": body, "status": {"conditions": list(conditions)}}


def condition(kind, status="True", **further):
    return {"type": kind, "status": status, **further}


WAITING = [
    workload("young", created="2026-01-03T00:00:00Z"),
    workload("old", created="2026-01-01T00:00:00Z", owner="job-old"),
    workload("evicted", conditions=[condition("Evicted", lastTransitionTime="2026-01-02T00:00:00Z")]),
    workload("returned", created="2026-01-04T00:00:00Z",
             conditions=[condition("Evicted", "False", lastTransitionTime="2025-01-01T00:00:00Z")]),
    workload("urgent", priority=5, conditions=[condition("QuotaReserved", "False", message="8 more needed.")]),
    workload("elsewhere", local="unknown"),
    workload("queueless", local=None),
    workload("reserved", conditions=[condition("QuotaReserved")]),
    workload("admitted", conditions=[condition("Admitted")]),
    workload("done", conditions=[condition("Finished")]),
    workload("stopped", active=False),
]  # fmt: skip
LOCALS = [queue("lq", [], (), "team", clusterQueue="a")]


def test_who_waits_is_ordered_by_priority_and_then_by_age():
    found = read({QUEUES: [queue("a", [])], LOCAL: LOCALS, WORKLOADS: WAITING}).waiting
    assert [(each.queue, each.position, each.workload) for each in found] == [
        ("a", 1, "urgent"), ("a", 2, "old"), ("a", 3, "evicted"), ("a", 4, "young"), ("a", 5, "returned"),
        ("team/-", 1, "queueless"), ("team/unknown", 1, "elsewhere"),
    ]  # fmt: skip
    urgent, old = found[:2]
    assert (urgent.why, urgent.priority, urgent.job, urgent.local_queue, urgent.namespace) == (
        *("8 more needed", 5, "urgent", "lq", "team"),
    )
    assert (old.job, old.why, old.created_s) == ("job-old", "", 1767225600.0)


def test_kueue_s_own_order_is_taken_where_it_is_served():
    items = [
        {"metadata": {"namespace": "team", "name": "old"}, "positionInClusterQueue": 0},
        {"metadata": {"namespace": "team", "name": "urgent"}, "positionInClusterQueue": 1},
    ]
    served = {
        VISIBILITY: {"preferredVersion": {"version": "v1"}},
        f"{VISIBILITY}/v1/clusterqueues/a/pendingworkloads": {"items": items},
    }
    lists = {QUEUES: [queue("a", [])], LOCAL: LOCALS, WORKLOADS: WAITING[:2] + WAITING[4:5]}
    found = read(lists | served).waiting
    assert [(each.position, each.workload) for each in found] == [(1, "old"), (2, "urgent"), (3, "young")]


def test_only_the_own_namespace_is_shown_where_all_may_not_be_listed():
    own = {f"/apis/kueue.x-k8s.io/v1beta1/namespaces/team/{kind}": [] for kind in ("localqueues", "workloads")}
    found = read({"/api/v1/nodes": [], "/api/v1/pods": [], **own})
    assert (found.quotas, found.waiting) == ((), ())
    texts = [notice.message for notice in found.notices]
    assert texts[1:] == ["only the LocalQueues of team are shown", "only the Workloads of team are shown"]
