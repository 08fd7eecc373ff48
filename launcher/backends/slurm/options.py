"""The `cluster` section of cluster=slurm: options of sbatch and srun, and how containers start."""

import re
from posixpath import isabs
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from launcher.backends.slurm.sbatch_options import MEMORY, mebibytes, minutes, refuse_unknown
from launcher.backends.slurm.srun_options import refuse_undoing
from launcher.common.names import DEFAULT_GRACEFUL_TIMEOUT_S
from launcher.common.syntax import IMAGE_FORM, is_image, place
from launcher.model.base_model import (
    ClusterOptions,
    HasOptions,
    Listed,
    Model,
    NonNegativeInt,
    PositiveInt,
    TextForm,
    default,
    options_of,
)

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_COMMAND_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_MOST_MIB = 2**30
_MOST_DAYS = 24_855
"""Seconds in 32 bits with a sign. Slurm 22.05 has no sign: it was seen to make 18 hours of 49711 days."""
_MOST_SETUP = 200
_LONGEST = 1024
_MOST_16_BITS = 65_535
_LIMIT_MARGIN_S = 90
"""Seconds before the time limit, beyond the workers' own time to save. Slurm 22.05 was seen to signal 30 s late."""


def _one_line(text: str) -> str:
    if _CONTROL.search(text):
        raise ValueError("must be one line without control characters, since sbatch reads options line by line")
    return text


def _command(line: str) -> str:
    if _COMMAND_CONTROL.search(line):
        raise ValueError("must be one line without control characters: each item of the list is a line of the script")
    if line.lstrip().startswith("#SBATCH"):
        raise ValueError("would be a comment: options of sbatch have keys of their own or additional_parameters")
    return line


def _of_one_path(mount: str) -> str:
    folder, _, target = mount.partition(":")
    return folder if isabs(folder) and isabs(target) and place(folder) == place(target) else mount


def _bounded(memory: int | str) -> int | str:
    if mebibytes(memory) > _MOST_MIB:
        raise ValueError(f"must be at most {_MOST_MIB} MiB")
    return memory


def _counted(limit: int | str) -> int | str:
    if (minutes(limit) or 0) > _MOST_DAYS * 1440:
        raise ValueError(f"must be at most {_MOST_DAYS} days; 0 means unlimited")
    return limit


def _separated(nodes: Any) -> Any:
    """Return a list of nodes with one comma between two; Slurm also takes blanks and further commas."""
    return ",".join(re.split(r"[, ]+", nodes.strip(", "))) if isinstance(nodes, str) and "/" not in nodes else nodes


def _ascending(nodes: str) -> str:
    spans = re.findall(r"(?<=[\[,])([0-9]+)-([0-9]+)(?=[\],])", nodes)
    if "/" not in nodes and any(int(first) > int(last) for first, last in spans):
        raise ValueError("has a range whose end precedes its beginning")
    return nodes


def _in_16_bits(signal: str) -> str:
    if int(signal.partition("@")[2] or 0) > _MOST_16_BITS:
        raise ValueError(f"must be at most {_MOST_16_BITS} seconds before the time limit")
    return signal


