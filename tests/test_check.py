"""Each fault a tired user may type gets its Problem; all of them in one run."""

import shlex

import pytest
from conftest import ELASTIC, LLAMA_K8S

ARGS = "recipes.training_config.training_args"
FSDP = f"{ARGS}.strategy.fsdp_config"
MODEL = "recipes.training_config.model_config"
PEFT = f"{MODEL}.peft_config"
SCALE = "++recipes.scale_config"
POLICY = "recipes.elastic_policy"
TIERS = f"++{POLICY}.preemption={{{{base_priority_class:{{}},elastic_priority_class:{{}}}}}}"

TOKEN = "hf_" + 34 * "a"

FAULTS = [
    ((f"+env_vars.OPENAI={TOKEN}",), "E609", "env_vars.OPENAI", "in clear"),
    ((f"+recipes.pre_script=['login {TOKEN}']",), "E609", "recipes.pre_script", "in clear"),
    ((f"cluster.annotations={{a: AKIA{16 * 'A'}}}",), "E609", "cluster.annotations.a", "in clear"),
    (("env_vars.HTTPS_PROXY=http://u:abc123@proxy:80",), "E606", "env_vars.HTTPS_PROXY", "credentials"),
    (
        ("++recipes.run.api_key=abc123", "++recipes.extra_keys=[run.api_key]"),
        "E607",
        "recipes.run.api_key",
        "in clear",
    ),
    (("cluster.label_selector.required={a: []}",), "E102", "cluster.label_selector.required.a", "at least 1"),
    (("cluster.command=['']",), "E102", "cluster.command.0", "at least 1"),
    (("cluster.security_context={capabilities: {}}",), "E310", "cluster.security_context.capabilities", "empty"),
    (("recipes.instance_types.a=x",), "E003", "recipes.instance_types.a", ""),
    (("hydra.searchpath=/tmp",), "E009", "hydra.searchpath", "list of folders"),
    (("hydra.searchpath=[/nowhere/at/all]",), "E009", "hydra.searchpath", "no such folder"),
    (("hydra.verbose=true",), "E009", "hydra.verbose", "no launch reads"),
    ((f"{SCALE}.3.trainer.devices=4",), "E214", "recipes.scale_config.3.trainer.devices", "between sizes"),
    ((f"{SCALE}.3.run.name=x",), "E214", "recipes.scale_config.3.run.name", "between sizes"),
    (
        (
            "cluster.volumes=[{volumeName: claim-0, hostPath: /a, mountPath: /a}]",
            "cluster.persistent_volume_claims=[{claimName: c, mountPath: /c}]",
        ),
        "E306",
        None,
        "claim-0",
    ),
    (
        (
            "cluster.volumes=[{volumeName: a, hostPath: /a, mountPath: /m},"
            " {volumeName: b, hostPath: /a, mountPath: /m/}]",
        ),
        "E313",
        "cluster.volumes.1.mountPath",
        "twice",
    ),
    ((f"{POLICY}.max_nodes=99999999999",), "E102", f"{POLICY}.max_nodes", "100000"),
    ((f"{ARGS}.learning_rate=inf",), "E102", f"{ARGS}.learning_rate", "finite"),
    ((f"{ARGS}.weight_decay=-0.1",), "E102", f"{ARGS}.weight_decay", "equal to 0"),
    ((f"{PEFT}.lora_dropout=5",), "E102", f"{PEFT}.lora_dropout", "equal to 1"),
    (("++recipes.resources={hugepages: 5120Mi}",), "E309", "recipes.resources.hugepages", "memory"),
    (("git.token={secretKeyRef: {name: My Secret, key: b}}",), "E102", "git.token.secretKeyRef.name", "a DNS name"),
    (("git.token={secretKeyRef: {name: a, key: b c}}",), "E102", "git.token.secretKeyRef.key", "a key of a Secret"),
    (("recipes.run.hf_access_token={secretKeyRef: {name: HF_S, key: a}}",), "E102", None, "lower-case letters"),
    (("env_vars.MY_TOKEN={secretKeyRef: {name: HF_S, key: a}}",), "E102", None, "lower-case letters"),
    (("notify=[{env: 'S L'}]",), "E102", "notify.0.env", "a variable's name"),
    (("notify=[{env: 'https://ab:c@d'}]",), "E601", "notify.0.env", "notify=[{env:NAME}]"),
    (
        ("git.token={secretKeyRef: {name: 'Tr0ub4dor&3', key: b}}",),
        "E601",
        "git.token.secretKeyRef.name",
        '"git.token={secretKeyRef: {name: …, key: …}}"',
    ),
    (
        ("git.token={secretKeyRef: {name: ghp_abcdefghijklmnopqrstuvwxyz0123456789, key: b}}",),
        "E601",
        "git.token.secretKeyRef.name",
        '"git.token={secretKeyRef: {name: …, key: …}}"',
    ),
    (("cluster.custom_labels={kueue.x-k8s.io/queue-name: q}",), "E303", None, "cluster.queue_name"),
    (("recipes.run=null",), "E102", "recipes.run", "set by recipes.run=null"),
    (("git.commit=1234567",), "E102", "git.commit", "\"git.commit='1234567'\""),
    (("base_results_dir=''",), "E102", "base_results_dir", "at least 1"),
    (("recipes.scale_config.3=null", ELASTIC), "E203", "recipes.scale_config.3", "a mapping"),
    ((f"{ARGS}.ring_attn_size=3", ELASTIC), "E220", f"{ARGS}.ring_attn_size", "a divisor of 8"),
    (("recipes.trainer.devices=16",), "E232", "recipes.trainer.devices", "1 to 8"),
    (("++recipes.trainer=null",), "E102", "recipes.trainer", "mapping"),
    ((f"++{POLICY}=abc",), "E102", POLICY, "mapping"),
    (("recipes.training_config=null",), "E102", "recipes.training_config", "mapping"),
    (("recipes.scale_config.3=5",), "E203", "recipes.scale_config.3", "a mapping"),
    ((ELASTIC, f"{SCALE}.4.training_config.training_args.adam_betas=[0.9,x]"), "E102", None, "scale_config.4"),
    ((f"{ARGS}.learning_rate=abc", ELASTIC), "E102", f"{ARGS}.learning_rate", "set by recipes.training_config"),
    (("recipes.training_config.model_config.generation_cfg.max_new_tokens=abc",), "E102", None, "whole number"),
    (
        ("++recipes.run={hf_access_token: hf_abc123}",),
        "E601",
        "recipes.run.hf_access_token",
        "set by ++recipes.run=…",
    ),
    (("git.token={secretKeyRef: ghp_abc123}",), "E601", None, '"git.token={secretKeyRef: {name'),
    # overrides, code, path, a word of the text
    ((f"++{POLICY[:-1]}.is_elastic=true",), "E101", "recipes.elastic_polic", "did you mean elastic_policy"),
    ((f"++{ARGS}.learning_rat=1",), "E101", f"{ARGS}.learning_rat", "did you mean learning_rate"),
    (
        (f"{SCALE}.2.training_config.training_arg.seed=1",),
        "E101",
        "recipes.scale_config.2.training_config.training_arg",
        "",
    ),
    (("clustr=k8s",), "E101", "clustr", "did you mean"),
    (("cluster.namespce=x",), "E101", "cluster.namespce", "did you mean namespace"),
    ((f"{POLICY}.is_elastic=false_",), "E102", f"{POLICY}.is_elastic", "true or false"),
    ((f"{POLICY}.is_elastic='false'",), "E102", f"{POLICY}.is_elastic", "boolean"),
    ((f"{POLICY}.is_elastic='\"false\"'",), "E102", f"{POLICY}.is_elastic", "true or false"),
    ((f"{POLICY}.scaling_timeout=abc",), "E102", f"{POLICY}.scaling_timeout", "whole number"),
    ((f"{POLICY}.min_nodes=-3",), "E102", f"{POLICY}.min_nodes", "greater than or equal to 1"),
    ((f"{POLICY}.min_nodes=1.5",), "E102", f"{POLICY}.min_nodes", "whole number"),
    ((f"~{ARGS}.seed",), "E103", f"{ARGS}.seed", "missing"),
    (("recipes.run.model_type=llmft",), "E104", "recipes.run.model_type", "llm_finetuning_aws"),
    ((f"{POLICY}.min_nodes=4", f"{POLICY}.max_nodes=2"), "E201", f"{POLICY}.min_nodes", "more than max_nodes"),
    ((ELASTIC, f"++{POLICY}.replica_increment_step=2"), "E202", f"{POLICY}.replica_increment_step", "together"),
    ((ELASTIC, "~recipes.scale_config"), "E202", "recipes.scale_config", "replica_increment_step"),
    ((f"{SCALE}.abc.trainer.num_nodes=1",), "E203", "recipes.scale_config.abc", "number of nodes"),
    ((f"{SCALE}.0.trainer.num_nodes=1",), "E203", "recipes.scale_config.0", "number of nodes"),
    ((f"{SCALE}.5.trainer.num_nodes=6",), "E204", "recipes.scale_config.5.trainer.num_nodes", "num_nodes=6"),
    ((ELASTIC, f"{SCALE}.32.trainer.num_nodes=32"), "E205", "recipes.scale_config.32", "outside"),
    ((ELASTIC, f"{POLICY}.min_nodes=9", f"{POLICY}.max_nodes=10"), "E205", f"{POLICY}.min_nodes", "no size is left"),
    ((ELASTIC, "recipes.trainer.num_nodes=5"), "E206", "recipes.trainer.num_nodes", "1, 2, 3, 4, 6, 8, 16"),
    ((TIERS.format("high", "low"),), "E215", f"{POLICY}.preemption", "its size is fixed"),
    ((ELASTIC, TIERS.format("high", "low"), f"{POLICY}.max_nodes=1"), "E215", f"{POLICY}.preemption", "is fixed"),
    (
        (ELASTIC, TIERS.format("high", "low"), "~recipes.scale_config.1"),
        "E215",
        f"{POLICY}.preemption",
        "allowed: min_nodes=2",
    ),
    ((ELASTIC, TIERS.format("a", "a")), "E216", f"{POLICY}.preemption.elastic_priority_class", "preempted alike"),
    (
        (ELASTIC, TIERS.format("high", "low"), "cluster.priority_class_name=x"),
        "E217",
        "cluster.priority_class_name",
        "names the class of each part",
    ),
    ((ELASTIC, TIERS.format("A_b", "low")), "E307", f"{POLICY}.preemption.base_priority_class", "DNS name"),
    ((ELASTIC, TIERS.format("5", "low")), "E102", f"{POLICY}.preemption.base_priority_class", "a text"),
    ((ELASTIC, f"++{POLICY}.preemption.base_priority_class=a"), "E103", None, "elastic_priority_class"),
    ((ELASTIC, "++recipes.checkpointless=true"), "E207", "recipes.checkpointless", "Using elastic training"),
    (
        (ELASTIC, "++recipes.checkpointing.memory.frequency=10"),
        "E208",
        "recipes.checkpointing.memory",
        "Using elastic training",
    ),
    ((ELASTIC, "cluster.label_selector={required:{karpenter.sh/capacity-type:[spot]}}"), "E209", None, "Spot"),
    ((ELASTIC, "cluster.use_hyperpod_pytorch_job=false"), "E210", "cluster.use_hyperpod_pytorch_job", "Kubeflow"),
    ((ELASTIC, f"{ARGS}.override_training_dir=false"), "E212", f"{ARGS}.override_training_dir", "resumes"),
    ((ELASTIC, f"{ARGS}.load_checkpoint=false"), "E212", f"{ARGS}.load_checkpoint", "from the start"),
    (
        (
            "recipes.run.hf_access_token={secretKeyRef: {name: a, key: b}}",
            "env_vars.HF_TOKEN={secretKeyRef: {name: c, key: d}}",
        ),
        "E616",
        "env_vars.HF_TOKEN",
        "another secret",
    ),
    ((f"{ARGS}.trainer_type=dpo",), "E268", f"{ARGS}.trainer_type", "TrainingSFTSampleConverter"),
    (
        (f"{PEFT}.target_modules=q_proj",),
        "E466",
        f"{PEFT}.target_modules",
        f"layers.0.self_attn.q_proj\n     value: 'q_proj'\n     allowed: all-linear, a list of names, or a regular "
        f"expression of complete names\n     remedy: {PEFT}.target_modules=[q_proj]",
    ),
    (
        (f"{PEFT}.target_modules=[query,all-linear]",),
        "E466",
        f"{PEFT}.target_modules",
        f"names: down_proj, gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj\n     remedy: {PEFT}.target",
    ),
    (
        (f"{PEFT}.target_modules=[q_proj]", f"{PEFT}.exclude_modules='.*'"),
        "E466",
        f"{PEFT}.exclude_modules",
        "leaves no layer of meta-llama/Llama-3.1-8B-Instruct with an adapter\n     value: '.*'",
    ),
    ((f"{PEFT}.target_modules='.*(q'",), "E102", f"{PEFT}.target_modules", "a regular expression: missing )"),
    ((f"{PEFT}.target_modules='a{{99999999999}}'",), "E102", f"{PEFT}.target_modules", "number is too large"),
    ((f"{ARGS}.beta=-1",), "E102", f"{ARGS}.beta", "greater than 0"),
    ((f"{FSDP}.sharding_strategy=FULL_SHRD",), "E102", f"{FSDP}.sharding_strategy", "did you mean FULL_SHARD?"),
    (("cluster_type=slurm",), "E213", "cluster_type", "cluster=k8s"),
    ((f"{ARGS}.ring_attn_size=3",), "E220", f"{ARGS}.ring_attn_size", "groups of 3"),
    (
        (f"{ARGS}.train_batch_size=12",),
        "E221",
        f"{ARGS}.train_batch_size",
        f"{ARGS}.train_batch_size=8 or {ARGS}.train_batch_size=16",
    ),
    ((f"{ARGS}.micro_train_batch_size=2",), "E221", f"{ARGS}.train_batch_size", "micro_train_batch_size=1"),
    (("recipes.trainer.num_nodes=3",), "E221", f"{ARGS}.train_batch_size", "24 data-parallel ranks"),
    ((f"++{ARGS}.uneven_batch.use_uneven_batch=true",), "E222", f"{ARGS}.uneven_batch", "lacks"),
    (("instance_type=p5.49xlarge",), "E230", "instance_type", "not an instance type"),
    ((f"{ARGS}.seed=-5",), "E102", f"{ARGS}.seed", "greater than or equal to 0"),
    ((f"{ARGS}.seed=99999999999999999999",), "E102", f"{ARGS}.seed", "less than or equal to 4294967295"),
    ((f"{ARGS}.save_steps=-5",), "E102", f"{ARGS}.save_steps", "greater than or equal to -1"),
    ((f"{ARGS}.eval_steps=-2",), "E102", f"{ARGS}.eval_steps", "greater than or equal to -1"),
    (
        ("cluster.tolerations=[{name: a, operator: Exists}]",),
        "E101",
        "cluster.tolerations.0.name",
        "allowed: effect, key, operator, tolerationSeconds, value\n     set by",
    ),
    (("instance_type=ml.trn1.32xlarge",), "E231", "instance_type", "not among"),
    (("instance_type=g5.12xlarge", "recipes.trainer.devices=8"), "E232", "recipes.trainer.devices", "4 accelerators"),
    (("recipes.run.name=My_Run.Name",), "E301", "recipes.run.name", "recipes.run.name=my-run-name"),
    (
        ("recipes.training_config.model_config.model_name_or_path=''",),
        "E112",
        "recipes.training_config.model_config.model_name_or_path",
        "value: ''\n     remedy: recipes.training_config.model_config.model_name_or_path=meta-llama/",
    ),
    (("cluster.namespace=Team_A",), "E302", "cluster.namespace", "DNS label"),
    (("cluster.custom_labels={a b: c}",), "E303", "cluster.custom_labels.a b", "label key"),
    (("cluster.custom_labels={a: 'b c'}",), "E303", "cluster.custom_labels.a", "label value"),
    (("cluster.custom_labels={x.k8s.io/y: c}",), "E303", None, "reserved"),
    (("cluster.custom_labels={recipe-launcher/job: other}",), "E303", None, "reserved"),
    (("cluster.annotations={recipe-launcher/digest: abc}",), "E304", None, "reserved"),
    (("cluster.annotations={kueue.x-k8s.io/elastic-job: 'true'}",), "E304", None, "other kinds of job"),
    (("container='Not An Image'",), "E305", "container", "image reference"),
    (("container=null",), "E305", "container", "null or empty, but a pod needs an image\n     remedy: leave it out"),
    (("cluster.pullPolicy=Sometimes",), "E102", "cluster.pullPolicy", "IfNotPresent"),
    (("cluster.restartPolicy=Maybe",), "E102", "cluster.restartPolicy", "OnFailure"),
    (("cluster.cleanPodPolicy=Sometimes",), "E102", "cluster.cleanPodPolicy", "OnlyComplete"),
    (("cluster.volumes=[{volumeName: A, hostPath: /a, mountPath: /a}]",), "E306", "cluster.volumes.0.volumeName", ""),
    (
        ("+cluster.persistent_volume_claims.0.claimName=c", "+cluster.persistent_volume_claims.0.mountPath=d"),
        "E313",
        "cluster.persistent_volume_claims.0.mountPath",
        "remedy: /d",
    ),
    (("cluster.service_account_name=A_b",), "E307", "cluster.service_account_name", "DNS name"),
    (
        ("cluster.label_selector={preferred:{a:[b]},weights:[1,2]}",),
        "E308",
        "cluster.label_selector.weights",
        "one each",
    ),
    (("++recipes.resources.memory=lots",), "E309", "recipes.resources.memory", "quantity"),
    (("cluster.security_context={privilege: true}",), "E101", "cluster.security_context.privilege", "privileged"),
    (("recipes.run.hf_access_token=hf_abc123",), "E601", "recipes.run.hf_access_token", "secretKeyRef"),
    (("git.repo_url_or_path=https://a.b/c", "git.branch='--upload-pack=x'"), "E102", "git.branch", "a branch"),
    (("git.repo_url_or_path=https://a.b/c", "git.branch='a..b'"), "E102", "git.branch", "name of a branch"),
    (("git.repo_url_or_path=https://a.b/c", "git.commit='-x'"), "E102", "git.commit", "a commit, such as"),
    (("git.token=ghp_abc123",), "E601", "git.token", "secretKeyRef"),
    (("+env_vars.WANDB_API_KEY=abc123",), "E602", "env_vars.WANDB_API_KEY", "in clear"),
    (("git.repo_url_or_path=https://u:abc123@host/r",), "E603", "git.repo_url_or_path", "credentials"),
    (("+env_vars.A-B=1",), "E604", "env_vars.A-B", "environment variable"),
    (("+env_vars.UID=1",), "E604", "env_vars.UID", "remedy: env_vars.UID=null"),
    (("git.token={env: TOKEN}", "git.repo_url_or_path=https://a.b/c"), "E605", "git.token", "pod"),
    (("training_cfg={entry_script: a.py, run: {nodes: 0}}",), "E105", "recipes.training_cfg", "not run your script"),
    (("training_cfg=a.py",), "E105", "recipes.training_cfg", "not run your script"),
    (("++recipes.checkpointless=true",), "E902", "recipes.checkpointless", "not yet"),
]


