"""What Linux passes to the programs of a job: variables and arguments."""

from collections.abc import Iterator

from launcher.common.problems import Problem
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.start_script import as_commands
from launcher.rules import MakeProblem, rule

ARG_LIMIT = (128 << 10) - 1
"""Bytes of one argument, or of one variable with its name. Source: execve(2), MAX_ARG_STRLEN less its null byte."""
ARGS_LIMIT = 1 << 20
"""Bytes of all variables and arguments. Source: execve(2): a quarter of the stack, 2 MiB with the usual limit of
8 MiB; half of it is left to the image's own variables and the pointers."""


@rule(
    "E324",
    *("env_vars", "git", "cluster.command", "recipes.pre_script", "recipes.post_script"),
    "recipes.training_cfg.script_args",
    source="execve(2)",
)
def words_can_be_passed(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Linux passes a program words and variables of limited length, without null characters."""
    total = 0
    for path, text in _words(checked):
        size = len(text.encode(errors="surrogatepass"))
        total += size + 1
        if "\0" in text:
            yield problem(path, "holds a null character", remedy="leave it out")
        elif size > ARG_LIMIT:
            yield problem(path, f"is {size} bytes", allowed=f"at most {ARG_LIMIT}, with the variable's name")
    if total > ARGS_LIMIT:
        message = f"variables and arguments are {total} bytes together"
        yield problem("env_vars", message, allowed=f"at most {ARGS_LIMIT}")


def _words(checked: CheckedRecipe) -> Iterator[tuple[str, str]]:
    """Yield path and text of each variable, with its name, and of each argument."""
    for name, value in (checked.launch.env_vars or {}).items():
        if isinstance(value, str | int | float):
            yield f"env_vars.{name}", f"{name}={value}"
    for key in ("repo_url_or_path", "branch", "commit", "entry_script", "entry_module"):
        if text := getattr(checked.launch.git, key):
            yield f"git.{key}", f"GIT_REPO_URL={text}"
    for key in ("pre_script", "post_script"):
        if commands := as_commands(getattr(checked.recipe, key)):
            yield f"recipes.{key}", f"{key.upper()}_COMMANDS={';'.join(commands)}"
    for i, word in enumerate(checked.settings.start_command):
        yield f"cluster.command.{i}", word
    script = checked.recipe.training_cfg
    for i, argument in enumerate((script and script.script_args) or ()):
        for name, value in argument.items():
            for text in (name, *(value if isinstance(value, list) else [value])):
                yield f"recipes.training_cfg.script_args.{i}", str(text)
