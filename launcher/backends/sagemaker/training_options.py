"""The `cluster` section of cluster=sm_jobs. Each field enforces the API's bounds.

A field that is a member of CreateTrainingJob within its section has the member's name as an alias.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from launcher.backends.sagemaker import members
from launcher.backends.sagemaker.members import named
from launcher.model.base_model import ClusterOptions, Listed, Model, default


class Placed(Model):
    """Instances of one UltraServer."""

    instance_count: Annotated[members.Count, named("InstanceCount")]
    """Number of the job's instances on it, at least 1."""
    ultra_server_id: Annotated[members.UltraServer | None, named("UltraServerId")] = None
    """The UltraServer's id; any UltraServer when left out."""


class Placement(Model):
    """Where instances of an UltraServer are placed."""

    multiple_jobs: Annotated[bool | None, named("EnableMultipleJobs")] = default(None)
    """true lets other jobs run on the same UltraServer."""
    specifications: Annotated[
        Annotated[Listed[Placed], Field(max_length=10)] | None, named("PlacementSpecifications")
    ] = default(None)
    """[{instance_count, ultra_server_id}], at most 10."""


class Collection(Model):
    """Tensors that are saved together."""

    name: Annotated[members.CollectionName, named("CollectionName")]
    """Name of the collection, such as losses."""
    parameters: Annotated[members.HookParameter | None, named("CollectionParameters")] = None
    """{name: text}, such as {save_interval: '50'}; at most 20."""


class WatchRule(Model):
    """A rule that runs beside the job and watches what Debugger saves."""

    name: Annotated[members.RuleName, named("RuleConfigurationName")]
    """Name of the rule; unique."""
    image: Annotated[members.RuleImage, named("RuleEvaluatorImage")]
    """Image that evaluates the rule."""
    instance_type: Annotated[members.RuleInstance | None, named("InstanceType")] = None
    """Processing instance for a rule of your own, with ml."""
    volume_size_gb: Annotated[members.VolumeSize | None, named("VolumeSizeInGB")] = None
    """Disk size of that instance in GB."""
    local_path: Annotated[members.Folder | None, named("LocalPath")] = None
    """Folder in its container; /opt/ml/processing/output/rule/ when left out."""
    output_path: Annotated[members.S3Uri | None, named("S3OutputPath")] = None
    """s3:// folder for its results."""
    parameters: Annotated[members.RuleParameters | None, named("RuleParameters")] = None
    """{name: text} for the rule, at most 100."""


def _named_apart(rules: Any) -> Any:
    """Refuse two rules of the same name. Source: DebugRuleConfiguration, ProfilerRuleConfiguration: unique names."""
    names = [each.name for each in rules]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two rules have the same name: {', '.join(twice)}")
    return rules


Rules = Annotated[Listed[WatchRule], Field(max_length=20), AfterValidator(_named_apart)]


class Debugger(Model):
    """SageMaker Debugger: tensors to save, and rules that watch them."""

    output_path: Annotated[members.S3Uri | None, named("S3OutputPath")] = default(None)
    """s3:// folder for tensors. Required by local_path, hook_parameters and collections."""
    local_path: Annotated[members.Tensors | None, named("LocalPath")] = default(None)
    """Folder in the container that tensors are written to; /opt/ml/output/tensors when null."""
    hook_parameters: Annotated[members.HookParameters | None, named("HookParameters")] = default(None)
    """{name: text} for Debugger's hook, at most 20."""
    collections: Annotated[
        Annotated[Listed[Collection], Field(max_length=20)] | None, named("CollectionConfigurations")
    ] = default(None)
    """[{name, parameters}] of tensors to save, at most 20."""
    rules: Rules | None = default(None)
    """[{name, image, parameters, …}], at most 20."""


class Profiler(Model):
    """SageMaker Debugger's system profiler."""

    disabled: Annotated[bool | None, named("DisableProfiler")] = default(None)
    """true turns it off, even where AWS enables it by default."""
    output_path: Annotated[members.S3Uri | None, named("S3OutputPath")] = default(None)
    """s3:// folder for its measurements."""
    interval_ms: Annotated[members.Interval | None, named("ProfilingIntervalInMilliseconds")] = default(None)
    """Milliseconds between two measurements; 500 when null."""
    parameters: Annotated[members.HookParameters | None, named("ProfilingParameters")] = default(None)
    """{name: text} for the profiler, at most 20."""
    rules: Rules | None = default(None)
    """[{name, image, parameters, …}], at most 20."""