Text = Annotated[str, Field(min_length=1, max_length=_LONGEST), AfterValidator(_one_line)]
"""A value of an option of sbatch; its header quotes it."""
Mount = Annotated[Text, AfterValidator(_of_one_path)]
"""A path; `/fsx:/fsx` becomes `/fsx`."""
_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_LOGIN = rf"^({_NAME}@)?[A-Za-z0-9_][A-Za-z0-9._:-]*$"
Login = Annotated[str, TextForm(pattern=_LOGIN, words="a host, or user@host", max_length=255)]
"""A destination of ssh. Source: ssh(1)."""
_FOLDER = r"^[^~%\\\x00-\x1f\x7f-][^%\\\x00-\x1f\x7f]*$"
_FOLDER_FORM = "the path of a folder without %, \\ and control characters, and without ~ or - at its beginning"
Folder = Annotated[str, TextForm(pattern=_FOLDER, words=_FOLDER_FORM, max_length=_LONGEST)]
"""A folder on a cluster, without the characters that Slurm replaces in the path of a log."""
_TIME = r"^([0-9]+-)?[0-9]+(:[0-9]{1,2}){0,2}$"
Time = Annotated[
    NonNegativeInt
    | Annotated[str, TextForm(pattern=_TIME, words="a time as in 90:00, 1:30:00, 2-12 and 2-12:30:00")],
    AfterValidator(_counted),
]
"""Source: sbatch(1), --time: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, ..."""
_TYPES = "after|afterok|afterany|afternotok|aftercorr|afterburstbuffer"
_ONE = rf"(singleton|({_TYPES}):[0-9]+(_[0-9]+)?(\+[0-9]+)?(:[0-9]+(_[0-9]+)?(\+[0-9]+)?)*)"
_ALL = rf"^{_ONE}((,{_ONE})*|(\?{_ONE})*)$"
Dependency = Annotated[
    str,
    TextForm(pattern=_ALL, words=f"singleton, or TYPE:JOB_ID[:JOB_ID…] with TYPE one of {_TYPES.replace('|', ', ')}"),
]
"""Source: sbatch(1), --dependency."""
_MEMORY = Annotated[str, TextForm(pattern=MEMORY, words="memory with a unit, such as 64GB")]
Memory = Annotated[NonNegativeInt | _MEMORY, AfterValidator(_bounded)]
"""Memory in MiB, or with a unit such as 64GB. Source: sbatch(1), --mem; tried with Slurm 22.05."""
PositiveMemory = Annotated[PositiveInt | _MEMORY, AfterValidator(_bounded)]
Count16 = Annotated[int, Field(ge=1, le=_MOST_16_BITS)]
"""Numbers that Slurm holds in 16 bits. Source: sbatch(1), --signal: sig_time; slurm.h: cpus_per_task."""
Command = Annotated[str, Field(max_length=4096), AfterValidator(_command)]
"""A line of a shell script."""
_SIGNALS = "HUP|INT|QUIT|ABRT|KILL|ALRM|TERM|USR1|USR2|URG|CONT|STOP|TSTP|TTIN|TTOU|XCPU"
_SIGNAL = rf"^(R:)?((SIG)?({_SIGNALS})|[1-9]|[1-5][0-9]|6[0-4])(@[0-9]{{1,5}})?$"
_SIGNAL_FORM = (
    f"a signal such as USR1@60: a number from 1 to 64, or one of {_SIGNALS.replace('|', ', ')}; with limit_notice,"
    " processes get SIGTERM"
)
Signal = Annotated[str, TextForm(pattern=_SIGNAL, words=_SIGNAL_FORM), AfterValidator(_in_16_bits)]
"""Source: sbatch(1), --signal, without B: the batch script itself handles no signal; names tried with Slurm 22.05."""
_LETTER, _SPANS = r"[A-Za-z0-9._-]", r"\[[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*\]"
_NODE, _FILE = rf"{_LETTER}+({_SPANS}({_LETTER}*{_SPANS})*)?", r"[^\x00-\x1f\x7f]*/[^\x00-\x1f\x7f]*"
_NODES = rf"^({_NODE}(,{_NODE})*|{_FILE})$"
_NODES_FORM = "names of nodes, separated by commas, such as node[1-4,7],login1, or the path of a file of them"
Nodes = Annotated[
    str,
    TextForm(pattern=_NODES, words=_NODES_FORM, max_length=_LONGEST),
    BeforeValidator(_separated),
    AfterValidator(_ascending),
]
"""Source: sbatch(1), --nodelist; slurm.conf(5), NodeName: letters after the last range of a name are not allowed."""
_RESOURCE = rf"[A-Za-z_]{_LETTER}*(:[0-9]*[A-Za-z_]{_LETTER}*|(:{_NAME})?:[0-9]{{1,9}}[kKmMgGtTpP]?)?"
_GRES = rf"^{_RESOURCE}(,{_RESOURCE})*$"
_GRES_FORM = "NAME[:TYPE][:COUNT], separated by commas, such as gpu:h100:8,nic"
Gres = Annotated[str, TextForm(pattern=_GRES, words=_GRES_FORM, max_length=_LONGEST)]
"""Source: sbatch(1), --gres."""
Mail = Literal[
    "NONE",
    "BEGIN",
    "END",
    "FAIL",
    "REQUEUE",
    "ALL",
    "INVALID_DEPEND",
    "STAGE_OUT",
    "ARRAY_TASKS",
    "TIME_LIMIT",
    "TIME_LIMIT_90",
    "TIME_LIMIT_80",
    "TIME_LIMIT_50",
]
"""Source: sbatch(1), --mail-type."""
IMAGE_FILES = (".sqsh", ".sif")
_URI = re.compile(r"((docker|library|oras|shub|https?)://|(docker-archive|docker-daemon|oci|oci-archive):)\S+")
"""Source: apptainer-exec(1)."""
_PULLED = re.compile(r"(dockerd?://)?([^@#/]+@(?=[^@/]*#))?")
"""Source: pyxis, Usage: [USER@][REGISTRY#]IMAGE[:TAG]; enroot-import(1)."""
Runtime = Literal["none", "pyxis", "apptainer", "charliecloud", "docker"]
_PREFIX = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_PREFIX_FORM = "at most 64 letters, digits, '.', '_' and '-', beginning with a letter or a digit"
Prefix = Annotated[str, TextForm(pattern=_PREFIX, words=_PREFIX_FORM)]
StepWords = Annotated[Listed[Text], AfterValidator(refuse_undoing)]
Parameters = Annotated[dict[str, Text | int | bool | None], AfterValidator(refuse_unknown)]


