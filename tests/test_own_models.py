"""The models that no published recipe has: their sizes and the counts of their weights are those of transformers."""

import pytest
from conftest import shipped

from launcher.checkpointing import architecture
from launcher.runtime import model_configs
from launcher.runtime.finetune.architectures import architecture_of, rehearsal_config

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

MODELS = (
    "mistralai/Mistral-7B-v0.1",
    "HuggingFaceTB/SmolLM3-3B",
    "mistralai/Ministral-3-8B-Base-2512",
    "microsoft/Phi-3-mini-4k-instruct",
    "THUDM/glm-4-9b-chat-hf",
    "baidu/ERNIE-4.5-0.3B-PT",
    "inceptionai/Jais-2-8B-Chat",
)
LORA = {"r": 16, "bias": "none", "target_modules": "all-linear", "use_dora": False}

pytestmark = pytest.mark.slow


def test_these_are_the_models_of_our_own_fine_tuning_recipes():
    own = (each for each in shipped() if each.model_type == "llm_finetuning_aws" and not each.is_published)
    assert {each.model_name_or_path for each in own} == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_the_configuration_is_the_default_of_the_class_that_names_the_model(name):
    from launcher.runtime.finetune.models import model_config

    found = model_config(model_configs.table()[name])
    assert f"[{name.removesuffix('-hf')}]" in type(found).__doc__
    assert found.to_dict() == type(found)().to_dict()


@pytest.mark.parametrize("bias", ["none", "all"])
@pytest.mark.parametrize("name", MODELS)
def test_weights_and_adapters_are_as_many_as_in_the_model_that_is_built(name, bias):
    import peft

    from launcher.runtime.finetune.models import model_class, model_config

    config = rehearsal_config(name, "", 512)
    with torch.device("meta"):
        built = model_class(architecture_of(config))(model_config(config))
        assert architecture.num_parameters(config) == sum(each.numel() for each in built.parameters())
        adapted = peft.get_peft_model(built, peft.LoraConfig(**LORA | {"bias": bias}, task_type="CAUSAL_LM"))
    trained = sum(each.numel() for each in adapted.parameters() if each.requires_grad)
    assert architecture.lora_parameters(architecture.weights(config), LORA | {"bias": bias}) == trained