class Experiment(Model):
    """The SageMaker experiment that the job is part of."""

    experiment_name: Annotated[members.ExperimentName | None, named("ExperimentName")] = default(None)
    """Name of an existing experiment."""
    trial_name: Annotated[members.ExperimentName | None, named("TrialName")] = default(None)
    """Name of an existing trial of it."""
    component_name: Annotated[members.ExperimentName | None, named("TrialComponentDisplayName")] = default(None)
    """Name under which the job is shown in it."""
    run_name: Annotated[members.ExperimentName | None, named("RunName")] = default(None)
    """Run of the experiment."""


class ModelPackage(Model):
    """Where the trained model is registered."""

    group_arn: Annotated[members.GroupArn | None, named("ModelPackageGroupArn")] = default(None)
    """ARN of the model package group."""
    source_arn: Annotated[members.PackageArn | None, named("SourceModelPackageArn")] = default(None)
    """ARN of the model package that the job starts from. Needs group_arn."""


class Serverless(Model):
    """A job on instances of AWS's choice, with AWS's own recipe; it has no container."""

    base_model_arn: Annotated[members.BaseModelArn | None, named("BaseModelArn")] = default(None)
    """ARN of the model in a hub that is customized or evaluated."""
    accept_eula: Annotated[bool | None, named("AcceptEula")] = default(None)
    """true accepts the model's license."""
    job_type: Annotated[Literal["FineTuning", "Evaluation"] | None, named("JobType")] = default(None)
    """Kind of job. Required with base_model_arn."""
    technique: Annotated[members.Technique | None, named("CustomizationTechnique")] = default(None)
    """How a model is fine-tuned."""
    peft: Annotated[Literal["LORA"] | None, named("Peft")] = default(None)
    """LORA trains adapters; null trains all weights."""
    evaluation_type: Annotated[members.Evaluation | None, named("EvaluationType")] = default(None)
    """How a model is evaluated."""
    evaluator_arn: Annotated[members.EvaluatorArn | None, named("EvaluatorArn")] = default(None)
    """ARN of the evaluator, for your own scorer or reward."""
    sequence_length: Annotated[members.SequenceLength | None, named("SequenceLength")] = default(None)
    """Maximum sequence length in thousands of tokens, such as 8K."""


class TensorBoard(Model):
    """Where TensorBoard's logs go."""

    output_path: Annotated[members.S3Uri | None, named("S3OutputPath")] = default(None)
    """s3:// folder that receives TensorBoard's logs while the job runs."""
    container_logs_path: Annotated[members.KeptFolder | None, named("LocalPath")] = default(None)
    """Folder in the container they are written to; /opt/ml/output/tensorboard when null. Needs output_path."""


class FileSystem(Model):
    """An EFS or FSx for Lustre input; it needs vpc."""

    id: members.FileSystemId
    """The file system's id, fs-…."""
    type: Literal["EFS", "FSxLustre", "FSx"]
    """EFS, or FSx for Lustre under either name."""
    directory_path: members.DirectoryPath
    """Folder of the file system that holds the data; for FSx it begins with the file system's mount name."""
    access: Literal["ro", "rw"] = "ro"
    """ro, the default, mounts it read-only; rw lets the job write there."""


class Channel(Model):
    """One data channel: its source, and how the container receives it."""

    s3: members.S3Uri | None = None
    """s3:// prefix, or a manifest file. Either this or file_system."""
    file_system: FileSystem | None = None
    """A folder of a file system. Either this or s3."""
    dataset_arn: members.DatasetArn | None = None
    """ARN of a data set in a hub, instead of both."""
    mode: members.Mode | None = None
    """How the container receives it; default: the job's input_mode. File copies it before training, FastFile mounts
    it read-only and reads on demand, Pipe streams it through FIFOs."""
    s3_data_type: Literal["S3Prefix", "ManifestFile", "AugmentedManifestFile", "Converse"] = "S3Prefix"
    """Meaning of s3: every object below a prefix, or a manifest that lists objects."""
    distribution: Literal["FullyReplicated", "ShardedByS3Key"] = "FullyReplicated"
    """Whether each host gets all objects, or only its share of them."""
    attribute_names: members.Attributes | None = None
    """Attributes of an augmented manifest to stream, at least one."""
    instance_groups: members.Groups | None = None
    """Names of the instance groups that receive it; all when left out."""
    content_type: members.ChannelText | None = None
    """MIME type, passed to the container."""
    compression: Literal["None", "Gzip"] | None = None
    """Gzip decompresses the stream; Pipe mode only."""
    record_wrapper: Literal["None", "RecordIO"] | None = None
    """RecordIO wraps each object in a record; Pipe mode only."""
    shuffle_seed: members.Seed | None = None
    """Shuffles the objects, in Pipe mode differently in each epoch."""
    accept_eula: bool | None = None
    """true accepts the license of the model that s3 names."""
    hub_content_arn: members.HubArn | None = None
    """ARN of the content of a private hub that s3 belongs to."""


