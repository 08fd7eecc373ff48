"""The `cluster` section of cluster=local."""

from typing import Annotated, Any

from pydantic import Field

from launcher.recipe import Listed, Model


class Settings(Model):
    """Every key of cluster=local. Events are typed with their scenario: their models cost every launch 30 ms."""

    command: Listed[str] | None
    container_mounts: Listed[str] | None
    scenario: Annotated[str, Field(min_length=1)] | None = None
    events: Listed[dict[str, Any]] | None = None
