"""What to do about a failure of Slurm's commands or of ssh, by the text of its message. Pure."""

LOST = (
    *("Connection timed out", "Socket timed out", "Zero Bytes were", "Connection reset", "Message send failure"),
    *("Message receive failure", "(send failure)", "(receive failure)", "(shutdown failure)"),
)
"""Parts of Slurm's messages about a controller that was contacted and did not answer. Source: slurm_errno.c."""
UNREACHABLE = (
    *("Unable to contact slurm controller", "Connection refused", *LOST),
    *("controller in standby mode", "Controller is in standby mode", "No route to host"),
)
"""Parts of Slurm's messages about a controller that does not answer. Source: Slurm 22.05, slurm_errno.c."""
WAIT = "try again when the controller answers: scontrol ping"
_RIGHTS = "use a partition, an account and jobs of your own, or ask your administrator for the right"
_CONFIG = "let SLURM_CONF name the configuration of the cluster, or use one of its login nodes"
_KEYS = "compare munge and the clock of this machine with the controller's: munge -n | unmunge"
_LIMIT = "wait for your other jobs, request less, or choose another cluster.account or cluster.qos"
_PARTITION = "cluster.partition=<one that is up>: sinfo --summarize"
_REMEDIES = (
    (UNREACHABLE, WAIT),
    (("ermission denied", "not permitted", "Access denied"), _RIGHTS),
    (("Invalid user id", "Invalid group id", "User not found"), "ask your administrator to make you known to Slurm"),
    (("System submissions disabled", "Requested operation is presently disabled"), "ask your administrator why"),
    (("authentication", "Munge", "credential"), _KEYS),
    (("Incompatible versions", "Protocol version"), "use commands of the cluster's version: sinfo --version"),
    (("configuration source", "configuration file", "s_p_parse_file", "Parsing error"), _CONFIG),
    (("Unable to resolve", "Can't find an address"), _CONFIG),
    (("storage is disabled", "accounting_storage plugin"), "it needs accounting, which this cluster does not have"),
    (("Unable to connect to database", "slurmdbd"), "try again when accounting answers: sacctmgr ping"),
    (("temporarily unable to accept", "Resource temporarily", "try again"), "try again later"),
    (("Invalid job id",), "the job has ended, or is of another cluster"),
    (("already completing or completed", "has already finished"), "nothing: the job has ended"),
    (("violates accounting/QOS policy", "Limit"), _LIMIT),
    (("Invalid account",), "cluster.account=<one of yours>: sacctmgr show associations user=$USER"),
    (("Invalid qos",), "cluster.qos=<one of yours>: sacctmgr show associations user=$USER format=account,qos"),
    (("artition specified", "No partition", "partition not available", "Partition in DOWN"), _PARTITION),
    (("Memory", "memory"), "request less memory: cluster.mem, cluster.mem_per_cpu; sinfo --format='%n %m' lists it"),
    (("generic resource", "gres", "GRES"), "sinfo --format='%n %G' lists what nodes have"),
    (("CPU count", "processors", "more tasks"), "lower cluster.cpus_per_task; sinfo --format='%n %c' lists CPUs"),
    (("Node count specification", "node configuration"), "sinfo --format='%D %c %m %G' lists what nodes have"),
    (("Invalid node name", "Requested nodes not in"), "sinfo --Node lists nodes and their partitions"),
    (("feature",), "sinfo --format='%n %f' lists features of nodes"),
    (("reservation",), "scontrol show reservation lists them"),
    (("time limit", "Time limit"), "sinfo --format='%P %l' lists the time limits of partitions"),
    (("No space left", "Disk quota"), "make room in the file system that the message names"),
    (("too long",), "choose a shorter base_results_dir"),
    (("Unrecognized option", "unrecognized option", "invalid option"), "remove it: this Slurm does not know it"),
)
"""Parts of a message, and its remedy; the first that fits counts. Source: Slurm 22.05, slurm_errno.c."""


def remedy_of(message: str) -> str | None:
    """Return what to do about a message of one of Slurm's commands; None if the message is not known."""
    return next((remedy for parts, remedy in _REMEDIES if any(part in message for part in parts)), None)
