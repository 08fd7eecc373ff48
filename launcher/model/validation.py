"""Validate a tree with a pydantic model: every fault as a Problem, with the origin of each faulty value."""

import dataclasses
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from launcher.common.problems import Problem
from launcher.common.secret_forms import holds_token
from launcher.common.secret_names import NOTIFY, is_secret
from launcher.common.suggestions import did_you_mean, nearest, question
from launcher.common.texts import shell_word
from launcher.model.backend_registry import described, descriptions
from launcher.model.capabilities import REFERENCES, Secrets
from launcher.model.composition import Composition
from launcher.model.config_tree import is_index, leaves, prefixes
from launcher.model.family_registry import DEFAULTS_MEANT, family_of, is_defaults
from launcher.model.recipe import KEY_PATH, RecipeBase
from launcher.model.recipe_keys import RecipeKeys

_NO_TEXT = r"true|false|null|[-+.\de]{1,8}"
"""A value that cannot be a secret, whatever its name."""
_LIKE_NAME = r"[\w .-]*"
"""What was meant as a name; a password has other characters."""
_WORD, _MAPPING_KEY = r"[A-Za-z_][\w-]*|\d+", r"[\w./+@ -]+"
"""Parts of a key, and keys of a mapping, that an override states. Source: Hydra, Override grammar."""
_PLAIN_NUMBER = r"[\w.+-]+"
_REFERENCE = r"\.(?:secretKeyRef(?:\.(?:name|key))?|env)\Z"
"""Where a path is inside a reference, which is replaced as a whole."""
_MOST_KEYS = 12
"""Keys of a section that a Problem lists."""
_ITEM = r"[A-Za-z_/][\w./: @%+-]*"
"""An item of a list that is typed without quotes."""
_COMMAND = r"(?:command|entrypoint|args|arguments)\Z"
"""Keys whose list has the words of a command line."""
_BARE = r"[\w./:@-]+"
"""A value that is typed without quotes."""
_OF_REFERENCE = ", ".join(sorted(REFERENCES))
"""The keys of a reference to a secret."""
_NEST = "nest it: "
"""Begins the remedy of a key with dots."""
_UNLESS_OTHER = ", or the text that it was"
"""After the text of a number: 1.10 has become 1.1."""
_ALLOWED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "a text",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_BOOLEANS = {"yes": "true", "y": "true", "on": "true", "true": "true", "1": "true"}
_BOOLEANS |= {"no": "false", "n": "false", "off": "false", "false": "false", "0": "false"}
"""Words for a boolean in other places. Source: YAML 1.1, Boolean Language-Independent Type; environment variables."""
_NUMBERS = {"int_type": r"\+?\d{1,18}", "float_type": r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,3})?"}


def type_problems(model: type[BaseModel], tree: Any, prefix: str) -> tuple[Any, tuple[Problem, ...]]:
    """Return the typed value of a resolved `tree` at the path `prefix`, and no Problem; or an unvalidated
    placeholder without its faulty parts, and every fault."""
    try:
        return model.model_validate(tree), ()
    except ValidationError as error:
        details = _one_per_value(error.errors(include_url=False))
        return _stand_in(model, tree), tuple(_problem(model, detail, prefix) for detail in details)


_FURTHER_FORMS: dict[str, Callable[[ErrorDetails], str]] = {
    "value_error": lambda error: f", or {_message(error).removeprefix('should be ')}",
    "string_pattern_mismatch": lambda error: f", or text that matches {error['ctx']['pattern']}",
    "literal_error": lambda error: f" or {error['ctx']['expected']}",
}
"""What a further member of a union adds to the allowed values of the others, by type of its error."""


def _one_per_value(errors: list[ErrorDetails]) -> Iterator[ErrorDetails]:
    """Leave one error for a value that matches no member of a union; it allows every member's values.

    If the faults are inside the value, those are left alone.
    """
    seen: dict[tuple[Any, ...], list[ErrorDetails]] = {}
    for error in errors:
        loc = _location(error)
        seen.setdefault(loc, []).append({**error, "loc": loc})
    inside = {loc[:n] for loc in seen for n in range(1, len(loc))}
    for loc, (first, *others) in seen.items():
        if loc in inside:  # a union: the value is a mapping, which another member of it takes
            continue
        for kind, form in _FURTHER_FORMS.items():
            member = next((error for error in others if error["type"] == kind), None)
            if member and (of_others := _allowed(first)):
                allowed = f"{of_others}{form(member)}"
                first = {**member, "msg": f"should be {allowed}", "ctx": {"expected": allowed}}
        yield first


