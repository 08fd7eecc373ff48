"""Following a job on a cluster, without one: watches, runs of containers, sizes and ends, from scripted answers."""

import json
import threading
from contextlib import contextmanager

import pytest

from launcher.backends.kubernetes import job_control, job_watch, pod_logs, pod_report
from launcher.backends.kubernetes.api_errors import ApiError, Unreachable
from launcher.backends.kubernetes.api_objects import path
from launcher.backends.kubernetes.job_watch import blocks, listed, snapshots
from launcher.backends.kubernetes.pod_logs import Filter, Reader, Run, run_of
from launcher.backends.kubernetes.target import Places, Target
from launcher.common.problems import ProblemsFound
from launcher.model.job_spec import JobState, LogSelection

JOB = Target("HyperPodPyTorchJob", "team", "j", "u", {"recipe-launcher/job": "j"}, Places("j", (("pods", 2),), 2))
PODS, EVENTS = path("Pod", "team"), path("Event", "team")


class Answer:
    """A streamed answer: its pieces; an exception breaks it off."""

    def __init__(self, *pieces):
        self.pieces = pieces

    def stream(self, _size):
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece


class Api:
    """The connection to an API server that gives each path its answers in order, the last one for ever."""

    patience_s = 0.0

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []
        self.stop = threading.Event()

    def _next(self, kind, where, query=None):
        self.asked.append((kind, where, dict(query or {})))
        given = self.answers[kind]
        found = given.pop(0) if len(given) > 1 else given[0]
        if isinstance(found, Exception):
            raise found
        return found

    def get(self, where, query=None):
        return self._next("get", where, query)

    def find(self, where):
        return self._next("find", where)

    @contextmanager
    def stream(self, where, *, query, **_more):
        yield self._next("stream", where, query)


def item(uid, version="1", **fields):
    return {"metadata": {"name": f"j-pods-{uid}", "uid": uid, "resourceVersion": version}, **fields}


def page(*items, version="7", more=None):
    return {"items": list(items), "metadata": {"resourceVersion": version, "continue": more}}


def event(kind, body):
    return json.dumps({"type": kind, "object": body}).encode() + b"\n"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(job_watch, "pause_s", lambda _attempt: 0.0)
    monkeypatch.setattr(pod_logs, "pause_s", lambda _attempt: 0.0)
    monkeypatch.setattr(job_control, "pause_s", lambda _attempt: 0.0)


def test_a_list_is_read_page_by_page_and_again_if_a_page_has_expired():
    expired = ApiError(410, "the continue token is too old")
    api = Api(get=[page(item("a"), more="next"), expired, page(item("b"), more="next"), page(item("c"), version="9")])
    assert listed(api, PODS, {}) == ({"b": item("b"), "c": item("c")}, "9")
    assert [query["continue"] for _, _, query in api.asked] == [None, "next", None, "next"]


def test_a_list_that_is_refused_is_not_read_again():
    with pytest.raises(ApiError):
        listed(Api(get=[ApiError(403, "no")]), PODS, {})


def uids(found):
    return sorted(found)


def test_a_watch_continues_from_its_last_version_and_a_forgotten_one_lists_again():
    first = Answer(event("ADDED", item("b", "8")), event("DELETED", item("a", "9")), ConnectionResetError("broken"))
    second = Answer(event("BOOKMARK", {"metadata": {"resourceVersion": "12"}}))
    api = Api(get=[page(item("a")), page(item("c"), version="20")], stream=[first, second, ApiError(410, "too old")])
    deleted = {}
    watch = snapshots(api, PODS, {}, deleted=deleted)
    assert [uids(next(watch)) for _ in range(3)] == [["a"], ["a", "b"], ["b"]]
    assert uids(deleted) == ["a"]
    assert uids(next(watch)) == ["c"]
    versions = [query["resourceVersion"] for kind, _, query in api.asked if kind == "stream"]
    assert versions == ["7", "9", "12"]
    api.stop.set()
    assert list(watch) == []


