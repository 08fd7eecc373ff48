"""Every code that users may see, with its reason and source: those of the rules, and those raised elsewhere.

A rule defines its own. The others are listed here, because errors in reading a file, a bundle or a server occur
throughout the code.
"""

from dataclasses import dataclass

from launcher.rules import all_notice_rules, all_rules

_HYDRA = "Hydra, Override grammar"
_DEFAULTS = "Hydra, The Defaults List"
_YAML = "YAML 1.2"
_OMEGACONF = "OmegaConf, Variable interpolation and Mandatory missing values"
_TYPES = "launcher/model/recipe.py, launcher/families and the settings of each cluster"
_API = "Kubernetes API conventions, HTTP status codes"
_LOCAL = "docs/rehearsal.md"
_MLFLOW = "MLflow, Tracking server and backend stores"
_BUNDLE = "docs/concepts.md, Bundle"
_PRECEDENCE = "docs/concepts.md, Sizes and precedence"
_PLANNER = "docs/decisions.md, The planner"
_CHECKPOINTING = "docs/checkpointing.md"
_COMMANDS = "docs/reference/commands.md"
_GOVERNANCE = "docs/governance.md"
_CONTAINER = "docs/container.md"
_SCRIPT = "docs/decisions.md, A script of your own"
_JOBS = "docs/decisions.md, Jobs and their records"
_TRAINING_JOBS = "docs/decisions.md, Training jobs of SageMaker"
_CONTRACT = "docs/sagemaker.md"
_SLURM = "docs/slurm.md"
_LOG = "docs/manifest.md, The image's log file"


@dataclass(frozen=True, slots=True)
class Code:
    """A stable code of Problems (E…) or notices (N…).

    Args:
        code: A letter and three digits.
        reason: Why it is an error, or worth knowing.
        source: The document and its section that it is based on, or our decision.
        cluster: The only choice of `cluster` it applies to; None for all.
    """

    code: str
    reason: str
    source: str
    cluster: str | None = None

    @property
    def subject(self) -> str:
        """The subject of the codes of its hundred."""
        return SUBJECTS[self.code[:2]]


SUBJECTS = {
    "E0": "Composition",
    "E1": "Types",
    "E2": "Sizes, batches and hardware",
    "E3": "Kubernetes and SageMaker",
    "E4": "This machine, its rehearsals, and Slurm",
    "E5": "Tracking",
    "E6": "Secrets",
    "E7": "Bundles, logs and files",
    "E8": "The recipes command",
    "E9": "Not supported yet",
    "N1": "Notices",
}
"""Subject of each hundred of codes."""


def all_codes() -> tuple[Code, ...]:
    """Return every code, in order; a code that a rule raises, and other code too, is listed as the rule's."""
    found = {code.code: code for code in ELSEWHERE}
    for rule in (*all_rules(), *all_notice_rules()):
        found[rule.code] = Code(rule.code, rule.reason, rule.source, " or cluster=".join(rule.clusters))
    return tuple(found[code] for code in sorted(found))


