"""Command lines that are nearly right: the Problem says what to type."""

import os
import shlex
import sys

import commands
import pytest
from conftest import ELASTIC, LLAMA, LLAMA_K8S, ROOT, SHORT

from launcher.config import hydra_errors, hydra_overrides, overrides
from launcher.config.collection import clusters

FULL = LLAMA.removesuffix("lora") + "fft"
"""A recipe without an elastic_policy."""
NOVA = "fine-tuning/nova/nova_1_0/nova_pro/SFT/nova_pro_1_0_p5_gpu_sft"


@pytest.mark.crossed
@pytest.mark.parametrize(
    ("override", "place"),
    [
        ("trainer.num_nodes=2", "recipes.trainer.num_nodes"),
        ("elastic_policy.is_elastic=true", "recipes.elastic_policy.is_elastic"),
        ("++elastic_policy.is_elastic=true", "recipes.elastic_policy.is_elastic"),
        ("training_args.seed=3", "recipes.training_config.training_args.seed"),
        ("training_config.training_args.seed=3", "recipes.training_config.training_args.seed"),
        ("recipes.training_args.seed=3", "recipes.training_config.training_args"),
        ("scale_config=auto", "recipes.scale_config"),
        ("scale_config.3.training_config.training_args.seed=1", "recipes.scale_config.3"),
        ("label_selector.required.zone=[a]", "cluster.label_selector.required.zone"),
        ("namespace=team", "cluster.namespace"),
        ("num_nodes=2", "recipes.trainer.num_nodes"),
        ("run.name=x", "recipes.run.name"),
        ("~trainer.num_nodes", "~recipes.trainer.num_nodes"),
        ("recipe=llama", "recipes?"),
        ("clusters=k8s", "cluster?"),
    ],
)
@pytest.mark.parametrize("recipe", [LLAMA, FULL], ids=["elastic", "static"])
def test_a_key_without_what_stands_before_it_is_shown_whole(recipe, override, place, problems):
    (problem,) = problems(f"recipes={recipe}", "cluster=k8s", override)
    assert problem.code in ("E101", "E008") and place in problem.remedy


def test_variables_of_the_job_stand_at_the_top(prepare):
    assert prepare(*LLAMA_K8S, "env_vars.A=1").config["env_vars"]["A"] == 1


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("recipes.elastic_policy.is_elastic=yes", "did you mean recipes.elastic_policy.is_elastic=true?"),
        ("recipes.elastic_policy.is_elastic=Off", "did you mean recipes.elastic_policy.is_elastic=false?"),
        ("recipes.elastic_policy.is_elastic=0", "did you mean recipes.elastic_policy.is_elastic=false?"),
        ("recipes.elastic_policy.is_elastic=maybe", None),
        ("recipes.trainer.num_nodes='4'", "did you mean recipes.trainer.num_nodes=4?"),
        ("recipes.trainer.num_nodes='4.5'", None),
        ("recipes.trainer.num_nodes=four", None),
        (
            "recipes.training_config.training_args.learning_rate='1e-4'",
            "did you mean recipes.training_config.training_args.learning_rate=1e-4?",
        ),
        ("recipes.elastic_policy.resize=inplace", "did you mean in_place?"),
        ("recipes.run.name=7", "\"recipes.run.name='7'\""),
    ],
)
def test_a_value_of_another_type_is_shown_as_it_was_meant(override, remedy, problems):
    (problem,) = problems(*LLAMA_K8S, override)
    assert (problem.code, problem.remedy) == ("E102", remedy)


