"""What the cluster says of a job as one state and a few words. No API server: these are tables."""

import json
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.backends.kubernetes import lenient
from launcher.backends.kubernetes.api_errors import api_error
from launcher.backends.kubernetes.job_control import planned_sizes
from launcher.backends.kubernetes.job_status import View, read
from launcher.backends.kubernetes.pod_logs import Filter, Window
from launcher.backends.kubernetes.pod_report import reason
from launcher.backends.kubernetes.target import Places, Target, is_event_of, own_pods
from launcher.model.job_spec import JobState, LogSelection

QUEUE = {"kueue.x-k8s.io/queue-name": "q"}


def job(*conditions, labels=None, spec=None, deleted=False, **status):
    held = [{"type": each, "status": "True", "reason": "R", "message": "why"} for each in conditions]
    metadata = {"name": "j", "labels": labels or {}} | (
        {"deletionTimestamp": "2026-01-02T03:04:05Z"} if deleted else {}
    )
    return {"metadata": metadata, "spec": spec or {}, "status": {"conditions": held, **status}}


def pod(phase="Running", waiting=None, unschedulable=None):
    status = {"phase": phase}
    if waiting:
        reason, message = waiting
        state = {"waiting": {"reason": reason, "message": message}}
        status["containerStatuses"] = [{"name": "pytorch", "image": "me/image:1", "state": state}]
    if unschedulable:
        status["conditions"] = [{"type": "PodScheduled", "status": "False", "message": unschedulable}]
    return {"metadata": {"name": "p"}, "status": status}


def scaling(*targets, **more):
    named = dict(zip(("pods", "elastic"), targets, strict=False))
    return {"elasticScalingStatus": {"targetReplicas": named, **more}}


FAULTY = {
    "restartType": "JobLevel",
    "faultyInstanceIdList": ["i-1", "i-2"],
    "faultyPodList": ["j-pods-1", "j-pods-2"],
    "faultyRankList": ["8", "16"],
}
FIXED_BASE = {"replicaSpecs": [{"name": "base", "replicas": 2}, {"name": "elastic", "maxReplicas": 6}]}


