"""Answers in the text of templates without marks: found, proven, or refused with the reason.

The templates are small ones of our own that behave like published ones. Each has a twin with `{% generation %}`
marks, whose trained parts are those of transformers.
"""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from launcher.runtime.finetune.data import turns as turns_module
from launcher.runtime.finetune.data.encoding import Encoder
from launcher.runtime.finetune.data.errors import DataError, TemplateFault
from launcher.runtime.finetune.data.preparation import prepare
from launcher.runtime.finetune.data.settings import Chain, DataSettings
from launcher.runtime.finetune.data.sources import open_source
from launcher.runtime.finetune.data.templates import ChatTemplate, common_prefix
from launcher.runtime.finetune.data.tokenization import open_tokenizer
from launcher.runtime.finetune.data.turns import TurnFinder
from launcher.runtime.finetune.rehearsal_data import write_rehearsal_data

SPECIAL = ["<|begin|>", "<|role|>", "<|text|>", "<|end|>", "<|call|>", "<|stop|>", "<think>", "</think>"]
ASK = "{% if add_generation_prompt %}<|role|>assistant<|text|>{% endif %}"
MARK, END_MARK = "{% generation %}", "{% endgeneration %}"


def both(template: str) -> tuple[str, str]:
    """Return a template whose marked parts are between `[[` and `]]`, without marks and with them."""
    return template.replace("[[", "").replace("]]", ""), template.replace("[[", MARK).replace("]]", END_MARK)


def per_message(answer: str, other: str = "<|role|>{{ m.role }}<|text|>{{ m.content }}<|end|>\n") -> str:
    return (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}"
        + answer
        + "{% else %}"
        + other
        + "{% endif %}{% endfor %}"
    )


