"""The user's own script: its launcher, and keys that only other recipes read."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, cast

from launcher.common.problems import Notice, Problem
from launcher.model.backend_registry import described, is_serverless
from launcher.model.checked_recipe import PROCESSES, CheckedRecipe
from launcher.model.config_tree import related
from launcher.model.family_registry import interface
from launcher.model.interface import BUNDLE_CONFIGS
from launcher.model.job_spec import OPEN
from launcher.model.training_args import BATCH_KEYS
from launcher.rules import SIZES, MakeNotice, MakeProblem, PlannedRecipe, notice_rule, rule

if TYPE_CHECKING:
    from launcher.families.custom import Recipe

FAMILY = "custom"
SCRIPT = "recipes.training_cfg"
_PROGRAM = tuple(f"{SCRIPT}.{key}" for key in ("entry_script", "entry_module", "script_args"))
_BATCH = f"recipes.{BATCH_KEYS.train_batch_size}"
_KEYS = "docs/decisions.md, A script of your own"
_TRAINER = "cluster.trainer"
_REVISION = ("repo_url_or_path", "branch", "commit", "token")
"""Keys of `git` that name a revision, which some backends fetch for every program."""
CODE_KEYS = ("repo_url_or_path", "branch", "commit", "entry_script", "entry_module", "token")
"""All keys of `git` that replace the code of an image."""
_COMMANDS = ("pre_script", "post_script")
"""Keys of a recipe that the images of other recipes read, but the user's own script does not."""


def script_of(checked: CheckedRecipe) -> "Recipe | None":
    """Return the recipe of a job that runs the user's own script; None for other jobs."""
    # The family's class is not imported for this: its models cost every compile milliseconds.
    return cast("Recipe", checked.recipe) if is_script(checked) else None


def nodes_key(checked: CheckedRecipe) -> str:
    """Return the key of the number of nodes that the recipe reads."""
    script = script_of(checked)
    return f"{SCRIPT}.run.nodes" if script and script.training_cfg.run else "recipes.trainer.num_nodes"


def is_script(checked: CheckedRecipe) -> bool:
    """Return whether the job runs the user's own script."""
    return checked.recipe.run.model_type == FAMILY


