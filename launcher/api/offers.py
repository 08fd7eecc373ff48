"""What a command line may name, for its completion: keys of a composition, and values of a key."""

from collections.abc import Iterator, Sequence

from launcher.config.collection import clusters, recipe_names
from launcher.model.backend_registry import descriptions
from launcher.model.composition import Composition
from launcher.model.config_tree import get, leaves
from launcher.model.family_registry import names as families
from launcher.model.instances import table as instance_types

__all__ = ["Composition", "cluster_values", "clusters", "families", "get", "instance_types", "keys", "recipe_names"]


def keys(composition: Composition) -> Iterator[str]:
    """Yield the dotted path of every value of a composition, but for those of single sizes."""
    yield from (path for path, _ in leaves(composition.tree) if not path.startswith("recipes.scale_config."))


def cluster_values(key: str) -> Sequence[str]:
    """Return the values of a key of the `cluster` section that a cluster offers, whichever is chosen."""
    return next(filter(None, (each.offers(key) for each in descriptions())), ())