@pytest.mark.parametrize(
    ("overrides", "code", "path", "says"), FAULTS, ids=[f"{f[1]}-{' '.join(f[0])}" for f in FAULTS]
)
def test_a_fault_is_one_problem(problems, overrides, code, path, says):
    (problem,) = problems(*LLAMA_K8S, *overrides)
    assert problem.code == code
    assert path is None or problem.path == path
    assert says in str(problem)
    assert problem.where
    assert "abc123" not in str(problem)


@pytest.mark.parametrize(
    ("name", "label"),
    [("-A_b!c-", "a-b-c"), ("!!!", "my-run"), ("A" * 64, "a" * 63), (f"{'a' * 62}_b", "a" * 62)],
    ids=["characters", "nothing left", "long", "cut at a hyphen"],
)
def test_a_name_that_is_not_a_label_is_mended(problems, name, label):
    (problem,) = problems(f"recipes.run.name='{name}'")
    assert (problem.code, problem.remedy) == ("E301", f"recipes.run.name={label}")


def test_training_jobs_refuse_elasticity(problems):
    overrides = (LLAMA_K8S[0], "cluster=sm_jobs")
    assert {p.code for p in problems(*overrides)} == {"E370"}
    elastic, *others = problems(*overrides, ELASTIC)
    assert elastic.code == "E211" and {other.code for other in others} == {"E370"}
    assert "SageMaker training jobs" in elastic.message and "Using elastic training" in elastic.message
    assert "cluster=slurm" in elastic.remedy


