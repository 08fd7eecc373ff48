"""Who trains a recipe: whether it has the choice, and what the open trainer asks for."""

from collections.abc import Callable, Iterator

from launcher import families
from launcher.common.problems import Notice, Problem
from launcher.model.backend_registry import described
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.interface import is_published_image
from launcher.model.job_spec import OPEN
from launcher.rules import MakeNotice, PlannedRecipe, notice_rule, rule

_TRAINER = "cluster.trainer"
_MODEL_TYPE = "recipes.run.model_type"
_DOCS = "docs/open-trainer.md"


@rule("E114", _TRAINER, _MODEL_TYPE, source="launcher/families")
def trainer_is_a_choice(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A family that only one program can train has no choice of a trainer."""
    wanted, model_type = checked.settings.trainer, checked.recipe.run.model_type
    if wanted and wanted not in families.trainers(model_type):
        message = f"recipes of model_type {model_type} have one trainer, and no choice"
        yield problem(_TRAINER, message, value=wanted, remedy=f"leave {_TRAINER} out")


@rule("E115", "rehearse", _TRAINER, "cluster.command", _MODEL_TYPE, source=_DOCS)
def open_trainer_rehearses(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """Only the open trainer shrinks a model and makes up samples; any other program would train in earnest."""
    if not checked.is_rehearsal:
        return
    model_type = checked.recipe.run.model_type
    if OPEN not in families.trainers(model_type):
        message, remedy = f"the program of model_type {model_type} does not rehearse", "rehearse=false"
    elif described(checked.backend).replaces_program(checked.settings):
        message, remedy = "the cluster section has a start command of its own, which decides itself", "rehearse=false"
    elif checked.trainer != OPEN:
        message, remedy = "the published image's program does not rehearse", f"{_TRAINER}={OPEN}"
    else:
        return
    yield problem("rehearse", message, value=True, remedy=remedy)


@rule("E117", "container", _TRAINER, _MODEL_TYPE, source="docs/container.md")
def open_trainer_has_an_image(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """The published image does not have the open trainer, which runs in an image that you build."""
    image, backend = checked.launch.container, described(checked.backend)
    if checked.trainer != OPEN or backend.runs_here or (image and not is_published_image(image)):
        return
    message = "the open trainer runs in an image of your own" + ("; this is the published one" if image else "")
    remedy = "recipes container writes the files of one; build it, then container=<registry>/<name>:<tag>"
    yield problem("container", message, value=image, remedy=remedy)


@notice_rule("N173", source=_DOCS)
def job_is_a_rehearsal(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """The result of a rehearsal is no model that anybody could use."""
    if planned.job.is_rehearsal:
        yield notice(
            "a rehearsal: a small model with random weights is trained on made-up samples; its results are not usable"
        )
