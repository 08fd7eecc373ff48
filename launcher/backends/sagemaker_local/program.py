"""A host's program: the container's own start command, the image's `train`, or mpirun if the job uses MPI.

Source: Amazon SageMaker, How Amazon SageMaker Runs Your Training Image; sagemaker-training toolkit 5.1.4,
entry_point.py and mpi.py.
"""

import logging
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.backends.sagemaker_local import enter, variables
from launcher.backends.sagemaker_local.optml import INTERFACE, OPT_ML, Host, resource_config
from launcher.model.parallelism import mpi
from launcher.runtime.file_kinds import names_irregular

_log = logging.getLogger("program")

TRAIN = "train"
"""The argument that SageMaker runs an image with, and the toolkit's program."""

CODE = f"{OPT_ML}/code"
_REST = ("sleep", "infinity")
"""Program of a host that mpirun on the first host reaches."""


def is_mpi(request: Mapping[str, Any]) -> bool:
    """Return whether mpirun on the first host starts the job's program on all hosts."""
    own = request["AlgorithmSpecification"].get("ContainerEntrypoint")
    return not own and (request.get("HyperParameters") or {}).get("sagemaker_mpi_enabled") == "true"


def words(request: Mapping[str, Any], hosts: Sequence[Host], host: Host) -> tuple[str, ...]:
    """Return the command line of a host's program."""
    if is_mpi(request):
        return _mpirun(request, hosts, host) if host is hosts[0] else _REST
    algorithm = request["AlgorithmSpecification"]
    found = [*(algorithm.get("ContainerEntrypoint") or (TRAIN,)), *(algorithm.get("ContainerArguments") or ())]
    return tuple(host.mapped(word) for word in found)


def bring_code(request: Mapping[str, Any], host: Host) -> None:
    """Copy the script's folder into a host, for a program that the toolkit does not start.

    Raises:
        OSError: It does not exist.
    """
    source = variables.given(request, host).get("sagemaker_submit_directory")
    if is_mpi(request) and source and not source.startswith(f"{OPT_ML}/"):
        shutil.copytree(source, host.real(CODE), dirs_exist_ok=True, symlinks=True, ignore=_left_out)


def _left_out(folder: str, names: list[str]) -> set[str]:
    """Return the entries of a folder that cannot be copied, each of which is logged."""
    found = names_irregular(folder, names)
    for name in sorted(found):
        _log.warning("%s is not a file, a folder or a link, so it is left out of %s", f"{folder}/{name}", CODE)
    return found


def _mpirun(request: Mapping[str, Any], hosts: Sequence[Host], host: Host) -> tuple[str, ...]:
    given = variables.given(request, host)
    groups = resource_config(host, hosts)["instance_groups"]
    run = mpi.MpiRun(
        tuple(name for group in groups for name in group["hosts"]),
        int(given.get("sagemaker_mpi_num_of_processes_per_host") or 1),
        interface=INTERFACE,
        custom_options=given.get("sagemaker_mpi_custom_mpi_options") or "",
        exported=tuple(sorted({*variables.toolkit(request, hosts, host), *(request.get("Environment") or {})})),
        mp_parameters=given.get("mp_parameters") or {},
    )
    script = Path(CODE, str(given.get("sagemaker_program")))
    interpreter = (sys.executable,) if script.suffix == ".py" else ("/bin/sh",)
    return mpi.command(run, (*interpreter, str(script), *variables.arguments(variables.decoded(request, host))))


def mpi_variables() -> dict[str, str]:
    """Return the variables that let mpirun reach the other hosts. Source: OpenMPI FAQ, Tuning (OMPI_MCA_…)."""
    return {"OMPI_MCA_plm_rsh_agent": f"{sys.executable} {enter.__file__}"}
