"""Read and write YAML with libyaml, as recipes need it.

Differences from plain PyYAML, the first three shared with OmegaConf's own loader: `1e-4` is a number (YAML
1.2), dates stay strings, a duplicate key is an error, and a key is always a string, so that `2:` in a file
and `scale_config.2` on the command line name the same size. `010` and `1:30`, numbers of YAML 1.1, are errors.
"""

import json
import re
from collections.abc import Hashable
from typing import Any

import yaml

_FLOAT = re.compile(
    r"""^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+
    |[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.X,
)
_ELSEWHERE = re.compile(
    r"^(?:[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?|[-+]?0(?:o[0-7]+|b[01]+|x[\da-fA-F]+)|[yYnN])$", re.A
)
"""Texts, without underscores, that other readers take for a number or a truth value: kubectl reads 012389 and y so.
Source: go-yaml, resolve.go, which sigs.k8s.io/yaml copies; YAML 1.1, bool."""

_FLOAT_TAG, _TIMESTAMP_TAG = "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp"


MAX_DEPTH = 64
"""Levels of nesting. The deepest published recipe has 8. libyaml, OmegaConf and pydantic recurse, and libyaml crashes
the process when the stack is exhausted, at some 40,000 levels."""

MAX_VALUES = 10_000
"""Values of a text with every alias expanded, keys included. The largest published recipe has some 1,200."""

LONGEST_NUMBER = 64
"""Characters of a number: enough for any 64-bit number, and far from lengths that take Python minutes."""

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Source: YAML 1.2.2, 5.1 Character Set."""

_OPENS_FLOW, _OPENS_BLOCK = re.compile(r"[\[{]"), re.compile(r"[-?][ \t]")
_CORE_TAGS = tuple(f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map"))

_ONLY_YAML_1_1 = r"[-+]?(0[0-9_]|[0-9_]+:)"
"""Octal and base 60 numbers, which YAML 1.2 reads as decimal numbers and texts.
Source: YAML 1.1, int; YAML 1.2.2, 10.3.2."""


class _Loader(yaml.CSafeLoader):
    yaml_implicit_resolvers = {
        first: [(tag, regexp) for tag, regexp in resolvers if tag not in (_FLOAT_TAG, _TIMESTAMP_TAG)]
        for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors = {
        tag: construct for tag, construct in yaml.CSafeLoader.yaml_constructors.items() if tag in _CORE_TAGS
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        self.flatten_mapping(node)
        return {key_node.value: self.construct_object(value_node, deep=True) for key_node, value_node in node.value}

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _error("a key must be a plain word or number", key_node)
            if key_node.value in seen:
                raise _error(f"key {key_node.value!r} is given twice", key_node)
            seen.add(key_node.value)
        super().flatten_mapping(node)  # puts the keys of `<<` first, so that the mapping's own win
        node.value = list({pair[0].value: pair for pair in node.value}.values())

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        if len(node.value) > LONGEST_NUMBER:
            raise _error(f"a number of {len(node.value)} characters; at most {LONGEST_NUMBER}", node)
        try:
            value = yaml.CSafeLoader.yaml_constructors[node.tag](self, node)
        except (ValueError, KeyError) as error:  # the text does not match the tag, as in `!!int abc`
            raise _error(f"{node.value!r} is not a valid {node.tag.rpartition(':')[2]}", node) from error
        if type(value) is int and re.match(_ONLY_YAML_1_1, node.value):
            decimal = None if ":" in node.value else int(node.value)
            if decimal != value:
                numbers = f"{value}" if decimal is None else f"{value} or {decimal}"
                raise _error(f"{node.value} is ambiguous; write {numbers}, or '{node.value}' for a text", node)
        return value

    def refuse_tag(self, node: yaml.Node) -> Any:
        raise _error(f"the tag {node.tag.replace('tag:yaml.org,2002:', '!!')} is not supported", node)


_Loader.add_implicit_resolver(_FLOAT_TAG, _FLOAT, list("-+0123456789."))
_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.construct_mapping)
_Loader.add_constructor(None, _Loader.refuse_tag)
for _tag in ("bool", "int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _Loader.construct_number)


class _Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


_OTHER_BREAKS = re.compile("[\r\x85\u2028\u2029]")
"""Line breaks that a reader replaces with a newline or a blank unless they are escaped. Source: YAML 1.1, 4.2."""

_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
"""Characters that JSON may contain unescaped and YAML may not."""


def _represent_str(dumper: yaml.CSafeDumper, text: str) -> yaml.ScalarNode:
    """Quote texts that another reader would parse as a number or a truth value; PyYAML quotes only its own.

    A block is used for text that ends in at most one newline: further ones would depend on what follows the block.
    """
    style: str | None
    if _FLOAT.match(text) or (text[:1] != "_" and _ELSEWHERE.match(text.replace("_", ""))):
        style = "'"
    elif _OTHER_BREAKS.search(text) or text.endswith("\n\n") or text == "\n":
        style = '"'
    else:
        style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_str)


def load(text: str, max_values: int | None = None) -> Any:
    """Parse one YAML document in time and memory proportional to its length, whatever its content.

    Args:
        text: The document.
        max_values: Maximum number of values, aliases expanded; None for as many as its length allows.

    Raises:
        yaml.MarkedYAMLError: The text is not YAML, has a duplicate key, nests too deep, or has too many values.
    """
    return load_with_nodes(text, max_values)[0]


def load_nodes(text: str) -> yaml.Node | None:
    """Parse one YAML document into nodes with their positions, keys of `<<` merged. Errors are those of `load`."""
    return load_with_nodes(text)[1]


def load_with_nodes(text: str, max_values: int | None = None) -> tuple[Any, yaml.Node | None]:
    """Parse one YAML document once, for both what `load` and what `load_nodes` returns.

    The value's construction merges keys of `<<` in the nodes.
    """
    node = _composed(text, max_values)
    return None if node is None else _Loader("").construct_document(node), node


def _composed(text: str, max_values: int | None) -> yaml.Node | None:
    if bad := _UNPRINTABLE.search(text):
        raise _error(f"the character {bad[0]!r} is not allowed in YAML", _mark(text, bad.start()))
    most = max_values or max(MAX_VALUES, 2 * len(text))
    try:
        if _may_be_deep(text) or len(text) > most:
            _refuse_large(text, most)
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise _plain(error, text) from error
    if node is not None:
        _measure(node, {}, most)
    return node


def _error(
    message: str, at: Any
) -> yaml.MarkedYAMLError:  # a node or a mark; libyaml's marks have a type of their own
    return yaml.MarkedYAMLError(problem=message, problem_mark=at.start_mark if isinstance(at, yaml.Node) else at)


def _mark(text: str, position: int) -> yaml.Mark:
    line, column = text.count("\n", 0, position), position - (text.rfind("\n", 0, position) + 1)
    return yaml.Mark("text", position, line, column, None, 0)


def _plain(error: yaml.MarkedYAMLError, text: str) -> yaml.MarkedYAMLError:
    """Return the error in plain terms if libyaml's message is about its own tokens."""
    mark = error.problem_mark
    if (error.problem or "").startswith("but found another document"):
        return _error("a second document starts here; a file holds one recipe", mark)
    if mark and text[mark.index : mark.index + 1] == "\t" and "token" in (error.problem or ""):
        return _error("a tab cannot indent YAML; use spaces", mark)
    return error


def _may_be_deep(text: str) -> bool:
    """Return whether a text could nest too deep, from the least number of characters that each level takes.

    A flow collection opens with a bracket and may hold one pair without braces; a block collection is indented
    deeper than its parent, or follows `- ` or `? ` in its line.
    """
    half = MAX_DEPTH // 2
    opened = 2 * len(_OPENS_FLOW.findall(text)) + len(_OPENS_BLOCK.findall(text))
    return opened > half or " " * (half - 1) in text


def _refuse_large(text: str, most: int) -> None:
    """Raise if a text nests too deep or has too many values. Events need neither stack nor memory."""
    depth = values = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
            continue
        depth += isinstance(event, yaml.CollectionStartEvent)
        values += isinstance(event, yaml.NodeEvent)
        if depth > MAX_DEPTH:
            raise _error(f"nested more than {MAX_DEPTH} levels deep", event.start_mark)
        if values > most:
            raise _error(f"more than {most} values", event.start_mark)


def _measure(node: yaml.Node, known: dict[int, tuple[int, int] | None], most: int) -> tuple[int, int]:
    """Return the number of values and levels of a node with every alias expanded; raise if there are too many.

    An anchor precedes its aliases, so the recursion is no deeper than the nesting of the text.
    """
    if isinstance(node, yaml.ScalarNode):
        return 1, 0
    if id(node) in known:
        if (found := known[id(node)]) is None:
            raise _error("an anchor contains an alias to itself", node)
        return found
    known[id(node)] = None
    values, levels = 1, 0
    is_mapping = isinstance(node, yaml.MappingNode)
    for child in (part for pair in node.value for part in pair) if is_mapping else node.value:
        more, below = _measure(child, known, most)
        values, levels = values + more, max(levels, below)
        if values > most:
            raise _error(f"more than {most} values, aliases expanded", child)
    if levels >= MAX_DEPTH:
        raise _error(f"nested more than {MAX_DEPTH} levels deep, aliases expanded", node)
    known[id(node)] = size = values, levels + 1
    return size


def load_documents(text: str) -> list[Any]:
    """Parse every document of a multi-document stream."""
    return list(yaml.load_all(text, Loader=_Loader))


def dump(value: Any) -> str:
    """Write `value` as YAML, keys in the order given."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


def dump_flow(value: Any) -> str:
    """Write `value` in one line that is both JSON and YAML; YAML limits keys to 1,024 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