@pytest.mark.parametrize(
    ("words", "remedies"),
    [
        (["recipes", "=", LLAMA], [f"recipes={LLAMA}"]),
        (["recipes=", LLAMA], [f"recipes={LLAMA}"]),
        (["recipes", f"={LLAMA}"], [f"recipes={LLAMA}"]),
        (["recipes", LLAMA, "cluster", "k8s"], [f"recipes={LLAMA}", "cluster=k8s"]),
        (["recipes.run.name", "=", "my run"], ["\"recipes.run.name='my run'\""]),
        (["recipes.run.name", "x"], ["recipes.run.name=x"]),
        (["cluster", "=", "k8s", "a=["], ["cluster=k8s", None]),
        ([LLAMA], [f"recipes={LLAMA}"]),
        ([SHORT], [f"recipes={LLAMA}"]),
        (["mine.yaml"], ["recipes=mine.yaml"]),
        (["k8s"], ["cluster=k8s"]),
        (["dry_run"], ["dry_run=true"]),
        (["cluster:k8s"], ["cluster=…"]),
        (["cluster:", "k8s", "recipes:", LLAMA], ["cluster=k8s", f"recipes={LLAMA}"]),
        (["recipes"], ["recipes list"]),
        (["="], [None]),
        (["=", "x"], [None, None]),
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_words_that_are_nearly_an_override_get_it_as_their_remedy(words, remedies, problems):
    found = problems(*words)
    assert {problem.code for problem in found} == {"E001"} and len(found) == len(remedies)
    for problem, remedy in zip(found, remedies, strict=True):
        assert remedy is None or remedy in problem.remedy


@pytest.mark.parametrize("words", [
        ["env_vars.HF_TOKEN", "=", "hunter2"], ["env_vars.HF_TOKEN", "hunter2"], ["env_vars.HF_TOKEN:", "hunter2"],
        ["HF_TOKEN", "hunter2"], ["HF_TOKEN:", "hunter2"], ["dbPass:", "hunter2"],
    ],
)  # fmt: skip
def test_a_secret_beside_a_space_is_not_repeated(words, problems):
    assert "hunter2" not in "".join(map(str, problems(*words)))


def main(*words: str, cwd) -> tuple[int, str]:
    result = commands.run(
        [sys.executable, ROOT / "main.py", *words], cwd=cwd, capture_output=True, text=True, timeout=200,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return result.returncode, result.stderr


RATE = "recipes.training_config.training_args.learning_rate"
EACH = "recipes run --multirun launches a job for each"
ON_SLURM = ("recipes=training/tiny/tiny_lm_cpu", "cluster=slurm", "instance_type=m5.2xlarge")


@pytest.mark.parametrize(
    ("override", "forms"),
    [
        ("cluster.mail_type=END,FAIL", ["cluster.mail_type=[END,FAIL] is a list"]),
        ("cluster.partition=a,b", ["cluster.partition='\"a,b\"' is a text"]),
        ("after=a,b", ["after=[a,b] is a list", "after='\"a,b\"' is a text"]),
        (f"{RATE}=0.1,0.2", []),
        ("training_cfg.script_args=a,b", []),
        ("cluster.command=a,b", ["cluster.command=[a,b] is a list"]),
        ("env_vars.A=a,b", ["env_vars.A='\"a,b\"' is a text"]),
        ("recipes.scale_config.4.trainer.num_nodes=1,2", []),
    ],
)
def test_values_after_commas_are_offered_as_what_the_key_takes(override, forms, problems):
    (problem,) = problems(*ON_SLURM, override)
    assert (problem.code, problem.remedy) == ("E002", "; ".join((*forms, EACH)))


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("training_cfg.script_args=[{--u: ü}]", """'training_cfg.script_args=[{--u: "ü"}]'"""),
        ("training_cfg.script_args=[{--u: ü, --v: 1}]", """'training_cfg.script_args=[{--u: "ü", --v: 1}]'"""),
        ("training_cfg.script_args=[--u=ü, --v]", """'training_cfg.script_args=[{--u: "ü"}, {--v: null}]'"""),
        ("env_vars={B: x=ü, C: 1}", """'env_vars={B: "x=ü", C: 1}'"""),
        ("cluster.setup=[echo ü; b, 'c d']", """'cluster.setup=["echo ü; b", '"'"'c d'"'"']'"""),
        ("cluster.setup=[export A=ü]", """'cluster.setup=["export A=ü"]'"""),
        ("env_vars={HF_TOKEN: ü}", overrides.REMEDY_SYNTAX),
        ("env_vars={ü: b}", overrides.REMEDY_SYNTAX),
    ],
)
def test_a_text_in_a_list_or_mapping_gets_its_quotes(override, remedy, problems):
    (problem,) = problems(*ON_SLURM, override)
    assert (problem.code, problem.remedy) == ("E001", remedy)
    assert remedy == overrides.REMEDY_SYNTAX or hydra_overrides.parsed(*shlex.split(remedy))


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("cluster.mail_type=END", "cluster.mail_type=[END]"),
        ("cluster.mail_type='END,FAIL'", "cluster.mail_type=[END,FAIL]"),
        ("cluster.mail_type=DONE", None),
        ("cluster.mail_type=[DONE]", None),
        ("cluster.mail_type=[NON]", "did you mean NONE?"),
        ("cluster.setup=module load cuda", '"cluster.setup=[module load cuda]"'),
        ("cluster.setup='a; b'", "\"cluster.setup=['a; b']\""),
        ("cluster.setup=5", None),
    ],
)
def test_a_word_in_place_of_a_list_gets_the_list(override, remedy, problems):
    (problem,) = problems(*ON_SLURM, override)
    assert (problem.code, problem.remedy) == ("E102", remedy)


