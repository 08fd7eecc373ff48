"""Overrides as Hydra's grammar reads them: quoted values, lists, mappings, groups, packages and sweeps."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hydra.core.override_parser import overrides_parser
from hydra.core.override_parser.overrides_visitor import HydraErrorListener, HydraOverrideVisitor
from hydra.core.override_parser.types import Override as Parsed
from hydra.core.override_parser.types import OverrideType, QuotedString, Sweep
from hydra.errors import HydraException

from launcher.common import redaction
from launcher.common.problems import Problem, ProblemsFound, fail, first_line, shown
from launcher.common.texts import shell_word
from launcher.common.yaml_io import LONGEST_NUMBER
from launcher.config import interpolation
from launcher.config.overrides import REMEDY_SYNTAX, Override, placed, quoted, remedy_of, unclosed

_SIGNS = {
    OverrideType.CHANGE: "",
    OverrideType.ADD: "+",
    OverrideType.FORCE_ADD: "++",
    OverrideType.DEL: "~",
}
_CALL = re.compile(r"(?:tag|choice|range|interval|sort|shuffle|glob)\(")
SWEEPS = "choice(a, b), range(start, stop, step), interval(low, high), tag(log, interval(low, high))"
"""Source: Hydra, Override grammar, Functions."""
_TOKENS = re.compile(r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[\[\]{},]|[^\[\]{},'"]+)""")
"""The parts of a list or mapping: texts in quotes, brackets and commas, and what is between them."""
_ONLY_QUOTED = r"(?a)[^\w\s/+.$%*@?|:\\-]"
"""A character that a text has in quotes only. Source: Hydra, Override grammar, Elements."""
_TOO_LONG_A_NUMBER = f"contains a number of more than {LONGEST_NUMBER} digits"


class _Repeating(dict[Any, Any]):
    """A mapping of an override, which gives a key several times; of its values only the last is here."""

    repeated: Any


class _Visitor(HydraOverrideVisitor):
    """Hydra's, which would drop the first of two values of a key."""

    def visitDictContainer(self, ctx: Any) -> dict[Any, Any]:
        found: dict[Any, Any] = super().visitDictContainer(ctx)
        keys = [self.visitDictKey(pair.dictKey()) for pair in ctx.dictKeyValuePair()]
        if len(keys) > len(found):
            found = _Repeating(found)
            found.repeated = next(key for i, key in enumerate(keys) if key in keys[:i])
        return found


def _parse(text: str) -> Parsed:
    """Return an override as Hydra's grammar reads it; Hydra's own parser takes no other visitor."""
    grammar: Any = overrides_parser  # generated, without types
    listener = HydraErrorListener()
    lexer = grammar.OverrideLexer(grammar.InputStream(text))
    parser = grammar.OverrideParser(grammar.CommonTokenStream(lexer))
    for each in (lexer, parser):
        each.removeErrorListeners()
        each.addErrorListener(listener)
    found: Parsed = _Visitor(grammar.create_functions()).visit(parser.override())
    found.input_line = text
    found.validate()
    return found


def parsed(text: str) -> Parsed | None:
    """Return an override as Hydra's grammar reads it; None if it does not."""
    try:
        return _parse(text)
    except (HydraException, RecursionError, ValueError):  # the last of a number that Python does not convert
        return None


def key_of(word: str) -> str | None:
    """Return the key that a word states within a value; None if it states none."""
    value = getattr(parsed(f"key={{{word}:0}}"), "_value", None)
    return next(map(_key_text, value), None) if isinstance(value, dict) else None


def read(text: str) -> tuple[Override, tuple[Problem, ...]]:
    """Return an override as Hydra's grammar reads it, and what is wrong with its value.

    Raises:
        ProblemsFound: It is not written as an override.
    """
    try:
        found = _parse(text)
    except (HydraException, RecursionError) as error:
        if problem := _key_problem(text):
            raise ProblemsFound((problem,)) from error
        if problem := _value_problem(text, error):
            raise ProblemsFound((problem,)) from error
        message = first_line(error) if "=" in text and shown(text) == text else "is not written as an override"
        remedy = _with_quotes(text) or remedy_of(text) or REMEDY_SYNTAX
        raise fail("E001", shown(text), message, remedy=remedy) from error
    except ValueError as error:  # of a number that Python does not convert
        raise fail("E001", shown(text), _TOO_LONG_A_NUMBER) from error
    key = placed(found.key_or_group)
    redaction.learn(found.value(), key)
    problem = respelled(found, key)
    return _own(found), (problem,) if problem else ()