@pytest.mark.parametrize(
    "line",
    [b"not json\n", b'"text"\n', event("ERROR", {"code": 410}), event("ADDED", {"metadata": {"uid": "x"}})],
    ids=["not-json", "not-an-object", "an-error", "without-a-version"],
)
def test_an_event_that_cannot_be_read_makes_the_list_be_read_again(line):
    api = Api(get=[page(item("a")), page(item("b"))], stream=[Answer(line)])
    watch = snapshots(api, PODS, {})
    assert [uids(next(watch)) for _ in range(2)] == [["a"], ["b"]]


def test_a_refused_watch_ends_its_follower():
    watch = snapshots(Api(get=[page()], stream=[ApiError(403, "no")]), PODS, {})
    assert next(watch) == {}
    with pytest.raises(ApiError):
        next(watch)


def test_lines_are_cut_to_a_length_and_an_unfinished_one_is_dropped():
    assert list(blocks(iter([b"on", b"e\ntwotwo\nthr", b"ee"]), 4)) == [[b"one", b"twot"]]


def status(state="running", number=0, **more):
    container = {"name": "pytorch", "restartCount": number, "state": {state: {}}, **more}
    return {"spec": {"containers": [{"name": "pytorch"}]}, "status": {"containerStatuses": [container]}}


@pytest.mark.parametrize(
    ("pod", "run"),
    [
        (status(), Run(0, is_over=False)),
        (status("terminated", 2), Run(2, is_over=True)),
        (status("waiting", 1, lastState={"terminated": {}}), Run(1, is_over=True)),
        (status("waiting"), None),
        ({**status(), "status": {}}, None),
    ],
    ids=["running", "ended", "restarting", "pulling", "not-scheduled"],
)
def test_the_newest_run_of_a_container_is_read_from_its_status(pod, run):
    assert run_of(pod) == run


def pod(state="running", number=0, phase="Running", uid="p", name="j-pods-0"):
    found = status(state, number)
    found["status"]["phase"] = phase
    return {**found, "metadata": {"name": name, "uid": uid}}


def log(*texts):
    return Answer(*(f"2026-01-02T03:04:0{second}Z {text}\n".encode() for second, text in enumerate(texts)))


START_S = 1767323040.0
"""Seconds since the epoch of the first line of a log."""


def entry(text):
    return "line", None, text


def reader(api, changed=None):
    return Reader(api, "team", "j-pods-0", "p", changed)


def test_a_log_so_far_is_one_run_after_another_without_times():
    api = Api(find=[pod("terminated", 1, "Failed")], stream=[log("one"), log(), log("two"), log()])
    assert list(reader(api).runs()) == [(0, [("line", START_S, "one")]), (1, [("line", START_S, "two")])]
    assert [query["previous"] for _, _, query in api.asked if "previous" in query] == [True, True, None, None]


def test_a_run_whose_log_is_gone_is_named():
    api = Api(find=[pod("terminated", 3, "Failed")], stream=[ApiError(404, "not found")])
    found = [(number, text) for number, block in reader(api).runs() for text in block]
    assert found == [
        (n, ("event", None, f"the log of j-pods-0, run {n}, is no longer on its node")) for n in range(4)
    ]


def test_a_log_that_breaks_is_read_on_and_no_line_comes_twice():
    broken = Answer(*log("one", "two").pieces, ConnectionResetError("broken"))
    api = Api(find=[pod("terminated", 0, "Succeeded")], stream=[broken, log("one", "two", "three"), log()])
    assert [text for _, block in reader(api).runs() for _, _, text in block] == ["one", "two", "three"]
    since = [query["sinceTime"] for kind, _, query in api.asked if kind == "stream"]
    assert since == [None, "2026-01-02T03:03:59Z", "2026-01-02T03:04:00Z"]


def test_a_reader_ends_with_its_pod_or_where_another_takes_its_name():
    for gone in (None, pod(uid="another")):
        assert list(reader(Api(find=[gone]), pytest.fail).runs()) == []


