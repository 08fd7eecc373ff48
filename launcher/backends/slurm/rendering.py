"""The files of a job: a batch script, and the script that srun starts once on each node. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from launcher.backends.slurm import code
from launcher.backends.slurm.options import Settings, notice_s, runtime_of, slurm_options
from launcher.backends.slurm.programs import PREFIXES
from launcher.backends.slurm.run_files import (
    AGENT_FILE,
    ELASTIC_FILE,
    GUARD_FILE,
    RAY_FILE,
    RELEASE_FILE,
    ElasticRequest,
)
from launcher.backends.slurm.sbatch_options import Value, batch_options, header, words
from launcher.backends.slurm.states import TERM_CODE, UNWRITABLE
from launcher.common.names import (
    ENTRYPOINT,
    ENV_SAVES_ON_TERM,
    ENV_TORCHRUN_PATIENCE,
    GRACEFUL_ENV,
    RUN_DIR,
    WARM_MODULE,
)
from launcher.common.templating import BUNDLE, render_template
from launcher.model import ray_script
from launcher.model.config_tree import get
from launcher.model.environment import SEVERAL_NODES, plain_variables, secret_references
from launcher.model.family_registry import interface
from launcher.model.interface import BUNDLE_CONFIGS, CONFIG_MOUNT, after_options
from launcher.model.job_spec import PUBLISHED, JobSpec
from launcher.model.parallelism import mpi
from launcher.model.parallelism.smp import hyperparameters
from launcher.model.start_script import as_commands

JOB_FILE, NODE_FILE = "slurm/job.sh", "slurm/node.sh"
VARIABLES_FILE = "slurm/variables.sh"
"""Exports the variables of the job's processes, of which the scripts' own names are free."""
_MOST_PATIENCE_S = 120
"""Upper limit of the seconds between SIGTERM and SIGKILL. torchrun waits for so long, too, if processes hang because
another one has failed. Our own choice."""

_IN_CODE = (f'cd -- "$RECIPES_RUN_DIR{code.CWD.removeprefix(RUN_DIR)}"',)
"""Lets the processes of a container start in the job's code."""
_WITH_VARIABLES = f'. "${{RECIPES_RUN_DIR%/{RUN_DIR}}}/{VARIABLES_FILE}"'
"""Gives the processes of a container their variables inside it: the runtime's own program keeps those of the node."""
_DISTRIBUTION = "recipes.distribution"
_MODEL_PARALLEL = "SM_HP_MP_PARAMETERS"
"""Variable from which the model parallel library reads its parameters. Source: sagemaker-training toolkit 5.1.4."""
_SAME = (
    *("partition", "account", "qos", "constraint", "exclude", "reservation", "gres", "gpus-per-node"),
    *("mem", "mem-per-cpu", "mem-per-gpu"),
)
"""Options that a request for more nodes has in common with the job."""
_GUARD_INTERVAL_S = 15
"""Seconds between two looks of a guard at its job."""
_EFA = {"FI_PROVIDER": "efa"}
"""Source: the published launcher's script for Slurm, for instances with EFA."""


def render(job: JobSpec) -> dict[str, str]:
    """Return the files of a job, relative path to text."""
    options = slurm_options(job)
    runtime = runtime_of(options.container_runtime, job.image)
    source = code.source_of(job)
    sizes = [scale.nodes for scale in job.scales]
    nodes, own = str(job.initial_nodes), dict[str, Value]()
    if job.elastic:
        nodes, own["no-kill"] = f"{min(sizes)}-{max(sizes)}", True
        own["signal"] = f"B:USR1@{notice_s(job.elastic.graceful_shutdown_timeout_s)}"
    elif options.limit_notice:
        own["signal"] = f"B:USR1@{options.limit_notice}"
    name = f"{options.job_name_prefix}{job.name}"
    given = batch_options(options, nodes, name, job.nproc_per_node, _gpus(options, job), own)
    batch = {
        "header": header(given),
        "setup": options.setup or (),
        "has_error_log": not options.stderr_to_stdout,
        "job_name": job.name,
        "path": JOB_FILE,
    }
    node = _node_values(job, options, runtime, has_code=source is not None)
    files = _elastic(job, options, runtime, given, batch, node) if job.elastic else _fixed(job, options, batch, node)
    if job.elastic or (options.requeue and options.release.enabled):
        files[RELEASE_FILE] = _release(job, options, given, nodes if job.elastic else None)
    variables = {"env": _environment(job), "secrets": job_secrets(job.config)}
    files[VARIABLES_FILE] = render_template("slurm/variables.sh.j2", **variables)
    return {**files, code.CODE_FILE: code.as_file(source)} if source else files


