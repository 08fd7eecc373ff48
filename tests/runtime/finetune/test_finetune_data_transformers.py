"""Tokens and trained parts against transformers' own chat templates."""

import json
import random
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from launcher.runtime.finetune.data.errors import DataError
from launcher.runtime.finetune.data.preparation import prepare
from launcher.runtime.finetune.data.settings import Chain, DataSettings
from launcher.runtime.finetune.rehearsal_data import write_rehearsal_data

pytestmark = pytest.mark.slow

NUM_CONVERSATIONS = 60
SPECIAL = {
    "llama3": ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    "qwen": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"],
    "deepseek": [
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        "<｜User｜>",
        "<｜Assistant｜>",
        "<think>",
        "</think>",
    ],
}
TEMPLATES = {
    "llama3": "llama3",
    "llama3_1": "llama3",
    "qwen2_5": "qwen",
    "qwen3": "qwen",
    "deepseek_r1_distill": "deepseek",
}
MARKED = ["llama3_training", "qwen2_5_training", "qwen3_training", "deepseek_r1_distill_training"]


def template(name: str) -> str:
    return (files("trl") / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory):
    """Return a function: a template's name to a tokenizer that has it."""

    def folder(name: str) -> Path:
        special = SPECIAL[TEMPLATES[name.removesuffix("_training")]]
        place = write_rehearsal_data(tmp_path_factory.mktemp(name), "sft", 1).tokenizer_folder
        _add(place, special, template(name))
        return place

    return folder


def _add(folder: Path, special: list[str], text: str) -> None:
    from tokenizers import AddedToken, Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(each, special=True, normalized=False) for each in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"chat_template": text, "bos_token": special[0], "eos_token": special[-1]}
    path.write_text(json.dumps(config))


def conversations() -> list[list[dict[str, Any]]]:
    draw = random.Random(7)
    words = ["ferry", "bell", "mühle", "天气", "🙂", "  two", "\n\n", "x=1;", "don't", "é", "wheel.", "<b>"]
    found = []
    for number in range(NUM_CONVERSATIONS):
        messages = [{"role": "system", "content": "Be brief."}] if number % 3 == 0 else []
        for turn in range(1 + number % 4):
            messages.append({"role": "user", "content": " ".join(draw.choices(words, k=draw.randint(1, 30)))})
            answer = {"role": "assistant", "content": " ".join(draw.choices(words, k=draw.randint(1, 30)))}
            if number % 5 == 0 and turn % 2 == 0:
                answer["content"] = f"<think>\nI count.\n</think>\n\n{answer['content']}"
            messages.append(answer)
        found.append(messages)
    return found


def prepared(folder: Path, tmp_path: Path, **settings: Any):
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(json.dumps({"messages": each}) + "\n" for each in conversations()))
    given = DataSettings("sft", str(path), split_ratio=1.0, **settings)
    return prepare(given, folder, tmp_path / "prepared").train


@pytest.mark.parametrize("name", MARKED)
def test_ids_and_trained_parts_are_those_of_transformers(name, tokenizer_folder, tmp_path):
    from transformers import AutoTokenizer

    folder = tokenizer_folder(name)
    train = prepared(folder, tmp_path)
    theirs = AutoTokenizer.from_pretrained(folder)
    assert len(train) == NUM_CONVERSATIONS
    for index, messages in enumerate(conversations()):
        expected = theirs.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        ids, trained = train.sample(index)
        assert ids.tolist() == expected["input_ids"]
        assert trained.tolist() == expected["assistant_masks"]


@pytest.mark.parametrize("thinking", [None, False, True])
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_last_turn_of_a_template_without_marks_is_trained(name, thinking, tokenizer_folder, tmp_path):
    from transformers import AutoTokenizer

    folder = tokenizer_folder(name)
    variables = {} if thinking is None else {"enable_thinking": thinking}
    chain = Chain(template_variables=tuple(variables.items()))
    train = prepared(folder, tmp_path, chain=chain, assistant_turns="last")
    theirs = AutoTokenizer.from_pretrained(folder)
    assert len(train) == NUM_CONVERSATIONS
    for index, messages in enumerate(conversations()):
        ids, trained = train.sample(index)
        text = theirs.apply_chat_template(messages, tokenize=False, **variables)
        assert ids.tolist() == theirs(text, add_special_tokens=False)["input_ids"]
        answer = theirs.decode([each for each, flag in zip(ids, trained, strict=True) if flag])
        prompt = theirs.decode([each for each, flag in zip(ids, trained, strict=True) if not flag])
        assert prompt + answer == text  # one part, at the end
        assert messages[-1]["content"].split("</think>")[-1].strip() in answer
        assert "assistant" not in answer.lower()


