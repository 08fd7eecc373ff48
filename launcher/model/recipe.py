"""The typed configuration. Hydra composes untyped YAML; these models validate it, once.

Models are strict (a string is never a boolean or a number), frozen, and reject unknown keys. Defaults are in
`recipes_collection/`, not here; a field has a default of None only if a recipe may omit the key.
"""

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from launcher.common.suggestions import as_argument
from launcher.common.syntax import VARIABLE_NAME, is_dns_subdomain, is_secret_key
from launcher.model.base_model import (
    BatchSize,
    DeviceCount,
    Listed,
    Model,
    ModuleName,
    NodeCount,
    NonNegative32,
    PositiveInt,
    ScriptPath,
    TextForm,
    server_url,
)
from launcher.model.checkpointing import Checkpointing, Content
from launcher.model.composition import ValueSources
from launcher.model.config_tree import lookup
from launcher.model.recipe_keys import Batch, Lora, RecipeKeys, UnevenBatch

KEY_PATH = r"^[^.*]+(\.[^.*]+)*$"
KeyPath = Annotated[str, TextForm(pattern=KEY_PATH, words="the dotted path of a key")]


def _secret_name(name: str) -> str:
    if not is_dns_subdomain(name):
        raise ValueError("should be a DNS name: lower-case letters, digits, - and .")
    return name


def _secret_key(key: str) -> str:
    if not is_secret_key(key):
        raise ValueError("should be a key of a Secret: letters, digits, -, _ and ., not beginning with two dots")
    return key


class SecretKeyRef(Model):
    """A key of a Kubernetes Secret in the job's namespace."""

    name: Annotated[str, AfterValidator(_secret_name)]
    """Name of the Secret object, in the job's own namespace."""
    key: Annotated[str, AfterValidator(_secret_key)]
    """Entry of that Secret that holds the value."""


_VARIABLE = f"^{VARIABLE_NAME}$"
_VARIABLE_FORM = "a variable's name: letters, digits and _, not starting with a digit"


class SecretRef(Model):
    """Reference to a secret, resolved at run time. Set exactly one of the two, never the value itself."""

    secretKeyRef: SecretKeyRef | None = None
    """A Kubernetes Secret that the pod reads; for cluster=k8s."""
    env: Annotated[str, TextForm(pattern=_VARIABLE, words=_VARIABLE_FORM)] | None = None
    """A variable of the launching shell; for cluster=local, slurm and ray."""

    @model_validator(mode="after")
    def _exactly_one(self) -> "SecretRef":
        if (self.secretKeyRef is None) == (self.env is None):
            raise ValueError("give exactly one of secretKeyRef and env")
        return self


class Run(Model):
    """Name of the job, and the family that trains it."""

    name: str
    """Start of the job's name (its first 41 characters; a random suffix follows), and the default MLflow experiment.
    A DNS label: at most 63 lower-case letters, digits and -. The container, and paths that refer to it as
    ${recipes.run.name}, get the job's name."""
    results_dir: str
    """Folder for results, as the container sees it. The default ends with the job's name, so that two launches share
    no folder. The bundle's own folder follows base_results_dir."""
    model_type: str
    """The family that trains it. It determines the keys of a recipe and the program that is started."""
    hf_access_token: SecretRef | None
    """Reference to the Hugging Face token; the job gets it as HF_TOKEN. Required for gated models. Never the token
    itself."""


_TIME = r"^([0-9]{1,3}-)?[0-9]{1,2}:[0-5][0-9]:[0-5][0-9]$"


class TimedRun(Run):
    """Name of the job, its family, and its time, for programs of NeMo."""

    time_limit: Annotated[str, TextForm(pattern=_TIME, words="a time as in 12:30:00 and 2-12:30:00")]
    """Longest time of the job, days-hours:minutes:seconds, as the program reads it."""


