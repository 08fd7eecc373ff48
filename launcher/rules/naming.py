"""Names that a recipe gives, and leaves to its user: of the job, its image, the model, data, further keys."""

import re
from collections.abc import Iterator

from launcher.common.problems import Notice, Problem
from launcher.common.redaction import masked
from launcher.common.suggestions import did_you_mean
from launcher.common.syntax import is_dns_label
from launcher.model import aws_regions
from launcher.model.backend_registry import described
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.config_tree import ABSENT, get, lookup
from launcher.model.job_spec import OPEN
from launcher.model.validation import is_field
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


@rule("E301", "recipes.run.name", source="Kubernetes, Object Names and IDs")
def run_name_is_dns_label(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The job's name starts with run.name, and is part of names of pods and of label values."""
    name = checked.recipe.run.name
    if not is_dns_label(name):
        mended = re.sub(r"[^a-z0-9]+", "-", masked(name).lower())[:63].strip("-") or "my-run"
        yield problem(
            "recipes.run.name",
            "is not a valid DNS label",
            value=name,
            remedy=f"recipes.run.name={mended}",
            allowed="1 to 63 lower-case letters, digits and -, starting and ending with a letter or digit",
        )


@rule("E611", "container", source="botocore, data/endpoints.json; Amazon ECR, Private registries")
def registries_are_in_regions_that_exist(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """An image in a region that does not exist cannot be pulled: pods would wait, and a training job would fail."""
    image = checked.launch.container or ""
    region = aws_regions.of_image(image)
    if region and not aws_regions.exists(region):
        remedy = did_you_mean(region, aws_regions.known()) or "pip install --upgrade boto3, if it is a new one"
        yield problem("container", f"its region {region} is not known", value=image, remedy=remedy)


@rule("E613", "recipes.images", "cluster", source="the published images")
def region_has_the_image(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A published image exists in some regions only, and a job without an image does not start."""
    backend = described(checked.backend)
    if (region := checked.region_without_image) is None:
        return
    regions, own = checked.recipe.image_regions(backend.choice), backend.region(checked.settings)
    message = f"the recipe's image is not published in {region}"
    remedy = "container=<an image of your own>" + ("" if own else f", or recipes.images.region={regions[0]}")
    yield problem("container", message, allowed=f"a job in {', '.join(regions)}", remedy=remedy)


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
    if empty and checked.is_in_container and checked.trainer != OPEN:
        verb = "is" if len(empty) == 1 else "are"
        yield notice(f"{', '.join(empty)} {verb} empty: the container's own default applies")


@rule("E335", "recipes.extra_keys", source=_TYPES)
def extra_keys_reach_the_program(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The program's configuration lacks the sections that only the launcher reads, and it knows all keys of these."""
    recipe = checked.recipe
    for key in recipe.extra_keys or ():
        if not (recipe.keys.is_read_by_program(key) or is_field(type(recipe), key)):
            message = "names a key of a section that only the launcher reads: it would not reach your code"
            yield problem("recipes.extra_keys", message, value=key, remedy=f"leave {key} out")


@notice_rule("N127", source=_TYPES)
def extra_keys_are_unset(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """An entry of extra_keys that the recipe does not set may be a typo or a leftover."""
    checked = planned.checked
    trees = (checked.composition.tree["recipes"], *(scale.tree for scale in checked.scales))
    extra = checked.recipe.extra_keys or ()
    if unset := [key for key in extra if all(lookup(tree, key) is ABSENT for tree in trees)]:
        yield notice(f"extra_keys names {', '.join(unset)}, which this recipe does not set")