def _location(error: ErrorDetails) -> tuple[int | str, ...]:
    """Return the keys to a faulty value, without the names of the members of unions."""
    last = error["loc"][-1:] if error["type"] == "extra_forbidden" else ()  # a key, whatever it looks like
    return *(part for part in error["loc"][: len(error["loc"]) - len(last)] if not _is_union_tag(part)), *last


def _is_union_tag(part: int | str) -> bool:
    members = ("str", "int", "float", "bool", "SecretRef", "Rehearsal")
    return isinstance(part, str) and (part in members or "[" in part or part.startswith("constrained-"))


def _problem(model: type[BaseModel], error: ErrorDetails, prefix: str) -> Problem:
    path = ".".join(filter(None, (prefix, *map(str, error["loc"]))))
    if error["type"] == "extra_forbidden":
        known, key = _fields_at(model, error["loc"][:-1]), str(error["loc"][-1])
        return Problem(
            "E101",
            path,
            "unknown key",
            remedy=DEFAULTS_MEANT if path == f"recipes.{key}" and is_defaults(key) else did_you_mean(key, known),
            allowed=listed(known),
        )
    if error["type"] == "missing":
        return Problem("E103", path, "is missing", remedy=f"add {path}=…")
    if is_secret(path) and not _is_bad_name(error):
        is_address = path.partition(".")[0] == NOTIFY
        return Problem(
            "E601",
            path,
            "a secret is referenced by name, never written: its value would end up in files and logs",
            allowed="[{env: NAME}]" if is_address else " or ".join(REFERENCES.values()),
            remedy='"notify=[{env:NAME}]"' if is_address else None,
        )
    remedy = _remedy(error, path, prefix) or _as_list(error, path, type_at(model, error["loc"]))
    message = f"{_message(error)}{', not null' if error['input'] is None else ''}"
    return Problem("E102", path, message, value=error["input"], allowed=_allowed(error), remedy=remedy)


def listed(keys: Sequence[str]) -> str | None:
    """Return the first keys of a section as text; None if it has none."""
    return ", ".join(keys[:_MOST_KEYS]) + (", …" if len(keys) > _MOST_KEYS else "") or None


def _is_bad_name(error: ErrorDetails) -> bool:
    """Return whether a value is the name in a reference to a secret, although an invalid one: not the secret."""
    from launcher.common.random_values import random_parts  # start-up time: few values are faulty

    given = error["input"]
    if error["loc"][-2:-1] != ("secretKeyRef",) and error["loc"][-1:] != ("env",):
        return False
    has_letters = isinstance(given, str) and re.fullmatch(_LIKE_NAME, given)
    return bool(has_letters) and not holds_token(given) and not any(True for _ in random_parts(given))


def _remedy(error: ErrorDetails, path: str, prefix: str) -> str | None:
    """Return what the user may have meant by a faulty value, if it can be guessed."""
    given, kind = error["input"], error["type"]
    if kind == "literal_error" and isinstance(given, str):
        words = error["ctx"]["expected"]
        if re.search(rf"(?<![\w'.]){re.escape(given)}(?![\w'.])", words) and given.isdigit():
            return question([f"{path}={given}"])  # a number, which was written as a text
        return did_you_mean(given, [word for word in re.findall(r"'([^']+)'", words) if _is_like(given, word)])
    if kind == "string_type" and isinstance(given, int | float):
        parts = [*filter(None, prefix.split(".")), *map(str, error["loc"])]
        typed = _override(parts, json.dumps(given))  # true, not True
        return typed and typed + (_UNLESS_OTHER if isinstance(given, float) else "")
    if kind == "bool_type" and (meant := _BOOLEANS.get(str(given).lower())):
        return question([f"{path}={meant}"])
    if kind in ("int_type", "float_type") and isinstance(given, str) and re.fullmatch(_NUMBERS[kind], given, re.A):
        number = int(given) if kind == "int_type" else given  # with a leading 0 it would be a text again
        return question([f"{path}={number}"]) if math.isfinite(float(number)) else None
    return None


def _is_like(given: str, word: str) -> bool:
    """Return whether a choice may be meant: one that means nothing, only by its first letter."""
    return word.lower() != "none" or given[:1].lower() == "n"


