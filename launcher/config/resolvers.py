"""The functions that a reference may call, registered with OmegaConf."""

from collections.abc import Callable
from functools import cache
from typing import Any

from omegaconf import OmegaConf

from launcher.common import variables
from launcher.common.secret_names import names_secret
from launcher.config import interpolation


@cache  # they are of the process
def register() -> None:
    """Register our resolvers with OmegaConf; `oc.env` takes the place of its own. Idempotent."""
    for name, function in _RESOLVERS.items():
        OmegaConf.register_new_resolver(name, function, replace=True)


def _variable(name: str, *default: str | None) -> str | None:
    """Return an environment variable as OmegaConf's `oc.env` does, unless it is a secret.

    Raises:
        ValueError: What is wrong, and after a semicolon the remedy.
    """
    if names_secret(name):
        raise ValueError(
            f"{name} is a secret's name, and its value would be written; use {{env: {name}}} in env_vars"
        )
    if (found := variables.current().get(name)) is not None:
        return found
    if not default:
        raise ValueError(f"the variable {name} is not set; set it, or add a default: ${{oc.env:{name},default}}")
    return None if default[0] is None else str(default[0])


_RESOLVERS: dict[str, Callable[..., Any]] = {"oc.env": _variable, **interpolation.ARITHMETIC}
NAMES = (*_RESOLVERS, "oc.select", "oc.decode", "oc.deprecated", "oc.create", "oc.dict.keys", "oc.dict.values")
"""Every function that a reference may call. Source: OmegaConf, Built-in resolvers."""
FORMS = "${oc.env:NAME,default}, ${multiply:2,3}, ${add:1,2,3}, ${divide_ceil:7,2}, ${divide_floor:7,2}"