class SlurmDocker(Model):
    """How docker starts a container."""

    docker_args: Listed[str] | None = default(None)
    """Words added to docker run on each node, such as --privileged, which is not given by default."""
    post_launch_commands: Listed[str] | None = default(None)
    """Shell commands inside the container, before training."""


class SlurmRelease(Model):
    """The short job, `<name>-release`, that lets a requeued job start at once instead of after two minutes."""

    enabled: bool = default(True)
    """false submits none, so that a requeued job waits for two minutes. An elastic job needs it."""
    partition: Text | None = default(None, is_required=False)
    """Its partition; the job's when null."""
    account: Text | None = default(None, is_required=False)
    """Its account; the job's when null."""
    qos: Text | None = default(None, is_required=False)
    """Its quality of service; the job's when null."""


class Settings(ClusterOptions):
    """Every key of cluster=slurm."""

    ssh: Login | None = default(None, is_required=False)
    """Login node to submit from when you launch on another machine: user@host, or a name in ~/.ssh/config. OpenSSH's
    client connects with your configuration and keys, without asking questions."""
    ssh_folder: Folder = default("recipes")
    """Folder there that receives bundles, in the file system that the nodes share; relative to your home folder."""
    code: Literal["folder", "snapshot"] | None = default(None, is_required=False)
    """Code that the job runs. folder: that of the folder that you launch from, or with ssh of ssh_folder. snapshot:
    a copy of the git work tree that you launch from, without ignored files; later edits do not change the job. null
    means folder, and with ssh snapshot. A revision that git.repo_url_or_path names replaces both."""
    partition: Text | None = default(None, is_required=False)
    """Partition, or several with commas; the cluster's default when null."""
    account: Text | None = default(None, is_required=False)
    """Account that is charged; your default when null."""
    qos: Text | None = default(None, is_required=False)
    """Quality of service; your default when null."""
    time: Time | None = default(None, is_required=False)
    """Time limit, in minutes or as days-hours:minutes:seconds; 0 for none, the partition's default when null."""
    exclusive: bool = default(True)
    """true allocates nodes exclusively; false lets other jobs share them: the job gets CPUs, memory and GPUs for its
    processes only."""
    cpus_per_task: Count16 | None = default(None, is_required=False)
    """CPUs for each process. null means one on shared nodes; the CPUs of exclusive nodes all belong to the job."""
    mem: Memory | None = default(None, is_required=False)
    """Memory per node in MiB, or with a unit such as 64GB; 0 takes all of it. null means all memory of exclusive
    nodes, and of shared ones the cluster's default; where that is all memory, the CPUs' share of it."""
    mem_per_cpu: PositiveMemory | None = default(None, is_required=False)
    """Memory per CPU, instead of mem."""
    mem_per_gpu: PositiveMemory | None = default(None, is_required=False)
    """Memory per requested GPU, instead of mem."""
    gpus_per_node: PositiveInt | None = default(None, is_required=False)
    """GPUs to request per node. null requests none of exclusive nodes, whose devices all belong to the job, and one
    for each process of shared nodes."""
    gpus_per_task: Count16 | None = default(None, is_required=False)
    """GPUs to request for each process, instead of gpus_per_node. Processes of a node see each other's."""
    gres: Gres | None = default(None, is_required=False)
    """Generic resources per node, such as gpu:h100:8, instead of gpus_per_node."""
    constraint: Text | None = default(None, is_required=False)
    """Features that nodes must have, such as an instance type."""
    nodelist: Nodes | None = default(None, is_required=False)
    """Nodes that the job must include, such as node[1-4]."""
    exclude: Nodes | None = default(None, is_required=False)
    """Nodes that the job must not use."""
    reservation: Text | None = default(None, is_required=False)
    """Reservation whose nodes the job uses."""
    dependency: Dependency | None = default(None, is_required=False)
    """Jobs to wait for, such as afterok:123. An id that Slurm no longer knows is refused."""
    array_parallelism: PositiveInt | None = default(None, is_required=False)
    """Jobs of a sweep (--multirun) that run at the same time; as many as fit when null."""
    mail_type: Listed[Mail] | None = default(None, is_required=False)
    """Events that Slurm sends mail about, such as [END, FAIL]."""
    mail_user: Text | None = default(None, is_required=False)
    """Recipient of that mail; you when null."""
    signal: Signal | None = default(None, is_required=False)
    """Signal to the processes before the time limit, such as USR1@60 for one minute."""
    limit_notice: Count16 | None = default(None, is_required=False)
    """Seconds before the time limit at which the processes of a job of fixed size get SIGTERM, to save and to end.
    Slurm may be a minute early. null lets the limit end them, with KillWait to save."""
    limit_requeues: Annotated[int, Field(ge=0, le=10_000)] = default(0)
    """How often the job returns to the queue after limit_notice, to resume with a new limit."""
    growth: Literal["in_place", "requeue"] | None = default(None, is_required=False)
    """How an elastic job gets more nodes: in_place while it runs, which needs accounting by slurmdbd and
    SchedulerParameters=permit_job_expansion, or by a requeue. null takes what the cluster allows."""
    requeue: bool = default(True)
    """true returns a job that was preempted, or that lost a node, to the queue; it resumes from its checkpoint."""
    release: SlurmRelease
    """The short job that ends a requeue's wait."""
    open_mode: Literal["append", "truncate"] = default("append")
    """Whether a requeued job appends to the log of its batch script."""
    comment: Text | None = default(None, is_required=False)
    """Comment on the job."""
    additional_parameters: Parameters | None = default(None, is_required=False)
    """Further options of sbatch by name, such as {nice: 100, contiguous: true}."""
    job_name_prefix: Prefix = default("sagemaker-")
    """Prefix of the job's name in Slurm's queue."""
    slurm_create_submission_file_only: bool = default(False)
    """true writes the batch script without submitting it, like dry_run=true."""
    stderr_to_stdout: bool = default(True)
    """true writes one log of the batch script's streams; false separates errors."""
    srun_args: StepWords | None = default(None)
    """Further options of srun, such as ['--label', '--cpu-bind=cores']. Those that the launcher sets are refused."""
    setup: Annotated[Listed[Command], Field(max_length=_MOST_SETUP)] | None = default(None, is_required=False)
    """Lines of shell script that the batch script runs first, such as [module load cuda, source env/bin/activate].
    They are commands, not data: they run as you, on the first node, and the processes inherit what they export. One
    that fails ends the job."""
    auto_resume: bool = default(False)
    """true lets HyperPod replace a faulty node and restart the srun step. Needs exclusive=true."""
    master_port: Annotated[int, Field(ge=1024, le=65535)] | None = default(None, is_required=False)
    """Port on the first node where the processes meet. null takes a free one that the job's folder determines."""
    mpi: Literal["mpirun", "pmix", "pmi2"] = default("mpirun")
    """What starts the ranks of a script that `recipes.distribution.mpi` enables: mpirun over the job's nodes, or srun
    with this plugin of your site (srun --mpi=list)."""
    python: Text | None = default(None, is_required=False)
    """Python of the nodes. null takes the one that launches; in a container, or with ssh, python3."""
    container_runtime: Runtime | None = default(None, is_required=False)
    """What runs the container: none, pyxis, apptainer, charliecloud or docker. null means none without a container,
    pyxis for a .sqsh file, else docker."""
    slurm_docker_cfg: SlurmDocker
    """How nodes that run containers with docker start them."""
    container_mounts: Listed[Mount] | None = default(None)
    """Paths of the node that are mounted at the same path in the container, such as data on a shared file system."""


