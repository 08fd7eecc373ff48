"""`scale_config: auto`: what sizes are derived from, and that no sample is ever lost or gained."""

import math
from types import SimpleNamespace

import pytest
from conftest import ELASTIC, LLAMA, LLAMA_K8S
from hypothesis import given
from hypothesis import strategies as st

from launcher import pipeline
from launcher.common.problems import ProblemsFound
from launcher.config.compose import compose
from launcher.model.recipe import ElasticSettings
from launcher.model.size_plan import BatchInputs, spans
from launcher.model.training_args import BATCH_KEYS
from launcher.planning import plan_picture, plan_report, size_planner
from launcher.planning.check import check
from launcher.runtime.shares import micro_batches

AUTO = "++recipes.scale_config=auto"
POLICY = "recipes.elastic_policy"
ARGS = "recipes.training_config.training_args"
NOTHING = dict.fromkeys(("train_batch_size", "micro_train_batch_size", "learning_rate"))


def inputs(job, table=None, base=None, own=()):
    """Return what the files of a made-up recipe set of its batch."""
    return BatchInputs(BATCH_KEYS, job.batch, table=table or {}, base=base or NOTHING, own=frozenset(own))


def planned(job, devices):
    """Plan every size of a made-up elastic recipe whose files set nothing else."""
    return size_planner.plan(job, devices, inputs(job), is_elastic=True)


def recipe(samples=128, micro=8, rate=1e-4, group=1, first=1, last=16, step=None, planner=None):
    args = SimpleNamespace(
        train_batch_size=samples,
        micro_train_batch_size=micro,
        learning_rate=rate,
        uneven_batch=None,
    )
    return SimpleNamespace(
        batch=args,
        ranks_per_sample=group,
        elastic_policy=ElasticSettings(
            is_elastic=True,
            min_nodes=first,
            max_nodes=last,
            replica_increment_step=step,
            use_graceful_shutdown=True,
        ),
        trainer=SimpleNamespace(num_nodes=first),
        planner=planner,
    )


def picky(**keys):
    return SimpleNamespace(**({"max_micro_batch_size": None, "learning_rate": None, "sizes": None} | keys))


def args_of(entry):
    return entry["training_config"]["training_args"]


def shares(entry, ranks):
    """Return every rank's samples as the container deals them out by its configuration."""
    args = args_of(entry)
    uneven = args.get("uneven_batch")
    if uneven is None:
        share, rest = divmod(args["train_batch_size"], ranks)
        assert rest == 0
        return [share] * ranks
    num_small = uneven["num_dp_groups_with_small_batch_size"]
    return [uneven["small_local_batch_size"]] * num_small + [uneven["large_local_batch_size"]] * (ranks - num_small)


