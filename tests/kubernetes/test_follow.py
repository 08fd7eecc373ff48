"""Following a job: its states, its events, and every line of its logs once."""

import dataclasses
import hashlib
import itertools
import json
import re
import threading
import time

import kubelet
import pytest
from background import Collected, await_true
from log_texts import log_texts

from launcher.backends.kubernetes.api_objects import path
from launcher.backends.kubernetes.job_watch import blocks
from launcher.bundle.manifest import MANIFEST, bundle_digest
from launcher.common.problems import ProblemsFound
from launcher.model import backend_registry
from launcher.model.job_spec import JobState, LogSelection

pytest_plugins = ("cluster_fixtures",)

JOB = "HyperPodPyTorchJob"
BACKEND = backend_registry.load_backend("k8s")


@pytest.fixture
def launched(space, bundle):
    """Return a function from overrides to a submitted job's handle and custom resource."""

    def launch(*overrides, **more):
        handle = BACKEND.submit(bundle(*overrides, **more))
        return handle, space.get(JOB, handle.native_id)

    return launch


def follow(handle, ranks=(0,), **more):
    return Collected(log_texts(BACKEND, handle, LogSelection(ranks, **more), follow=True))


def logged(lines):
    return [line for line in lines if line.split("  ")[0] not in ("event", "fault", "scale")]


def test_a_job_goes_from_pending_to_succeeded(space, launched):
    handle, job = launched()
    seen = Collected(BACKEND.wait(handle))
    seen.await_that(lambda: seen.got)
    space.conditions(handle.native_id, "Created")
    pod = space.pod(job)
    space.wait_container(pod, "ImagePullBackOff", "no such tag")
    seen.await_that(lambda: "ImagePullBackOff" in seen.got[-1].message)
    space.run_container(pod)
    space.conditions(handle.native_id, "Created", "PodsRunning", "Running")
    seen.await_that(lambda: seen.got[-1].state is JobState.RUNNING and seen.got[-1].nodes == 1)
    space.conditions(handle.native_id, "Created", "Completed")
    last = seen.result()[-1]
    assert (last.state, last.message) == (JobState.SUCCEEDED, "JobCompleted: is Completed")
    assert BACKEND.status(handle) == last


def test_waiting_ends_at_its_time_limit(launched):
    handle, _ = launched()
    (only,) = BACKEND.wait(handle, timeout_s=0.5)
    assert (only.state, only.message) == (JobState.PENDING, "waits for the operator to create its pods")


def test_waiting_ends_at_its_time_limit_also_where_no_answer_comes(space, launched, monkeypatch):
    monkeypatch.setattr("launcher.backends.kubernetes.job_watch._FIRST_S", 0.5)
    handle, _ = launched()
    space.cluster.proxy.fail(path="/pods[?]", status=503, times=10**6)
    began = time.monotonic()
    assert list(BACKEND.wait(handle, timeout_s=0.2)) == []
    assert time.monotonic() - began < 60.0


def test_a_kueue_in_trouble_does_not_hold_up_who_waits(space, launched):
    space.make("ClusterQueue", "team", "kueue.x-k8s.io/v1beta1", spec={})
    space.make("LocalQueue", "q", "kueue.x-k8s.io/v1beta1", spec={"clusterQueue": "team"})
    handle, _ = launched()
    labels = {"kueue.x-k8s.io/queue-name": "q"}
    space.admin.merge(path(JOB, space.name, handle.native_id), {"metadata": {"labels": labels}}, "test")
    space.cluster.proxy.fail(path="kueue", status=503, times=10**6)
    seen = Collected(BACKEND.wait(handle))
    seen.await_that(lambda: seen.got)
    space.conditions(handle.native_id, "Completed")
    assert seen.result(10)[-1].state is JobState.SUCCEEDED


