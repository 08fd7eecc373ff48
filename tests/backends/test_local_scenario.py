"""Scenarios: what a user may write, what is said of faults, and what the bundle holds."""

import json

import pytest
from conftest import LLAMA_K8S, ROOT

from launcher.backends.local.rehearsal import Progress, advance, begin
from launcher.backends.local.scenario import (
    ACTIONS,
    PRIORITY_CLASSES,
    At,
    Event,
    Scenario,
    ScenarioFile,
    Tier,
    read_scenario,
    scenario_json,
)
from launcher.backends.local.scenario_files import SHIPPED, _brought_forward, initial_nodes, resolve, shipped_names
from launcher.common import yaml_io
from launcher.common.names import SCENARIO_FILE

TIERS = "++recipes.elastic_policy.preemption={base_priority_class:high-priority,elastic_priority_class:low-priority}"
GUIDE = ROOT / "docs" / "rehearsal.md"
TINY_STEPS = 400
"""Optimizer steps of the tiny recipe."""


@pytest.fixture
def scenario(render, tmp_path):
    """Return a function from overrides to the bundle's scenario, read as the operator reads it."""

    def rendered(*overrides):
        text = render(*overrides).files.get(SCENARIO_FILE)
        if text:
            (tmp_path / SCENARIO_FILE).write_text(text)
        return read_scenario(tmp_path)

    return rendered


@pytest.fixture
def written(tmp_path):
    """Return a function from a text to the override that makes it the job's scenario."""

    def write(text, name="my.yaml"):
        (tmp_path / name).write_text(text)
        return f"cluster.scenario={name}"

    return write


def arrival(step, name, nodes=1, priority="high-priority"):
    return f"{{at: {{step: {step}}}, job_arrives: {{name: {name}, nodes: {nodes}, priority: {priority}}}}}"


def test_a_shipped_scenario_is_completed_with_what_the_job_says(scenario):
    found = scenario("cluster.scenario=preemption")
    assert (found.nodes, found.nproc_per_node) == (4, 2)
    assert found.priority_classes == PRIORITY_CLASSES
    assert [tier.model_dump() for tier in found.tiers] == [
        {"name": "job", "nodes": 4, "priority_class": "normal-priority"}
    ]
    assert found.about.startswith("A high-priority job")


def test_two_tiers_are_the_base_and_the_rest(scenario):
    found = scenario("cluster.scenario=partial-preemption", TIERS, "recipes.elastic_policy.max_nodes=3")
    assert [(tier.name, tier.nodes, tier.priority_class) for tier in found.tiers] == [
        ("base", 1, "high-priority"),
        ("elastic", 2, "low-priority"),
    ]


@pytest.mark.parametrize(
    "overrides",
    [
        ("+cluster.events=[{at:{step:20},capacity:3}]",),
        ("cluster.events=[{at:{step:20},capacity:3}]",),
        ("+cluster.events.0.at.step=20", "+cluster.events.0.capacity=3"),
    ],
    ids=["plus", "plain", "by-index"],
)
def test_events_alone_are_a_scenario_on_the_jobs_own_nodes(scenario, overrides):
    found = scenario(*overrides, "recipes.trainer.num_nodes=2")
    assert found.nodes == 2
    assert [str(event) for event in found.events] == ["step 20: the cluster has 3 nodes"]


def test_inline_events_are_added_to_those_of_the_file(scenario):
    found = scenario("cluster.scenario=preemption", "+cluster.events=[{at:{seconds:90},preempt:1}]")
    assert [str(event) for event in found.events] == [
        "step 100: job urgent of 2 nodes (high-priority) arrives",
        "step 200: job urgent leaves",
        "90 seconds: 1 node of this job reclaimed",
    ]


def test_a_file_of_the_users_own_lies_in_the_folder_they_launch_from(scenario, written):
    text = f"nodes: 3\npriority_classes: {{normal-priority: 1, top: 2}}\nevents:\n  - {arrival(5, 'a', 2, 'top')}\n"
    found = scenario(written(text))
    assert (found.nodes, found.priority_classes) == (3, {"normal-priority": 1, "top": 2})
    assert found.about == ""


@pytest.mark.parametrize(
    "overrides", [(), ("cluster.scenario=null", "cluster.events=null"), ("cluster.events=[]",)], ids=str
)
def test_a_bundle_without_a_scenario_has_no_file_of_it(render, overrides):
    files = render(*overrides).files
    assert SCENARIO_FILE not in files
    if not overrides:
        assert "scenario" not in files["recipe.yaml"]


