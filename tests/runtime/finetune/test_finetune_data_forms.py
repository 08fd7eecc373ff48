"""Forms of conversations from elsewhere: ShareGPT, weights, function calls, arrays of JSON; and hostile content."""

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.runtime.finetune.data import json_arrays
from launcher.runtime.finetune.data.conversations import pair_sample, sft_sample
from launcher.runtime.finetune.data.errors import DataError, SampleError
from launcher.runtime.finetune.data.settings import Chain
from launcher.runtime.finetune.data.sources import open_source

QUESTION, ANSWER = {"role": "user", "content": "What rings?"}, {"role": "assistant", "content": "The bell."}
SYSTEM = {"role": "system", "content": "Be brief."}
HUMAN, GPT = {"from": "human", "value": "What rings?"}, {"from": "gpt", "value": "The bell."}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        pytest.param({"conversations": [HUMAN, GPT]}, [QUESTION, ANSWER], id="conversations"),
        pytest.param({"conversation": [HUMAN, GPT], "id": "x"}, [QUESTION, ANSWER], id="conversation"),
        pytest.param({"conversations": [[HUMAN, GPT]]}, [QUESTION, ANSWER], id="nested list"),
        pytest.param({"conversations": {"id": 1, "turns": [HUMAN, GPT]}}, [QUESTION, ANSWER], id="nested mapping"),
        pytest.param({"conversations": [QUESTION, ANSWER]}, [QUESTION, ANSWER], id="role and content"),
        pytest.param({"messages": [HUMAN, GPT]}, [QUESTION, ANSWER], id="as messages"),
        pytest.param(
            {"conversations": [{"from": "system", "value": "Be brief."}, HUMAN, GPT]},
            [SYSTEM, QUESTION, ANSWER],
            id="system",
        ),
        pytest.param(
            {"conversations": [HUMAN, GPT], "system": "Be brief."}, [SYSTEM, QUESTION, ANSWER], id="system beside"
        ),
        pytest.param({"conversations": [HUMAN, GPT], "system": ""}, [QUESTION, ANSWER], id="empty system"),
        pytest.param(
            {"conversations": [HUMAN | {"from": "USER"}, GPT | {"from": "chatgpt"}]}, [QUESTION, ANSWER], id="names"
        ),
        pytest.param(
            {
                "conversations": [
                    HUMAN,
                    {"from": "function_call", "value": '{"name": "look", "arguments": {"at": "bell"}}'},
                    {"from": "observation", "value": "It moves."},
                    GPT,
                ]
            },
            [
                QUESTION,
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": {"at": "bell"}}}],
                },
                {"role": "tool", "content": "It moves."},
                ANSWER,
            ],
            id="function",
        ),
    ],
)
def test_share_gpts_forms_are_messages(record, expected):
    assert sft_sample(record, pretrain_mode=False).messages == expected


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"conversations": [HUMAN, {"from": "poet", "value": "x"}]},
            r"conversations\[1\]\.from is 'poet'; known are",
        ),
        ({"conversations": "x"}, "conversations is 'x'; it must be a list"),
        ({"conversations": []}, "conversations is an empty list"),
        ({"conversations": [{"from": "gpt"}]}, r"conversations\[0\] has no content"),
        ({"conversations": [{"from": "function_call", "value": "{"}]}, r"conversations\[0\] is not valid JSON"),
        ({"conversations": [{"from": "function_call", "value": "{}"}]}, r"must be a call of a function as JSON"),
        ({"conversations": ["x"]}, r"conversations\[0\] is 'x'; a message has role"),
        ({"messages": [QUESTION, ANSWER | {"weight": 0.5}]}, r"messages\[1\]\.weight is 0\.5; it must be 0 or 1"),
        ({"messages": [QUESTION, ANSWER | {"weight": True}]}, r"messages\[1\]\.weight is True; it must be 0 or 1"),
        ({"messages": [QUESTION | {"weight": 1}, ANSWER]}, r"weight is 1, but only messages of the assistant"),
    ],
)
def test_what_is_not_of_a_form_is_named(record, message):
    with pytest.raises(SampleError, match=message):
        sft_sample(record, pretrain_mode=False)


def test_weights_are_kept_apart_from_the_messages_of_the_template():
    record = {"messages": [QUESTION | {"weight": 0}, ANSWER | {"weight": 0}, QUESTION, ANSWER | {"weight": 1.0}]}
    found = sft_sample(record, pretrain_mode=False)
    assert found.messages == [QUESTION, ANSWER, QUESTION, ANSWER]
    assert found.unweighted == {1}
    share = {"conversations": [HUMAN, GPT | {"weight": 0}, HUMAN, GPT | {"weight": None}]}
    assert sft_sample(share, pretrain_mode=False).unweighted == {1}


NO = {"role": "assistant", "content": "No."}


