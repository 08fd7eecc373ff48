"""Git work trees: where they are, and the variables of a git that reads one."""

import os
from pathlib import Path

_OF_A_HOOK = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY"),
    *("GIT_COMMON_DIR", "GIT_NAMESPACE"),
)
"""Variables with which git starts its hooks; they name another repository. Source: githooks(5), git(1)."""


def work_tree(folder: Path) -> Path | None:
    """Return the top folder of the git work tree that a folder is in; None if it is in none. Runs no program."""
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), None)


def git_environment() -> dict[str, str]:
    """Return the variables of this process without those that name another repository than git is called for."""
    return {name: value for name, value in os.environ.items() if name not in _OF_A_HOOK}