def test_a_job_that_waits_for_quota_says_so(space, launched):
    space.make("ClusterQueue", "team", "kueue.x-k8s.io/v1beta1", spec={})
    space.make("LocalQueue", "q", "kueue.x-k8s.io/v1beta1", spec={"clusterQueue": "team"})
    handle, job = launched()
    labels = {"kueue.x-k8s.io/queue-name": "q"}
    space.admin.merge(path(JOB, space.name, handle.native_id), {"metadata": {"labels": labels}}, "test")
    assert BACKEND.status(handle).message == "waits in queue q for admission"
    shortage = "insufficient unused quota for nvidia.com/gpu"
    reserved = {"type": "QuotaReserved", "status": "False", "message": f"{shortage}."}
    space.make(
        "Workload",
        "w",
        "kueue.x-k8s.io/v1beta1",
        metadata={"labels": {"kueue.x-k8s.io/job-uid": job["metadata"]["uid"]}},
        status={"conditions": [reserved]},
    )
    assert BACKEND.status(handle).message == f"waits for quota in queue q: {shortage}"


def test_a_job_that_is_removed_ends_its_followers(space, launched):
    handle, job = launched()
    waiting, logs = Collected(BACKEND.wait(handle)), follow(handle)
    waiting.await_that(lambda: waiting.got)
    space.admin.delete(path(JOB, space.name, handle.native_id), job["metadata"]["uid"])
    assert waiting.result()[-1].state is JobState.DELETED
    assert logs.result()[-1].startswith("event  deleted")


def test_a_follower_outlives_a_watch_that_forgot_and_one_that_breaks(space, launched):
    handle, _ = launched()
    proxy = space.cluster.proxy
    proxy.fail(path="hyperpodpytorchjobs.*watch=true", cut_after=400)
    proxy.fail(path="hyperpodpytorchjobs.*watch=true", status=410)
    proxy.fail(path="hyperpodpytorchjobs.*watch=true", status=429, retry_after="0")
    proxy.fail(path="pods.*watch=true", status=503, times=2)
    proxy.fail(path="pods.*watch=true", is_refused=True, times=2)
    seen = Collected(BACKEND.wait(handle))
    seen.await_that(lambda: seen.got)
    space.conditions(handle.native_id, "Created")
    await_true(lambda: not [fault for fault in proxy.faults if fault.times])
    space.conditions(handle.native_id, "Completed")
    assert seen.result(60)[-1].state is JobState.SUCCEEDED


def test_a_follower_whose_rights_are_taken_ends_with_the_reason(space, launched):
    handle, _ = launched()
    space.cluster.proxy.fail(path="/pods[?]", status=403, times=100)
    with pytest.raises(ProblemsFound) as caught:
        Collected(BACKEND.wait(handle)).result()
    assert [problem.code for problem in caught.value.problems] == ["E344"]


def test_a_fault_of_our_own_in_a_watch_ends_its_follower(space, launched, monkeypatch):
    handle, _ = launched()
    seen = Collected(BACKEND.wait(handle))
    seen.await_that(lambda: seen.got)
    monkeypatch.setattr(threading, "excepthook", lambda told: None)
    monkeypatch.setattr("launcher.backends.kubernetes.job_watch._take", None)
    space.conditions(handle.native_id, "Created")
    with pytest.raises(RuntimeError, match="its own traceback"):
        seen.result()


def test_logs_wait_for_pods_and_come_once(space, launched):
    handle, job = launched()
    logs = follow(handle)
    logs.await_that(lambda: logs.got)
    pod = space.pod(job)
    space.run_container(pod)
    kubelet = space.cluster.kubelet
    for step in range(5):
        kubelet.write(pod, f"step {step}")
    logs.await_that(lambda: "step 4" in logs.got)
    space.end_container(pod)
    space.conditions(handle.native_id, "Completed")
    lines = logs.result()
    assert logged(lines) == [f"step {step}" for step in range(5)]
    assert lines[-1] == "event  succeeded: JobCompleted: is Completed"


