"""The user's own image with the agent and this launcher's runtime, and the requirements of jobs in it.

Pure but for reading this package.

Source: AWS, Using elastic training in Amazon SageMaker HyperPod, Build Training Container.
"""

import ast
import re
from collections.abc import Iterator

from launcher.common.names import AGENT_PORT
from launcher.common.paths import PACKAGE, package_files
from launcher.common.problems import Problem, fail
from launcher.common.templating import render_template
from launcher.model.config_tree import get
from launcher.model.family_registry import interface
from launcher.model.interface import is_published_image
from launcher.model.job_spec import DEFAULT_SAVE_TIMEOUT_S, JobSpec
from launcher.model.start_script import as_commands

AGENT = "hyperpod-elastic-agent==1.1.3"

REQUIREMENTS = (
    "accelerate>=1.15",
    "amzn-sagemaker-checkpointing==1.1.3",
    "boto3>=1.44",
    "fastapi>=0.113.0",
    "huggingface-hub>=2",
    "jinja2>=3.1",
    "mlflow-skinny>=3.6,<4",
    "numpy",
    "peft>=0.21,<0.22",
    "psutil",
    "pyarrow>=26",
    "pyyaml>=6",
    "safetensors>=0.8",
    "tokenizers>=0.23",
    "transformers>=5.23,<6",
    "uvicorn[standard]>=0.30.6",
    "xxhash>=3.4",
)
"""Imports of the runtime and the agent beside torch, including the memory tier's client.

Source: pyproject.toml; the agent's own metadata.
"""

UID = 1000
"""User and group of the container: not root, as the restricted profile requires."""

HOME = "/opt/recipes"

_AGENT_CONFIG = "/opt/ml/input/config"
"""Folder that the agent writes to. Source: hyperpod_elastic_agent 1.1.3, rendezvous."""

_WORK = "/opt/recipes/work"
_AGENT_MODULE = "launcher.backends.kubernetes.process_one"
_SHIPPED = (
    "__init__.py",
    "common/__init__.py",
    "backends/__init__.py",
    "backends/kubernetes/__init__.py",
    "backends/kubernetes/process_one.py",
)
"""Beside the runtime and the modules of `common` that it imports."""
_RUNTIME = "runtime"
_COMMON = "launcher.common"
_FIXED_IMAGE = re.compile(r"[A-Za-z0-9][\w./:-]*(?::(?!latest$)[\w.-]+|@sha256:[0-9a-f]{64})", re.ASCII)


def files(base: str) -> dict[str, str]:
    """Return the build context of an image on top of `base`, relative path to text.

    Raises:
        ProblemsFound: `base` is not an image reference, or its tag may move.
    """
    if not _FIXED_IMAGE.fullmatch(base):
        message = "is not a fixed image reference"
        raise fail("E366", "--base", message, value=base, allowed="[registry/]name:tag or name@sha256:…; not :latest")
    place = {"home": HOME, "work": _WORK, "config_dir": _AGENT_CONFIG, "port": AGENT_PORT, "uid": UID}
    return {
        "Dockerfile": render_template("kubernetes/Dockerfile.j2", base=base, agent=AGENT, **place),
        "requirements.txt": "".join(f"{line}\n" for line in REQUIREMENTS),
        "bin/entrypoint": render_template(
            "kubernetes/entrypoint.sh.j2", port=AGENT_PORT, save_timeout_s=DEFAULT_SAVE_TIMEOUT_S
        ),
        "bin/commands": render_template("kubernetes/commands.sh.j2"),
        "bin/hyperpodrun": render_template("kubernetes/hyperpodrun.sh.j2", module=_AGENT_MODULE),
        **{f"lib/launcher/{name}": text for name, text in _library().items()},
    }


def _library() -> dict[str, str]:
    """Return the part of this package that runs in a container."""
    runtime = (path.relative_to(PACKAGE).as_posix() for path in package_files(_RUNTIME))
    found = {name: (PACKAGE / name).read_text(encoding="utf-8") for name in (*_SHIPPED, *runtime)}
    waiting = [text for name, text in found.items() if name.endswith(".py")]
    while waiting:
        for name in _common_imports(waiting.pop()):
            if name not in found:
                found[name] = (PACKAGE / name).read_text(encoding="utf-8")
                waiting.append(found[name])
    return found


def _common_imports(text: str) -> Iterator[str]:
    """Yield the files of `launcher.common` that a module's text imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_COMMON):
            _, _, module = (node.module or "").removeprefix("launcher.").partition(".")
            for name in [module] if module else [each.name for each in node.names]:
                yield f"common/{name}.py"


def command(job: JobSpec) -> tuple[str, ...]:
    """Return the start command of a job in such an image."""
    return (f"{HOME}/bin/entrypoint", *interface(job).container_program(job))


def env(job: JobSpec) -> dict[str, str]:
    """Return the variables that the entrypoint of such an image reads."""
    found = {
        "NNODES": str(job.initial_nodes),
        "NPROC_PER_NODE": str(job.nproc_per_node),
        "SHUTDOWN_TIMEOUT": str(job.save_timeout_s),
    }
    for name, key in (("PRE_SCRIPT_COMMANDS", "pre_script"), ("POST_SCRIPT_COMMANDS", "post_script")):
        if commands := as_commands(get(job.config, f"recipes.{key}")):
            found[name] = "\n".join(commands)
    return found


def is_own(job: JobSpec) -> bool:
    """Return whether a job runs in such an image."""
    return getattr(job.settings, "runtime", None) == "launcher"


def problems(job: JobSpec) -> tuple[Problem, ...]:
    """Return the Problems of a job that needs what this image lacks: fetched code, its program, or the entrypoint."""
    git = job.config["git"]
    message = "your own image contains its code, and does not fetch any"
    remedy = "put the code into the image, or cluster.runtime=image"
    found = [
        Problem("E367", f"git.{key}", message, value=git[key], remedy=remedy)
        for key in ("repo_url_or_path", "branch", "commit")
        if git[key]
    ]
    if interface(job).starts_itself:
        message = "is for an image of your own, which lacks this recipe's program"
        found.append(Problem("E367", "cluster.runtime", message, value="launcher", remedy="cluster.runtime=image"))
    elif job.image and is_published_image(job.image):
        message = "is the published image, which lacks this launcher's entrypoint"
        remedy = "container=<image built with recipes container>, or cluster.runtime=image"
        found.append(Problem("E367", "container", message, value=job.image, remedy=remedy))
    return tuple(found)