def test_faults_of_different_kinds_come_together(problems):
    found = problems(
        *LLAMA_K8S,
        ELASTIC,
        "instance_type=p9",
        "recipes.run.name=A",
        "cluster.namespace=B",
        f"++{ARGS}.typo=1",
        f"{POLICY}.use_graceful_shutdown=maybe",
        f"{SCALE}.x.trainer.num_nodes=1",
        "cluster.pullPolicy=No",
        f"{SCALE}.3.training_config.training_args.uneven_batch.large_local_batch_size=7",
    )
    assert {p.code for p in found} == {"E101", "E102", "E203", "E223", "E230", "E301", "E302"}
    assert len(found) == 8


def test_no_problem_repeats_a_token(problems):
    found = problems(*LLAMA_K8S, f"cluster.namespace={TOKEN}", f"+env_vars.A={TOKEN}", f"++{ARGS}.typo={TOKEN}")
    assert {p.code for p in found} == {"E101", "E302", "E609"}
    assert TOKEN not in "\n".join(map(repr, found))


UNEVEN = "recipes.scale_config.3.training_config.training_args.uneven_batch"


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ("large_local_batch_size=7", "E223", "16·5 + 8·7 = 136, but train_batch_size is 128 at 3 nodes × 8 devices"),
        ("num_dp_groups_with_small_batch_size=24", "E222", "1 to 23"),
        ("num_dp_groups_with_small_batch_size=0", "E222", "1 to 23"),
        ("small_local_batch_size=7", "E222", "not in order"),
        ("small_local_batch_size=0", "E222", "not in order"),
    ],
)
def test_uneven_arithmetic(problems, prepare, change, code, says):
    found = problems(*LLAMA_K8S, ELASTIC, f"{UNEVEN}.{change}")
    assert code in {p.code for p in found}
    text = "\n".join(map(str, found))
    assert says in text
    shares = "num_dp_groups_with_small_batch_size: 16, small_local_batch_size: 5, large_local_batch_size: 6"
    remedy = f"++{UNEVEN}={{use_uneven_batch: true, {shares}}}"
    assert f'"{remedy}" gives 128' in text
    assert prepare(*LLAMA_K8S, ELASTIC, remedy)