@given(
    samples=st.integers(1, 20_000),
    micro=st.integers(1, 64),
    devices=st.sampled_from([1, 2, 4, 8, 16, 32]),
    group=st.sampled_from([1, 2, 4, 8, 16]),
    first=st.integers(1, 8),
    count=st.integers(0, 40),
    step=st.none() | st.integers(1, 5),
)
def test_every_size_trains_the_same_samples(samples, micro, devices, group, first, count, step):
    job = recipe(samples, micro, group=group, first=first, last=first + count, step=step)
    plan = planned(job, devices)
    asked = range(first, first + count + 1, step or 1)
    assert sorted([*map(int, plan.entries), *plan.starved, *plan.undivided]) == list(asked)
    assert all(nodes * devices % group for nodes in plan.undivided)
    assert all(nodes * devices // group > samples for nodes in plan.starved)
    for key, entry in plan.entries.items():
        ranks = int(key) * devices // group
        dealt = shares(entry, ranks)
        assert entry["trainer"]["num_nodes"] == int(key)
        assert len(dealt) == ranks and sum(dealt) == samples == args_of(entry)["train_batch_size"]
        assert min(dealt) >= 1 and max(dealt) == math.ceil(samples / ranks)
        assert args_of(entry)["micro_train_batch_size"] <= micro


@given(samples=st.integers(2, 5000), micro=st.integers(1, 40), ranks=st.integers(2, 300))
def test_uneven_shares_take_the_fewest_passes_the_memory_allows(samples, micro, ranks):
    plan = planned(recipe(samples, micro, first=ranks, last=ranks), 1)
    for entry in plan.entries.values():
        if "uneven_batch" not in args_of(entry):
            continue
        used, dealt = args_of(entry)["micro_train_batch_size"], shares(entry, ranks)
        largest = max(dealt)
        passes = list(micro_batches(range(largest), largest, used))
        assert len(passes) == math.ceil(largest / micro)
        assert sum(map(len, passes)) == largest
        assert used == 1 or len(list(micro_batches(range(largest), largest, used - 1))) > len(passes)


@given(samples=st.integers(1, 2000), last=st.integers(1, 60), devices=st.sampled_from([1, 4, 8]))
def test_useful_sizes_are_each_faster_than_all_smaller_ones(samples, last, devices):
    everything = planned(recipe(samples, last=last), devices)
    job = recipe(samples, last=last, planner=picky(sizes="worthwhile"))
    plan = planned(job, devices)
    largest = [max(shares(entry, int(key) * devices)) for key, entry in plan.entries.items()]
    assert largest == sorted(set(largest), reverse=True)
    fastest = [max(shares(entry, int(key) * devices)) for key, entry in everything.entries.items()]
    assert set(fastest) == set(largest), "no speed is given up"
    assert sorted([*map(int, plan.entries), *plan.slower]) == [*map(int, everything.entries)]


def test_the_published_table_is_what_the_planner_finds_useful(prepare):
    published = prepare(*LLAMA_K8S, ELASTIC)
    planned = prepare(*LLAMA_K8S, ELASTIC, AUTO, "++recipes.planner.sizes=useful")
    assert [plan_report.row(point) for point in planned.scales] == [
        plan_report.row(point) for point in published.scales
    ]
    assert "N112" in [notice.code for notice in planned.notices]


def test_all_sizes_hold_the_published_splits(prepare):
    job = prepare(*LLAMA_K8S, ELASTIC, AUTO)
    rows = {point.nodes: plan_report.row(point)[2:4] for point in job.scales}
    assert list(rows) == list(range(1, 17))
    assert rows[3] == ("5 on 16, 6 on 8", "6 x 1") and rows[6] == ("2 on 16, 3 on 32", "3 x 1")


def test_what_the_published_numbers_get_wrong_on_four_devices_is_planned(prepare):
    job = prepare(*LLAMA_K8S, ELASTIC, AUTO, "instance_type=g5.12xlarge")
    rows = {point.nodes: plan_report.row(point)[2:4] for point in job.scales}
    assert rows[3] == ("10 on 4, 11 on 8", "6 x 2") and rows[6] == ("5 on 16, 6 on 8", "6 x 1")
    assert {point.samples_per_step for point in job.scales} == {128}
    assert "N113" in [notice.code for notice in job.notices]
    config = job.scales[2].config["training_config"]["training_args"]
    assert config["uneven_batch"]["large_local_batch_size"] == 11 and config["micro_train_batch_size"] == 6


def test_planned_sizes_are_typed_as_if_they_were_written_by_hand(context):
    draft = check(compose([*LLAMA_K8S, ELASTIC, AUTO, f"{POLICY}.max_nodes=5"], context.cwd))
    for scale in draft.scales:
        assert type(draft.recipe).model_validate(scale.tree).model_dump() == scale.recipe.model_dump()


def test_a_plan_s_keys_stay_with_the_launcher(prepare):
    job = prepare(*LLAMA_K8S, AUTO, "++recipes.planner.max_micro_batch_size=1")
    assert "planner" not in job.scales[0].config and "scale_config" not in job.scales[0].config


BATCH = f"{ARGS}.train_batch_size=256"


@pytest.mark.parametrize(
    ("overrides", "samples", "rate"),
    [
        ((), 128, 4e-4),
        ((BATCH,), 256, 4e-4),
        ((BATCH, "++recipes.planner.learning_rate=keep"), 256, 4e-4),
        ((BATCH, "++recipes.planner.learning_rate=sqrt"), 256, 5.657e-4),
        ((BATCH, "++recipes.planner.learning_rate=linear"), 256, 8e-4),
        ((BATCH, "++recipes.planner.learning_rate=linear", f"{ARGS}.learning_rate=0.001"), 256, 1e-3),
        (("++recipes.planner.learning_rate=sqrt",), 128, 4e-4),
        ((f"{ARGS}.train_batch_size=128", "++recipes.planner.learning_rate=linear"), 128, 4e-4),
        ((f"{ARGS}.learning_rate=0.001",), 128, 1e-3),
    ],
    ids=["own", "batch", "keep", "sqrt", "linear", "both", "no_change", "same_batch", "rate"],
)
def test_the_learning_rate_follows_a_batch_that_the_user_changes(prepare, overrides, samples, rate):
    job = prepare(*LLAMA_K8S, ELASTIC, AUTO, *overrides)
    assert {(point.samples_per_step, point.learning_rate) for point in job.scales} == {(samples, rate)}
    assert "N109" in [notice.code for notice in job.notices]


def test_the_square_root_gives_the_published_learning_rate(prepare):
    job = prepare(*LLAMA_K8S, AUTO, f"{ARGS}.train_batch_size=128", "++recipes.planner.learning_rate=sqrt")
    assert job.scales[0].learning_rate == prepare(*LLAMA_K8S, ELASTIC).scales[0].learning_rate == 4e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "largest", "said"),
    [
        ((), 8, "the largest in the recipe's own sizes"),
        (("++recipes.planner.max_micro_batch_size=3",), 3, "max_micro_batch_size"),
        ((f"{ARGS}.micro_train_batch_size=2",), 2, "yours"),
        (
            (f"{ARGS}.micro_train_batch_size=2", "++recipes.planner.max_micro_batch_size=16"),
            16,
            "max_micro_batch_size",
        ),
    ],
    ids=["own_sizes", "planner", "micro", "planner_wins"],
)
def test_the_memory_bound(prepare, overrides, largest, said):
    job = prepare(*LLAMA_K8S, ELASTIC, AUTO, *overrides)
    assert max(point.batch.micro_batch_size for point in job.scales) <= largest
    (notice,) = [notice.message for notice in job.notices if notice.code == "N109"]
    assert f"at most {largest} in a pass ({said})" in notice


