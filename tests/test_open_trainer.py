"""Who trains: the published image's program or the open trainer, in earnest or as a rehearsal."""

import dataclasses
import importlib.util
import itertools
import json

import pytest
from conftest import shipped

from launcher.common import yaml_io
from launcher.common.names import CONFIG_DIR
from launcher.model.family_registry import interface
from launcher.planning import plan_report
from launcher.runtime import model_configs
from launcher.runtime.finetune.rehearsal_data import write_rehearsal_data

RECIPE = "fine-tuning/llama/llmft_llama3_2_1b_instruct_seq4k_gpu_sft_lora"
ELASTIC = "++recipes.elastic_policy.is_elastic=true"
LLMFT = (f"recipes={RECIPE}",)
IMAGE = "container=registry.example/mine:1"
K8S = (*LLMFT, "cluster=k8s", "instance_type=p5.48xlarge")


def configs(bundle):
    return {path: text for path, text in bundle.files.items() if path.startswith(CONFIG_DIR)}


@pytest.mark.parametrize(
    ("words", "trainer", "is_rehearsal"),
    [
        ((*LLMFT, "rehearse=true"), "open", True),
        (K8S, "published", False),
        ((*K8S, "cluster.trainer=open", IMAGE, "rehearse=true"), "open", True),
        (("recipes=training/tiny/tiny_lm_cpu",), None, False),
    ],
    ids=["local", "k8s", "k8s open", "no choice"],
)
def test_plan_and_bundle_name_the_trainer_and_a_rehearsal(render, prepare, words, trainer, is_rehearsal):
    bundle = render(*words)
    for name in ("plan.json", "bundle.json"):
        found = json.loads(bundle.files[name])
        assert (found["trainer"], found["rehearsal"]) == (trainer, is_rehearsal)
    summary = plan_report.summary(prepare(*words))
    assert ("trainer" in summary) is bool(trainer) and (f"; {trainer} trainer" in summary) is bool(trainer)
    assert summary.endswith(", a rehearsal") is is_rehearsal
    assert f"{summary}." in bundle.files["plan.md"]


def test_a_rehearsal_on_this_machine_starts_the_open_trainer(render):
    script = render(*LLMFT, "rehearse.steps=0").files["run.sh"]
    assert ' -m launcher.runtime.entrypoint --rehearse --config-path "$bundle"/configs\n' in script
    bounded = render(*LLMFT, "rehearse=true").files["run.sh"]
    assert ' --rehearse --rehearsal-samples 26 --config-path "$bundle"/configs\n' in bounded
    model = "transformers.models.llama.modeling_llama"
    modules = f"transformers.modeling_utils {model} peft launcher.runtime.finetune.trainer"
    assert f'set -- "$python" -m launcher.runtime.warm "$port" {modules}\n' in script


@pytest.mark.slow
def test_a_warm_process_imports_the_code_of_every_model(prepare):
    entries = [entry for entry in shipped() if entry.model_type == "llm_finetuning_aws"]
    jobs = [prepare(f"recipes={entry.name}", "rehearse=true") for entry in entries]
    found = {name for job in jobs for name in interface(job).modules(job)}
    packages = {name.rpartition("_")[2] for name in found if name.startswith("transformers.models.")}
    own = {"mistral", "ministral3", "smollm3", "phi3", "glm", "5", "jais2"}  # the last words of the modules' names
    assert packages == {"llama", "llama4", "qwen2", "qwen3", "oss"} | own
    assert all(importlib.util.find_spec(name.partition(".")[0]) for name in found)
    unknown = dataclasses.replace(jobs[0], published_model="")
    assert len(interface(unknown).modules(unknown)) == 3


@pytest.mark.parametrize("more", [(), (ELASTIC,)], ids=["static", "elastic"])
def test_the_compiled_configuration_is_the_same_whoever_trains(render, more):
    published = render(*K8S, *more)
    trained_openly = render(*K8S, *more, "cluster.trainer=open", IMAGE, "rehearse=true")
    here = render(*LLMFT, *more, "rehearse=true")
    assert configs(published) == configs(trained_openly) == configs(here) != {}


