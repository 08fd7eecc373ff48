"""The parts of a conversation that the assistant wrote, for a template that does not mark them.

An answer is what the template adds to the prompt that a model is given for it. Its part of the text is proven by
prefixes: the text of the prompt, and that of the conversation up to the answer, must begin the complete text. Their
number makes this quadratic, so it is done once for each form of conversation, with placeholders as contents. Other
conversations of that form must be the same text around their own contents; if one is not, its own prefixes are
rendered.
"""

import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from launcher.runtime.finetune.data.conversations import Messages
from launcher.runtime.finetune.data.errors import SampleError, TemplateFault
from launcher.runtime.finetune.data.templates import ChatTemplate, Span, common_prefix

AnswerStart = Callable[[str, Sequence[str]], int]
"""Returns where answers start in texts that a prompt is the start of; see `ModelTokenizer.answer_start`."""

_MAX_FORMS = 4096
_TOKEN = secrets.token_hex(8)
_PAD = " \n "
_HOLE = re.compile(rf"({_PAD})?{_TOKEN}-(\d+)-({_PAD})?")
_EXCERPT = 40
_REMEDY = (
    "Use a template with {% generation %} marks (chat_template_name=./template.jinja), train the last answer only "
    "(assistant_turns=last), or give the other answers weight 0"
)
_OWN_TEMPLATE = "Use a template with {% generation %} marks (chat_template_name=./template.jinja)"


class _Turn(NamedTuple):
    """The part of a text that is one answer, in characters.

    `rest` is the end of the prompt that the answer does not begin with, such as the start of a reasoning block.
    """

    start: int
    stop: int
    rest: str = ""


class _Place(NamedTuple):
    """A place in a frame: in the text after `hole` contents, `offset` characters from its start."""

    hole: int
    offset: int


@dataclass(frozen=True, slots=True)
class _Frame:
    """What a template writes around the contents of conversations of one form.

    Args:
        texts: Around the contents, one more than these.
        holes: For each content: its message, and whether spaces at its start and end are kept.
        turns: Start, stop and rest of each answer, as in `_Turn`.
    """

    texts: tuple[str, ...]
    holes: tuple[tuple[int, bool, bool], ...]
    turns: tuple[tuple[_Place, _Place, str], ...]

    def spans(self, text: str, messages: Messages) -> list[Span] | None:
        """Return the answers in the text of a conversation; None if it is not this frame around its contents."""
        contents = [_stripped(messages[number]["content"], left, right) for number, left, right in self.holes]
        starts, parts = [0], [self.texts[0]]
        length = len(self.texts[0])
        for content, between in zip(contents, self.texts[1:], strict=True):
            starts.append(length + len(content))
            length += len(content) + len(between)
            parts += (content, between)
        if len(text) != length or "".join(parts) != text:
            return None
        found = []
        for start, stop, rest in self.turns:
            if rest and contents[start.hole][:1] == rest[0]:
                return None  # the answer may begin with a part of the rest
            found.append((starts[start.hole] + start.offset, starts[stop.hole] + stop.offset))
        return found