def test_a_refused_log_ends_its_reader():
    api = Api(find=[pod()], stream=[ApiError(403, "no")])
    with pytest.raises(ApiError):
        list(reader(api).runs())


MANIFEST = {
    "metadata": {"name": "j"},
    "spec": {"nprocPerNode": "2", "replicaSpecs": [{"name": "pods", "replicas": 2}]},
}


@pytest.mark.parametrize(
    ("selection", "code", "allowed"),
    [
        (LogSelection((4,)), "E707", "0 to 3"),
        (LogSelection((0,), attempt=2), "E706", "0 to 1"),
        (LogSelection((2,), attempt=0), "E706", "none: the workers were never started"),
        (LogSelection(is_stderr=True), "E356", None),
    ],
    ids=["rank", "attempt", "no-attempt-of-the-rank", "stderr"],
)
def test_lines_that_a_job_cannot_have_are_refused(monkeypatch, selection, code, allowed):
    monkeypatch.setattr(pod_logs, "read_objects", lambda _connection, _target: ({}, (pod(number=1),)))
    with pytest.raises(ProblemsFound) as caught:
        pod_logs.read_logs(Api(), JOB, selection, follow=False)
    assert [(each.code, each.allowed) for each in caught.value.problems] == [(code, allowed)]


def test_a_pod_s_lines_are_those_of_the_selected_ranks():
    places = Places.of(MANIFEST)
    line = Filter(LogSelection((2, 3)), places).reader("j-pods-1")
    assert [line(entry(text), 0).shown(with_writer=True) for text in ("[default1]:x", "plain")] == [
        "rank 3 | [default1]:x",
        "rank 2-3 | plain",
    ]
    line = Filter(LogSelection((2,)), places).reader("j-pods-1")
    assert line(entry("[default1]:x"), 0) is None
    assert line(entry("[default0]:y"), 0).shown(with_writer=False) == "[default0]:y"
    assert not Filter(LogSelection((2,)), places).wants("j-pods-0")


def ending(job, pods=()):
    """Return an API server with a custom resource, None once it is deleted, and pods."""
    return Api(find=[job], get=[page(*pods)])


RESOURCE = {"metadata": {"name": "j", "uid": "u"}, "spec": {}}
DONE = {**RESOURCE, "status": {"conditions": [{"type": "Completed", "status": "True", "reason": "R"}]}}


def test_a_status_is_waited_for_until_it_is_final_by_a_watch(monkeypatch):
    changed = event("MODIFIED", {**DONE, "metadata": {**DONE["metadata"], "resourceVersion": "8"}})
    body = {**RESOURCE, "metadata": {**RESOURCE["metadata"], "resourceVersion": "1"}}

    class Cluster(Api):
        def _next(self, kind, where, query=None):
            is_job = "hyperpodpytorchjobs" in where
            if kind == "get":
                return page(body) if is_job else page()
            seen.wait(5)
            return Answer(changed) if is_job else Answer()

    seen = threading.Event()
    monkeypatch.setattr(job_watch, "follower", lambda connection: connection)
    found = job_watch.wait(Cluster(), JOB, None)
    assert next(found).state is JobState.PENDING
    seen.set()
    assert [each.state for each in found] == [JobState.SUCCEEDED]


@pytest.mark.parametrize(
    ("bounds", "paths"), [((1, 3), ["nodes"]), ((3, 4), ["min_nodes"]), ((4, 2), ["min_nodes"])], ids=str
)
def test_sizes_that_are_not_planned_or_cross_are_refused(bounds, paths):
    planned = {"spec": {"elasticPolicy": {"replicaDiscreteValues": [4, 1, 2]}, "replicaSpecs": []}}
    with pytest.raises(ProblemsFound) as caught:
        job_control.scale(Api(), JOB, planned, *bounds)
    assert [(each.code, each.path) for each in caught.value.problems] == [("E413", each) for each in paths]