def test_a_shipped_scenario_comes_within_the_steps_of_a_rehearsal():
    from launcher.backends.local.scenario import At, Event
    from launcher.backends.local.scenario_files import _brought_forward

    events = [
        Event(at=At(step=100), capacity=2),
        Event(at=At(seconds=5), capacity=3),
        Event(at=At(step=200), capacity=4),
    ]
    assert [str(event.at) for event in _brought_forward(events, 9)] == ["step 3", "5 seconds", "step 6"]
    assert _brought_forward(events, 300) == events


TRAIN = "recipes.training_config.datasets.train_data.file_path"
VALIDATION = "recipes.training_config.datasets.val_data.file_path"
MODEL = "recipes.training_config.model_config.model_name_or_path"
ADAPTERS = "recipes.training_config.model_config.lora_checkpoint_file_path"
GPT_OSS = ("recipes=fine-tuning/gpt_oss/llmft_gpt_oss_120b_seq4k_gpu_sft_lora",)


def found(problems):
    return [(problem.code, problem.path) for problem in problems]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (LLMFT, [TRAIN]),
        ((*LLMFT, f"{TRAIN}=absent.jsonl", f"{MODEL}=models/absent/here"), [MODEL, TRAIN]),
        ((*LLMFT, f"{TRAIN}=/absent/a.jsonl", f"{VALIDATION}=/absent/b", f"{ADAPTERS}=/absent/c"), None),
        ((*LLMFT, f"{MODEL}=/absent/model"), [MODEL, TRAIN]),
        ((*LLMFT, f"{MODEL}=./org"), [MODEL, TRAIN]),
        ((*LLMFT, f"{TRAIN}=/{300 * 'a'}/b"), [TRAIN]),
        ((*K8S, IMAGE, "cluster.trainer=open"), [TRAIN]),
    ],
    ids=["empty", "relative", "every path", "absolute", "no hub id", "too long", "elsewhere"],
)
def test_a_model_or_data_that_is_absent_is_a_problem_that_names_the_rehearsal(problems, words, expected):
    reported = problems(*words)
    assert found(reported) == [("E116", path) for path in expected or (TRAIN, VALIDATION, ADAPTERS)]
    assert all("rehearse=true" in problem.remedy and problem.where for problem in reported)


def test_an_empty_model_is_a_problem_and_a_rehearsal_needs_none(problems, prepare):
    assert found(problems(*GPT_OSS)) == [("E116", MODEL), ("E116", TRAIN)]
    assert prepare(*GPT_OSS, "rehearse=true").is_rehearsal


def test_files_are_found_from_the_folder_of_the_launch(prepare, tmp_path):
    (tmp_path / "train.jsonl").touch()
    (tmp_path / "model").mkdir()
    job = prepare(*LLMFT, f"{TRAIN}=train.jsonl", f"{MODEL}=model")
    assert (job.trainer, job.is_rehearsal) == ("open", False)
    assert prepare(*LLMFT, f"{TRAIN}={tmp_path}/train.jsonl", f"{MODEL}=org/model-1.0").trainer == "open"


def test_a_data_channel_counts_as_data(prepare, problems, tmp_path):
    words = (
        *LLMFT,
        "cluster=sm_local",
        "instance_type=p5.48xlarge",
        f"cluster.sm_jobs_config.output_path=file://{tmp_path}",
    )
    assert found(problems(*words)) == [("E116", TRAIN)]
    assert prepare(*words, f"cluster.sm_jobs_config.inputs.s3={{train: 'file://{tmp_path}'}}").trainer == "open"
    assert prepare(*words, f"{TRAIN}=/opt/ml/input/data/other/a.jsonl").trainer == "open"
    (tmp_path / "here.jsonl").touch()
    assert prepare(*words, f"{TRAIN}={tmp_path}/here.jsonl").trainer == "open"
    (problem,) = problems(*words, f"{TRAIN}=here.jsonl")
    assert (problem.code, problem.path) == ("E116", TRAIN) and "absolute" in problem.message
    other = f"cluster.sm_jobs_config.inputs.s3={{other: 'file://{tmp_path}'}}"
    assert found(problems(*words, other)) == [("E116", TRAIN)]


QUESTION, ANSWER = {"role": "user", "content": "What rings?"}, {"role": "assistant", "content": "The bell."}