def slurm_options(job: HasOptions) -> Settings:
    """Return the options of a checked recipe or a planned job on Slurm."""
    return options_of(job, Settings)


def runtime_of(given: Runtime | None, image: str | None) -> Runtime:
    """Return what runs the container of a job, given `cluster.container_runtime`; none without a container."""
    if given or not image:
        return given or "none"
    return "pyxis" if image.endswith(".sqsh") else "docker"


def lacking_form(runtime: Runtime, image: str) -> str | None:
    """Return which images a runtime takes if it does not take this one; None if it does."""
    is_path = isabs(image) and "\0" not in image
    if runtime == "docker":
        return None if is_image(image) else IMAGE_FORM
    if runtime == "apptainer":
        is_valid, allowed = (
            is_path or bool(_URI.fullmatch(image)),
            "an absolute path, or a URI such as docker://name:tag",
        )
    elif image.endswith(IMAGE_FILES):
        is_valid, allowed = is_path, "an absolute path"
    else:
        name = _PULLED.sub("", image).replace("#", "/", 1) if runtime == "pyxis" else image
        is_valid, allowed = is_path or is_image(name), f"an absolute path, or {IMAGE_FORM}"
    return None if is_valid else allowed


def notice_s(graceful_timeout_s: int | None) -> int:
    """Return how many seconds before its time limit an elastic job stops to save; None for the agent's default."""
    return (graceful_timeout_s or DEFAULT_GRACEFUL_TIMEOUT_S) + _LIMIT_MARGIN_S
