"""Small models, samples and jobs for the tests of the open trainer."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import yaml

from launcher.runtime.finetune.architectures import read_config, rehearsal_config
from launcher.runtime.finetune.data.losses import Counts
from launcher.runtime.finetune.data.prepared import Prepared, PreparedConversations, PreparedPairs
from launcher.runtime.finetune.data.settings import DataSettings
from launcher.runtime.finetune.inputs import Inputs
from launcher.runtime.finetune.models import import_libraries, model_class, random_model

VOCABULARY = 512
MODELS = {
    "llama": "meta-llama/Llama-3.1-8B-Instruct",
    "llama_tied": "meta-llama/Llama-3.2-1B-Instruct",
    "llama4_text": "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "qwen2": "Qwen/Qwen2.5-7B-Instruct",
    "qwen3": "Qwen/Qwen3-8B",
    "qwen3_5_text": "Qwen/Qwen3.5-9B",
    "gpt_oss": "openai/gpt-oss-20b",
    "mistral": "mistralai/Mistral-7B-v0.1",
    "ministral3": "mistralai/Ministral-3-8B-Base-2512",
    "smollm3": "HuggingFaceTB/SmolLM3-3B",
    "phi3": "microsoft/Phi-3-mini-4k-instruct",
    "glm": "THUDM/glm-4-9b-chat-hf",
    "ernie4_5": "baidu/ERNIE-4.5-0.3B-PT",
    "jais2": "inceptionai/Jais-2-8B-Chat",
}
"""A published model of each architecture."""

ROUTERS = tuple(f"model.layers.{layer}.feed_forward.router" for layer in range(4))
LORA = {
    "peft_type": "lora",
    "task_type": "CAUSAL_LM",
    "r": 4,
    "lora_alpha": 8,
    "lora_dropout": 0.0,
    "bias": "none",
    "target_modules": "all-linear",
    "use_dora": False,
}
CONFIG = yaml.safe_load(Path(__file__).with_name("config.yaml").read_text())
"""A compiled recipe: supervised fine-tuning of Llama 3.2 1B with adapters."""


def compiled(model="llama", technique="sft", *, lora=True, model_changes=None, **args):
    """Return a compiled recipe with some of its values changed."""
    training = CONFIG["training_config"]
    peft = LORA | ({"exclude_modules": list(ROUTERS)} if model == "llama4_text" else {}) if lora else None
    small = {"max_epochs": 2, "gradient_checkpointing": False, "learning_rate": 3e-3, "trainer_type": technique}
    preference = {"beta": 0.1, "loss_type": "sigmoid", "label_smoothing": 0.0, "nll_loss_coef": 0.0}
    steps = {"preprocessor_cfgs": [{"type": "TokenizeSampleDPO"}]} if technique == "dpo" else {}
    return CONFIG | {
        "training_config": training
        | {
            "datasets": training["datasets"] | steps,
            "model_config": training["model_config"]
            | {"model_name_or_path": MODELS[model], "peft_config": peft}
            | (model_changes or {}),
            "training_args": training["training_args"] | small | (preference if technique == "dpo" else {}) | args,
        }
    }


def fsdp(**changes):
    """Return the argument of `compiled` that changes the settings of FSDP."""
    return {
        "strategy": {"fsdp_config": CONFIG["training_config"]["training_args"]["strategy"]["fsdp_config"] | changes}
    }


def conversations(count, *, seed=0, longest=40):
    """Return conversations of unequal lengths, of random tokens."""
    random = np.random.default_rng(seed)
    lengths = random.integers(5, longest, count)
    trained = (random.random(lengths.sum()) < 0.6).astype(np.uint8)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    trained[offsets[:-1]], trained[offsets[1:] - 1] = 0, 1
    ids = random.integers(0, VOCABULARY, lengths.sum()).astype(np.uint32)
    return PreparedConversations(ids, trained, offsets, np.add.reduceat(trained, offsets[:-1]).astype(np.int32))


def pairs(count, *, seed=0):
    """Return preference pairs of unequal lengths, of random tokens."""
    random = np.random.default_rng(seed)
    lengths = random.integers(3, 20, 3 * count)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = random.integers(0, VOCABULARY, lengths.sum()).astype(np.uint32)
    return PreparedPairs(ids, offsets, lengths.reshape(-1, 3)[:, 1:].astype(np.int32))


def prepared(train, validation=None, folder=Path("unused")):
    """Return samples as preparation would."""
    counts = Counts(len(train), len(train), {}, 0, 0, len(train.ids), int(train.targets.sum()))
    return Prepared(folder, train, validation, "digest", counts, ())


def inputs(config, folder):
    """Return the inputs of a rehearsal of a compiled recipe, whose samples are given otherwise."""
    path = config["training_config"]["model_config"]["model_name_or_path"]
    return Inputs(
        data=DataSettings.of(config["training_config"]),
        tokenizer=folder,
        config=rehearsal_config(path, "", VOCABULARY),
        weights=None,
        prepared=folder,
        results=folder / "model",
        is_rehearsal=True,
    )


def preload(config):
    """Import what a training of a compiled recipe needs: each rank that is forked from here would import it again."""
    import_libraries(config)
    model_class(inputs(config, Path()).config)


def saved_model(folder, model="llama", *, seed=7, dtype=torch.float32, **changes):
    """Write a small random model of an architecture into `folder`, as transformers publishes it; return the model."""
    config = rehearsal_config(MODELS[model], "", VOCABULARY) | changes
    found = random_model(config, "eager", dtype=dtype, seed=seed)
    found.save_pretrained(folder)
    return found.eval()


def with_weights(given, folder):
    """Return inputs with the model of a folder in place of a rehearsal's."""
    return replace(given, weights=folder, config=read_config(folder), is_rehearsal=False)
