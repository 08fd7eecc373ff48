"""The typed configuration. Hydra composes untyped YAML; these models type it, once.

Models are strict (a string is never a boolean or a number), frozen, and refuse unknown keys. Defaults live in
`recipes_collection/`, not here; a field has a default of None only where a recipe may leave the key out.
"""

import os
from typing import Annotated, Any, Literal, TypeVar

os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for them reads every installed package

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


class Model(BaseModel):
    """Base of every model: strict, frozen, no unknown keys."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,  # a part is built with the whole that holds it, not once by itself before
    )


def indexed(value: Any) -> Any:
    """Turn `{0: a, 1: b}` into `[a, b]`: what `+key.0.field=…` on the command line builds."""
    if isinstance(value, dict) and value and all(k.isdigit() for k in value):
        return [value[k] for k in sorted(value, key=int)]
    return value


_T = TypeVar("_T")
Listed = Annotated[list[_T], BeforeValidator(indexed)]
"""A list that the command line may also fill by index."""

PositiveInt = Annotated[int, Field(ge=1)]
NodeCount = Annotated[int, Field(ge=1, le=100_000)]
NonNegativeInt = Annotated[int, Field(ge=0)]


class SecretKeyRef(Model):
    """A key of a Kubernetes Secret in the job's namespace."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
    key: Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]{1,253}$")]


class SecretRef(Model):
    """Where a secret is found at run time. Exactly one of the two is given; the value itself never is."""

    secretKeyRef: SecretKeyRef | None = None
    env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> "SecretRef":
        if (self.secretKeyRef is None) == (self.env is None):
            raise ValueError("give exactly one of secretKeyRef and env")
        return self


class Run(Model):
    """What the job is called and which family trains it."""

    name: str
    results_dir: str
    model_type: str
    hf_access_token: SecretRef | None


class Trainer(Model):
    """Processes a node, and nodes the job starts with."""

    devices: PositiveInt
    num_nodes: NodeCount


class Mlflow(Model):
    """How the job is tracked. An empty tracking_uri is a sqlite file here, and none on a cluster."""

    enabled: bool | None = None
    tracking_uri: str | None
    run_id: str | None
    experiment_name: str | None = None
    run_name: str | None = None


class Preemption(Model):
    """Priority classes of a job in two parts: the base, `min_nodes` nodes, and the elastic rest."""

    base_priority_class: Annotated[str, Field(min_length=1)]
    elastic_priority_class: Annotated[str, Field(min_length=1)]


class ElasticSettings(Model):
    """`elastic_policy`, times in seconds."""

    is_elastic: bool
    min_nodes: NodeCount
    max_nodes: NodeCount
    replica_increment_step: PositiveInt | None = None
    use_graceful_shutdown: bool
    scaling_timeout: NonNegativeInt | None = None
    graceful_shutdown_timeout: NonNegativeInt | None = None
    faulty_timeout: NonNegativeInt | None = None
    scale_up_snooze_time: NonNegativeInt | None = None
    preemption: Preemption | None = None


class UnevenBatch(Model):
    """Samples per optimizer step of each rank where they do not divide."""

    use_uneven_batch: bool
    num_dp_groups_with_small_batch_size: NonNegativeInt | None = None
    small_local_batch_size: NonNegativeInt | None = None
    large_local_batch_size: NonNegativeInt | None = None


class BatchArgs(Model):
    """The part of `training_args` that the planner reads; a family's own arguments extend it."""

    train_batch_size: PositiveInt
    micro_train_batch_size: PositiveInt
    learning_rate: Annotated[float, Field(gt=0)]
    ring_attn_size: PositiveInt
    training_dir: str
    override_training_dir: bool
    uneven_batch: UnevenBatch | None = None


class TrainingBase(Model):
    """The part of `training_config` that every family has; a family adds the rest."""

    training_args: BatchArgs
    mlflow: Mlflow
    force_rerun: bool


class RecipeResources(Model):
    """Extra resources of each pod, as Kubernetes quantities."""

    hugepages: str | int | None = None
    memory: str | int | None = None


class RecipeBase(Model):
    """What every recipe has, whatever its model_type. A family subclasses it and types `training_config`."""

    display_name: str
    version: str
    instance_types: list[str]
    run: Run
    trainer: Trainer
    training_config: TrainingBase
    elastic_policy: ElasticSettings | None = None
    scale_config: dict[str, Any] | Literal["auto"] | None = None
    pre_script: list[str] | None = None
    post_script: list[str] | None = None
    resources: RecipeResources | None = None
    extra_keys: list[str] | None = None
    checkpointless: bool | None = None
    tiered_checkpointing: bool | None = None


class Git(Model):
    """Training code other than the image's own."""

    repo_url_or_path: str | None
    branch: str | None
    commit: str | None
    entry_script: str | None
    entry_module: str | None
    token: SecretRef | None
    update_adapter: bool
    use_default: bool


class CustomRun(Model):
    """Name and size of a custom job."""

    name: str
    nodes: PositiveInt
    ntasks_per_node: PositiveInt


class CustomTraining(Model):
    """A custom script in place of a recipe's own trainer."""

    entry_script: str | None = None
    entry_module: str | None = None
    script_args: Listed[dict[str, Any]] | None = None
    run: CustomRun | None = None


class Launch(Model):
    """The top level of the configuration. `recipes` and `cluster` are typed by the family and the backend."""

    recipes: Any
    cluster: Any
    cluster_type: Literal["local", "k8s", "slurm", "sm_jobs"] | None
    instance_type: str
    container: str | None
    base_results_dir: Annotated[str, Field(min_length=1)]
    dry_run: bool
    debug: bool
    env_vars: dict[str, str | int | float | bool | SecretRef | None] | None
    git: Git
    training_cfg: CustomTraining | None
    training_config: str | None