def test_a_command_in_place_of_a_list_gets_its_words(problems):
    (problem,) = problems("cluster.command=python x.py")
    assert (problem.code, problem.remedy) == ("E102", "cluster.command=[python,x.py]")


def test_a_fault_names_the_null_that_was_given(problems):
    (problem,) = problems("recipes.trainer.devices=null")
    assert problem.message == "should be a valid integer, not null"


@pytest.mark.parametrize(
    ("words", "allowed", "remedy"),
    [
        (("++env_vars.HF_TOKEN={secret: hf}",), "{env: NAME}", '"env_vars.HF_TOKEN={env: NAME}"'),
        (
            (*LLAMA_K8S, "++env_vars.A={secret: hf}"),
            "{secretKeyRef: {name: …, key: …}}",
            '"env_vars.A={secretKeyRef: {name: …, key: …}}"',
        ),
        (
            (f"recipes={NOVA}", "cluster=k8s", "recipes.training_config.lr=5", "recipes.training_config.zz=1"),
            "model, max_length, trainer, global_batch_size",
            None,
        ),
    ],
    ids=["reference", "reference-k8s", "program"],
)
def test_an_unknown_key_gets_those_of_its_section(words, allowed, remedy, problems):
    problem = next(each for each in problems(*words) if each.code == "E101")
    assert (problem.allowed, problem.remedy) == (allowed, remedy)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "remedies"),
    [
        (["--recipes", LLAMA], [f"recipes={LLAMA}"]),
        (
            [f"--recipes={LLAMA}", "--cluster", "k8s", "--dry-run"],
            [f"recipes={LLAMA}", "cluster=k8s", "dry_run=true"],
        ),
        (["-recipes", LLAMA], [f"recipes={LLAMA}"]),
        (["--recipe", LLAMA], [f"recipes={LLAMA}"]),
        (["--recipes.trainer.num_nodes=2"], ["recipes.trainer.num_nodes=2"]),
        (["--multirun", "recipes", "=", LLAMA], [f"recipes={LLAMA}"]),
        (["--nonsense"], ["--hydra-help"]),
        (["a=1", "--my-token", "hunter2"], ["--hydra-help"]),
    ],
    ids=lambda words: " ".join(words),
)
def test_a_flag_that_is_a_key_gets_the_override(words, remedies, tmp_path):
    code, err = main(*words, cwd=tmp_path)
    assert code == 2 and err.count("remedy:") == len(remedies) and "hunter2" not in err
    assert [remedy for remedy in remedies if f"remedy: {remedy}" not in err.replace("recipes run ", "")] == []


def test_a_flag_of_a_command_that_is_a_key_gets_the_override(recipes):
    code, _, err = recipes("plan", SHORT, "--dry-run")
    assert code == 2 and "did you mean dry_run=true?" in err