def test_arithmetic_uses_the_instance_s_real_accelerators(problems):
    found = problems(*LLAMA_K8S, ELASTIC, "instance_type=ml.g5.12xlarge")
    assert {p.code for p in found} == {"E222", "E223"}
    assert {p.path.split(".")[2] for p in found} == {"3", "6"}
    assert "3 nodes × 4 devices of ml.g5.12xlarge" in str(found[0])


def test_a_sequence_parallel_group_counts_once(prepare):
    job = prepare(*LLAMA_K8S, f"{ARGS}.ring_attn_size=4")
    assert job.scales[0].data_parallel_size == 2
    assert job.scales[0].batch.grad_accumulation == 4


def test_more_ranks_to_a_sample_than_there_are_is_a_problem_not_a_crash(problems):
    assert {p.code for p in problems(*LLAMA_K8S, ELASTIC, f"{ARGS}.ring_attn_size=64")} == {"E220"}


def test_a_faulty_bound_of_a_stepped_job_is_one_problem(problems):
    step = f"++{POLICY}.replica_increment_step=1"
    (problem,) = problems(*LLAMA_K8S, ELASTIC, step, "~recipes.scale_config", f"{POLICY}.min_nodes=two")
    assert problem.path == f"{POLICY}.min_nodes"


def test_an_empty_override_changes_nothing(prepare):
    assert prepare(*LLAMA_K8S, ELASTIC, f"++{ARGS}={{}}").scales == prepare(*LLAMA_K8S, ELASTIC).scales