def test_sizes_that_disagree_leave_the_base_recipe_s_batch(prepare):
    job = recipe(32, 4, 1e-3)
    table = {"1": {"training_config": {"training_args": {"train_batch_size": 64}}}, "2": {}}
    base = {"train_batch_size": 32, "micro_train_batch_size": 4, "learning_rate": 1e-3}
    found = size_planner.basis(job, inputs(job, table, base), is_elastic=True)
    assert (found.samples, found.learning_rate, found.max_micro) == (32, 1e-3, 4)


@pytest.mark.parametrize(
    "value", [{"1": None}, {"1": {"training_config": {"training_args": {"train_batch_size": "x"}}}}, {"a": 3}]
)
def test_a_table_that_auto_shadows_need_not_be_right(value):
    job = recipe(32, 4, 1e-3)
    found = size_planner.basis(job, inputs(job, value), is_elastic=True)
    assert (found.samples, found.max_micro) == (32, 4)


def test_a_static_job_has_one_planned_size(prepare):
    job = prepare(*LLAMA_K8S, AUTO, "recipes.trainer.num_nodes=3", f"{ARGS}.train_batch_size=128")
    assert [plan_report.row(point)[:4] for point in job.scales] == [("3", "24", "5 on 16, 6 on 8", "6 x 1")]
    assert job.elastic is None


def test_a_static_job_with_too_few_samples_is_told_how_many_it_needs(problems):
    (problem,) = problems(*LLAMA_K8S, AUTO, "recipes.trainer.num_nodes=3")
    assert (problem.code, problem.remedy) == ("E221", f"{ARGS}.train_batch_size=24")


def test_a_stepped_job_is_planned_at_every_step(prepare):
    job = prepare(*LLAMA_K8S, ELASTIC, AUTO, f"++{POLICY}.replica_increment_step=3", f"{POLICY}.min_nodes=2")
    assert [point.nodes for point in job.scales] == [2, 5, 8, 11, 14]
    assert job.elastic.replica_increment_step == 3 and job.elastic.replica_values is None
    assert {point.samples_per_step for point in job.scales} == {128}


SCALE = "recipes.scale_config"
RATE_AT_3 = f"++{SCALE}.3.training_config.training_args.learning_rate=0.0003"


@pytest.mark.parametrize("words", [(AUTO, RATE_AT_3), (RATE_AT_3, AUTO)], ids=["after", "before"])
def test_an_override_of_one_size_lies_on_top_of_the_planned_one(prepare, words):
    job = prepare(*LLAMA_K8S, ELASTIC, *words)
    assert {point.nodes: point.learning_rate for point in job.scales if point.learning_rate != 4e-4} == {3: 3e-4}


def test_a_planned_size_can_be_removed(prepare):
    job = prepare(*LLAMA_K8S, ELASTIC, AUTO, f"~{SCALE}.5", f"{POLICY}.max_nodes=6")
    assert [point.nodes for point in job.scales] == [1, 2, 3, 4, 6]


