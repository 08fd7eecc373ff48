"""Overrides to one resolved tree, with the origin of every value: the stages of a composition, in order."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

from launcher.common.problems import gathering, raise_any
from launcher.config import interpolation, plain_values
from launcher.config.choices import choose, unused_choices
from launcher.config.composed_files import CompositionCache
from launcher.config.files import POLICY, Choices, Files
from launcher.config.overrides import SEARCH_PATH, Override
from launcher.config.parsing import read, spelled
from launcher.config.plain_values import NotPlain, Values
from launcher.config.provenance import FileLayers
from launcher.model.backend_registry import name_of
from launcher.model.composition import Composition
from launcher.model.config_tree import replaced


def compose(
    overrides: Sequence[str], cwd: Path, suffix: str | None = None, cache: CompositionCache | None = None
) -> Composition:
    """Compose `overrides` over the recipe collection.

    The files that the overrides choose are composed first; that result is kept while those files are unchanged.
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
    parsed, choices, files = _chosen(overrides, cwd, cache)
    values = [each for each in parsed if not each.is_choice and not each.is_hydra]
    named = choices.typed.get("recipes")
    recipe = str(named.value) if named else files.recipe

    def begun(found: Values) -> Composition:
        layers = (POLICY, *files.layers) if found.has_default_policy else files.layers
        typed = [each for each in parsed if not each.is_choice]
        return Composition(
            tree={},
            recipe=recipe,
            backend=name_of(files.cluster),
            overrides=tuple(overrides),
            explicit=found.effects.explicit,
            removed=found.effects.removed,
            chosen=choices.shown,
            has_default_policy=found.has_default_policy,
            sources=FileLayers(layers, choices.search, typed, cache.files),
        )

    try:
        if files.references > interpolation.FEW:
            raise NotPlain
        found = plain_values.valued(files, values, suffix)
    except (NotPlain, RecursionError):
        from launcher.config import resolving  # OmegaConf takes 0.2 s, which most launches do without

        found = resolving.valued(files, values, suffix, begun)
    composition = begun(found)
    tree = functools.reduce(lambda tree, stated: replaced(tree, *stated), found.stated.items(), found.tree)
    return dataclasses.replace(
        composition,
        tree={**tree, "training_config": tree.get("training_config") or recipe},
        corrections=found.corrections or {},
        name_paths=tuple(found.stated) or composition.name_paths,
        unused=(*unused_choices(parsed, choices, composition.sources), *found.effects.unused(values)),
    )


def _chosen(overrides: Sequence[str], cwd: Path, cache: CompositionCache) -> tuple[list[Override], Choices, Files]:
    """Return overrides as understood, what they choose, and those files composed; raise every fault of these."""
    parsed, problems = read(overrides)
    choices, faulty_choices = choose(parsed, cwd)
    problems += faulty_choices
    # Without a folder that was meant, the choices in it would be faulty, too.
    if not any(SEARCH_PATH in problem.path for problem in problems):
        with gathering(problems):
            files = cache.composed(choices)
    raise_any(problems)
    return parsed, choices, files