def test_the_tiny_trainer_keeps_a_sample_on_one_rank(problems):
    (problem,) = problems(f"{ARGS}.ring_attn_size=2")
    assert problem.path == f"{ARGS}.ring_attn_size"


def test_a_typo_in_a_new_mapping_names_the_override_that_made_it(problems):
    (problem,) = problems(*LLAMA_K8S, "++recipes.elastic_polcy.is_elastic=true")
    assert problem.where == "++recipes.elastic_polcy.is_elastic=true"


def test_a_key_without_its_path_is_told_where_it_belongs(problems):
    found = problems(*LLAMA_K8S, "is_elastic=true", "recipes.learning_rate=1e-4")
    assert [p.remedy for p in found] == [
        "did you mean recipes.elastic_policy.is_elastic?",
        "did you mean recipes.training_config.training_args.learning_rate?",
    ]


def test_credentials_are_found_in_a_malformed_url_too(problems, prepare):
    (problem,) = problems(*LLAMA_K8S, "git.repo_url_or_path='https://u:abc123@[x/r'")
    assert problem.code == "E603" and "abc123" not in str(problem)
    prepare(*LLAMA_K8S, "git.repo_url_or_path='https://[x/r'")


@pytest.mark.parametrize("url", ["ssh://git@github.com/a/b", "git@github.com:a/b", "https://github.com/a/b"])
def test_ordinary_repository_addresses_are_fine(prepare, url):
    prepare(*LLAMA_K8S, f"git.repo_url_or_path='{url}'")


def test_extra_keys_cannot_hide_a_known_key(prepare):
    assert prepare(*LLAMA_K8S, "++recipes.extra_keys=[trainer]").nproc_per_node == 8


@pytest.mark.parametrize("key", ["checkpointing.interval", "resources.gpu", "elastic_policy.x"])
def test_extra_keys_do_not_reach_the_launcher_s_own_sections(problems, key):
    (problem,) = problems(*LLAMA_K8S, f"++recipes.{key}=8", f"recipes.extra_keys=[{key}]")
    assert (problem.code, problem.path, problem.value) == ("E335", "recipes.extra_keys", key)
    assert all("extra_keys" not in (each.remedy or "") for each in problems(*LLAMA_K8S, f"++recipes.{key}=8"))


