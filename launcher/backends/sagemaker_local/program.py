"""A host's program: its command line and its variables, with those that the toolkit would derive from its files.

The command is the container's own, the image's `train`, or mpirun if the job uses MPI.

Source: Amazon SageMaker, How Amazon SageMaker Runs Your Training Image; sagemaker-training toolkit 5.1.4,
entry_point.py, mpi.py, environment.py and mapping.py.
"""

import contextlib
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import launcher
from launcher.backends.sagemaker.default_values import RECIPE_DIR, START
from launcher.backends.sagemaker_local import enter
from launcher.backends.sagemaker_local.optml import INTERFACE, OPT_ML, Host, resource_config
from launcher.common.names import ENV_MASTER_ADDR, ENV_RUN_DIR
from launcher.common.paths import python_path
from launcher.model.parallelism import mpi
from launcher.runtime.file_kinds import names_irregular

_log = logging.getLogger("program")

TRAIN = "train"
"""The argument that SageMaker runs an image with, and the toolkit's program."""

CODE = f"{OPT_ML}/code"
_HOME = Path(launcher.__file__).resolve().parent.parent
_KEPT = ("HOME", "LANG", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PYTHONPATH", "TERM", "TMPDIR", "TZ", "USER")
_KEPT_PREFIXES = ("AWS_", "LC_")
"""This machine's variables that a program inherits: paths, and AWS credentials in place of a role."""

_OWN_PREFIX = "sagemaker_"
"""Prefix of hyperparameters for the toolkit, not for the program."""
_PLACES = tuple(
    f"{_OWN_PREFIX}{name}"
    for name in (
        *("program", "submit_directory", "enable_cloudwatch_metrics", "region", "container_log_level", "job_name"),
        "s3_output",
    )
)
"""Those of them that the toolkit does not pass to a framework. Source: params.py, SAGEMAKER_HYPERPARAMETERS."""
_DISTRIBUTIONS = ("sagemaker_mpi_enabled", "sagemaker_torch_distributed_enabled")
"""Those of them that the launcher sets so that a host's group trains together."""
_UNNAMED = (
    *("additional_framework_parameters", "channel_input_dirs", "distribution_hosts", "hyperparameters", "is_master"),
    *("job_name", "master_hostname"),
)
"""Values of the toolkit without a variable of the same name. Source: environment.py, to_env_vars."""


def is_mpi(request: Mapping[str, Any]) -> bool:
    """Return whether mpirun on the first host starts the job's program on all hosts."""
    own = request["AlgorithmSpecification"].get("ContainerEntrypoint")
    return not own and (request.get("HyperParameters") or {}).get("sagemaker_mpi_enabled") == "true"


def words(request: Mapping[str, Any], hosts: Sequence[Host], host: Host) -> tuple[str, ...]:
    """Return the command line of a host's program."""
    if is_mpi(request):
        # mpirun on the first host reaches the others, which only have to exist.
        return _mpirun(request, hosts, host) if host is hosts[0] else ("sleep", "infinity")
    algorithm = request["AlgorithmSpecification"]
    found = [*(algorithm.get("ContainerEntrypoint") or (TRAIN,)), *(algorithm.get("ContainerArguments") or ())]
    return tuple(host.mapped(word) for word in found)


def bring_code(request: Mapping[str, Any], host: Host) -> None:
    """Copy the script's folder into a host, for a program that the toolkit does not start.

    Raises:
        OSError: It does not exist.
    """
    source = given(request, host).get("sagemaker_submit_directory")
    if is_mpi(request) and source and not source.startswith(f"{OPT_ML}/"):
        shutil.copytree(source, host.real(CODE), dirs_exist_ok=True, symlinks=True, ignore=_left_out)


def _left_out(folder: str, names: list[str]) -> set[str]:
    """Return the entries of a folder that cannot be copied, each of which is logged."""
    found = names_irregular(folder, names)
    for name in sorted(found):
        _log.warning("%s is not a file, a folder or a link, so it is left out of %s", f"{folder}/{name}", CODE)
    return found


def _mpirun(request: Mapping[str, Any], hosts: Sequence[Host], host: Host) -> tuple[str, ...]:
    own = given(request, host)
    groups = resource_config(host, hosts)["instance_groups"]
    run = mpi.MpiRun(
        tuple(name for group in groups for name in group["hosts"]),
        int(own.get("sagemaker_mpi_num_of_processes_per_host") or 1),
        interface=INTERFACE,
        custom_options=own.get("sagemaker_mpi_custom_mpi_options") or "",
        exported=tuple(sorted({*toolkit(request, hosts, host), *(request.get("Environment") or {})})),
        mp_parameters=own.get("mp_parameters") or {},
    )
    script = Path(CODE, str(own.get("sagemaker_program")))
    interpreter = (sys.executable,) if script.suffix == ".py" else ("/bin/sh",)
    return mpi.command(run, (*interpreter, str(script), *arguments(decoded(request, host))))


def launcher_path() -> dict[str, str]:
    """Return variables with which a child process finds this Python's programs and this launcher."""
    programs = (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
    return {**os.environ, "PATH": os.pathsep.join(programs), **python_path()}


def environment(
    request: Mapping[str, Any], arn: str, region: str, endpoint: str | None, hosts: Sequence[Host], host: Host
) -> dict[str, str]:
    """Return the complete environment of a host's program; `endpoint` is S3's, None is AWS."""
    found = _inherited(request) | {"AWS_REGION": region, "AWS_DEFAULT_REGION": region}
    found |= {"AWS_ENDPOINT_URL_S3": endpoint} if endpoint else {}
    found |= {"TRAINING_JOB_NAME": request["TrainingJobName"], "TRAINING_JOB_ARN": arn}
    if not host.is_private:
        found |= toolkit(request, hosts, host) | {"SAGEMAKER_BASE_DIR": host.base}
        found |= {ENV_RUN_DIR: f"{host.base}/output/data", ENV_MASTER_ADDR: "127.0.0.1"}
    found |= {name: host.mapped(value) for name, value in (request.get("Environment") or {}).items()}
    if is_mpi(request):
        found |= toolkit(request, hosts, host) | {enter.ENV_HOSTS_DIR: str(host.folder.parent)}
        # How mpirun reaches the other hosts. Source: OpenMPI FAQ, Tuning (OMPI_MCA_…).
        found["OMPI_MCA_plm_rsh_agent"] = f"{sys.executable} {enter.__file__}"
    return found


def _inherited(request: Mapping[str, Any]) -> dict[str, str]:
    """Return what the program keeps of this process's environment."""
    own = {n: v for n, v in os.environ.items() if n in _KEPT or n.startswith(_KEPT_PREFIXES)}
    entry = request["AlgorithmSpecification"].get("ContainerEntrypoint") or ()
    if f"{RECIPE_DIR}/{START}" not in entry:
        # Only the launcher's own program finds the launcher in a checkout; to any other it is not there.
        paths = [path for path in own.pop("PYTHONPATH", "").split(os.pathsep) if path and path != str(_HOME)]
        own |= {"PYTHONPATH": os.pathsep.join(paths)} if paths else {}
    return own


def given(request: Mapping[str, Any], host: Host) -> dict[str, Any]:
    """Return all hyperparameters, each parsed as JSON if it is JSON."""
    found: dict[str, Any] = {}
    for name, text in (request.get("HyperParameters") or {}).items():
        found[name] = host.mapped(text)
        with contextlib.suppress(ValueError):
            found[name] = json.loads(found[name])
    return found


def decoded(request: Mapping[str, Any], host: Host) -> dict[str, Any]:
    """Return the hyperparameters of the program itself, without the toolkit's."""
    return {name: value for name, value in given(request, host).items() if not name.startswith(_OWN_PREFIX)}


def toolkit(request: Mapping[str, Any], hosts: Sequence[Host], host: Host) -> dict[str, str]:
    """Return the SM_* variables of a host whose configuration files exist."""
    found = _training_env(request, hosts, host)
    values, folders = found["hyperparameters"], found["channel_input_dirs"]
    named = {name: value for name, value in found.items() if name not in _UNNAMED} | {
        "hps": values,
        "framework_params": found["additional_framework_parameters"],
        "channels": sorted(folders),
        "training_env": found,
        "user_args": list(arguments(values)),
        **{f"channel_{name}": folder for name, folder in folders.items()},
        **{f"hp_{name}": value for name, value in values.items()},
    }
    return {f"SM_{name.upper()}": _text(value) for name, value in named.items()}


def arguments(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield hyperparameters as a script's arguments, sorted by name. Source: toolkit 5.1.4, to_cmd_args."""
    for name in sorted(values):
        value = values[name]
        if isinstance(value, Mapping):
            value = ",".join(f"{key}={inner}" for key, inner in sorted(value.items()))
        yield from (f"{'-' if len(name) == 1 else '--'}{name}", "" if value is None else str(value))


def _training_env(request: Mapping[str, Any], hosts: Sequence[Host], host: Host) -> dict[str, Any]:
    """Return the toolkit's Environment, by its names."""
    own = given(request, host)
    script = own.get("sagemaker_program")
    inputs = json.loads((host.root / "input/config/inputdataconfig.json").read_text(encoding="utf-8"))
    base = host.base
    return _groups(hosts, host, own) | {
        "additional_framework_parameters": {
            name: value for name, value in own.items() if name.startswith(_OWN_PREFIX) and name not in _PLACES
        },
        "channel_input_dirs": {name: f"{base}/input/data/{name}" for name in inputs},
        "framework_module": None,
        "hyperparameters": decoded(request, host),
        "input_config_dir": f"{base}/input/config",
        "input_data_config": inputs,
        "input_dir": f"{base}/input",
        "job_name": request["TrainingJobName"],
        "log_level": own.get("sagemaker_container_log_level", logging.INFO),
        "model_dir": f"{base}/model",
        "module_dir": own.get("sagemaker_submit_directory", f"{base}/code"),
        "module_name": str(script or "").removesuffix(".py"),
        "network_interface_name": INTERFACE,
        "num_cpus": os.cpu_count() or 1,
        "num_gpus": len(list(Path("/dev").glob("nvidia[0-9]*"))),
        "num_neurons": 0,
        "output_data_dir": f"{base}/output/data",
        "output_dir": f"{base}/output",
        "output_intermediate_dir": f"{base}/output/intermediate",
        "user_entry_point": script,
    }


def _groups(hosts: Sequence[Host], host: Host, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Environment's values for hosts and their groups."""
    resources = resource_config(host, hosts)
    groups = {group["instance_group_name"]: group for group in resources["instance_groups"]}
    starts = any(own.get(name) for name in _DISTRIBUTIONS)
    distributed = own.get("sagemaker_distribution_instance_groups", [host.group] if starts else [])
    distribution_hosts = [name for group in groups if group in distributed for name in groups[group]["hosts"]]
    master = (distribution_hosts or resources["hosts"])[0]
    return {
        "current_host": host.name,
        "current_instance_group": host.group,
        "current_instance_group_hosts": groups[host.group]["hosts"],
        "current_instance_type": host.instance_type,
        "distribution_hosts": distribution_hosts,
        "distribution_instance_groups": distributed,
        "hosts": resources["hosts"],
        "instance_groups": list(groups),
        "instance_groups_dict": groups,
        "is_hetero": len(groups) > 1,
        "is_master": host.name == master,
        "master_hostname": master,
        "resource_config": resources,
    }


def _text(value: Any) -> str:
    """Return a value as the toolkit writes it: texts unchanged, all else as compact, sorted JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
