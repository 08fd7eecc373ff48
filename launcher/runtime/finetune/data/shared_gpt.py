"""Conversations in the form of ShareGPT: a list of `{from, value}`, as messages with role and content."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.runtime.finetune.data.errors import SampleError

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles of messages."""
COLUMNS = ("conversations", "conversation")
"""Names of the column."""
_ROLES = {
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


def is_message(value: object) -> bool:
    """Return whether a value is one message, of either form."""
    return isinstance(value, Mapping) and ("role" in value or "from" in value)


def are_messages(value: object) -> bool:
    """Return whether a value is an empty list, or one whose first element has a role of `ROLES`."""
    return isinstance(value, list) and (
        not value or (isinstance(value[0], Mapping) and value[0].get("role") in ROLES)
    )


def messages(name: str, value: object, system: object = None) -> object:
    """Return the messages of a column; anything that is not a list stays as it is.

    Args:
        name: Of the column.
        value: Of it: messages, or a list or mapping that holds nothing but them.
        system: Text of a system message beside them; None or "" for none.

    Raises:
        SampleError: A role is not known.
    """
    found = _unnested(value)
    if not isinstance(found, Sequence) or isinstance(found, str):
        return found
    listed = [_message(f"{name}[{number}]", each) for number, each in enumerate(found)]
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


def _message(name: str, message: object) -> object:
    if not isinstance(message, Mapping):
        return message
    key = "role" if message.get("from") is None else "from"
    origin = str(message.get(key)).lower()
    role = _ROLES.get(origin)
    if role is None:
        raise SampleError(f"{name}.{key} is {str(message.get(key))[:40]!r}; known are {', '.join(_ROLES)}")
    content = next((message[text] for text in _CONTENTS if message.get(text) is not None), None)
    further = {name: value for name, value in message.items() if name not in ("from", "role", *_CONTENTS)}
    if origin == _CALL:
        return {"role": role, "content": "", "tool_calls": _calls(name, content)} | further
    return {"role": role, "content": content} | further


def _calls(name: str, value: object) -> list[dict[str, Any]]:
    """Return the calls of functions that a text describes as JSON: one object of name and arguments, or several."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise SampleError(f"{name} is not valid JSON: {error}") from error
    calls: list[Any] = found if isinstance(found, list) else [found]
    if not calls or not all(isinstance(call, Mapping) and isinstance(call.get("name"), str) for call in calls):
        raise SampleError(f"{name} must be a call of a function as JSON, with name and arguments")
    return [{"type": "function", "function": dict(call)} for call in calls]