def test_a_cluster_unlike_any_gets_no_suggestion(problems):
    (problem,) = problems("cluster=quantum")
    assert "sm_jobs" in problem.allowed and problem.remedy is None


TINY = "training/tiny/tiny_lm_cpu"

FULL = "fine-tuning/llama/llmft_llama3_1_8b_instruct_seq4k_gpu_sft_fft"
ON_K8S = (f"recipes={LLAMA}", "cluster=k8s")
JOB = (
    "+cluster.sm_jobs_config.role=arn:aws:iam::123456789012:role/train",
    "+cluster.sm_jobs_config.output_path=s3://results/out",
)
SLIPS = [
    ((), "trainer.num_nodes=2", "recipes.trainer.num_nodes"),
    ((), "nodes=2", "recipes.trainer.num_nodes"),
    ((), "num_nodes=2", "recipes.trainer.num_nodes"),
    ((), "cluster.num_nodes=2", "recipes.trainer.num_nodes"),
    ((), "nnodes=2", "recipes.trainer.num_nodes"),
    ((), "epochs=3", "recipes.training_config.training_args.max_epochs"),
    ((), "num_train_epochs=3", "recipes.training_config.training_args.max_epochs"),
    ((), "lr=0.001", "recipes.training_config.training_args.learning_rate"),
    ((), "recipes.lr=0.001", "recipes.training_config.training_args.learning_rate"),
    ((), "learning_rate=0.001", "recipes.training_config.training_args.learning_rate"),
    ((), "batch_size=32", "recipes.training_config.training_args.train_batch_size"),
    ((), "gpus=2", "recipes.trainer.devices"),
    ((), "seed=3", "recipes.training_config.training_args.seed"),
    ((), "output=/x", "base_results_dir"),
    ((), "elastic=true", "recipes.elastic_policy.is_elastic"),
    ((), "dryrun=true", "dry_run"),
    ((), "name=foo", "recipes.run.name"),
    ((), "warmup=0.1", "recipes.training_config.training_args.lr_warmup_ratio"),
    ((), "grad_clip=1.0", "recipes.training_config.training_args.max_norm"),
    ((), "save_interval=5", "recipes.training_config.training_args.save_steps"),
    ((*ON_K8S, ELASTIC), "trainer.num_nodes=2", "recipes.trainer.num_nodes"),
    (ON_K8S, "model=/m", "recipes.training_config.model_config.model_name_or_path"),
    (ON_K8S, "max_seq_len=2048", "recipes.training_config.training_args.max_len"),
    (ON_K8S, "lora_rank=8", "recipes.training_config.model_config.peft_config.r"),
    (ON_K8S, "bs=64", "recipes.training_config.training_args.train_batch_size"),
    (ON_K8S, "image=me/x:1", "container"),
    (ON_K8S, "namespace=team", "cluster.namespace"),
    (ON_K8S, "queue=q", "cluster.queue_name"),
    (ON_K8S, "instance=ml.p5.48xlarge", "instance_type"),
    ((f"recipes={LLAMA}", "container=me/x:1"), "cluster=kubernetes", "cluster=k8s"),
    ((f"recipes={LLAMA}", "container=me/x:1"), "cluster=eks", "cluster=k8s"),
    ((f"recipes={LLAMA}", "container=me/x:1"), "cluster=pbs", "cluster=slurm"),
    ((f"recipes={LLAMA}", "container=me/x:1", *JOB), "cluster=sagemaker", "cluster=sm_jobs"),
    ((), "cluster=localhost", "cluster=local"),
    ((), f"recipes={TINY}.yaml", f"recipes={TINY}"),
    ((), f"recipes=recipes/{TINY}.yaml", f"recipes={TINY}"),
    ((), "recipes=tiny_lm_cpu.yaml", f"recipes={TINY}"),
    ((), "recipes=tiny_lm_cp", f"recipes={TINY}"),
]


