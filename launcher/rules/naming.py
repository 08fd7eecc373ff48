"""Names that a recipe gives its job, and the place of its image."""

import re
from collections.abc import Iterator

from launcher.common.problems import Problem
from launcher.common.suggestions import did_you_mean
from launcher.common.syntax import DNS_LABEL
from launcher.model import aws_regions
from launcher.model.checked_recipe import CheckedRecipe
from launcher.rules import MakeProblem, rule

_OBJECT_NAMES = "Kubernetes, Object Names and IDs"


@rule("E301", "recipes.run.name", source=_OBJECT_NAMES)
def run_name_is_dns_label(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The job's name starts with run.name, and is part of names of pods and of label values."""
    name = checked.recipe.run.name
    if not DNS_LABEL.fullmatch(name):
        mended = re.sub(r"[^a-z0-9]+", "-", name.lower())[:63].strip("-") or "my-run"
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
