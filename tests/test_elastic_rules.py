"""What keeps a job from being elastic, and which of its sizes it may take: key, value and what is allowed."""

import pytest
from conftest import ELASTIC, LLAMA, LLAMA_K8S

ARGS = "recipes.training_config.training_args"
POLICY, SCALES = "recipes.elastic_policy", "recipes.scale_config"
NODES = "recipes.trainer.num_nodes"
PREEMPTION = f"++{POLICY}.preemption={{base_priority_class: high, elastic_priority_class: low}}"
J = "cluster.sm_jobs_config"
TRAINING_JOB = (
    f"recipes={LLAMA}",
    "cluster=sm_jobs",
    f"{J}.role=arn:aws:iam::123456789012:role/train",
    f"{J}.output_path=s3://results/out",
)
MANY = ("++recipes.scale_config=auto", f"{ARGS}.train_batch_size=8000", f"{NODES}=100")

FAULTS = {
    "bounds": ((f"{POLICY}.min_nodes=9", f"{POLICY}.max_nodes=2"), f"{POLICY}.min_nodes", 9, "1 to 2"),
    "step and scales": (
        (f"++{POLICY}.replica_increment_step=2",),
        f"{POLICY}.replica_increment_step",
        2,
        "one of the two",
    ),
    "an entry without keys": ((f"{SCALES}.3=5",), f"{SCALES}.3", 5, None),
    "a key that is no size": ((f"++{SCALES}.x.trainer.num_nodes=1",), f"{SCALES}.x", "x", "1, 2, 3, …"),
    "a key that all sizes share": (
        (f"++{SCALES}.3.trainer.devices=4",),
        f"{SCALES}.3.trainer.devices",
        4,
        "training_config.… and trainer.num_nodes",
    ),
    "an entry of another size": ((f"++{SCALES}.8.trainer.num_nodes=6",), f"{SCALES}.8.trainer.num_nodes", 6, "8"),
    "a size outside": ((f"++{SCALES}.32.trainer.num_nodes=32",), f"{SCALES}.32", 32, "1 to 16 nodes"),
    "no size inside": ((f"{POLICY}.min_nodes=5", f"{POLICY}.max_nodes=5"), f"{POLICY}.min_nodes", 5, "5 to 5 nodes"),
    "start between sizes": ((f"{NODES}=5",), NODES, 5, "1, 2, 3, 4, 6, 8, 16"),
    "start among many sizes": (
        (*MANY, f"{POLICY}.max_nodes=32"),
        NODES,
        100,
        ", ".join(str(size) for size in range(1, 33)),
    ),
    "start among too many sizes": ((*MANY, f"{POLICY}.max_nodes=33"), NODES, 100, "1 to 33"),
    "checkpointless": (("++recipes.checkpointless=true",), "recipes.checkpointless", True, None),
    "kubeflow": (("cluster.use_hyperpod_pytorch_job=false",), "cluster.use_hyperpod_pytorch_job", False, None),
    "spot by node": (
        ("cluster.node_selector={karpenter.sh/capacity-type: a-Spot}",),
        "cluster.node_selector.karpenter.sh/capacity-type",
        "a-Spot",
        None,
    ),
    "spot by requirement": (
        ("cluster.label_selector={required: {a-Capacity: [on-demand, SPOT]}}",),
        "cluster.label_selector.required.a-Capacity",
        ["on-demand", "SPOT"],
        None,
    ),
    "spot by preference": (
        ("cluster.label_selector={preferred: {capacity: [spot]}, weights: [1]}",),
        "cluster.label_selector.preferred.capacity",
        ["spot"],
        None,
    ),
    "directory of each run": (
        (f"{ARGS}.override_training_dir=false",),
        f"{ARGS}.override_training_dir",
        False,
        "true",
    ),
    "parts of a fixed size": ((PREEMPTION, f"{POLICY}.max_nodes=1"), f"{POLICY}.preemption", None, None),
    "a base part that is no size": (
        (PREEMPTION, f"~{SCALES}.1"),
        f"{POLICY}.preemption",
        None,
        "min_nodes=2",
    ),
    "parts of one class": (
        (f"{PREEMPTION.replace('high', 'low')}",),
        f"{POLICY}.preemption.elastic_priority_class",
        "low",
        "a class of lower priority",
    ),
    "a class for pods too": (
        (PREEMPTION, "cluster.priority_class_name=x"),
        "cluster.priority_class_name",
        "x",
        None,
    ),
    "workers that cannot stay": ((f"++{POLICY}.resize=in_place",), f"{POLICY}.resize", "in_place", "restart"),
    "another cluster_type": (("cluster_type=slurm",), "cluster_type", "slurm", None),
}


