"""Values of the user that others replace: overrides, and those in the user's files."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from launcher.common.problems import Notice
from launcher.common.syntax import QUOTED
from launcher.common.text_table import clipped, value_text
from launcher.common.texts import counted, first_of
from launcher.model.backend_registry import described
from launcher.model.checked_recipe import CheckedRecipe, SizedRecipe
from launcher.model.composition import Composition
from launcher.model.config_tree import ABSENT, SCALES, is_base, is_index, leaves, lookup, prefixes, reachable
from launcher.model.environment import plain_variables
from launcher.model.family_registry import interface
from launcher.model.size_plan import spans
from launcher.rules import MakeNotice, PlannedRecipe, notice_rule

_PRECEDENCE = "docs/concepts.md, Sizes and precedence"
_TEXTS = (
    "env_vars.",
    "recipes.training_cfg.script_args.",
    "cluster.sm_jobs_config.hyperparameters.",
    "cluster.sm_jobs_config.additional_estimator_kwargs.hyperparameters.",
)
"""Keys whose values reach a program as texts."""
_IS_ELASTIC = "recipes.elastic_policy.is_elastic"
_OF_ELASTIC = (f"{SCALES}.", "recipes.elastic_policy.")
"""Beginnings of keys that a static job does not read."""
_OF_PROCESSES = frozenset(
    ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE")
    + ("MASTER_ADDR", "MASTER_PORT")
)
_MOST_NAMES = 4
"""Maximum number of keys that a notice names."""
_MOST_VALUE = 60
"""Maximum length of a value that a notice repeats."""


@notice_rule("N165", source=_PRECEDENCE)
def overrides_without_effect(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """An override that a later one undoes, or that has no effect, is probably a mistake."""
    composition = planned.checked.composition
    for unused in composition.unused:
        yield notice(f"{unused.override} changes nothing: {unused.reason}")
    decided = {} if planned.checked.is_elastic else composition.decided
    unread = (text for path, text in decided.items() if path.startswith(_OF_ELASTIC) and path != _IS_ELASTIC)
    for text in dict.fromkeys(unread):
        yield notice(f"{text} changes nothing: the job is static without ++{_IS_ELASTIC}=true")
    backend = described(composition.backend)
    inside = tuple(f"{key}." for key in backend.unread)
    given = ((path, text) for path, text in composition.explicit.items() if f"{path}.".startswith(inside))
    for text in dict.fromkeys(text for path, text in given if lookup(composition.tree, path) is not None):
        yield notice(f"{text} changes nothing with cluster={backend.choice}")


@notice_rule("N169", source="Hydra, Override grammar, Primitives")
def numbers_become_other_texts(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Variables and arguments are texts: a number or a switch without quotes is read first, and has one form then."""
    composition = planned.checked.composition
    for path, override in composition.explicit.items():
        for name, number, value in _texts(path, lookup(composition.tree, path)):
            words, own = _words(path, name, override, number), value if isinstance(value, list) else [value]
            for word, each in zip(words, own, strict=False):
                text = value_text(each)
                if not isinstance(each, bool | int | float) or word in ("''", text):
                    continue
                is_key = path.endswith(f".{name}")
                is_typed = is_key and value is each and not any(map(is_index, path.split(".")))
                kept = f"\"++{path}='{word}'\"" if is_typed else f"'{word}' in quotes"
                what = path if is_key else f"{path} {name}"
                yield notice(f"{what}: {word} is passed as {text}; to keep it: {kept}")
    yield from map(notice, _changed_in_files(composition))


def _changed_in_files(composition: Composition) -> Iterator[str]:
    """Yield a message for each number or switch in a file of the user's that a program receives as another text."""
    for layer in sorted(composition.sources.own_layers):
        file, _ = composition.sources.place(layer)
        for path, word in composition.sources.unquoted(layer):
            value = lookup(composition.tree, path) if path.startswith(_TEXTS) else None
            if not isinstance(value, bool | int | float) or word == (text := value_text(value)):
                continue
            is_typed = any(above in composition.explicit for above in prefixes(path))
            if not is_typed and composition.sources.layers(path)[-1:] == ((layer, value),):
                yield f"{path}: {word} of {file} is passed as {text}; to keep it: '{word}' in quotes"


def _texts(path: str, value: object) -> Iterator[tuple[str, int, object]]:
    """Yield the texts that an override gives a program: name, how often it came before, and value."""
    if isinstance(value, list) and f"{path}.".startswith(_TEXTS):
        seen = Counter[str]()
        for item in filter(lambda each: isinstance(each, Mapping), value):
            for name, each in item.items():
                yield name, seen[name], each
                seen[name] += 1
    elif path.startswith(_TEXTS):
        yield path.rpartition(".")[2], 0, value