def test_extra_keys_are_let_through_and_kept(prepare):
    key = "training_config.training_args.my_own"
    job = prepare(*LLAMA_K8S, f"++recipes.{key}=3", f"++recipes.extra_keys=[{key}]")
    assert job.scales[0].config["training_config"]["training_args"]["my_own"] == 3


def test_every_rule_has_a_reason_and_a_source():
    from launcher.rules import all_rules

    rules = all_rules()
    assert len({r.code for r in rules}) == len(rules)
    assert all(r.check.__doc__ and r.source for r in rules)


def test_a_wrong_word_for_the_sizes_is_told_what_is_allowed(problems):
    (problem,) = problems(*LLAMA_K8S, "++recipes.scale_config=autto")
    assert (problem.allowed, problem.remedy) == ("a mapping or 'auto'", "did you mean auto?")


def test_a_suggested_instance_type_is_one_of_the_recipe_s(problems):
    (problem,) = problems(*LLAMA_K8S, "instance_type=p5.48xlarg")
    assert problem.remedy == "did you mean ml.p5.48xlarge?" and "ml.p5.48xlarge" in problem.allowed


def test_a_faulty_override_of_a_base_key_is_one_problem(problems):
    for override in (f"{ARGS}.train_batch_size=0", f"{ARGS}=5", f"{ARGS}.learning_rate=nan"):
        (problem,) = problems(*LLAMA_K8S, override)
        assert (problem.code, problem.where) == ("E102", override)


def test_a_value_that_refers_to_a_faulty_one_is_no_problem_of_its_own(problems):
    script = ("recipes=training/custom/script", "training_cfg.entry_script=main.py")
    (problem,) = problems(*script, "training_cfg.run.ntasks_per_node=x")
    assert problem.path == "recipes.training_cfg.run.ntasks_per_node"


def test_a_batch_that_divides_at_no_size_is_said_once(problems):
    even, uneven = problems(*LLAMA_K8S, ELASTIC, f"{ARGS}.train_batch_size=100")
    assert (even.code, uneven.code) == ("E221", "E223")
    assert even.path == uneven.path == f"{ARGS}.train_batch_size"
    assert "2, 4, 8, 16 nodes too" in even.message and "6 nodes too" in uneven.message
    planned = "++recipes.scale_config=auto plans it"  # no split of a batch that must go
    assert even.remedy == uneven.remedy == f"{ARGS}.train_batch_size=128; or {planned}"


def test_an_elastic_job_of_the_open_trainer_resumes_whatever_is_set(prepare):
    open_trainer = ("cluster.trainer=open", "container=registry.example/mine:1")
    data = "recipes.training_config.datasets.train_data.file_path=/data"
    job = prepare(*LLAMA_K8S, ELASTIC, f"{ARGS}.load_checkpoint=false", *open_trainer, data)
    assert job.elastic and prepare(*LLAMA_K8S, f"{ARGS}.load_checkpoint=false")


def test_an_empty_table_of_sizes_is_one_problem(problems):
    (problem,) = problems(*LLAMA_K8S, ELASTIC, "~recipes.scale_config", "+recipes.scale_config={}")
    assert (problem.code, problem.path) == ("E202", "recipes.scale_config")


def test_a_size_without_a_batch_of_its_own_is_told_so(problems):
    override = "++recipes.scale_config.5.training_config.training_args.learning_rate=1"
    (problem,) = problems(*LLAMA_K8S, ELASTIC, override)
    assert (problem.path, problem.where) == ("recipes.scale_config.5", override)
    assert "no batch of its own" in problem.message


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        ("training_dir=7", "\"{}.training_dir='7'\""),
        ("training_dir=[]", None),
        ("max_len='5'", "did you mean {}.max_len=5?"),
    ],
    ids=["text", "none", "number"],
)
def test_a_remedy_names_the_key_of_the_size_that_has_the_fault(problems, value, remedy):
    at = "recipes.scale_config.2.training_config.training_args"
    (problem,) = problems(*LLAMA_K8S, ELASTIC, f"++{at}.{value}")
    assert (problem.code, problem.path) == ("E102", f"{at}.{value.partition('=')[0]}")
    assert problem.remedy == (remedy and remedy.format(at))


def test_a_misspelt_choice_is_the_only_problem(problems):
    (problem,) = problems("recipe=some/recipe", "cluster=k8s")
    assert (problem.code, problem.remedy) == ("E101", "did you mean recipes?")


def test_the_remedy_of_unknown_keys_declares_them_all(problems, prepare):
    unknown = ("++recipes.my_b.c=2", "++recipes.my_c=3")
    first, second = problems(*LLAMA_K8S, *unknown, "++recipes.my_a=1", "recipes.extra_keys=[my_a]")
    remedy = first.remedy.partition(" ")[0]
    assert remedy == second.remedy.partition(" ")[0] == "recipes.extra_keys=[my_a,my_b,my_c]"
    assert prepare(*LLAMA_K8S, *unknown, "++recipes.my_a=1", remedy)


def test_entries_of_extra_keys_are_keys_and_their_remedy_is_one_word_of_a_shell(problems, prepare, tmp_path):
    base, file = LLAMA_K8S[0].partition("=")[2], tmp_path / "own.yaml"
    file.write_text(f"defaults: [/recipes/{base}@_here_, _self_]\nmy a: 1\nb: 2\n")
    words = (f"recipes={file}", *LLAMA_K8S[1:])
    found = {problem.path: problem for problem in problems(*words, "recipes.extra_keys=['', '*', b]")}
    assert {path: problem.code for path, problem in found.items()} == {
        "recipes.extra_keys.0": "E102",
        "recipes.extra_keys.1": "E102",
        "recipes.my a": "E101",
    }
    (remedy,) = shlex.split(found["recipes.my a"].remedy.partition(" if ")[0])
    assert remedy == "recipes.extra_keys=[b,'my a']"
    assert prepare(*words, remedy)