class Trainer(Model):
    """Processes per node, and initial number of nodes."""

    devices: DeviceCount
    """Worker processes per node, one for each accelerator. On an instance with fewer it is lowered, with a notice,
    unless you set it yourself."""
    num_nodes: NodeCount
    """Nodes the job starts with. A static job keeps them; an elastic one starts at its smallest size if this is
    not one of its sizes."""


TrackingUri = Annotated[str, AfterValidator(lambda uri: server_url(uri) if re.match("https?://", uri, re.I) else uri)]
"""A server, which must have a host, or a place of another kind."""


class Mlflow(Model):
    """How the job is tracked. An empty tracking_uri: a sqlite file on this machine, no tracking on a cluster."""

    enabled: bool | None = None
    """false turns tracking off. By default a job is always tracked on this machine, and on a cluster if tracking_uri
    names a store."""
    tracking_uri: TrackingUri | None
    """MLflow server (http, https), ARN of a SageMaker tracking server, or a path on this machine. Empty: a sqlite
    file under base_results_dir on cluster=local, no tracking on a cluster."""
    run_id: str | None
    """A run to continue, of the store at tracking_uri. Empty: a new run is created at launch and its id written into
    every size, so that metrics continue in one run across scale events."""
    experiment_name: str | None = None
    """Experiment that a new run belongs to; run.name when left out."""
    run_name: str | None = None
    """Title of a new run; the job's name when left out."""
    log_adapter: bool | None = None
    """true uploads the trained adapters to the run's artifacts at the end. Read by the open trainer of fine-tuning
    recipes only."""


class Preemption(Model):
    """Priority classes of a job in two parts: the base, `min_nodes` nodes, and the elastic rest."""

    base_priority_class: Annotated[str, Field(min_length=1)]
    """PriorityClass of the min_nodes pods that always train: high enough not to be preempted."""
    elastic_priority_class: Annotated[str, Field(min_length=1)]
    """PriorityClass of the pods beyond min_nodes, which a job with higher priority may preempt. It must rank below
    the base part's."""


class ElasticSettings(Model):
    """`elastic_policy`, times in seconds."""

    is_elastic: bool
    """Whether the job may change its size while it trains. The sizes then replace the static batch and learning rate,
    and a notice names the changes."""
    min_nodes: NodeCount
    """Minimum number of nodes; with fewer the job waits. Raising it drops smaller sizes."""
    max_nodes: NodeCount
    """Largest size. The operator uses free nodes up to this number, so it also bounds the cost. Lowering it
    drops larger sizes."""
    replica_increment_step: PositiveInt | None = None
    """Nodes between two sizes: min_nodes, min_nodes + step, … An alternative to a table in scale_config, with which
    every size trains with the same settings."""
    use_graceful_shutdown: bool
    """true lets workers save a checkpoint when the size changes. false terminates them at once; they repeat the steps
    since the last regular checkpoint."""
    scaling_timeout: NonNegative32 | None = None
    """Seconds to wait before a scale-up. A longer wait avoids restarts for nodes that soon leave again; a shorter one
    uses free nodes earlier."""
    graceful_shutdown_timeout: NonNegative32 | None = None
    """Seconds workers have to save and exit before they are killed. Raise it if the checkpoint of a large model
    takes longer, or that work is lost."""
    faulty_timeout: NonNegative32 | None = None
    """Seconds to wait for a lost or faulty node to come back before the job continues with fewer."""
    scale_up_snooze_time: NonNegative32 | None = None
    """Seconds after a restart in which the job does not grow, to avoid consecutive restarts."""
    resize: Literal["restart", "in_place"] | None = None
    """How the job changes its size. restart starts all workers again from a checkpoint; in_place leaves those that
    stay in their processes, with model and optimizer in memory, from which new workers receive them. Default:
    in_place on this machine and on Slurm, unless a script does not call elastic.run, cluster.command is set, or
    workers may not save."""
    preemption: Preemption | None = None
    """Two priorities for one job, so that only its elastic nodes are preempted. Needs min_nodes below max_nodes."""

    @property
    def steps(self) -> range:
        """The numbers of nodes that a valid policy allows, `replica_increment_step` apart."""
        return range(self.min_nodes, self.max_nodes + 1, self.replica_increment_step or 1)


