"""What Slurm allows of a job: relations between keys of the `cluster` section, and to the recipe."""

import json
import re
from collections.abc import Iterator
from posixpath import isabs

from launcher.backends.slurm.options import (
    IMAGE_FILES,
    Settings,
    SlurmRelease,
    lacking_form,
    notice_s,
    runtime_of,
    slurm_options,
)
from launcher.backends.slurm.sbatch_options import MEMORY_KEYS, gres_amounts, hosts, mebibytes, minutes, plain
from launcher.common.problems import Notice, Problem
from launcher.common.secret_forms import holds_credentials
from launcher.common.syntax import is_image, mount_fault, path_fault, place, rooted
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.family_registry import interface
from launcher.model.job_spec import OPEN, PUBLISHED
from launcher.rules import MakeNotice, MakeProblem, PlannedRecipe, notice_rule, rule
from launcher.rules.custom import names_no_repository

_DOCS = "docs/slurm.md"
_UNMOUNTABLE = ("/proc",)
"""Source: runc, checkProcMount."""
_RAY_CPUS = 4
"""For each device: verl takes three, and one for its program. Source: verl 0.7, trainer/ppo/ray_trainer.py,
ResourcePoolManager.create_resource_pool; trainer/main_ppo.py, TaskRunner."""
_DEVICE_KEYS = ("gres", "gpus_per_task", "gpus_per_node")
_ADDED = "additional_parameters"
_MOST_LISTED = 8
_COUNT = re.compile(r"(?:^|:)([0-9]+)(?=,|$)")
"""Counts of --gpus, such as 8 and h100:8. Source: sbatch(1), --gpus."""
_GPU_NEEDS = (*(f"cluster.{key}" for key in (*_DEVICE_KEYS, _ADDED)), "instance_type", "recipes.trainer")