class Inputs(Model):
    """Data channels."""

    s3: dict[members.ChannelName, members.S3Uri] | None = default(None)
    """Channel name to s3:// folder; the container sees each under /opt/ml/input/data/<channel>."""
    file_system: FileSystem | None = default(None)
    """A file system instead of S3, as the channel `training`."""
    channels: dict[members.ChannelName, Channel] | None = default(None, is_required=False)
    """Channel name to its source, mode and format, for channels that need more than a folder."""


class Checkpoints(Model):
    """Files that are kept in S3 while the job runs, and restored after a restart."""

    s3_uri: Annotated[members.S3Uri | None, named("S3Uri")] = default(None)
    """s3:// folder that the local one is synchronised with, in both directions."""
    local_path: Annotated[members.KeptFolder | None, named("LocalPath")] = default(None)
    """Folder in the container; /opt/ml/checkpoints when null. Needs s3_uri."""


class StoppingCondition(Model):
    """Time limits of the job, in seconds. It then gets SIGTERM, and SIGKILL 120 s later."""

    max_runtime_s: Annotated[members.MaxRuntime | None, named("MaxRuntimeInSeconds")] = default(None)
    """Maximum time it trains, retries included: at most 28 days, by default one day. It bounds the cost."""
    max_wait_s: Annotated[members.MaxWait | None, named("MaxWaitTimeInSeconds")] = default(None)
    """Maximum time a spot job waits and trains; at least max_runtime_s. Needs spot=true."""
    max_pending_s: Annotated[members.MaxPending | None, named("MaxPendingTimeInSeconds")] = default(None)
    """Maximum time it waits for accelerated instances: 1800 to 2419200."""


class InstanceGroup(Model):
    """Instances of one type in a job that has several."""

    name: members.GroupName
    """Name of the group, for channels and scripts."""
    instance_type: str
    """Instance type, with or without ml."""
    instance_count: members.Count
    """Number of instances."""


class Vpc(Model):
    """The network of the containers."""

    subnets: Annotated[members.Subnets | None, named("Subnets")] = default(None)
    """Subnet ids, 1 to 16. Needs security_group_ids."""
    security_group_ids: Annotated[members.SecurityGroups | None, named("SecurityGroupIds")] = default(None)
    """Security group ids, 1 to 5. Needs subnets."""


class ImageAccess(Model):
    """How the image is pulled."""

    mode: Literal["Platform", "Vpc"] | None = default(None)
    """Platform pulls it from ECR; Vpc pulls it from a private registry in your network, and needs vpc."""
    credentials_provider_arn: members.CredentialsArn | None = default(None)
    """Lambda function that returns the registry's credentials. Needs mode=Vpc."""


class MlflowApp(Model):
    """SageMaker's own MLflow, which then tracks the job itself. The launcher's tracking is recipes….mlflow."""

    resource_arn: Annotated[members.MlflowArn | None, named("MlflowResourceArn")] = default(None)
    """ARN of the tracking server or MLflow app."""
    experiment_name: Annotated[members.MlflowName | None, named("MlflowExperimentName")] = default(None)
    """Experiment of the run. Needs resource_arn."""
    run_name: Annotated[members.MlflowName | None, named("MlflowRunName")] = default(None)
    """Title of the run. Needs resource_arn."""


class Metric(Model):
    """A number that is read from the log."""

    name: Annotated[members.MetricName, named("Name")]
    """Name of the metric in CloudWatch."""
    regex: Annotated[members.MetricRegex, named("Regex")]
    """Regular expression whose first group is the number."""


