"""The `cluster` section of cluster=local."""

from launcher.recipe import Listed, Model


class Settings(Model):
    """Every key of cluster=local."""

    command: Listed[str] | None
    container_mounts: Listed[str] | None