ANSWER = "<|role|>assistant<|text|>[[{{ m.content }}<|end|>\n]]"
CALLS = (
    "<|role|>assistant<|text|>[[{{ m.content or '' }}{% for call in m.tool_calls or [] %}<|call|>"
    "{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}<|end|>\n]]"
)
TEMPLATES = {
    "headers, contents trimmed": per_message(ANSWER.replace("m.content", "m.content | trim")) + ASK,
    "chat markup": per_message(ANSWER) + ASK,
    "a default system message": "{% if messages[0].role != 'system' %}<|role|>system<|text|>Help.<|end|>\n{% endif %}"
    + per_message(ANSWER)
    + ASK,
    "the system message in the first question": (
        "{% if messages[0].role == 'system' %}{% set first = messages[0].content ~ '\n' %}"
        "{% set rest = messages[1:] %}"
        "{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}{% for m in rest %}"
        "{% if m.role == 'assistant' %}" + ANSWER + "{% else %}<|role|>user<|text|>{{ first if loop.first else '' }}"
        "{{ m.content }}<|end|>\n{% endif %}{% endfor %}" + ASK
    ),
    "no header, a space before each answer": (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}[[{{ ' ' + m.content + '<|end|>' }}]]"
        "{% else %}<|role|>{{ m.content }}<|stop|>{% endif %}{% endfor %}"
    ),
    "an empty reasoning block in each answer": per_message(
        "<|role|>assistant<|text|>[[<think>\n\n</think>\n\n{{ m.content }}<|end|>\n]]"
    )
    + ASK,
    "calls of functions": "{% if tools %}<|role|>system<|text|>{{ tools | tojson }}<|end|>\n{% endif %}"
    + per_message(CALLS)
    + ASK,
    "results of functions in one message": per_message(
        CALLS,
        "{% if m.role == 'tool' %}{% if messages[loop.index0 - 1].role != 'tool' %}<|role|>user{% endif %}"
        "<|text|>{{ m.content }}{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|end|>\n{% endif %}"
        "{% else %}<|role|>{{ m.role }}<|text|>{{ m.content }}<|end|>\n{% endif %}",
    )
    + ASK,
    "a date": "<|role|>system<|text|>{{ strftime_now('%d %b %Y %H:%M:%S.%f') }}<|end|>\n" + per_message(ANSWER) + ASK,
    "the end of the prompt differs": per_message("<|role|>assistant<|text|>[[{{ m.content }}<|end|>\n]]")
    + ASK.replace("<|text|>", "<|text|><think>\n"),
}
STRIPS = "<|role|>assistant<|text|>{{ m.content if loop.last else m.content.split('</think>')[-1] }}<|end|>\n"
REFUSED = {
    "earlier reasoning is left out": (per_message(STRIPS) + ASK, "in another way when messages follow it"),
    "the last answer has a reasoning block": (
        per_message("<|role|>assistant<|text|>{{ '<think>\n\n</think>' if loop.last }}{{ m.content }}<|end|>\n")
        + ASK,
        "in another way when messages follow it",
    ),
    "the last answer ends otherwise": (
        per_message("<|role|>assistant<|text|>{{ m.content }}{{ '<|stop|>' if loop.last else '<|end|>' }}") + ASK,
        r"in another way when messages follow it: '\|?stop\|>' becomes '\|?end\|>",
    ),
    "the text has an end": (
        per_message(ANSWER.replace("[[", "").replace("]]", ""))
        + ASK.replace("{% endif %}", "{% else %}<|stop|>{% endif %}"),
        "in another way when messages follow it",
    ),
    "tools before the last question": (
        per_message(
            "<|role|>assistant<|text|>{{ m.content }}<|end|>\n",
            "{% if m is sameas(messages | selectattr('role', 'equalto', 'user') | list | last) %}"
            "<|role|>system<|text|>Tools<|end|>\n{% endif %}<|role|>{{ m.role }}<|text|>{{ m.content }}<|end|>\n",
        )
        + ASK,
        "in another way when messages follow it",
    ),
    "answers are merged at the end": (
        "{% for m in messages if m.role != 'assistant' %}{{ m.content }}<|end|>\n{% endfor %}"
        "{% for m in messages if m.role == 'assistant' %}{{ m.content }}<|end|>\n{% endfor %}",
        "in another way when messages follow it",
    ),
}
PRECEDES = {
    "the number of messages": (
        "{{ messages | length }}\n" + per_message("{{ m.content }}<|end|>\n") + ASK,
        "writes what precedes it in another way once it is answered: '1",
    ),
    "answered questions are left out": (
        per_message(
            "<|role|>assistant<|text|>{{ m.content }}<|end|>\n", "{% if loop.last %}{{ m.content }}{% endif %}"
        )
        + ASK,
        r"writes what precedes it in another way once it is answered",
    ),
    "a note in the prompt only": (
        "{% if add_generation_prompt %}Answer now.\n{% endif %}" + per_message("{{ m.content }}<|end|>\n"),
        r"writes what precedes it in another way once it is answered: 'Answer now",
    ),
}


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tokenizer with the special tokens of all templates."""
    from tokenizers import AddedToken, Tokenizer

    folder = write_rehearsal_data(tmp_path_factory.mktemp("made"), "sft", 1).tokenizer_folder
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(each, special=True, normalized=False) for each in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def with_template(shipped: Path, folder: Path, template: str) -> Path:
    shutil.copytree(shipped, folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    return folder


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def conversations() -> list[list[dict[str, Any]]]:
    draw = random.Random(7)
    words = [
        "ferry",
        "bell",
        "mühle",
        "天气",
        "🙂",
        "x=1;",
        "don't",
        "é",
        "wheel.",
        "<|role|>assistant<|text|>",
        "{{ 1 }}",
    ]
    found = []
    for number in range(40):
        messages = [{"role": "system", "content": "Be brief."}] if number % 3 == 0 else []
        for _ in range(1 + number % 5):
            messages += [user(" ".join(draw.choices(words, k=9))), assistant(" ".join(draw.choices(words, k=9)))]
        found.append(messages)
    found.append([user("a"), assistant("a"), user("a"), assistant("a")])
    found.append([user("  spaces \n"), assistant(" \n spaces \n"), user("x"), assistant("y  ")])
    return found


def calling() -> list[dict[str, Any]]:
    call = {"type": "function", "function": {"name": "clock", "arguments": {"zone": "é"}}}
    return [
        *(user("What time is it?"), {"role": "assistant", "content": "", "tool_calls": [call, call]}),
        *({"role": "tool", "content": "12:00"}, {"role": "tool", "content": "13:00"}, assistant("Noon.")),
        *(user("And now?"), {"role": "assistant", "content": "Wait.", "tool_calls": [call]}),
        *({"role": "tool", "content": "12:01"}, assistant("Later.")),
    ]


def trained_of(folder: Path, tmp_path: Path, samples: list[Any], **settings: Any) -> Any:
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return prepare(DataSettings("sft", str(path), split_ratio=1.0, **settings), folder, tmp_path / "prepared")


@pytest.mark.slow
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_answer_is_trained_as_by_a_twin_with_marks(shipped, tmp_path, name):
    from transformers import AutoTokenizer

    plain, marked = both(TEMPLATES[name])
    assert MARK in marked and MARK not in plain
    samples = [{"messages": each} for each in conversations()]
    if "functions" in name:
        samples += [{"messages": calling()}, {"messages": calling(), "tools": [{"name": "clock"}]}] * 2
    found = trained_of(with_template(shipped, tmp_path / "plain", plain), tmp_path, samples)
    theirs = AutoTokenizer.from_pretrained(with_template(shipped, tmp_path / "marked", marked))
    assert (found.counts.read, found.counts.kept, found.counts.losses) == (len(samples), len(samples), ())
    if name == "a date":
        return  # transformers renders at another time
    for index, sample in enumerate(samples):
        ids, trained = found.train.sample(index)
        expected = theirs.apply_chat_template(
            sample["messages"],
            tools=sample.get("tools"),
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        assert ids.tolist() == expected["input_ids"]
        assert trained.tolist() == expected["assistant_masks"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_template_that_rewrites_earlier_answers_is_refused_once(shipped, tmp_path, name):
    template, reason = REFUSED[name]
    folder = with_template(shipped, tmp_path / "own", template)
    messages = [user("One?"), assistant("<think>I count.</think>One."), user("Two?"), assistant("Two.")]
    with pytest.raises(DataError, match=reason) as caught:
        trained_of(folder, tmp_path, [{"messages": messages[2:]}, *[{"messages": messages}] * 3])
    (message,) = caught.value.messages
    assert message.startswith(f"{tmp_path}/samples.jsonl:2: the chat template of ")
    assert "messages[1], an answer" in message
    for remedy in ("chat_template_name=./template.jinja", "assistant_turns=last", "weight 0"):
        assert remedy in message
    assert f"(and 2 more samples up to {tmp_path}/samples.jsonl:4)" in message


@pytest.mark.parametrize("name", REFUSED)
def test_the_last_answer_alone_is_trained_if_asked_or_weighted(shipped, tmp_path, name):
    folder = with_template(shipped, tmp_path / "own", REFUSED[name][0])
    earlier, last = [user("One?"), assistant("<think>I count.</think>One.")], [user("Two?"), assistant("Two.")]
    if name == "answers are merged at the end":
        return  # what precedes the last answer is not what it was asked with
    found = trained_of(folder, tmp_path, [{"messages": [*earlier, *last, user("Three?")]}], assistant_turns="last")
    ids, trained = found.train.sample(0)
    plain = open_tokenizer(folder, DataSettings("sft", "")).tokenizer
    answer = plain.decode(ids[trained == 1].tolist(), skip_special_tokens=False)
    assert "Two." in answer and "One" not in answer and "Two?" not in answer
    assert [(loss.reason, loss.turns) for loss in found.counts.losses] == [("assistant_turns=last", 1)]
    earlier[1]["weight"] = 0
    weighted = trained_of(folder, tmp_path, [{"messages": [*earlier, *last, user("Three?")]}])
    assert weighted.train.ids.tolist() == found.train.ids.tolist()
    assert weighted.train.trained.tolist() == found.train.trained.tolist()


@pytest.mark.parametrize("turns", ["all", "last"])
@pytest.mark.parametrize("name", PRECEDES)
def test_a_template_that_rewrites_the_prompt_is_refused(shipped, tmp_path, name, turns):
    template, reason = PRECEDES[name]
    folder = with_template(shipped, tmp_path / "own", template)
    with pytest.raises(DataError, match=reason):
        trained_of(folder, tmp_path, [{"messages": [user("One?"), assistant("One.")]}], assistant_turns=turns)


def test_reasoning_that_a_template_strips_from_some_conversations_is_refused_in_them(shipped, tmp_path):
    """The frame of a form is learned from placeholders, which have no reasoning to strip."""
    folder = with_template(shipped, tmp_path / "own", REFUSED["earlier reasoning is left out"][0])
    plain = [user("One?"), assistant("One."), user("Two?"), assistant("Two.")]
    thinking = [user("One?"), assistant("<think>x</think>One."), *plain[2:]]
    assert trained_of(folder, tmp_path, [{"messages": plain}] * 3).counts.kept == 3
    with pytest.raises(DataError, match=r"samples\.jsonl:3: .*in another way when messages follow it: '<think>x"):
        trained_of(folder, tmp_path, [{"messages": plain}] * 2 + [{"messages": thinking}])
    last = [*plain[:3], assistant("<think>x</think>Two.")]
    assert trained_of(folder, tmp_path, [{"messages": plain}, {"messages": last}]).counts.kept == 2


def finder(template: str) -> TurnFinder:
    return TurnFinder(
        ChatTemplate(template, {"bos_token": "<|begin|>"}, "test"),
        lambda prompt, texts: min(common_prefix(prompt, text) for text in texts),
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_learned_frame_gives_the_answers_that_prefixes_prove(monkeypatch, name):
    plain, _ = both(TEMPLATES[name])
    learned, proven = finder(plain), finder(plain)
    monkeypatch.setattr(proven, "_frame", lambda messages, turns: None)
    for messages in conversations():
        turns = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        text, spans = learned.find(messages, None, turns)
        if name != "a date":
            assert (text, spans) == proven.find(messages, None, turns)
        for number, (start, stop) in zip(turns, spans, strict=True):
            content = messages[number]["content"].strip()
            assert content.removeprefix("<") in text[start:stop]  # "<" may be the start of the prompt's "<think>"
            assert len(text[start:stop]) <= len(messages[number]["content"]) + len("<think>\n\n</think>\n\n<|end|>\n")


def test_conversations_of_a_known_form_are_rendered_once(monkeypatch):
    plain, _ = both(TEMPLATES["chat markup"])
    found = finder(plain)
    messages = [user("a"), assistant("b")] * 20
    turns = list(range(1, 40, 2))
    found.find(messages, None, turns)
    rendered = []
    render = ChatTemplate.render
    monkeypatch.setattr(
        ChatTemplate, "render", lambda self, *args, **options: rendered.append(1) or render(self, *args, **options)
    )
    other = [each | {"content": f"{each['content']} {number}"} for number, each in enumerate(messages)]
    text, spans = found.find(other, None, turns)
    assert len(rendered) == 1
    assert [text[start:stop] for start, stop in spans] == [f"b {number}<|end|>\n" for number in turns]


def test_few_forms_are_remembered(monkeypatch):
    monkeypatch.setattr(turns_module, "_MAX_FORMS", 2)
    plain, _ = both(TEMPLATES["chat markup"])
    found = finder(plain)
    for number in range(1, 6):
        messages = [user("a"), assistant("b")] * number
        _, spans = found.find(messages, None, list(range(1, 2 * number, 2)))
        assert len(spans) == number
    assert len(found._frames) == 2


def test_an_answer_that_comes_first_is_trained(shipped, tmp_path):
    folder = with_template(shipped, tmp_path / "own", both(TEMPLATES["chat markup"])[0])
    found = trained_of(folder, tmp_path, [{"messages": [assistant("Welcome."), user("a"), assistant("b")]}])
    plain = open_tokenizer(folder, DataSettings("sft", "")).tokenizer
    ids, trained = found.train.sample(0)
    assert plain.decode(ids[trained == 1].tolist()) == "Welcome.<|end|>\nb<|end|>\n".replace("<|end|>", "")


def test_only_the_completion_is_trained_in_each_of_its_answers(shipped, tmp_path):
    folder = with_template(shipped, tmp_path / "own", both(TEMPLATES["chat markup"])[0])
    sample = {
        "prompt": [user("a"), assistant("first"), user("b")],
        "completion": [assistant("second"), user("c"), assistant("third")],
    }
    found = trained_of(folder, tmp_path, [sample])
    plain = open_tokenizer(folder, DataSettings("sft", "")).tokenizer
    ids, trained = found.train.sample(0)
    assert plain.decode(ids[trained == 1].tolist()) == "second\nthird\n"
    assert [(loss.reason, loss.turns) for loss in found.counts.losses] == [("in the prompt", 1)]


def test_an_answer_whose_first_token_is_the_prompts_too_is_dropped(shipped, tmp_path):
    """A model that was given an `a` cannot write the token `al`."""
    tokenizer = open_tokenizer(shipped, DataSettings("sft", "")).tokenizer
    assert tokenizer.encode("al").tokens == ["al"]
    template = both(TEMPLATES["chat markup"])[0].replace("<|text|>", "<|text|>a")
    folder = with_template(shipped, tmp_path / "own", template)
    samples = [{"messages": [user("x"), assistant("l")]}, {"messages": [user("x"), assistant("🙂")]}]
    counts = trained_of(folder, tmp_path, samples).counts
    assert counts.dropped == {"a token spans the start or the end of an answer": 1}


def test_spaces_that_a_tokenizer_does_not_count_are_seen(shipped, tmp_path):
    """With `trim_offsets`, the place of the token ` The` begins behind its space."""
    from tokenizers import Tokenizer, processors

    ask = ASK.replace("<|role|>assistant<|text|>", "assistant: ")
    folder = with_template(shipped, tmp_path / "own", per_message("assistant: {{ m.content }}<|end|>") + ask)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.raises(DataError, match="1 dropped: a token spans the start"):
        trained_of(folder, tmp_path, [{"messages": [user("x"), assistant("The bell.")]}])
    folder = with_template(folder, tmp_path / "other", both(TEMPLATES["chat markup"])[0])
    assert trained_of(folder, tmp_path, [{"messages": [user("x"), assistant("The bell.")]}]).counts.kept == 1


def test_a_template_that_refuses_a_prefix_is_a_fault():
    alternate = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}"
    )
    with pytest.raises(TemplateFault, match="refuses it: roles must alternate"):
        finder(alternate).find([user("a"), user("b"), assistant("c")], None, [2])


def test_variables_of_the_recipe_reach_every_prefix(shipped, tmp_path):
    template = both(TEMPLATES["chat markup"])[0].replace("{{ bos_token }}", "{{ enable_thinking }}")
    folder = with_template(shipped, tmp_path / "own", template)
    chain = Chain(template_variables=(("enable_thinking", False),))
    found = trained_of(folder, tmp_path, [{"messages": [user("a"), assistant("b")] * 2}], chain=chain)
    plain = open_tokenizer(folder, DataSettings("sft", "")).tokenizer
    assert plain.decode(found.train.ids.tolist()).startswith("False")


def test_the_encoder_keeps_what_it_has_learned(shipped, tmp_path):
    folder = with_template(shipped, tmp_path / "own", both(TEMPLATES["chat markup"])[0])
    path = tmp_path / "samples.jsonl"
    path.write_text((json.dumps({"messages": [user("a"), assistant("b")]}) + "\n") * 3)
    settings = DataSettings("sft", str(path))
    encoder = Encoder(settings, open_tokenizer(folder, settings))
    for chunk in open_source(str(path), "train").chunks(10):
        encoder.encode(chunk)
        encoder.encode(chunk)
    assert len(encoder._finder._frames) == 1