class SdkTag(Model):
    """A tag as the SDK spells it."""

    Key: members.TagKey
    """The tag's key: at most 128 characters, not beginning with aws:."""
    Value: members.TagValue
    """The tag's value: at most 256 characters."""


class SdkMetric(Model):
    """A metric as the SDK spells it."""

    Name: members.MetricName
    """The metric's name in CloudWatch."""
    Regex: members.MetricRegex
    """Regular expression that finds its value in a line of the log."""


def _same(path: str) -> Any:
    """Declare the estimator's name of the key at `path`. Source: SageMaker Python SDK 2.257.6, EstimatorBase."""
    return Field(None, serialization_alias=path, description=f"The same as sm_jobs_config.{path}.")


class EstimatorArguments(Model):
    """Arguments that published scripts pass to the SDK's estimator, each an alias of a key of sm_jobs_config."""

    role: members.RoleArn | None = _same("role")
    max_run: members.MaxRuntime | None = _same("stopping_condition.max_runtime_s")
    max_wait: members.MaxWait | None = _same("stopping_condition.max_wait_s")
    use_spot_instances: bool | None = _same("spot")
    max_retry_attempts: members.Retries | None = _same("max_retries")
    keep_alive_period_in_seconds: members.KeepAlive | None = _same("keep_alive_s")
    volume_size: members.VolumeSize | None = _same("volume_size_gb")
    volume_kms_key: members.KmsKey | None = _same("volume_kms_key")
    output_kms_key: members.KmsKey | None = _same("output_kms_key")
    input_mode: members.Mode | None = _same("input_mode")
    subnets: members.Subnets | None = _same("vpc.subnets")
    security_group_ids: members.SecurityGroups | None = _same("vpc.security_group_ids")
    encrypt_inter_container_traffic: bool | None = _same("encrypt_traffic")
    enable_network_isolation: bool | None = _same("network_isolation")
    checkpoint_s3_uri: members.S3Uri | None = _same("checkpoints.s3_uri")
    checkpoint_local_path: members.KeptFolder | None = _same("checkpoints.local_path")
    code_location: members.S3Uri | None = _same("recipe_path")
    source_dir: str | None = _same("source_dir")
    training_plan: members.PlanArn | None = _same("training_plan_arn")
    hyperparameters: members.Scalars | None = _same("hyperparameters")
    metric_definitions: Annotated[Listed[SdkMetric], Field(max_length=40)] | None = _same("metric_definitions")
    container_entry_point: members.Words | None = _same("container_entrypoint")
    container_arguments: members.Words | None = _same("container_arguments")
    tags: Annotated[Listed[SdkTag], Field(max_length=50)] | None = _same("tags")


