"""Notices are rules: each is registered once, and a launch prints them in one order."""

from pathlib import Path

import pytest
from conftest import ELASTIC, SCRIPT_K8S

from launcher import rules
from launcher.config.compose import compose
from launcher.planning.check import check
from launcher.planning.job_planner import plan

LLAMA_K8S = (
    "recipes=fine-tuning/llama/llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora",
    "cluster=k8s",
    "container=registry.example/image:1",
    "instance_type=ml.p5.48xlarge",
)


def test_every_notice_has_a_code_a_reason_and_its_place_in_the_order():
    found = rules.all_notice_rules()
    assert [each.code for each in found] == list(rules.ORDER)
    assert all(each.code.startswith("N") and each.reason.endswith(".") and each.source for each in found)


def test_a_cluster_has_the_notices_of_its_own_and_of_every_cluster():
    advice = {name: rules.notice_rules_for(name, "tiny_lm") for name in ("local", "k8s", "contract")}
    codes = {name: {each.code for each in found} for name, found in advice.items()}
    assert "N165" in codes["local"] & codes["k8s"] & codes["contract"]
    assert "N117" in codes["k8s"] and "N117" not in codes["local"] | codes["contract"]
    assert {"N136", "N170"} <= codes["contract"] and "N136" not in codes["k8s"]


def test_planning_only_plans_and_notices_follow(prepare, context):
    overrides = (*LLAMA_K8S, "recipes.trainer.num_nodes=3", "recipes.trainer.num_nodes=1")
    checked = check(compose(overrides, Path(context.cwd), context.suffix))
    job = plan(checked, context)
    assert job.notices == ()
    found = rules.notices(checked, job)
    assert found == prepare(*overrides).notices
    codes = [notice.code for notice in found]
    assert codes[0] == "N165" and codes == sorted(codes, key=rules.ORDER.index)


ARGS = "recipes.training_config.training_args"
MICRO = "training_config.training_args.micro_train_batch_size"
SMALL = ("recipes.elastic_policy.max_nodes=2", "~recipes.scale_config.3")
DATA = "recipes.training_config.datasets"
FILES = (f"{DATA}.train_data.file_path=/d/a", f"{DATA}.val_data.file_path=/d/b")
FIVE = (*LLAMA_K8S, ELASTIC, "++recipes.scale_config=auto", "recipes.elastic_policy.max_nodes=5")
EXTRA = (ELASTIC, "++recipes.extra_keys=[training_config.x,y.z]")
AT_3_NODES = "+recipes.scale_config.3.training_config.x=1"
DIRECTORY = "training_args.training_dir"
CASES = {
    "paths": (
        LLAMA_K8S,
        f"N107 {DIRECTORY}, datasets.train_data.file_path, datasets.val_data.file_path are empty: "
        "the container's own default applies",
    ),
    "path": ((*LLAMA_K8S, *FILES), f"N107 {DIRECTORY} is empty: the container's own default applies"),
    "no path": ((*LLAMA_K8S, *FILES, f"{ARGS}.training_dir=/d/c"), "N107"),
    "a step past it": (
        (*LLAMA_K8S, ELASTIC, "recipes.scale_config=null", f"{ARGS}.train_batch_size=224")
        + ("++recipes.elastic_policy.replica_increment_step=3", "recipes.elastic_policy.max_nodes=9"),
        "N108 the largest size is 7 nodes; max_nodes=9 adds none",
    ),
    "a container on Slurm": (
        (LLAMA_K8S[0], "cluster=slurm", *FILES),
        f"N107 {DIRECTORY} is empty: the container's own default applies",
    ),
    "no container on Slurm": (
        (LLAMA_K8S[0], "cluster=slurm", "cluster.trainer=open", "cluster.container_runtime=none", *FILES),
        "N107",
    ),
    "uneven shares with a micro batch": (
        (*LLAMA_K8S, ELASTIC, f"{ARGS}.micro_train_batch_size=1"),
        "N137 micro_train_batch_size=1 does not split the uneven shares at 3, 6 nodes, which take one pass; to split "
        f"them, if the training code does: recipes.scale_config.3.{MICRO}=1 recipes.scale_config.6.{MICRO}=1; to "
        "leave the sizes out: ~recipes.scale_config.3 ~recipes.scale_config.6",
    ),
    "uneven shares that fit": ((*LLAMA_K8S, ELASTIC, f"{ARGS}.micro_train_batch_size=8", *SMALL), "N137"),
    "uneven shares that are split": (
        (
            *LLAMA_K8S,
            ELASTIC,
            f"{ARGS}.micro_train_batch_size=1",
            *(f"recipes.scale_config.{n}.{MICRO}=1" for n in (3, 6)),
        ),
        "N137",
    ),
    "uneven shares that are left out": (
        (
            *LLAMA_K8S,
            ELASTIC,
            f"{ARGS}.micro_train_batch_size=1",
            "~recipes.scale_config.3",
            "~recipes.scale_config.6",
        ),
        "N137",
    ),
    "passes of sizes that are split": (
        (*LLAMA_K8S, ELASTIC, f"recipes.scale_config.3.{MICRO}=2"),
        "N113 uneven shares take several passes at 3 nodes: the training code must split them by "
        "micro_train_batch_size, as the built-in code does",
    ),
    "uneven shares without a given micro batch": ((*LLAMA_K8S, ELASTIC), "N137"),
    "uneven shares of the open trainer": (
        (*LLAMA_K8S, ELASTIC, f"{ARGS}.micro_train_batch_size=1", "cluster.trainer=open", *FILES),
        "N137",
    ),
    "no container": ((f"{ARGS}.training_dir=''",), "N107"),
    "key of a size": (
        (*LLAMA_K8S, *EXTRA, AT_3_NODES),
        "N127 extra_keys names y.z, which this recipe does not set",
    ),
    "starved": (
        (*FIVE, f"{ARGS}.train_batch_size=20"),
        "N110 3 to 5 nodes are omitted: some rank would get none of the 20 samples",
    ),
    "undivided": (
        (*FIVE, f"{ARGS}.ring_attn_size=16"),
        "N111 1, 3, 5 nodes are omitted: their ranks do not form complete sequence-parallel groups",
    ),
    "all divided": (FIVE, "N111"),
    "slower": (
        (*FIVE, "++recipes.planner.sizes=useful"),
        "N112 5 nodes are omitted: no faster than smaller ones",
    ),
    "passes": (
        (*FIVE, "instance_type=ml.g5.12xlarge"),
        "N113 uneven shares take several passes at 3 nodes: the training code must split them by "
        "micro_train_batch_size, as the built-in code does",
    ),
    "passes of a size that is left out": (
        (*FIVE, "instance_type=ml.g5.12xlarge", "~recipes.scale_config.3"),
        "N113",
    ),
    "passes of a planned size that a correction splits": (
        (*FIVE, f"+recipes.scale_config.3.{MICRO}=2"),
        "N113 uneven shares take several passes at 3 nodes: the training code must split them by "
        "micro_train_batch_size, as the built-in code does",
    ),
    "static": (
        (*LLAMA_K8S, "++recipes.scale_config=auto"),
        "N124 the job is static, so auto plans a single size: ++recipes.elastic_policy.is_elastic=true makes it "
        "elastic",
    ),
    "planner": (
        (*LLAMA_K8S, "++recipes.planner.sizes=useful"),
        "N115 recipes.planner has no effect: scale_config is not auto",
    ),
    "no planner": (LLAMA_K8S, "N115"),
    "planner in use": ((*FIVE, "++recipes.planner.sizes=useful"), "N115"),
}