@rule("E105", SCRIPT, "recipes.run.model_type", source=_KEYS)
def only_scripts_have_training_cfg(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A recipe with its own trainer would not start the script."""
    if checked.recipe.training_cfg is not None and not is_script(checked):
        yield problem(
            SCRIPT,
            f"this recipe trains with {checked.recipe.run.model_type}, which does not run your script",
            remedy="recipes=training/custom/script, or omit training_cfg",
        )


@rule("E106", f"{SCRIPT}.entry_script", f"{SCRIPT}.entry_module", "cluster", source=_KEYS)
def one_entry(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Every rank starts one program: a script or a module, unless a training job's image has its own program."""
    if (script := script_of(checked)) is None:
        return
    given = [value for value in (script.training_cfg.entry_script, script.training_cfg.entry_module) if value]
    programs, missing = described(checked.backend).programs, "training_cfg.entry_script=train.py"
    if programs.toolkit_key:
        missing += f"; or {programs.toolkit_key}=false for an image with its own program"
    if len(given) != 1 and (given or programs.needs_script(checked)):
        yield problem(
            f"{SCRIPT}.entry_script",
            "both a script and a module are given" if given else "the script to run is missing",
            value=" and ".join(given) or None,
            allowed="one of entry_script and entry_module",
            remedy=f"{SCRIPT}.entry_module=null" if given else missing,
        )


@rule("E327", f"{SCRIPT}.entry_script", "cluster", source="Bash Reference Manual, Tilde Expansion")
def paths_need_no_shell(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A container starts the script without a shell that expands `~`, and its home is not this machine's."""
    script = script_of(checked)
    path = (script and script.training_cfg.entry_script) or ""
    if path.startswith("~") and described(checked.backend).files.has_containers:
        message = "~ is not expanded in a container"
        yield problem(f"{SCRIPT}.entry_script", message, value=path, allowed="an absolute path in the container")


@rule("E107", f"{SCRIPT}.script_args", source=_KEYS)
def arguments_are_words(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """An argument is a name and a value, in the given order."""
    script, has_bundle = script_of(checked), described(checked.backend).files.has_bundle
    arguments = script.training_cfg.script_args if script else None
    for i, argument in enumerate(arguments or ()):
        path = f"{SCRIPT}.script_args.{i}"
        if len(argument) != 1:
            yield problem(path, "is not one argument", value=argument, allowed="one name and its value: {--lr: 0.1}")
        for name, value in argument.items():
            values = value if isinstance(value, list) else [value]
            if not all(each is None or isinstance(each, str | int | float) for each in values):
                allowed = "a text, a number, true, false, null (the name alone) or a list of these"
                yield problem(f"{path}.{name}", "is not a valid argument value", value=value, allowed=allowed)
            elif not has_bundle and str(value).startswith("bundle:") and value != BUNDLE_CONFIGS:
                message = "a pod has only the bundle's configurations"
                yield problem(f"{path}.{name}", message, value=value, allowed=BUNDLE_CONFIGS)


@rule("E108", "git", "recipes.pre_script", "recipes.post_script", _TRAINER, source=_KEYS)
def nothing_is_unread(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Keys that the start script of some images reads would have no effect on another program."""
    if checked.trainer == OPEN or interface(checked).workers.reads_git:
        return
    what = "your script" if is_script(checked) else "this recipe's program"
    message = f"is read only by images with a start script, such as LLMFT's, not by {what}"
    fetched = _REVISION if described(checked.backend).files.has_revisions else ()
    for name, value in given_code(checked, [name for name in CODE_KEYS if name not in fetched]):
        is_entry = is_script(checked) and name.startswith("entry_")
        remedy = f"training_cfg.{name}={value}" if is_entry else f"git.{name}=null"
        yield problem(f"git.{name}", message, value=value, remedy=remedy)
    if is_script(checked) and getattr(checked.settings, "runtime", None) != "launcher":  # whose entrypoint runs them
        for name in _COMMANDS:
            if (commands := getattr(checked.recipe, name)) is not None:
                yield problem(f"recipes.{name}", message, value=commands, remedy=f"recipes.{name}=null")


@rule("E123", "git", _TRAINER, source="git-clone(1)")
def revision_has_a_repository(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A branch, a commit or a token belongs to the repository that the image's start script fetches."""
    if not described(checked.backend).files.has_revisions and interface(checked).workers.reads_git:
        yield from names_no_repository(checked, problem)


def names_no_repository(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Yield a Problem for each key of a revision if the repository that has it is not named."""
    if checked.launch.git.repo_url_or_path:
        return
    for name, value in given_code(checked, _REVISION[1:]):
        remedy = f"git.repo_url_or_path=<repository>, or git.{name}=null"
        yield problem(f"git.{name}", "names no repository", value=value, remedy=remedy)


def given_code(checked: CheckedRecipe, names: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Yield each of these keys of `git` that has a value, with that value; the token's is not shown."""
    for name in names:
        if (value := getattr(checked.launch.git, name)) is not None:
            yield name, None if name == "token" else value


def states_no_processes(checked: CheckedRecipe) -> bool:
    """Return whether devices would idle because the number of processes per node is not given."""
    instance = checked.instance
    if not is_script(checked) or instance is None or checked.recipe.trainer.devices >= instance.processes:
        return False
    return all(checked.composition.is_unstated(path) for path in PROCESSES) and not is_serverless(checked)


@rule("E109", *PROCESSES, "instance_type", "cluster", source="launcher/model/instances.csv")
def processes_are_stated(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """One process per node leaves all devices but one idle, although they are billed. A serverless job plans none."""
    if checked.instance and states_no_processes(checked):
        most = checked.instance.processes
        yield problem(
            PROCESSES[0],
            f"the number of processes per node is missing: {checked.instance.name} has devices for {most}",
            value=checked.recipe.trainer.devices,
            remedy=f"training_cfg.run.ntasks_per_node={most}",
        )


@rule("E110", *SIZES, _BATCH, source="docs/concepts.md, Sizes and precedence")
def elastic_batch_is_stated(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The samples per step stay the same at every size, which requires that they are stated."""
    if is_script(checked) and checked.is_elastic and checked.composition.is_unstated(_BATCH):
        yield problem(
            _BATCH,
            "an elastic script must state its samples per optimizer step, over all ranks",
            remedy=f"{_BATCH}=…, which your script reads from the configuration of its size",
        )


@rule("E111", "recipes.trainer", f"{SCRIPT}.run", source=_KEYS)
def sizes_agree(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """`training_cfg.run` and `trainer` set the same numbers; if both are given, they must agree."""
    script = script_of(checked)
    if script is None or (run := script.training_cfg.run) is None:
        return
    for path, value, name, other in (
        ("recipes.trainer.num_nodes", checked.recipe.trainer.num_nodes, "nodes", run.nodes),
        ("recipes.trainer.devices", checked.recipe.trainer.devices, "ntasks_per_node", run.ntasks_per_node),
    ):
        if value != other and checked.is_explicit(path) and checked.is_explicit(f"{SCRIPT}.run.{name}"):
            yield problem(path, f"training_cfg.run.{name} is {other}", value=value, remedy=f"omit {path}")


@notice_rule("N116", source=_KEYS)
def batch_is_unstated(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """The launcher does not know how many samples a script uses per step unless its recipe states it."""
    if is_script(planned.checked) and planned.checked.composition.is_unstated(_BATCH):
        yield notice("the recipe states no batch for your script, so the plan counts one sample per rank")


@notice_rule("N194", source=_KEYS)
def commands_replace_scripts(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """A start command of your own is run as it is, without the arguments of the script."""
    checked = planned.checked
    if not (is_script(checked) and checked.settings.start_command):
        return
    typed = [key for key in _PROGRAM if any(related(key, path) for path in checked.composition.explicit)]
    if f"{SCRIPT}.script_args" in typed:
        verb = "has" if len(typed) == 1 else "have"
        yield notice(f"cluster.command replaces the script: {' and '.join(typed)} {verb} no effect")