@pytest.mark.parametrize(
    "record",
    [
        {"conversations": [HUMAN], "chosen": GPT, "rejected": {"from": "gpt", "value": "No."}},
        {"prompt": [HUMAN], "chosen": [GPT], "rejected": [{"from": "gpt", "value": "No."}]},
        {"chosen": [HUMAN, GPT], "rejected": [HUMAN, {"from": "gpt", "value": "No."}]},
        {"prompt": [QUESTION], "chosen": ANSWER, "rejected": NO},
    ],
    ids=["beside conversations", "lists", "complete", "one message"],
)
def test_pairs_in_share_gpts_form_are_pairs(record):
    found = pair_sample(record, Chain())
    assert (found.prompt, found.chosen, found.rejected) == ([QUESTION], [ANSWER], [NO])


def test_an_answer_of_a_pair_is_the_assistants_alone():
    """Every token of an answer is trained, also those of a user or a tool within it."""
    tool = {"role": "tool", "content": "It moves."}
    with pytest.raises(SampleError, match="chosen has a message of role tool behind the assistant's answer"):
        pair_sample({"prompt": [QUESTION], "chosen": [ANSWER, tool, ANSWER], "rejected": [NO]}, Chain())
    with pytest.raises(SampleError, match="rejected has an answer with weight 0"):
        pair_sample({"prompt": [QUESTION], "chosen": [ANSWER], "rejected": [NO | {"weight": 0}]}, Chain())
    earlier = [QUESTION, ANSWER | {"weight": 0}, QUESTION]
    assert pair_sample({"prompt": earlier, "chosen": [ANSWER], "rejected": [NO]}, Chain()).prompt[1] == ANSWER


def records(path: Path, limit: int = 10**9) -> list[Any]:
    return [record for chunk in open_source(str(path), "train").chunks(limit) for record in chunk.each(dict)]


ROWS = [{"n": n, "text": 'x[]{},\\"\n🙂é' * n} for n in range(57)]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("size", [1, 7, 1 << 20], ids=["a byte at a time", "small pieces", "at once"])
@pytest.mark.parametrize("start", [b"", b"\n \t", b"\xef\xbb\xbf"], ids=["plain", "spaces", "byte order mark"])
def test_one_json_array_is_read_as_its_elements(tmp_path, monkeypatch, indent, size, start):
    monkeypatch.setattr(json_arrays, "_READ_BYTES", max(size, 4) if start else size)
    path = tmp_path / "samples.json"
    path.write_bytes(start + json.dumps(ROWS[:12], indent=indent, ensure_ascii=False).encode() + b"\n")
    assert records(path) == ROWS[:12]
    assert records(path, 5) == ROWS[:5]
    assert open_source(str(path), "train").count(10**9) == 12
    assert [chunk.place(3) for chunk in open_source(str(path), "train").chunks(9)] == [f"{path}:4"]


def test_lines_that_are_objects_are_still_lines(tmp_path):
    path = tmp_path / "samples.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert records(path) == ROWS
    path.write_text("[]")
    assert records(path) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"a": 1}, {"a": }]', r"samples\.json:2: not valid JSON"),
        ('[{"a": 1}, {"a": 2}', r"samples\.json: not a valid JSON array: ',' is missing"),
        ('[{"a": 1} {"a": 2}]', r"samples\.json: not a valid JSON array: ',' is missing"),
        ('[{"a": 1},]', r"samples\.json:2: not valid JSON"),
        ('[{"a": "x', r"samples\.json:1: not valid JSON"),
        ('[{"a": 1}]\n{"a": 2}', "text follows the end of the JSON array"),
        ("[1, 2]", r"samples\.json:1: a JSON int, but a sample is an object"),
        ("[[[[", r"samples\.json:1: not valid JSON"),
        (b'[{"a": "\xff"}]', r"samples\.json: not valid UTF-8"),
        ("[" * 100_000, r"samples\.json:1: not valid JSON"),
    ],
)
def test_an_array_that_is_not_valid_names_the_element(tmp_path, text, message):
    path = tmp_path / "samples.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=message):
        records(path)


HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e"


@pytest.mark.parametrize(
    "record",
    [
        {HOSTILE: 1},
        {"messages": [{"role": HOSTILE, "content": "x"}]},
        {"messages": HOSTILE},
        {"conversations": [{"from": HOSTILE, "value": "x"}]},
        {"messages": [QUESTION | {"weight": HOSTILE}]},
        {"messages": [QUESTION, ANSWER], "tools": HOSTILE},
    ],
    ids=["column", "role", "text", "from", "weight", "tools"],
)
def test_control_characters_of_a_sample_are_escaped_in_its_error(tmp_path, record):
    path = tmp_path / "sam\x1bples.jsonl"
    path.write_text(json.dumps(record) + "\n")
    (chunk,) = open_source(str(path), "train").chunks(1)
    with pytest.raises(DataError) as caught:
        chunk.each(lambda each: sft_sample(each, False))
    assert str(caught.value).isprintable()