def test_rendering_reports_a_file_that_was_spoiled_since_the_check(context, prepare, written):
    from launcher import pipeline
    from launcher.common.problems import ProblemsFound

    job = prepare(written("events: []\n"))
    written("events: [")
    with pytest.raises(ProblemsFound, match="E407"):
        pipeline.render(job, context)


FAULTS = [
    ("cluster.scenario=premption", "E406", "cluster.scenario", "did you mean preemption?"),
    ("cluster.scenario=../cluster/local", "E406", "cluster.scenario", "partial-preemption, pod-crash"),
    ("cluster.scenario=absent.yaml", "E407", "cluster.scenario", "No such file"),
    ("cluster.scenario=''", "E102", "cluster.scenario", "at least 1 character"),
    ("cluster.scenario=nowhere", "E406", "cluster.scenario", "your own file must end in .yaml"),
    ("+cluster.events={at:{step:1}}", "E102", "cluster.events", "list"),
    ("+cluster.events=[{at:{step:1},capacty:1}]", "E101", "cluster.events.0.capacty", "did you mean capacity?"),
    ("+cluster.events=[{capacity:1}]", "E103", "cluster.events.0.at", "missing"),
    ("+cluster.events=[{at:{step:1}}]", "E102", "cluster.events.0", "has no action"),
    ("+cluster.events=[{at:{step:1},capacity:1,preempt:1}]", "E102", "cluster.events.0", "has several actions"),
    ("+cluster.events=[{at:{},capacity:1}]", "E102", "cluster.events.0.at", "exactly one of step"),
    ("+cluster.events=[{at:{step:1,samples:2},capacity:1}]", "E102", "cluster.events.0.at", "exactly one of step"),
    ("+cluster.events=[{at:{stp:1},capacity:1}]", "E101", "cluster.events.0.at.stp", "did you mean step?"),
    ("+cluster.events=[{at:{step:1.5},capacity:1}]", "E102", "cluster.events.0.at.step", "whole number"),
    ("+cluster.events=[{at:{seconds:nan},capacity:1}]", "E102", "cluster.events.0.at.seconds", "finite"),
    (
        "+cluster.events=[{at:{step:1},capacity:-1}]",
        "E102",
        "cluster.events.0.capacity",
        "greater than or equal to 0",
    ),
    ("+cluster.events=[{at:{step:1},preempt:0}]", "E102", "cluster.events.0.preempt", "greater than or equal to 1"),
    ("+cluster.events=[{at:{step:1},worker_crash:{}}]", "E103", "cluster.events.0.worker_crash.rank", "missing"),
    (f"+cluster.events=[{arrival(1, 'a', 0)}]", "E102", "cluster.events.0.job_arrives.nodes", "to 1"),
    (f"+cluster.events=[{arrival(1, 'a', 1, 'high')}]", "E409", "cluster.events.0.job_arrives.priority", "high-prio"),
    ("+cluster.events=[{at:{step:1},job_leaves:a}]", "E408", "cluster.events.0.job_leaves", "before any such job"),
    (
        f"+cluster.events=[{arrival(5, 'urgent')},{{at:{{step:9}},job_leaves:urgnt}}]",
        "E408",
        "cluster.events.1.job_leaves",
        "did you mean urgent?",
    ),
    (
        f"+cluster.events=[{arrival(5, 'a')},{{at:{{step:4}},job_leaves:a}}]",
        "E408",
        "cluster.events.1.job_leaves",
        "leaves at step 4",
    ),
    (
        f"+cluster.events=[{arrival(5, 'a')},{arrival(7, 'a')}]",
        "E408",
        "cluster.events.1.job_arrives.name",
        "second time",
    ),
]


@pytest.mark.parametrize(("override", "code", "path", "says"), FAULTS, ids=[f"{f[1]}-{f[0]}" for f in FAULTS])
def test_a_fault_is_one_problem_with_its_origin(problems, override, code, path, says):
    (problem,) = problems(override)
    assert (problem.code, problem.path) == (code, path)
    assert says in str(problem)
    assert problem.where == override