def test_a_job_that_ended_before_it_was_followed_still_shows_its_logs(space, launched):
    handle, job = launched()
    for index in range(3):
        pod = space.pod(job, index)
        space.run_container(pod)
        space.cluster.kubelet.write(pod, f"[default0]:from {index}")
        space.end_container(pod)
    space.conditions(handle.native_id, "Failed")
    lines = follow(handle, ranks=None).result()
    assert set(lines[:-1]) == {f"rank {8 * index} | [default0]:from {index}" for index in range(3)}
    assert len(lines) == 4
    assert lines[-1] == "event  failed: JobFailed: is Failed"


@pytest.mark.parametrize("same_time", [False, True], ids=["as-time-goes", "all-at-one-time"])
def test_a_connection_that_breaks_neither_loses_nor_repeats_lines(space, launched, same_time):
    handle, job = launched()
    pod = space.pod(job)
    space.run_container(pod)
    kubelet, proxy = space.cluster.kubelet, space.cluster.proxy
    for cut in (150, 350, 900, 2000, 5000):
        proxy.fail(path="/log[?].*follow=true", cut_after=cut)
    logs = follow(handle)
    at_ns = time.time_ns() if same_time else None
    words = [f"line {number % 7} of {number // 50}" for number in range(400)]  # many are alike
    for start in range(0, 400, 40):
        kubelet.write(pod, *words[start : start + 40], at_ns=at_ns)
        time.sleep(0.05)
    await_true(lambda: sum(fault.times for fault in proxy.faults) < 3)  # most of them have happened
    space.end_container(pod)
    space.conditions(handle.native_id, "Completed")
    assert logged(logs.result(60)) == words


def test_logs_go_on_with_a_container_that_restarts(space, launched):
    handle, job = launched()
    pod = space.pod(job)
    space.run_container(pod)
    kubelet = space.cluster.kubelet
    logs = follow(handle)
    kubelet.write(pod, "first")
    logs.await_that(lambda: "first" in logs.got)
    kubelet.write(pod, "last words")
    kubelet.end(pod)
    space.run_container(pod, restarts=1)
    kubelet.write(pod, "again")
    logs.await_that(lambda: "again" in logs.got)
    space.end_container(pod, restarts=1)
    space.conditions(handle.native_id, "Completed")
    assert logged(logs.result()) == ["first", "last words", "again"]


@pytest.mark.parametrize("is_followed", [True, False], ids=["followed", "read-once"])
def test_an_answer_that_is_cut_short_between_server_and_node_loses_no_line(space, launched, monkeypatch, is_followed):
    handle, job = launched()
    pod = space.pod(job)
    space.run_container(pod)
    words = [f"line {number}" for number in range(50)]
    space.cluster.kubelet.write(pod, *words)
    space.end_container(pod)
    space.conditions(handle.native_id, "Failed")
    whole, cuts = kubelet._lines, [45, 30, 20]

    def cut(*request):
        return itertools.islice(whole(*request), cuts.pop() if cuts else None)

    monkeypatch.setattr(kubelet, "_lines", cut)
    assert logged(log_texts(BACKEND, handle, follow=is_followed)) == words and not cuts


def test_a_run_that_is_gone_before_it_was_read_is_told(space, launched):
    handle, job = launched()
    pod = space.pod(job)
    space.run_container(pod)
    node = space.cluster.kubelet
    node.write(pod, "first")
    first = node.logs[pod][-1]
    logs = follow(handle)
    logs.await_that(lambda: "first" in logs.got)
    node.start(pod)
    node.write(pod, "second")
    node.end(pod)
    space.run_container(pod, restarts=2)
    node.write(pod, "third")
    with node.changed:
        first.has_ended = True
        node.changed.notify_all()
    logs.await_that(lambda: "third" in logs.got)
    space.end_container(pod, restarts=2)
    space.conditions(handle.native_id, "Completed")
    lines = logs.result()
    assert logged(lines) == ["first", "second", "third"]
    assert f"event  the rest of the log of {pod}, run 0, is no longer on its node" in lines


