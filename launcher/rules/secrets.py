"""Secrets are named, never written."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from launcher.check import Draft
from launcher.environment import secret_references
from launcher.problems import Problem, holds_token, is_secret
from launcher.recipe import SecretRef
from launcher.rules import rule
from launcher.scales import leaves

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")
"""Where the words of a name part: hfToken, hf-token, --hf_token."""
_MODEL_TOKEN = re.compile(r"(^|_)(PAD|EOS|BOS|UNK|SEP|CLS|MASK|STOP|IMAGE|AUDIO|SPECIAL|DECODER_START)_TOKEN", re.I)
"""Tokens of a vocabulary, which are no secrets."""
_ASSIGNED = re.compile(r"""(?:\b(\w+)=|(?<![\w-])--([\w-]+)(?:=|\s+))['"]?([^\s'";&|]+)""")
"""A variable or an option in a shell command, and its value."""
_ELSEWHERE = ("$", "/", "<", "@", "s3://", "file:")
"""How a value begins that only says where the secret is."""
_WORDS, _NAMED = ("container_entrypoint", "container_arguments"), ("environment", "hyperparameters", "tags")
"""Keys of a training job's request that are words, and that are values by name."""
_DECISION = "docs/decisions.md, Secrets are references"


@rule("E602", "env_vars", source=_DECISION)
def env_holds_no_secret(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A variable that is named like a secret names where the secret is."""
    for name, value in (draft.launch.env_vars or {}).items():
        if names_secret(name) and value is not None and not isinstance(value, SecretRef):
            yield problem(
                f"env_vars.{name}",
                "looks like a secret written in clear; it would end up in files and logs",
                allowed="{secretKeyRef: {name: …, key: …}} or {env: NAME}",
                where=f"env_vars.{name}",
            )


def names_secret(name: str) -> bool:
    """Tell whether a name, in any spelling, is that of a secret."""
    spelled = _HUMP.sub("_", name)
    return is_secret(spelled) and not _MODEL_TOKEN.search(spelled)


def _is_written(value: Any) -> bool:
    """Tell whether a value of that name would be the secret itself, and not where it is or whether there is one."""
    is_word = isinstance(value, str) and value.lower() not in ("", "true", "false", "none", "null")
    return is_word and not value.startswith(_ELSEWHERE)


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


@rule(
    "E608",
    "recipes.training_cfg.script_args",
    "recipes.pre_script",
    "recipes.post_script",
    "cluster.annotations",
    "cluster.custom_labels",
    "cluster.command",
    "cluster.sm_jobs_config",
    source=_DECISION,
)
def words_hold_no_secret(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """Arguments, commands and labels are written as they are; use_wandb takes no API key."""
    remedy = "name it in env_vars: NAME={secretKeyRef: {name: …, key: …}}, and read $NAME"
    for path in dict.fromkeys((*_argument_secrets(draft), *_command_secrets(draft), *_labelled_secrets(draft))):
        yield problem(path, "looks like a secret written in clear", remedy=remedy, where=path)
    for path, value in leaves(draft.composition.tree["recipes"]):
        if path.rpartition(".")[2] == "use_wandb" and _is_written(value):
            path = f"recipes.{path}"
            message = "a text here may be an API key, which would be written into the bundle"
            remedy = f"{path}=null, and env_vars.WANDB_API_KEY={{secretKeyRef: {{name: …, key: …}}}}"
            yield problem(path, message, remedy=remedy, where=path)


def _argument_secrets(draft: Draft) -> Iterator[str]:
    script = draft.recipe.training_cfg
    for i, argument in enumerate((script and script.script_args) or ()):
        for name, value in argument.items():
            texts = value if isinstance(value, list) else [value]
            is_named = names_secret(name) and any(map(_is_written, texts))
            if is_named or any(isinstance(text, str) and holds_credentials(text) for text in texts):
                yield f"recipes.training_cfg.script_args.{i}.{name}"


def _command_secrets(draft: Draft) -> Iterator[str]:
    command = getattr(draft.settings, "command", None)
    given: tuple[tuple[str, Sequence[str]], ...] = (
        ("recipes.pre_script", draft.recipe.pre_script or ()),
        ("recipes.post_script", draft.recipe.post_script or ()),
        ("cluster.command", (" ".join(command),) if command else ()),
        *((path, (" ".join(words),)) for path, words in _of_training_job(draft, *_WORDS)),
    )
    for path, texts in given:
        for i, text in enumerate(texts):
            for variable, option, value in _ASSIGNED.findall(text):
                if names_secret(variable or option) and _is_written(value):
                    yield path if path.startswith("cluster.") else f"{path}.{i}"


def _labelled_secrets(draft: Draft) -> Iterator[str]:
    labels = ((f"cluster.{name}", getattr(draft.settings, name, None)) for name in ("annotations", "custom_labels"))
    for section, given in (*labels, *_of_training_job(draft, *_NAMED)):
        for name, value in (given or {}).items():
            is_named = names_secret(name.rpartition("/")[2]) and _is_written(value)
            if is_named or (isinstance(value, str) and holds_credentials(value)):
                yield f"{section}.{name}"


def _of_training_job(draft: Draft, *keys: str) -> Iterator[tuple[str, Any]]:
    """Yield paths and values of keys of a training job's request that are given."""
    if hasattr(draft.settings, "sm_jobs_config"):
        from launcher.backends.sagemaker.keys import jobs_of, path_of  # other clusters do without

        jobs = jobs_of(draft)
        yield from ((path_of(draft, key), value) for key in keys if (value := getattr(jobs, key)))


@rule("E609", source=_DECISION)
def values_hold_no_token(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """Tokens have a form that they are told by, whatever the key is called that holds one."""
    for path, value in leaves(draft.composition.tree):
        if isinstance(value, str | list) and holds_token(str(value)) and not is_secret(path):
            remedy = "name it in env_vars: NAME={secretKeyRef: {name: …, key: …}}"
            yield problem(path, "holds an access token or a key in clear", remedy=remedy, where=path)


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
