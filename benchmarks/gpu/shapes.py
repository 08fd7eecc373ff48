"""What the training stages train: models of the real shape, with random weights and random tokens; or tiny ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from launcher.runtime import model_configs
from launcher.runtime.finetune.data.prepared import Prepared, PreparedConversations, PreparedPairs
from launcher.runtime.finetune.inputs import Inputs, inputs_of, prepared_data
from launcher.runtime.finetune.settings import DPO, Settings, settings_of

RECIPE = Path(__file__).parents[2] / "tests" / "runtime" / "finetune" / "config.yaml"
"""Supervised fine-tuning of Llama 3.2 1B with adapters, as compiled: the stages change some of its values."""
LLAMA_1B, LLAMA_3B, LLAMA_8B = (
    "meta-llama/Llama-3.2-1B-Instruct",
    "meta-llama/Llama-3.2-3B-Instruct",
    "meta-llama/Llama-3.1-8B-Instruct",
)
QWEN_600M, GPT_OSS = "Qwen/Qwen3-0.6B", "openai/gpt-oss-20b"
LORA = yaml.safe_load(RECIPE.read_text())["training_config"]["model_config"]["peft_config"]
"""The adapters of the published recipes: rank 16 on all linear layers."""
EXPERTS = LORA | {"lora_dropout": 0.0, "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
"""Those of the recipe of gpt-oss 20B: on its experts, too."""
NUM_SAMPLES, TINY_TOKENS = 64, 48
_PREFERENCE = {"beta": 0.1, "loss_type": "sigmoid", "label_smoothing": 0.0, "nll_loss_coef": 0.0}


@dataclass(frozen=True, slots=True)
class Shape:
    """A training.

    Args:
        model: Name on the Hugging Face Hub.
        tokens: Of each sample; of each answer with its prompt, in a pair.
        batch: Samples, or pairs, of an optimizer step.
        micro: Of a forward pass.
        recomputes: Whether activations are recomputed.
        peft: The recipe's `peft_config`; None trains all weights.
        technique: `sft` or `dpo`.
    """

    model: str
    tokens: int
    batch: int
    micro: int
    recomputes: bool
    peft: Mapping[str, Any] | None = field(default=None, hash=False)
    technique: str = "sft"

    @property
    def rows(self) -> int:
        """Rows of a sample: a pair has two."""
        return 2 if self.technique == DPO else 1

    @property
    def tokens_per_step(self) -> int:
        """Tokens that the model reads in an optimizer step."""
        return self.batch * self.rows * self.tokens

    def tiny(self) -> "Shape":
        """Return the same training of few tokens."""
        return replace(self, tokens=TINY_TOKENS)


@dataclass(frozen=True, slots=True)
class Training:
    """Everything that the open trainer takes, but for the place of the process."""

    config: Mapping[str, Any]
    settings: Settings
    inputs: Inputs
    data: Prepared


def compiled(shape: Shape) -> dict[str, Any]:
    """Return the compiled recipe of a training that does not end by itself and saves nothing on the way."""
    config: dict[str, Any] = yaml.safe_load(RECIPE.read_text())
    training = config["training_config"]
    training["model_config"] |= {
        "model_name_or_path": shape.model,
        "peft_config": dict(shape.peft) if shape.peft else None,
    }
    training["training_args"] |= {
        "trainer_type": shape.technique,
        "train_batch_size": shape.batch,
        "micro_train_batch_size": shape.micro,
        "gradient_checkpointing": shape.recomputes,
        "max_epochs": 10**6,
        "save_steps": -1,
        "logging_steps": 10**9,
    }
    if shape.technique == DPO:
        training["training_args"] |= _PREFERENCE
        training["datasets"]["preprocessor_cfgs"] = [{"type": "TokenizeSampleDPO"}]
    return config


def model_config(shape: Shape) -> Mapping[str, Any]:
    """Return the configuration of the model in its real size."""
    found = model_configs.known(shape.model)
    assert found is not None, shape.model
    return found


def training_of(shape: Shape, folder: Path, *, world_size: int = 1, tiny: bool = False) -> Training:
    """Return a training of random tokens. Collective.

    Args:
        shape: Of the training; of a tiny one, only the tokens change.
        folder: Receives everything that the training writes.
        world_size: Number of ranks.
        tiny: Whether to shrink the model as a rehearsal does.
    """
    config = compiled(shape)
    settings = settings_of(config, world_size)
    made_up = inputs_of(config, settings, folder, rehearse=True)
    data = prepared_data(made_up, is_node_first=True)
    real = made_up if tiny else replace(made_up, config=model_config(shape), is_rehearsal=False)
    train = _of_length(data.train, shape.tokens, real.config["vocab_size"])
    return Training(config, settings, real, replace(data, train=train, validation=None))


def _of_length(
    samples: PreparedConversations | PreparedPairs, tokens: int, vocabulary: int
) -> PreparedConversations | PreparedPairs:
    """Return random samples of one length in the place of prepared ones; no token is padding."""
    random = np.random.default_rng(0)

    def ids(count: int) -> np.ndarray:
        return random.integers(0, vocabulary, count, dtype=np.uint32)

    if isinstance(samples, PreparedPairs):
        prompt, answer = tokens // 2, tokens - tokens // 2
        parts = np.tile([prompt, answer, answer], NUM_SAMPLES)
        offsets = np.concatenate([[0], np.cumsum(parts)]).astype(np.int64)
        targets = np.full((NUM_SAMPLES, 2), answer, np.int32)
        return replace(samples, ids=ids(offsets[-1]), offsets=offsets, targets=targets)
    offsets = np.arange(NUM_SAMPLES + 1, dtype=np.int64) * tokens
    trained = np.ones(NUM_SAMPLES * tokens, np.uint8)
    trained[offsets[:-1]] = 0  # nothing precedes the first token
    targets = np.full(NUM_SAMPLES, tokens - 1, np.int32)
    return replace(samples, ids=ids(offsets[-1]), trained=trained, offsets=offsets, targets=targets)
