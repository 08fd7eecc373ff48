"""Who trains: the published image's program or the open trainer, in earnest or as a rehearsal."""

import json

import pytest

from launcher.common.names import CONFIG_DIR
from launcher.planning import plan_report

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
    script = render(*LLMFT, "rehearse=true").files["run.sh"]
    assert script.rstrip().endswith('-m launcher.runtime.entrypoint --rehearse --config-path "$bundle"/configs')
    modules = "transformers.modeling_utils peft launcher.runtime.finetune.trainer"
    assert f'exec "$python" -m launcher.runtime.warm "$port" {modules}\n' in script


@pytest.mark.parametrize("more", [(), (ELASTIC,)], ids=["static", "elastic"])
def test_the_compiled_configuration_is_the_same_whoever_trains(render, more):
    published = render(*K8S, *more)
    trained_openly = render(*K8S, *more, "cluster.trainer=open", IMAGE, "rehearse=true")
    here = render(*LLMFT, *more, "rehearse=true")
    assert configs(published) == configs(trained_openly) == configs(here) != {}