@pytest.mark.parametrize(("overrides", "expected"), CASES.values(), ids=CASES)
def test_a_notice_names_what_it_is_about(prepare, overrides, expected):
    """A code without a message stands for no such notice."""
    code, _, message = expected.partition(" ")
    found = [notice.message for notice in prepare(*overrides).notices if notice.code == code]
    assert found == ([message] if message else [])


CHECKPOINTS = "++recipes.checkpointing.persistent.path=s3://bucket/x"
GRACEFUL = "recipes.elastic_policy.use_graceful_shutdown"


@pytest.mark.parametrize(
    ("overrides", "is_made"),
    [
        ((ELASTIC, f"{GRACEFUL}=true"), True),
        ((ELASTIC, f"{GRACEFUL}=false"), False),
        ((), False),
        ((CHECKPOINTS,), True),
    ],
    ids=["graceful", "killed", "static", "static with checkpoints"],
)
def test_checkpoints_are_forecast_where_a_notice_needs_it(context, overrides, is_made):
    checked = check(compose((*LLAMA_K8S, *overrides), Path(context.cwd), context.suffix))
    assert (rules._forecast(checked) is not None) is is_made


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("env_vars.V=2.10", "env_vars.V: 2.10 is passed as 2.1; to keep it: \"++env_vars.V='2.10'\""),
        ("env_vars.V=1e10", "env_vars.V: 1e10 is passed as 10000000000.0; to keep it: \"++env_vars.V='1e10'\""),
        ("++env_vars.V=1_000", "env_vars.V: 1_000 is passed as 1000; to keep it: \"++env_vars.V='1_000'\""),
        ("env_vars.V=TRUE", "env_vars.V: TRUE is passed as true; to keep it: \"++env_vars.V='TRUE'\""),
        ("env_vars={V: +5}", "env_vars.V: +5 is passed as 5; to keep it: \"++env_vars.V='+5'\""),
        (
            "+env_vars={D: 'release V: 1.50', V: 1.50, E: '$HOME'}",
            "env_vars.V: 1.50 is passed as 1.5; to keep it: \"++env_vars.V='1.50'\"",
        ),
        ("+env_vars={VV: 1.5, V: '1.50'}", None),
        ("env_vars.V='2.10'", None),
        ("env_vars.V=007", None),
        ("env_vars.V=1.2.3", None),
        ("env_vars.V=0.5", None),
        ("env_vars.V=-5", None),
        ("env_vars.V=true", None),
        (f"{ARGS}.learning_rate=1e-4", None),
    ],
)
def test_a_number_that_a_program_reads_as_another_text_is_a_notice(prepare, word, text):
    found = [notice.message for notice in prepare(*LLAMA_K8S, word).notices if notice.code == "N169"]
    assert found == ([text] if text else [])


