"""The forms of samples, and the conversation or preference pair that each of them means.

Conversations of ShareGPT, lists of `{from, value}`, become messages with role and content.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.runtime.finetune.data.errors import SampleError
from launcher.runtime.finetune.data.settings import Chain

Message = dict[str, Any]
Messages = list[Message]

ASSISTANT = "assistant"
WEIGHT = "weight"
_ROLES = ("system", "developer", "user", "assistant", "tool")
_SHARED_GPT_COLUMNS = ("conversations", "conversation")
_SHARED_GPT_ROLES = {
    "system": "system",
    "developer": "developer",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "function_response": "tool",
    "observation": "tool",
}
"""Source: names of `from` in published data sets; LLaMA-Factory documentation, data preparation, sharegpt format."""
_CALL = "function_call"
_CONTENTS = ("value", "content", "text")
_SFT_FORMS = (
    "messages (a list of {role, content})",
    "conversations (a list of {from, value})",
    "prompt and completion (text, or lists of messages)",
    "instruction, optional input, and output",
)
_PAIR_FORMS = (
    "{prompt}, {chosen} and {rejected} (text, or lists of messages)",
    "{chosen} and {rejected} as complete conversations",
)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages of which the assistant's are trained.

    Args:
        tools: Descriptions of functions for the template; None without functions.
        prompt_messages: Messages at the start that are never trained, even if they are the assistant's.
        unweighted: Messages of the assistant with `weight: 0`, which are not trained.
    """

    messages: Messages
    tools: list[Any] | None = None
    prompt_messages: int = 0
    unweighted: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt and two answers, of which `chosen` is preferred."""

    prompt: Messages
    chosen: Messages
    rejected: Messages
    tools: list[Any] | None = None


def sft_sample(record: Mapping[str, Any], pretrain_mode: bool) -> Conversation | str:
    """Return the conversation of a record, or, if `pretrain_mode` allows it, its plain text, all of which is trained.

    Raises:
        SampleError: The record has none of the known forms.
    """
    for name in ("messages", *_SHARED_GPT_COLUMNS):
        if record.get(name) is not None:
            system = record.get("system") if name in _SHARED_GPT_COLUMNS else None
            return _conversation(_messages(name, record[name], system), record)
    if record.get("prompt") is not None and record.get("completion") is not None:
        prompt = _as_messages("prompt", record["prompt"], "user")
        completion = _as_messages("completion", record["completion"], ASSISTANT)
        return _conversation(prompt + completion, record, len(prompt))
    if record.get("instruction") is not None and record.get("output") is not None:
        parts = [_text(name, record[name]) for name in ("instruction", "input") if record.get(name)]
        answer = _text("output", record["output"])
        return Conversation([_message("user", "\n\n".join(parts)), _message(ASSISTANT, answer)])
    if record.get("text") is not None and pretrain_mode:
        return _text("text", record["text"])
    raise SampleError(_unknown_form(record, _SFT_FORMS, pretrain_mode))


def pair_sample(record: Mapping[str, Any], chain: Chain) -> Pair:
    """Return the preference pair of a record.

    Raises:
        SampleError: The record has none of the known forms.
    """
    names = {"prompt": chain.prompt_key, "chosen": chain.chosen_key, "rejected": chain.rejected_key}
    prompt, chosen, rejected = (record.get(name) for name in names.values())
    if prompt is None:
        prompt = next((record[name] for name in _SHARED_GPT_COLUMNS if record.get(name) is not None), None)
    if chosen is None or rejected is None or (prompt is None and isinstance(chosen, str)):
        forms = tuple(form.format(**names) for form in _PAIR_FORMS)
        raise SampleError(_unknown_form(record, forms, pretrain_mode=True))
    answers = [_as_messages(names["chosen"], chosen, ASSISTANT), _as_messages(names["rejected"], rejected, ASSISTANT)]
    before = _as_messages(names["prompt"], prompt, "user") if prompt is not None else []
    if before and any(answer[0]["role"] == ASSISTANT for answer in answers):
        return _pair(before, answers, names, _tools(record))
    # Both are complete conversations: they share the prompt, and at least one message of each is an answer.
    longest = min(map(len, answers)) - 1
    shared = next((i for i in range(longest) if answers[0][i] != answers[1][i]), longest)
    if shared < max(1, len(before)) or any(answer[shared]["role"] != ASSISTANT for answer in answers):
        columns = f"{names['chosen']} and {names['rejected']}"
        raise SampleError(f"{columns} must be the same messages up to an answer of the assistant, where they differ")
    return _pair(answers[0][:shared], [answer[shared:] for answer in answers], names, _tools(record))


def _pair(prompt: Messages, answers: Sequence[Messages], names: Mapping[str, str], tools: list[Any] | None) -> Pair:
    """Return the pair; every token of an answer is trained, so all of it must be the assistant's."""
    for name, answer in zip((names["chosen"], names["rejected"]), answers, strict=True):
        for message in answer:
            if message["role"] != ASSISTANT:
                found = f"{name} has a message of role {message['role']} behind the assistant's answer"
                raise SampleError(f"{found}, and every token of it would be trained; end it with the answer")
            if message.get(WEIGHT) == 0:
                raise SampleError(f"{name} has an answer with weight 0; remove the pair, or the weight")
    plain = [[_unweighted(message) for message in each] for each in (prompt, *answers)]
    return Pair(plain[0], plain[1], plain[2], tools)


def _conversation(messages: Messages, record: Mapping[str, Any], prompt_messages: int = 0) -> Conversation:
    unweighted = frozenset(
        number for number, message in enumerate(messages) if message.get(WEIGHT) == 0 and message["role"] == ASSISTANT
    )
    plain = [_unweighted(message) for message in messages]
    return Conversation(plain, _tools(record), prompt_messages, unweighted)