def data_of(tmp_path, samples):
    """Write samples and a rehearsal's tokenizer; return the words of a launch with them."""
    made = write_rehearsal_data(tmp_path / "made", "sft", 1)
    (made.tokenizer_folder / "config.json").write_text("{}")
    (tmp_path / "train.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in samples))
    return (*LLMFT, f"{TRAIN}=train.jsonl", f"{MODEL}={made.tokenizer_folder}")


def test_samples_that_would_not_be_trained_are_a_notice(prepare, tmp_path):
    silent = {"messages": [QUESTION, ANSWER | {"weight": 0}, QUESTION, ANSWER]}
    words = data_of(tmp_path, [{"messages": [QUESTION, ANSWER]}, {"messages": [QUESTION]}, silent])
    found = [notice.message for notice in prepare(*words).notices if notice.code == "N180"]
    assert found == [
        "of the first samples, 1 of 3 samples dropped (33.3 %): no turn of the assistant; such as train.jsonl:2",
        "of the first samples, 1 turn of the assistant in 1 sample not trained: weight 0; such as train.jsonl:3",
    ]
    assert "N180" not in str(prepare(*words, "rehearse=true").notices)


def test_a_fault_of_the_first_samples_is_a_problem_before_the_launch(problems, prepare, tmp_path):
    good = {"messages": [QUESTION, ANSWER]}
    words = data_of(tmp_path, [good, {"frage": "\x1b[2J"}, *[good] * 300, {"frage": "too late to be seen"}])
    (problem,) = problems(*words)
    assert (problem.code, problem.path) == ("E277", TRAIN)
    assert problem.message.startswith(f"{tmp_path}/train.jsonl:2: unknown columns: frage")
    assert "recipes data" in problem.remedy and problem.where
    assert prepare(*words, "rehearse=true").is_rehearsal


def test_a_template_that_does_not_show_its_answers_is_one_problem_before_the_launch(problems, prepare, tmp_path):
    words = data_of(tmp_path, [{"messages": [QUESTION, ANSWER] * 2}] * 20)
    template = tmp_path / "own.jinja"
    template.write_text("{% for m in messages %}{{ loop.revindex }}{{ m.content }}{% endfor %}")
    steps = "recipes.training_config.datasets.preprocessor_cfgs"
    own = f"{steps}=[{{type: Seq2SeqTokensProcessor, chat_template_name: ./own.jinja}}]"
    (problem,) = problems(*words, own)
    assert problem.code == "E277" and "messages[1], an answer" in problem.message
    end = "{{ '!' if loop.last and not add_generation_prompt }}"
    template.write_text(f"{{% for m in messages %}}<|role|>{{{{ m.content }}}}<|end|>{end}{{% endfor %}}")
    assert found(problems(*words, own)) == [("E277", TRAIN)]
    assert prepare(*words, own, "++recipes.training_config.datasets.assistant_turns=last").trainer == "open"


@pytest.mark.parametrize("word", ["assistant_turns=last", "max_lost_share=0.5"])
def test_a_key_of_the_open_trainer_is_refused_by_another(problems, prepare, word):
    key, _, value = word.partition("=")
    path = f"recipes.training_config.datasets.{key}"
    assert found(problems(*K8S, f"++{path}={value}")) == [("E266", path)]
    assert prepare(*LLMFT, "rehearse=true", f"++{path}={value}").trainer == "open"


@pytest.mark.parametrize("word", ["assistant_turns=first", "max_lost_share=1.5", "max_lost_share=-0.1"])
def test_values_of_the_open_trainers_keys_are_bounded(problems, word):
    path = f"recipes.training_config.datasets.{word.partition('=')[0]}"
    (problem,) = problems(*LLMFT, "rehearse=true", f"++recipes.training_config.datasets.{word}")
    assert problem.path == path


SCRIPT = ("training_cfg.entry_module=json", "training_cfg.run.ntasks_per_node=1")
FAULTS = [
    # overrides, code, key, a word of the text
    (("recipes=training/tiny/tiny_lm_cpu", "cluster.trainer=published"), "E114", "cluster.trainer", "leave"),
    (("recipes=training/tiny/tiny_lm_cpu", "cluster.trainer=open"), "E114", "cluster.trainer", "tiny_lm"),
    (
        ("training_cfg.entry_script=a.py", "training_cfg.run.ntasks_per_node=1", "cluster.trainer=open"),
        "E114",
        None,
        "custom",
    ),
    (("recipes=training/tiny/tiny_lm_cpu", "rehearse=true"), "E115", "rehearse", "tiny_lm"),
    ((*K8S, "rehearse=true"), "E115", "rehearse", "cluster.trainer=open"),
    ((*LLMFT, "cluster.command=[train.py]", "rehearse=true"), "E115", "rehearse", "start command"),
    ((*LLMFT, "rehearse=true", "cluster.trainer=both"), "E102", "cluster.trainer", "published"),
    ((*LLMFT, "rehearse=maybe"), "E102", "rehearse", "true or false"),
    ((*LLMFT, "cluster.trainer=published"), "E404", "cluster.trainer", "cluster.trainer=open"),
    ((*K8S, "cluster.trainer=open", "rehearse=true"), "E117", "container", "recipes container"),
    ((*K8S, "cluster.trainer=open", "rehearse=true", "container=null"), "E117", "container", "recipes container"),
    ((*LLMFT, "rehearse=true", "git.repo_url_or_path=https://host/r"), "E119", "git.repo_url_or_path", "published"),
]


@pytest.mark.parametrize(
    ("words", "code", "path", "says"), FAULTS, ids=[f"{each[1]}-{' '.join(each[0])}" for each in FAULTS]
)
def test_a_choice_that_is_not_there_is_one_problem(problems, words, code, path, says):
    (problem,) = problems(*words)
    assert problem.code == code and path in (None, problem.path)
    assert says in str(problem)


def test_a_start_command_of_ones_own_has_no_trainer(prepare):
    job = prepare(*LLMFT, "cluster.command=[train.py]")
    assert job.trainer is None and "trainer" not in plan_report.summary(job)


def test_a_rehearsal_is_a_notice(prepare):
    codes = [notice.code for notice in prepare(*LLMFT, "rehearse=true").notices]
    assert codes[0] == "N173"


def test_a_rehearsal_needs_no_accelerator(prepare, problems):
    words = (
        *LLMFT,
        "cluster=k8s",
        "cluster.trainer=open",
        IMAGE,
        "recipes.instance_types=[]",
        "instance_type=m5.2xlarge",
    )
    one = ("recipes.trainer.devices=1", "recipes.trainer.num_nodes=1")
    assert prepare(*words, *one, "rehearse=true").resources.accelerators == 0
    assert ("E235", "instance_type") in found(problems(*words, *one))


def pod_of(bundle):
    spec = yaml_io.load(bundle.files["manifests/job.yaml"])["spec"]["replicaSpecs"][0]["template"]["spec"]
    (pod,) = spec["containers"]
    return pod


@pytest.mark.parametrize("runtime", ["image", "launcher"])
def test_pods_start_the_open_trainer_without_root(render, runtime):
    words = (*K8S, ELASTIC, "cluster.trainer=open", IMAGE, "rehearse=true", f"cluster.runtime={runtime}")
    pod = pod_of(render(*words))
    program = ["-m", "launcher.runtime.entrypoint", "--rehearse", "--config-path=/config"]
    assert pod["image"] == "registry.example/mine:1" and pod["command"][-4:] == program
    assert pod["securityContext"]["runAsNonRoot"] is True and "add" not in pod["securityContext"]["capabilities"]
    variables = {entry["name"] for entry in pod["env"]}
    assert "NNODES" in variables and not variables & {"GIT_REPO_URL", "SCRIPT_PATH"}


def test_torchrun_starts_the_open_trainer_of_a_kubeflow_job(render):
    words = (*K8S, "cluster.trainer=open", IMAGE, "rehearse=true", "cluster.use_hyperpod_pytorch_job=false")
    spec = yaml_io.load(render(*words).files["manifests/job.yaml"])["spec"]["pytorchReplicaSpecs"]["Master"]
    command = spec["template"]["spec"]["containers"][0]["command"]
    assert "torchrun" in command and command[-4:-1] == ["-m", "launcher.runtime.entrypoint", "--rehearse"]


SM_JOBS = (
    *(*LLMFT, "cluster=sm_jobs", "instance_type=p5.48xlarge", "cluster.trainer=open"),
    "cluster.sm_jobs_config.role=arn:aws:iam::123456789012:role/train",
    "cluster.sm_jobs_config.output_path=s3://results/out",
)
ECR = "container=123456789012.dkr.ecr.eu-west-1.amazonaws.com/mine:1"


def test_a_training_job_starts_the_open_trainer_by_the_start_script(render, problems):
    bundle = render(*SM_JOBS, ECR, "rehearse=true")
    asked = json.loads(bundle.files["request.json"])["AlgorithmSpecification"]
    assert asked["ContainerEntrypoint"] == ["/bin/bash", "/opt/ml/input/data/recipe/start.sh"]
    words = '-m launcher.runtime.entrypoint --rehearse --config-path "$recipes_configs"'
    assert bundle.files["start.sh"].rstrip().endswith(words)
    assert found(problems(*SM_JOBS, "rehearse=true")) == [("E117", "container")]
    assert found(problems(*SM_JOBS, "rehearse=true", "container=null")) == [("E117", "container")]


def test_a_training_job_on_this_machine_names_the_open_trainer(problems, tmp_path):
    output = f"cluster.sm_jobs_config.output_path=file://{tmp_path}"
    (problem,) = problems(
        *LLMFT, "cluster=sm_local", "instance_type=p5.48xlarge", output, "cluster.trainer=published"
    )
    assert (problem.code, problem.path) == ("E430", "cluster.trainer")
    assert problem.remedy.startswith("cluster.trainer=open")


@pytest.mark.parametrize("words", [(), ("cluster=sm_local", "instance_type=p5.48xlarge")], ids=["local", "sm_local"])
def test_packages_of_the_trainer_extra_are_missed_before_anything_runs(problems, monkeypatch, tmp_path, words):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "peft" else real(name))
    output = [f"cluster.sm_jobs_config.output_path=file://{tmp_path}"] if words else []
    (problem,) = problems(*LLMFT, *words, *output, "rehearse=true")
    assert problem.code in ("E401", "E430") and "peft" in problem.message
    assert problem.remedy == f"pip install '.[{'trainer' if words else 'local,trainer'}]'"  # torch is installed


