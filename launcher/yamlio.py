"""Read and write YAML with libyaml, the way recipes mean it.

Differences from plain PyYAML, the first three shared with OmegaConf's own loader: `1e-4` is a number (YAML
1.2), dates stay strings, a key given twice is an error, and a key is always a string, so that `2:` in a file
and `scale_config.2` on the command line name the same scale.
"""

import re
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
_OCTAL = re.compile(r"^0o[0-7]+$")
_FLOAT_TAG, _TIMESTAMP_TAG = "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp"


class _Loader(yaml.CSafeLoader):
    yaml_implicit_resolvers = {
        first: [(tag, regexp) for tag, regexp in resolvers if tag not in (_FLOAT_TAG, _TIMESTAMP_TAG)]
        for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
        self.flatten_mapping(node)
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    "in a mapping",
                    node.start_mark,
                    "a key must be a plain word or number",
                    key_node.start_mark,
                )
            if key_node.value in mapping:
                raise yaml.constructor.ConstructorError(
                    "in a mapping",
                    node.start_mark,
                    f"key {key_node.value!r} is given twice",
                    key_node.start_mark,
                )
            mapping[key_node.value] = self.construct_object(value_node, deep=True)
        return mapping


_Loader.add_implicit_resolver(_FLOAT_TAG, _FLOAT, list("-+0123456789."))
_Loader.add_constructor("tag:yaml.org,2002:map", lambda loader, node: loader.construct_mapping(node))


class _Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_str(dumper: yaml.CSafeDumper, text: str) -> yaml.ScalarNode:
    """Quote what a YAML 1.2 reader would take for a number; PyYAML quotes only YAML 1.1's."""
    style = "'" if _FLOAT.match(text) or _OCTAL.match(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_str)


def load(text: str) -> Any:
    """Parse one YAML document.

    Raises:
        yaml.YAMLError: The text is not YAML, or gives a key twice.
    """
    return yaml.load(text, Loader=_Loader)


def load_nodes(text: str) -> yaml.Node | None:
    """Parse one YAML document into nodes that know their line."""
    return yaml.compose(text, Loader=_Loader)


def load_documents(text: str) -> list[Any]:
    """Parse every document of a multi-document stream."""
    return list(yaml.load_all(text, Loader=_Loader))


def dump(value: Any) -> str:
    """Write `value` as YAML, keys in the order given."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
