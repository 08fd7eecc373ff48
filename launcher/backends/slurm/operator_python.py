"""Whether the Python on a login node can run the operator of an elastic job, and the agents that it starts."""

from launcher.backends.slurm.elastic_options import ELASTIC_FILE
from launcher.backends.slurm.place import HERE
from launcher.backends.slurm.recent import RECENT
from launcher.backends.slurm.requests import Request
from launcher.common.problems import Problem

PYTHON = (3, 11)
"""The oldest Python of this package. Source: pyproject.toml, requires-python."""
OPERATOR = {"httpx": "", "psutil": "", "pydantic": "2.11"}
"""Packages that the operator imports, each with the oldest version that works; "" for any. Source: pyproject.toml."""
AGENTS = {"hyperpod_elastic_agent": "", "torch": ""}
"""Packages that agents and workers import, where they do not run in a container."""
_DOCS = "see docs/slurm.md, From a laptop"
_ENVIRONMENT = 'cd / && unset PYTHONPATH && exec "$@"'
"""A batch script replaces this variable, and starts elsewhere."""
_SCRIPT = """\
import sys
oldest = tuple(map(int, sys.argv[1].split(".")))
if sys.version_info < oldest:
    print("it is Python %d.%d" % sys.version_info[:2])
    sys.exit()
from importlib import metadata, util
def release(text):
    parts = text.split(".")[:2]
    return [int("".join(filter(str.isdigit, part)) or 0) for part in parts]
for word in sys.argv[2:]:
    name, _, version = word.partition("=")
    if util.find_spec(name) is None:
        print("%s is not installed" % name)
    elif version and release(metadata.version(name)) < release(version):
        print("%s is of version %s" % (name, metadata.version(name)))
"""
"""Prints what a Python lacks, one per line. The first lines run with any Python."""


def problems(request: Request) -> list[Problem]:
    """Return why an elastic job that is submitted by ssh could not run there: its nodes are assumed to be alike.

    Raises:
        ProblemsFound: The node is not reached.
    """
    place = request.place
    if place is HERE or ELASTIC_FILE not in request.bundles[0].files:
        return []
    cluster = request.config["cluster"]
    python = str(cluster.get("python") or "python3")
    image = request.config.get("container")
    is_contained = (cluster.get("container_runtime") or (image and "container") or "none") != "none"
    needed = OPERATOR if is_contained else {**OPERATOR, **AGENTS}
    words = (".".join(map(str, PYTHON)), *(f"{name}={version}" for name, version in needed.items()))
    answer = RECENT.ask(place, "bash", "-c", _ENVIRONMENT, "bash", python, "-c", _SCRIPT, *words)
    lacks = answer.out.split("\n")[:-1] if not answer.code else [_failure(answer.code, answer.error)]
    if not lacks:
        return []
    message = f"cannot run this launcher's operator on {cluster['ssh']}: {', '.join(lacks)}"
    named = ", ".join(f"{name}>={version}" if version else name for name, version in needed.items())
    allowed = f"Python {words[0]} or later with {named}"
    remedy = f"install them there, or name another Python of the cluster; {_DOCS}"
    return [Problem("E472", "cluster.python", message, value=python, allowed=allowed, remedy=remedy)]


def _failure(code: int, error: str) -> str:
    """Return why a Python did not start."""
    last = (error.strip().splitlines() or [f"exit code {code}"])[-1]
    return "no such program was found" if code == 127 else last