def _as_list(error: ErrorDetails, path: str, annotation: Any) -> str | None:
    """Return the override that gives a key its list, in place of a text; None if the key takes no such list."""
    given = error["input"]
    if error["type"] != "list_type" or not isinstance(given, str) or not takes_words(annotation):
        return None
    words = re.split(r"\s+" if re.search(_COMMAND, path) else r"\s*,\s*", given.strip())
    if not all(re.fullmatch(_ITEM, word) for word in words):
        words = [f"'{given}'"] if re.fullmatch(r"[^'\\]+", given) else []
    from pydantic import TypeAdapter  # for this fault alone

    try:
        TypeAdapter(annotation).validate_python([word.strip("'") for word in words], strict=True)
    except ValidationError:
        return None
    return shell_word(f"{path}=[{','.join(words)}]") if words else None


def _override(parts: Sequence[str], text: str) -> str | None:
    """Return the override that sets a key to a text; None if the grammar has none for a key like that."""
    first = next((i for i, part in enumerate(parts) if not re.fullmatch(_WORD, part)), len(parts))
    value = f"'{text}'"
    for part in reversed(parts[first:]):
        if not re.fullmatch(_MAPPING_KEY, part) or is_index(part):
            return None
        value = f"{{{part}: {value}}}"
    return f'"{".".join(parts[:first])}={value}"'


