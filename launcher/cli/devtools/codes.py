"""Every code that users may see, with its reason and source: those of the rules, and those raised elsewhere.

A rule defines its own. The others are listed here, because errors in reading a file, a bundle or a server occur
throughout the code.
"""

from dataclasses import dataclass

from launcher.rules import NoticeRule, Rule, all_notice_rules, all_rules

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
_LOG = "docs/manifest.md, The image's log file"


@dataclass(frozen=True, slots=True)
class Code:
    """A stable code of Problems (E…) or notices (N…).

    Args:
        code: A letter and three digits.
        reason: Why it is a fault, or worth knowing.
        source: What says so: a document and its section, or where we decided.
        cluster: The only choice of `cluster` it is about; None for all.
    """

    code: str
    reason: str
    source: str
    cluster: str | None = None

    @property
    def subject(self) -> str:
        """What codes of its hundred are about."""
        return SUBJECTS[self.code[:2]]


SUBJECTS = {
    "E0": "Composition",
    "E1": "Types",
    "E2": "Sizes, batches and hardware",
    "E3": "Kubernetes and SageMaker",
    "E4": "This machine and its rehearsals",
    "E5": "Tracking",
    "E6": "Secrets",
    "E7": "Bundles, logs and files",
    "E8": "The recipes command",
    "E9": "Not there yet",
    "N1": "Notices",
}
"""Subject of each hundred of codes."""


def all_codes() -> tuple[Code, ...]:
    """Return every code, in order; a code that is raised by a rule and elsewhere too is the rule's."""
    found = {code.code: code for code in ELSEWHERE}
    rules: tuple[Rule | NoticeRule, ...] = (*all_rules(), *all_notice_rules())
    for rule in rules:
        found[rule.code] = Code(rule.code, rule.reason, rule.source, " or cluster=".join(rule.clusters))
    return tuple(found[code] for code in sorted(found))


