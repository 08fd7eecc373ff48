"""One fault each in what a training job is asked for: overrides, code, path (None for any) and a word of the text."""

J = "cluster.sm_jobs_config"
VPC = f"{J}.vpc={{subnets: [subnet-1], security_group_ids: [sg-1]}}"
LONG = "x" * 600
SDK = f"{J}.additional_estimator_kwargs"
EFS = "{id: fs-01234567, type: EFS, directory_path: /x}"
CFG = "recipes.training_cfg"
HUB = "arn:aws:sagemaker:eu-west-1:aws:hub-content/SageMakerPublicHub"
BASE_MODEL, DATASET = f"{HUB}/Model/llama/1.0.0", f"{HUB}/DataSet/mine/1.0.0"
PACKAGE = "arn:aws:sagemaker:eu-west-1:123456789012:model-package/mine/1"
SERVERLESS = ("container=null", "training_cfg.entry_script=null")
ON_BASE_MODEL = (f"{J}.serverless.base_model_arn={BASE_MODEL}", f"{J}.serverless.job_type=FineTuning")
DIST = "++recipes.distribution"
FAULTS = {
    # one fault each: overrides, code, path, a word of the text
    "no-role": ((f"{J}.role=null",), "E370", f"{J}.role", "missing"),
    "no-output": ((f"{J}.output_path=null",), "E370", f"{J}.output_path", "missing"),
    "recipe-by-https": (
        (f"{J}.recipe_path=https://data.s3.eu-west-1.amazonaws.com/x",),
        "E369",
        f"{J}.recipe_path",
        "s3://bucket/folder",
    ),
    "role-form": ((f"{J}.role=arn:aws:iam::12:role/train-role",), "E102", f"{J}.role", "RoleArn has another form"),
    "role-length": ((f"{J}.role=a",), "E102", f"{J}.role", "20 to 2048"),
    "output-form": ((f"{J}.output_path=/tmp",), "E102", f"{J}.output_path", "s3"),
    "output-length": ((f"{J}.output_path=s3://data/{LONG * 2}",), "E102", f"{J}.output_path", "0 to 1024"),
    "both-images": ((f"{J}.algorithm_name=mine",), "E371", f"{J}.algorithm_name", "container=null"),
    "no-image": (("container=null",), "E371", "container", "no image"),
    "image-length": ((f"container={LONG}",), "E371", "container", "0 to 255"),
    "algorithm-form": ((f"{J}.algorithm_name=a-", "container=null"), "E102", f"{J}.algorithm_name", "form"),
    "mode": ((f"{J}.input_mode=Nope",), "E102", f"{J}.input_mode", "FastFile"),
    "channel-form": ((f"{J}.inputs.s3={{a+b: s3://data/x/}}",), "E102", None, "ChannelName"),
    "channel-length": ((f"{J}.inputs.s3={{{LONG[:65]}: s3://data/x/}}",), "E102", None, "1 to 64"),
    "channel-uri": ((f"{J}.inputs.s3={{a: ftp://b}}",), "E102", f"{J}.inputs.s3.a", "s3"),
    "fastfile-slash": (
        (f"{J}.inputs.s3={{a: s3://data/x}}", f"{J}.input_mode=FastFile"),
        "E372",
        f"{J}.inputs.s3.a",
        "s3://data/x/",
    ),
    "fastfile-manifest": (
        (f"+{J}.inputs.channels.a={{s3: s3://data/m, mode: FastFile, s3_data_type: ManifestFile}}",),
        "E372",
        f"{J}.inputs.channels.a.s3_data_type",
        "prefixes only",
    ),
    "augmented-file": (
        (f"+{J}.inputs.channels.a={{s3: s3://data/m, s3_data_type: AugmentedManifestFile}}",),
        "E372",
        f"{J}.inputs.channels.a.s3_data_type",
        "streamed",
    ),
    "augmented-whole": (
        (f"+{J}.inputs.channels.a={{s3: s3://data/m, mode: Pipe, s3_data_type: AugmentedManifestFile}}",),
        "E372",
        f"{J}.inputs.channels.a.attribute_names",
        "missing",
    ),
    "attributes": (
        (f"+{J}.inputs.channels.a={{s3: s3://data/m, attribute_names: [x]}}",),
        "E372",
        f"{J}.inputs.channels.a.attribute_names",
        "augmented",
    ),
    "attribute-count": (
        (f"+{J}.inputs.channels.a={{s3: s3://data/m, attribute_names: [{','.join('x' * 17)}]}}",),
        "E102",
        f"{J}.inputs.channels.a.attribute_names",
        "at most 16",
    ),
    "gzip-file": (
        (f"+{J}.inputs.channels.a={{s3: s3://data/m/, compression: Gzip}}",),
        "E372",
        f"{J}.inputs.channels.a.compression",
        "Pipe",
    ),
    "recordio-fastfile": (
        (f"+{J}.inputs.channels.a={{s3: s3://data/m/, mode: FastFile, record_wrapper: RecordIO}}",),
        "E372",
        f"{J}.inputs.channels.a.record_wrapper",
        "Pipe",
    ),
    "efs-pipe": (
        (
            f"+{J}.inputs.channels.a={{file_system: {EFS}, mode: Pipe}}",
            VPC,
        ),
        "E372",
        f"{J}.inputs.channels.a.mode",
        "File",
    ),
    "two-sources": (
        (
            f"+{J}.inputs.channels.a={{s3: s3://data/m, file_system: {EFS}}}",
            VPC,
        ),
        "E373",
        f"{J}.inputs.channels.a",
        "two sources",
    ),
    "no-source": ((f"+{J}.inputs.channels.a={{mode: File}}",), "E373", f"{J}.inputs.channels.a", "no source"),
    "both-inputs": (
        (
            f"{J}.inputs.s3={{a: s3://data/}}",
            f"{J}.inputs.file_system={EFS}",
            VPC,
        ),
        "E373",
        f"{J}.inputs.file_system",
        "together",
    ),
    "sharded-efs": (
        (
            f"+{J}.inputs.channels.a={{file_system: {EFS}, distribution: ShardedByS3Key}}",
            VPC,
        ),
        "E373",
        f"{J}.inputs.channels.a",
        "whole",
    ),
    "efs-id": (
        (f"{J}.inputs.file_system={{id: fs-x, type: EFS, directory_path: /x}}", VPC),
        "E102",
        f"{J}.inputs.file_system.id",
        "11 to 21",
    ),
    "efs-path": (
        (f"{J}.inputs.file_system={{id: fs-01234567, type: EFS, directory_path: x}}", VPC),
        "E102",
        f"{J}.inputs.file_system.directory_path",
        "",
    ),
    "channel-count": (
        (f"{J}.inputs.s3={{{', '.join(f'c{i}: s3://data/' for i in range(20))}}}",),
        "E374",
        f"{J}.inputs",
        "at most 19",
    ),
    "recipe-channel": ((f"{J}.inputs.s3={{recipe: s3://data/}}",), "E374", f"{J}.inputs.s3.recipe", "another name"),
    "dotted-channel": ((f"{J}.inputs.s3={{..: s3://data/}}",), "E374", f"{J}.inputs.s3...", "no name of a folder"),
    "same-channel": (
        (f"{J}.inputs.s3={{a: s3://data/}}", f"+{J}.inputs.channels.a={{s3: s3://data/}}"),
        "E374",
        f"{J}.inputs.channels.a",
        "another channel",
    ),
    "fifo-clash": (
        (f"{J}.inputs.s3={{a_0: s3://data/}}", f"+{J}.inputs.channels.a={{s3: s3://data/, mode: Pipe}}"),
        "E374",
        f"{J}.inputs.s3.a_0",
        "FIFO 0",
    ),
    "efs-no-vpc": (
        (f"{J}.inputs.file_system={EFS}",),
        "E375",
        f"{J}.vpc",
        "needs a VPC",
    ),
    "half-vpc": ((f"{J}.vpc.subnets=[subnet-1]",), "E375", f"{J}.vpc.security_group_ids", "missing"),
    "groups-count": (
        (f"{J}.vpc={{subnets: [s], security_group_ids: [a,b,c,d,e,f]}}",),
        "E102",
        f"{J}.vpc.security_group_ids",
        "at most 5",
    ),
    "subnet-form": (
        (f"{J}.vpc={{subnets: ['a_b'], security_group_ids: [a]}}",),
        "E102",
        f"{J}.vpc.subnets.0",
        "VpcConfig.Subnets",
    ),
    "private-no-vpc": ((f"{J}.image_access.mode=Vpc",), "E375", f"{J}.vpc", "needs a VPC"),
    "spot-no-wait": ((f"{J}.spot=true",), "E376", f"{J}.stopping_condition.max_wait_s", "=86400"),
    "wait-no-spot": (
        (f"{J}.stopping_condition.max_wait_s=99999",),
        "E376",
        f"{J}.stopping_condition.max_wait_s",
        "spot=true",
    ),
    "wait-short": (
        (f"{J}.spot=true", f"{J}.stopping_condition={{max_runtime_s: 10, max_wait_s: 9, max_pending_s: null}}"),
        "E376",
        f"{J}.stopping_condition.max_wait_s",
        "at least 10",
    ),
    "runtime-0": ((f"{J}.stopping_condition.max_runtime_s=0",), "E102", None, "at least 1"),
    "runtime-long": ((f"{J}.stopping_condition.max_runtime_s=2419201",), "E102", None, "2419200"),
    "pending": ((f"{J}.stopping_condition.max_pending_s=1799",), "E102", None, "1800 to 2419200"),
    "retries": ((f"{J}.max_retries=31",), "E102", f"{J}.max_retries", "1 to 30"),
    "keep-alive": ((f"{J}.keep_alive_s=21601",), "E102", f"{J}.keep_alive_s", "0 to 21600"),
    "warm-spot": (
        (f"{J}.keep_alive_s=60", f"{J}.spot=true", f"{J}.stopping_condition.max_wait_s=86400"),
        "E377",
        f"{J}.keep_alive_s",
        "not kept warm",
    ),
    "group-sum": (
        (f"{J}.instance_groups=[{{name: a, instance_type: p3.16xlarge, instance_count: 2}}]",),
        "E378",
        f"{J}.instance_groups",
        "planned for 1",
    ),
    "group-type": (
        (f"{J}.instance_groups=[{{name: a, instance_type: m5.large, instance_count: 1}}]",),
        "E378",
        f"{J}.instance_groups",
        "in none of them",
    ),
    "groups-no-list": ((f"{J}.instance_groups=30",), "E102", f"{J}.instance_groups", "list"),
    "no-type": (("instance_type=null",), "E102", "instance_type", "a text"),
    "beside-a-channel": (
        (f"+{J}.inputs.channels.a={{s3: s3://data/x/}}", f"{J}.max_retries=31"),
        "E102",
        f"{J}.max_retries",
        "1 to 30",
    ),
    "group-processes": (
        (
            f"{J}.instance_groups=[{{name: a, instance_type: p3.16xlarge, instance_count: 1}},"
            " {name: b, instance_type: m5.xlarge, instance_count: 1}]",
            "training_cfg.run.nodes=2",
        ),
        "E368",
        f"{J}.instance_groups.1.instance_type",
        "starts 1 processes here, not 8",
    ),
    "group-gpus": (
        (
            f"{J}.instance_groups=[{{name: a, instance_type: p3.16xlarge, instance_count: 1}},"
            " {name: b, instance_type: g5.12xlarge, instance_count: 1}]",
            "training_cfg.run.nodes=2",
            "++recipes.distribution.mpi.enabled=true",
        ),
        "E368",
        f"{J}.instance_groups.1.instance_type",
        "has 4 GPUs, and MPI starts 8",
    ),
    "no-such-group": (
        (f"+{J}.inputs.channels.a={{s3: s3://data/, instance_groups: [x]}}",),
        "E378",
        f"{J}.inputs.channels.a.instance_groups",
        "no such group",
    ),
    "unknown-type": (
        ("instance_type=m5.8xlarge", "training_cfg.run.ntasks_per_node=1"),
        "E379",
        "instance_type",
        "runs",
    ),
    "own-disk-key": (
        ("instance_type=g5.12xlarge", "training_cfg.run.ntasks_per_node=4", f"{J}.volume_kms_key=alias/a"),
        "E380",
        f"{J}.volume_kms_key",
        "ml.g5.12xlarge encrypts",
    ),
    "kms-form": ((f"{J}.output_kms_key='a b'",), "E102", f"{J}.output_kms_key", "KmsKeyId"),
    "tensorboard": (
        (f"{J}.tensorboard_config.container_logs_path=/x",),
        "E381",
        f"{J}.tensorboard_config.container_logs_path",
        "needs tensorboard_config.output_path",
    ),
    "checkpoint": ((f"{J}.checkpoints.local_path=/x",), "E381", f"{J}.checkpoints.local_path", "s3_uri"),
    "checkpoints-above": (
        (f"{J}.checkpoints={{s3_uri: s3://data/c, local_path: /opt/ml/../x}}",),
        "E102",
        f"{J}.checkpoints.local_path",
        "without . and ..",
    ),
    **{
        f"checkpoints-at-{path}": (
            (f"{J}.checkpoints={{s3_uri: s3://data/c, local_path: {path}}}",),
            "E102",
            f"{J}.checkpoints.local_path",
            "overlaps",
        )
        for path in ("/", "//", "/opt", "/opt/ml/", "/opt/ml/model", "/opt/ml/model/c", "/opt/ml/input/data/train")
    },
    "checkpoints-relative": (
        (f"+{SDK}={{checkpoint_s3_uri: s3://data/c, checkpoint_local_path: ckpt}}",),
        "E102",
        f"{SDK}.checkpoint_local_path",
        "absolute path",
    ),
    "checkpoints-in-proc": (
        (f"{J}.checkpoints={{s3_uri: s3://data/c, local_path: /proc/x}}",),
        "E102",
        f"{J}.checkpoints.local_path",
        "holds no files",
    ),
    "tensorboard-in-model": (
        (f"{J}.tensorboard_config={{output_path: s3://data/t, container_logs_path: /opt/ml/model/tb}}",),
        "E102",
        f"{J}.tensorboard_config.container_logs_path",
        "overlaps",
    ),
    "checkpoints-with-logs": (
        (
            f"{J}.checkpoints={{s3_uri: s3://data/c, local_path: /opt/ml/output}}",
            f"{J}.tensorboard_config={{output_path: s3://data/t, container_logs_path: null}}",
        ),
        "E381",
        f"{J}.checkpoints.local_path",
        "/opt/ml/output/tensorboard",
    ),
    **{
        f"bucket-{place}-{name}": (words, "E102", f"{J}.{place}", "valid bucket")
        for name in ("ab", "My-Bucket", "a_b_c", "-abc", "abc-", "a..b", "192.168.5.4", "xn--abc", "b" * 64)
        for place, words in (
            ("output_path", (f"{J}.output_path=s3://{name}/x",)),
            ("inputs.s3.train", (f"{J}.inputs.s3={{train: 's3://{name}/x/'}}",)),
        )
    },
    "bucket-of-checkpoints": ((f"{J}.checkpoints.s3_uri=s3://A/c",), "E102", f"{J}.checkpoints.s3_uri", "bucket"),
    "bucket-of-logs": (
        (f"{J}.tensorboard_config.output_path=s3://A/c",),
        "E102",
        f"{J}.tensorboard_config.output_path",
        "bucket",
    ),
    "bucket-of-source": ((f"{J}.source_dir=s3://A/c.tar.gz",), "E391", f"{J}.source_dir", "not there"),
    "bucket-of-https": (
        (f"{J}.inputs.s3={{a: 'https://s3.eu-west-1.amazonaws.com/A/x/'}}",),
        "E102",
        f"{J}.inputs.s3.a",
        "valid bucket",
    ),
    "https-elsewhere": (
        (f"{J}.inputs.s3={{a: 'https://example.com/data/x/'}}",),
        "E102",
        f"{J}.inputs.s3.a",
        "not an address of S3",
    ),
    "manifest-folder": (
        (f"+{J}.inputs.channels.a={{s3: s3://data/m/, s3_data_type: ManifestFile}}",),
        "E372",
        f"{J}.inputs.channels.a.s3",
        "names one object",
    ),
    **{
        f"image-{name}": ((f"container='{image}'",), "E371", "container", "not an image reference")
        for name, image in (
            ("upper", "Me/Image:1"),
            ("blank", "me/image 1"),
            ("tag", "me/image:"),
            ("no-name", ":1"),
            ("scheme", "https://host/image:1"),
            ("digest", "me/image@sha256:12"),
        )
    },
    "metric-open": (
        (f"{J}.metric_definitions=[{{name: a, regex: 'loss=([0-9.+'}}]",),
        "E102",
        f"{J}.metric_definitions.0.regex",
        "not a regular expression",
    ),
    "metric-no-group": (
        (f"+{SDK}.metric_definitions=[{{Name: a, Regex: 'loss=(?:[0-9.]+)'}}]",),
        "E102",
        f"{SDK}.metric_definitions.0.Regex",
        "no group",
    ),
    "volume-large": ((f"{J}.volume_size_gb=16385",), "E102", f"{J}.volume_size_gb", "16384"),
    "volume-none": ((f"+{SDK}.volume_size=0",), "E102", f"{SDK}.volume_size", "1"),
    "seed-bits": (
        (f"+{J}.inputs.channels.a={{s3: s3://data/m/, shuffle_seed: 9223372036854775808}}",),
        "E102",
        f"{J}.inputs.channels.a.shuffle_seed",
        "64 bits",
    ),
    "kms-key-form": ((f"{J}.volume_kms_key=mine",), "E102", f"{J}.volume_kms_key", "alias/<name>"),
    "efs-above": (
        (f"{J}.inputs.file_system={{id: fs-01234567, type: EFS, directory_path: /x/../y}}", VPC),
        "E102",
        f"{J}.inputs.file_system.directory_path",
        "without . and ..",
    ),
    "mlflow-arn": ((f"{J}.mlflow.resource_arn=x",), "E102", f"{J}.mlflow.resource_arn", "MlflowResourceArn"),
    "mlflow-name": ((f"{J}.mlflow.run_name=x",), "E381", f"{J}.mlflow.run_name", "resource_arn"),
    "registry": (
        (
            f"{J}.image_access={{mode: Platform, credentials_provider_arn:"
            " 'arn:aws:lambda:eu-west-1:123456789012:function:f'}",
        ),
        "E381",
        f"{J}.image_access.mode",
        "private registry",
    ),
    "hyperparameter-value": ((f"{J}.hyperparameters={{a: {LONG * 5}}}",), "E382", f"{J}.hyperparameters.a", "2500"),
    "hyperparameter-count": (
        (f"{J}.hyperparameters={{{', '.join(f'p{i}: 1' for i in range(98))}}}",),
        "E382",
        f"{J}.hyperparameters",
        "0 to 100 entries",
    ),
    "hyperparameter-ours": (
        (f"{J}.hyperparameters={{sagemaker_program: x.py}}",),
        "E382",
        f"{J}.hyperparameters.sagemaker_program",
        "the launcher sets it",
    ),
    "variable-value": ((f"env_vars={{A: {LONG}}}",), "E383", "env_vars.A", "0 to 512"),
    "variable-name": ((f"{J}.environment={{1A: x}}",), "E102", None, "Environment key"),
    "variable-ours": (("env_vars={TRAINING_JOB_NAME: x}",), "E383", "env_vars.TRAINING_JOB_NAME", "itself"),
    "variable-count": (
        (f"env_vars={{{', '.join(f'V{i}: 1' for i in range(60))}}}",)
        + (f"{J}.environment={{{', '.join(f'W{i}: a' for i in range(60))}}}",),
        "E383",
        "env_vars",
        "0 to 100 entries",
    ),
    "secret": (("env_vars={HF_TOKEN: {env: HF}}",), "E384", "env_vars.HF_TOKEN", "Secrets Manager"),
    "secret-variable": ((f"{J}.environment={{HF_TOKEN: hf_x}}",), "E608", f"{J}.environment.HF_TOKEN", "in clear"),
    "secret-parameter": (
        (f"+{SDK}.hyperparameters={{db: 'postgres://u:p@h/d'}}",),
        "E608",
        f"{SDK}.hyperparameters.db",
        "in clear",
    ),
    "secret-word": (
        (f"{J}.container_entrypoint=[python3,train.py,--api-key,k123]",),
        "E608",
        f"{J}.container_entrypoint",
        "in clear",
    ),
    "module": (
        ("training_cfg.entry_script=null", "training_cfg.entry_module=a.b"),
        "E385",
        f"{CFG}.entry_module",
        "no modules",
    ),
    "script-path": (
        ("training_cfg.entry_script=/abs/train.py",),
        "E385",
        f"{CFG}.entry_script",
        "relative",
    ),
    "script-above": (("training_cfg.entry_script=code/../../train.py",), "E385", f"{CFG}.entry_script", "inside"),
    "no-script-for-the-toolkit": (
        ("training_cfg.entry_script=null", f"{J}.toolkit=true", f"{J}.container_entrypoint=[train]"),
        "E106",
        f"{CFG}.entry_script",
        "no script",
    ),
    "unread-source": (
        (f"{J}.toolkit=false", f"{J}.source_dir=s3://code/x.tar.gz"),
        "E385",
        f"{J}.source_dir",
        "toolkit=true",
    ),
    "unread-distribution": (
        (f"{J}.container_entrypoint=[x]", "++recipes.distribution.mpi.enabled=true"),
        "E385",
        "recipes.distribution",
        "does not start this job",
    ),
    "flag": (("training_cfg.script_args=[{--fast: null}]",), "E385", None, "one value"),
    "dash": (("training_cfg.script_args=[{-lr: 1}]",), "E385", None, "two before more"),
    "twice": (("training_cfg.script_args=[{--rate: 1}, {--rate: 2}]",), "E385", None, "twice"),
    "processes": (
        ("training_cfg.run.ntasks_per_node=4",),
        "E386",
        f"{CFG}.run.ntasks_per_node",
        "starts 8",
    ),
    "overrides": ((f"{J}.recipe_overrides={{trainer: {{devices: 2}}}}",), "E387", None, "recipes.trainer"),
    "given-twice": (
        (f"{J}.max_retries=2", f"+{J}.additional_estimator_kwargs.max_retry_attempts=3"),
        "E388",
        f"{J}.additional_estimator_kwargs.max_retry_attempts",
        "one of them",
    ),
    "sdk-typo": ((f"+{J}.additional_estimator_kwargs.max_runs=3",), "E101", None, "did you mean max_run"),
    "two-launchers": (
        (f"{DIST}.mpi.enabled=true", f"{DIST}.torch_distributed.enabled=true"),
        "E256",
        "recipes.distribution.torch_distributed.enabled",
        "mpi starts the script too",
    ),
    "launcher-and-library": (
        (f"{DIST}.mpi.enabled=true", f"{DIST}.smdistributed.dataparallel.enabled=true"),
        "E256",
        "recipes.distribution.smdistributed.dataparallel.enabled",
        "mpi starts the script too",
    ),
    "dataparallel-instance": (
        (f"{DIST}.smdistributed.dataparallel.enabled=true", "instance_type=p5.48xlarge"),
        "E257",
        "instance_type",
        "ml.p4d.24xlarge",
    ),
    "dataparallel-processes": (
        (f"{DIST}.smdistributed.dataparallel.enabled=true", "training_cfg.run.ntasks_per_node=1"),
        "E386",
        f"{CFG}.run.ntasks_per_node",
        "starts 8",
    ),
    "dataparallel-options": (
        (f"{DIST}.smdistributed.dataparallel={{enabled: true, custom_mpi_options: -np 4}}",),
        "E253",
        "recipes.distribution.smdistributed.dataparallel.custom_mpi_options",
        "move ranks",
    ),
    "no-launcher": (
        (f"{DIST}.torch_distributed.enabled=false",),
        "E258",
        "recipes.distribution.torch_distributed.enabled",
        "8 processes",
    ),
    "launcher-unsaid": (
        (f"{DIST}.torch_distributed={{}}",),
        "E103",
        "recipes.distribution.torch_distributed.enabled",
        "",
    ),
    "no-further-members": ((f"+{J}.request={{TrainingJobName: x}}",), "E101", f"{J}.request", ""),
    "remote-debug": ((f"{J}.remote_debug=maybe",), "E102", f"{J}.remote_debug", "true"),
    "experiment-form": (
        (f"{J}.experiment.experiment_name=-",),
        "E102",
        f"{J}.experiment.experiment_name",
        "ExperimentConfig.ExperimentName",
    ),
    "profiler-interval": ((f"{J}.profiler.interval_ms=300",), "E102", f"{J}.profiler.interval_ms", "500"),
    "profiler-bucket": ((f"{J}.profiler.output_path=s3://A/x",), "E102", f"{J}.profiler.output_path", "bucket"),
    "debugger-nowhere": (
        (f"{J}.debugger.collections=[{{name: losses}}]",),
        "E381",
        f"{J}.debugger.collections",
        "needs debugger.output_path",
    ),
    "debugger-rule": (
        (f"{J}.debugger.rules=[{{name: a, image: me/rule, instance_type: ml.p3.99xlarge}}]",),
        "E102",
        f"{J}.debugger.rules.0.instance_type",
        "no such value",
    ),
    "debugger-rules": (
        (f"{J}.debugger.rules=[{', '.join('{name: a, image: b}' for _ in range(21))}]",),
        "E102",
        f"{J}.debugger.rules",
        "20",
    ),
    "placement-count": (
        (f"{J}.placement.specifications=[{{instance_count: 2}}]",),
        "E378",
        f"{J}.placement.specifications",
        "planned for 1",
    ),
    "package-source": (
        (f"{J}.model_package.source_arn={PACKAGE}",),
        "E381",
        f"{J}.model_package.source_arn",
        "needs model_package.group_arn",
    ),
    "serverless-model": (
        (*SERVERLESS, f"{J}.serverless.peft=LORA"),
        "E381",
        f"{J}.serverless.peft",
        "base_model_arn",
    ),
    "serverless-type": (
        (*SERVERLESS, f"{J}.serverless.base_model_arn={BASE_MODEL}"),
        "E381",
        f"{J}.serverless.base_model_arn",
        "needs serverless.job_type",
    ),
    "serverless-image": (
        (*SERVERLESS, *ON_BASE_MODEL, "container=me/image:1"),
        "E336",
        "container",
        "does not have",
    ),
    "serverless-spot": (
        (*SERVERLESS, *ON_BASE_MODEL, f"{J}.checkpoints.s3_uri=s3://data/c"),
        "E336",
        f"{J}.checkpoints.s3_uri",
        "does not have",
    ),
    "dataset-beside": (
        (f"+{J}.inputs.channels.a={{s3: s3://data/x/, dataset_arn: '{DATASET}'}}",),
        "E373",
        f"{J}.inputs.channels.a",
        "two sources",
    ),
    "license-of-nothing": (
        (f"+{J}.inputs.channels.a={{dataset_arn: '{DATASET}', accept_eula: true}}",),
        "E373",
        f"{J}.inputs.channels.a",
        "of what s3 names",
    ),
    "isolated": (
        (f"{J}.network_isolation=true", f"{J}.source_dir=s3://data/s.tar.gz"),
        "E390",
        f"{J}.source_dir",
        "without a network",
    ),
    "source": (
        (f"{J}.source_dir='./my code'",),
        "E391",
        f"{J}.source_dir",
        "tar -czf sourcedir.tar.gz -C './my code' . && aws s3 cp sourcedir.tar.gz s3://results/out/code/sourcedir.tar.gz,"
        f" then {J}.source_dir=s3://results/out/code/sourcedir.tar.gz",
    ),
    "source-packed": ((f"{J}.source_dir=/x/a.tar.gz",), "E391", f"{J}.source_dir", "aws s3 cp /x/a.tar.gz s3://"),
    "source-prefix": ((f"{J}.source_dir=s3://data/code/",), "E391", f"{J}.source_dir", "allowed: s3://….tar.gz"),
    "tag-aws": ((f"+{SDK}.tags=[{{Key: 'aws:x', Value: y}}]",), "E102", f"{SDK}.tags.0.Key", "Amazon's own"),
    "tag-twice": ((f"+{SDK}.tags=[{{Key: a, Value: b}},{{Key: a, Value: c}}]",), "E388", f"{SDK}.tags", "one key"),
    "tag-form": ((f"+{SDK}.tags=[{{Key: 'a?', Value: y}}]",), "E102", f"{SDK}.tags.0.Key", "Tags.Key"),
    "tag-count": ((f"{J}.tags={{{', '.join(f't{i}: a' for i in range(51))}}}",), "E102", f"{J}.tags", "50"),
    "metric": ((f"{J}.metric_definitions=[{{name: a, regex: {LONG}}}]",), "E102", None, "1 to 500"),
    "entrypoint": ((f"{J}.container_entrypoint=[{LONG}]",), "E102", f"{J}.container_entrypoint.0", "256"),
    "region": ((f"{J}.region=Frankfurt",), "E102", f"{J}.region", ""),
}
