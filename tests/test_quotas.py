"""Jobs against quotas, in pure values: each bound on both sides, and each remedy."""

import pytest

from launcher.governance import quotas
from launcher.governance.quotas import Demand, Quota, per_pod


def exceeds(job, quota):
    return quotas.exceeds(Demand.of(job), quota)


def limits_growth(job, quota):
    return quotas.limits_growth(Demand.of(job), quota)


def job(containers, *, replicas=1, policy=None, init=(), **part):
    """Return a rendered job whose pods have containers with the given resources."""
    pod = {"containers": [{"resources": each} for each in containers]}
    if init:
        pod["initContainers"] = [{"resources": each} if each else {} for each in init]
    own = {"replicas": replicas, "template": {"spec": pod}, **part}
    return {"spec": {"replicaSpecs": [own], **({"elasticPolicy": policy} if policy else {})}}


def requests(**amounts):
    return {"requests": amounts}


def elastic(least, most):
    return {"minReplicas": least, "maxReplicas": most}


def namespace(hard, ranges=(), **spec):
    return Quota.of_namespace({"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}}, ranges)


def queue(*groups, **spec):
    made = [
        {"flavors": [{"resources": [{"name": name, **each} for name, each in flavor.items()]} for flavor in flavors]}
        for flavors in groups
    ]
    return Quota.of_queue({"metadata": {"name": "q"}, "spec": {"resourceGroups": made, **spec}})


def limit_range(**item):
    return {"spec": {"limits": [{"type": "Container", **item}]}}


@pytest.mark.parametrize(
    ("given", "bounds"),
    [
        (job([{}], replicas=3), (3, 3, False)),
        (job([{}], replicas=3, spares=2), (5, 5, False)),
        (job([{}], replicas=3, policy=elastic(2, 8)), (2, 8, True)),
        ({"spec": {"replicaSpecs": [{"template": {"spec": {"containers": []}}}]}}, (0, 0, False)),
        (
            {
                "spec": {
                    "pytorchReplicaSpecs": {
                        "Master": {"replicas": 1, "template": {"spec": {"containers": []}}},
                        "Worker": {"replicas": 3, "template": {}},
                    }
                }
            },
            (4, 4, False),
        ),
    ],
    ids=["static", "spares", "elastic", "no-replicas", "two-parts"],
)
def test_a_job_demands_the_pods_of_all_its_parts_or_those_of_its_policy(given, bounds):
    demand = Demand.of(given)
    assert (demand.least, demand.most, demand.is_elastic) == bounds
    assert demand.key == f"recipes.{'elastic_policy.min_nodes' if bounds[2] else 'trainer.num_nodes'}"


def test_a_pod_counts_its_containers_together_and_the_largest_init_container():
    given = job(
        [requests(cpu="1", memory="1Gi"), requests(cpu="2")],
        init=[requests(cpu="5"), requests(cpu="4", memory="512Mi"), requests(disk="7"), None],
    )
    found = per_pod(Demand.of(given).template["spec"], {})
    assert found == {"requests.cpu": 5, "requests.memory": 2**30, "requests.disk": 7}


def test_a_sidecar_counts_with_the_containers_and_with_the_init_containers_after_it():
    sidecar = {"restartPolicy": "Always", "resources": requests(cpu="2", memory="1")}
    spec = {"containers": [{"resources": requests(cpu="1")}]}
    before, after = ({"resources": requests(cpu=cpu)} for cpu in ("4", "3"))
    assert per_pod({**spec, "initContainers": [before, sidecar]}, {})["requests.cpu"] == 4
    assert per_pod({**spec, "initContainers": [sidecar, after]}, {}) == {"requests.cpu": 5, "requests.memory": 1}
    assert per_pod({**spec, "initContainers": [sidecar]}, {}) == {"requests.cpu": 3, "requests.memory": 1}


def test_a_limit_without_a_request_is_the_request_too_and_defaults_fill_what_is_not_stated():
    given = job([{"limits": {"cpu": "4"}}, {"limits": {"cpu": "3"}, "requests": {"cpu": "1"}}])
    found = per_pod(Demand.of(given).template["spec"], {"requests.memory": "2", "limits.cpu": "9"})
    assert found == {"limits.cpu": 7, "requests.cpu": 5, "requests.memory": 4}


@pytest.mark.parametrize(
    ("item", "defaults"),
    [
        ({"max": {"cpu": "8"}}, {"limits.cpu": "8", "requests.cpu": "8"}),
        ({"max": {"cpu": "8"}, "default": {"cpu": "4"}}, {"limits.cpu": "4", "requests.cpu": "4"}),
        ({"default": {"cpu": "4"}, "defaultRequest": {"cpu": "2"}}, {"limits.cpu": "4", "requests.cpu": "2"}),
        ({"min": {"cpu": "1"}}, {"requests.cpu": "1"}),
        ({"min": {"cpu": "1"}, "default": {"cpu": "4"}}, {"limits.cpu": "4", "requests.cpu": "4"}),
        ({"type": "Pod", "max": {"cpu": "8"}}, {}),
    ],
    ids=["max", "default", "request", "min", "min-and-default", "pod"],
)
def test_defaults_of_a_container_follow_from_limit_ranges(item, defaults):
    assert dict(namespace({}, [limit_range(**item), {"spec": {}}]).defaults) == defaults


def test_every_item_of_every_limit_range_counts_and_the_last_one_wins():
    first, last = limit_range(max={"cpu": "8", "memory": "2"}), limit_range(max={"cpu": "4"})
    assert dict(namespace({}, [first, last]).defaults) == {
        **{"limits.cpu": "4", "requests.cpu": "4"},
        **{"limits.memory": "2", "requests.memory": "2"},
    }


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("cpu", "requests.cpu"),
        ("ephemeral-storage", "requests.ephemeral-storage"),
        ("pods", "pods"),
        ("count/pods", "pods"),
        ("count/jobs.batch", "count/jobs.batch"),
        ("nvidia.com/gpu", "requests.nvidia.com/gpu"),
        ("requests.nvidia.com/gpu", "requests.nvidia.com/gpu"),
        ("limits.vendor.example/device", "limits.vendor.example/device"),
        ("gold.storageclass.storage.k8s.io/requests.storage", "gold.storageclass.storage.k8s.io/requests.storage"),
        ("services", "services"),
    ],
)
def test_an_item_of_a_quota_has_one_name(name, counted):
    assert dict(namespace({name: "1"}).hard) == {counted: "1"}