RUNNING = ("Created", "PodsRunning", "Running")
PENDING_POD = pod("Pending", unschedulable="0/4 nodes are available: 4 Insufficient nvidia.com/gpu.")
CASES = {
    "deleted": (View(None), JobState.DELETED, "the cluster no longer has it"),
    "nothing-said": (View(job()), JobState.PENDING, "waits for the operator to create its pods"),
    "created": (View(job("Created")), JobState.PENDING, "waits for the operator to create its pods"),
    "suspended": (View(job(spec={"runPolicy": {"suspend": True}})), JobState.PENDING, "is suspended"),
    "queued": (View(job("Created", labels=QUEUE)), JobState.PENDING, "waits in queue q for admission"),
    "being-removed": (View(job(*RUNNING, deleted=True), (pod(),)), JobState.PENDING, "is being deleted"),
    "image": (
        View(job("Created"), (pod("Pending", ("ErrImagePull", "not found")),) * 2),
        JobState.PENDING,
        "waits for image me/image:1: ErrImagePull not found (2 of 2 pods)",
    ),
    "configuration": (
        View(job("Created"), (pod("Pending", ("CreateContainerConfigError", 'secret "hf" not found')),)),
        JobState.PENDING,
        'has pods that cannot start: CreateContainerConfigError secret "hf" not found (1 of 1 pods)',
    ),
    "nodes": (
        View(job("Created"), (pod(), PENDING_POD)),
        JobState.PENDING,
        "waits for nodes: 0/4 nodes are available: 4 Insufficient nvidia.com/gpu (1 of 2 pods)",
    ),
    "starting": (
        View(job("Created"), (pod("Pending", ("ContainerCreating", "")),)),
        JobState.PENDING,
        "waits for 1 pods to start",
    ),
    "workers-start": (
        View(job("Created", "PodsRunning"), (pod(), pod())),
        JobState.PENDING,
        "pods run on 2 nodes; the workers are starting",
    ),
    "running": (View(job(*RUNNING), (pod(),)), JobState.RUNNING, ""),
    "restarted": (
        View(job(*RUNNING, restartCount=2, latestFaultyPodInstanceList=FAULTY), (pod(),)),
        JobState.RUNNING,
        "restarted 2 times; faulty nodes: i-1, i-2",
    ),
    "shrinks": (View(job(*RUNNING, **scaling(1)), (pod(), pod())), JobState.SCALING, "scales from 2 to 1 nodes"),
    "grows": (
        View(job(*RUNNING, **scaling(2)), (pod(), pod("Pending"))),
        JobState.SCALING,
        "scales from 1 to 2 nodes",
    ),
    "may-grow": (
        View(job(*RUNNING, **scaling(2)), (pod(), PENDING_POD)),
        JobState.RUNNING,
        "requests 2 nodes and waits for nodes: 0/4 nodes are available: 4 Insufficient nvidia.com/gpu (1 of 2 pods)",
    ),
    "fails-to-scale": (
        View(job(*RUNNING, **scaling(1, consecutiveScalingFailures=3, isFaultyPodScaleDown=True)), (pod(), pod())),
        JobState.SCALING,
        "scales from 2 to 1 nodes; 3 scale events in a row failed; scales down without the faulty pods",
    ),
    "grows-in-two-parts": (
        View(job(*RUNNING, **scaling(1, 3)), (pod(),) * 2 + (pod("Pending"),) * 2),
        JobState.SCALING,
        "scales from 2 to 4 nodes",
    ),
    "grows-beside-a-fixed-part": (
        View(
            job(*RUNNING, spec=FIXED_BASE, elasticScalingStatus={"targetReplicas": {"elastic": 1}}),
            (pod(), pod(), pod("Pending")),
        ),
        JobState.SCALING,
        "scales from 2 to 3 nodes",
    ),
    "faulty-pods": (
        View(job(*RUNNING, latestFaultyPodInstanceList={"faultyPodList": ["j-pods-1"]}), (pod(),)),
        JobState.RUNNING,
        "faulty nodes: j-pods-1",
    ),
    "condition-unknown": (
        View(job(*RUNNING, "Migrating"), (pod(),)),
        JobState.RUNNING,
        "condition Migrating (R: why)",
    ),
    "status-odd": (
        View({**job(), "status": "lost"}, (pod(),)),
        JobState.PENDING,
        'pods run on 1 nodes; the workers are starting; status is "lost"',
    ),
    "target-odd": (
        View(job(*RUNNING, elasticScalingStatus={"targetReplicas": "all"}), (pod(),)),
        JobState.RUNNING,
        'elasticScalingStatus.targetReplicas is "all"',
    ),
    "targets-odd": (
        View(job(*RUNNING, elasticScalingStatus={"targetReplicas": {"base": 1, "elastic": None}}), (pod(),)),
        JobState.RUNNING,
        'elasticScalingStatus.targetReplicas is {"base": 1, "elastic": null}',
    ),
    "conditions-odd": (
        View({**job(), "status": {"conditions": [None, {"type": 3}]}}),
        JobState.PENDING,
        'waits for the operator to create its pods; conditions is [null, {"type": 3}]',
    ),
    "removed-once-completed": (View(job(*RUNNING, "Completed", deleted=True)), JobState.SUCCEEDED, "R: why"),
    "completed": (View(job(*RUNNING, "Completed")), JobState.SUCCEEDED, "R: why"),
    "kubeflow-succeeded": (View(job("Created", "Succeeded")), JobState.SUCCEEDED, "R: why"),
    "failed": (View(job(*RUNNING, "Failed")), JobState.FAILED, "R: why"),
}