ALIAS = "about: x\nnodes: -1\nevents:\n- &same {at: {step: 1}, capacity: 1}\n- *same\n"
FILE_FAULTS = [
    ("", "E102", "cluster.scenario", "mapping", None),
    ("- a\n", "E102", "cluster.scenario", "mapping", "my.yaml:1"),
    ("about: x\n", "E103", "cluster.scenario.events", "missing", "my.yaml:1"),
    ("events: [\n", "E407", "cluster.scenario", "not valid YAML at line 2", "cluster.scenario=my.yaml"),
    ("events: []\nevents: []\n", "E407", "cluster.scenario", "given twice", "cluster.scenario=my.yaml"),
    ("events: []\nnodes: \x01\n", "E407", "cluster.scenario", "not valid YAML", "cluster.scenario=my.yaml"),
    ("evnts: []\nevents: []\n", "E101", "cluster.scenario.evnts", "did you mean events?", "my.yaml:1"),
    ("events: []\nnodes: -1\n", "E102", "cluster.scenario.nodes", "to 0", "my.yaml:2"),
    (ALIAS, "E102", "cluster.scenario.nodes", "to 0", "my.yaml:2"),
    ("events:\n- {at: {step: 1}, capacity: x}\n", "E102", "cluster.scenario.events.0.capacity", "whole", "my.yaml:2"),
    ("events:\n- capacity: 1\n", "E103", "cluster.scenario.events.0.at", "missing", "my.yaml:2"),
    (
        "nodes: 0\nevents:\n- {at: {step: 9}, capacity: 4}\n",
        "E410",
        "cluster.scenario.nodes",
        "no more than 0",
        "my.yaml:1",
    ),
    (
        "priority_classes: {high-priority: 1}\nevents: []\n",
        "E409",
        "cluster.scenario.priority_classes",
        "add normal-priority: 500",
        "my.yaml:1",
    ),
    (
        f"events:\n- {arrival(1, 'a')}\n-\n  at: {{step: 1}}\n  job_leaves: b\n",
        "E408",
        "cluster.scenario.events.1.job_leaves",
        "before any such job",
        "my.yaml:5",
    ),
]


@pytest.mark.parametrize(
    ("text", "code", "path", "says", "where"), FILE_FAULTS, ids=[f"{f[1]}-{f[3]}" for f in FILE_FAULTS]
)
def test_a_fault_in_a_file_names_its_line(problems, written, text, code, path, says, where):
    (problem,) = problems(written(text))
    assert (problem.code, problem.path) == (code, path)
    assert says in str(problem)
    assert problem.where == (where or "cluster.scenario=my.yaml")
    assert not (problem.remedy or "").startswith("add cluster.")  # a file is edited, not overridden


def test_a_file_that_is_not_utf8_is_a_problem(problems, tmp_path):
    (tmp_path / "my.yaml").write_bytes(b"about: \xff\n")
    (problem,) = problems("cluster.scenario=my.yaml")
    assert (problem.code, "not UTF-8" in problem.message) == ("E407", True)


def test_every_fault_of_a_scenario_comes_at_once(problems, written):
    events = [arrival(1, "a", 1, "hi"), "{at: {step: 2}, job_leaves: b}", arrival(3, "a")]
    text = "nodes: 0\nevents:\n" + "".join(f"- {event}\n" for event in events)
    assert sorted(problem.code for problem in problems(written(text))) == ["E408", "E408", "E409", "E410"]


def test_faults_of_the_file_and_of_inline_events_come_together(problems):
    found = problems("cluster.scenario=nowhere", "+cluster.events=[{at:{step:1},capacity:x},{capacity:1}]")
    assert [problem.code for problem in found] == ["E406", "E102", "E103"]


def test_a_job_may_wait_for_nodes_that_come_at_some_second(scenario, written):
    found = scenario(written("nodes: 0\nevents:\n- {at: {seconds: 5}, capacity: 2}\n"))
    assert begin(found).capacity == 0


def test_a_name_may_come_again_once_it_has_left(scenario):
    events = f"[{arrival(9, 'a')},{{at:{{step:5}},job_leaves:a}},{arrival(1, 'a')}]"
    assert len(scenario(f"+cluster.events={events}").events) == 3