@pytest.mark.parametrize("scope", [{"scopes": ["BestEffort"]}, {"scopeSelector": {"matchExpressions": []}}])
def test_a_quota_with_scopes_bounds_nothing(scope):
    assert dict(namespace({"pods": "0"}, **scope).hard) == {}


def test_a_queue_allows_the_sum_of_its_flavors_and_what_it_may_borrow():
    found = queue(
        [{"cpu": {"nominalQuota": "2", "borrowingLimit": "1"}}, {"cpu": {"nominalQuota": 3}}],
        [{"pods": {"nominalQuota": 5}}],
    )
    assert (dict(found.hard), found.is_queue, found.name) == (
        {"requests.cpu": "6", "pods": "5"},
        True,
        "ClusterQueue q",
    )


@pytest.mark.parametrize("key", ["cohort", "cohortName"])
def test_one_flavor_of_a_cohort_without_a_borrowing_limit_unbounds_the_resource(key):
    bounded, free = {"nominalQuota": "2", "borrowingLimit": "1"}, {"nominalQuota": "2"}
    for flavors in ([bounded, free], [free, bounded]):
        found = queue([{"cpu": each} for each in flavors], **{key: "c"})
        assert dict(found.hard) == {"requests.cpu": None}
        assert exceeds(job([requests(cpu="1000")]), found) == ()
    assert dict(queue([{"cpu": bounded}], **{key: "c"}).hard) == {"requests.cpu": "3"}


@pytest.mark.parametrize(("replicas", "refused"), [(2, False), (3, True)])
def test_a_job_that_fills_a_quota_exactly_fits(replicas, refused):
    found = exceeds(job([requests(cpu="4", memory="1")], replicas=replicas), namespace({"cpu": "8"}))
    assert bool(found) is refused
    if refused:
        (problem,) = found
        assert (problem.code, problem.path, problem.value) == ("E364", "recipes.trainer.num_nodes", 3)
        assert problem.message == "3 nodes need 12 requests.cpu: it could never start"
        assert problem.allowed == "ResourceQuota q allows 8"
        assert problem.remedy == "recipes.trainer.num_nodes=2"


def test_the_remedy_is_what_fits_every_bound_or_a_larger_quota():
    given = job([requests(cpu="1", memory="1Gi")], replicas=9)
    remedies = {each.remedy for each in exceeds(given, namespace({"cpu": "5", "memory": "3Gi", "pods": "8"}))}
    assert remedies == {"recipes.trainer.num_nodes=3"}
    (problem,) = exceeds(job([requests(cpu="2")]), namespace({"cpu": "1"}))
    assert problem.message == "1 node need 2 requests.cpu: it could never start"
    assert problem.remedy == "a larger quota, or smaller nodes"
    elastic_job = job([requests(cpu="1")], policy=elastic(4, 8))
    (problem,) = exceeds(elastic_job, namespace({"cpu": "3"}))
    assert (problem.path, problem.remedy) == (
        "recipes.elastic_policy.min_nodes",
        "recipes.elastic_policy.min_nodes=3",
    )