@pytest.mark.parametrize(("view", "state", "message"), CASES.values(), ids=CASES)
def test_reads_a_state_and_says_what_it_waits_for(view, state, message):
    seen = read(view)
    assert (seen.state, seen.message) == (state, message)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["True", "Running"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def mixed(*keys):
    """Return mappings with anything at each of some keys."""
    return st.fixed_dictionaries({}, optional={key: JSON for key in keys})


CONDITIONS = st.lists(mixed("type", "status", "reason", "message") | JSON, max_size=3) | JSON
STATUS = JSON | st.fixed_dictionaries(
    {},
    optional={
        "conditions": CONDITIONS,
        "elasticScalingStatus": mixed("targetReplicas", "consecutiveScalingFailures", "isFaultyPodScaleDown") | JSON,
        "latestFaultyPodInstanceList": mixed("faultyInstanceIdList", "faultyPodList", "faultyRankList") | JSON,
        "jobPods": st.lists(mixed("kind", "name", "uid") | JSON, max_size=3) | JSON,
        "restartCount": JSON,
        "phase": JSON,
        "containerStatuses": st.lists(mixed("name", "state", "image") | JSON, max_size=2) | JSON,
    },
)
TARGET = Target("HyperPodPyTorchJob", "team", "j", "u", {"recipe-launcher/job": "j"}, Places("j", (("pods", 2),), 8))


@pytest.mark.slow
@given(status=STATUS, pod_status=STATUS, workload_status=STATUS, held=st.sampled_from(["", "Running", "Completed"]))
@settings(max_examples=400)
def test_any_status_is_read_and_shown(status, pod_status, workload_status, held):
    if held and isinstance(status, dict):
        status = {
            **status,
            "conditions": [{"type": held, "status": "True"}, *lenient.items(status.get("conditions"))],
        }
    resource = {"metadata": {"name": "j", "labels": QUEUE}, "status": status}
    pods = [{"metadata": {"name": "j-pods-0", "uid": "1"}, "status": pod_status}]
    seen = read(View(resource, own_pods(pods, TARGET, resource), [{"status": workload_status}]))
    assert isinstance(seen.message, str) and seen.restarts >= 0
    assert all(sign.isprintable() or sign == "\n" for sign in seen.message)
    assert all(isinstance(node, str) for node in seen.faulty_nodes)
    assert not is_event_of({"involvedObject": status}, TARGET, resource, pods)
    if status and not isinstance(status, dict):
        assert "status is" in seen.message
    if held == "Completed" and isinstance(status, dict) and "Failed" not in str(status):
        assert seen.state is JobState.SUCCEEDED


ESCAPE = "\x1b]0;title\x07\x9b31m\u202e"


def test_no_word_of_the_cluster_controls_the_terminal():
    waiting = {"state": {"waiting": {"reason": f"ErrImagePull{ESCAPE}", "message": ESCAPE}}, "image": ESCAPE}
    unscheduled = {"type": "PodScheduled", "status": "False", "message": ESCAPE}
    failed = {"type": "Failed", "status": "True", "reason": ESCAPE, "message": ESCAPE}
    status = {"latestFaultyPodInstanceList": {"faultyInstanceIdList": [ESCAPE]}, "restartCount": ESCAPE}
    for held in ([], [failed], [{**failed, "type": ESCAPE}]):
        for pod in ({"containerStatuses": [waiting]}, {"conditions": [unscheduled]}, {"reason": ESCAPE}):
            pods = [{"metadata": {"name": "j-pods-0", "uid": "1"}, "status": {"phase": "Pending", **pod}}]
            seen = read(View({"status": {**status, "conditions": held}}, pods))
            assert "".join((seen.message, *seen.faulty_nodes)).isprintable()
            assert reason(pods[0]).isprintable()
    answer = types.SimpleNamespace(status=403, body=json.dumps({"message": ESCAPE}), headers={}, reason="")
    assert api_error(answer).message.isprintable()
    answer.body = ESCAPE
    assert api_error(answer).message.isprintable()


def test_a_condition_that_does_not_hold_counts_for_nothing():
    conditions = [{"type": "Failed", "status": "False"}, {"type": "Running", "status": "Unknown"}]
    assert read(View(job() | {"status": {"conditions": conditions}})).state is JobState.PENDING


@pytest.mark.parametrize(
    ("policy", "sizes"),
    [
        ({"minReplicas": 1, "maxReplicas": 4, "replicaDiscreteValues": [4, 1, 2]}, [1, 2, 4]),
        ({"minReplicas": 2, "maxReplicas": 8, "replicaIncrementStep": 3}, [2, 5, 8]),
    ],
    ids=["listed", "stepped"],
)
def test_the_sizes_of_a_plan_are_those_of_its_policy(policy, sizes):
    assert list(planned_sizes({"spec": {"elasticPolicy": policy}})) == sizes


PARTS = {"replicaSpecs": [{"name": "base", "replicas": 2}, {"name": "elastic", "replicas": 0, "maxReplicas": 6}]}
KUBEFLOW = {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}}


@pytest.mark.parametrize(
    ("spec", "pod_name", "place"),
    [
        (PARTS, "j-base-1", 1),
        (PARTS, "j-elastic-0", 2),
        (PARTS, "j-elastic-3-x7b", 5),
        (PARTS, "j-base-x", None),
        (PARTS, "other-base-0", None),
        (KUBEFLOW, "j-master-0", 0),
        (KUBEFLOW, "j-worker-2", 3),
    ],
)
def test_a_pod_s_place_follows_from_its_name(spec, pod_name, place):
    places = Places.of({"metadata": {"name": "j"}, "spec": {"nprocPerNode": "8", **spec}})
    assert places.place(pod_name) == place
    assert places.num_ranks == (64 if spec is PARTS else 32)


def test_a_pod_of_unknown_place_is_shown_where_all_ranks_are():
    places = Places("j", [("pods", 2)], 8)
    assert not Filter(LogSelection(), places).wants("j-odd")
    assert Filter(LogSelection(None), places).wants("j-odd")
    line = Filter(LogSelection(None), places).reader("j-odd")
    assert line(("line", None, "x"), 0).shown(with_writer=True) == "j-odd | x"


def test_lines_that_come_again_are_known_and_equal_ones_are_kept():
    window = Window()
    lines = [f"2026-01-02T03:04:0{second}.5Z same".encode() for second in (1, 1, 5, 5, 9)]
    assert window.since() is None and all(map(window.is_new, lines))
    assert window.since() == "2026-01-02T03:04:07Z"
    assert [window.is_new(line) for line in [lines[-1], lines[-1]]] == [False, True]
    assert len(window.yielded) == 2  # what is older is forgotten