class TurnFinder:
    """Finds the answers in conversations; those of one form share a frame."""

    def __init__(self, template: ChatTemplate, answer_start: AnswerStart):
        self._template, self._answer_start = template, answer_start
        self._frames: dict[object, _Frame | None] = {}

    def find(self, messages: Messages, tools: list[Any] | None, turns: Sequence[int]) -> tuple[str, list[Span]]:
        """Return the text of a conversation up to its last trained answer, and the trained answers in it.

        Args:
            turns: Numbers of the messages that are trained; at least one.

        Raises:
            TemplateFault: The template refuses the messages, or the answers are not parts of its text.
        """
        shown = messages[: turns[-1] + 1]
        text = self._template.render(shown, tools)
        frame = None if tools else self._frame(shown, tuple(turns))
        spans = frame.spans(text, shown) if frame else None
        if spans is None:
            spans = [(turn.start, turn.stop) for turn in self._proven(text, shown, tools, turns)]
        return text, spans

    def _frame(self, messages: Messages, turns: tuple[int, ...]) -> _Frame | None:
        form = _form(messages)
        if form is None:
            return None
        key = (form, turns)
        if key not in self._frames and len(self._frames) < _MAX_FORMS:
            self._frames[key] = self._learned(form, turns)
        return self._frames.get(key)

    def _learned(self, form: tuple[tuple[str, bool], ...], turns: tuple[int, ...]) -> _Frame | None:
        messages = [
            {"role": role, "content": f"{_PAD}{_TOKEN}-{number}-{_PAD}" if has_content else ""}
            for number, (role, has_content) in enumerate(form)
        ]
        try:
            text = self._template.render(messages)
            proven = self._proven(text, messages, None, turns)
        except SampleError:
            return None  # the conversation itself shows what is wrong
        holes = list(_HOLE.finditer(text))
        starts, stops = [0, *(hole.end() for hole in holes)], [*(hole.start() for hole in holes), len(text)]

        def place(position: int) -> _Place | None:
            # An answer that begins with a content starts at the end of the text before it.
            found = next((number for number, stop in enumerate(stops) if position <= stop), 0)
            return _Place(found, position - starts[found]) if position >= starts[found] else None

        placed = []
        for turn in proven:
            start, stop = place(turn.start), place(turn.stop)
            if start is None or stop is None:
                return None
            if turn.rest and (start.hole == len(holes) or stops[start.hole] != turn.start):
                return None
            placed.append((start, stop, turn.rest))
        return _Frame(
            tuple(text[start:stop] for start, stop in zip(starts, stops, strict=True)),
            tuple((int(hole[2]), hole[1] is not None, hole[3] is not None) for hole in holes),
            tuple(placed),
        )

    def _proven(self, text: str, messages: Messages, tools: list[Any] | None, turns: Sequence[int]) -> list[_Turn]:
        """Return the answers in a text, each proven by its prompt and by the text that ends with it."""
        found: list[_Turn] = []
        for number in turns:
            answered = text if number + 1 == len(messages) else self._template.render(messages[: number + 1], tools)
            if not text.startswith(answered):
                how = f"in another way when messages follow it: {_difference(answered, text)}"
                raise self._fault(number, f"writes it {how}", _REMEDY)
            start, rest = self._start(answered, messages[:number], tools, number)
            if found and start < found[-1].stop:
                raise self._fault(number, "writes it inside of the answer before", _REMEDY)
            found.append(_Turn(start, len(answered), rest))
        return found

    def _start(self, answered: str, before: Messages, tools: list[Any] | None, number: int) -> tuple[int, str]:
        """Return where the last answer of a text starts, and the end of its prompt that it does not begin with."""
        try:
            prompt = self._template.render(before, tools, generation_prompt=True)
        except SampleError:
            if before:
                raise
            prompt = ""  # many templates read the first message; the answer is then the complete text
        start = self._answer_start(prompt, (answered,))
        if start == len(prompt):
            return start, ""
        # The end of a prompt may differ from the start of an answer, but not what is before both.
        asked = self._template.render(before, tools) if before else ""
        if start < len(asked) or not answered.startswith(asked):
            how = f"in another way once it is answered: {_difference(prompt, answered)}"
            raise self._fault(number, f"writes what precedes it {how}", _OWN_TEMPLATE)
        return start, prompt[start:]

    def _fault(self, number: int, what: str, remedy: str) -> TemplateFault:
        return TemplateFault(
            f"the chat template of {self._template.origin} does not show where messages[{number}], an answer, is in "
            f"the text: it {what}. {remedy}."
        )


def _form(messages: Messages) -> tuple[tuple[str, bool], ...] | None:
    """Return the roles of messages and which have content; None if they hold more than text."""
    found = []
    for message in messages:
        content = message.get("content")
        if len(message) != 2 or not isinstance(content, str) or (content and content.isspace()):
            return None
        found.append((message["role"], content != ""))
    return tuple(found)


def _stripped(content: str, keeps_left: bool, keeps_right: bool) -> str:
    content = content if keeps_left else content.lstrip()
    return content if keeps_right else content.rstrip()


def _difference(first: str, second: str) -> str:
    """Return the place where two texts begin to differ, in words."""
    start = common_prefix(first, second)
    return " becomes ".join(repr(text[start : start + _EXCERPT]) for text in (first, second))