def _unweighted(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != WEIGHT} if WEIGHT in message else message


def _as_messages(name: str, value: object, role: str) -> Messages:
    if isinstance(value, str):
        return [_message(role, value)]
    is_message = isinstance(value, Mapping) and ("role" in value or "from" in value)
    return _messages(name, [value] if is_message else value)


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _messages(name: str, value: object, system: object = None) -> Messages:
    is_plain = isinstance(value, list) and (
        not value or (isinstance(value[0], Mapping) and value[0].get("role") in _ROLES)
    )
    if system or not is_plain:
        value = _of_shared_gpt(name, value, system)
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise SampleError(f"{name} is {_shown(value)}; it must be a list of messages with role and content")
    if not value:
        raise SampleError(f"{name} is an empty list; it must hold at least one message")
    return [_checked(f"{name}[{number}]", each) for number, each in enumerate(value)]


def _checked(name: str, message: object) -> Message:
    if not isinstance(message, Mapping):
        raise SampleError(f"{name} is {_shown(message)}; a message has role and content")
    # Columns of a table give every message every key; templates treat a missing key and null differently.
    found = {key: value for key, value in message.items() if value is not None}
    if found.get("role") not in _ROLES:
        raise SampleError(f"{name}.role is {_shown(message.get('role'))}; known are {', '.join(_ROLES)}")
    content = found.get("content")
    if content is None and not found.get("tool_calls"):
        raise SampleError(f"{name} has no content")
    if content is not None and not isinstance(content, str | list):
        raise SampleError(f"{name}.content is {_shown(content)}; it must be text or a list of parts")
    _check_weight(name, found)
    return found


def _of_shared_gpt(name: str, value: object, system: object) -> object:
    """Return the messages of a column, with a system message from beside it; what is not a list stays as it is."""
    found = _unnested(value)
    if not isinstance(found, Sequence) or isinstance(found, str):
        return found
    listed = [_role_and_content(f"{name}[{number}]", each) for number, each in enumerate(found)]
    if system and not (listed and isinstance(listed[0], Mapping) and listed[0].get("role") == "system"):
        listed.insert(0, {"role": "system", "content": system})
    return listed


def _unnested(value: object) -> object:
    """Return the list of messages inside of a list or mapping that holds nothing else."""
    while True:
        if isinstance(value, Mapping) and (inner := [each for each in value.values() if isinstance(each, list)]):
            if len(inner) > 1:
                return value
            value = inner[0]
        elif isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
            value = value[0]
        else:
            return value


def _role_and_content(name: str, message: object) -> object:
    if not isinstance(message, Mapping):
        return message
    key = "role" if message.get("from") is None else "from"
    origin = str(message.get(key)).lower()
    role = _SHARED_GPT_ROLES.get(origin)
    if role is None:
        raise SampleError(f"{name}.{key} is {str(message.get(key))[:40]!r}; known are {', '.join(_SHARED_GPT_ROLES)}")
    content = next((message[text] for text in _CONTENTS if message.get(text) is not None), None)
    further = {name: value for name, value in message.items() if name not in ("from", "role", *_CONTENTS)}
    if origin == _CALL:
        return {"role": role, "content": "", "tool_calls": _calls(name, content)} | further
    return {"role": role, "content": content} | further


def _calls(name: str, value: object) -> list[dict[str, Any]]:
    """Return the calls of functions that a text describes as JSON: one object of name and arguments, or several."""
    found = _parsed(name, value)
    calls: list[Any] = found if isinstance(found, list) else [found]
    if not calls or not all(isinstance(call, Mapping) and isinstance(call.get("name"), str) for call in calls):
        raise SampleError(f"{name} must be a call of a function as JSON, with name and arguments")
    return [{"type": "function", "function": dict(call)} for call in calls]


def _check_weight(name: str, message: Mapping[str, Any]) -> None:
    """Refuse a weight that is neither 0 nor 1, or one that would train another's message.

    Source: OpenAI API reference, fine-tuning, chat input: `weight` of an assistant message.
    """
    weight = message.get(WEIGHT)
    if weight is None:
        return
    if isinstance(weight, bool) or weight not in (0, 1):
        raise SampleError(f"{name}.weight is {_shown(weight)}; it must be 0 or 1")
    if weight == 1 and message["role"] != ASSISTANT:
        raise SampleError(
            f"{name}.weight is 1, but only messages of the assistant are trained, not of {message['role']}"
        )


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise SampleError(f"{name} is {_shown(value)}; it must be text")
    return value


def _tools(record: Mapping[str, Any]) -> list[Any] | None:
    tools = record.get("tools")
    tools = None if isinstance(tools, str) and not tools.strip() else _parsed("tools", tools)
    if tools is not None and not isinstance(tools, list):
        raise SampleError(f"tools is {_shown(tools)}; it must be a list")
    return tools or None


def _parsed(name: str, value: object) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise SampleError(f"{name} is not valid JSON: {error}") from error


def _shown(value: object) -> str:
    """Return a value, or its type if it is long."""
    text = repr(value)
    return text if len(text) <= 40 else f"of type {type(value).__name__}"


def _unknown_form(record: Mapping[str, Any], forms: Sequence[str], pretrain_mode: bool) -> str:
    columns = ", ".join(f"{name}=null" if value is None else str(name) for name, value in record.items()) or "none"
    text = f"unknown columns: {columns}. A sample has one of these forms: {'; '.join(forms)}"
    if record.get("text") is not None and not pretrain_mode:
        text += "; plain text is trained with training_args.pretrain_mode=true"
    elif pretrain_mode and forms is _SFT_FORMS:
        text += "; text"
    return text