MIXTURE = "mistralai/Mixtral-8x7B-v0.1"
"""Its weights are counted, but the open trainer does not know its architecture."""


def test_a_model_of_our_own_and_the_published_image_are_a_notice(prepare):
    own = ("recipes=fine-tuning/smollm/llmft_smollm3_3b_seq4k_gpu_sft_lora", "instance_type=p5.48xlarge")
    for words, is_noticed in (
        ((*own, "cluster=k8s"), True),
        ((*own, "cluster=k8s", "cluster.trainer=open", IMAGE, "rehearse=true"), False),
        ((*own, "rehearse=true"), False),
        (K8S, False),
    ):
        assert ("N177" in {each.code for each in prepare(*words).notices}) is is_noticed


def test_a_model_that_is_only_counted_can_be_planned(prepare):
    job = prepare(*K8S, f"{MODEL}={MIXTURE}")
    assert job.published_model == MIXTURE
    openly = prepare(*K8S, IMAGE, "cluster.trainer=open", f"{MODEL}={MIXTURE}", f"{TRAIN}=/opt/ml/a")
    assert "transformers.modeling_utils" in modules_of(openly) and "N175" not in str(openly.notices)


def test_a_rehearsal_needs_a_known_architecture(problems, prepare, tmp_path):
    for name in ("acme/unheard-7b", "models/unheard", MIXTURE):
        (problem,) = problems(*LLMFT, "rehearse=true", f"{MODEL}={name}")
        assert (problem.code, problem.path, problem.value) == ("E116", MODEL, name)
        assert "Qwen/Qwen3-8B" in problem.allowed and MIXTURE not in problem.allowed
    (tmp_path / "models/unheard").mkdir(parents=True)
    (tmp_path / "models/unheard/config.json").touch()
    assert prepare(*LLMFT, "rehearse=true", f"{MODEL}=models/unheard").is_rehearsal
    assert prepare(*LLMFT, "rehearse=true", f"{MODEL}=openai/gpt-oss-20b-bf16").is_rehearsal
    elsewhere = (*K8S, IMAGE, "cluster.trainer=open", "rehearse=true")
    assert prepare(*elsewhere, f"{MODEL}=/fsx/models/mine").is_rehearsal
    assert found(problems(*elsewhere, f"{MODEL}=acme/unheard-7b")) == [("E116", MODEL)]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((*LLMFT, "recipes.training_config.model_config.attn_implementation=flash_attention_2"), "sdpa computes"),
        (GPT_OSS, "eager computes"),
        (LLMFT, None),
    ],
    ids=["llama", "gpt_oss", "sdpa"],
)
def test_the_plan_names_the_attention_that_stands_in_on_this_machine(prepare, words, says):
    messages = [notice.message for notice in prepare(*words, "rehearse=true").notices if notice.code == "N175"]
    assert len(messages) == bool(says) and all(says in message for message in messages)