def test_the_tiers_of_a_rehearsal_are_classes_of_its_scenario_in_order(problems):
    classes = "++recipes.elastic_policy.preemption={{base_priority_class:{},elastic_priority_class:{}}}"
    (unknown,) = problems("cluster.scenario=preemption", classes.format("hi-priority", "low-priority"))
    assert (unknown.code, unknown.path) == ("E409", "recipes.elastic_policy.preemption.base_priority_class")
    assert "did you mean high-priority?" in str(unknown)
    assert unknown.where == classes.format("hi-priority", "low-priority")
    (upside_down,) = problems("cluster.scenario=preemption", classes.format("low-priority", "high-priority"))
    assert upside_down.code == "E411"
    assert "low-priority (100) does not outrank high-priority (1000)" in upside_down.message


def test_a_scenario_is_for_this_machine_only(problems):
    (problem,) = problems(*LLAMA_K8S, "cluster.scenario=preemption")
    assert (problem.code, problem.path) == ("E101", "cluster.scenario")


EVERY_EVENT = [
    *[({"capacity": 1}, "the cluster has 1 node"), ({"preempt": 2}, "2 nodes of this job reclaimed")],
    ({"job_arrives": {"name": "a", "nodes": 3, "priority": "top"}}, "job a of 3 nodes (top) arrives"),
    *[({"job_leaves": "a"}, "job a leaves"), ({"worker_crash": {"rank": 4}}, "worker 4 crashes")],
    *[({"agent_crash": {"node": 1}}, "the agent of node 1 crashes"), ({"node_loss": {"node": 0}}, "node 0 is lost")],
    ({"replacement_node": 1}, "1 node replaced"),
    ({"slow_checkpoint": {"seconds": 1.5}}, "a checkpoint takes 1.5 s"),
    ({"operator_restart": {"down": 20}}, "the operator is down for 20 s"),
    ({"hang": {"rank": 2}}, "worker 2 hangs"),
    ({"bit_rot": {"num_bytes": 64}}, "64 bytes of the newest checkpoint are damaged"),
]


@pytest.mark.parametrize(("action", "expected"), EVERY_EVENT, ids=[next(iter(each)) for each, _ in EVERY_EVENT])
def test_an_event_is_described_in_one_line(action, expected):
    assert str(Event.model_validate({"at": {"step": 7}} | action)) == f"step 7: {expected}"


def test_every_event_has_a_description():
    assert tuple(next(iter(each)) for each, _ in EVERY_EVENT) == ACTIONS
    assert PRIORITY_CLASSES == {"low-priority": 100, "normal-priority": 500, "high-priority": 1000}


@pytest.mark.parametrize(
    ("at", "unit", "value", "text", "before", "then"),
    [
        (At(step=5), "step", 5.0, "step 5", (4, 99, 99.0), (5, 0, 0.0)),
        (At(samples=64), "samples", 64.0, "64 samples", (99, 63, 99.0), (0, 64, 0.0)),
        (At(seconds=0.5), "seconds", 0.5, "0.5 seconds", (99, 99, 0.49), (0, 0, 0.5)),
    ],
    ids=["step", "samples", "seconds"],
)
def test_an_event_comes_once_its_time_is_reached(at, unit, value, text, before, then):
    assert (at.unit, at.value, str(at)) == (unit, value, text)
    assert not at.is_reached(*before) and at.is_reached(*then)


def test_the_file_of_a_bundle_is_read_as_it_was_written(tmp_path):
    assert read_scenario(tmp_path) is None
    tier = Tier(name="job", nodes=2, priority_class="c" * 253)
    event = Event(at=At(seconds=1e6), node_loss={"node": 0, "replacement_after": 0})
    one = Scenario(about="", nodes=2, priority_classes={}, tiers=[tier], nproc_per_node=1, events=[event])
    (tmp_path / SCENARIO_FILE).write_text(scenario_json(one))
    assert read_scenario(tmp_path) == one
    assert scenario_json(one) == (
        '{\n  "about": "",\n  "nodes": 2,\n  "priority_classes": {},\n  "tiers": [\n    {\n      "name": "job",\n'
        '      "nodes": 2,\n      "priority_class": "' + "c" * 253 + '"\n    }\n  ],\n  "nproc_per_node": 1,\n'
        '  "events": [\n    {\n      "at": {\n        "seconds": 1000000.0\n      },\n      "node_loss": {\n'
        '        "node": 0,\n        "replacement_after": 0.0\n      }\n    }\n  ]\n}\n'
    )
    with pytest.raises(ValueError, match="less than or equal to 1000000"):
        At(seconds=1_000_001)
    with pytest.raises(ValueError, match="at most 253 characters"):
        Tier(name="job", nodes=2, priority_class="c" * 254)