def test_an_override_of_the_base_wins_over_planned_sizes_too(prepare):
    job = prepare(*LLAMA_K8S, ELASTIC, AUTO, f"{ARGS}.seed=7", f"{SCALE}.4.training_config.training_args.seed=8")
    seeds = {p.nodes: p.config["training_config"]["training_args"]["seed"] for p in job.scales}
    assert seeds.pop(4) == 8 and set(seeds.values()) == {7}


@pytest.mark.parametrize(
    ("overrides", "code", "path", "says"),
    [
        ((RATE_AT_3.replace(".3.", ".17."),), "E226", f"{SCALE}.17", "1 to 16"),
        ((RATE_AT_3.replace(".3.", ".three."),), "E203", f"{SCALE}.three", "number of nodes"),
        ((RATE_AT_3.replace("rate", "rat"),), "E101", None, "did you mean learning_rate"),
        ((f"++{SCALE}.3.trainer.devices=4",), "E214", f"{SCALE}.3.trainer.devices", "between sizes"),
        ((f"{ARGS}.train_batch_size=2",), "E224", SCALE, "train_batch_size=8 or more"),
        ((f"{POLICY}.max_nodes=2", f"~{SCALE}.1", f"~{SCALE}.2"), "E224", SCALE, "removed"),
        (
            (f"{POLICY}.max_nodes=20", f"++{POLICY}.replica_increment_step=2"),
            "E225",
            f"{POLICY}.replica_increment_step",
            "max_nodes=15",
        ),
        (
            (f"++{POLICY}.replica_increment_step=2", "++recipes.planner.sizes=worthwhile"),
            "E225",
            f"{POLICY}.replica_increment_step",
            "none can be omitted",
        ),
        (("++recipes.planner.sizes=best",), "E102", "recipes.planner.sizes", "worthwhile"),
        (("++recipes.planner.max_micro=3",), "E101", "recipes.planner.max_micro", "max_micro_batch_size"),
        ((f"{ARGS}.train_batch_size=abc",), "E102", f"{ARGS}.train_batch_size", "whole number"),
        (("recipes.trainer.devices=abc",), "E102", "recipes.trainer.devices", "whole number"),
        ((f"{POLICY}.min_nodes=9", f"{POLICY}.max_nodes=2"), "E201", f"{POLICY}.min_nodes", "more than"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) == 4 else "",
)
def test_what_cannot_be_planned_is_said(problems, overrides, code, path, says):
    (problem,) = problems(*LLAMA_K8S, ELASTIC, AUTO, *overrides)
    assert problem.code == code and says in str(problem)
    assert path in (None, problem.path)


def test_hand_written_sizes_that_do_not_add_up_are_told_of_auto(problems):
    found = problems(*LLAMA_K8S, ELASTIC, "instance_type=g5.12xlarge")
    assert found and all("++recipes.scale_config=auto" in problem.remedy for problem in found)


def test_planner_settings_without_auto_are_said_to_do_nothing(prepare):
    job = prepare(*LLAMA_K8S, ELASTIC, "++recipes.planner.learning_rate=sqrt")
    assert "N115" in [notice.code for notice in job.notices]


@pytest.mark.parametrize(
    ("lines", "samples"),
    [("", 128), ("training_config: {training_args: {train_batch_size: 96}}\n", 96)],
    ids=["inherits", "own_batch"],
)
def test_a_recipe_file_may_say_auto_and_its_batch_is_the_user_s(tmp_path, prepare, lines, samples):
    file = tmp_path / "mine.yaml"
    file.write_text(f"defaults:\n  - /recipes/{LLAMA}@_here_\n  - _self_\nscale_config: auto\n{lines}")
    job = prepare(f"recipes={file}", "cluster=k8s", ELASTIC)
    assert {point.samples_per_step for point in job.scales} == {samples}


def test_the_tiny_recipe_is_planned_too(prepare):
    job = prepare(AUTO)
    assert [plan_report.samples_per_rank(point) for point in job.scales] == ["16", "8", "5 on 4, 6 on 2", "4"]


def test_ulysses_ranks_share_a_sample_as_ring_ranks_do(prepare):
    key = f"{ARGS}.ulysses_sequence_parallel_size"
    job = prepare(*LLAMA_K8S, ELASTIC, AUTO, f"++{key}=2", f"{ARGS}.ring_attn_size=2", f"{POLICY}.max_nodes=3")
    assert [point.data_parallel_size for point in job.scales] == [2, 4, 6]


def test_spans_are_short():
    assert spans([1, 2, 3, 5, 7, 8]) == "1 to 3, 5, 7 to 8"
    assert spans(range(1, 100, 2)) == "1, 3, 5, 7, …, 99"
    assert spans(range(1, 17, 2)) == "1, 3, 5, 7, 9, 11, 13, 15"
    assert spans(range(1, 19, 2)) == "1, 3, 5, 7, …, 17"


def test_a_base_recipe_s_uneven_batch_is_turned_off_where_shares_are_equal():
    job = recipe(samples=12, first=1, last=5)
    job.batch.uneven_batch = SimpleNamespace()
    entries = planned(job, 1).entries
    assert args_of(entries["4"])["uneven_batch"] == {"use_uneven_batch": False}
    assert args_of(entries["5"])["uneven_batch"]["use_uneven_batch"] is True


def test_a_recipe_without_a_learning_rate_is_planned_without_one():
    job = recipe(samples=64)
    rateless = inputs(job, own={"train_batch_size"})._replace(has_rate=False)
    found = size_planner.basis(job, rateless, is_elastic=True)
    assert found.learning_rate is None
    assert found.description == "64 samples per step (yours), at most 8 in a pass (the base recipe)"
    unsaid = size_planner.basis(job, rateless._replace(own=frozenset()), is_elastic=True)
    assert unsaid.description == "64 samples per step (the base recipe), at most 8 in a pass (the base recipe)"


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".png", ".svg"])
@pytest.mark.parametrize("overrides", [(), (AUTO,)], ids=["one_size", "sixteen"])
def test_the_picture_is_the_same_for_the_same_plan(prepare, tmp_path, suffix, overrides):
    pytest.importorskip("matplotlib")
    job = prepare(*LLAMA_K8S, *([ELASTIC] if overrides else []), *overrides)
    for name in ("a", "b"):
        plan_picture.draw(job, tmp_path / f"{name}{suffix}")
    picture = (tmp_path / f"a{suffix}").read_bytes()
    assert picture == (tmp_path / f"b{suffix}").read_bytes()
    assert picture.startswith({".png": b"\x89PNG", ".svg": b"<?xml"}[suffix])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plan.jpg", "plan", "no/such/folder/plan.svg"])