def modules_of(job):
    return interface(job).modules(job)


@pytest.mark.slow
def test_the_model_of_a_rehearsal_is_the_recipes_whatever_the_name_of_the_run(prepare):
    """Every recipe, with names that say nothing and with that of another model."""
    names = ("x", "openai-gpt-oss-120b-test", "qwen-3-8b", "a" * 40)
    entries = [entry for entry in shipped() if entry.model_type == "llm_finetuning_aws"]
    assert len(entries) >= 86
    for entry, name in zip(entries, itertools.cycle(names), strict=False):
        words = (f"recipes={entry.name}", "rehearse=true")
        published = prepare(*words)
        renamed = prepare(*words, f"recipes.run.name={name}")
        assert published.published_model == renamed.published_model in model_configs.table()
        assert modules_of(renamed) == modules_of(published)
        assert [each.code for each in renamed.notices] == [each.code for each in published.notices]


@pytest.mark.parametrize("name", ["x", "openai-gpt-oss-20b", "gpt-oss-120b", "meta-llama-llama-3-1-8b-instruct"])
def test_the_program_of_a_rehearsal_is_told_the_model_that_the_recipe_leaves_open(render, prepare, name):
    words = (*GPT_OSS, "rehearse=true", f"recipes.run.name={name}")
    script = render(*words).files["run.sh"]
    assert " launcher.runtime.entrypoint --rehearse --model openai/gpt-oss-120b " in script
    assert "transformers.models.gpt_oss.modeling_gpt_oss" in script
    in_earnest = render(*GPT_OSS, f"{MODEL}=openai/gpt-oss-20b", f"{TRAIN}=/opt/ml/a", f"recipes.run.name={name}")
    assert "--model" not in in_earnest.files["run.sh"]