ELSEWHERE = (
    Code("E001", "An override is key=value, +key=value, ++key=value or ~key; anything else has no meaning.", _HYDRA),
    Code("E002", "A sweep is several launches, and one launch is wanted unless --multirun says so.", _HYDRA),
    Code("E003", "What an override asks for cannot be done to the configuration there is.", _HYDRA),
    Code("E004", "A file of the configuration is unreadable: not UTF-8, not YAML, or no mapping of keys.", _YAML),
    Code("E005", "A recipe, a cluster or a file that defaults name does not exist, or leads to itself.", _DEFAULTS),
    Code("E006", "A key is marked ???: whoever uses the file must give its value.", _OMEGACONF),
    Code("E007", "A value refers to another one that is absent or faulty.", _OMEGACONF),
    Code("E008", "~key removes a key; one that is not there is most likely a typo.", _HYDRA),
    Code("E009", "Of Hydra's own settings a launch reads one, the search path; others would do nothing.", _HYDRA),
    Code(
        "E101",
        "A key that nothing reads would silently do nothing; declare it in extra_keys if your code reads it.",
        "docs/decisions.md, Composition: unknown keys are errors",
    ),
    Code(
        "E102", "A value has the wrong type or lies outside its range; a text is never a number or a boolean.", _TYPES
    ),
    Code("E103", "A key without a default has to be given.", _TYPES),
    Code("E104", "run.model_type chooses the keys a recipe has and the program that trains it.", "launcher/families"),
    Code("E218", "Every size is a configuration of its own, typed, checked and written.", _PLANNER),
    Code("E227", "A family without a batch has nothing to plan sizes from.", _PLANNER),
    Code(
        "E311",
        "A pod needs a start command, and not every family's image has one of its own.",
        "launcher/families",
        "k8s",
    ),
    Code(
        "E312",
        "A ConfigMap holds at most 1 MiB, and the configurations of all sizes are one.",
        "Kubernetes, ConfigMaps, Motivation",
        "k8s",
    ),
    Code("E325", "The API server's store takes at most 1.5 MiB of an object.", "etcd, System limits", "k8s"),
    Code("E340", "Talking to a cluster takes the official client, which is an extra.", "pyproject.toml", "k8s"),
    Code(
        "E341",
        "A cluster is reached by a context of the kubeconfig, over TLS that is verified.",
        "Kubernetes, Organizing Cluster Access Using kubeconfig Files",
        "k8s",
    ),
    Code("E342", "The cluster's API does not answer, or is in trouble, for longer than we wait.", _API, "k8s"),
    Code("E343", "The cluster does not know who asks.", "Kubernetes, Authenticating", "k8s"),
    Code("E344", "Who asks may not do what is needed, or could not undo it.", "Kubernetes, RBAC", "k8s"),
    Code("E345", "A job runs in a namespace that is there and stays.", "Kubernetes, Namespaces", "k8s"),
    Code(
        "E346",
        "A cluster keeps of a job what its operator knows: none, or an old one, drops the rest without a word.",
        "Kubernetes, Structural schemas: field pruning",
        "k8s",
    ),
    Code("E347", "A queue that is not there, or takes no jobs, would let a job wait for ever.", "Kueue", "k8s"),
    Code("E348", "A context may lead to another cluster than the one that a job was submitted to.", _JOBS, "k8s"),
    Code("E349", "Pods do not start without the objects that they refer to.", "Kubernetes, Pods", "k8s"),
    Code("E350", "What has the job's name already is another job's.", _BUNDLE, "k8s"),
    Code("E351", "The cluster's API refuses an object, in its own words.", _API, "k8s"),
    Code("E352", "A submission that failed half-way could not be taken back.", _BUNDLE, "k8s"),
    Code("E353", "A job that was removed has pods that do not end.", "Kubernetes, Pod termination", "k8s"),
    Code("E354", "A quota of the namespace has no room for what is made.", "Kubernetes, Resource Quotas", "k8s"),
    Code("E355", "An admission webhook or policy of the cluster refuses an object.", _API, "k8s"),
    Code("E356", "Kubernetes keeps both streams of a container in one log.", "Kubernetes, Logging", "k8s"),
    Code("E380", "Jobs have pods on a Kubernetes cluster only.", _COMMANDS),
    Code("E381", "A command in a pod, and a port forwarded to one, need a pod that runs.", _COMMANDS, "k8s"),
    Code("E382", "The node of a pod refuses the command or the connection, in its own words.", _COMMANDS, "k8s"),
    Code(
        "E383", "A port is forwarded from this machine's loopback address, where it must be free.", _COMMANDS, "k8s"
    ),
    Code("E384", "A port is a number from 1 to 65535.", _COMMANDS, "k8s"),
    Code("E385", "The training operator's log is that of pods in its own namespace.", _COMMANDS, "k8s"),
    Code("E386", "A job of a cluster is named by its namespace, its name and its kind.", _COMMANDS, "k8s"),
    Code("E360", "What a team gets is said as key=value.", _GOVERNANCE),
    Code("E361", "Names of a team's objects are names that Kubernetes, Kueue, IAM and EKS take.", _GOVERNANCE),
    Code("E362", "A setting of a team needs another one, or more than its nodes have.", _GOVERNANCE),
    Code("E363", "Cluster-scoped objects must be the same for every team: the last one applied wins.", _GOVERNANCE),
    Code("E364", "A job whose smallest size is more than its quota could never start.", _GOVERNANCE, "k8s"),
    Code(
        "E365",
        "A namespace or a queue refuses pods that do not say what it counts, or ask for what it does not know.",
        _GOVERNANCE,
        "k8s",
    ),
    Code("E366", "An image is built on one that stays what it is.", _CONTAINER),
    Code(
        "E367",
        "An image of your own has our entrypoint and your code in it; the launcher adds none.",
        _CONTAINER,
        "k8s",
    ),
    Code(
        "E322",
        "Commands before and after training are run by an image's start script; some images have none.",
        "docs/manifest.md",
        "k8s",
    ),
    Code("E392", "A training job is started with boto3, which is an extra of its own.", "pyproject.toml", "sm_jobs"),
    Code("E393", "A training job runs in one region, which has no default.", _TRAINING_JOBS, "sm_jobs"),
    Code("E394", "AWS has to know who asks for a job.", _TRAINING_JOBS, "sm_jobs"),
    Code("E395", "AWS does not allow a user what a command needs.", _TRAINING_JOBS, "sm_jobs"),
    Code("E396", "AWS does not answer, is in trouble, or asks for patience.", _TRAINING_JOBS, "sm_jobs"),
    Code("E397", "AWS refuses what is asked of it, for a reason of its own.", _TRAINING_JOBS, "sm_jobs"),
    Code(
        "E398", "CloudWatch keeps one stream a host, which has its output and its errors.", _TRAINING_JOBS, "sm_jobs"
    ),
    Code(
        "E399",
        "A member of the request is not as the API takes it.",
        "Amazon SageMaker API, CreateTrainingJob",
        "sm_jobs",
    ),
    Code(
        "E401",
        "A local job runs the real agent, which needs torch and its own package here.",
        "pyproject.toml",
        "local",
    ),
    Code(
        "E402", "Only Linux can end all processes of a job with the one that started it.", "Linux, prctl(2)", "local"
    ),
    Code(
        "E403",
        "The agent's rendezvous settings are separated by commas, so no path in them can hold one.",
        "torch.distributed.run, --rdzv-conf",
        "local",
    ),
    Code(
        "E404", "The program that trains this family is not installed on this machine.", "launcher/families", "local"
    ),
    Code("E405", "Two launches of one bundle would write the same files.", _BUNDLE, "local"),
    Code("E406", "A scenario is a name of recipes_collection/scenarios, or an existing YAML file.", _LOCAL, "local"),
    Code("E407", "A scenario's file is unreadable or no YAML.", _LOCAL, "local"),
    Code("E408", "Another job arrives before it leaves, and leaves before it arrives again.", _LOCAL, "local"),
    Code("E409", "Who preempts whom follows from priorities, so a class needs a known one.", _LOCAL, "local"),
    Code("E410", "A cluster that never has the job's smallest size could not even start it.", _LOCAL, "local"),
    Code("E411", "The base part stays because it outranks the elastic one.", _LOCAL, "local"),
    Code("E412", "Only a job that runs can be scaled.", _LOCAL),
    Code("E413", "A job takes only the sizes it was planned for.", _PRECEDENCE),
    Code(
        "E414",
        "The operator's record of a job is damaged, so that its state is unknown; the job may have run.",
        _LOCAL,
        "local",
    ),
    Code(
        "E415", "A job that was ended as hard as the system can is still there; its processes hang.", _LOCAL, "local"
    ),
    Code(
        "E416",
        "Only a job that a server takes can be tried there; this machine checks at every launch.",
        _JOBS,
        "local",
    ),
    Code(
        "E417",
        "The line that ends the watch for hangs is found by a regular expression.",
        "Python, re",
        "local",
    ),
    Code("E418", "A job without its folder can neither save nor report, so it is ended.", _LOCAL, "local"),
    Code("E420", "A job whose data or results are not where it is told cannot begin, or go on.", _CONTRACT, "local"),
    Code("E421", "A store that cannot be read or written gives no data and takes no results.", _CONTRACT, "local"),
    Code(
        "E422",
        "Keys of S3 are any text; as files, no two may have one path, nor leave their folder.",
        _CONTRACT,
        "local",
    ),
    Code(
        "E423",
        "A manifest lists objects in one of two forms; one that is damaged would leave data out.",
        "Amazon SageMaker API: S3DataSource; Augmented Manifest Files for Training Jobs",
        "local",
    ),
    Code("E424", "A file system is mounted by AWS; here you say which folder stands for it.", _CONTRACT, "local"),
    Code("E425", "A stream that breaks off would look like an epoch's end, so the job ends.", _CONTRACT, "local"),
    Code("E430", "Here no image runs: what starts the program has to be installed.", _CONTRACT, "local"),
    Code("E431", "A host here has only /opt/ml for itself; other folders are this machine's.", _CONTRACT, "local"),
    Code("E432", "The process that plays SageMaker could not begin, so that no job did.", _CONTRACT, "local"),
    Code("E501", "The tracking server does not answer; a job would lose its curves.", _MLFLOW),
    Code("E502", "The tracking store refuses what is asked of it.", _MLFLOW),
    Code(
        "E503",
        "An ARN is resolved by a plugin of MLflow, which is not installed.",
        "SageMaker AI, Integrate MLflow: sagemaker-mlflow",
    ),
    Code("E504", "A pod cannot write to a file on the launching machine.", "docs/decisions.md, Tracking"),
    Code(
        "E505", "run_id continues a run that exists; with an unknown one the curves would start elsewhere.", _MLFLOW
    ),
    Code("E506", "A job has ended and its last metrics did not reach the store.", _MLFLOW),
    Code("E507", "MLflow has stores of other kinds, which jobs cannot log to.", _MLFLOW),
    Code(
        "E601",
        "A secret is named, never written: its value would end up in files and logs.",
        "docs/decisions.md, Secrets are references",
    ),
    Code("E701", "A bundle is a record of what was launched and is never overwritten.", _BUNDLE),
    Code("E702", "A bundle is written whole or not at all, and its folder refuses.", _BUNDLE),
    Code("E703", "What is named is not the folder of a bundle.", _BUNDLE),
    Code("E704", "A bundle that was changed after its review is not what was reviewed.", _BUNDLE),
    Code("E705", "What is asked for is of a launch, and there was none.", _JOBS),
    Code("E706", "Each start of the workers is an attempt; there was no such one.", _LOCAL),
    Code("E707", "Ranks are counted from 0 to the processes of the largest attempt.", _LOCAL),
    Code("E708", "The timeline is written beside the job's other records, and that folder refuses.", _LOCAL),
    Code("E709", "A plan's picture needs a known format, matplotlib, and a folder that can be written to.", _PLANNER),
    Code("E710", "A job that is not recorded in its bundle could not be found again.", _JOBS),
    Code("E711", "The record of a job is damaged, so that nobody can tell where it runs.", _JOBS),
    Code("E712", "The job was waited for as long as was asked, and has not ended.", _JOBS),
    Code("E713", "An adopted job has a record, and no bundle that could be launched, checked or compared.", _JOBS),
    Code(
        "E610",
        "No file of a bundle may hold the value of a secret, wherever it came from.",
        "docs/decisions.md, Secrets are references",
    ),
    Code("E714", "A job is adopted into a folder of its own; nothing is overwritten.", _JOBS),
    Code("E715", "A job that has succeeded is not started again by accident.", _JOBS),
    Code("E716", "SageMaker keeps every training job, so a name is used once.", _TRAINING_JOBS),
    Code("E717", "A job has at most one name, of which a results folder has no second.", _JOBS),
    Code("E718", "Only bundles of the results folder whose jobs have ended are removed.", _JOBS),
    Code(
        "E719",
        "The operating system refuses: a full disk, a limit on files or processes, a device that fails.",
        "errno(3)",
    ),
    Code("E801", "A command lacks an argument that it cannot do without, or has one too many.", _COMMANDS),
    Code("E802", "A name on the command line is no recipe's, or that of several.", _COMMANDS),
    Code("E803", "NAME@N asks for a size that the recipe or the bundle does not have.", _COMMANDS),
    Code(
        "E804",
        "A generated file that the code would write otherwise is out of date or was edited by hand.",
        _COMMANDS,
    ),
    Code("E806", "A price table is YAML: an instance type and the price of its hour.", _TRAINING_JOBS),
    Code(
        "E807",
        "The size of a checkpoint follows from the model's parameters, which only a known or given model has.",
        _CHECKPOINTING,
    ),
    Code(
        "E808",
        "A sample, a chat template or a tokenizer that cannot be used is named before a job is launched.",
        "docs/data.md",
    ),
    Code("E818", "Jobs are filtered by conditions that some job can meet.", _JOBS),
    Code("E805", "What a command writes belongs in a checkout, or where you say, and that place refuses.", _COMMANDS),
    Code(
        "N114", "Sizes written for more devices a node do not add up on this instance, and auto plans them.", _PLANNER
    ),
    Code("N150", "A part of a cluster that you may not read is left out.", "Kubernetes, RBAC", "k8s"),
    Code("N151", "Clusters before Kubernetes 1.30 pass on a command's input, and not its end.", _COMMANDS, "k8s"),
    Code("N120", "A quota counts less memory a node than it has, as AWS's own example does.", _GOVERNANCE),
    Code("N121", "Pods of a team without an IAM role have no access to AWS of their own.", _GOVERNANCE),
    Code("N122", "A namespace that enforces no Pod Security profile only warns and audits.", _GOVERNANCE),
    Code(
        "N145", "A namespace of nodes with EFA relies on an admission policy, which older clusters lack.", _GOVERNANCE
    ),
    Code("N123", "An elastic job asks for more nodes than its quota will ever hold.", _GOVERNANCE, "k8s"),
    Code("N129", "Without a queue and a quota, an elastic job takes every node it may have.", _GOVERNANCE, "k8s"),
)