@pytest.mark.parametrize(
    "name", ["cohere", "cohere2", "gemma3", "lfm2", "llama3", "qwen2_5_vl", "qwen3_instruct_2507"]
)
def test_every_turn_of_a_template_without_marks_is_trained_as_by_trls_marks(name, tmp_path):
    from transformers import AutoTokenizer

    place = write_rehearsal_data(tmp_path / "made", "sft", 1).tokenizer_folder
    text = template(name)
    _add(place, sorted(set(re.findall(r"<\|?[a-zA-Z_]+\|?>", text))) or SPECIAL["llama3"], text)
    theirs = AutoTokenizer.from_pretrained(place)
    train = prepared(place, tmp_path)
    assert len(train) == NUM_CONVERSATIONS
    for index, messages in enumerate(conversations()):
        expected = theirs.apply_chat_template(
            messages,
            chat_template=template(f"{name}_training"),
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        ids, trained = train.sample(index)
        assert ids.tolist() == expected["input_ids"]
        assert trained.tolist() == expected["assistant_masks"]


@pytest.mark.parametrize("name", ["gptoss", "qwen3", "phi3", "glm4moe"])
def test_a_published_template_that_rewrites_earlier_turns_is_refused(name, tmp_path):
    place = write_rehearsal_data(tmp_path / "made", "sft", 1).tokenizer_folder
    _add(place, SPECIAL["qwen"], template(name))
    with pytest.raises(
        DataError, match=r"messages\[\d\], an answer, .* in another way when messages follow"
    ) as caught:
        prepared(place, tmp_path)
    assert len(caught.value.messages) == 1


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_prompt_of_a_pair_is_what_generation_starts_from(name, tokenizer_folder, tmp_path):
    from transformers import AutoTokenizer

    folder = tokenizer_folder(name)
    path = tmp_path / "pairs.jsonl"
    other = [{"role": "assistant", "content": "No."}]
    pairs = [{"chosen": each, "rejected": each[:-1] + other} for each in conversations()]
    path.write_text("".join(json.dumps(each) + "\n" for each in pairs))
    train = prepare(DataSettings("dpo", str(path), split_ratio=1.0), folder, tmp_path / "prepared").train
    theirs = AutoTokenizer.from_pretrained(folder)
    for index, pair in enumerate(pairs):
        prompt, chosen, rejected = (theirs.decode(part) for part in train.sample(index))
        start = theirs.apply_chat_template(pair["chosen"][:-1], tokenize=False, add_generation_prompt=True)
        assert start.startswith(prompt) and start.removeprefix(prompt).strip() in ("", "<think>")
        assert prompt + chosen == theirs.apply_chat_template(pair["chosen"], tokenize=False)
        assert prompt + rejected == theirs.apply_chat_template(pair["rejected"], tokenize=False)


def test_transformers_loads_the_tokenizer_of_a_rehearsal(tmp_path):
    from transformers import AutoTokenizer

    made = write_rehearsal_data(tmp_path / "made", "sft", 3)
    theirs = AutoTokenizer.from_pretrained(made.tokenizer_folder)
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id, len(theirs)) == (0, 1, 2, 512)
    settings = DataSettings("sft", str(made.train_file), split_ratio=1.0)
    train = prepare(settings, made.tokenizer_folder, tmp_path / "prepared").train
    for index, line in enumerate(made.train_file.read_text().splitlines()):
        messages = json.loads(line)["messages"]
        expected = theirs.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        ids, trained = train.sample(index)
        assert (ids.tolist(), trained.tolist()) == (expected["input_ids"], expected["assistant_masks"])