@pytest.mark.parametrize(("overrides", "path", "value", "allowed"), FAULTS.values(), ids=FAULTS)
def test_an_elastic_job_that_cannot_be_is_told_key_value_and_what_is_allowed(
    problems, overrides, path, value, allowed
):
    found = [problem for problem in problems(*LLAMA_K8S, ELASTIC, *overrides) if problem.code != "E902"]
    assert [(problem.path, problem.value, problem.allowed) for problem in found] == [(path, value, allowed)]


@pytest.mark.parametrize(
    "overrides",
    [
        ("cluster.node_selector={capacity: on-demand}",),
        ("cluster.node_selector={kind: spot}",),
        ("cluster.label_selector={required: {capacity: [on-demand]}}",),
        ("cluster.label_selector={required: {kind: [spot]}}",),
        (f"{POLICY}.min_nodes=2",),
        (f"{POLICY}.max_nodes=8",),
        (PREEMPTION,),
        (f"++{SCALES}.16.training_config.training_args.seed=3",),
        ("cluster_type=k8s",),
    ],
    ids=lambda overrides: overrides[0],
)
def test_what_only_resembles_a_fault_is_none(prepare, overrides):
    assert prepare(*LLAMA_K8S, ELASTIC, *overrides).elastic


@pytest.mark.parametrize("bound", ["min_nodes=2", "max_nodes=8"])
def test_a_bound_that_the_user_moves_drops_the_sizes_outside(prepare, bound):
    sizes = [point.nodes for point in prepare(*LLAMA_K8S, ELASTIC, f"{POLICY}.{bound}").scales]
    assert sizes == ([2, 3, 4, 6, 8, 16] if bound.startswith("min") else [1, 2, 3, 4, 6, 8])


def test_sizes_that_no_bound_holds_are_listed(problems):
    (problem,) = problems(*LLAMA_K8S, ELASTIC, f"{POLICY}.min_nodes=9", f"{POLICY}.max_nodes=10")
    assert "1, 2, 3, 4, 6, 8, 16" in problem.message


def test_a_job_without_sizes_is_not_asked_to_start_at_one(problems):
    (problem,) = problems(*LLAMA_K8S, ELASTIC, f"~{SCALES}", f"{NODES}=3")
    assert (problem.code, problem.path) == ("E202", SCALES)


@pytest.mark.parametrize("key", ["spot", "additional_estimator_kwargs.use_spot_instances"])
def test_a_spot_training_job_is_not_elastic_for_two_reasons(problems, key):
    spot, cluster, *_ = problems(*TRAINING_JOB, ELASTIC, f"{J}.{key}=true")
    assert (spot.code, spot.path, spot.value) == ("E209", f"{J}.{key}", True)
    assert (cluster.code, cluster.path, cluster.value) == ("E211", "cluster", "sm_jobs")


