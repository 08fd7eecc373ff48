"""Chat templates: messages to text, with the parts that the assistant wrote.

A template marks these parts with `{% generation %}`. It is data of a tokenizer or a user, so it runs in a sandbox
that cannot change anything outside.

Source: transformers documentation, Chat templates, for what a template may use: the extensions `loopcontrols` and
`generation`, the filter `tojson`, the functions `raise_exception` and `strftime_now`, the names of special tokens.
"""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox

from launcher.runtime.finetune.data.conversations import Message, Messages
from launcher.runtime.finetune.data.errors import DataError, TemplateFault

Span = tuple[int, int]
"""Start and stop of a part of a text, in characters."""

# Random in each process, and not characters: no sample can mark its own text as trained.
_TOKEN = secrets.token_hex(8)
_START, _STOP = f"\ufdd0{_TOKEN}\ufdd2", f"\ufdd1{_TOKEN}\ufdd2"
_MARKS = re.compile(f"({_START}|{_STOP})")
_HAS_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")
_OF_VALUES = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
_FAULTS = (jinja2.TemplateError, *_OF_VALUES)
"""What a template can raise for messages that it does not expect."""
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Keys of a message's reasoning; templates read the first or the second."""


class ChatTemplate:
    """A compiled chat template.

    Args:
        variables: Special tokens by name, and what the recipe passes on, such as `enable_thinking`.
        origin: Where it comes from, for messages.

    Raises:
        DataError: It is not a valid template.
    """

    def __init__(self, source: str, variables: Mapping[str, Any], origin: str):
        self.variables, self.origin = dict(variables), origin
        self.has_marks = bool(_HAS_MARKS.search(source))
        try:
            self._template = _environment(datetime.now()).from_string(source)
        except jinja2.TemplateError as error:
            raise DataError(f"{origin}: not a valid chat template: {error}") from error

    def render(self, messages: Messages, tools: list[Any] | None = None, *, generation_prompt: bool = False) -> str:
        """Return the text of a conversation, with the start of an answer if `generation_prompt`."""
        return self.marked(messages, tools, generation_prompt=generation_prompt)[0]

    def marked(
        self, messages: Messages, tools: list[Any] | None = None, *, generation_prompt: bool = False
    ) -> tuple[str, list[Span]]:
        """Return the text of a conversation and the parts in `{% generation %}` marks; some may be empty.

        Raises:
            TemplateFault: The template refuses the messages.
        """
        try:
            text = self._template.render(
                messages=[_with_reasoning(message) for message in messages],
                tools=tools,
                documents=None,
                add_generation_prompt=generation_prompt,
                **self.variables,
            )
        except _FAULTS as error:
            raise TemplateFault(f"the chat template of {self.origin} refuses it: {error}") from error
        return _without_marks(text) if self.has_marks else (text, [])


def common_prefix(first: str, second: str) -> int:
    """Return how many characters two texts share at their start."""
    if second.startswith(first):
        return len(first)
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[:middle] == second[:middle] else (low, middle - 1)
    return low


def _without_marks(text: str) -> tuple[str, list[Span]]:
    parts: list[str] = []
    spans: list[Span] = []
    length = start = depth = 0
    for part in _MARKS.split(text):
        if part == _START:
            start = length if depth == 0 else start
            depth += 1
        elif part == _STOP:
            depth -= 1
            if depth == 0:
                spans.append((start, length))
        else:
            parts.append(part)
            length += len(part)
    return "".join(parts), spans


def _with_reasoning(message: Message) -> Message:
    found = next((message[key] for key in _REASONING if message.get(key) is not None), None)
    if found is None:
        return message
    return {"thinking": found, **message, "reasoning_content": found}


class _Generation(jinja2.ext.Extension):
    """The block `{% generation %} … {% endgeneration %}`, which writes marks around its content."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    @staticmethod
    def _marked(caller: jinja2.runtime.Macro) -> str:
        return f"{_START}{caller()}{_STOP}"


def _environment(moment: datetime) -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = moment.strftime  # the same in every text, which is compared with its start
    return environment


def _json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    pair = None if separators is None else (separators[0], separators[1])
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=pair, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