def _with_quotes(text: str) -> str | None:
    """Return an override with those texts of its lists and mappings in quotes that the grammar takes only so.

    None if the grammar does not take the result either, or if it would show a secret.
    """
    name, _, value = text.partition("=")
    if not value.startswith(("[", "{")) or "${" in value or shown(text) != text:
        return None
    opened: list[str] = []
    found = []
    for token in _TOKENS.findall(value):
        if token in "[{":
            opened.append(token)
        elif token in "]}":
            opened = opened[:-1]
        key = token.partition(":")[0] + ":" if opened[-1:] == ["{"] and ":" in token else ""
        word = token[len(key) :]
        if "=" in word and opened[-1:] == ["["]:
            return None  # probably an argument or a variable, of another form
        bare = word.strip()
        is_quoted = token[0] in "\"'" or not re.search(_ONLY_QUOTED, word)
        found.append(token if is_quoted or token in "[]{}," else key + word.replace(bare, _in_quotes(bare)))
    meant = f"{name}={''.join(found)}"
    return shell_word(meant) if parsed(meant) else None


def _in_quotes(text: str) -> str:
    return quoted(text) if re.search(r'["\\]', text) else f'"{text}"'


def _key_problem(text: str) -> Problem | None:
    """Return the fault of the key of an override that the grammar does not take; None if the key is not at fault."""
    key, equals, value = shown(text).partition("=")
    if not equals or parsed(f"{key}=0") or re.search(r"[\s:@/]", key):
        return None
    part = next((part for part in key.lstrip("+").split(".") if not parsed(f"a.{part}=0")), key)
    meant = re.sub(r"(?<=\.)0+(?=\d)", "", re.sub(r"\[(\d+)\]", r".\1", key))  # items of lists, sizes
    remedy = shell_word(f"{meant}={value}") if parsed(f"{meant}={value}") else None
    return Problem("E001", key, f"{part!r} cannot be a part of a key", remedy=remedy, where=shown(text))


def _value_problem(text: str, error: Exception) -> Problem | None:
    """Return that brackets or a reference of a value are not closed, or how sweeps are written; None if neither."""
    key, equals, value = text.partition("=")
    if not equals or shown(text) != text:
        return None
    if "${" in value:
        fault = interpolation.unreadable(key.lstrip("+"), value)
        return fault and replace(fault, code="E001", path=text, value=None)
    if not (_CALL.match(value) or value.startswith(("[", "{"))):
        return None
    if missing := unclosed(value):
        closed = text + missing
        message, remedy = f"lacks {missing} at its end", shell_word(closed) if parsed(closed) else None
    elif _CALL.match(value):
        called = re.match(r"\w+ while evaluating .*?': (.+)", first_line(error))
        message, remedy = called[1] if called else "is not a sweep that can be read", None
    else:
        return None
    return Problem("E001", text, message, allowed=SWEEPS if _CALL.match(value) else None, remedy=remedy)


def unchecked(text: str) -> Override:
    """Return an override as Hydra's grammar reads it; its faults are raised as Hydra raises them."""
    return _own(_parse(text))


def _own(found: Parsed) -> Override:
    text, sign, key = found.input_line or "", _SIGNS[found.type], placed(found.key_or_group)
    return Override(text, sign, key, found.value(), found.package, found.is_sweep_override())


def respelled(override: Parsed, key: str) -> Problem | None:
    """Make every key in an override's value a text, as in a file; return what is wrong with the value, or None.

    Args:
        override: The override, which is changed.
        key: The path of its key, for the Problem.
    """
    inner = getattr(override._value, "list", ())
    if isinstance(override._value, Sweep) and not any(isinstance(value, Sweep) for value in inner):
        return None
    try:
        override._value = _with_text_keys(override._value)
    except ValueError as error:
        return Problem("E003", key, str(error), where=shown(override.input_line or ""))
    return None


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, Sweep):
        raise ValueError("contains a sweep inside another value")
    if isinstance(value, list):
        return [_with_text_keys(item) for item in value]
    if isinstance(value, _Repeating):
        raise ValueError(f"gives the key {_key_text(value.repeated)!r} twice")
    if isinstance(value, Mapping):
        found: dict[str, Any] = {}
        for key, item in value.items():
            name = _key_text(key)
            if name in found:
                raise ValueError(f"gives the key {name!r} twice")
            found[name] = _with_text_keys(item)
        return found
    if isinstance(value, int) and abs(value) >= 10**LONGEST_NUMBER:
        raise ValueError(_TOO_LONG_A_NUMBER)
    return value


def _key_text(key: Any) -> str:
    """Return a key as YAML spells it."""
    if isinstance(key, QuotedString):
        return key.text
    if key is None:
        return "null"
    return str(key).lower() if isinstance(key, bool) else str(key)