def test_a_line_is_cut_at_one_place_however_it_comes():
    text = b"a" * 25 + b"\n" + b"b" * 7 + b"\n" + b"rest"
    for size in range(1, len(text)):
        pieces = (text[start : start + size] for start in range(0, len(text), size))
        assert list(itertools.chain.from_iterable(blocks(pieces, 10))) == [b"a" * 10, b"b" * 7]


def test_logs_go_on_with_a_pod_that_takes_a_pod_s_place(space, launched):
    handle, job = launched()
    first = space.pod(job)
    space.run_container(first)
    kubelet = space.cluster.kubelet
    kubelet.write(first, "before")
    logs = follow(handle)
    logs.await_that(lambda: "before" in logs.got)
    space.end_container(first, exit_code=1)
    second = space.pod(job, suffix="-b7x")
    space.run_container(second)
    kubelet.write(second, "after")
    logs.await_that(lambda: "after" in logs.got)
    space.end_container(second)
    space.conditions(handle.native_id, "Completed")
    assert logged(logs.result()) == ["before", "after"]


def test_several_ranks_come_with_their_prefixes(space, launched):
    handle, job = launched()
    pods = [space.pod(job, index) for index in range(2)]
    for index, pod in enumerate(pods):
        space.run_container(pod)
        space.cluster.kubelet.write(pod, f"[default0]:hello {index}", f"[default3]:aside {index}", "loose")
        space.end_container(pod)
    space.conditions(handle.native_id, "Completed")
    lines = logged(follow(handle, ranks=(0, 8)).result())
    assert sorted(lines) == [
        "rank 0 | [default0]:hello 0",
        "rank 0-7 | loose",
        "rank 8 | [default0]:hello 1",
        "rank 8-15 | loose",
    ]
    everything = list(log_texts(BACKEND, handle, LogSelection(None), follow=False))
    assert everything[:3] == ["rank 0 | [default0]:hello 0", "rank 3 | [default3]:aside 0", "rank 0-7 | loose"]
    assert len(everything) == 6


def previous(bundle):
    """Return a bundle as the version before our own label would have rendered it."""
    own = re.compile(r"\n *recipe-launcher/job: .*")
    files = {
        name: own.sub("", text) if name.startswith("manifests/") else text for name, text in bundle.files.items()
    }
    return with_files(bundle, files)


def with_files(bundle, files):
    """Return a bundle whose files on disk, hashes and digest are those given."""
    hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items() if name != MANIFEST}
    manifest = {**json.loads(files[MANIFEST]), "files": hashes, "digest": bundle_digest(hashes)}
    files = {**files, MANIFEST: json.dumps(manifest)}
    for name, text in files.items():
        (bundle.directory / name).write_text(text)
    return dataclasses.replace(bundle, files=files, digest=manifest["digest"])


SHARED = "cluster.custom_labels={app: shared, team: a}"


@pytest.mark.parametrize("as_made_before", [False, True], ids=["labelled", "before-our-label"])
def test_pods_of_another_job_with_the_same_labels_are_neither_counted_nor_read(space, bundle, as_made_before):
    made = [bundle(SHARED, suffix=suffix) for suffix in ("own00", "other")]
    made = [previous(each) for each in made] if as_made_before else made
    handle, other = [BACKEND.submit(each) for each in made]
    for each, words in ((handle, "ours"), (other, "not ours")):
        pod = space.pod(space.get(JOB, each.native_id))
        space.run_container(pod)
        space.cluster.kubelet.write(pod, words)
        event(space, f"of-{words[:3]}-{each.native_id}", pod_of(space, pod), "Started")
    for each in (handle, other):
        space.conditions(each.native_id, "Created", "Running")
    assert [BACKEND.status(each).nodes for each in (handle, other)] == [1, 1]
    assert logged(log_texts(BACKEND, handle, LogSelection(None), follow=False)) == ["rank 0-7 | ours"]
    assert [each.about for each in BACKEND.events(handle, follow=False)] == [f"Pod/{handle.native_id}-pods-0"]
    logs = follow(handle, ranks=None)
    space.end_container(f"{handle.native_id}-pods-0")
    space.conditions(handle.native_id, "Completed")
    assert logged(logs.result()) == ["rank 0-7 | ours"]


