"""A tokenizer and samples for a rehearsal, made on the spot: nothing is downloaded.

The tokenizer is trained on the corpus that ships with the runtime. The samples are cut from the same corpus, so that
a tiny model has something to learn. Both depend on the seed only.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from launcher.runtime import durable

VOCABULARY = 512
"""Entries of the tokenizer: 256 bytes, the special tokens, and merges."""
NUM_SAMPLES = 240
_CORPUS = Path(__file__).parents[1] / "data" / "tiny_corpus.txt"
_BOS, _EOS, _PAD, _START, _END = "<|begin|>", "<|end|>", "<|pad|>", "<|role|>", "<|text|>"
_TEMPLATE = """\
{{ bos_token }}
{%- for message in messages %}
{{- '<|role|>' + message['role'] + '<|text|>' }}
{%- if message['role'] == 'assistant' %}
{%- generation %}{{ message['content'] + eos_token }}{% endgeneration %}
{%- else %}
{{- message['content'] + eos_token }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|role|>assistant<|text|>' }}{% endif %}
"""
_SYSTEM = "You answer from the text you were given."
_QUESTIONS = (
    "Continue: {}",
    "What follows this sentence? {}",
    "{}\nGo on from here, please.",
    "Finish the thought that begins with: {}",
)


@dataclass(frozen=True, slots=True)
class RehearsalData:
    """What a rehearsal trains on: a tokenizer as `save_pretrained` writes it, and JSONL of conversations or pairs."""

    tokenizer_folder: Path
    train_file: Path


def write_rehearsal_data(
    folder: Path, technique: Literal["sft", "dpo"], seed: int, num_samples: int = NUM_SAMPLES
) -> RehearsalData:
    """Write a tokenizer and samples into `folder`; the same bytes for the same arguments."""
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(tokenizer)
    train = folder / f"{technique}.jsonl"
    samples = _samples(technique, random.Random(seed), num_samples)
    durable.write_text(train, "".join(json.dumps(sample) + "\n" for sample in samples))
    return RehearsalData(tokenizer, train)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[_BOS, _EOS, _PAD, _START, _END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS.read_text(encoding="utf-8").splitlines(keepends=True), trainer)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _BOS,
        "eos_token": _EOS,
        "pad_token": _PAD,
        "chat_template": _TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 131072,
    }
    durable.write_text(folder / "tokenizer.json", tokenizer.to_str(pretty=True))
    durable.write_text(folder / "tokenizer_config.json", json.dumps(config, indent=2) + "\n")


def _samples(technique: str, draw: random.Random, num_samples: int) -> Iterator[dict[str, Any]]:
    text = " ".join(_CORPUS.read_text(encoding="utf-8").split())
    sentences = [sentence.strip() + "." for sentence in text.split(".") if sentence.strip()]
    for number in range(num_samples):
        messages = [_message("system", _SYSTEM)] if number % 4 == 0 else []
        for _ in range(1 + number % 3):
            question, answer = _exchange(draw, sentences)
            messages += [_message("user", question), _message("assistant", answer)]
        if technique == "sft":
            yield {"messages": messages}
            continue
        *prompt, chosen = messages
        words = chosen["content"].split()
        draw.shuffle(words)  # the same words without their order: a preference that can be learned
        rejected = _message("assistant", " ".join(words[: draw.randint(1, len(words))]))
        yield {"prompt": prompt, "chosen": [chosen], "rejected": [rejected]}


def _exchange(draw: random.Random, sentences: list[str]) -> tuple[str, str]:
    """Return a question with a sentence of the corpus, and one to three sentences that follow it as the answer."""
    length = draw.randint(1, 3)
    start = draw.randrange(len(sentences) - length)
    question = draw.choice(_QUESTIONS).format(sentences[start])
    return question, " ".join(sentences[start + 1 : start + 1 + length])


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