ELSEWHERE = (
    Code("E001", "An override is key=value, +key=value, ++key=value or ~key; anything else is invalid.", _HYDRA),
    Code("E002", "A sweep is several launches, and only --multirun starts more than one.", _HYDRA),
    Code("E003", "An override cannot be applied to the configuration.", _HYDRA),
    Code("E004", "A file of the configuration is unreadable: not UTF-8, not YAML, or not a mapping of keys.", _YAML),
    Code("E005", "A recipe, a cluster or a file in a defaults list does not exist, or includes itself.", _DEFAULTS),
    Code("E006", "A key is marked ???: the user of the file must set its value.", _OMEGACONF),
    Code("E007", "A value refers to another one that is absent or faulty.", _OMEGACONF),
    Code("E008", "~key removes a key; a key that does not exist is most likely a typo.", _HYDRA),
    Code("E009", "A launch reads only Hydra's search path; other settings of Hydra would have no effect.", _HYDRA),
    Code(
        "E101",
        "A key that nothing reads would silently have no effect; declare it in extra_keys if your code reads it.",
        "docs/decisions.md, Composition: unknown keys are errors",
    ),
    Code(
        "E102",
        "A value has the wrong type or is out of range; a text is never read as a number or a boolean.",
        _TYPES,
    ),
    Code("E103", "A key without a default must be set.", _TYPES),
    Code(
        "E104", "run.model_type determines the keys of a recipe and the program that trains it.", "launcher/families"
    ),
    Code("E116", "A model or data that is absent ends a job minutes after it was started.", "docs/open-trainer.md"),
    Code(
        "E277", "A fault of the samples or of their chat template ends a job before its first step.", "docs/data.md"
    ),
    Code("E218", "Every size is a separate configuration, validated, checked and written.", _PLANNER),
    Code("E227", "Sizes cannot be planned for a family without a batch.", _PLANNER),
    Code(
        "E311", "A pod needs a start command, and not every family's image has its own.", "launcher/families", "k8s"
    ),
    Code(
        "E312",
        "A ConfigMap holds at most 1 MiB, and one ConfigMap holds the configurations of all sizes.",
        "Kubernetes, ConfigMaps, Motivation",
        "k8s",
    ),
    Code("E325", "The API server's store takes at most 1.5 MiB of an object.", "etcd, System limits", "k8s"),
    Code("E340", "Access to a cluster requires the official client, which is an extra.", "pyproject.toml", "k8s"),
    Code(
        "E341",
        "A cluster is reached by a context of the kubeconfig, over verified TLS.",
        "Kubernetes, Organizing Cluster Access Using kubeconfig Files",
        "k8s",
    ),
    Code("E342", "The cluster's API does not answer, or returns errors, beyond the time limit.", _API, "k8s"),
    Code("E343", "The cluster does not accept the credentials.", "Kubernetes, Authenticating", "k8s"),
    Code("E344", "The user lacks permissions that the command, or undoing it, requires.", "Kubernetes, RBAC", "k8s"),
    Code("E345", "A job runs in a namespace that exists and is not being deleted.", "Kubernetes, Namespaces", "k8s"),
    Code(
        "E346",
        "A cluster keeps only fields that its operator defines: an old or missing one silently drops the rest.",
        "Kubernetes, Structural schemas: field pruning",
        "k8s",
    ),
    Code("E347", "A job in a queue that does not exist, or is stopped, would wait for ever.", "Kueue", "k8s"),
    Code("E348", "A context may point to another cluster than the one that a job was submitted to.", _JOBS, "k8s"),
    Code("E349", "Pods do not start without the objects that they refer to.", "Kubernetes, Pods", "k8s"),
    Code("E350", "The existing object with the job's name belongs to another job.", _BUNDLE, "k8s"),
    Code("E351", "The cluster's API refuses an object; its message follows.", _API, "k8s"),
    Code("E352", "A submission that failed half-way could not be rolled back, or was not answered.", _BUNDLE),
    Code("E353", "A deleted job has pods that do not terminate.", "Kubernetes, Pod termination", "k8s"),
    Code(
        "E354", "A quota of the namespace is too small for the created objects.", "Kubernetes, Resource Quotas", "k8s"
    ),
    Code("E355", "An admission webhook or policy of the cluster refuses an object.", _API, "k8s"),
    Code("E356", "Kubernetes keeps both streams of a container in one log.", "Kubernetes, Logging", "k8s"),
    Code("E380", "Jobs have pods on a Kubernetes cluster only.", _COMMANDS),
    Code("E381", "A command in a pod, and a port forwarded to one, need a running pod.", _COMMANDS, "k8s"),
    Code("E382", "The node of a pod refuses the command or the connection; its message follows.", _COMMANDS, "k8s"),
    Code(
        "E383", "A port is forwarded from this machine's loopback address, where it must be free.", _COMMANDS, "k8s"
    ),
    Code("E384", "A port is a number from 1 to 65535.", _COMMANDS, "k8s"),
    Code("E385", "The training operator's log comes from pods in its own namespace.", _COMMANDS, "k8s"),
    Code("E386", "A job of a cluster is identified by its namespace, its name and its kind.", _COMMANDS, "k8s"),
    Code("E360", "Team settings are given as key=value.", _GOVERNANCE),
    Code("E361", "Names of a team's objects must be valid for Kubernetes, Kueue, IAM and EKS.", _GOVERNANCE),
    Code("E362", "A setting of a team requires another one, or exceeds the capacity of its nodes.", _GOVERNANCE),
    Code("E363", "Cluster-scoped objects must be the same for every team: the last one applied wins.", _GOVERNANCE),
    Code("E364", "A job whose smallest size exceeds its quota could never start.", _GOVERNANCE, "k8s"),
    Code(
        "E365",
        "A namespace or a queue refuses pods that omit a resource it counts, or request one it does not cover.",
        _GOVERNANCE,
        "k8s",
    ),
    Code("E366", "An image is built from a base image that does not change.", _CONTAINER),
    Code(
        "E367",
        "Your own image must contain the launcher's entrypoint and your code; the launcher does not add them.",
        _CONTAINER,
        "k8s",
    ),
    Code(
        "E322",
        "Commands before and after training are run by an image's start script; some images have none.",
        "docs/manifest.md",
        "k8s",
    ),
    Code("E392", "A training job is started with boto3, which is an extra.", "pyproject.toml", "sm_jobs"),
    Code("E393", "A training job runs in one region, which has no default.", _TRAINING_JOBS, "sm_jobs"),
    Code("E394", "AWS requires credentials to start a job.", _TRAINING_JOBS, "sm_jobs"),
    Code("E395", "AWS does not grant the user the permissions that a command requires.", _TRAINING_JOBS, "sm_jobs"),
    Code("E396", "AWS does not answer, returns errors, or throttles requests.", _TRAINING_JOBS, "sm_jobs"),
    Code("E397", "AWS refuses the request; its message follows.", _TRAINING_JOBS, "sm_jobs"),
    Code("E398", "CloudWatch keeps one stream per host, for both output and errors.", _TRAINING_JOBS, "sm_jobs"),
    Code(
        "E399",
        "A member of the request violates the API's constraints.",
        "Amazon SageMaker API, CreateTrainingJob",
        "sm_jobs",
    ),
    Code(
        "E401",
        "A local job runs the real agent, which needs torch and the agent's package on this machine.",
        "pyproject.toml",
        "local",
    ),
    Code(
        "E402",
        "Only Linux can terminate all processes of a job with the one that started it.",
        "Linux, prctl(2)",
        "local",
    ),
    Code(
        "E403",
        "The agent's rendezvous settings are separated by commas, so no path in them can contain a comma.",
        "torch.distributed.run, --rdzv-conf",
        "local",
    ),
    Code(
        "E404", "The program that trains this family is not installed on this machine.", "launcher/families", "local"
    ),
    Code("E405", "Two launches of one bundle would write the same files.", _BUNDLE, "local"),
    Code("E406", "A scenario is a name of recipes_collection/scenarios, or an existing YAML file.", _LOCAL, "local"),
    Code("E407", "A scenario's file is unreadable or no YAML.", _LOCAL, "local"),
    Code("E408", "Another job must arrive before it leaves, and leave before it arrives again.", _LOCAL, "local"),
    Code("E409", "Preemption follows from priorities, so the priority of a class must be known.", _LOCAL, "local"),
    Code(
        "E410",
        "A cluster that is never as large as the job's smallest size could not even start it.",
        _LOCAL,
        "local",
    ),
    Code("E411", "The base part is kept because its priority is higher than the elastic part's.", _LOCAL, "local"),
    Code("E412", "Only a running job can be scaled.", _LOCAL),
    Code("E413", "A job can only run at the sizes it was planned for.", _PRECEDENCE),
    Code(
        "E414",
        "The operator's record of a job is damaged, so its state is unknown; the job may have run.",
        _LOCAL,
        "local",
    ),
    Code("E415", "A job still has processes after SIGKILL; they hang in the kernel.", _LOCAL, "local"),
    Code(
        "E416",
        "Only a job for a server can be validated there; on this machine every launch runs all checks.",
        _JOBS,
        "local",
    ),
    Code(
        "E417", "The line that stops the detection of hangs is found by a regular expression.", "Python, re", "local"
    ),
    Code("E418", "A job without its folder can neither save nor report, so it is terminated.", _LOCAL, "local"),
    Code(
        "E420",
        "A job cannot start or continue if its data or results are not where its recipe names them.",
        _CONTRACT,
        "local",
    ),
    Code(
        "E421",
        "A store that cannot be read or written can neither provide data nor keep results.",
        _CONTRACT,
        "local",
    ),
    Code(
        "E422",
        "Keys of S3 can be any text; as files, their paths must be unique and stay inside their folder.",
        _CONTRACT,
        "local",
    ),
    Code(
        "E423",
        "A manifest lists objects in one of two forms; a damaged one would omit data.",
        "Amazon SageMaker API: S3DataSource; Augmented Manifest Files for Training Jobs",
        "local",
    ),
    Code(
        "E424", "AWS mounts a file system; on this machine you name the folder that replaces it.", _CONTRACT, "local"
    ),
    Code(
        "E425",
        "A truncated stream is indistinguishable from the end of an epoch, so the job fails.",
        _CONTRACT,
        "local",
    ),
    Code(
        "E430",
        "On this machine no image runs: the program that starts training must be installed.",
        _CONTRACT,
        "local",
    ),
    Code("E431", "A simulated host has only its own /opt/ml; other folders are this machine's.", _CONTRACT, "local"),
    Code(
        "E432",
        "The process that simulates SageMaker could not start, so the job did not start either.",
        _CONTRACT,
        "local",
    ),
    Code("E444", "Slurm replaces patterns in the path of a log, which is in the bundle.", "sbatch(1)", "slurm"),
    Code("E445", "sbatch refuses the job, with its reason.", "sbatch(1), --test-only", "slurm"),
    Code("E446", "Slurm accepts some jobs that can never start.", _SLURM, "slurm"),
    Code("E447", "A job is submitted and followed by Slurm's own commands.", _SLURM, "slurm"),
    Code("E448", "A job gets its secrets from the environment of the launch.", _SLURM, "slurm"),
    Code("E449", "A cancelled job has not ended; Slurm kills it after KillWait.", "slurm.conf(5)", "slurm"),
    Code("E451", "A job waits only for jobs that were launched and that their cluster knows.", _SLURM),
    Code("E452", "A cluster knows only the jobs of its own queue.", _SLURM),
    Code("E453", "A job whose predecessor has ended otherwise than required would wait for ever.", _SLURM),
    Code(
        "E454", "Slurm does not combine alternatives with further dependencies.", "sbatch(1), --dependency", "slurm"
    ),
    Code("E455", "A job is submitted on a login node, which ssh reaches from another machine.", "ssh(1)", "slurm"),
    Code("E456", "A login by ssh asks no question: key and host are known before.", "ssh_config(5)", "slurm"),
    Code("E457", "A bundle is copied to a folder that the cluster's nodes share.", _SLURM, "slurm"),
    Code("E458", "A snapshot has the files of a git work tree.", _SLURM, "slurm"),
    Code("E459", "Code is copied for each job; data has another place.", _SLURM, "slurm"),
    Code("E460", "git reads the code that a job runs, with its reason if it cannot.", "git(1)", "slurm"),
    Code("E472", "The operator of an elastic job runs with a Python of the cluster.", _SLURM, "slurm"),
    Code("E501", "The tracking server does not answer; a job would lose its metrics.", _MLFLOW),
    Code("E502", "The tracking store refuses a request.", _MLFLOW),
    Code(
        "E503",
        "An ARN is resolved by a plugin of MLflow, which is not installed.",
        "SageMaker AI, Integrate MLflow: sagemaker-mlflow",
    ),
    Code("E504", "A pod cannot write to a file on the launching machine.", "docs/decisions.md, Tracking"),
    Code(
        "E505",
        "run_id continues an existing run; with an unknown one the metrics would start in another run.",
        _MLFLOW,
    ),
    Code("E506", "A job has ended and its last metrics did not reach the store.", _MLFLOW),
    Code("E507", "MLflow has other kinds of stores, which jobs cannot log to.", _MLFLOW),
    Code("E508", "A launch was cut short, and its last request may still create the job.", _BUNDLE),
    Code(
        "E601",
        "A secret is named, never written: its value would end up in files and logs.",
        "docs/decisions.md, Secrets are references",
    ),
    Code("E701", "A bundle is a record of what was launched and is never overwritten.", _BUNDLE),
    Code("E702", "A bundle is written atomically, and its folder refuses writing.", _BUNDLE),
    Code("E703", "The named folder is not a bundle directory.", _BUNDLE),
    Code("E704", "A bundle that was changed after its review is no longer what was reviewed.", _BUNDLE),
    Code("E705", "The command needs a launched job, and this bundle was never launched.", _JOBS),
    Code("E706", "Each start of the workers is an attempt; no such attempt exists.", _LOCAL),
    Code("E707", "Ranks are numbered from 0, up to the number of processes of the largest attempt.", _LOCAL),
    Code("E708", "The timeline is written beside the job's other records, and that folder refuses writing.", _LOCAL),
    Code("E709", "A plan's picture needs a supported format, matplotlib, and a writable folder.", _PLANNER),
    Code("E710", "A job that is not recorded in its bundle could not be found again.", _JOBS),
    Code("E711", "The record of a job is damaged, so it is unknown where it runs.", _JOBS),
    Code("E712", "The job has not ended within the requested time.", _JOBS),
    Code("E713", "An adopted job has a record, but no bundle that could be launched, checked or compared.", _JOBS),
    Code(
        "E610",
        "No file of a bundle may contain the value of a secret, wherever it came from.",
        "docs/decisions.md, Secrets are references",
    ),
    Code("E714", "A job is adopted into a new folder; nothing is overwritten.", _JOBS),
    Code("E715", "A job that has succeeded is not restarted by accident.", _JOBS),
    Code("E716", "SageMaker keeps every training job, so a name can be used only once.", _TRAINING_JOBS),
    Code("E717", "A job has at most one name, which is unique in a results folder.", _JOBS),
    Code("E718", "Only bundles of the results folder whose jobs have ended are removed.", _JOBS),
    Code(
        "E719",
        "The operating system reports an error: a full disk, a limit on files or processes, a failed device.",
        "errno(3)",
    ),
    Code("E801", "A command lacks a required argument, or has one too many.", _COMMANDS),
    Code("E802", "A name on the command line matches no recipe, or several.", _COMMANDS),
    Code("E803", "NAME@N names a size that the recipe or the bundle does not have.", _COMMANDS),
    Code(
        "E804",
        "A generated file that differs from the code's output is out of date or was edited manually.",
        _COMMANDS,
    ),
    Code("E806", "A price table is YAML: instance types and their hourly prices.", _TRAINING_JOBS),
    Code(
        "E807",
        "The size of a checkpoint follows from the model's parameters, so the model must be known or given.",
        _CHECKPOINTING,
    ),
    Code(
        "E808",
        "A sample, a chat template or a tokenizer that cannot be used is named before a job is launched.",
        "docs/data.md",
    ),
    Code("E818", "Jobs are filtered by conditions that jobs can meet.", _JOBS),
    Code("E805", "A command's output belongs in a checkout or the given folder, which refuses writing.", _COMMANDS),
    Code(
        "N114",
        "Sizes written for more devices per node do not add up on this instance, so auto plans them.",
        _PLANNER,
    ),
    Code("N150", "Parts of a cluster that you may not read are left out.", "Kubernetes, RBAC", "k8s"),
    Code("N151", "Clusters before Kubernetes 1.30 forward a command's input, but not its end.", _COMMANDS, "k8s"),
    Code("N120", "A quota counts less memory per node than it has, as AWS's own example does.", _GOVERNANCE),
    Code("N121", "Pods of a team without an IAM role do not have their own access to AWS.", _GOVERNANCE),
    Code("N122", "A namespace that enforces no Pod Security profile only warns and audits.", _GOVERNANCE),
    Code(
        "N145", "A namespace of nodes with EFA relies on an admission policy, which older clusters lack.", _GOVERNANCE
    ),
    Code("N176", "Tasks of an array have the same options.", "sbatch(1), --array", "slurm"),
    Code("N196", "A copy of the code holds files, folders and links only.", _SLURM, "slurm"),
    Code("N123", "An elastic job's largest size exceeds its quota.", _GOVERNANCE, "k8s"),
    Code("N129", "Without a queue and a quota, an elastic job takes every node it can get.", _GOVERNANCE, "k8s"),
)