@rule("E440", "cluster.auto_resume", "cluster.exclusive", source="AWS, SageMaker HyperPod cluster resiliency: Slurm")
def auto_resume_has_its_nodes(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """HyperPod replaces a faulty node only under a job that has it alone."""
    options = slurm_options(checked)
    if options.auto_resume and not options.exclusive:
        yield problem("cluster.auto_resume", "needs nodes of its own", value=True, remedy="cluster.exclusive=true")


@rule("E442", "container", "cluster.container_runtime", "cluster.trainer", source=_DOCS)
def container_can_be_run(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A runtime needs an image, and the published trainer exists in an image only."""
    image = checked.launch.container
    runtime = runtime_of(slurm_options(checked).container_runtime, image)
    if runtime != "none" and not image:
        remedy = "container=<image>, or cluster.container_runtime=none"
        yield problem("cluster.container_runtime", "has no image to run", value=runtime, remedy=remedy)
    elif runtime == "none" and image and checked.composition.is_given("container"):
        remedy = "cluster.container_runtime=null" + ("" if checked.trainer == PUBLISHED else ", or container=null")
        message = "runs no container, but container is given"
        yield problem("cluster.container_runtime", message, value=runtime, remedy=remedy)
    elif runtime == "none" and checked.trainer == PUBLISHED:
        remedy = f"container=<image>, or cluster.trainer={OPEN}"
        yield problem("container", "the published trainer exists in an image only", value=image, remedy=remedy)


@rule(
    "E436",
    "container",
    "cluster.container_runtime",
    source="Distribution, reference grammar; pyxis, Usage; apptainer-exec(1); ch-run(1)",
)
def image_has_the_form_of_its_runtime(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Each runtime takes images of its own forms, and nodes do not start in the folder of a relative path."""
    image = checked.launch.container
    runtime = runtime_of(slurm_options(checked).container_runtime, image)
    if not image or runtime == "none" or (allowed := lacking_form(runtime, image)) is None:
        return
    shown = {"where": "container"} if holds_credentials(image) else {"value": image}
    if image.endswith(IMAGE_FILES) and not isabs(image):
        message, remedy = "is a relative path, which nodes do not find", f"container=<folder>/{image}"
    elif runtime == "docker" and isabs(image):
        message, remedy = (
            "is a path, which docker does not run",
            "cluster.container_runtime=apptainer, or charliecloud",
        )
    elif runtime == "apptainer" and is_image(image):
        message, remedy = "is a relative path for apptainer", f"container=docker://{image}"
    else:
        message, remedy = f"is not an image that {runtime} runs", None
    yield problem("container", message, allowed=allowed, remedy=remedy, **shown)


@rule(
    "E439",
    "cluster.container_mounts",
    "container",
    "cluster.container_runtime",
    source="runc, checkProcMount; docs/slurm.md, Containers",
)
def mounts_are_paths(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A path of the node is mounted at the same path, and is a word between separators of the runtime."""
    options, taken = slurm_options(checked), set[str]()
    runtime = runtime_of(options.container_runtime, checked.launch.container)
    for i, path in enumerate(() if runtime == "none" else options.container_mounts or ()):
        key = f"cluster.container_mounts.{i}"
        folder, _, target = path.partition(":")
        if target and path_fault(folder) is None:
            message = "names a target or an option, but a path is mounted at the same path"
            yield problem(key, message, value=path, remedy=f"{key}={folder}")
        elif fault := mount_fault(path, _UNMOUNTABLE):
            real = rooted(folder)
            yield problem(key, fault, value=path, remedy=real and f"{key}={real}")
        elif "," in path and runtime in ("pyxis", "apptainer"):
            yield problem(key, f"contains ',', which separates mounts of {runtime}", value=path)
        elif place(path) in taken:
            yield problem(key, "is mounted twice", value=path, remedy="leave it out")
        taken.add(place(path))


@rule("E465", "container", "cluster.container_runtime", "cluster.mpi", "recipes.distribution", source=_DOCS)
def ranks_can_be_started(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """mpirun starts processes of a node, which start a container each; pyxis is a part of srun."""
    options, distribution = slurm_options(checked), getattr(checked.recipe, "distribution", None)
    runtime = runtime_of(options.container_runtime, checked.launch.container)
    if distribution is None or not distribution.is_mpi:
        return
    if runtime == "docker":
        message, allowed = "cannot be started by MPI: its processes do not find each other", "pyxis, apptainer, none"
        yield problem("cluster.container_runtime", message, value=runtime, allowed=allowed)
    elif runtime == "pyxis" and options.mpi == "mpirun":
        yield problem("cluster.mpi", "cannot start pyxis containers", value=options.mpi, remedy="cluster.mpi=pmix")


@rule("E443", "git", "cluster.trainer", source=_DOCS)
def revision_is_complete(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The launcher fetches code itself; what only the image's start script does is not done."""
    yield from names_no_repository(checked, problem)
    git = checked.launch.git
    script = git.entry_script
    if checked.trainer == PUBLISHED and script and not (git.repo_url_or_path or script.startswith("/")):
        message = "is relative, but there is no repository that it could be in"
        yield problem("git.entry_script", message, value=script, remedy="git.repo_url_or_path=<repository>")
    if checked.trainer == PUBLISHED and git.update_adapter:
        message = "is done by the image's start script, which is not started on Slurm"
        yield problem("git.update_adapter", message, value=True, remedy="git.update_adapter=false")


@rule("E461", "cluster.code", "git.repo_url_or_path", source=_DOCS)
def code_has_one_source(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Processes start in one folder: that of a revision, of a snapshot, or your own."""
    code = slurm_options(checked).code
    if code and checked.launch.git.repo_url_or_path:
        message = "is given together with git.repo_url_or_path, whose revision is the code"
        yield problem("cluster.code", message, value=code, allowed="one of them")


@rule(
    "E470",
    "cluster.exclusive",
    "cluster.signal",
    "cluster.auto_resume",
    "cluster.master_port",
    "cluster.cpus_per_task",
    "cluster.gpus_per_task",
    "cluster.limit_notice",
    "cluster.limit_requeues",
    "recipes.elastic_policy",
    source=_DOCS,
)
def elastic_jobs_leave_it_to_the_operator(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The operator of an elastic job needs whole nodes, and what it decides itself cannot be given."""
    if not checked.is_elastic:
        return
    options = slurm_options(checked)
    if not options.exclusive:
        message = "an elastic job needs nodes of its own: a request for more could get those it has"
        yield problem("cluster.exclusive", message, value=False, remedy="cluster.exclusive=true")
    for name, reason in _OPERATED.items():
        if value := getattr(options, name):
            unset = json.dumps(Settings.model_fields[name].json_schema_extra["default"])  # type: ignore[index]
            yield problem(f"cluster.{name}", reason, value=value, remedy=f"cluster.{name}={unset}")


_OPERATED = {
    "cpus_per_task": "an elastic job has all CPUs of its nodes",
    "gpus_per_task": "an elastic job has all GPUs of its nodes",
    "limit_notice": "an elastic job saves before its time limit and is requeued without it",
    "limit_requeues": "an elastic job returns to the queue whenever its time limit is near",
    "signal": "an elastic job has a signal of its own before the time limit, at which it saves and is requeued",
    "auto_resume": "the operator of an elastic job replaces faulty nodes itself",
    "master_port": "each node of an elastic job takes free ports",
}


@rule("E471", "cluster.time", "recipes.elastic_policy", source="sbatch(1), --time and --signal")
def elastic_jobs_can_stop_in_time(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A job that must stop before it could start would return to the queue for ever."""
    policy, limit = checked.recipe.elastic_policy, minutes(slurm_options(checked).time)
    if not checked.is_elastic or policy is None or not limit:
        return
    needed_s = notice_s(policy.graceful_shutdown_timeout)
    if limit * 60 <= needed_s:
        message = "is over before the job could train: it stops that long before, to save"
        allowed = f"over {needed_s / 60:.0f} minutes"
        yield problem("cluster.time", message, value=slurm_options(checked).time, allowed=allowed)


@rule(
    "E441", *(f"cluster.{key}" for key in _DEVICE_KEYS), source="sbatch(1), --gres, --gpus-per-node, --gpus-per-task"
)
def devices_are_requested_once(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Two requests for a node's devices may contradict each other."""
    yield from _together(slurm_options(checked), _DEVICE_KEYS, problem)


@rule("E473", *(f"cluster.{key}" for key in MEMORY_KEYS), source="sbatch(1), --mem: mutually exclusive")
def memory_is_requested_once(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Slurm takes one of the requests for memory, and ignores or refuses another."""
    yield from _together(slurm_options(checked), MEMORY_KEYS, problem)


def _together(options: Settings, keys: tuple[str, ...], problem: MakeProblem) -> Iterator[Problem]:
    """Yield a Problem if several of some keys are given."""
    first, *others = [key for key in keys if getattr(options, key) is not None] or [""]
    if others:
        message = f"is given together with {' and '.join(others)}"
        yield problem(f"cluster.{first}", message, value=getattr(options, first), allowed="one of them")


@rule("E474", "cluster.mem_per_gpu", "cluster.exclusive", *_GPU_NEEDS, source=_DOCS)
def memory_per_gpu_has_gpus(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Memory per GPU is that of requested GPUs; without any, Slurm would give the job no memory of its own."""
    options = slurm_options(checked)
    if options.mem_per_gpu is not None and not _gpus(checked):
        remedy = "cluster.gpus_per_node=<number>, or cluster.mem"
        yield problem("cluster.mem_per_gpu", "no GPU is requested", value=options.mem_per_gpu, remedy=remedy)


@rule("E475", *_GPU_NEEDS, source=_DOCS)
def every_process_has_its_gpu(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Each process uses a GPU of its own, and a node has only so many."""
    instance, processes = checked.instance, checked.devices
    if instance is None:
        return
    for key, value, gpus in _gpu_requests(checked):
        shown = {"value": value, "remedy": f"cluster.{key}=null requests what they need"}
        if gpus > instance.accelerators:
            message = f"makes {gpus:g} per node, more than one of {instance.name} has: the job would never start"
            yield problem(f"cluster.{key}", message, allowed=f"at most {instance.accelerators} per node", **shown)
        elif gpus < processes and instance.processes == instance.accelerators:
            message = f"makes {gpus:g} per node, less than its {processes} processes, of which each uses one"
            yield problem(f"cluster.{key}", message, **shown)


@rule(
    "E462",
    *("cluster.cpus_per_task", "cluster.exclusive", *(f"cluster.{key}" for key in MEMORY_KEYS), *_GPU_NEEDS),
    source="sbatch(1), --cpus-per-task, --mem, --mem-per-cpu, --mem-per-gpu",
)
def a_node_has_what_is_requested(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A job that requests more CPUs or memory than a node has would never start."""
    options, instance, processes = slurm_options(checked), checked.instance, checked.devices
    if instance is None:
        return
    has_tasks = options.cpus_per_task or not options.exclusive
    cpus = processes * (options.cpus_per_task or 1) if has_tasks else 1
    never = f"more than one of {instance.name} has: the job would never start"
    if cpus > instance.vcpus > 0 and not _added(options).get("overcommit", ("", False))[1]:
        message, allowed = f"makes {cpus} CPUs per node, {never}", f"at most {instance.vcpus}"
        yield problem("cluster.cpus_per_task", message, value=options.cpus_per_task or 1, allowed=allowed)
    for key, times in {"mem": 1, "mem_per_cpu": cpus, "mem_per_gpu": _gpus(checked)}.items():
        asked_gib = mebibytes(value := getattr(options, key)) * times / 1024
        if asked_gib > instance.memory_gib > 0:
            message, allowed = f"makes {asked_gib:g} GiB per node, {never}", f"at most {instance.memory_gib} GiB"
            yield problem(f"cluster.{key}", message, value=value, allowed=allowed)


def _gpus(checked: CheckedRecipe) -> float:
    """Return the GPUs per node that a job requests; 0 if none."""
    options, instance = slurm_options(checked), checked.instance
    own = checked.devices if instance and instance.accelerators and not options.exclusive else 0
    return max((gpus for _, _, gpus in _gpu_requests(checked)), default=own)


def _gpu_requests(checked: CheckedRecipe) -> Iterator[tuple[str, object, float]]:
    """Yield each key that requests GPUs, with its value and how many it requests per node."""
    options = slurm_options(checked)
    name, total = _added(options).get("gpus", ("", None))
    for key, value, gpus in (
        ("gpus_per_node", options.gpus_per_node, options.gpus_per_node or 0),
        ("gpus_per_task", options.gpus_per_task, (options.gpus_per_task or 0) * checked.devices),
        ("gres", options.gres, gres_amounts(options.gres or "").get("gres/gpu", 0)),
        (f"{_ADDED}.{name}", total, sum(map(int, _COUNT.findall(str(total)))) / _most_nodes(checked)),
    ):
        if gpus:
            yield key, value, gpus


def _most_nodes(checked: CheckedRecipe) -> int:
    return max((size.nodes for size in checked.scales), default=checked.recipe.trainer.num_nodes)


def _added(options: Settings) -> dict[str, tuple[str, object]]:
    """Return the further options of sbatch by their names, with the name as it was given."""
    return {plain(name): (name, value) for name, value in (options.additional_parameters or {}).items()}


@rule("E463", "cluster.nodelist", "cluster.exclude", "recipes.trainer", source="sbatch(1), --nodelist and --exclude")
def required_nodes_can_be_had(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Slurm refuses a job that requires a node that it excludes, or more nodes than it has."""
    options, most = slurm_options(checked), _most_nodes(checked)
    required = hosts(options.nodelist or "")
    if len(required) > most:
        message, remedy = f"requires {len(required)} nodes, more than the job has", "fewer, or cluster.nodelist=null"
        yield problem("cluster.nodelist", message, value=options.nodelist, allowed=f"at most {most}", remedy=remedy)
    if both := sorted(required & hosts(options.exclude or "")):
        message = f"excludes nodes that cluster.nodelist requires: {', '.join(both[:_MOST_LISTED])}"
        remedy = "cluster.exclude=null, or other nodes"
        yield problem("cluster.exclude", message, value=options.exclude, remedy=remedy)


@rule("E464", "cluster.time", f"cluster.{_ADDED}", source="sbatch(1), --time-min")
def the_least_time_is_within_the_limit(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Slurm shortens the time limit of a job down to time-min, which cannot exceed it."""
    options = slurm_options(checked)
    name, least = _added(options).get("time-min", ("", None))
    if (minutes(least) or 0) > (minutes(options.time) or float("inf")):
        message = f"is more than cluster.time, {options.time}"
        yield problem(f"cluster.{_ADDED}.{name}", message, value=least, remedy=f"cluster.{_ADDED}.{name}=null")


@rule("E476", "cluster.signal", "cluster.limit_notice", source="sbatch(1), --signal")
def one_signal_precedes_the_limit(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Slurm sends a job one signal before its time limit."""
    options = slurm_options(checked)
    if options.signal and options.limit_notice:
        message = "is given together with limit_notice, which sends SIGTERM"
        yield problem("cluster.signal", message, value=options.signal, allowed="one of them")


@rule("E477", "cluster.time", "cluster.limit_notice", source="sbatch(1), --time and --signal")
def a_job_can_start_before_it_must_stop(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A job that must stop before it could start would return to the queue without a step."""
    options = slurm_options(checked)
    limit_s = (minutes(options.time) or float("inf")) * 60
    if options.limit_notice and options.limit_notice >= limit_s:
        allowed = f"less than {limit_s:g}, the time limit in seconds"
        yield problem("cluster.limit_notice", "begins before the job", value=options.limit_notice, allowed=allowed)


@rule("E478", "cluster.limit_requeues", "cluster.limit_notice", "cluster.requeue", source=_DOCS)
def a_job_returns_that_may(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A job that returns to the queue has saved before, and Slurm must be allowed to requeue it."""
    options = slurm_options(checked)
    if not options.limit_requeues:
        return
    if not options.limit_notice and not checked.is_elastic:
        message = "the job would return without having saved"
        remedy = "cluster.limit_notice=<seconds in which its processes save>"
        yield problem("cluster.limit_requeues", message, value=options.limit_requeues, remedy=remedy)
    if not options.requeue:
        message, remedy = "cluster.requeue=false keeps the job from returning", "cluster.requeue=true"
        yield problem("cluster.limit_requeues", message, value=options.limit_requeues, remedy=remedy)


@rule("E830", "cluster.exclusive", "cluster.cpus_per_task", "recipes.run.model_type", source="docs/ray.md, On Slurm")
def a_ray_cluster_has_cpus(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Ray starts an actor once its CPUs are free."""
    options = slurm_options(checked)
    if interface(checked).is_ray and not options.exclusive and (options.cpus_per_task or 1) < _RAY_CPUS:
        message = "is too few on shared nodes: actors of the Ray cluster would wait for CPUs for ever"
        allowed, remedy = f"at least {_RAY_CPUS}", f"cluster.cpus_per_task={_RAY_CPUS}, or cluster.exclusive=true"
        yield problem("cluster.cpus_per_task", message, value=options.cpus_per_task, allowed=allowed, remedy=remedy)


@rule("E479", "cluster.release", "recipes.elastic_policy", source=_DOCS)
def elastic_jobs_are_released(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Slurm remembers the size that an elastic job had last: the short job gives it back every size it may have."""
    if checked.is_elastic and not slurm_options(checked).release.enabled:
        message = "an elastic job needs it: Slurm would keep the size that it had last"
        yield problem("cluster.release.enabled", message, value=False, remedy="cluster.release.enabled=true")


@notice_rule("N188", source="sbatch(1), --mem")
def all_memory_of_shared_nodes_is_taken(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """A job that takes all memory of a node shares it with none that needs memory."""
    options = slurm_options(planned.checked)
    if not options.exclusive and options.mem == 0:
        yield notice("cluster.mem=0 takes all memory of each node, so that hardly any other job can share it")


@notice_rule("N186", source=_DOCS)
def setup_may_activate_another_python(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """An environment that setup activates does not change the Python that the launch named."""
    options = slurm_options(planned.checked)
    is_here = options.python is None and not options.ssh and planned.job.image is None
    if is_here and any("activate" in line for line in options.setup or ()):
        yield notice("processes run with the Python that launched; cluster.python=python takes what setup activates")


@notice_rule("N187", source=_DOCS)
def keys_take_effect_with_others(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Some keys say how something is done that the job does not do at all."""
    options, checked = slurm_options(planned.checked), planned.checked
    distribution = getattr(checked.recipe, "distribution", None)
    docker = None if runtime_of(options.container_runtime, planned.job.image) == "docker" else "docker as the runtime"
    requeue = None if options.requeue or checked.is_elastic else "cluster.requeue=true"
    release = requeue or (None if options.release.enabled else "cluster.release.enabled=true")
    without = {
        "container_mounts": None if planned.job.image else "a container",
        "slurm_docker_cfg.docker_args": docker,
        "slurm_docker_cfg.post_launch_commands": docker,
        "growth": None if checked.is_elastic else "an elastic job",
        "array_parallelism": "a job of fixed size" if checked.is_elastic else None,
        "mpi": None if distribution is not None and distribution.is_mpi else "recipes.distribution.mpi.enabled=true",
        "release.enabled": requeue if options.release.enabled else None,
        **{f"release.{key}": release for key in SlurmRelease.model_fields if key != "enabled"},
        "ssh_folder": None if options.ssh else "cluster.ssh",
    }
    for key, needed in without.items():
        if needed and checked.is_explicit(f"cluster.{key}"):
            yield notice(f"cluster.{key} has no effect without {needed}")
