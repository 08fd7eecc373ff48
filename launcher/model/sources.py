"""Where the code, the data and the packages of a job come from, by its plan: what its record describes. Pure."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from launcher.common.paths import CHECKOUT
from launcher.common.problems import shown
from launcher.common.redaction import masked
from launcher.model.backend_registry import described
from launcher.model.config_tree import get
from launcher.model.family_registry import interface, recipe_model
from launcher.model.job_spec import PUBLISHED, JobSpec

_CODE = "recipes.training_cfg"
_OUTPUT = re.compile(
    r"(?i)(^|[-_.])(out|output|save|saved|log|logs|result|results|checkpoint|checkpoints|ckpt)([-_.]|$)"
)
"""Names of a script's arguments that are folders of results."""
Packages = Literal["all", "launcher", "none"]
"""Packages of this machine that act: all, for a script; those of the launcher's programs; none, for an image."""


class Sources(NamedTuple):
    """Where a job's code, data and packages come from.

    Args:
        cwd: Folder that relative paths start from.
        overrides: Of the command line; one that may hold a secret is shortened.
        results: Folder that receives the bundles, which are no code.
        code: By name, the file or folder of this machine that is run.
        elsewhere: By name, the code that is not on this machine, in words.
        inputs: By key, the values that name models and data.
        arguments: By name, the arguments of a script that may name data.
        is_here: Whether the job reads the files of this machine.
        packages: Those of this machine that act.
        image: Its reference; None without.
    """

    cwd: str
    overrides: tuple[str, ...]
    results: str
    code: Mapping[str, str]
    elsewhere: Mapping[str, str]
    inputs: Mapping[str, tuple[str, ...]]
    arguments: Mapping[str, tuple[str, ...]]
    is_here: bool
    packages: Packages
    image: str | None


def sources_of(job: JobSpec) -> Sources:
    """Return where the code, data and packages of a planned job come from."""
    description = described(job.backend)
    is_here = description.runs_here or description.files.are_shared(job.settings)
    has_packages = is_here and not job.image
    training = get(job.config, _CODE) or {}
    is_script = bool(training.get("entry_script") or training.get("entry_module"))
    code, elsewhere = _code(job, training, is_here=is_here)
    return Sources(
        cwd=str(job.cwd),
        overrides=tuple(text if masked(text) == text else shown(text) for text in job.overrides),
        results=str(job.base_results_dir),
        code=code,
        elsewhere=elsewhere,
        inputs=dict(_inputs(job)),
        arguments=dict(_arguments(training)) if is_here else {},
        is_here=is_here,
        packages=("all" if is_script else "launcher") if has_packages else "none",
        image=job.image,
    )


def _code(job: JobSpec, training: Mapping[str, Any], *, is_here: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Return the code of a job that is on this machine, and where the other is."""
    code: dict[str, str] = {}
    elsewhere: dict[str, str] = {}
    git = job.config["git"]
    folder = described(job.backend).files.code_folder(job.settings, job.trainer)
    script = training.get("entry_script")
    if git["repo_url_or_path"]:
        named = git["commit"] or git["branch"]
        where = f"{git['repo_url_or_path']} at {named or 'its default branch'}"
        elsewhere["repository"] = where if git["commit"] else f"{where}, which may move"
    elif folder is not None:
        code["folder"] = str(job.cwd / folder)
    elif is_here and script:
        code["script"] = str(job.cwd / Path(script).expanduser())
    elif is_here and training.get("entry_module"):
        code["folder"] = str(job.cwd)
    elif script or training.get("entry_module"):
        elsewhere["script"] = "in the image, or on the cluster"
    if is_here and job.trainer != PUBLISHED and CHECKOUT:
        code["launcher"] = str(CHECKOUT / "launcher")
    return code, elsewhere


def _inputs(job: JobSpec) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the keys that name a model or data, with their values."""
    if job.is_rehearsal:
        return
    given = interface(job).open_recipe
    own = (given.model, given.train, given.validation, given.adapters) if given else ()
    for key in dict.fromkeys((*own, *recipe_model(job.model_type).keys.inputs)):
        if values := _texts(get(job.recipe_tree, key)):
            yield f"recipes.{key}", values


def _arguments(training: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for argument in training.get("script_args") or ():
        for name, value in argument.items():
            if not _OUTPUT.search(name) and (values := _texts(value)):
                yield f"{_CODE}.script_args.{name.lstrip('-')}", values


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str) and each)
