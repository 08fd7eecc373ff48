"""The files of a job: a batch script, and the script that srun starts once on each node. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.backends.slurm import code
from launcher.backends.slurm.options import Settings, runtime_of, slurm_options
from launcher.backends.slurm.sbatch_options import header
from launcher.common.names import CONFIG_DIR, RUN_DIR
from launcher.common.templating import render_template
from launcher.families import interface
from launcher.model.config_tree import get
from launcher.model.environment import plain_variables, secret_references
from launcher.model.job_spec import PUBLISHED, JobSpec

JOB_FILE, NODE_FILE = "slurm/job.sh", "slurm/node.sh"
_BUNDLE = "bundle:"
"""A word of a program that begins so is a path inside the bundle."""

_IN_CODE = (f'cd -- "$RECIPES_RUN_DIR{code.CWD.removeprefix(RUN_DIR)}"',)
"""Lets the processes of a container start in the job's code."""
_SEVERAL_NODES = {
    "NCCL_SOCKET_IFNAME": "^lo,docker0,veth_def_agent",
    "NCCL_IGNORE_DISABLED_P2P": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "TORCH_DIST_INIT_BARRIER": "1",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
}
"""Variables of a job of several nodes with accelerators. Source: the published launcher's script for Slurm."""
_EFA = {"FI_PROVIDER": "efa"}
"""Source: the published launcher's script for Slurm, for instances with EFA."""


def render(job: JobSpec) -> dict[str, str]:
    """Return the scripts of a job, relative path to text."""
    options = slurm_options(job)
    runtime = runtime_of(options, job.image)
    name = f"{options.job_name_prefix}{job.name}"
    mounts = tuple(options.container_mounts or ())
    batch = render_template(
        "slurm/job.sh.j2",
        header=header(options, job.initial_nodes, name, _gpus(options, job)),
        has_error_log=not options.stderr_to_stdout,
        job_name=job.name,
        path=JOB_FILE,
        node_path=NODE_FILE,
        srun_words=_srun_words(options, runtime, job.image),
        mounts=[f'--container-mounts="$bundle:$bundle"{_pairs(mounts)}'] if runtime == "pyxis" else (),
    )
    source = code.source_of(job)
    values = _node_values(job, options, runtime, has_code=source is not None)
    placed = {code.CODE_FILE: code.as_file(source)} if source else {}
    return {JOB_FILE: batch, NODE_FILE: render_template("slurm/node.sh.j2", **values), **placed}


def _node_values(job: JobSpec, options: Settings, runtime: str, *, has_code: bool) -> dict[str, Any]:
    before = list(get(job.config, "recipes.pre_script") or ())
    inside = list(options.slurm_docker_cfg.post_launch_commands or ()) if runtime == "docker" else []
    after = list(get(job.config, "recipes.post_script") or ())
    return {
        "job_name": job.name,
        "nproc_per_node": job.nproc_per_node,
        "env": environment(job),
        "secrets": {name: ref["env"] for name, path, ref in secret_references(job.config) if path != "git.token"},
        "cwd": f"{_BUNDLE}{code.CWD}" if has_code else options.ssh_folder if options.ssh else str(job.cwd),
        "python": options.python,
        "port": options.master_port,
        "program": _program(job, _paths_start(job, options, has_code=has_code)),
        "runtime": runtime,
        "image": job.image,
        "accelerators": job.resources.accelerators,
        "mounts": tuple(options.container_mounts or ()),
        "docker_args": tuple(options.slurm_docker_cfg.docker_args or ()),
        "before": before,
        "after": after,
        "inside": _inside([*(_IN_CODE if has_code else ()), *inside, *before], after),
    }


def _inside(before: Sequence[str], after: Sequence[str]) -> str:
    """Return the script that a container runs: commands, the program in its arguments, and further commands."""
    return "\n".join([*before, '"$@"' if after else 'exec "$@"', *after])


def environment(job: JobSpec) -> dict[str, str]:
    """Return the variables of a job's processes that are not secret; the recipe's own override the others."""
    is_several = job.initial_nodes > 1 and job.resources.accelerators > 0
    return {
        **(_SEVERAL_NODES if is_several else {}),
        **(_EFA if is_several and job.resources.efa else {}),
        **interface(job.model_type, job.trainer).workers.env(job),
        **plain_variables(job.config),
    }


def _paths_start(job: JobSpec, options: Settings, *, has_code: bool) -> Path:
    """Return the folder that a relative path of a program starts from; an empty path is that of the processes."""
    if has_code:
        return Path(f"{_BUNDLE}{code.CWD}")
    return Path() if options.ssh else job.cwd


def _program(job: JobSpec, start: Path) -> tuple[str, ...]:
    family = interface(job.model_type, job.trainer)
    words = tuple(family.workers.program(replace(job, cwd=start)))
    if not family.takes_config_path:
        return words
    name = ("--config-name=config.yaml",) if job.trainer == PUBLISHED else ()
    return (*words, "--config-path", f"{_BUNDLE}{CONFIG_DIR}", *name)


def _gpus(options: Settings, job: JobSpec) -> int | None:
    """Return the GPUs to request per node: those given, or one for each process of nodes that are shared."""
    if options.gpus_per_node or options.gres or options.exclusive or not job.resources.accelerators:
        return options.gpus_per_node
    return job.nproc_per_node


def _srun_words(options: Settings, runtime: str, image: str | None) -> list[str]:
    words = ["--auto-resume=1"] if options.auto_resume else []
    if runtime == "pyxis":
        words += [f"--container-image={image}", "--no-container-mount-home", "--container-writable"]
    return [*words, *(options.srun_args or ())]


def _pairs(paths: Sequence[str]) -> str:
    from shlex import quote  # only pyxis takes all mounts as one word

    return "".join(f",{quote(f'{path}:{path}')}" for path in paths)