@pytest.mark.parametrize(
    ("cluster", "word", "is_noticed"),
    [
        ("slurm", "++recipes.resources.cpu=4", True),
        ("k8s", "++recipes.resources.cpu=4", False),
        ("slurm", "++recipes.resources={memory: 64Gi}", True),
        ("slurm", "recipes.resources=null", False),
    ],
)
def test_keys_of_pods_are_noticed_where_there_are_none(prepare, cluster, word, is_noticed):
    words = [f"cluster={cluster}" if each == "cluster=k8s" else each for each in LLAMA_K8S]
    found = prepare(*words, word).notices
    said = [notice.message for notice in found if notice.code == "N165"]
    assert said == ([f"{word} changes nothing with cluster={cluster}"] if is_noticed else [])


def test_numbers_in_the_arguments_of_a_script_are_texts_too(prepare):
    words = "[{--v: 1.10}, {--n: [1_000, '2.0', 3]}, {--v: 1.5}, {--e: 1e3}, {--s: '1.10'}]"
    own = (*SCRIPT_K8S, f"training_cfg.script_args={words}")
    found = [notice.message for notice in prepare(*own).notices if notice.code == "N169"]
    key = "recipes.training_cfg.script_args"
    assert found == [
        f"{key} --v: 1.10 is passed as 1.1; to keep it: '1.10' in quotes",
        f"{key} --n: 1_000 is passed as 1000; to keep it: '1_000' in quotes",
        f"{key} --e: 1e3 is passed as 1000.0; to keep it: '1e3' in quotes",
    ]


def test_numbers_in_the_arguments_of_a_file_are_texts_too(prepare, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "defaults: [/recipes/training/custom/script@_here_, _self_]\n"
        "training_cfg:\n"
        "  entry_script: /a.py\n"
        "  run: {nodes: 1, ntasks_per_node: 8}\n"
        "  script_args: [{--on: yes}, {--v: 3.10}, {--s: '3.10'}, {--ok: 3}, {--n: [1, 1_0]}]\n"
    )
    words = ("recipes=mine.yaml", *SCRIPT_K8S[1:])
    found = [notice.message for notice in prepare(*words).notices if notice.code == "N169"]
    key, file = "recipes.training_cfg.script_args", tmp_path / "mine.yaml"
    assert found == [
        f"{key}.0.--on: yes of {file} is passed as true; to keep it: 'yes' in quotes",
        f"{key}.1.--v: 3.10 of {file} is passed as 3.1; to keep it: '3.10' in quotes",
        f"{key}.4.--n.1: 1_0 of {file} is passed as 10; to keep it: '1_0' in quotes",
    ]
    typed = prepare(*words, "training_cfg.script_args=[{--v: 2}]").notices
    assert [notice for notice in typed if notice.code == "N169"] == []


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("+env_vars.NODES=3", "env_vars.NODES=3 replaces 1, with which the launcher starts this job"),
        ("+env_vars.NODES=1", None),
        ("+env_vars.RANK=3", "env_vars.RANK has no effect: the agent sets RANK for each process"),
        ("+env_vars.MINE=3", None),
    ],
)
def test_a_variable_of_the_launchers_is_noticed(prepare, word, says):
    found = [notice.message for notice in prepare(*LLAMA_K8S, word).notices if notice.code == "N183"]
    assert found == ([says] if says else [])


@pytest.mark.parametrize(
    ("words", "is_noticed"),
    [
        (("cluster.scenario=bit-rot",), True),
        (("+cluster.events=[{at:{step:9},slow_checkpoint:{seconds:5}}]",), True),
        (("cluster.scenario=bit-rot", "recipes.elastic_policy.resize=restart"), False),
        (("cluster.scenario=worker-crash",), False),
        ((), False),
    ],
)
def test_an_event_about_a_checkpoint_that_is_never_made_is_noticed(prepare, words, is_noticed):
    found = [
        notice for notice in prepare("recipes=training/tiny/tiny_lm_cpu", *words).notices if notice.code == "N192"
    ]
    assert bool(found) is is_noticed
