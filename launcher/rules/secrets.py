"""Secrets are named, never written."""

import re
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from launcher.check import Draft
from launcher.environment import secret_references
from launcher.problems import Problem, is_secret
from launcher.recipe import SecretRef
from launcher.rules import rule
from launcher.scales import leaves

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DECISION = "docs/decisions.md, Secrets are references"


@rule("E602", "env_vars", source=_DECISION)
def env_holds_no_secret(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A variable that is named like a secret names where the secret is."""
    for name, value in (draft.launch.env_vars or {}).items():
        if is_secret(name) and value is not None and not isinstance(value, SecretRef):
            yield problem(
                f"env_vars.{name}",
                "looks like a secret written in clear; it would end up in files and logs",
                allowed="{secretKeyRef: {name: …, key: …}} or {env: NAME}",
            )


@rule("E603", "recipes.training_config.mlflow", "git", source=_DECISION)
def urls_hold_no_secret(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A URL with a user name and password in it carries them into every file."""
    urls = {
        "recipes.training_config.mlflow.tracking_uri": draft.recipe.training_config.mlflow.tracking_uri,
        "git.repo_url_or_path": draft.launch.git.repo_url_or_path,
    }
    remedies = {
        "recipes.training_config.mlflow.tracking_uri": "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        " in the environment, and env_vars for the job",
        "git.repo_url_or_path": "git.token={secretKeyRef:{name:…,key:…}}",
    }
    for path, url in urls.items():
        if url and holds_credentials(url):
            where = (draft.composition.origin(path) or "").partition("=")[0]
            yield problem(path, "holds credentials", remedy=remedies[path], where=where)


def holds_credentials(url: str) -> bool:
    """Tell whether a URL carries a password, or a user name that a web server would take for one."""
    if "://" not in url:
        return False
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets that hold no address; what it is must not matter to a secret in it
        return "@" in url
    return parts.password is not None or (parts.username is not None and parts.scheme in ("http", "https"))


@rule("E606", "env_vars", source=_DECISION)
def env_urls_hold_no_secret(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A proxy's or a database's password in a variable is a secret too."""
    for name, value in (draft.launch.env_vars or {}).items():
        if isinstance(value, str) and holds_credentials(value):
            allowed = "{secretKeyRef: {name: …, key: …}} or {env: NAME}"
            yield problem(f"env_vars.{name}", "holds credentials", allowed=allowed, where=f"env_vars.{name}")


@rule("E607", "recipes", source=_DECISION)
def recipe_holds_no_secret(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A key that is named like a secret, declared in extra_keys, would be written into the configuration."""
    for path, value in leaves(draft.composition.tree["recipes"]):
        if is_secret(path.rpartition(".")[2]) and isinstance(value, str) and value:
            yield problem(f"recipes.{path}", "looks like a secret written in clear", where=f"recipes.{path}")


@rule("E604", "env_vars", source="POSIX.1-2017, Base Definitions, 8.1 Environment Variable Definition")
def env_names_are_names(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A shell cannot export another kind of name."""
    for name in draft.launch.env_vars or {}:
        if not _ENV_NAME.fullmatch(name):
            yield problem(
                f"env_vars.{name}",
                "is no name of an environment variable",
                value=name,
                allowed="letters, digits and _, not starting with a digit",
            )


@rule("E605", "recipes.run.hf_access_token", "git.token", "env_vars", source=_DECISION)
def secrets_are_reachable(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A pod reads a Kubernetes Secret; a process on this machine reads the environment."""
    for _, path, ref in secret_references(draft.composition.tree):
        if draft.backend == "k8s" and ref.get("env"):
            message = "a pod cannot read this shell's environment"
            yield problem(path, message, allowed="{secretKeyRef: {name: …, key: …}}")
        if draft.backend == "local" and ref.get("secretKeyRef"):
            yield problem(path, "there is no Kubernetes Secret on this machine", allowed="{env: NAME}")
