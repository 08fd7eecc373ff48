"""The mpirun line of a training job. Pure.

Source: sagemaker-training toolkit 5.1.4, mpi.py (MasterRunner): the line is identical except for the
number of processes, which SDK 3's own driver gets wrong. Options: mpirun(1) of OpenMPI 4.1.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_KNOWN = "--NCCL_DEBUG"
"""The only custom option that is not mpirun's."""

EFA = frozenset(
    f"ml.{name}"
    for name in (
        *("g4dn.8xlarge", "g4dn.12xlarge", "g5.48xlarge", "p3dn.24xlarge", "p4d.24xlarge", "p4de.24xlarge"),
        *("p5.48xlarge", "p5e.48xlarge", "trn1.32xlarge", "p6e-gb200.36xlarge"),
    )
)
"""Instance types on which the toolkit turns EFA on; others also have EFA. Source: SM_EFA_NCCL_INSTANCES of 5.1.4."""

RDMA = EFA - {"ml.g4dn.8xlarge", "ml.g4dn.12xlarge", "ml.g5.48xlarge", "ml.p3dn.24xlarge"}
"""Those whose EFA does RDMA. Source: SM_EFA_RDMA_INSTANCES of 5.1.4."""

PLACING = frozenset(
    f"{dashes}{name}"
    for dashes in ("-", "--")
    for name in (
        *("c", "n", "np", "N", "npernode", "pernode", "npersocket", "ppr", "map-by", "rank-by", "bynode", "byslot"),
        *("H", "host", "hostfile", "machinefile", "default-hostfile", "rf", "rankfile", "cpu-set", "app"),
        *("bycore", "bysocket", "nolocal", "cpus-per-proc", "cpus-per-rank", "do-not-launch"),
    )
)
"""Options that move ranks or change their number. Source: mpirun(1), Specifying Host Nodes, Mapping, Ranking."""

PLACING_PARAMETERS = "rmaps_"
"""Prefixes of parameters with the same effect, after -mca. Source: mpirun(1), --map-by."""


@dataclass(frozen=True, slots=True)
class MpiRun:
    """The parts of an mpirun command line.

    Args:
        hosts: Host names, in the order of the job's resource configuration.
        processes_per_host: Processes of each host.
        instance_type: With its `ml.` prefix; None on this machine.
        interface: Network interface of every host.
        custom_options: `mpi.custom_mpi_options`.
        exported: Names of the variables that every rank gets, beside those that are always passed on.
        preload: Library that the image loads into every rank, the toolkit's gethostname; None for none.
        mp_parameters: Parameters of the model parallel library; empty without it.
        torch_version: SM_DLC_TORCH_VERSION of the image, if it has one.
        has_smddpmprun: Whether the image has that program.
    """

    hosts: tuple[str, ...]
    processes_per_host: int
    instance_type: str | None = None
    interface: str = "eth0"
    custom_options: str = ""
    exported: tuple[str, ...] = ()
    preload: str | None = None
    mp_parameters: Mapping[str, object] = field(default_factory=dict)
    torch_version: str | None = None
    has_smddpmprun: bool = False


def command(run: MpiRun, program: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that starts a program on every rank.

    Args:
        run: The parts of the command line.
        program: Words each rank runs; the toolkit's begin with python, -m and mpi4py.
    """
    debug, further = parted(run.custom_options.split())
    slots = "" if run.processes_per_host == 1 else f":{run.processes_per_host}"
    preload = _export(f"LD_PRELOAD={run.preload}") if run.preload else ()
    return (
        *("mpirun", "--host", ",".join(f"{host}{slots}" for host in run.hosts)),
        *("-np", str(len(run.hosts) * run.processes_per_host)),
        *("--allow-run-as-root", "--display-map", "--tag-output"),
        *("-mca", "btl_tcp_if_include", run.interface, "-mca", "oob_tcp_if_include", run.interface),
        *("-mca", "plm_rsh_no_tree_spawn", "1", "-bind-to", "none", "-map-by", "slot"),
        *("-mca", "pml", "ob1", "-mca", "btl", "^openib", "-mca", "orte_abort_on_non_zero_status", "1"),
        *("-mca", "btl_vader_single_copy_mechanism", "none"),
        *_export("NCCL_MIN_NRINGS=4", f"NCCL_SOCKET_IFNAME={run.interface}", f"NCCL_DEBUG={debug or 'INFO'}"),
        *_export("LD_LIBRARY_PATH", "PATH"),
        *preload,
        *further,
        *_efa(run.instance_type),
        *_export(*run.exported),
        *_model_parallel(run),
        *program,
    )


def parted(words: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """Return NCCL_DEBUG of custom options, None if they do not set it, and the other arguments for mpirun.

    Raises:
        ValueError: The option has no value.
    """
    debug, further, left = None, [], iter(words)
    for word in left:
        if word == _KNOWN:
            debug = next(left, "")
        elif word.startswith(f"{_KNOWN}="):
            debug = word.partition("=")[2]
        else:
            further.append(word)
            continue
        if not debug:
            raise ValueError(f"{_KNOWN} has no value")
    return debug, tuple(further)


def _export(*names: str) -> Iterator[str]:
    """Yield the options that pass variables on, by name or as NAME=VALUE."""
    for name in names:
        yield from ("-x", name)


def _efa(instance_type: str | None) -> Iterator[str]:
    if instance_type in EFA:
        yield from _export("FI_PROVIDER=efa", "NCCL_PROTO=simple")
    if instance_type in RDMA:
        yield from _export("FI_EFA_USE_DEVICE_RDMA=1")


def _model_parallel(run: MpiRun) -> Iterator[str]:
    """Yield options of the model parallel library: its protocols, and the program that sets up its collectives."""
    if not run.mp_parameters:
        return
    if run.torch_version:
        yield from _export("NCCL_PROTO=simple")
        if int(run.torch_version.partition(".")[0]) > 1:
            yield from _export("NCCL_ALGO=ring")
    if run.has_smddpmprun and run.mp_parameters.get("ddp_dist_backend", "auto") == "auto":
        yield from ("smddpmprun", "-i", str(run.instance_type), "--allow-bypass")