class SmJobs(Model):
    """The keys of a training job; the first nine have the published launcher's names."""

    pysdk_launch_executor: Literal["estimator", "model_trainer"] | bool | None = default(None)
    """The SDK whose spelling of hyperparameters the image reads: estimator, the default, writes every
    value as JSON; model_trainer leaves texts unchanged, as all images without the toolkit need. The launcher
    itself uses neither SDK."""
    output_path: members.S3Uri | None = default(None)
    """s3:// folder that receives <job>/output/model.tar.gz and output.tar.gz."""
    tensorboard_config: TensorBoard
    """Where TensorBoard's logs go."""
    wait: bool = default(False)
    """true follows the job until it has ended, like wait=true."""
    inputs: Inputs
    """Sources of the data."""
    additional_estimator_kwargs: EstimatorArguments | None = default(None)
    """The same keys under the SDK estimator's names, e.g. max_run."""
    recipe_overrides: dict[str, Any] | None = default(None)
    """Recipe keys for the published launcher. Here every recipe key is overridden as recipes.<key>."""
    environment: members.Environment | None = default(None)
    """Variables of the container, at most 100, of at most 512 characters each. They replace defaults of env_vars; a
    variable that you set in both must have the same value."""
    region: members.Region | None = default(None)
    """Region the job runs in; that of your AWS configuration when null."""
    role: members.RoleArn | None = default(None)
    """ARN of the IAM role that the job acts as. Required."""
    output_kms_key: members.KmsKey | None = default(None)
    """Key that encrypts the results: id, ARN or alias."""
    output_compression: Literal["GZIP", "NONE"] | None = default(None)
    """NONE uploads the model's files unchanged, for large models; GZIP, the default, uploads one archive."""
    recipe_path: members.S3Uri | None = default(None)
    """s3:// folder that the recipe is uploaded to, below <job>/recipe/; output_path when null."""
    toolkit: bool | None = default(None)
    """true if the sagemaker-training toolkit starts the script, as in AWS's framework images; false if the
    image has a program of its own, such as XGBoost's: it gets hyperparameters as plain text, and needs no script.
    null means false with container_entrypoint or algorithm_name, else true."""
    source_dir: str | None = default(None)
    """Your script's folder: an s3:// archive (.tar.gz), or a folder of the image; with cluster=sm_local one
    of this machine. null if the image has it in /opt/ml/code."""
    input_mode: members.Mode = default("File")
    """Mode of every channel that does not set its own."""
    checkpoints: Checkpoints
    """Files that survive a restart."""
    stopping_condition: StoppingCondition
    """Time limits of the job."""
    max_retries: members.Retries | None = default(None)
    """How often a job that fails because of an internal service error is restarted, 1 to 30; never when null."""
    spot: bool = default(False)
    """true uses spot capacity: cheaper, but it can be interrupted anytime. Needs stopping_condition.max_wait_s."""
    keep_alive_s: members.KeepAlive | None = default(None)
    """Seconds that the instances are kept warm, and billed, after the job: at most 21600."""
    instance_groups: Annotated[Listed[InstanceGroup], Field(max_length=5)] | None = default(None)
    """Instances of several types in one job, trainer.num_nodes in total. One of the groups has
    instance_type; a script runs on all of them together."""
    volume_size_gb: members.VolumeSize | None = default(30)
    """Disk size of each instance in GB, at most 16384. Instances with local disks use those."""
    volume_kms_key: members.KmsKey | None = default(None)
    """Key that encrypts that disk; not for instances with local disks."""
    training_plan_arn: members.PlanArn | None = default(None)
    """ARN of the training plan whose reserved capacity the job uses."""
    vpc: Vpc
    """The network of the containers."""
    network_isolation: bool = default(False)
    """true limits containers to the network among themselves; S3 channels still work."""
    encrypt_traffic: bool = default(False)
    """true encrypts traffic between instances, which slows distributed training."""
    image_access: ImageAccess
    """How the image is pulled."""
    algorithm_name: members.AlgorithmName | None = default(None)
    """Your own algorithm or one from AWS Marketplace, instead of container; needs container=null."""
    container_entrypoint: members.Words | None = default(None)
    """Words of a start command that replaces the container's own; each at most 256 characters."""
    container_arguments: members.Words | None = default(None)
    """Arguments after those words."""
    hyperparameters: members.Scalars | None = default(None)
    """Further hyperparameters that the image reads beside the recipe."""
    metric_definitions: Annotated[Listed[Metric], Field(max_length=40)] | None = default(None)
    """Numbers that CloudWatch reads from the log, at most 40."""
    tags: members.Tags | None = default(None)
    """{key: value} on the job, at most 50."""
    mlflow: MlflowApp
    """SageMaker's own MLflow."""
    metrics_time_series: bool | None = default(None)
    """true stores metrics as time series, which SageMaker Studio plots."""
    placement: Placement
    """Where instances of an UltraServer are placed."""
    serverless: Serverless
    """A job on instances of AWS's choice, with AWS's own recipe instead of an image."""
    model_package: ModelPackage
    """Where the trained model is registered."""
    experiment: Experiment
    """The SageMaker experiment that the job is part of."""
    debugger: Debugger
    """SageMaker Debugger: tensors to save, and rules that watch them."""
    profiler: Profiler
    """SageMaker Debugger's system profiler."""
    remote_debug: bool | None = default(None)
    """true gives you access to the running containers through AWS Systems Manager."""
    infra_check: bool | None = default(None)
    """true checks the instances' hardware before the job starts."""
    session_tag_chaining: bool | None = default(None)
    """true passes the session tags of the user who starts the job to the job's role."""


class Settings(ClusterOptions):
    """Every key of cluster=sm_jobs."""

    sm_jobs_config: SmJobs
    """The training job's own keys."""
    container_mounts: Listed[str] | None = default(None)
    """Slurm's key, accepted so that one script works with every cluster; ignored here."""
