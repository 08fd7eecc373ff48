"""Overrides to one resolved tree, with the origin of every value: the stages of a composition, in order."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from launcher.common.paths import COLLECTION
from launcher.config import interpolation, rehearsal
from launcher.config.applying import apply
from launcher.config.choices import Choices, choose, chosen_files, unused_choices
from launcher.config.effects import Effects
from launcher.config.file_cache import FileCache
from launcher.config.hydra_compose import CompositionCache, Files
from launcher.config.override_text import text_of
from launcher.config.parsed_overrides import is_choice, parse, spelled
from launcher.config.resolving import refuse_faulty_references, resolve
from launcher.config.value_sources import FileLayers, Layer
from launcher.model.backend_registry import name_of
from launcher.model.composition import Composition
from launcher.model.config_tree import AUTO, get, replaced

_POLICY = Layer("base/elastic/policy", "recipes", COLLECTION / "base/elastic/policy.yaml")
"""The file that holds the default `elastic_policy`."""


def compose(
    overrides: Sequence[str], cwd: Path, suffix: str | None = None, cache: CompositionCache | None = None
) -> Composition:
    """Compose `overrides` over the recipe collection.

    Hydra composes the files that the overrides choose; that result is kept while those files are unchanged.
    Values are then set on a copy one by one, so that each faulty override is reported, not only the first.

    Args:
        overrides: Hydra overrides, as on the command line; `recipes=` may stand anywhere.
        cwd: Folder that relative recipe files are looked up in.
        suffix: End of the job's name. If given, references to run.name get the name of the job, so that paths made
            of it are different for each job. run.name itself is unchanged.
        cache: Files that earlier compositions have read; None for the first.

    Raises:
        ProblemsFound: A malformed override, an unknown recipe or cluster, a file that is not YAML, a value
            that refers to nothing. Every independent fault is reported.
    """
    cache = cache or CompositionCache()
    overrides = spelled(overrides, cwd)
    parsed = rehearsal.completed(parse(overrides))
    choices = choose(parsed, cwd)
    files = cache.composed(choices)
    config = files.wrapped()
    values = [o for o in parsed if not is_choice(o) and not o.is_hydra_override()]
    effects, has_corrections = apply(config, values)
    has_default_policy = _inherit_policy(config, files.tree)
    composition = _begun(
        overrides, parsed, files, choices, effects, cache.files, has_default_policy=has_default_policy
    )
    if files.references + sum(text.count("${") for text in overrides) > interpolation.FEW:
        refuse_faulty_references(config, composition)
    composition = _resolved(composition, config, suffix, has_corrections=has_corrections)
    unused = (*unused_choices(parsed, composition.sources), *effects.unused(values))
    return dataclasses.replace(composition, unused=unused)


def _resolved(
    composition: Composition, config: DictConfig, suffix: str | None, *, has_corrections: bool
) -> Composition:
    """Return the composition with its values, every reference resolved."""
    stated = interpolation.give_job_name(config, suffix) if suffix else {}
    tree: Mapping[str, Any] = resolve(config, composition)
    for path, name in stated.items():
        tree = replaced(tree, path, name)
    tree = {**tree, "training_config": tree.get("training_config") or composition.recipe}
    return dataclasses.replace(
        composition,
        tree={**tree, "recipes": {**tree["recipes"], "scale_config": AUTO}} if has_corrections else tree,
        corrections=tree["recipes"]["scale_config"] if has_corrections else {},
        name_paths=tuple(stated) or composition.name_paths,
    )


def _begun(
    overrides: Sequence[str],
    parsed: Sequence[Override],
    files: Files,
    choices: Choices,
    effects: Effects,
    cache: FileCache,
    *,
    has_default_policy: bool,
) -> Composition:
    """Return the composition without its values."""
    chosen = chosen_files(parsed)
    layers = (_POLICY, *files.layers) if has_default_policy else files.layers
    return Composition(
        tree={},
        recipe=str(chosen["recipes"].value()) if "recipes" in chosen else files.recipe,
        backend=name_of(files.cluster),
        overrides=tuple(overrides),
        explicit=effects.explicit,
        removed=effects.removed,
        chosen={key.lstrip("+~"): text_of(override) for key, override in chosen.items()},
        has_default_policy=has_default_policy,
        sources=FileLayers(layers, choices.search, [each for each in parsed if not is_choice(each)], cache),
    )


def _inherit_policy(config: DictConfig, of_files: Mapping[str, Any]) -> bool:
    """Complete an `elastic_policy` that only overrides made by the default one; return whether there is one."""
    key = "recipes.elastic_policy"
    policy = OmegaConf.select(config, key)
    if not OmegaConf.is_dict(policy) or get(of_files, key) is not None:
        return False
    default = OmegaConf.select(OmegaConf.load(_POLICY.file), "elastic_policy")
    OmegaConf.update(config, key, OmegaConf.merge(default, policy), merge=False)
    return True
