"""Which pods and events are a job's own. No API server: these are tables."""

import pytest

from launcher.backends.kubernetes.target import Places, Target, is_event_of, own_pods

TIERS, WORKERS = Places("j", (("base", 2), ("elastic", 6)), 8), Places("j", (("master", 1), ("worker", 3)), 8)
LABELLED = Target("HyperPodPyTorchJob", "team", "j", "u", {"recipe-launcher/job": "j"}, TIERS)
EARLIER = Target("HyperPodPyTorchJob", "team", "j", "u", {"app": "shared"}, TIERS)
KUBEFLOW = Target("PyTorchJob", "team", "j", "u", {"recipe-launcher/job": "j"}, WORKERS)
HELD = {"kind": "StatefulSet", "name": "j-base", "uid": "s"}


LABELS = {"recipe-launcher/job": "j", "app": "shared"}


def pod(name, kind=None, owner_name="", uid="", labels=LABELS, more=()):
    owners = [{"kind": kind, "name": owner_name, "uid": uid}, *more] if kind else None
    return {"metadata": {"name": name, "uid": f"{name}-uid", "ownerReferences": owners, "labels": labels}}


def job(*pods):
    return {"metadata": {"name": "j", "uid": "u"}, "status": {"jobPods": list(pods)}}


CASES = {
    "of-the-named-set": (LABELLED, job(HELD), pod("j-base-0", "StatefulSet", "j-base", "s"), True),
    "of-an-earlier-set-of-that-name": (LABELLED, job(HELD), pod("j-base-0", "StatefulSet", "j-base", "old"), False),
    "of-another-s-set": (EARLIER, job(HELD), pod("k-base-0", "StatefulSet", "k-base", "t"), False),
    "set-of-a-name": (
        LABELLED,
        job({"name": "j-base"}),
        pod("j-base-0", "StatefulSet", "j-base", "s"),
        True,
    ),
    "set-not-named-yet": (LABELLED, job(), pod("j-base-0", "StatefulSet", "j-base", "s"), True),
    "set-not-named-yet-earlier": (EARLIER, job(), pod("j-base-0", "StatefulSet", "j-base", "s"), True),
    "another-s-set-not-named-yet": (EARLIER, job(), pod("k-base-0", "StatefulSet", "k-base", "t"), False),
    "job-deleted": (LABELLED, None, pod("j-base-0", "StatefulSet", "j-base", "s"), True),
    "job-deleted-earlier": (EARLIER, None, pod("k-base-0", "StatefulSet", "k-base", "t"), False),
    "owned-by-the-job": (KUBEFLOW, job(), pod("j-master-0", "PyTorchJob", "j", "u"), True),
    "owned-by-another-job": (KUBEFLOW, job(), pod("j-master-0", "PyTorchJob", "j", "v"), False),
    "owned-by-nothing": (LABELLED, job(HELD), pod("j-base-0"), False),
    "owned-by-nothing-and-not-held-yet": (LABELLED, job(), pod("j-base-0"), False),
    "of-the-named-set-without-labels": (
        LABELLED,
        job(HELD),
        pod("j-base-0", "StatefulSet", "j-base", "s", labels=None),
        True,
    ),
    "of-a-set-not-named-yet-without-labels": (
        LABELLED,
        job(),
        pod("j-base-0", "StatefulSet", "j-base", "s", labels={"recipe-launcher/job": "k"}),
        False,
    ),
    "another-s-set-with-the-label": (LABELLED, job(), pod("k-base-0", "StatefulSet", "k-base", "t"), False),
    "replica-set-with-the-label": (LABELLED, job(HELD), pod("j-base-0", "ReplicaSet", "j-base", "r"), False),
    "replica-set-with-the-label-before-the-set": (LABELLED, job(), pod("j-base-0", "ReplicaSet", "j", "r"), False),
    "daemon-set-of-the-set-s-uid": (LABELLED, job(HELD), pod("j-base-0", "DaemonSet", "j-base", "s"), False),
    "batch-job-with-the-label": (KUBEFLOW, job(), pod("j-worker-0", "Job", "j", "u"), False),
    "held-by-the-set-and-by-another": (
        LABELLED,
        job(HELD),
        pod("j-base-0", "Gang", "g", "g", more=({**HELD, "controller": True},)),
        True,
    ),
    "controlled-by-another": (
        LABELLED,
        job(HELD),
        pod("j-base-0", "StatefulSet", "j-base", "s", more=({"kind": "ReplicaSet", "uid": "r", "controller": True},)),
        False,
    ),
    "odd-references": (LABELLED, job(3, None, {"uid": 7}), pod("j-base-0", "StatefulSet", "j-base", "s"), True),
}


@pytest.mark.parametrize(("target", "resource", "found", "is_own"), CASES.values(), ids=CASES)
def test_a_pod_is_a_job_s_own_by_its_owner(target, resource, found, is_own):
    assert own_pods([found], target, resource) == ((found,) if is_own else ())


@pytest.mark.parametrize(
    ("about", "is_own"),
    [
        ({"kind": "HyperPodPyTorchJob", "name": "j", "uid": "u"}, True),
        ({"kind": "HyperPodPyTorchJob", "name": "j", "uid": "v"}, False),
        ({"kind": "StatefulSet", "name": "j-base", "uid": "s"}, True),
        ({"kind": "StatefulSet", "name": "j-base", "uid": "t"}, False),
        ({"kind": "Pod", "name": "odd", "uid": "odd-uid"}, True),
        ({"kind": "Pod", "name": "j-base-7", "uid": "deleted"}, True),
        ({"kind": "Pod", "name": "j-other-base-7", "uid": "deleted"}, False),
        (None, False),
    ],
)
def test_an_event_is_a_job_s_own_by_what_it_is_about(about, is_own):
    assert is_event_of({"involvedObject": about}, LABELLED, job(HELD), [pod("odd")]) is is_own