def test_a_recipe_of_ones_own_is_of_the_model_that_it_inherits(prepare, problems, tmp_path):
    inherited = "defaults:\n  - /recipes/fine-tuning/gpt_oss/llmft_gpt_oss_20b_seq4k_gpu_dpo@_here_\n  - _self_\n"
    (tmp_path / "own.yaml").write_text(inherited + "run:\n  name: mine\n")
    assert prepare("recipes=own.yaml", "rehearse=true").published_model == "openai/gpt-oss-20b"
    # a model of the user's own is not the inherited one
    assert found(problems("recipes=own.yaml", "rehearse=true", f"{MODEL}=org/other")) == [("E116", MODEL)]


def test_the_size_of_checkpoints_does_not_depend_on_the_name_of_the_run(recipes):
    target = GPT_OSS[0].removeprefix("recipes=")
    code, published, _ = recipes("checkpoint", target)
    assert code == 0 and "GB" in published
    assert recipes("checkpoint", target, "recipes.run.name=x")[1] == published


REVISION = "recipes.training_config.model_config.model_revision"


def test_a_revision_of_the_model_needs_the_open_trainer_and_a_name_on_the_hub(problems, prepare):
    assert found(problems(*K8S, f"{REVISION}=v1")) == [("E266", REVISION)]
    of_size = f"recipes.scale_config.2.{REVISION.removeprefix('recipes.')}"  # a correction of a planned size
    planned = (*K8S, "++recipes.elastic_policy.is_elastic=true", "recipes.scale_config=auto", f"++{of_size}=v1")
    assert found(problems(*planned)) == [("E266", of_size)]
    open_trainer = (*K8S, "cluster.trainer=open", IMAGE, f"{TRAIN}=/opt/ml/a")
    job = prepare(*open_trainer, f"{REVISION}=v1")
    assert job.scales[0].config["training_config"]["model_config"]["model_revision"] == "v1"
    for path in ("/models/mine", "./org/model", "models"):
        assert ("E118", REVISION) in found(problems(*open_trainer, f"{REVISION}=v1", f"{MODEL}={path}"))
    assert "model_revision" not in prepare(*open_trainer).scales[0].config["training_config"]["model_config"]