@pytest.mark.parametrize(("others", "slip", "meant"), SLIPS, ids=[f"{len(each[0])} {each[1]}" for each in SLIPS])
def test_the_suggestion_for_a_slip_is_right_and_compiles(others, slip, meant, problems, prepare):
    (problem,) = problems(*others, slip)
    suggested = problem.remedy.removeprefix("did you mean ").rstrip("?").split(" or ")
    assert suggested[0] == meant
    for key in suggested:
        prepare(*others, key if "=" in key else f"{key}={slip.partition('=')[2]}")


@pytest.mark.parametrize("slip", ["lr=abc", "nodes=-1", "cluster.trainer.num_nodes=2", "trainer.num_nodes=[1]"])
def test_a_suggestion_that_would_be_refused_is_not_given(slip, problems):
    assert all("did you mean" not in str(problem.remedy) for problem in problems(slip))


@pytest.mark.parametrize(
    ("choice", "remedy"),
    [
        ("recipes=llama", "recipes list llama shows the"),
        ("recipes=", "recipes list shows all recipes"),
        ("recipes=null", "recipes list shows all recipes"),
        ("recipes=zzz", "recipes list shows all recipes"),
        (f"recipes={SHORT}", f"recipes={LLAMA}"),
        ("cluster=", "cluster="),
        ("cluster={a:1}", "one of k8s, local, ray, slurm, sm_jobs"),
    ],
    ids=["part", "empty", "null", "unlike_any", "last_word", "cluster", "cluster_mapping"],
)
def test_a_choice_that_is_no_name_says_where_names_are(choice, remedy, problems):
    (problem,) = problems(choice)
    assert problem.code == "E005" and remedy in problem.remedy


@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        ("cluster=kubernets", "cluster=k8s"),
        ("cluster=sagemakr", "cluster=sm_jobs"),
        ("cluster_type=kubernets", "cluster=k8s"),
        ("cluster=slrum", "cluster=slurm"),
        ("+base/elastic@recipes=polcy", "base/elastic=policy"),
        ("+base/elastc@recipes=policy", "base/elastic?"),
    ],
)
def test_a_misspelt_choice_of_any_group_gets_the_nearest_one(choice, meant, problems):
    (problem,) = problems(f"recipes={LLAMA}", choice)
    assert problem.code == "E005" and "did you mean" in problem.remedy and meant in problem.remedy


def test_a_slip_in_any_name_of_a_cluster_leads_to_a_cluster():
    names = (*clusters(), *hydra_errors._CLUSTER_NAMED)
    slips = {name: name[: len(name) // 2] + name[len(name) // 2 + 1 :] for name in names if len(name) > 5}
    unmet = {name for name, slip in slips.items() if not hydra_errors._near("cluster", slip, clusters())}
    assert len(slips) > 20 and unmet == set()


@pytest.mark.parametrize("slip", ["recipes.trainer.num_node=2", "recipes.training_config.training_args.sed=3"])
def test_a_misspelt_key_gets_the_one_beside_it(slip, problems):
    (problem,) = problems(slip)
    assert problem.remedy in ("did you mean num_nodes?", "did you mean seed?")


VERL = "fine-tuning/qwen/verl-grpo-rlvr-qwen-3-8b-lora"
PARTS = "recipes.training_config.actor_rollout_ref"


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        (f"{PARTS}.rollout.temprature=1", f"{PARTS}.rollout.temperature"),
        (f"{PARTS}.actor.optm.lr=1", f"{PARTS}.actor.optim.lr"),
        ("recipes.training_config.trainr.nnodes=1", "recipes.training_config.trainer.nnodes"),
    ],
    ids=["key", "section", "upper-section"],
)
def test_a_misspelt_key_of_a_program_gets_the_one_beside_it(slip, meant, problems):
    data = "recipes.training_config.data.train_files=/data/train.parquet"
    (problem,) = problems(f"recipes={VERL}", "cluster=k8s", data, slip)
    assert problem.code == "E101" and problem.remedy.startswith(f"did you mean {meant}? If not, declare it")
