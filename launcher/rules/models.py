"""Settings that a recipe leaves to its user: the model, its data, keys of the training code."""

from collections.abc import Iterator

from launcher.common.problems import Notice, Problem
from launcher.model.backend_registry import described
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.config_tree import ABSENT, get, lookup
from launcher.model.job_spec import OPEN
from launcher.rules import MakeNotice, MakeProblem, PlannedRecipe, notice_rule, rule

MODEL = "recipes.training_config.model_config.model_name_or_path"
_TYPES = "launcher/model/recipe.py, launcher/families and the settings of each cluster"


@rule("E112", MODEL, source="transformers, from_pretrained")
def model_is_named(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A recipe's model cannot be loaded if an override removes its name."""
    if get(checked.composition.tree, MODEL) != "":
        return
    if named := [setting.value for setting in checked.composition.sources.settings(MODEL) if setting.value]:
        yield problem(MODEL, "is empty: the model to load is missing", value="", remedy=f"{MODEL}={named[-1]}")


@notice_rule("N126", source=_TYPES)
def model_is_not_chosen(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """A recipe that leaves the model to you has no weights to start from."""
    if planned.checked.trainer != OPEN and get(planned.checked.composition.tree, MODEL) == "":
        yield notice("model_name_or_path is empty: give a folder, or a name on the Hugging Face Hub")


@notice_rule("N107", source="docs/decisions.md, Checks")
def paths_are_empty(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """A path is empty, so the container decides what the job reads or writes."""
    checked = planned.checked
    paths = [key for key in checked.recipe.keys.left_to_image if get(checked.composition.tree["recipes"], key) == ""]
    empty = [path.removeprefix("training_config.") for path in paths]
    if empty and described(checked.backend).files.has_containers and checked.trainer != OPEN:
        verb = "is" if len(empty) == 1 else "are"
        yield notice(f"{', '.join(empty)} {verb} empty: the container's own default applies")


@notice_rule("N127", source=_TYPES)
def extra_keys_are_unset(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """An entry of extra_keys that the recipe does not set may be a typo or a leftover."""
    checked = planned.checked
    trees = (checked.composition.tree["recipes"], *(scale.tree for scale in checked.scales))
    extra = checked.recipe.extra_keys or ()
    if unset := [key for key in extra if all(lookup(tree, key) is ABSENT for tree in trees)]:
        yield notice(f"extra_keys names {', '.join(unset)}, which this recipe does not set")