def test_a_bound_of_what_the_pods_do_not_use_holds_for_every_number_of_them():
    assert exceeds(job([requests(cpu="0")], replicas=99), namespace({"cpu": "1", "services": "0"})) == ()


@pytest.mark.parametrize(("pods", "notices"), [(1, 0), (2, 1), (7, 1), (8, 0)])
def test_growth_is_limited_between_the_smallest_and_the_largest_size(pods, notices):
    found = limits_growth(job([{}], policy=elastic(2, 8)), namespace({"pods": pods}))
    assert len(found) == notices
    for notice in found:
        assert notice.code == "N123"
        assert notice.message == f"ResourceQuota q holds {pods} nodes of this job, which may grow to 8"


def test_without_a_bound_growth_is_not_limited():
    assert limits_growth(job([{}], policy=elastic(2, 8)), namespace({"services": "1"})) == ()
    (notice,) = limits_growth(job([{}], policy=elastic(1, 2)), namespace({"pods": "1"}))
    assert notice.message == "ResourceQuota q holds 1 node of this job, which may grow to 2"


LIMIT_RANGE = "a LimitRange with defaults; recipes governance generates one"


@pytest.mark.parametrize(
    ("hard", "listed", "remedy"),
    [
        ({"memory": "9"}, "requests.memory", "recipes.resources.memory=…"),
        (
            {"memory": "9", "limits.memory": "9"},
            "requests.memory, limits.memory",
            "recipes.resources.memory=…",
        ),
        ({"memory": "9", "limits.cpu": "9"}, "requests.memory, limits.cpu", LIMIT_RANGE),
        ({"cpu": "9"}, "requests.cpu", LIMIT_RANGE),
    ],
)
def test_what_a_quota_bounds_has_to_be_stated(hard, listed, remedy):
    (problem,) = exceeds(job([requests(disk="1")]), namespace(hard))
    assert (problem.code, problem.path, problem.remedy) == ("E365", "cluster.namespace", remedy)
    assert problem.message == f"the pods do not state {listed}, and no LimitRange has defaults for it"
    assert problem.allowed == "pods that state it, since ResourceQuota q bounds it"


def test_a_queue_and_other_resources_need_not_be_stated():
    assert exceeds(job([{}]), queue([{"cpu": {"nominalQuota": 1}}])) == ()
    assert exceeds(job([{}]), namespace({"ephemeral-storage": "1"})) == ()


@pytest.mark.parametrize(("request_", "refused"), [("4", False), ("4001m", True)])
def test_a_request_up_to_the_default_limit_is_accepted(request_, refused):
    found = exceeds(job([requests(cpu=request_)]), namespace({}, [limit_range(default={"cpu": "4"})]))
    assert bool(found) is refused
    for problem in found:
        assert (problem.code, problem.path) == ("E365", "recipes.resources.cpu")
        assert (problem.allowed, problem.remedy) == ("at most 4", "recipes.resources.cpu=4")
        assert problem.message == "each pod requests 4001m cpu, more than the limit of the namespace's LimitRange"


def test_a_queue_has_no_default_limits_of_pods():
    made = {"metadata": {"name": "q"}, "spec": {"resourceGroups": []}}
    found = Quota.of_queue(made, [limit_range(default={"memory": "1"})])
    (problem,) = exceeds(job([requests(memory="2")]), found)
    assert problem.path == "cluster.queue_name"
    assert dict(found.defaults) == {"limits.memory": "1", "requests.memory": "1"}


@pytest.mark.parametrize(
    ("amounts", "listed", "remedy"),
    [
        ({"cpu": "1", "memory": "1"}, "cpu, memory", "cluster.request_node_share=false"),
        ({"memory": "1"}, "memory", "cluster.request_node_share=false"),
        ({"cpu": "1", "disk": "1"}, "cpu, disk", None),
    ],
)
def test_a_queue_admits_only_what_it_covers(amounts, listed, remedy):
    found = queue([{"gpu": {"nominalQuota": "1"}, "efa": {"nominalQuota": "1"}}])
    (problem,) = exceeds(job([requests(gpu="1", **amounts)]), found)
    assert (problem.code, problem.path, problem.remedy) == ("E365", "cluster.queue_name", remedy)
    assert problem.message.startswith(f"the job requests {listed}, which its queue does not cover")
    assert problem.allowed == "resources of ClusterQueue q: gpu, efa"
    assert exceeds(job([requests(gpu="1", **dict.fromkeys(amounts, "0"))]), found) == ()