CLASSES = "low-priority, normal-priority, high-priority"


@pytest.mark.parametrize(
    ("override", "value", "allowed", "remedy"),
    [
        (f"+cluster.events=[{arrival(1, 'a', 1, 'high')}]", "high", CLASSES, "did you mean high-priority?"),
        (f"+cluster.events=[{arrival(5, 'b')},{{at:{{step:9}},job_leaves:c}},{arrival(5, 'a')}]", "c", "a, b", None),
        ("+cluster.events=[{at:{step:1},job_leaves:a}]", "a", None, None),
        (f"+cluster.events=[{arrival(5, 'a')},{arrival(7, 'a')}]", "a", None, None),
    ],
    ids=["class", "names", "none", "twice"],
)
def test_a_fault_names_what_is_allowed(problems, override, value, allowed, remedy):
    (problem,) = problems(override)
    assert (problem.value, problem.allowed, problem.remedy) == (value, allowed, remedy)
    assert problem.code == "E408" or problem.message == "is not a priority class of the scenario"


def test_a_scenario_without_the_jobs_class_needs_it(problems, written):
    (problem,) = problems(written("priority_classes: {}\nevents: []\n"))
    assert (problem.value, problem.allowed, problem.remedy) == (None, None, "add normal-priority: 500")
    assert problem.message == "lacks normal-priority, the class of this job"


@pytest.mark.parametrize(
    ("text", "least", "code"),
    [
        ("nodes: 1\nevents: []\n", 2, "E410"),
        ("nodes: 2\nevents: []\n", 2, None),
        ("nodes: 1\nevents: [{at: {step: 0}, capacity: 2}]\n", 2, None),
        ("nodes: 1\nevents: [{at: {samples: 1}, capacity: 2}]\n", 2, "E410"),
        ("nodes: 1\nevents: [{at: {seconds: 9}, capacity: 2}]\n", 2, None),
        ("nodes: 0\nevents: [{at: {seconds: 9}, preempt: 2}]\n", 1, "E410"),
    ],
)
def test_a_job_has_to_get_its_nodes_before_its_first_step(prepare, written, text, least, code):
    job = prepare(f"recipes.elastic_policy.min_nodes={least}", written("nodes: 4\nevents: []\n"))
    assert job.initial_nodes == 4
    written(text)
    found = resolve(job)[1]
    assert [problem.code for problem in found] == ([code] if code else [])
    assert (initial_nodes(job) is None) == (code is not None)
    needed = ("the job needs 2 nodes, but", "the job needs 1 node, but")[least == 1]
    assert all(problem.message.startswith(needed) for problem in found)


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("nodes: 3\nevents: []\n", 3),
        ("nodes: 9\nevents: []\n", 4),
        ("nodes: 0\nevents: [{at: {seconds: 9}, capacity: 2}, {at: {seconds: 8}, capacity: 1}]\n", 1),
        ("nodes: 1\nevents: [{at: {step: 1}, capacity: 3}, {at: {samples: 1}, capacity: 4}]\n", 1),
        ("nodes: 4\nevents: [{at: {step: 1}, job_leaves: a}]\n", None),
        ("events: [", None),
    ],
    ids=["some", "more", "later", "at-steps", "faulty", "damaged"],
)
def test_a_job_starts_with_the_largest_size_that_fits_first(prepare, written, text, nodes):
    job = prepare(written("nodes: 4\nevents: []\n"))
    written(text)
    assert initial_nodes(job) == nodes


def test_two_classes_of_the_same_priority_do_not_outrank_each_other(problems, written):
    file = written("priority_classes: {high-priority: 5, low-priority: 5}\nevents: []\n")
    (problem,) = problems(file, TIERS)
    assert (problem.code, problem.value) == ("E411", "high-priority")
    assert problem.path == "recipes.elastic_policy.preemption.base_priority_class"


def test_events_of_different_units_come_as_listed(scenario):
    assert len(scenario("+cluster.events=[" + arrival(9, "a") + ",{at:{seconds:1},job_leaves:a}]").events) == 2