def pod_of(space, name):
    return {"kind": "Pod", "name": name, "uid": space.get("Pod", name)["metadata"]["uid"]}


def test_a_cancelled_job_does_not_wait_for_pods_of_another_with_its_labels(space, bundle):
    handle, other = [BACKEND.submit(previous(bundle(SHARED, suffix=suffix))) for suffix in ("own00", "other")]
    space.run_container(space.pod(space.get(JOB, other.native_id)))
    BACKEND.cancel(handle)
    assert space.names(JOB) == [other.native_id]


def test_pods_of_an_earlier_job_of_that_name_are_not_counted(space, bundle):
    made = bundle()
    first = BACKEND.submit(made)
    job = space.get(JOB, first.native_id)
    stale = space.pod(job, 0)
    space.run_container(stale)
    space.admin.delete(path(JOB, space.name, first.native_id), job["metadata"]["uid"])
    second = BACKEND.submit(made)
    held = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": f"{first.native_id}-pods", "uid": "another"}
    space.set_status(JOB, second.native_id, {"jobPods": [held]})
    assert BACKEND.status(second).nodes == 0


@pytest.mark.parametrize(
    ("selection", "code"),
    [(LogSelection((128,)), "E707"), (LogSelection(is_stderr=True), "E356")],
    ids=["rank", "stderr"],
)
def test_lines_that_cannot_be_had_are_refused(launched, selection, code):
    handle, _ = launched()
    with pytest.raises(ProblemsFound) as caught:
        list(log_texts(BACKEND, handle, selection, follow=False))
    assert [problem.code for problem in caught.value.problems] == [code]


def event(space, name, about, reason, count=1):
    stamp = "2026-01-02T03:04:05Z"
    space.make(
        "Event",
        name,
        involvedObject={**about, "namespace": space.name},
        reason=reason,
        message=f"it {reason}",
        type="Warning",
        count=count,
        firstTimestamp=stamp,
        lastTimestamp=stamp,
    )


def test_events_of_the_job_and_its_pods_come_once(space, launched):
    handle, job = launched()
    own = {"kind": JOB, "name": handle.native_id, "uid": job["metadata"]["uid"]}
    event(space, "a", own, "Created")
    event(space, "b", {"kind": "Pod", "name": "a-stranger", "uid": "1"}, "Alien")
    events = Collected(BACKEND.events(handle, follow=True))
    events.await_that(lambda: events.got)
    event(space, "c", {"kind": "Pod", "name": f"{handle.native_id}-pods-0", "uid": "2"}, "Scheduled")
    events.await_that(lambda: len(events.got) == 2)
    event(space, "a", own, "Created", count=2)
    space.conditions(handle.native_id, "Failed")
    told = events.result(30)
    assert [each.kind for each in told] == ["Created", "Scheduled", "Created"]
    assert told[1].about == f"Pod/{handle.native_id}-pods-0" and told[0].about == "" and told[0].is_warning
    assert len(list(BACKEND.events(handle, follow=False))) == 2


def spec_of(space, handle):
    return space.get(JOB, handle.native_id)["spec"]


def test_scaling_moves_the_bounds_and_keeps_the_counts_together(space, launched):
    handle, _ = launched()
    BACKEND.scale(handle, 4)
    spec = spec_of(space, handle)
    assert spec["elasticPolicy"]["maxReplicas"] == spec["replicaSpecs"][0]["maxReplicas"] == 4
    assert spec["elasticPolicy"]["replicaDiscreteValues"] == [1, 2, 3, 4]
    BACKEND.scale(handle, 16)
    spec = spec_of(space, handle)
    assert spec["elasticPolicy"]["replicaDiscreteValues"] == [1, 2, 3, 4, 6, 8, 16]
    assert spec["replicaSpecs"][0]["maxReplicas"] == 16


