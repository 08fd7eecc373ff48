"""Prepared data: forms of samples, trained parts, chains, limits, splits, and what is written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.runtime.finetune.data.errors import DataError
from launcher.runtime.finetune.data.preparation import prepare
from launcher.runtime.finetune.data.prepared import Prepared, PreparedConversations, PreparedPairs, load
from launcher.runtime.finetune.data.settings import Chain, DataSettings, chain_of
from launcher.runtime.finetune.data.tokenization import open_tokenizer
from launcher.runtime.finetune.rehearsal_data import NUM_SAMPLES, VOCABULARY, write_rehearsal_data

CHAT = [{"role": "user", "content": "What rings twice?"}, {"role": "assistant", "content": "The ferry bell."}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rehearsal_data(tmp_path_factory.mktemp("rehearsal"), "sft", 1).tokenizer_folder


@pytest.fixture
def prepared(tokenizer: Path, tmp_path: Path) -> Callable[..., Prepared]:
    """Prepares a list of samples; further arguments are settings."""

    def prepare_samples(samples: list[Any], technique: str = "sft", **settings: Any) -> Prepared:
        path = tmp_path / "samples.jsonl"
        path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
        folder = settings.pop("tokenizer", tokenizer)
        given = {"split_ratio": 1.0} | settings
        return prepare(DataSettings(technique, str(path), **given), folder, tmp_path / "prepared")

    return prepare_samples


def text_of(tokenizer: Path, ids: Any) -> str:
    plain = open_tokenizer(tokenizer, DataSettings("sft", "")).tokenizer
    return plain.decode([int(each) for each in ids], skip_special_tokens=False)


def trained_text(tokenizer: Path, data: Any, index: int) -> str:
    ids, trained = data.sample(index)
    return text_of(tokenizer, [each for each, flag in zip(ids, trained, strict=True) if flag])


def test_rehearsal_data_is_prepared_and_read_again_without_a_tokenizer(tmp_path):
    made = write_rehearsal_data(tmp_path / "made", "sft", 3)
    written = prepare(DataSettings("sft", str(made.train_file)), made.tokenizer_folder, tmp_path / "prepared")
    read = load(written.folder)
    assert isinstance(read.train, PreparedConversations)
    assert (len(read.train), len(read.validation)) == (216, 24)
    assert read.digest == written.digest == written.folder.name
    assert read.counts == written.counts
    assert read.counts.read == read.counts.kept == NUM_SAMPLES
    assert read.train.ids.max() < VOCABULARY
    for index in range(len(read.train)):
        ids, trained = read.train.sample(index)
        assert len(ids) == len(trained)
        assert read.train.targets[index] == trained[1:].sum() > 0


def test_rehearsal_pairs_are_prepared(tmp_path):
    made = write_rehearsal_data(tmp_path / "made", "dpo", 3)
    found = prepare(DataSettings("dpo", str(made.train_file)), made.tokenizer_folder, tmp_path / "prepared")
    assert isinstance(found.train, PreparedPairs)
    assert (len(found.train), len(found.validation)) == (216, 24)
    for index in range(len(found.train)):
        prompt, chosen, rejected = found.train.sample(index)
        assert len(prompt)
        assert found.train.targets[index].tolist() == [len(chosen), len(rejected)]


def test_only_the_answers_are_trained(prepared, tokenizer):
    found = prepared([{"messages": CHAT + CHAT}])
    assert trained_text(tokenizer, found.train, 0) == "The ferry bell.<|end|>" * 2


def test_a_corrupted_line_is_named(prepared, tmp_path, tokenizer):
    path = tmp_path / "broken.jsonl"
    path.write_text(json.dumps({"messages": CHAT}) + "\n\n" + '{"messages": [')
    with pytest.raises(DataError, match=r"broken\.jsonl:3: not valid JSON"):
        prepare(DataSettings("sft", str(path)), tokenizer, tmp_path / "prepared")
    assert not [each for each in (tmp_path / "prepared").iterdir() if each.suffix != ".lock"]


PROMPT, ANSWER = CHAT[0]["content"], CHAT[1]["content"]


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param({"messages": CHAT}, id="messages"),
        pytest.param({"messages": CHAT, "id": 7, "prompt": None}, id="further columns"),
        pytest.param({"prompt": PROMPT, "completion": ANSWER}, id="prompt and completion"),
        pytest.param({"prompt": CHAT[:1], "completion": CHAT[1:]}, id="prompt and completion as messages"),
        pytest.param({"instruction": PROMPT, "output": ANSWER}, id="instruction"),
        pytest.param({"instruction": PROMPT, "input": "", "output": ANSWER}, id="instruction with an empty input"),
        pytest.param({"messages": [{**each, "name": None} for each in CHAT]}, id="null keys of a table"),
    ],
)
def test_every_form_of_a_conversation_gives_the_same_tokens(prepared, tokenizer, sample):
    found = prepared([sample])
    text = "<|begin|><|role|>user<|text|>What rings twice?<|end|><|role|>assistant<|text|>The ferry bell.<|end|>"
    assert text_of(tokenizer, found.train.ids) == text
    assert trained_text(tokenizer, found.train, 0) == "The ferry bell.<|end|>"


def test_an_instruction_is_followed_by_its_input(prepared, tokenizer):
    found = prepared([{"instruction": "Translate.", "input": "Guten Tag", "output": "Good day"}])
    assert "<|text|>Translate.\n\nGuten Tag<|end|>" in text_of(tokenizer, found.train.ids)


def test_answers_in_a_prompt_are_not_trained(prepared, tokenizer):
    found = prepared([{"prompt": [*CHAT, CHAT[0]], "completion": [{"role": "assistant", "content": "Twice."}]}])
    assert trained_text(tokenizer, found.train, 0) == "Twice.<|end|>"


PREFERENCE = ([{"role": "assistant", "content": "Twice."}], [{"role": "assistant", "content": "Never."}])


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param({"prompt": PROMPT, "chosen": "Twice.", "rejected": "Never."}, id="text"),
        pytest.param({"prompt": CHAT[:1], "chosen": PREFERENCE[0], "rejected": PREFERENCE[1]}, id="messages"),
        pytest.param({"chosen": CHAT[:1] + PREFERENCE[0], "rejected": CHAT[:1] + PREFERENCE[1]}, id="no prompt"),
        pytest.param(
            {"prompt": PROMPT, "chosen": CHAT[:1] + PREFERENCE[0], "rejected": CHAT[:1] + PREFERENCE[1]},
            id="complete conversations beside the prompt",
        ),
    ],
)
def test_every_form_of_a_pair_gives_the_same_tokens(prepared, tokenizer, sample):
    prompt, chosen, rejected = prepared([sample], "dpo").train.sample(0)
    assert (
        text_of(tokenizer, prompt) == "<|begin|><|role|>user<|text|>What rings twice?<|end|><|role|>assistant<|text|>"
    )
    assert text_of(tokenizer, chosen) == "Twice.<|end|>"
    assert text_of(tokenizer, rejected) == "Never.<|end|>"


@pytest.mark.parametrize(
    ("technique", "sample", "message"),
    [
        pytest.param(
            "sft", {"frage": "x", "antwort": "y"}, r"unknown columns: frage, antwort\. .*messages.*", id="sft"
        ),
        pytest.param("sft", {"prompt": "x", "chosen": "y"}, r"unknown columns: prompt, chosen", id="half a form"),
        pytest.param("sft", {"text": "x"}, r"unknown columns: text\..*pretrain_mode=true", id="plain text"),
        pytest.param("dpo", {"messages": CHAT}, r"unknown columns: messages\. .*chosen and rejected", id="dpo"),
        pytest.param("dpo", {"chosen": "x", "rejected": "y"}, r"unknown columns", id="no prompt"),
        pytest.param("sft", {"messages": []}, r"messages is an empty list", id="no messages"),
        pytest.param("sft", {"messages": "x"}, r"messages is 'x'; it must be a list", id="messages as text"),
        pytest.param(
            "sft", {"messages": [{"role": "poet", "content": "x"}]}, r"messages\[0\]\.role is 'poet'", id="role"
        ),
        pytest.param("sft", {"messages": [{"role": "user"}]}, r"messages\[0\] has no content", id="no content"),
        pytest.param(
            "sft", {"messages": [{"role": "user", "content": 3}]}, r"messages\[0\]\.content is 3", id="number"
        ),
        pytest.param("sft", {"prompt": 3, "completion": "x"}, r"prompt is 3", id="prompt is a number"),
        pytest.param(
            "dpo",
            {"chosen": CHAT, "rejected": CHAT[1:]},
            r"chosen and rejected must be the same messages",
            id="apart",
        ),
    ],
)
def test_a_sample_that_is_not_valid_is_named_with_its_line(prepared, technique, sample, message):
    with pytest.raises(DataError, match=rf"samples\.jsonl:2: {message}"):
        valid = {"messages": CHAT} if technique == "sft" else {"prompt": "x", "chosen": "y", "rejected": "z"}
        prepared([valid, sample], technique)


@pytest.mark.parametrize("line", ["[1, 2]", "3", '"text"', "null", "{'a': 1}", '{"a": "\\ud800'])
def test_a_line_that_is_not_an_object_is_named(tokenizer, tmp_path, line):
    path = tmp_path / "samples.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DataError, match=r"samples\.jsonl:1: "):
        prepare(DataSettings("sft", str(path)), tokenizer, tmp_path / "prepared")


def test_half_of_a_character_is_named(tokenizer, tmp_path):
    path = tmp_path / "samples.jsonl"
    whole = json.dumps({"messages": [{"role": "user", "content": "🙂"}, CHAT[1]]})
    assert "\\ud83d\\ude42" in whole
    path.write_text(whole + "\n" + whole.replace("\\ude42", "") + "\n")
    with pytest.raises(DataError, match=r"samples\.jsonl:2: a text holds half of a character"):
        prepare(DataSettings("sft", str(path)), tokenizer, tmp_path / "prepared")
    path.write_text(whole)
    assert len(prepare(DataSettings("sft", str(path)), tokenizer, tmp_path / "prepared").train) == 1


QUESTION = {"messages": CHAT[:1]}
LONG_QUESTION = {"messages": [{"role": "user", "content": "bell " * 200}, CHAT[1]]}
UNWEIGHTED = {"messages": [CHAT[0], CHAT[1] | {"weight": 0}]}
EMPTY = {"messages": [CHAT[0], {"role": "assistant", "content": ""}]}


def bare(tokenizer: Path, folder: Path, template: str) -> Path:
    """Return a copy of a tokenizer with a template of its own."""
    shutil.copytree(tokenizer, folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder


NO_MARKS = (
    "{% for m in messages %}<|role|>{{ m.role }}<|text|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|role|>assistant<|text|>{% endif %}"
)
MARKS = NO_MARKS.replace(
    "{{ m.content }}<|end|>",
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|end|>{% endif %}",
)


@pytest.mark.parametrize("template", [NO_MARKS, MARKS], ids=["no marks", "marks"])
@pytest.mark.parametrize(
    ("sample", "reason", "turns"),
    [
        pytest.param(QUESTION, "no turn of the assistant", 0, id="no turn"),
        pytest.param(LONG_QUESTION, "the answer begins beyond max_len", 1, id="beyond max_len"),
        pytest.param(UNWEIGHTED, "every turn of the assistant has weight 0", 1, id="weight"),
    ],
)
def test_samples_without_a_trained_token_are_dropped_with_their_reason(
    prepared, tokenizer, tmp_path, template, sample, reason, turns
):
    own = bare(tokenizer, tmp_path / "own", template)
    found = prepared([sample, {"messages": CHAT}, sample], max_len=64, tokenizer=own)
    assert len(found.train) == 1
    assert found.counts.dropped == {reason: 2} and found.counts.num_dropped == 2
    assert (found.counts.read, found.counts.turns) == (3, 1 + 2 * turns)
    (loss,) = found.counts.losses
    assert (loss.reason, loss.is_drop, loss.samples, loss.turns) == (reason, True, 2, 2 * turns)
    assert loss.tokens > 20 and loss.example == f"{tmp_path}/samples.jsonl:1"
    assert found.notes[0].startswith(f"2 of 3 samples dropped (66.7 %): {reason}; ")
    assert found.notes[0].endswith(f"; such as {tmp_path}/samples.jsonl:1")
    assert load(found.folder).counts == found.counts


def test_an_answer_of_which_nothing_is_written_is_dropped(prepared, tokenizer, tmp_path):
    template = NO_MARKS.replace("{{ m.content }}<|end|>", "{{ m.content }}{{ '<|end|>' if m.role == 'user' }}")
    own = bare(tokenizer, tmp_path / "own", template)
    assert prepared([EMPTY, {"messages": CHAT}], tokenizer=own).counts.dropped == {"no text to train on": 1}


@pytest.mark.parametrize("template", [NO_MARKS, MARKS], ids=["no marks", "marks"])
def test_a_turn_with_weight_0_is_not_trained_and_counted(prepared, tokenizer, tmp_path, template):
    own = bare(tokenizer, tmp_path / "own", template)
    answers = [{"role": "assistant", "content": text} for text in ("One.", "Two.", "Three.")]
    messages = [CHAT[0], answers[0], CHAT[0], answers[1] | {"weight": 0}, CHAT[0], answers[2] | {"weight": 1}]
    found = prepared([{"messages": messages}], tokenizer=own)
    assert trained_text(tokenizer, found.train, 0) == "One.<|end|>Three.<|end|>"
    assert "weight" not in text_of(tokenizer, found.train.ids)
    (loss,) = found.counts.losses
    assert (loss.reason, loss.is_drop, loss.samples, loss.turns) == ("weight 0", False, 1, 1)
    assert (found.counts.untrained_turns, found.counts.turns, found.counts.lost_share) == (1, 3, 0)
    assert found.notes == (
        f"1 turn of the assistant in 1 sample not trained: weight 0; such as {tmp_path}/samples.jsonl:1",
    )


def test_a_weight_needs_one_mark_for_each_turn(prepared, tokenizer, tmp_path):
    own = bare(tokenizer, tmp_path / "own", NO_MARKS + "{% generation %}{% endgeneration %}")
    messages = [*CHAT, CHAT[0], CHAT[1] | {"weight": 0}]
    with pytest.raises(DataError, match="marks 1 parts of a conversation with 2 turns .* which of them has weight 0"):
        prepared([{"messages": messages}], tokenizer=own)


def test_a_turn_that_a_template_does_not_mark_is_counted(prepared, tokenizer, tmp_path):
    own = bare(tokenizer, tmp_path / "own", MARKS.replace("m.role == 'assistant'", "loop.last"))
    found = prepared([{"messages": CHAT + CHAT}], tokenizer=own)
    (loss,) = found.counts.losses
    assert (loss.reason, loss.turns) == ("the template marks no text of it", 1)
    assert found.counts.lost_share == 0.5


@pytest.mark.parametrize("settings", [{"pretrain_mode": True}, {"chain": Chain(ignore_prompt_labels=False)}])
def test_a_weight_is_refused_where_every_token_is_trained(prepared, settings):
    with pytest.raises(DataError, match=r"messages\[1\]\.weight is 0, but the recipe trains every token"):
        prepared([UNWEIGHTED], **settings)


def test_turns_behind_max_len_are_counted(prepared, tokenizer):
    full = len(prepared([{"messages": CHAT}]).train.ids)
    found = prepared([{"messages": CHAT * 3}], max_len=full + 5)
    (loss,) = found.counts.losses
    assert (loss.reason, loss.is_drop, loss.samples, loss.turns) == ("cut at the allowed length", False, 1, 2)
    assert loss.tokens == 2 * (full - 1) - 5
    assert found.counts.lost_share == pytest.approx(2 / 3)


def test_a_token_over_the_start_of_an_answer_is_not_trained(prepared, tokenizer, tmp_path):
    """` The` is one token; a model is given the space and has to write the rest."""
    template = NO_MARKS.replace("<|role|>", "").replace("<|text|>", ": ")
    own = bare(tokenizer, tmp_path / "own", template)
    with pytest.raises(DataError, match=r"1 dropped: a token spans the start or the end of an answer"):
        prepared([{"messages": CHAT}], tokenizer=own)


def test_more_lost_than_the_recipe_allows_is_an_error(prepared, tmp_path):
    samples = [QUESTION, {"messages": CHAT}, {"messages": CHAT}, {"messages": CHAT}]
    assert len(prepared(samples, max_lost_share=0.25).train) == 3
    with pytest.raises(DataError) as caught:
        prepared(samples, max_lost_share=0.24)
    (message,) = caught.value.messages
    assert "0.25 of the samples, or of the assistant's turns, would not be trained" in message
    assert "max_lost_share allows 0.24" in message
    assert "1 of 4 samples dropped (25 %): no turn of the assistant; " in message
    assert "set max_lost_share=0.25 in the recipe's section of data" in message
    folders = [each for each in (tmp_path / "prepared").iterdir() if each.is_dir()]
    assert len(folders) == 1  # the arrays stay for a start that allows more, whose digest is the same


def test_max_len_cuts_the_end(prepared, tokenizer):
    sample = {"messages": [CHAT[0], {"role": "assistant", "content": "bell " * 200}]}
    full = prepared([sample]).train.ids
    found = prepared([sample], max_len=64)
    assert found.train.ids.tolist() == full[:64].tolist()
    assert found.counts.cut == 1


def test_max_len_cuts_the_start_where_the_recipe_says_so(prepared, tokenizer):
    """Both answers of a chat end after their questions: of the first, the cut takes the start."""
    full = prepared([{"messages": CHAT * 2}]).train
    found = prepared([{"messages": CHAT * 2}], max_len=len(full.ids) - 8, truncation="left")
    assert found.train.ids.tolist() == full.ids[8:].tolist()
    assert found.train.trained.tolist() == full.trained[8:].tolist()
    assert (found.counts.cut, found.counts.lost_share) == (1, 0)
    last = prepared([{"messages": CHAT * 2}], max_len=len(full.ids) // 2, truncation="left")
    (loss,) = last.counts.losses
    assert (loss.reason, loss.turns) == ("cut at the allowed length", 1)
    assert "The ferry bell." in trained_text(tokenizer, last.train, 0)


def test_nothing_left_is_an_error(prepared):
    with pytest.raises(DataError, match=r"no train sample to use \(1 dropped: no turn of the assistant\)"):
        prepared([{"messages": CHAT[:1]}])
    with pytest.raises(DataError, match=r"no train sample to use \(it holds none"):
        prepared([])
    with pytest.raises(DataError, match="no train sample to use"):
        prepared([{"messages": CHAT}], train_limit=0)
    with pytest.raises(DataError, match="no train sample to use"):
        prepared([], split_ratio=0.9)


def test_limit_and_max_samples_count_samples_read(prepared):
    samples = [{"messages": [{"role": "user", "content": str(n)}, CHAT[1]]} for n in range(30)]
    assert len(prepared(samples, train_limit=7).train) == 7
    assert len(prepared(samples, train_limit=7, max_samples=4).train) == 4
    assert len(prepared(samples, train_limit=2500).train) == 30


@pytest.mark.slow
def test_the_split_depends_on_its_seed_alone(prepared, tokenizer):
    samples = [{"messages": [CHAT[0], {"role": "assistant", "content": f"{n}"}]} for n in range(200)]

    def held_out(**settings: Any) -> list[str]:
        part = prepared(samples, **settings).validation
        return [trained_text(tokenizer, part, index) for index in range(len(part))]

    first = held_out(split_ratio=0.9, split_seed=1)
    assert len(first) == 20
    assert held_out(split_ratio=0.9, split_seed=1, max_len=64) == first
    assert held_out(split_ratio=0.9, split_seed=2) != first
    train = prepared(samples, split_ratio=0.9, split_seed=1).train
    trained = {trained_text(tokenizer, train, index) for index in range(len(train))}
    assert len(trained) == 180 and not trained & set(first)


def test_validation_data_of_its_own_replaces_the_split(prepared, tmp_path):
    path = tmp_path / "validation.jsonl"
    path.write_text((json.dumps({"messages": CHAT}) + "\n") * 5)
    found = prepared([{"messages": CHAT}] * 4, split_ratio=0.5, validation_path=str(path), validation_limit=3)
    assert (len(found.train), len(found.validation)) == (4, 3)


def test_pretrain_mode_trains_plain_text_and_every_token_of_messages(prepared, tokenizer):
    found = prepared([{"text": "The ferry bell."}, {"messages": CHAT}], pretrain_mode=True)
    assert found.train.trained.all()
    assert text_of(tokenizer, found.train.sample(0)[0]) == "The ferry bell.<|end|>"
    assert text_of(tokenizer, found.train.sample(1)[0]).startswith("<|begin|><|role|>user")
    assert found.train.targets.tolist() == [len(found.train.sample(i)[0]) - 1 for i in range(2)]


def test_prompts_are_trained_if_the_recipe_does_not_ignore_them(prepared):
    found = prepared([{"messages": CHAT}], chain=Chain(ignore_prompt_labels=False))
    assert found.train.trained.all()


SFT_CHAIN = [
    {"type": "TrainingSFTSampleConverter"},
    {"type": "Seq2SeqTokensProcessor", "chat_template_name": None, "ignore_prompt_labels": True},
    {"type": "DropColumns", "column_names": ["messages"]},
]
DPO_CHAIN = [
    {"type": "TrainingPOSampleConverter", "prompt_key": "prompt", "key_map": {"chosen": "good", "rejected": "bad"}},
    {"type": "ApplyChatTemplate"},
    {"type": "SelectColumns", "selected_columns": ["prompt", "chosen", "rejected"]},
    {"type": "TokenizeSampleDPO", "add_special_tokens": False, "max_prompt_length": 8, "max_completion_length": 5},
]


def test_a_length_filter_drops_longer_samples(prepared):
    chain = chain_of([*SFT_CHAIN, {"type": "SequenceLengthFilter", "max_seq_length": 60}], "sft")
    long = {"messages": [CHAT[0], {"role": "assistant", "content": "bell " * 200}]}
    found = prepared([long, {"messages": CHAT}], chain=chain)
    assert (len(found.train), found.counts.dropped) == (
        1,
        {"too long for a SequenceLengthFilter": 1},
    )


def test_a_prompt_keeps_its_end_and_an_answer_its_start(prepared, tokenizer):
    sample = {"prompt": PROMPT, "good": "A b c d e f g h", "bad": "No."}
    full = [part.tolist() for part in prepared([sample], "dpo", chain=chain_of(DPO_CHAIN[:3], "dpo")).train.sample(0)]
    found = prepared([sample], "dpo", chain=chain_of(DPO_CHAIN, "dpo"))
    assert [part.tolist() for part in found.train.sample(0)] == [full[0][-8:], full[1][:5], full[2][:5]]
    assert found.counts.cut == 1
    filtered = [
        *DPO_CHAIN,
        {"type": "SequenceLengthFilter", "max_seq_length": 4, "tokens_labels": ["chosen_input_ids"]},
    ]
    with pytest.raises(DataError, match="1 dropped: too long"):
        prepared([sample], "dpo", chain=chain_of(filtered, "dpo"))


def test_an_answer_is_cut_where_prompt_and_answer_exceed_max_len(prepared):
    sample = {"prompt": PROMPT, "chosen": "bell " * 50, "rejected": "No."}
    prompt = prepared([sample], "dpo").train.sample(0)[0]
    found = prepared([sample], "dpo", max_len=len(prompt) + 3)
    assert len(found.train.sample(0)[1]) == 3
    with pytest.raises(DataError, match="1 dropped: the answer begins beyond max_len"):
        prepared([sample], "dpo", max_len=len(prompt))


def test_the_prompt_of_a_pair_is_cut_where_the_recipe_cuts_the_start(prepared):
    sample = {"prompt": PROMPT, "chosen": "bell " * 9, "rejected": "No."}
    full = [part.tolist() for part in prepared([sample], "dpo").train.sample(0)]
    found = prepared([sample], "dpo", max_len=len(full[1]) + 4, truncation="left")
    assert [part.tolist() for part in found.train.sample(0)] == [full[0][-4:], full[1], full[2]]


@pytest.mark.parametrize(
    ("technique", "step", "message"),
    [
        pytest.param(
            "sft", {"type": "Shuffle"}, r"unknown step type 'Shuffle'; known are TrainingSFT.*DPO", id="type"
        ),
        pytest.param("sft", "Shuffle", r"unknown step type 'Shuffle'", id="text"),
        pytest.param("sft", {}, r"unknown step type None", id="no type"),
        pytest.param("dpo", SFT_CHAIN[1], r"not a step of trainer_type dpo; use .*ApplyChatTemplate", id="technique"),
        pytest.param(
            "sft", {"type": "DropColumns", "columns": []}, r"no argument columns; it takes column_names", id="arg"
        ),
        pytest.param("sft", {"type": "SequenceLengthFilter"}, r"max_seq_length is missing", id="no length"),
        pytest.param("sft", {"type": "SequenceLengthFilter", "max_seq_length": 0.5}, r"whole number", id="fraction"),
        pytest.param(
            "sft",
            {"type": "SequenceLengthFilter", "max_seq_length": 9, "tokens_labels": ["labels"]},
            r"unknown tokens_labels",
            id="label",
        ),
        pytest.param("sft", SFT_CHAIN[1] | {"enable_thinking": "no"}, r"must be true or false", id="truth"),
    ],
)
def test_a_step_that_is_not_known_is_an_error(technique, step, message):
    with pytest.raises(DataError, match=rf"datasets\.preprocessor_cfgs\[0\].*{message}"):
        chain_of([step], technique)