def test_a_job_that_has_ended_is_neither_scaled_nor_deleted():
    planned = {"spec": {"elasticPolicy": {"replicaDiscreteValues": [1, 2]}, "replicaSpecs": []}}
    with pytest.raises(ProblemsFound, match="E412"):
        job_control.scale(ending(DONE), JOB, planned, 1, 2)
    job_control.cancel(ending(DONE), JOB, ())  # it has no answer to a deletion


def test_a_cancelled_job_whose_pods_stay_is_a_problem_after_their_grace_period(monkeypatch):
    owned = {"kind": "HyperPodPyTorchJob", "uid": "u", "controller": True}
    running = {**item("0"), "spec": {"terminationGracePeriodSeconds": 5}, "status": {"phase": "Running"}}
    running["metadata"] |= {"ownerReferences": [owned], "labels": {"recipe-launcher/job": "j"}}
    api = ending(RESOURCE, [running])
    deleted = []
    api.delete = lambda where, uid: deleted.append((where, uid))
    limits = []
    monkeypatch.setattr(job_control, "until", lambda done, limit_s, *_more: limits.append(limit_s) or done())
    with pytest.raises(ProblemsFound, match="1 of its pods still run"):
        job_control.cancel(api, JOB, ())
    assert (deleted, limits) == ([(JOB.path, "u")], [305.0])


def test_an_answer_that_never_came_is_a_problem_of_the_context():
    with pytest.raises(ProblemsFound) as caught:
        job_control.cancel(Api(find=[Unreachable("no route")]), JOB, ())
    assert [(each.code, each.path) for each in caught.value.problems] == [("E342", "cluster.kube_context")]


def test_an_event_is_reported_again_when_its_count_grows():
    about = {"uid": "u", "kind": "HyperPodPyTorchJob", "name": "j"}
    seen = {"e": {"involvedObject": about, "reason": "R", "message": "m", "lastTimestamp": "2026-01-02T03:04:05Z"}}
    reported = {}

    def new():
        return [each.kind for each in job_watch._new_events(seen, lambda _event: True, JOB, reported)]

    assert [new(), new()] == [["R"], []]
    seen["e"]["count"] = 2
    assert [new(), new()] == [["R"], []]


def test_events_so_far_are_those_of_the_job_oldest_first():
    def of(uid, second, kind="Normal"):
        about = {"uid": uid, "kind": "HyperPodPyTorchJob", "name": "j"}
        stamp = f"2026-01-02T03:04:0{second}Z"
        return item(uid + str(second), involvedObject=about, reason=f"R{second}", lastTimestamp=stamp, type=kind)

    api = Api(find=[RESOURCE], get=[page(), page(of("u", 2, "Warning"), of("another", 3), of("u", 1))])
    found = list(job_watch.events(api, JOB, follow=False))
    assert [(each.kind, each.is_warning) for each in found] == [("R1", False), ("R2", True)]
    assert api.asked[-1][1] == EVENTS


@pytest.mark.parametrize(
    ("annotations", "restarts"),
    [({"kubectl.kubernetes.io/default-container": "pytorch"}, 3), ({}, 1), (None, 1)],
    ids=["named", "first", "without"],
)
def test_logs_and_commands_are_those_of_the_same_container(annotations, restarts):
    """A sidecar that was injected before the trainer: the pod's annotation names the trainer."""
    counts = {"proxy": 1, "pytorch": 3}
    statuses = [{"name": name, "restartCount": n, "state": {"running": {}}} for name, n in counts.items()]
    named = {
        "metadata": {"name": "p", "uid": "u", "annotations": annotations},
        "spec": {"containers": [{"name": "proxy"}, {"name": "pytorch"}]},
        "status": {"phase": "Running", "containerStatuses": statuses},
    }
    assert run_of(named).number == restarts
    assert pod_report.container_of(named) == ("pytorch" if restarts == 3 else "proxy")