@notice_rule("N183", source="PyTorch, torchrun, Environment Variables; the interface of each family")
def variables_replace_the_launchers(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """The user's value replaces that of a variable of the launcher's, but not of those that the agent sets later."""
    if not (given := plain_variables(planned.job.config)):
        return  # few jobs have any
    roles, own = interface(planned.job).roles, dict[str, str]()
    for role in roles:
        own |= {**role.env(planned.job), **role.image_env(planned.job)}
    # where jobs scale, the agent starts them, but for the programs of a Ray cluster
    is_by_agent = described(planned.job.backend).scaling is not None and len(roles) == 1
    for name, value in given.items():
        if is_by_agent and name in _OF_PROCESSES:
            yield notice(f"env_vars.{name} has no effect: the agent sets {name} for each process")
        elif own.get(name, value) != value:
            yield notice(f"env_vars.{name}={value} replaces {own[name]}, with which the launcher starts this job")


def _words(path: str, name: str, override: str, number: int) -> list[str]:
    """Return the words without quotes that an override gives a name, `''` for those in quotes; none if unknown."""
    key, _, value = override.partition("=")
    plain = QUOTED.sub("''", value)
    if key.lstrip("+") != path or plain[:1] in ("[", "{"):
        found = re.findall(rf"[{{,\s]{re.escape(name)}\s*:\s*(\[[^\]]*\]|[^\s,{{}}\[\]]+)", plain)
        plain = found[number] if number < len(found) else "[]"
    if not plain.startswith("["):
        return [plain]
    return [word.strip() for word in plain.strip("[]").split(",") if word.strip()]


@notice_rule("N104", source=_PRECEDENCE)
def overrides_win_over_sizes(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """An override of a base key also overrides every size that sets it."""
    recipe = planned.checked.composition.tree["recipes"]
    for path, count in planned.checked.overridden_sizes.items():
        name = path.removeprefix(f"{reachable(recipe, path).rpartition('.')[0]}.")
        value = lookup(recipe, path)
        text = clipped(value_text(value, path), _MOST_VALUE)
        what = f"the removal of {name}" if value is ABSENT else f"{name}={text}"
        yield notice(f"{what} from the command line overrides scale_config at {counted(count, 'size')}")


@notice_rule("N168", source="Hydra, The Defaults List")
def files_lose_to_their_defaults(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Defaults after _self_ override the file that lists them."""
    composition = planned.checked.composition
    for layer in sorted(composition.sources.own_layers):
        if not (above := composition.sources.above(layer)):
            continue
        if losing := [path for path in composition.sources.leaves(layer) if _loses(composition, path, layer, above)]:
            names = first_of([path.rpartition(".")[2] for path in losing], _MOST_NAMES)
            file, _ = composition.sources.place(layer)
            what = f"defaults after _self_ override {names} of {file}"
            yield notice(f"{what}: move _self_ to the end of the list, or omit it")


def _loses(composition: Composition, path: str, layer: int, above: Collection[int]) -> bool:
    """Return whether one of the layers above sets another value at a path."""
    values = dict(composition.sources.layers(path))
    return layer in values and any(number in above and value != values[layer] for number, value in values.items())


@notice_rule("N167", source=_PRECEDENCE)
def files_lose_to_sizes(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """scale_config overrides the base value of a file that inherits it."""
    checked, composition = planned.checked, planned.checked.composition
    if not checked.is_elastic or not composition.sources.own_layers:
        return
    for path, scales in _differing(checked).items():
        written = _last_layer(composition, f"recipes.{path}")
        sizes = [scale.nodes for scale in scales if _is_inherited(composition, path, scale, written)]
        if written in composition.sources.own_layers and sizes:
            yield notice(_replaced_at(composition, path, sizes))


def _differing(checked: CheckedRecipe) -> dict[str, list[SizedRecipe]]:
    """Return the sizes with another value than the base recipe, by path."""
    base, keys = checked.composition.tree["recipes"], checked.recipe.keys.batch
    found: dict[str, list[SizedRecipe]] = {}
    bound = keys.bound if keys and checked.size_plan else None  # it bounds planned passes, so it has an effect
    for scale in checked.sizes:
        for path, value in leaves(scale.own):
            full = f"recipes.{path}"
            if is_base(full) and full != bound and lookup(base, path) not in (ABSENT, value):
                found.setdefault(path, []).append(scale)
    return found


def _last_layer(composition: Composition, path: str) -> int:
    """Return the number of the last layer of files that sets a path; -1 if none does."""
    return max((number for number, _ in composition.sources.layers(path)), default=-1)


def _is_inherited(composition: Composition, path: str, scale: SizedRecipe, written: int) -> bool:
    """Return whether a shipped file sets a size's value, or a file below the one that sets the base value."""
    own = f"{SCALES}.{scale.nodes}.{path}"
    number = _last_layer(composition, own)
    return own not in composition.explicit and (number not in composition.sources.own_layers or number < written)


def _replaced_at(composition: Composition, path: str, sizes: list[int]) -> str:
    name, value = path.rpartition(".")[2], lookup(composition.tree["recipes"], path)
    text, place = clipped(value_text(value, path), _MOST_VALUE), composition.origin(f"recipes.{path}")
    what = f"{name}={text} of {place} has no effect at {spans(sizes)} nodes, where scale_config has other values"
    return f"{what}: set it there, or at every size with the override recipes.{path}=…"