class RecipeResources(Model):
    """Extra resources of each pod, as Kubernetes quantities."""

    hugepages: str | int | None = None
    """2 MiB huge pages for each pod, as a quantity (5120Mi). Requires memory. EFA may need them; the node must
    have reserved them."""
    memory: str | int | None = None
    """Main memory for each pod, as request and limit (checkpointless training: as request only), a quantity (512Gi).
    By default no limit, and a request in proportion to the pod's share of its node's accelerators."""
    cpu: str | int | None = None
    """Processors for each pod, as request and limit, a quantity (96). By default no limit, and a request
    in proportion to the pod's share of its node's accelerators."""


USEFUL = ("useful", "worthwhile")
"""Values of `planner.sizes` that omit sizes no faster than a smaller one; the latter is the older word."""


class Planner(Model):
    """How `scale_config: auto` plans. Without it, sizes are planned by the defaults."""

    max_micro_batch_size: BatchSize | None = None
    """Maximum number of samples that fit in one device's memory in a forward pass. Default: the largest that the
    recipe's sizes use."""
    learning_rate: Literal["keep", "sqrt", "linear"] | None = None
    """How the learning rate follows a train_batch_size that you change: by the square root of the change (Adam), in
    proportion to it (SGD), or not at all (keep, the default)."""
    sizes: Literal["all", "useful", "worthwhile"] | None = None
    """all, the default, allows every number of nodes at which each rank has a sample; useful omits those that
    are no faster than a smaller one. worthwhile is the older word for useful."""


class CustomRun(Model):
    """Name and size of a custom job."""

    name: str
    """Start of the job's name: a DNS label."""
    nodes: NodeCount
    """Nodes the job starts with."""
    ntasks_per_node: DeviceCount
    """Worker processes per node; one for each accelerator uses them all."""