@pytest.mark.parametrize(
    ("overrides", "codes"),
    [
        ((), set()),
        ((f"{POLICY}.min_nodes=2",), {"N101", "N102"}),
        ((f"{POLICY}.max_nodes=15",), {"N101", "N108"}),
        ((f"{POLICY}.max_nodes=16",), set()),
        ((f"{NODES}=3",), set()),
        ((f"{POLICY}.max_nodes=20", "++recipes.scale_config=auto"), {"N108"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_sizes_that_bounds_leave_out_or_do_not_add_are_noticed(prepare, overrides, codes):
    notices = prepare(*LLAMA_K8S, ELASTIC, *overrides).notices
    assert {notice.code for notice in notices} & {"N101", "N102", "N108", "N125"} == codes


def test_default_bounds_are_noticed_where_the_recipe_has_none(prepare):
    full = (LLAMA_K8S[0].removesuffix("lora") + "fft", *LLAMA_K8S[1:], "++recipes.scale_config=auto")
    assert "N125" in {notice.code for notice in prepare(*full, ELASTIC).notices}
    assert "N125" not in {notice.code for notice in prepare(*full).notices}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "file", "variables"),
    [
        (("cluster=local",), "run.sh", "run.sh"),
        (("cluster=slurm", "instance_type=m5.2xlarge"), "slurm/agent.sh", "slurm/variables.sh"),
        (("cluster=k8s", "instance_type=ml.m5.2xlarge", "container=me/image:1"), *["manifests/job.yaml"] * 2),
    ],
    ids=["local", "slurm", "k8s"],
)
def test_workers_stay_where_the_recipe_says_so(render, words, file, variables):
    recipe = "recipes=training/tiny/tiny_lm_cpu"
    anew = render(recipe, f"{POLICY}.resize=restart", *words).files
    stays = render(recipe, f"{POLICY}.resize=in_place", f"{POLICY}.graceful_shutdown_timeout=33", *words).files
    (name,) = (each for each in stays if each.endswith(file))
    assert "--inprocess-restart" in stays[name] and "--inprocess-timeout=33" in stays[name]
    assert "RECIPES_IN_PLACE" in stays[variables]
    assert not any("inprocess" in text or "RECIPES_IN_PLACE" in text for text in anew.values())
    assert "; workers stay" in stays["plan.md"] and "workers stay" not in anew["plan.md"]


def own_recipe(folder, text: str) -> tuple[str, ...]:
    """Write a recipe of the user's own, elastic, that inherits a shipped table of sizes; return its overrides."""
    (folder / "mine.yaml").write_text(f"defaults: [/recipes/{LLAMA}@_here_, _self_]\n{text}\n")
    return "recipes=mine.yaml", "cluster=k8s", ELASTIC


def test_bounds_of_a_file_leave_out_inherited_sizes_as_overrides_do(prepare, tmp_path):
    bounds = (f"{POLICY}.min_nodes=2", f"{POLICY}.max_nodes=8")
    typed = prepare(*LLAMA_K8S, ELASTIC, *bounds)
    written = prepare(*own_recipe(tmp_path, "elastic_policy: {min_nodes: 2, max_nodes: 8}"))
    assert [scale.nodes for scale in written.scales] == [2, 3, 4, 6, 8]
    assert [n for n in written.notices if n.code == "N101"] == [n for n in typed.notices if n.code == "N101"] != []


def test_a_bound_of_a_file_beyond_its_table_is_noticed(prepare, tmp_path):
    plan = prepare(*own_recipe(tmp_path, "elastic_policy: {max_nodes: 20}"))
    assert "N108" in {notice.code for notice in plan.notices}


def test_bounds_of_a_file_that_leave_no_size_are_named(problems, tmp_path):
    (problem,) = problems(*own_recipe(tmp_path, "elastic_policy: {min_nodes: 20, max_nodes: 28}"))
    assert (problem.code, problem.path, problem.where) == ("E205", f"{POLICY}.min_nodes", f"{tmp_path}/mine.yaml:2")


OUTSIDE = {
    "a size of the same file": ("scale_config: {16: {training_config: {training_args: {learning_rate: 0.1}}}}", ()),
    "a size of the command line": ("", (f"++{SCALES}.16.training_config.training_args.learning_rate=0.1",)),
}


@pytest.mark.parametrize(("text", "typed"), OUTSIDE.values(), ids=OUTSIDE)
@pytest.mark.parametrize("remedy", range(2), ids=["a wider bound", "without the size"])
def test_a_size_outside_the_bounds_beside_it_is_a_problem_with_remedies(
    problems, prepare, tmp_path, text, typed, remedy
):
    overrides = (*own_recipe(tmp_path, f"elastic_policy: {{max_nodes: 8}}\n{text}"), *typed)
    (problem,) = problems(*overrides)
    assert (problem.code, problem.message) == ("E205", "16 nodes are outside the bounds")
    prepare(*overrides, problem.remedy.replace(" to leave the size out", "").split(", or ")[remedy])


def test_one_node_outside_the_bounds_is_singular(problems, tmp_path):
    text = "scale_config: {1: {training_config: {training_args: {learning_rate: 0.1}}}}"
    (problem,) = problems(*own_recipe(tmp_path, f"elastic_policy: {{min_nodes: 2}}\n{text}"))
    assert problem.message == "1 node is outside the bounds"


def test_a_size_that_is_null_is_removed_by_the_remedy(problems, prepare, tmp_path):
    overrides = own_recipe(tmp_path, "scale_config: {3: null}")
    (problem,) = problems(*overrides)
    assert (problem.code, problem.remedy) == ("E203", f"~{SCALES}.3 leaves the size out")
    plan = prepare(*overrides, problem.remedy.partition(" ")[0])
    assert [scale.nodes for scale in plan.scales] == [1, 2, 4, 6, 8, 16]
