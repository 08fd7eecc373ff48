"""Values of the user's own files that an inherited scale_config replaces."""

from collections.abc import Iterator

from launcher.check import Draft, Scale
from launcher.compose import Composition
from launcher.layout import clipped, value_text
from launcher.planner import BOUND, spans
from launcher.problems import Notice
from launcher.scales import ABSENT, SCALES, is_base, leaves, lookup

_MOST_VALUE = 60
"""Characters of a value that a notice repeats."""


def notices(draft: Draft) -> Iterator[Notice]:
    """Yield a notice for each base value of a file of the user's that a size replaces."""
    composition = draft.composition
    if not draft.is_elastic or not composition.own_layers:
        return
    for path, scales in _differing(draft).items():
        written = _last_layer(composition, f"recipes.{path}")
        sizes = [scale.nodes for scale in scales if _is_inherited(composition, path, scale, written)]
        if written in composition.own_layers and sizes:
            yield _notice(composition, path, sizes)


def _differing(draft: Draft) -> dict[str, list[Scale]]:
    """Return the sizes that set another value than the base recipe has, by path."""
    base, found = draft.composition.tree["recipes"], {}
    bound = BOUND if draft.size_plan else None  # planned passes are at most it, so it has an effect
    for scale in draft.sizes:
        for path, value in leaves(scale.own):
            full = f"recipes.{path}"
            if is_base(full) and full != bound and lookup(base, path) not in (ABSENT, value):
                found.setdefault(path, []).append(scale)
    return found


def _last_layer(composition: Composition, path: str) -> int:
    """Return the number of the last layer of files that sets a path; -1 if none does."""
    return max((number for number, _ in composition.layers(path)), default=-1)


def _is_inherited(composition: Composition, path: str, scale: Scale, written: int) -> bool:
    """Return whether a shipped file sets a size's value, or a file below the one that sets the base value."""
    own = f"{SCALES}.{scale.nodes}.{path}"
    number = _last_layer(composition, own)
    return own not in composition.explicit and (number not in composition.own_layers or number < written)


def _notice(composition: Composition, path: str, sizes: list[int]) -> Notice:
    name, value = path.rpartition(".")[2], lookup(composition.tree["recipes"], path)
    text, place = clipped(value_text(value, path), _MOST_VALUE), composition.origin(f"recipes.{path}")
    what = f"{name}={text} of {place} has no effect at {spans(sizes)} nodes, where scale_config has other values"
    return Notice("N167", f"{what}: set it there, or by the override recipes.{path}=… at every size")