def test_an_instance_type_that_a_file_misspells_is_reported_at_its_line(problems, tmp_path):
    file = tmp_path / "own.yaml"
    base = LLAMA_K8S[0].partition("=")[2]
    file.write_text(
        f"defaults: [/recipes/{base}@_here_, _self_]\ninstance_types:\n- ml.p5.48xlarge\n- ml.p5.49xlarge\n"
    )
    (problem,) = problems(f"recipes={file}", "cluster=k8s")
    assert (problem.code, problem.where) == ("E233", f"{file}:4")


@pytest.mark.slow
@pytest.mark.parametrize(
    "override",
    [
        f"{ARGS}.lr_scheduler=cosin",
        f"{ARGS}.adam_betas=[0.9]",
        f"{ARGS}.adam_betas=[0.9,1.0]",
        f"{ARGS}.lr_warmup_ratio=2",
        "recipes.training_config.model_config.attn_implementation=nonsense",
        "recipes.training_config.model_config.model_name_or_path=",
    ],
    ids=lambda override: override.rpartition(".")[2],
)
def test_a_value_that_the_image_would_refuse_is_refused_here(problems, override):
    (problem,) = problems(*LLAMA_K8S, override)
    assert problem.where == override


def test_a_reference_to_a_removed_key_names_the_override_that_removed_it(problems):
    (problem,) = problems(*LLAMA_K8S, "~recipes.run.name")
    assert problem.code == "E007" and "~recipes.run.name removes" in problem.message


def test_a_faulty_reference_is_reported_where_it_is_written(problems):
    (problem,) = problems(*LLAMA_K8S, "recipes.run.name='${recipes.nothere}'")
    assert (problem.path, problem.message) == ("recipes.run.name", "refers to recipes.nothere, which does not exist")


@pytest.mark.parametrize(
    ("setting", "clusters"),
    [("scenario=tour", "cluster=local"), ("contract=sagemaker", "cluster=local or cluster=sm_local")],
    ids=["scenario", "contract"],
)
def test_a_setting_of_another_cluster_says_which(problems, setting, clusters):
    found = problems(*LLAMA_K8S, f"++cluster.{setting}")
    assert [problem.remedy for problem in found] == [f"only with {clusters}"]


def test_a_recipe_without_its_key_is_given_it(problems):
    name = LLAMA_K8S[0].partition("=")[2]
    (problem,) = problems(name)
    assert (problem.code, problem.remedy) == ("E001", f"recipes={name}")


@pytest.mark.parametrize(
    "override",
    [
        *("recipes.elastic_policy=[3,100]", "recipes.trainer=8", "recipes.run=[x]", "recipes.training_config=x"),
        *("+recipes.instance_types=0", "cluster.volumes={a: 1}", "cluster.volumes=[1]", "cluster.run_policy=100"),
        *(
            "cluster.workload_priority_class={}",
            "instance_type=1000000000",
            "recipes.training_config.training_args=[]",
        ),
    ],
)
def test_a_value_of_another_kind_is_no_fault_of_the_rules(override, problems):
    """Rules meet a stand-in of the declared kind, whatever was given."""
    for words in ((), (ELASTIC,), (ELASTIC, "++recipes.scale_config=auto")):
        assert {problem.code for problem in problems(*LLAMA_K8S, *words, override)} <= {"E102", "E103", "E003"}


@pytest.mark.parametrize("group", ["recipes", "cluster"])
def test_a_choice_that_every_launch_has_cannot_be_removed(group, problems):
    for override in (f"~{group}", f"~{group}=x"):
        (problem,) = problems(*LLAMA_K8S, override)
        assert (problem.code, problem.path) == ("E005", group)


def test_a_suggestion_is_no_key_of_another_faulty_override(problems):
    found = problems(*LLAMA_K8S, "learning_rate=3", "recipes.learning_rate=3")
    assert [problem.remedy for problem in found] == [f"did you mean {ARGS}.learning_rate?"] * 2


def test_all_faulty_options_of_sbatch_are_named(problems):
    words = "cluster.additional_parameters={array: 0-3, time: 10, no-such: 1}"
    (problem,) = problems(LLAMA_K8S[0], "cluster=slurm", words)
    for name in ("array is not", "cluster.time", "no-such is not", "Valid ones: batch"):
        assert name in problem.message


@pytest.mark.parametrize("text", ["2h", "yes", "1:2:3:4"])
def test_the_fault_of_a_time_limit_names_the_valid_forms(problems, text):
    (problem,) = problems(LLAMA_K8S[0], "cluster=slurm", f"cluster.time={text}")
    assert problem.allowed == "a whole number, or a time as in 90:00, 1:30:00, 2-12 and 2-12:30:00"