def _message(error: ErrorDetails) -> str:
    if error["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return "should be a mapping"
    message = error["msg"].removeprefix("Value error, ").replace(" after validation", "")
    return re.sub(r"(Input|String|List) should", "should", message)


def _allowed(error: ErrorDetails) -> str | None:
    return _ALLOWED.get(error["type"]) or (error.get("ctx") or {}).get("expected")


def type_at(model: type[BaseModel], loc: Sequence[int | str]) -> Any:
    """Return the type that `model` declares for the keys to a value; None if it declares none."""
    found: Any = model
    for part in map(str, loc):
        found = next(filter(None, (_type_below(member, part) for member in members(found))), None)
    return found


def _type_below(member: Any, part: str) -> Any:
    """Return the type of a part of a value: of a key of a model or of a mapping, or of an item of a list."""
    if get_origin(member) is dict:
        return get_args(member)[1]
    if get_origin(member) is list:
        return get_args(member)[0] if is_index(part) else None
    if not (isinstance(member, type) and issubclass(member, BaseModel)):
        return None
    return next((i.annotation for name, i in member.model_fields.items() if part == (i.alias or name)), None)


def members(annotation: Any) -> Iterator[Any]:
    """Yield the types of a union, without what further restricts them; another type is its only member."""
    if get_origin(annotation) is Annotated:
        yield from members(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for each in get_args(annotation):
            yield from members(each)
    else:
        yield annotation


def takes_words(annotation: Any) -> bool:
    """Return whether a value of this type may be a list of texts, numbers or choices."""
    lists = (member for member in members(annotation) if get_origin(member) is list)
    return any(map(_is_scalar, (item for each in lists for item in members(get_args(each)[0]))))


def _is_scalar(annotation: Any) -> bool:
    return annotation in (str, int, float, bool, Any) or get_origin(annotation) is Literal


def _fields_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    found = submodel(model, *loc)
    return field_names(found) if found else []


def field_names(model: type[BaseModel]) -> list[str]:
    """Return the keys of `model` as spelled in a recipe."""
    return sorted(info.alias or name for name, info in model.model_fields.items())


def is_field(model: type[BaseModel], path: str) -> bool:
    """Return whether a dotted path names a key of `model`."""
    parent, _, name = path.rpartition(".")
    return name in _fields_at(model, tuple(parent.split(".") if parent else ()))


def submodel(model: type[BaseModel], *loc: int | str) -> type[BaseModel] | None:
    """Return the model that `model` declares for the values at some keys, through Optional and list, or None."""
    return _model_in(type_at(model, loc))


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) is dict:
        return None
    return next(filter(None, map(_model_in, getattr(annotation, "__args__", ()))), None)


def _stand_in(model: type[BaseModel], tree: Any) -> Any:
    """Build `model` from `tree` without validating; rules that need a faulty key are skipped anyway."""
    values = {}
    for name, info in model.model_fields.items():
        value = tree.get(info.alias or name) if isinstance(tree, Mapping) else None
        values[name] = _stand_in_value(info.annotation, value)
    return model.model_construct(**values)


def _stand_in_value(annotation: Any, value: Any) -> Any:
    kinds = {get_origin(member): member for member in members(annotation)}
    held = _model_in(get_args(kinds[dict])[1]) if dict in kinds else None
    if held and isinstance(value, Mapping):
        return {key: _stand_in(held, item) for key, item in value.items()}
    inner = _model_in(annotation)
    if inner and list in kinds:
        return [_stand_in(inner, item) for item in value] if isinstance(value, list) else []
    others = set(get_args(annotation)) - {inner, type(None)}  # of a union, such as `bool | Rehearsal`
    if inner and not (type(value) in others or (value is None and type(None) in get_args(annotation))):
        return _stand_in(inner, value)
    return value


def declared_keys(recipe: Mapping[str, Any]) -> list[str]:
    """Return the keys that `extra_keys` of a recipe declares, valid or not."""
    given = recipe.get("extra_keys")
    return [*map(str, given)] if isinstance(given, list) else []


def dotted_keys(tree: Mapping[str, Any], prefix: str, declared: Collection[str]) -> Iterator[Problem]:
    """Yield a Problem for each key with dots beside the section that it begins with: `trainer.num_nodes: 2`.

    Keys below those that are declared in `extra_keys` are the program's own.
    """
    for key, value in tree.items():
        path = f"{prefix}.{key}" if prefix else key
        if path in declared:
            continue
        if "." not in key:
            if isinstance(value, Mapping):
                yield from dotted_keys(value, path, declared)
            continue
        first, *others = key.split(".")
        if isinstance(tree.get(first), Mapping):
            nested = "…"
            for word in reversed(others):
                nested = f"{{{word}: {nested}}}"
            remedy = f"{_NEST}{first}: {nested}"
            yield Problem("E101", f"recipes.{path}", "is one key with dots, which nothing reads", remedy=remedy)


def with_origin(composition: Composition, problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Return faults with the origin of each faulty value, and the place where an unknown key belongs.

    A value that only refers to a faulty one is omitted: the fault is reported there.
    """
    faulty = {tuple(problem.path.split(".")) for problem in problems}
    secrets = described(composition.backend).secrets
    located: list[Problem] = []
    for problem in problems:
        if problem.code == "E102" and composition.refers_to_one(problem.path, faulty):
            continue
        origin = problem.where or composition.origin(problem.path)
        if origin and not problem.where and problem.code == "E101" and origin in composition.explicit.values():
            key, _, text = origin.partition("=")
            if not re.fullmatch(_NO_TEXT, text, re.I):  # the key may be that of a secret, misspelt
                origin = f"{key}=…"
        given = dataclasses.replace(_of_launch(problem, composition.explicit, secrets), where=origin)
        located.append(_of_decider(given, composition))
    is_misspelt = any(problem.code == "E101" for problem in located)
    return tuple(_with_places(composition.tree, located) if is_misspelt else located)


def _of_decider(problem: Problem, composition: Composition) -> Problem:
    """Return a Problem whose remedy has the key that was typed in place of one that refers to it."""
    decider = composition.decider(problem.path) if problem.remedy else problem.path
    if decider == problem.path:
        return problem
    own = re.compile(rf"(?<![\w.]){re.escape(problem.path)}=")
    return dataclasses.replace(problem, remedy=own.sub(lambda _: f"{decider}=", problem.remedy or ""))


def _of_launch(problem: Problem, explicit: Mapping[str, str], secrets: Secrets) -> Problem:
    """Return a Problem whose remedy has the number that was typed in place of a text, or references that jobs of the
    chosen cluster resolve in place of a secret."""
    typed = explicit.get(problem.path, "").partition("=")[2]
    if problem.allowed == _ALLOWED["string_type"] and problem.remedy and re.fullmatch(_PLAIN_NUMBER, typed):
        return dataclasses.replace(problem, remedy=f"\"{problem.path}='{typed}'\"")
    is_of_reference = problem.code == "E101" and problem.allowed == _OF_REFERENCE
    if is_of_reference or (problem.code == "E601" and not problem.remedy):
        path = problem.path.rpartition(".")[0] if is_of_reference else re.sub(_REFERENCE, "", problem.path)
        return dataclasses.replace(problem, allowed=secrets.references, remedy=secrets.remedy(path))
    return problem


def _with_places(tree: Mapping[str, Any], problems: Sequence[Problem]) -> list[Problem]:
    """Add to each unknown key the place where its name, or one like it, is known: `learning_rate=…` without its path.

    If there is none, add how to declare all unknown keys of the recipe.
    """
    declared = [key for key in declared_keys(tree["recipes"]) if re.search(KEY_PATH, key)]
    own = {problem.path for problem in problems if problem.code == "E101"} | {f"recipes.{key}" for key in declared}
    found = list(leaves(tree))
    known = dict.fromkeys(above for path, _ in found if own.isdisjoint(prefixes(path)) for above in prefixes(path))
    family = family_of(tree["recipes"])
    keys = RecipeKeys() if isinstance(family, Problem) else family.keys
    placed, unread = list(problems), []
    for i, problem in enumerate(problems):
        if problem.code != "E101" or (problem.remedy or "").startswith(_NEST):
            continue
        placed[i] = each = _placed(problem, known, found)
        key = without_size(each.path)
        if each.remedy or key == each.path or not keys.is_read_by_program(key):
            continue
        if near := _like(known, each.path):
            remedy = f"{question([near])} If not, declare it in recipes.extra_keys"
            placed[i] = dataclasses.replace(each, remedy=remedy)
        else:
            unread.append(i)
    declared += [without_size(placed[i].path) for i in unread]
    remedy = f"{_declaring(declared)} if your training code reads {'it' if len(unread) == 1 else 'them'}"
    for i in unread:
        placed[i] = dataclasses.replace(placed[i], remedy=remedy)
    return placed


def _placed(problem: Problem, known: Iterable[str], found: Sequence[tuple[str, Any]]) -> Problem:
    """Return the Problem of an unknown key with the place that has its name, if there is one.

    Args:
        known: The paths of all known keys.
        found: Path and value of each leaf, unknown ones too.
    """
    unknown = problem.path
    section, _, key = unknown.partition(".")
    others = [each.choice for each in descriptions() if section == "cluster" and is_field(each.options(), key)]
    if others:
        return dataclasses.replace(problem, remedy=f"only with cluster={' or cluster='.join(others)}")
    inside = [(path, value) for path, value in found if path == unknown or path.startswith(f"{unknown}.")]
    if section == "recipes" and "." not in key and key in known:
        message = "is a key of the launch, not of a recipe"
        return dataclasses.replace(problem, message=message, allowed=None, remedy=_at_launch(*inside[0]))
    if not (places := _known_places(known, unknown)):
        return problem
    whole = inside[0][0] if len(inside) == 1 else unknown  # trainer.num_nodes=2 makes the key trainer
    remedy = question([f"{place}{whole.removeprefix(unknown)}" for place in places[:3]])
    return dataclasses.replace(problem, path=whole, remedy=remedy)


def _at_launch(path: str, value: Any) -> str:
    """Return how a launch is given a value that a recipe has at a path."""
    key, text = path.removeprefix("recipes."), value if isinstance(value, str) else json.dumps(value)
    if key.partition(".")[0] == "recipes":
        return "leave out this level"
    is_shown = "." not in key and key != NOTIFY and re.fullmatch(_BARE, text) and not holds_token(text)
    return f"{key}={text if is_shown else '…'} at the launch"


def _known_places(known: Iterable[str], unknown: str) -> list[str]:
    """Return the other paths that end in the same name as an unknown key, those of sizes left out.

    There is none for a key of a list's item, nor if only a section of the path is misspelt.
    """
    if re.search(r"\.\d+\.", unknown):
        return []
    name = unknown.rpartition(".")[2]
    places = [p for p in known if p.endswith(f".{name}") and "scale_config" not in p]
    if _like(known, unknown) in places:
        return []
    if not places and name == unknown and name in field_names(RecipeBase):
        return [f"recipes.{name}"]
    return places


def _like(known: Iterable[str], unknown: str) -> str | None:
    """Return the path with the nearest known name in place of the first unknown one; None if no name is close."""
    first = next(above for above in reversed([*prefixes(unknown)]) if above not in known)
    above = first.rpartition(".")[0]
    beside = [path.rpartition(".")[2] for path in known if path.rpartition(".")[0] == above]
    names = nearest(first.rpartition(".")[2], beside)
    meant = (".".join(filter(None, (above, name))) + unknown.removeprefix(first) for name in names)
    return next((path for path in meant if path in known), None)


def _declaring(keys: Iterable[str]) -> str:
    """Return the override that declares keys which the program reads."""
    items = [key if re.fullmatch(r"[\w.-]+", key) else f"'{key}'" for key in dict.fromkeys(keys)]
    return shell_word(f"recipes.extra_keys=[{','.join(items)}]")


def without_size(path: str) -> str:
    """Return the key of a recipe that a path names, in the base recipe or in the entry of a size."""
    return re.sub(r"recipes\.(scale_config\.[^.]+\.)?", "", path, count=1)