def test_scaling_moves_the_least_size_too_until_it_is_left_out(space, launched):
    handle, _ = launched()
    BACKEND.scale(handle, 8, 2)
    spec = spec_of(space, handle)
    assert (spec["elasticPolicy"]["minReplicas"], spec["elasticPolicy"]["maxReplicas"]) == (2, 8)
    assert spec["elasticPolicy"]["replicaDiscreteValues"] == [2, 3, 4, 6, 8]
    assert spec["replicaSpecs"][0]["replicas"] == 2
    with pytest.raises(ProblemsFound, match="is more than nodes"):
        BACKEND.scale(handle, 2, 4)
    BACKEND.scale(handle, 4)
    assert spec_of(space, handle)["elasticPolicy"]["minReplicas"] == 1


def test_scaling_outlasts_an_operator_that_writes_meanwhile(space, launched):
    handle, _ = launched()
    space.cluster.proxy.fail(method="PATCH", path=JOB.lower(), status=409, times=3)
    space.cluster.proxy.fail(method="PATCH", path=JOB.lower(), is_lost=True)
    BACKEND.scale(handle, 2)
    assert spec_of(space, handle)["elasticPolicy"]["maxReplicas"] == 2


@pytest.mark.parametrize("nodes", [5, 32], ids=["between", "beyond"])
def test_a_size_that_is_not_planned_is_refused(space, launched, nodes):
    handle, _ = launched()
    with pytest.raises(ProblemsFound) as caught:
        BACKEND.scale(handle, nodes)
    assert [problem.code for problem in caught.value.problems] == ["E413"]
    assert spec_of(space, handle)["elasticPolicy"]["maxReplicas"] == 16


def test_a_job_that_has_ended_is_neither_scaled_nor_removed(space, launched):
    handle, _ = launched()
    space.conditions(handle.native_id, "Completed")
    with pytest.raises(ProblemsFound) as caught:
        BACKEND.scale(handle, 2)
    assert [problem.code for problem in caught.value.problems] == ["E412"]
    BACKEND.cancel(handle)
    assert space.names(JOB) == [handle.native_id]


@pytest.mark.parametrize("fault", [{"is_lost": True}, {"status": 500}], ids=["answer-lost", "in-trouble"])
def test_cancelling_removes_everything_and_leaves_others_alone(space, launched, fault):
    handle, _ = launched()
    space.make("ConfigMap", "another", data={})
    space.cluster.proxy.fail(method="DELETE", **fault)
    BACKEND.cancel(handle)
    assert space.names(JOB) == []
    assert f"training-config-{handle.native_id}" not in space.names("ConfigMap")
    assert "another" in space.names("ConfigMap")
    assert BACKEND.status(handle).state is JobState.DELETED


def test_cancelling_waits_until_no_pod_runs(space, launched):
    handle, job = launched()
    pod = space.pod(job)
    space.run_container(pod)
    cancelling = Collected(BACKEND.cancel(handle) for _ in range(1))
    await_true(lambda: space.names(JOB) == [])
    time.sleep(0.5)
    assert cancelling.is_alive()
    space.end_container(pod, exit_code=143)
    cancelling.result()


def test_cancelling_leaves_a_later_job_of_that_name_alone(space, launched):
    handle, _ = launched()
    BACKEND.cancel(dataclasses.replace(handle, uid="an-earlier-one"))
    assert space.names(JOB) == [handle.native_id]


def test_a_handle_works_after_the_current_context_has_changed(space, launched, monkeypatch):
    handle, _ = launched()
    config = json.loads((space.folder / "kubeconfig.json").read_text())
    config["contexts"].append({"name": "elsewhere", "context": {"cluster": "c", "user": "u"}})
    config["current-context"] = "elsewhere"
    (space.folder / "kubeconfig.json").write_text(json.dumps(config))
    assert handle.context == "test"
    assert BACKEND.status(handle).state is JobState.PENDING
