"""The simulated cluster: who has which nodes while a scenario goes by."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from launcher.backends.local.rehearsal import Happening, Progress, Rehearsal, advance, begin, is_stuck, unfired
from launcher.backends.local.scenario import (
    ACTIONS,
    PRIORITY_CLASSES,
    AgentCrash,
    BitRot,
    Hang,
    NodeLoss,
    OperatorRestart,
    Scenario,
    SlowSave,
    WorkerCrash,
)

REHEARSAL = TypeAdapter(Rehearsal)
ONE_TIER = [{"name": "job", "nodes": 4, "priority_class": "normal-priority"}]
TWO_TIERS = [
    {"name": "base", "nodes": 1, "priority_class": "high-priority"},
    {"name": "elastic", "nodes": 3, "priority_class": "low-priority"},
]


def cluster(*events, nodes=4, tiers=ONE_TIER, classes=PRIORITY_CLASSES):
    return begin(
        Scenario.model_validate(
            {
                "about": "",
                "nodes": nodes,
                "priority_classes": classes,
                "tiers": tiers,
                "nproc_per_node": 2,
                "events": list(events),
            }
        )
    )


def arrives(name, nodes, priority="high-priority", **at):
    return {"at": at or {"step": 1}, "job_arrives": {"name": name, "nodes": nodes, "priority": priority}}


def leaves(name, **at):
    return {"at": at, "job_leaves": name}


def at(step, now_s=0.0, samples=0):
    return Progress(now_s, step, samples)


def play(rehearsal, *moments):
    """Let an operator that takes all it may have, at once, go through the moments; return every capacity and word."""
    capacities, words = [], []
    used = rehearsal.capacity
    for moment in moments:
        rehearsal, happenings = advance(rehearsal, moment, used)
        used = min(rehearsal.capacity, 4)
        capacities.append(rehearsal.capacity)
        words += [happening.message for happening in happenings]
    return rehearsal, capacities, words


def admitted(rehearsal):
    return {job.name for job in rehearsal.jobs if job.admitted}


def waiting(rehearsal):
    return {job.name for job in rehearsal.jobs if not job.admitted}


@pytest.mark.parametrize(
    ("moment", "too_early"),
    [({"step": 20}, at(19)), ({"samples": 640}, at(0, samples=639)), ({"seconds": 2.5}, at(0, now_s=2.4))],
    ids=["step", "samples", "seconds"],
)
def test_an_event_comes_once_when_its_moment_has_come(moment, too_early):
    rehearsal, happenings = advance(cluster({"at": moment, "capacity": 3}), too_early, 4)
    assert (rehearsal.capacity, happenings) == (4, ())
    rehearsal, happenings = advance(rehearsal, at(20, 3.0, 640), 4)
    assert rehearsal.capacity == 3
    assert happenings == (Happening("the cluster has 3 nodes from now on, 4 before"),)
    assert advance(rehearsal, at(99, 99.0, 9999), 3) == (rehearsal, ())


def test_events_due_at_once_come_in_the_order_of_listing():
    rehearsal = cluster({"at": {"step": 5}, "capacity": 3}, {"at": {"step": 2}, "capacity": 1})
    rehearsal, happenings = advance(rehearsal, at(9), 4)
    assert rehearsal.capacity == 1
    assert rehearsal.fired == (0, 1)
    assert [h.message for h in happenings] == [
        "the cluster has 3 nodes from now on, 4 before",
        "the cluster has 1 node from now on, 3 before",
    ]


def test_events_of_the_start_come_before_the_job_has_a_node():
    rehearsal, _ = advance(cluster(arrives("evaluation", 3, seconds=0)), at(0), 0)
    assert rehearsal.capacity == 1


def test_a_high_priority_job_takes_nodes_and_gives_them_back():
    rehearsal, capacities, words = play(
        cluster(arrives("urgent", 2, step=20), leaves("urgent", step=40)), at(19), at(20), at(39), at(40)
    )
    assert capacities == [4, 2, 2, 4]
    assert words == [
        "job urgent (high-priority) arrives",
        "job urgent (high-priority) takes 2 nodes",
        "job urgent (high-priority) leaves: 2 nodes free",
    ]
    assert rehearsal.jobs == ()


def test_without_tiers_the_whole_job_may_be_suspended():
    rehearsal, _ = advance(cluster(arrives("urgent", 4)), at(1), 4)
    assert rehearsal.capacity == 0
    assert is_stuck(rehearsal)


@pytest.mark.parametrize("priority", ["low-priority", "normal-priority"])
def test_a_job_that_does_not_outrank_this_one_waits_for_free_nodes(priority):
    rehearsal, capacities, words = play(
        cluster(arrives("batch", 2, priority), {"at": {"step": 2}, "capacity": 6}), at(1), at(2), at(3)
    )
    assert capacities == [4, 6, 4]
    assert words[0] == f"job batch ({priority}) arrives and waits: it needs 2 nodes and can have 0"
    assert words[-1] == f"job batch ({priority}) takes 2 nodes"
    assert admitted(rehearsal) == {"batch"}


def test_a_waiting_job_takes_nothing_until_all_its_nodes_are_there():
    rehearsal, capacities, words = play(cluster(arrives("big", 5), {"at": {"step": 2}, "capacity": 5}), at(1), at(2))
    assert capacities == [4, 0]
    assert "job big (high-priority) arrives and waits: it needs 5 nodes and can have 4" in words
    assert admitted(rehearsal) == {"big"}


def test_waiting_jobs_are_admitted_by_priority_then_by_arrival():
    classes = {"normal-priority": 500, "high": 600, "higher": 700}
    rehearsal = cluster(
        arrives("all", 4, "higher"),
        arrives("first", 2, "high"),
        arrives("second", 2, "high"),
        arrives("third", 2, "higher", step=1),
        leaves("all", step=2),
        classes=classes,
    )
    rehearsal, _ = advance(rehearsal, at(1), 4)
    assert waiting(rehearsal) == {"first", "second", "third"}
    rehearsal, happenings = advance(rehearsal, at(2), 0)
    assert [h.message for h in happenings[1:]] == [
        "job third (higher) takes 2 nodes",
        "job first (high) takes 2 nodes",
    ]
    assert waiting(rehearsal) == {"second"}


def test_free_nodes_are_this_jobs_before_a_lesser_one_gets_them():
    rehearsal, capacities, _ = play(
        cluster(arrives("urgent", 2), arrives("batch", 2, "low-priority"), leaves("urgent", step=2)),
        at(1),
        at(2),
        at(3),
    )
    assert capacities == [2, 4, 4]
    assert waiting(rehearsal) == {"batch"}


def test_a_lesser_job_gives_way_before_this_one_does():
    rehearsal, capacities, words = play(
        cluster(arrives("batch", 2, "low-priority"), arrives("urgent", 2, step=2), nodes=6), at(1), at(2)
    )
    assert capacities == [4, 4]
    assert words[-1] == "job batch (low-priority) gives 2 nodes back and waits"
    assert (admitted(rehearsal), waiting(rehearsal)) == ({"urgent"}, {"batch"})


def test_a_job_that_outranks_another_takes_its_nodes_though_not_this_jobs():
    rehearsal, capacities, _ = play(
        cluster(arrives("batch", 2, "low-priority"), arrives("peer", 2, "normal-priority", step=2), nodes=6),
        at(1),
        at(2),
    )
    assert capacities == [4, 4]
    assert (admitted(rehearsal), waiting(rehearsal)) == ({"peer"}, {"batch"})


def test_other_jobs_wait_again_when_the_cluster_shrinks_below_them():
    rehearsal, capacities, words = play(
        cluster(arrives("urgent", 3), {"at": {"step": 2}, "capacity": 2}, {"at": {"step": 3}, "capacity": 4}),
        at(1),
        at(2),
        at(3),
    )
    assert capacities == [1, 2, 1]
    assert "job urgent (high-priority) gives 3 nodes back and waits" in words
    assert admitted(rehearsal) == {"urgent"}


@pytest.mark.parametrize(
    ("priority", "nodes", "left"),
    [
        ("normal-priority", 3, 1),
        ("normal-priority", 4, 4),
        ("high-priority", 3, 1),
        ("high-priority", 4, 4),
        ("low-priority", 1, 4),
        ("critical", 4, 0),
    ],
)
def test_only_the_elastic_part_is_reclaimed_unless_the_base_is_outranked_too(priority, nodes, left):
    classes = {**PRIORITY_CLASSES, "critical": 2000}
    rehearsal, _ = advance(cluster(arrives("other", nodes, priority), tiers=TWO_TIERS, classes=classes), at(1), 4)
    assert rehearsal.capacity == left
    assert bool(admitted(rehearsal)) is (left < 4)


@pytest.mark.parametrize(
    ("tiers", "wanted", "left", "words"),
    [
        (ONE_TIER, 1, 3, "1 node of this job is reclaimed"),
        (ONE_TIER, 9, 0, "4 nodes of this job are reclaimed, not 9: its job has no more"),
        (TWO_TIERS, 3, 1, "3 nodes of this job are reclaimed"),
        (TWO_TIERS, 4, 1, "3 nodes of this job are reclaimed, not 4: its elastic part has no more"),
    ],
    ids=["one", "all", "elastic", "base-stays"],
)
def test_preemption_takes_nodes_from_this_job(tiers, wanted, left, words):
    rehearsal, happenings = advance(cluster({"at": {"step": 1}, "preempt": wanted}, tiers=tiers), at(1), 4)
    assert rehearsal.capacity == left
    assert [h.message for h in happenings] == [words]


def test_preemption_takes_free_nodes_too_or_the_job_would_just_have_them_back():
    rehearsal, _ = advance(cluster({"at": {"step": 1}, "preempt": 1}), at(1), 2)
    assert rehearsal.capacity == 1


def test_preemption_finds_nothing_in_a_job_at_its_base():
    rehearsal = cluster({"at": {"step": 1}, "preempt": 1}, nodes=1, tiers=TWO_TIERS)
    after, happenings = advance(rehearsal, at(1), 1)
    assert after.capacity == 1
    assert [h.message for h in happenings] == [
        "0 nodes of this job are reclaimed, not 1: its elastic part has no more"
    ]


def test_preemptions_at_once_add_up():
    event = {"at": {"step": 1}, "preempt": 1}
    assert advance(cluster(event, event), at(1), 4)[0].capacity == 2


def test_a_capacity_gives_reclaimed_nodes_back():
    _, capacities, _ = play(
        cluster({"at": {"step": 1}, "preempt": 2}, {"at": {"step": 2}, "capacity": 4}), at(1), at(2)
    )
    assert capacities == [2, 4]


def test_a_lost_node_is_replaced_some_seconds_later():
    event = {"at": {"step": 30}, "node_loss": {"node": 1, "replacement_after": 10}}
    rehearsal, happenings = advance(cluster(event), at(30, now_s=7.0), 4)
    assert (rehearsal.capacity, is_stuck(rehearsal)) == (3, False)
    assert happenings == (
        Happening("node 1 is lost; a replacement comes 10 s later", NodeLoss(node=1, replacement_after=10)),
    )
    assert unfired(rehearsal) == ("17 seconds: a replacement node",)
    assert advance(rehearsal, at(30, now_s=16.9), 3) == (rehearsal, ())
    rehearsal, happenings = advance(rehearsal, at(30, now_s=17.0), 3)
    assert (rehearsal.capacity, unfired(rehearsal)) == (4, ())
    assert [h.message for h in happenings] == ["1 node replaced: the cluster has 4"]


def test_no_more_nodes_come_back_than_were_lost():
    _, capacities, words = play(
        cluster({"at": {"step": 1}, "node_loss": {"node": 0}}, {"at": {"step": 2}, "replacement_node": 3},
                {"at": {"step": 3}, "replacement_node": 1}),
        at(1), at(2), at(3),
    )  # fmt: skip
    assert capacities == [3, 4, 4]
    assert words[-1] == "a replacement node comes, but none is lost: nothing is done"


def test_a_capacity_counts_every_node_so_that_no_replacement_is_added():
    _, capacities, _ = play(
        cluster({"at": {"step": 1}, "node_loss": {"node": 0, "replacement_after": 5}},
                {"at": {"step": 2}, "capacity": 2}),
        at(1), at(2), at(2, now_s=60.0),
    )  # fmt: skip
    assert capacities == [3, 2, 2]


def test_a_node_cannot_be_lost_twice_at_once():
    event = {"at": {"step": 1}, "node_loss": {"node": 1}}
    rehearsal, happenings = advance(cluster(event, event), at(1), 4)
    assert rehearsal.capacity == 3
    assert [h.fault for h in happenings] == [NodeLoss(node=1), None]


def test_a_lost_node_costs_a_lesser_job_its_nodes():
    rehearsal, capacities, _ = play(
        cluster(arrives("batch", 2, "low-priority"), {"at": {"step": 2}, "node_loss": {"node": 0}}, nodes=6),
        at(1),
        at(2),
    )
    assert capacities == [4, 5]
    assert waiting(rehearsal) == {"batch"}


@pytest.mark.parametrize("action", [{"preempt": 4}, {"capacity": 0}], ids=["reclaimed", "gone"])
def test_losing_a_node_that_the_job_has_to_give_up_leaves_no_debt(action):
    rehearsal = cluster({"at": {"step": 1}, **action}, {"at": {"step": 1}, "node_loss": {"node": 0}})
    rehearsal, happenings = advance(rehearsal, at(1), 4)
    assert rehearsal.capacity == 0
    assert happenings[-1].fault == NodeLoss(node=0)


@pytest.mark.parametrize(
    ("action", "fault"),
    [
        ({"worker_crash": {"rank": 7}}, WorkerCrash(rank=7)),
        ({"hang": {"rank": 7}}, Hang(rank=7)),
        ({"bit_rot": {"num_bytes": 9}}, BitRot(num_bytes=9)),
        ({"agent_crash": {"node": 3}}, AgentCrash(node=3)),
        ({"slow_checkpoint": {"seconds": 90}}, SlowSave(seconds=90)),
        ({"operator_restart": {"down": 3}}, OperatorRestart(down=3)),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_faults_that_cost_no_node_are_handed_to_the_operator(action, fault):
    rehearsal, (happening,) = advance(cluster({"at": {"step": 1}, **action}), at(1), 4)
    assert (happening.fault, rehearsal.capacity) == (fault, 4)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ({"hang": {"rank": 8}}, "worker 8 cannot hang, the job has 8 workers: nothing is done"),
        ({"worker_crash": {"rank": 8}}, "worker 8 cannot crash, the job has 8 workers: nothing is done"),
        ({"agent_crash": {"node": 4}}, "the agent of node 4 cannot crash, the job has 4 nodes: nothing is done"),
        ({"node_loss": {"node": 4}}, "node 4 cannot be lost, the job has 4 nodes: nothing is done"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_fault_of_what_the_job_does_not_have_does_nothing(action, words):
    rehearsal, happenings = advance(cluster({"at": {"step": 1}, **action}), at(1), 4)
    assert happenings == (Happening(words),)
    assert rehearsal.capacity == 4


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ((arrives("a", 1), arrives("a", 2)), "job a arrives, but has arrived already: nothing is done"),
        ((leaves("a", step=1),), "job a leaves, but is not present: nothing is done"),
        ((arrives("a", 9), leaves("a", step=1)), "job a (high-priority) leaves, still waiting"),
    ],
    ids=["twice", "never", "while-waiting"],
)
def test_comings_and_goings_out_of_turn_are_told(events, words):
    rehearsal, happenings = advance(cluster(*events), at(1), 4)
    assert happenings[-1].message == words
    assert rehearsal.capacity == 4 - sum(job.nodes for job in rehearsal.jobs if job.admitted)


@pytest.mark.parametrize(
    ("event", "stuck"),
    [
        ({"at": {"seconds": 9}, "capacity": 4}, False),
        ({"at": {"step": 9}, "capacity": 4}, True),
        ({"at": {"samples": 9}, "capacity": 4}, True),
    ],
    ids=["seconds", "step", "samples"],
)
def test_only_what_time_brings_saves_a_suspended_job(event, stuck):
    assert is_stuck(cluster(event, nodes=0)) is stuck


def test_what_never_came_is_told():
    rehearsal = cluster(
        arrives("urgent", 2, samples=640), {"at": {"step": 90}, "capacity": 1}, leaves("x", seconds=9)
    )
    assert unfired(rehearsal) == (
        "640 samples: job urgent of 2 nodes (high-priority) arrives",
        "step 90: the cluster has 1 node",
        "9 seconds: job x leaves",
    )
    assert unfired(advance(rehearsal, at(90, 9.0, 640), 4)[0]) == ()


def _events(*left_out):
    small = st.integers(0, 5)
    some = st.integers(1, 5)
    names = st.sampled_from("abc")
    seconds = st.floats(0, 20)
    arrival = st.fixed_dictionaries(
        {"name": names, "nodes": some, "priority": st.sampled_from(list(PRIORITY_CLASSES))}
    )
    values = {
        "capacity": st.integers(0, 8),
        "preempt": some,
        "job_arrives": arrival,
        "job_leaves": names,
        "worker_crash": st.fixed_dictionaries({"rank": small}),
        "agent_crash": st.fixed_dictionaries({"node": small}),
        "node_loss": st.fixed_dictionaries({"node": small}, optional={"replacement_after": seconds}),
        "replacement_node": some,
        "slow_checkpoint": st.fixed_dictionaries({"seconds": seconds}),
        "operator_restart": st.fixed_dictionaries({"down": seconds}),
        "hang": st.fixed_dictionaries({"rank": small}),
        "bit_rot": st.fixed_dictionaries({"num_bytes": some}),
    }
    assert set(values) == set(ACTIONS)
    moments = st.one_of(
        st.builds(lambda n: {"step": n}, st.integers(0, 9)), st.builds(lambda s: {"seconds": s}, seconds)
    )
    actions = st.sampled_from([name for name in ACTIONS if name not in left_out]).flatmap(
        lambda name: values[name].map(lambda value: {name: value})
    )
    return st.builds(lambda when, action: {"at": when, **action}, moments, actions)


def _clusters(*left_out, tiers=(ONE_TIER, TWO_TIERS)):
    events = st.lists(_events(*left_out), max_size=12)
    return st.builds(
        lambda events, nodes, tiers: cluster(*events, nodes=nodes, tiers=tiers),
        events,
        st.integers(0, 6),
        st.sampled_from(tiers),
    )


CLUSTERS = _clusters()
STEPS = [at(step, now_s=2.0 * step) for step in range(12)]


@pytest.mark.slow
@given(CLUSTERS, st.lists(st.integers(0, 4), min_size=len(STEPS), max_size=len(STEPS)))
def test_capacity_is_what_is_healthy_and_nobody_else_has(rehearsal, lags):
    used = 0
    for moment, lag in zip(STEPS, lags, strict=True):
        rehearsal, _ = advance(rehearsal, moment, used)
        assert 0 <= rehearsal.capacity <= rehearsal.healthy
        assert rehearsal.capacity + rehearsal.reclaimed + sum(j.nodes for j in rehearsal.jobs if j.admitted) == (
            rehearsal.healthy
        )
        used = max(min(rehearsal.capacity, 4), used - lag)  # an operator that gives nodes up late


@pytest.mark.slow
@given(CLUSTERS)
def test_everything_that_is_due_comes_exactly_once(rehearsal):
    for moment in STEPS:
        rehearsal, _ = advance(rehearsal, moment, min(rehearsal.capacity, 4))
    events = rehearsal.scenario.events
    assert sorted(rehearsal.fired) == list(range(len(events)))
    late = at(12, now_s=1000.0)
    rehearsal, _ = advance(rehearsal, late, min(rehearsal.capacity, 4))
    assert (unfired(rehearsal), is_stuck(rehearsal)) == ((), True)


@pytest.mark.slow
@given(CLUSTERS)
def test_a_restarted_operator_finds_the_cluster_as_it_was(rehearsal):
    for moment in STEPS:
        used = min(rehearsal.capacity, 4)
        read_back = REHEARSAL.validate_json(REHEARSAL.dump_json(rehearsal))
        assert read_back == rehearsal
        assert advance(read_back, moment, used) == advance(rehearsal, moment, used)
        rehearsal, _ = advance(rehearsal, moment, used)


@pytest.mark.slow
@given(
    st.lists(
        st.builds(
            lambda name, nodes, priority, step: arrives(name, nodes, priority, step=step),
            st.sampled_from("abc"),
            st.integers(1, 6),
            st.sampled_from(["low-priority", "normal-priority"]),
            st.integers(0, 9),
        )
    ),
    st.integers(0, 8),
)
def test_jobs_that_do_not_outrank_this_one_never_cost_it_a_node(events, nodes):
    rehearsal = cluster(*events, nodes=nodes)
    used = min(nodes, 4)
    for moment in STEPS:
        rehearsal, _ = advance(rehearsal, moment, used)
        assert rehearsal.capacity >= used


@pytest.mark.slow
@given(_clusters("capacity", "node_loss", tiers=[TWO_TIERS]))
def test_the_base_of_a_tiered_job_is_never_reclaimed(rehearsal):
    used = min(rehearsal.capacity, 4)
    for moment in STEPS:
        rehearsal, _ = advance(rehearsal, moment, used)
        assert rehearsal.capacity >= min(1, used)
        used = min(rehearsal.capacity, 4)