def job_secrets(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that hold a job's secrets, each with the launch's variable that has its value.

    The token of the code's repository is not among them: git alone gets it, and the job does not run git.
    """
    return {name: str(ref["env"]) for name, path, ref in secret_references(config) if path != "git.token"}


def _fixed(job: JobSpec, options: Settings, batch: Mapping[str, Any], node: Mapping[str, Any]) -> dict[str, str]:
    """Return the batch script and the script of a node, given what both kinds of job have in common."""
    is_mpi, runtime = _starts_by_mpi(job), node["runtime"]
    is_mpirun = is_mpi and options.mpi == "mpirun"
    mpi_words = [f"--mpi={options.mpi}", "--distribution=block"] if is_mpi and not is_mpirun else []
    pairs = _pairs(node["mounts"])
    text = render_template(
        "slurm/job.sh.j2",
        **batch,
        prefixes=PREFIXES,
        requeues=options.requeue,
        release_path=RELEASE_FILE if options.release.enabled else None,
        limit_notice=options.limit_notice,
        limit_requeues=options.limit_requeues,
        mpirun_patience_s=max(1, (options.limit_notice or 0) // 3),
        unwritable=UNWRITABLE,
        term_code=TERM_CODE,
        node_path=NODE_FILE,
        nproc_per_node=job.nproc_per_node,
        has_ray=node["has_ray"],
        mpirun_words=_mpi_options(job)[1] if is_mpirun else None,
        tasks=job.nproc_per_node if is_mpi else 1,
        cpus_per_task=options.cpus_per_task if is_mpi else None,
        srun_words=[*_srun_words(options, runtime, job.image), *mpi_words],
        mounts=[f'--container-mounts="$bundle:$bundle"{quote(pairs) if pairs else ""}'] if runtime == "pyxis" else (),
    )
    files = {JOB_FILE: text, NODE_FILE: render_template("slurm/node.sh.j2", **node, ray_path=RAY_FILE)}
    if node["has_ray"]:
        files[RAY_FILE] = ray_script.render(job.name, job.nproc_per_node, node["python"])
    return files


def _elastic(
    job: JobSpec,
    options: Settings,
    runtime: str,
    given: Mapping[str, Value],
    batch: Mapping[str, Any],
    node: Mapping[str, Any],
) -> dict[str, str]:
    """Return the batch script, the scripts of a node's agent and of a guard, and what the operator reads."""
    mounts = f"--container-mounts={{bundle}}:{{bundle}}{_pairs(node['mounts'])}"
    request = ElasticRequest(
        options=(
            f"--job-name={given['job-name']}-nodes",
            *words({key: value for key, value in given.items() if key in _SAME}),
        ),
        srun_words=(*_srun_words(options, runtime, job.image), *((mounts,) if runtime == "pyxis" else ())),
        python=options.python or ("python3" if runtime == "pyxis" else None),
        requeues=options.requeue,
        growth=options.growth,
    )
    is_warm = runtime == "none" and ENTRYPOINT in node["program"]
    agent = {
        **node,
        "in_place_timeout_s": job.in_place_timeout_s,
        "graceful": job.elastic is not None and job.elastic.use_graceful_shutdown,
        "warm_module": WARM_MODULE,
        "warm_modules": interface(job).modules(job) if is_warm else (),
    }
    guard = {"job_name": job.name, "requeues": options.requeue, "interval_s": _GUARD_INTERVAL_S}
    return {
        JOB_FILE: render_template("slurm/elastic.sh.j2", **batch, python=_python(options, "none")),
        AGENT_FILE: render_template("slurm/agent.sh.j2", **agent),
        GUARD_FILE: render_template("slurm/guard.sh.j2", **guard),
        ELASTIC_FILE: request.text(),
    }


def _release(job: JobSpec, options: Settings, given: Mapping[str, Value], nodes: str | None) -> str:
    """Return the script that ends the wait of a requeued job.

    Args:
        given: The options of the job's batch script.
        nodes: Its range of sizes; None for a job of fixed size.
    """
    wanted = options.release.model_dump(include={"partition", "account", "qos"}, exclude_none=True)
    # A reservation has nodes of the job's partition.
    same = ("partition", "account", "qos", *(() if options.release.partition else ("reservation",)))
    placed = {**{key: value for key, value in given.items() if key in same}, **wanted}
    own = header({**placed, "job-name": f"{given['job-name']}-release"})
    # What it depended on has ended, except for jobs of the same name that may have come.
    after = "singleton,afterany" if "singleton" in str(given.get("dependency", "")).split(",") else "afterany"
    return render_template("slurm/release.sh.j2", job_name=job.name, nodes=nodes, header=own, after=after)


def _node_values(job: JobSpec, options: Settings, runtime: str, *, has_code: bool) -> dict[str, Any]:
    before, after = (as_commands(get(job.config, f"recipes.{name}_script")) for name in ("pre", "post"))
    inside = options.slurm_docker_cfg.post_launch_commands or () if runtime == "docker" else ()
    # A relative path of a program starts from here; an empty one is the folder of the processes.
    folder = Path(f"{BUNDLE}{code.CWD}") if has_code else Path() if options.ssh else job.cwd
    start = '"$@"' if after else 'exec "$@"'  # the program, in the arguments of the script that a container runs
    return {
        "job_name": job.name,
        "nproc_per_node": job.nproc_per_node,
        "variables_path": VARIABLES_FILE,
        "cwd": f"{BUNDLE}{code.CWD}" if has_code else options.ssh_folder if options.ssh else str(job.cwd),
        "python": _python(options, runtime),
        "port": options.master_port,
        "program": _program(job, folder),
        "has_mpi": _starts_by_mpi(job),
        "has_ray": interface(job).is_ray,
        "runtime": runtime,
        "image": job.image,
        "accelerators": job.resources.accelerators,
        "mounts": tuple(options.container_mounts or ()),
        "docker_args": tuple(options.slurm_docker_cfg.docker_args or ()),
        "before": before,
        "after": after,
        "inside": "\n".join((*(_IN_CODE if has_code else ()), _WITH_VARIABLES, *inside, *before, start, *after)),
    }


def _python(options: Settings, runtime: str) -> str:
    """Return the Python of the nodes as a word for bash."""
    if options.python:
        return quote(options.python)
    return '"${RECIPES_PYTHON:-python3}"' if runtime == "none" else "python3"


def _environment(job: JobSpec) -> dict[str, str]:
    """Return the variables of a job's processes that are not secret; the recipe's own override the others."""
    is_several = job.max_nodes > 1 and job.resources.accelerators > 0
    # The operator of an elastic job lets the workers save; without it they do so on SIGTERM.
    patience_s = str(min(job.save_timeout_s, _MOST_PATIENCE_S))
    return {
        **(GRACEFUL_ENV if job.elastic and job.elastic.use_graceful_shutdown else {}),
        **({} if job.elastic else {ENV_SAVES_ON_TERM: "1", ENV_TORCHRUN_PATIENCE: patience_s}),
        **(SEVERAL_NODES if is_several else {}),
        **(_EFA if is_several and job.resources.efa else {}),
        **interface(job).workers.env(job),
        **_distribution_variables(job),
        **plain_variables(job.config),
    }


def _program(job: JobSpec, folder: Path) -> tuple[str, ...]:
    family = interface(job)
    if family.is_ray:
        _, *own = family.first.program(job)  # instead of its Python there is the job's
        return tuple(BUNDLE_CONFIGS if word == CONFIG_MOUNT else word for word in own)
    words = tuple(family.workers.program(replace(job, cwd=folder)))
    if not _starts_by_mpi(job):
        words = after_options(words)
    if not family.takes_config_path:
        return words
    name = ("--config-name=config.yaml",) if job.trainer == PUBLISHED else ()
    return (*words, "--config-path", BUNDLE_CONFIGS, *name)


def _gpus(options: Settings, job: JobSpec) -> int | None:
    """Return the GPUs to request per node: those given, or one for each process of nodes that are shared."""
    if options.gpus_per_task:
        return job.nproc_per_node * options.gpus_per_task  # with --gpus-per-task, torchrun's step would get one
    if options.gpus_per_node or options.gres or options.exclusive or not job.resources.accelerators:
        return options.gpus_per_node
    return job.nproc_per_node


def _srun_words(options: Settings, runtime: str, image: str | None) -> list[str]:
    words = ["--auto-resume=1"] if options.auto_resume else []
    if runtime == "pyxis":
        words += [f"--container-image={image}", "--no-container-mount-home", "--container-writable"]
    return [*words, *(options.srun_args or ())]


def _pairs(paths: Sequence[str]) -> str:
    return "".join(f",{path}:{path}" for path in paths)


def _starts_by_mpi(job: JobSpec) -> bool:
    return get(job.config, f"{_DISTRIBUTION}.mpi.enabled") is True


def _mpi_options(job: JobSpec) -> tuple[str | None, tuple[str, ...]]:
    """Return NCCL_DEBUG of the recipe's MPI options, None if they do not set it, and the other words for mpirun."""
    return mpi.parted((get(job.config, f"{_DISTRIBUTION}.mpi.custom_mpi_options") or "").split())


def _distribution_variables(job: JobSpec) -> dict[str, str]:
    """Return the variables that a distribution adds to every process."""
    tree = get(job.config, _DISTRIBUTION)
    if not tree:
        return {}
    debug, _ = _mpi_options(job)
    given = hyperparameters(tree, job.nproc_per_node, "").get("mp_parameters")
    return {
        **({"NCCL_DEBUG": debug} if debug else {}),
        **({_MODEL_PARALLEL: json.dumps(json.loads(given))} if given else {}),
    }