def _argument(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(f"should be a mapping of a name to its value, such as {as_argument(value) or '{--lr: 0.1}'}")
    return value


class CustomTraining(Model):
    """A custom script instead of a recipe's own trainer."""

    entry_script: ScriptPath | None = None
    """Path of the Python script that is started on every rank. Either this or entry_module."""
    entry_module: ModuleName | None = None
    """Python module that is started on every rank, as by python -m. Either this or entry_script."""
    script_args: Listed[Annotated[dict[str, Any], BeforeValidator(_argument)]] | None = None
    """The script's arguments in order, a list of mappings with one entry each: [{--lr: 0.1}, {--steps: 10}]."""
    run: CustomRun | None = None
    """Name and size of the job."""


_TYPE = r"^[a-z0-9-]+(\.[a-z0-9-]+){1,2}$"


class InstanceSpec(Model):
    """Resources of an instance type that the launcher's table lacks, or corrections of one that it has."""

    name: Annotated[str, TextForm(pattern=_TYPE, words="the name of an instance type, such as p5.48xlarge")]
    """The type, with or without ml."""
    accelerators: Annotated[int, Field(ge=0, le=1024)] | None = None
    """GPUs or Trainium chips of an instance; 0 on a CPU instance. Required, as vcpus and memory_gib are, unless the
    table has the type."""
    accelerator: Literal["gpu", "neuron"] | None = None
    """Kind of accelerator: it determines the requested Kubernetes resource. Required with accelerators."""
    processes: Annotated[int, Field(ge=0, le=4096)] | None = None
    """Maximum worker processes of an instance, such as one for each logical Neuron core. Default: one for each
    accelerator."""
    efa_devices: Annotated[int, Field(ge=0, le=1024)] | None = None
    """EFA network devices of an instance. Default: none."""
    vcpus: PositiveInt | None = None
    """Virtual CPUs of an instance."""
    memory_gib: PositiveInt | None = None
    """Main memory of an instance, in GiB."""
    architecture: Literal["x86_64", "arm64"] | None = None
    """Instruction set that the image must be built for."""


class Labels(Model):
    """How listings and filters name what a recipe does."""

    objective: str | None = None
    """What is optimized, such as sft, dpo, grpo; or evaluation. null: training_args.trainer_type names it."""
    weights: Literal["lora", "fft"] | None = None
    """Which weights are trained: those of adapters, or all."""
    published: bool = True
    """Whether it, or the recipe that it inherits, is of the published launcher; false marks one of our own."""


class RecipeBase(Model, ABC):
    """The common part of all recipes, whatever their model_type. A family subclasses it and adds its own sections."""

    display_name: str
    """The recipe's title in lists."""
    version: str
    """The recipe's own version, for your records."""
    instance_types: list[str]
    """Instance types it was tested on and fits in memory; others are refused unless you add them. An empty list
    allows any."""
    labels: Labels | None = None
    """How listings and filters name what the recipe does. The recipes of LLMFT say it by other keys."""
    instance_specs: Listed[InstanceSpec] | None = None
    """Instance types that the launcher's table lacks, described: [{name: p9.48xlarge, accelerators: 8,
    accelerator: gpu, efa_devices: 16, vcpus: 192, memory_gib: 2048}]. For a type of the table, the values replace
    the table's."""
    run: Run
    """Name of the job, and the family that trains it."""
    trainer: Trainer
    """Processes per node, and initial number of nodes."""
    elastic_policy: ElasticSettings | None = None
    """Whether and how far the job may change its size. By default it never does."""
    scale_config: dict[str, Any] | Literal["auto"] | None = None
    """Changes at each size: number of nodes to trainer.num_nodes and training_config keys. `auto` derives the
    sizes from the batch, the memory bound and the instance; an override of one size's key then applies on top."""
    planner: Planner | None = None
    """How `scale_config: auto` plans; it has no effect on sizes in the recipe."""
    training_cfg: CustomTraining | None = None
    """Your own script, started on every rank. Only for recipes of model_type custom."""
    pre_script: list[str] | None = None
    """Shell commands the image runs on each node before training, in this order."""
    post_script: list[str] | None = None
    """Shell commands the image runs on each node after training, in this order."""
    resources: RecipeResources | None = None
    """Processors, memory and huge pages of each pod, beyond its accelerators. cluster=k8s only."""
    extra_keys: list[KeyPath] | None = None
    """Dotted paths of recipe keys that your container reads but the family does not define, e.g.
    training_config.training_args.my_key. They are passed on unchecked; any other unknown key is an error."""
    checkpointless: bool | None = None
    """Checkpointless training of any recipe. Not yet supported, and incompatible with elastic jobs; the recipes whose
    names begin with checkpointless_ train so without this key."""
    checkpointing: Checkpointing | None = None
    """Tiers that checkpoints go to, and rates of failures and storage. A job with tiers is never elastic."""

    keys: ClassVar[RecipeKeys] = RecipeKeys()
    """The family's keys for values that the launcher reads."""
    fixed_size: ClassVar[str] = ""
    """Why jobs of the family never change their size; empty if they may."""

    script_variables: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """By kind of recipe, the variables that its launcher script reads, each with the recipe's key that it sets."""

    @classmethod
    def script_kind(cls, recipe: Mapping[str, Any]) -> str:
        """Return the kind of a recipe among those of `script_variables`, or of those in the template of launch.sh."""
        return next(iter(cls.script_variables), "plain")

    @classmethod
    def left_to_launch(cls, config: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the keys that a recipe leaves to each launch, and that this one does not give.

        Args:
            config: The composed configuration.

        Returns:
            Dotted path in the configuration to an example, as an override spells it.
        """
        paths = {f"recipes.{key}": example for key, example in cls.keys.examples.items()}
        return {path: example for path, example in paths.items() if _is_open(lookup(config, path))}

    def refusal(self, cluster: str) -> str | None:
        """Return why a choice of `cluster` cannot run the recipe; None if it can."""
        return None

    @property
    def batch(self) -> Batch | None:
        """The numbers of the batch; None for a family without a batch, or that does not expose it."""
        return None

    @property
    def mlflow(self) -> Mlflow | None:
        """How the job is tracked; None for a family that the launcher does not track."""
        return None

    @property
    def lora(self) -> Lora | None:
        """The low-rank adapters that are trained; None if all weights are, or for a family without."""
        return None

    @property
    def model_parallel_size(self) -> int:
        """Ranks that work on one batch, each with a part of the model."""
        return 1

    @property
    def ranks_per_sample(self) -> int:
        """Ranks that work on one sample: by its sequence, and by the parts of a split model."""
        return (self.batch.ranks_per_sample if self.batch else 1) * self.model_parallel_size

    @abstractmethod
    def content(self, config: Mapping[str, Any] | None = None, published_model: str = "") -> Content:
        """Return what the training program saves; 0 parameters if the model is unknown.

        Args:
            config: A model's config.json, to count instead of the recipe's own model.
            published_model: The model to count where the recipe leaves its model open.
        """

    def image(self, cluster: str, region: str | None) -> str | None:
        """Return the published image for a choice of `cluster`; None if the recipe's parts set `container` itself.

        Args:
            cluster: The choice.
            region: The region that the cluster's section names; None if it names none.
        """
        return None

    def image_regions(self, cluster: str) -> tuple[str, ...]:
        """Return the regions that have the published image for a choice of `cluster`; none if it is of no region."""
        return ()

    def published_model(self, sources: ValueSources) -> str:
        """Return the published model that the recipe is of, by its name on the Hugging Face Hub; empty if unknown.

        Args:
            sources: Of the recipe's values, which know what overrides hide.
        """
        return ""

    def counted_model(self, sources: ValueSources) -> str:
        """Return the published model that has as many weights: the recipe's; if they are in a folder, which
        only the job reads, the one that its files name; empty if unknown."""
        return self.published_model(sources)

    def at_size(self, own: Mapping[str, Any]) -> Self:
        """Return the recipe at a planned size, whose values are valid and not checked again.

        Args:
            own: The values that the size sets, its number of nodes among them, as a tree.
        """
        uneven = self.keys.batch.uneven_batch if self.keys.batch else ""
        updates = _updates(self, own, uneven)
        return self.model_copy(update={**updates, "scale_config": None})


def named_model(sources: ValueSources, *paths: str) -> str:
    """Return the published model that a recipe's files name at the first of some paths that names one; empty if none
    does."""
    from launcher.runtime.model_configs import first  # families of unpublished models do not need it

    return first(value for path in paths for _, value in reversed(sources.layers(path)))


@functools.cache
def _fields_by_key(model: type[Model]) -> Mapping[str, str]:
    """Return the name of each field of a model by its key in a recipe."""
    return {info.alias or name: name for name, info in model.model_fields.items()}


def _updates(model: Model, own: Mapping[str, Any], uneven: str, above: str = "") -> dict[str, Any]:
    """Return the fields of a model that valid values change.

    Args:
        model: The model, at the path `above` of the recipe, which is empty or ends with a dot.
        own: The values, as a tree.
        uneven: Path of the section that is replaced as one.
        above: See `model`.
    """
    names = _fields_by_key(type(model))
    found: dict[str, Any] = {}
    for key, value in own.items():
        path = f"{above}{key}"
        if path == uneven and key not in names:
            continue  # a family without uneven batches: a rule refuses its elastic jobs
        current = getattr(model, names[key])
        if path == uneven:
            value = UnevenBatch.model_construct(**value)
        elif isinstance(current, Model):
            value = current.model_copy(update=_updates(current, value, uneven, f"{path}."))
        found[names[key]] = value
    return found


def _is_open(value: Any) -> bool:
    """Return whether a value is none, or a placeholder in angle brackets."""
    return value in (None, "") or (isinstance(value, str) and re.search("<.*>", value) is not None)
