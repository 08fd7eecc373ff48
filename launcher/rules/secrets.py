"""Secrets are referenced by name, never written."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from launcher.common import redaction
from launcher.common.problems import Notice, Problem
from launcher.common.random_values import is_plain_name, random_parts
from launcher.common.secret_forms import (
    holds_credentials,
    holds_secret,
    holds_token,
    holds_user_info,
    is_clear,
    is_reference,
    is_written,
    values_of,
)
from launcher.common.secret_names import is_secret, names_secret
from launcher.common.syntax import SET_BY_BASH, VARIABLE_NAME
from launcher.model.backend_registry import described
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.composition import Composition
from launcher.model.config_tree import get, leaves
from launcher.model.environment import SECRET_KEYS, secret_references
from launcher.model.recipe import SecretRef
from launcher.model.start_script import as_commands
from launcher.rules import MakeNotice, MakeProblem, PlannedRecipe, notice_rule, rule

_TRACKING, _REPOSITORY = "recipes.training_config.mlflow.tracking_uri", "git.repo_url_or_path"
_CHECKED_FOR_URLS = (
    *("env_vars.", _REPOSITORY, _TRACKING),
    *("recipes.training_cfg.script_args", "recipes.pre_script", "recipes.post_script"),
)
"""Keys in which other rules look for URLs with credentials, beside those of the chosen cluster."""
_UNREACHABLE = {
    "env": "a pod cannot read this shell's environment",
    "secretKeyRef": "a job that is not in a Kubernetes cluster has no Kubernetes Secrets",
}
"""Why a kind of reference cannot be resolved."""
_OF_SERVER = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the environment, and env_vars for the job"
"""Remedy for the address of a tracking server."""
_DECISION = "docs/decisions.md, Secrets are references"


@rule("E602", "env_vars", source=_DECISION)
def env_holds_no_secret(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A variable that is named like a secret must refer to a secret."""
    secrets = described(checked.backend).secrets
    for name, value in (checked.launch.env_vars or {}).items():
        if not isinstance(value, SecretRef) and is_clear(name, value):
            yield problem(
                f"env_vars.{name}",
                "looks like a secret in clear text; it would end up in files and logs",
                allowed=secrets.references,
                remedy=secrets.instead or None,
                where=f"env_vars.{name}",
            )