@pytest.mark.parametrize(
    ("steps", "within", "moved"),
    [
        *[([100, 200], 9, [3, 6]), ([100, 200], 300, [100, 200]), ([100, 201], 300, [100, 200])],
        *[([1, 1000], 9, [1, 6]), ([0, 100], 3, [0, 2]), ([10], 1, [1]), ([3], 2, [1]), ([], 9, [])],
    ],
    ids=str,
)
def test_events_keep_their_proportions_in_fewer_steps(steps, within, moved):
    events = [*(Event(at=At(step=step), capacity=1) for step in steps), Event(at=At(seconds=7), preempt=1)]
    assert [event.at.step for event in _brought_forward(events, within)] == [*moved, None]


LORA = ("recipes=fine-tuning/llama/llmft_llama3_2_1b_instruct_seq4k_gpu_sft_lora", "rehearse.steps=9")
LATE = f"events: [{arrival(100, 'a')}, {{at: {{seconds: 7}}, preempt: 1}}, {{at: {{step: 200}}, job_leaves: a}}]\n"


def test_a_shipped_scenario_comes_within_two_thirds_of_the_steps_of_a_rehearsal(scenario, written):
    assert [str(event.at) for event in scenario(*LORA, "cluster.scenario=preemption").events] == ["step 3", "step 6"]
    own = scenario(*LORA, written(LATE, "my.yml"))
    assert [str(event.at) for event in own.events] == ["step 100", "7 seconds", "step 200"]


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_scenario_loads_without_a_fault_and_says_what_it_shows(scenario, name):
    assert scenario(f"cluster.scenario={name}", TIERS).about
    assert (SHIPPED / f"{name}.yaml").read_text().isascii()


COURSES = {
    "bit-rot": [2],
    "hang": [2],
    "node-loss": [3, 2, 3],
    "node-replaced": [2, 1, 2],
    "operator-restart": [2],
    "partial-preemption": [4, 1, 3],
    "pod-crash": [2],
    "preemption": [4, 2, 4],
    "scale-up": [1, 4],
    "slow-checkpoint": [2, 1],
    "tour": [2, 4, 3, 2, 3, 2, 3, 4, 1],
    "worker-crash": [2],
}
"""Nodes that the tiny job may have while each shipped scenario goes by."""


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_scenario_takes_the_tiny_job_through_its_sizes(scenario, name):
    tiers = [TIERS] if name == "partial-preemption" else []
    rehearsal, _ = advance(begin(scenario(f"cluster.scenario={name}", *tiers)), Progress(0, 0, 0), 0)
    course = [rehearsal.capacity]
    for step in range(TINY_STEPS):
        moment = Progress(now_s=0.2 * step, step=step, samples=32 * step)
        rehearsal, happenings = advance(rehearsal, moment, min(4, rehearsal.capacity))
        assert not [happening for happening in happenings if "nothing is done" in happening.message]
        course += [rehearsal.capacity] if rehearsal.capacity != course[-1] else []
    assert course == COURSES[name]
    assert len(rehearsal.fired) == len(rehearsal.scenario.events)


def test_the_shipped_scenarios_show_every_kind_of_event():
    shown = set()
    for name in shipped_names():
        tree = yaml_io.load((SHIPPED / f"{name}.yaml").read_text())
        shown |= {event.action[0] for event in ScenarioFile.model_validate(tree).events}
    assert shown == set(ACTIONS)


def test_the_guide_lists_every_shipped_scenario():
    text = GUIDE.read_text()
    assert [name for name in shipped_names() if f"| `{name}` |" not in text] == []


def test_the_guide_describes_every_event():
    text = GUIDE.read_text()
    assert [name for name in (*ACTIONS, "at") if f"| `{name}" not in text] == []


def test_the_guides_own_scenario_is_right(scenario, written):
    block = GUIDE.read_text().split("```yaml\n", 1)[1].split("```", 1)[0]
    found = scenario(written(block))
    assert {event.action[0] for event in found.events} == set(ACTIONS)


def test_the_scenario_in_a_bundle_holds_no_empty_field(render):
    text = render("cluster.scenario=tour").files[SCENARIO_FILE]
    assert "null" not in text
    assert list(json.loads(text)) == ["about", "nodes", "priority_classes", "tiers", "nproc_per_node", "events"]


def test_the_same_job_renders_the_same_scenario(render):
    first, second = (render("cluster.scenario=tour") for _ in range(2))
    assert first == second