def test_a_picture_that_cannot_be_drawn_is_a_problem(prepare, tmp_path, name):
    with pytest.raises(ProblemsFound) as caught:
        plan_picture.draw(prepare(*LLAMA_K8S), tmp_path / name)
    assert [problem.code for problem in caught.value.problems] == ["E709"]


def test_an_unknown_instance_type_does_not_hide_behind_the_plan(problems):
    assert "E230" in {p.code for p in problems(*LLAMA_K8S, ELASTIC, AUTO, "instance_type=ml.p9.48xlarge")}


@pytest.mark.slow
def test_planning_many_sizes_costs_no_more_for_each(context):
    job = pipeline.prepare(
        [*LLAMA_K8S, ELASTIC, AUTO, f"{POLICY}.max_nodes=1000", f"{ARGS}.train_batch_size=8000"], context
    )
    assert len(job.scales) == 1000 and {point.samples_per_step for point in job.scales} == {8000}
    models = {id(point.config["training_config"]["model_config"]) for point in job.scales}
    assert len(models) == 1, "the sizes share what they have in common"


def test_a_planned_job_renders_every_size(render):
    bundle = render(*LLAMA_K8S, ELASTIC, AUTO)
    assert sum(name.startswith("configs/config-n") for name in bundle.files) == 16
    assert "replicaDiscreteValues" in bundle.files["manifests/job.yaml"]


def test_auto_says_what_it_takes_for_granted(prepare):
    full = (LLAMA_K8S[0].removesuffix("lora") + "fft", *LLAMA_K8S[1:], "++recipes.scale_config=auto")
    static, elastic = prepare(*full), prepare(*full, "++recipes.elastic_policy.is_elastic=true")
    codes = [{notice.code for notice in job.notices} & {"N124", "N125"} for job in (static, elastic)]
    assert codes == [{"N124"}, {"N125"}] and elastic.elastic.max_nodes >= 1


@pytest.mark.parametrize(
    ("override", "says"),
    [(f"{ARGS}.train_batch_size=256", "√(256/128)"), (f"{ARGS}.learning_rate=1e-5", "sqrt has no effect")],
    ids=["scaled", "given"],
)
def test_the_plan_says_what_became_of_the_learning_rate_s_rule(prepare, override, says):
    job = prepare(*LLAMA_K8S, ELASTIC, AUTO, "++recipes.planner.learning_rate=sqrt", override)
    (notice,) = (notice for notice in job.notices if notice.code == "N109")
    assert says in notice.message