@pytest.mark.parametrize(
    ("words", "form"),
    [
        (("cluster=slurm", "cluster.mem='64 GB'"), "a whole number, or memory with a unit, such as 64GB"),
        (("cluster=slurm", "cluster.ssh='a b'"), "a host, or user@host"),
        (("cluster=sm_jobs", "cluster.sm_jobs_config.region=us_west"), "a region such as us-west-2"),
        (("cluster=k8s", "notify=[{env: 'a b'}]"), "a variable's name: letters, digits and _, not starting with"),
    ],
    ids=["in-a-union", "alone", "of-a-section", "of-a-list"],
)
def test_the_fault_of_a_text_names_its_form_in_words(problems, words, form):
    (message,) = (problem.message for problem in problems(LLAMA_K8S[0], *words) if problem.code == "E102")
    assert message.startswith(f"should be {form}")


@pytest.mark.parametrize(
    "choice", [("cluster.contract=sagemaker",), ("cluster=local", "cluster.contract=sagemaker")], ids=["one", "both"]
)
def test_what_chose_the_cluster_is_the_place_of_its_faults(problems, choice):
    words = ("recipes=training/tiny/tiny_lm_cpu", *choice, "cluster.trainer=null")
    (where,) = (problem.where for problem in problems(*words) if problem.code == "E211")
    assert where == ", ".join(choice)


@pytest.mark.parametrize(
    ("instance_type", "remedy"),
    [
        ("ml.p5.48xlarge", "leave out {}"),
        ("ml.p4d.24xlarge", "leave out {}, and set instance_type=ml.p4d.24xlarge"),
    ],
)
def test_a_selected_instance_type_is_left_out(problems, instance_type, remedy):
    label = "node.kubernetes.io/instance-type"
    (problem,) = problems(*LLAMA_K8S, f"cluster.node_selector={{{label}: {instance_type}}}")
    assert problem.remedy == remedy.format(f"cluster.node_selector.{label}")


@pytest.mark.parametrize(
    ("cluster", "reference"),
    [
        ("k8s", "{secretKeyRef: {name: …, key: …}}"),
        ("slurm", "{env: NAME}"),
        ("local", "{env: NAME}"),
        ("sm_jobs", None),
    ],
)
def test_remedies_name_references_that_the_cluster_resolves(problems, cluster, reference):
    words = (
        "recipes.run.hf_access_token=abc123",
        "env_vars.MY_KEY=abc12345",
        "git.repo_url_or_path=https://u:p1@h/r",
    )
    found = {each.code: each for each in problems(LLAMA_K8S[0], f"cluster={cluster}", *words)}
    if reference is None:
        assert all("Secrets Manager" in found[code].remedy for code in ("E601", "E602", "E603"))
        assert found["E602"].allowed is None
        return
    assert (found["E601"].allowed, found["E602"].allowed) == (reference, reference)
    assert found["E601"].remedy == f'"recipes.run.hf_access_token={reference}"'
    assert found["E603"].remedy == f'"git.token={reference}"'


@pytest.mark.parametrize("is_file", [False, True], ids=["an override", "a file of the user's own"])
def test_the_origin_of_a_value_that_follows_a_reference_is_where_the_user_set_it(
    problems, prepare, tmp_path, is_file
):
    key = "recipes.training_cfg.run.name"
    script = (
        "cluster=k8s",
        "container=img:1",
        "training_cfg.run.ntasks_per_node=8",
        "training_cfg.entry_script=/a.py",
    )
    overrides = ("recipes=training/custom/script", *script, "training_cfg.run.name='A B'")
    origin = overrides[-1]
    if is_file:
        text = "defaults: [/recipes/training/custom/script@_here_, _self_]\ntraining_cfg: {run: {name: A B}}\n"
        (tmp_path / "mine.yaml").write_text(text)
        overrides, origin = ("recipes=mine.yaml", *script), f"{tmp_path}/mine.yaml:2"
    (problem,) = problems(*overrides)
    assert (problem.code, problem.path) == ("E301", "recipes.run.name")
    assert (problem.where, problem.remedy) == (origin, f"{key}=a-b")
    prepare(*overrides, problem.remedy)


@pytest.mark.parametrize("cluster", ["k8s", "local", "ray"])
def test_a_start_command_of_no_words_is_refused(problems, cluster):
    overrides = (LLAMA_K8S[0], f"cluster={cluster}")
    faults = [problem for problem in problems(*overrides, "cluster.command=[]") if problem.path == "cluster.command"]
    assert [problem.code for problem in faults] == ["E102"]


@pytest.mark.parametrize(
    "overrides",
    [
        (f"{PEFT}.target_modules='.*\\.[qv]_proj'",),
        (f"{PEFT}.target_modules=lm_head",),
        (f"{PEFT}.target_modules=[query]", f"{MODEL}.lora_checkpoint_file_path=/fsx/adapters"),
        (f"{PEFT}.target_modules=[query]", f"{MODEL}.model_name_or_path=/fsx/another"),
        (f"{PEFT}.target_modules=[query]", f"++{PEFT}.target_parameters=[mlp.up_proj.weight]"),
    ],
    ids=["a form", "the head", "of the adapters to start from", "unknown model", "parameters"],
)
def test_adapters_may_have_layers_by_form_or_in_an_unknown_model(prepare, overrides):
    assert prepare(*LLAMA_K8S, *overrides)


def test_layers_of_an_encoder_may_have_adapters_in_the_published_image_alone(prepare, problems):
    recipe = ("recipes=fine-tuning/llama/llmft_llama4_scout_17b_16e_instruct_seq4k_gpu_sft_lora", "cluster=k8s")
    override = f"{PEFT}.target_modules=['vision_model.fc1']"
    assert prepare(*recipe, override)
    assert [each.code for each in problems(*recipe, override, "cluster.trainer=open", "container=image:1")] == [
        "E466"
    ]
