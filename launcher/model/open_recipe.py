"""What the open trainer of fine-tuning recipes is given of a family's recipes."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # few compiles need it
    from launcher.runtime.finetune.key_terms import KeyTable

Recipe = Mapping[str, Any]


class OpenRecipe(NamedTuple):
    """How a family's recipes become configurations of the open trainer, and where it finds values in their keys.

    Paths are dotted, from the top of the recipe.
    """

    table: "Callable[[], KeyTable]"
    """What the trainer does with each key of the family."""
    model: str
    """Key of the model: a folder, or a name on the Hugging Face Hub."""
    train: str
    """Key of the training samples."""
    validation: str
    """Key of the validation samples."""
    adapters: str
    """Key of adapters to start from."""
    trained: Callable[[Recipe], Recipe] = lambda recipe: recipe
    """Returns the trainer's own configuration, in the layout of LLMFT recipes, of a recipe that has no Problem."""
    own_keys: tuple[str, ...] = ()
    """Keys that only the open trainer reads."""
