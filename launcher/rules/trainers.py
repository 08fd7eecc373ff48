"""Who trains a recipe: whether it has the choice, and what the open trainer asks for."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.common.problems import Notice, Problem
from launcher.common.texts import counted
from launcher.model import family_registry
from launcher.model.backend_registry import described
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.config_tree import ABSENT, get, lookup
from launcher.model.family_registry import interface
from launcher.model.interface import is_published_image
from launcher.model.job_spec import OPEN, PUBLISHED
from launcher.model.validation import without_size
from launcher.rules import MakeNotice, MakeProblem, PlannedRecipe, notice_rule, rule
from launcher.rules.custom import CODE_KEYS, given_code

if TYPE_CHECKING:
    from launcher.runtime.finetune.key_terms import Finding

_TRAINER = "cluster.trainer"
_MODEL_TYPE = "recipes.run.model_type"
_ATTENTION = "training_config.model_config.attn_implementation"
"""Key of the open trainer's own configuration."""
_DOCS = "docs/open-trainer.md"


@rule("E114", _TRAINER, _MODEL_TYPE, source="launcher/families")
def trainer_is_a_choice(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A family that only one program can train has no choice of a trainer."""
    wanted, model_type = checked.settings.trainer, checked.recipe.run.model_type
    if wanted and wanted not in family_registry.trainers(checked.recipe_tree):
        message = f"recipes of model_type {model_type} have one trainer, and no choice{_reason(checked)}"
        yield problem(_TRAINER, message, value=wanted, remedy=f"leave {_TRAINER} out")


@rule("E115", "rehearse", _TRAINER, "cluster.command", _MODEL_TYPE, source=_DOCS)
def open_trainer_rehearses(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Only the open trainer shrinks a model and makes up samples; any other program would train in earnest."""
    if not checked.is_rehearsal:
        return
    model_type = checked.recipe.run.model_type
    if OPEN not in family_registry.trainers(checked.recipe_tree):
        message = f"the program of model_type {model_type} does not rehearse{_reason(checked)}"
        remedy = "rehearse=false"
        if interface(checked).is_ray:
            remedy += "; `recipes rehearse` starts the job's Ray cluster on this machine"
    elif described(checked.backend).programs.are_replaced(checked.settings):
        message, remedy = "the start command in the cluster section is not given --rehearse", "rehearse=false"
    elif checked.trainer != OPEN:
        message, remedy = "the published image's program does not rehearse", f"{_TRAINER}={OPEN}"
    else:
        return
    yield problem("rehearse", message, value=True, remedy=remedy)


@rule("E117", "container", _TRAINER, _MODEL_TYPE, source="docs/container.md")
def open_trainer_has_an_image(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The published image does not have the open trainer, which runs in an image that you build."""
    image, backend = checked.launch.container, described(checked.backend)
    needs_image = not backend.runs_here and checked.is_in_container
    if checked.trainer != OPEN or not needs_image or (image and not is_published_image(image)):
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


@rule("E267", "rehearse", "recipes.elastic_policy", source=_DOCS)
def elastic_rehearsal_keeps_its_ranks(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The sizes of an elastic job are numbers of nodes, each with a batch for the ranks of a node."""
    if checked.rehearsal.ranks and checked.is_elastic:
        remedy = "recipes.trainer.devices=<ranks of a node> recipes.scale_config=auto"
        message = "an elastic job changes its nodes, so it has no fixed number of ranks"
        yield problem("rehearse.ranks", message, value=checked.rehearsal.ranks, remedy=remedy)


@notice_rule("N139", source=_DOCS)
def rehearsal_is_bounded(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """A rehearsal leaves out steps of the recipe."""
    job = planned.job
    if not job.is_rehearsal:
        return
    steps, whole = interface(job).rehearsal_steps(job)
    if steps < whole:
        yield notice(
            f"the rehearsal makes {steps} of {whole} steps, on fewer made-up samples: a long schedule, many epochs' "
            "checkpoints and falling losses are left out; rehearse.steps=0 makes all"
        )


@notice_rule("N146", source=_DOCS)
def rehearsal_has_many_ranks(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Ranks that share few processors wait for each other."""
    job = planned.job
    ranks, cores = job.initial_nodes * job.nproc_per_node, len(os.sched_getaffinity(0))
    if job.is_rehearsal and described(job.backend).runs_here and ranks > 2 * cores:
        offer = "recipes.trainer.devices=1 recipes.scale_config=auto" if job.elastic else "rehearse.ranks=2"
        yield notice(f"{ranks} ranks on {counted(cores, 'processor')} are slow: {offer} rehearses with fewer")


@rule("E118", "recipes.training_config", _TRAINER, _MODEL_TYPE, source=_DOCS)
def open_trainer_does_what_is_asked(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A value that the open trainer cannot follow would be another training than the recipe's."""
    for path, finding in _findings(checked):
        if finding.is_refused:
            remedy = f"{path}={finding.condition.remedy}" if finding.condition.remedy else None
            yield problem(path, finding.reason, value=finding.value, remedy=remedy)


@rule("E119", "git", _TRAINER, source=_DOCS)
def open_trainer_fetches_no_code(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Training code of a repository replaces the closed program, which the open trainer has replaced already."""
    message = "is read by the published image only, not by the open trainer"
    for name, value in given_code(checked, CODE_KEYS) if checked.trainer == OPEN else ():
        yield problem(f"git.{name}", message, value=value, remedy=f"git.{name}=null")


@rule("E266", "recipes.training_config", _TRAINER, _MODEL_TYPE, source=_DOCS)
def published_trainer_has_no_key_of_the_open_one(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A key that only the open trainer reads is unknown to the published one."""
    given = family_registry.open_recipe(checked.recipe_tree)
    if given is None or checked.trainer == OPEN:
        return
    written = (each for each in checked.sizes if each.path.rpartition(".")[2] in checked.entries)  # not planned ones
    of_sizes = ((size.path, size.own) for size in written if checked.is_elastic)
    for section, tree in (("recipes", checked.composition.tree["recipes"]), *of_sizes):
        for key in given.own_keys:
            if (value := get(tree, key)) is not None:
                path = f"{section}.{key}"
                remedy = f"~{path}, or {_TRAINER}={OPEN}"
                yield problem(path, "is read by the open trainer only", value=value, remedy=remedy)


@notice_rule("N174", source=_DOCS)
def open_trainer_reads_otherwise(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """A value has no effect on the open trainer, or another one than it names."""
    reasons: dict[str, list[str]] = {}
    for path, reason in _unread(planned.checked):
        reasons.setdefault(reason, []).append(path.removeprefix("recipes.").removeprefix("training_config."))
    for reason, keys in reasons.items():
        yield notice(f"the open trainer does not read {', '.join(dict.fromkeys(keys))}: {reason}")


@notice_rule("N180", source="docs/data.md")
def samples_are_not_trained(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Samples that are dropped, or answers that are not trained, are not what the data was collected for."""
    job = planned.job
    try:
        yield from map(notice, family_registry.interface(job).data_losses(job))
    except ValueError:
        return  # data that cannot be used is a Problem of the launch: E277


@notice_rule("N177", source=_DOCS)
def published_image_may_not_know_the_model(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """A recipe of our own has a model that no published recipe has; only the open trainer was tested with it."""
    labels, trainer = planned.checked.recipe.labels, planned.checked.trainer
    if labels and not labels.published and trainer == PUBLISHED:
        yield notice(f"no published recipe has this model: {_TRAINER}={OPEN} trains it, the published image may not")


@notice_rule("N175", source="transformers, Attention Interface")
def attention_may_differ(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """A kernel for GPUs does not run on every machine; another one computes the same there."""
    checked = planned.checked
    if checked.trainer != OPEN or not described(checked.backend).runs_here:
        return
    from launcher.runtime.finetune.architectures import KNOWN
    from launcher.runtime.model_configs import table  # few compiles need either

    architecture = KNOWN.get(table().get(checked.published_model, {}).get("model_type", ""))
    wish = get(interface(planned.job).config(planned.job.scales[0]), _ATTENTION)
    if architecture and wish not in (fallback := architecture.attention, "eager"):
        yield notice(
            f"attn_implementation={wish}: where this machine cannot compute it, {fallback} computes the same"
        )


def _unread(checked: CheckedRecipe) -> Iterator[tuple[str, str]]:
    """Yield path and reason of each value that is noticed, and of each key without effect that an override sets."""
    if (given := interface(checked).open_recipe) is None:
        return
    table = given.table()
    noticed = {path: found.reason for path, found in _findings(checked) if not found.is_refused}
    yield from noticed.items()
    for path in checked.composition.explicit:
        key = table.key_of(without_size(path)) if path.startswith("recipes.") else None
        if key and not key.has_effect and path not in noticed:
            yield path, key.effect


def _findings(checked: CheckedRecipe) -> Iterator[tuple[str, "Finding"]]:
    """Yield path and finding of each value that is noticed or refused: of the recipe, then of a size alone."""
    if (given := interface(checked).open_recipe) is None:
        return
    from launcher.runtime.finetune.key_terms import Recipe  # few compiles need it

    table = given.table()
    known = set()
    for finding in table.findings(Recipe(checked.composition.tree["recipes"], checked.is_elastic)):
        known.add((finding.key, str(finding.value)))
        yield f"recipes.{finding.key}", finding
    for size in checked.sizes if checked.is_elastic else ():
        for finding in table.findings(Recipe(size.tree, is_elastic=True)):
            if (finding.key, str(finding.value)) not in known and lookup(size.own, finding.key) is not ABSENT:
                yield f"{size.path}.{finding.key}", finding


def _reason(checked: CheckedRecipe) -> str:
    """Return why the open trainer does not train a recipe of a family of which it trains others, after a colon."""
    reason = interface(checked).only_trainer
    return f": {reason}" if reason else ""