@rule("E603", "recipes.training_config.mlflow", "git", source=_DECISION)
def urls_hold_no_secret(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A URL with a user name and password copies them into every file."""
    mlflow, git = checked.recipe.mlflow, checked.launch.git
    for path, url, remedy in (
        (_TRACKING, mlflow and mlflow.tracking_uri, _OF_SERVER),
        (_REPOSITORY, git.repo_url_or_path, described(checked.backend).secrets.remedy("git.token")),
    ):
        if url and holds_credentials(url):
            yield problem(path, "holds credentials", remedy=remedy, where=_origin(checked.composition, path))


@rule("E606", "env_vars", source=_DECISION)
def env_urls_hold_no_secret(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A proxy's or a database's password in a variable is a secret too."""
    secrets = described(checked.backend).secrets
    for name, value in (checked.launch.env_vars or {}).items():
        if isinstance(value, str) and not names_secret(name) and holds_secret(value):
            path, remedy = f"env_vars.{name}", secrets.instead or None
            yield problem(path, "holds credentials", allowed=secrets.references, remedy=remedy, where=path)


@rule("E607", "recipes", source=_DECISION)
def recipe_holds_no_secret(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A key that is named like a secret, declared in extra_keys, would be written into the configuration."""
    for path in _named_secrets(checked.composition.tree["recipes"], "recipes"):
        if path.startswith("recipes.training_cfg.script_args."):
            continue  # E608 covers these
        yield problem(path, "looks like a secret in clear text", where=path)


def _named_secrets(tree: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the path of each value under a secret's name, of any type, that is not a reference."""
    for key, value in tree.items():
        if is_clear(str(key), value):
            yield f"{path}.{key}"
        elif isinstance(value, Mapping) and not is_reference(value):
            yield from _named_secrets(value, f"{path}.{key}")
        elif isinstance(value, list):
            yield from _secrets_of_list(value, f"{path}.{key}")


def _secrets_of_list(items: list[Any], path: str) -> Iterator[str]:
    words = [each for each in items if isinstance(each, str)]
    if any(word.startswith("-") for word in words) and holds_secret(" ".join(words)):
        yield path
    for i, each in enumerate(items):
        yield from _named_secrets(each, f"{path}.{i}") if isinstance(each, Mapping) else ()


@rule(
    "E608",
    *("recipes.training_cfg.script_args", "recipes.pre_script", "recipes.post_script"),
    *(f"cluster.{key}" for key in ("annotations", "custom_labels", "command", "setup", "sm_jobs_config")),
    source=_DECISION,
)
def words_hold_no_secret(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Arguments, commands and labels are written unchanged; use_wandb does not accept an API key."""
    secrets = described(checked.backend).secrets
    remedy = secrets.in_env_vars + (", and read $NAME" if secrets.sources else "")
    for path in dict.fromkeys((*_argument_secrets(checked), *_command_secrets(checked), *_labelled_secrets(checked))):
        yield problem(path, "looks like a secret in clear text", remedy=remedy, where=path)
    for path, value in leaves(checked.composition.tree["recipes"]):
        if path.rpartition(".")[2] == "use_wandb" and isinstance(value, str) and is_written(value):
            path = f"recipes.{path}"
            message = "a text here may be an API key, which would be written into the bundle"
            remedy = f"{path}=null, and {secrets.remedy('env_vars.WANDB_API_KEY')}"
            yield problem(path, message, remedy=remedy, where=path)


def _argument_secrets(checked: CheckedRecipe) -> Iterator[str]:
    script = checked.recipe.training_cfg
    for i, argument in enumerate((script and script.script_args) or ()):
        for name, value in argument.items():
            texts = value if isinstance(value, list) else [value]
            if is_clear(name, texts) or any(isinstance(text, str) and holds_secret(text) for text in texts):
                yield f"recipes.training_cfg.script_args.{i}.{name}"


def _command_secrets(checked: CheckedRecipe) -> Iterator[str]:
    for name in ("pre_script", "post_script"):
        given = getattr(checked.recipe, name)
        for i, line in enumerate(as_commands(given)):
            if holds_secret(line):
                yield f"recipes.{name}" if isinstance(given, str) else f"recipes.{name}.{i}"
    commands = described(checked.backend).secrets.words(checked)
    yield from (path for path, command in commands if holds_secret(" ".join(command)))


def _labelled_secrets(checked: CheckedRecipe) -> Iterator[str]:
    for section, given in described(checked.backend).secrets.values(checked):
        for name, value in given.items():
            if is_clear(name.rpartition("/")[2], value) or (isinstance(value, str) and holds_secret(value)):
                yield f"{section}.{name}"


@rule("E609", source=_DECISION)
def values_hold_no_token(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Tokens and URLs with credentials are recognised by their form, whatever their key is called."""
    texts = [
        (path, f"{path} {value}")
        for path, value in leaves(checked.composition.tree)
        if isinstance(value, str | list) and value and not is_secret(path)
    ]
    others = (*_CHECKED_FOR_URLS, *described(checked.backend).secrets.url_keys)
    remedy = described(checked.backend).secrets.in_env_vars
    has_tokens = holds_token("\n".join(text for _, text in texts))  # one search instead of hundreds
    for path, text in texts:
        if has_tokens and holds_token(text):
            yield problem(path, "holds an access token or a key in clear text", remedy=remedy, where=path)
        elif "@" in text and not path.startswith(others) and holds_user_info(text):
            yield problem(path, "holds a URL with credentials", remedy=remedy, where=path)


def exposed_secrets(composition: Composition) -> Iterator[Problem]:
    """Yield a Problem for each value that holds a known secret, whose key or form may not show it."""
    secrets = described(composition.backend).secrets
    found: dict[str, list[str]] = {}
    for path, value in values_of(composition.tree):
        if not is_reference(value) and (exposed := [*redaction.exposed(str(value))]):
            found[path] = exposed
    faulty = {tuple(path.split(".")) for path in found}
    for path, exposed in found.items():
        if composition.refers_to_one(path, faulty):
            continue  # the fault is reported there
        for where in exposed:
            held = "a secret in clear text" if where == path else f"the value of {where}"
            remedy = secrets.remedy(path) if path.startswith("env_vars.") else secrets.in_env_vars
            remedy = _OF_SERVER if path == _TRACKING else remedy
            message = f"holds {held}, which would be written into the bundle's files"
            yield Problem("E610", path, message, remedy=remedy, where=_origin(composition, path))


def _origin(composition: Composition, path: str) -> str | None:
    """Return the origin of a value, without the value."""
    return (composition.origin(path) or "").partition("=")[0] or None


@notice_rule("N195", source=_DECISION)
def values_that_look_random(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """A secret whose name and form are unknown is a long word of letters and digits in turn."""
    for path, value in leaves(planned.checked.composition.tree):
        texts = [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
        if any(True for text in texts for _ in random_parts(text)) and not (is_plain_name(path) or is_secret(path)):
            secrets = described(planned.checked.backend).secrets
            instead = f"refer to it by {secrets.references}" if secrets.sources else secrets.instead
            yield notice(
                f"{path} looks random; if it is a secret, {instead}: the value is in the bundle's files. A name that"
                " ends in _id or _name is not reported"
            )


@rule("E604", "env_vars", source="POSIX.1-2017, Base Definitions, 8.1 Environment Variable Definition; bash(1)")
def env_names_are_names(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A shell cannot export variables with other names, and has values of its own for some."""
    for name, value in (checked.launch.env_vars or {}).items():
        if not re.fullmatch(VARIABLE_NAME, name):
            yield problem(
                f"env_vars.{name}",
                "is not a valid environment variable name",
                value=name,
                allowed="letters, digits and _, not starting with a digit",
            )
        elif name in SET_BY_BASH and value is not None:
            message = "is a variable of bash, which starts the programs: they would not receive the value"
            yield problem(f"env_vars.{name}", message, remedy=f"env_vars.{name}=null")


@rule("E614", "notify", source=_DECISION)
def addresses_are_reachable(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Messages are sent by the process that follows the job, on a machine outside the cluster."""
    for i, ref in enumerate(checked.launch.notify or ()):
        if ref.secretKeyRef:
            message = "the process that follows the job sends the message, and cannot read a Kubernetes Secret"
            yield problem(f"notify.{i}", message, allowed="{env: NAME}", remedy='"notify=[{env:NAME}]"')


@rule("E616", "recipes.run.hf_access_token", "git.token", "env_vars", source=_DECISION)
def secrets_have_one_source(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A variable has one value: of two different references, one would have no effect."""
    for variable, key in SECRET_KEYS.items():
        tree, path = checked.composition.tree, f"env_vars.{variable}"
        first, second = get(tree, key), get(tree, path)
        if first and is_reference(second) and first != second:
            message = f"is also the variable of {key}, which refers to another secret"
            yield problem(path, message, remedy=f"leave one of them out: {key}=null or ~{path}")


@rule("E605", "recipes.run.hf_access_token", "git.token", "env_vars", source=_DECISION)
def secrets_are_reachable(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A pod reads a Kubernetes Secret; a process on this machine reads the environment."""
    secrets = described(checked.backend).secrets
    for _, path, ref in secret_references(checked.composition.tree) if secrets.sources else ():
        for source, message in _UNREACHABLE.items():
            if ref.get(source) and source not in secrets.sources:
                yield problem(path, message, allowed=secrets.references)
