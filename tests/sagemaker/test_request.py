"""Requests for training jobs: goldens, every fault's rule, and the API's own bounds as botocore's model has them."""

import dataclasses
import json
import re
import string

import pytest
from conftest import LLAMA, ROOT, frozen_context
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher import pipeline
from launcher.backends.sagemaker import constraints, parts, request
from launcher.backends.sagemaker.backend import SageMakerBackend
from launcher.backends.sagemaker.keys import SDK_NAMES
from launcher.backends.sagemaker.settings import EstimatorArguments, Settings
from launcher.problems import ProblemsFound

J = "cluster.sm_jobs_config"
NEEDED = (
    "cluster=sm_jobs",
    f"{J}.role=arn:aws:iam::123456789012:role/train",
    f"{J}.output_path=s3://results/out",
)
RECIPE = (f"recipes={LLAMA}", *NEEDED)
SCRIPT = (
    "recipes=training/custom/script",
    *NEEDED,
    "instance_type=p3.16xlarge",
    "container=me/image:1",
    "training_cfg.entry_script=train.py",
    "training_cfg.run.ntasks_per_node=8",
)
TINY = (
    "recipes=training/tiny/tiny_lm_cpu",
    *NEEDED,
    "instance_type=m5.2xlarge",
    "container=me/image:1",
    "recipes.elastic_policy.is_elastic=false",
)
VPC = f"{J}.vpc={{subnets: [subnet-1], security_group_ids: [sg-1]}}"
EVERYTHING = (
    *SCRIPT,
    VPC,
    "training_cfg.run.nodes=3",
    "training_cfg.script_args=[{--lr: 0.1}, {--config: 'bundle:configs'}, {-v: true}]",
    "env_vars={B: fromenv, C: 3}",
    f"{J}.environment={{A: '1', B: overridden}}",
    f"{J}.source_dir=s3://code/job/sourcedir.tar.gz",
    f"{J}.inputs.s3={{train: s3://data/train/}}",
    f"+{J}.inputs.channels.stream={{s3: s3://data/all.manifest, mode: Pipe, s3_data_type: AugmentedManifestFile,"
    " attribute_names: [image-ref, label], distribution: ShardedByS3Key, instance_groups: [fast],"
    " content_type: image/png, compression: Gzip, record_wrapper: RecordIO, shuffle_seed: 7}",
    f"+{J}.inputs.channels.lustre={{file_system: {{id: fs-0123456789abcdef0, type: FSx, directory_path: /mnt/x,"
    " access: rw}}",
    f"{J}.input_mode=FastFile",
    f"{J}.instance_groups=[{{name: fast, instance_type: p3.16xlarge, instance_count: 2}},"
    " {name: plain, instance_type: ml.m5.xlarge, instance_count: 1}]",
    f"{J}.checkpoints={{s3_uri: s3://results/ckpt, local_path: /opt/ml/checkpoints}}",
    f"+{J}.additional_estimator_kwargs={{max_run: 3600, max_wait: 7200, use_spot_instances: true,"
    " max_retry_attempts: 3, output_kms_key: alias/mine, tags: [{Key: team, Value: a b}]}",
    f"{J}.stopping_condition.max_pending_s=7200",
    f"{J}.volume_size_gb=200",
    f"{J}.volume_kms_key=null",
    f"{J}.encrypt_traffic=true",
    f"{J}.image_access.mode=Vpc",
    f"{J}.tensorboard_config={{output_path: s3://results/tb, container_logs_path: /opt/ml/output/tensorboard}}",
    f"{J}.mlflow={{resource_arn: 'arn:aws:sagemaker:eu-west-1:123456789012:mlflow-tracking-server/t',"
    " experiment_name: e, run_name: r}",
    f"{J}.metric_definitions=[{{name: loss, regex: 'loss ([0-9.]+)'}}]",
    f"{J}.hyperparameters={{seed: 7}}",
    f"{J}.output_compression=NONE",
    f"{J}.request={{RemoteDebugConfig: {{EnableRemoteDebug: true}}, ExperimentConfig: {{ExperimentName: e}}}}",
)
GOLDENS = {
    "sm_recipe": RECIPE,
    "sm_script": (*SCRIPT, "++recipes.distribution.mpi.enabled=true"),
    "sm_everything": EVERYTHING,
    "sm_tiny": TINY,
}


@pytest.fixture
def requested(render):
    """Return a function from overrides to the parsed request."""
    return lambda *overrides: json.loads(render(*overrides).files["request.json"])


def model():
    """Return botocore's shape of the request."""
    session = pytest.importorskip("botocore.session", reason="pip install '.[sagemaker]'")
    service = session.get_session().get_service_model("sagemaker")
    return service.operation_model("CreateTrainingJob").input_shape


def violations(value, shape, path=""):
    """Yield what botocore's model says against a value, by a walk of its own."""
    bounds, kind = shape.metadata, shape.type_name
    size = value if kind in ("integer", "long") else len(value) if kind in ("string", "list", "map") else None
    if size is not None and not bounds.get("min", 0) <= size <= bounds.get("max", float("inf")):
        yield path
    if getattr(shape, "enum", None) and value not in shape.enum:
        yield path
    if bounds.get("pattern") and not constraints.java_pattern(bounds["pattern"]).fullmatch(value):
        yield path
    if kind == "structure":
        if set(shape.required_members) - set(value) or set(value) - set(shape.members):
            yield path
        for key in set(value) & set(shape.members):
            yield from violations(value[key], shape.members[key], f"{path}.{key}")
    elif kind == "list":
        for item in value:
            yield from violations(item, shape.member, f"{path}[]")
    elif kind == "map":
        for key, item in value.items():
            yield from violations(key, shape.key, f"{path}{{key}}")
            yield from violations(item, shape.value, f"{path}{{value}}")


@pytest.mark.parametrize("name", GOLDENS)
def test_requests_are_the_reviewed_ones(name, render, pytestconfig):
    text = render(*GOLDENS[name]).files["request.json"]
    path = ROOT / "tests" / "golden" / f"{name}.json"
    if pytestconfig.getoption("rewrite_goldens"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", GOLDENS)
def test_botocore_would_send_the_goldens(name, requested):
    validate = pytest.importorskip("botocore.validate", reason="pip install '.[sagemaker]'")
    found = requested(*GOLDENS[name])
    assert not validate.ParamValidator().validate(found, model()).has_errors()
    assert list(violations(found, model())) == []


def test_the_bounds_are_botocores():
    found = {}

    def walk(shape, path):
        row = {"type": shape.type_name}
        row |= {key: shape.metadata[key] for key in ("min", "max", "pattern") if key in shape.metadata}
        if getattr(shape, "enum", None):
            row["enum"] = list(shape.enum)
        if shape.type_name == "structure" and shape.required_members:
            row["required"] = list(shape.required_members)
        found[path] = row
        if shape.type_name == "structure":
            for key, inner in shape.members.items():
                walk(inner, f"{path}.{key}" if path else key)
        elif shape.type_name == "list":
            walk(shape.member, f"{path}[]")
        elif shape.type_name == "map":
            walk(shape.key, f"{path}{{key}}")
            walk(shape.value, f"{path}{{value}}")

    walk(model(), "")
    known = constraints._model()
    ours = {
        path: row | ({"enum": known["enums"][row["enum"]]} if isinstance(row.get("enum"), str) else {})
        for path, row in known["members"].items()
    }
    assert ours == found


def test_the_estimators_names_are_all_typed_and_all_mapped(requested):
    assert set(SDK_NAMES) == set(EstimatorArguments.model_fields)
    ours = requested(*SCRIPT, VPC, f"{J}.stopping_condition.max_runtime_s=60", f"{J}.keep_alive_s=5")
    sdk = requested(
        *SCRIPT,
        f"+{J}.additional_estimator_kwargs={{max_run: 60, keep_alive_period_in_seconds: 5, subnets: [subnet-1],"
        " security_group_ids: [sg-1]}",
    )
    assert ours == sdk and ours["StoppingCondition"] == {"MaxRuntimeInSeconds": 60}


LONG = "x" * 600
ARN = "arn:aws:sagemaker:eu-west-1:123456789012:mlflow-tracking-server/t"
FAULTS = {
    # one fault each: overrides, code, path, a word of the text
    "no-role": ((f"{J}.role=null",), "E370", f"{J}.role", "missing"),
    "no-output": ((f"{J}.output_path=null",), "E370", f"{J}.output_path", "missing"),
    "role-form": ((f"{J}.role=arn:aws:iam::12:role/train-role",), "E102", f"{J}.role", "RoleArn has another form"),
    "role-length": ((f"{J}.role=a",), "E102", f"{J}.role", "20 to 2048"),
    "output-form": ((f"{J}.output_path=/tmp",), "E102", f"{J}.output_path", "s3"),
    "output-length": ((f"{J}.output_path=s3://{LONG * 2}",), "E102", f"{J}.output_path", "0 to 1024"),
    "both-images": ((f"{J}.algorithm_name=mine",), "E371", f"{J}.algorithm_name", "container=null"),
    "no-image": (("container=null",), "E371", "container", "no image"),
    "image-length": ((f"container={LONG}",), "E371", "container", "0 to 255"),
    "algorithm-form": ((f"{J}.algorithm_name=a-", "container=null"), "E102", f"{J}.algorithm_name", "form"),
    "mode": ((f"{J}.input_mode=Nope",), "E102", f"{J}.input_mode", "FastFile"),
    "channel-form": ((f"{J}.inputs.s3={{'a b': s3://b/x/}}",), "E102", None, "ChannelName"),
    "channel-length": ((f"{J}.inputs.s3={{{LONG[:65]}: s3://b/x/}}",), "E102", None, "1 to 64"),
    "channel-uri": ((f"{J}.inputs.s3={{a: ftp://b}}",), "E102", f"{J}.inputs.s3.a", "s3"),
    "fastfile-slash": (
        (f"{J}.inputs.s3={{a: s3://b/x}}", f"{J}.input_mode=FastFile"),
        "E372",
        f"{J}.inputs.s3.a",
        "s3://b/x/",
    ),
    "fastfile-manifest": (
        (f"+{J}.inputs.channels.a={{s3: s3://b/m, mode: FastFile, s3_data_type: ManifestFile}}",),
        "E372",
        f"{J}.inputs.channels.a.s3_data_type",
        "prefixes only",
    ),
    "augmented-file": (
        (f"+{J}.inputs.channels.a={{s3: s3://b/m, s3_data_type: AugmentedManifestFile}}",),
        "E372",
        f"{J}.inputs.channels.a.s3_data_type",
        "streamed",
    ),
    "attributes": (
        (f"+{J}.inputs.channels.a={{s3: s3://b/m, attribute_names: [x]}}",),
        "E372",
        f"{J}.inputs.channels.a.attribute_names",
        "augmented",
    ),
    "attribute-count": (
        (f"+{J}.inputs.channels.a={{s3: s3://b/m, attribute_names: [{','.join('x' * 17)}]}}",),
        "E102",
        f"{J}.inputs.channels.a.attribute_names",
        "at most 16",
    ),
    "gzip-file": (
        (f"+{J}.inputs.channels.a={{s3: s3://b/m/, compression: Gzip}}",),
        "E372",
        f"{J}.inputs.channels.a.compression",
        "Pipe",
    ),
    "recordio-fastfile": (
        (f"+{J}.inputs.channels.a={{s3: s3://b/m/, mode: FastFile, record_wrapper: RecordIO}}",),
        "E372",
        f"{J}.inputs.channels.a.record_wrapper",
        "Pipe",
    ),
    "efs-pipe": (
        (f"+{J}.inputs.channels.a={{file_system: {{id: fs-01234567, type: EFS, directory_path: /x}}, mode: Pipe}}", VPC),
        "E372",
        f"{J}.inputs.channels.a.mode",
        "File",
    ),
    "two-sources": (
        (
            f"+{J}.inputs.channels.a={{s3: s3://b/m, file_system: {{id: fs-01234567, type: EFS, directory_path: /x}}}}",
            VPC,
        ),
        "E373",
        f"{J}.inputs.channels.a",
        "two sources",
    ),
    "no-source": ((f"+{J}.inputs.channels.a={{mode: File}}",), "E373", f"{J}.inputs.channels.a", "no source"),
    "both-inputs": (
        (f"{J}.inputs.s3={{a: s3://b/}}", f"{J}.inputs.file_system={{id: fs-01234567, type: EFS, directory_path: /x}}", VPC),
        "E373",
        f"{J}.inputs.file_system",
        "together",
    ),
    "sharded-efs": (
        (
            f"+{J}.inputs.channels.a={{file_system: {{id: fs-01234567, type: EFS, directory_path: /x}},"
            " distribution: ShardedByS3Key}",
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
        (f"{J}.inputs.s3={{{', '.join(f'c{i}: s3://b/' for i in range(20))}}}",),
        "E374",
        f"{J}.inputs",
        "at most 19",
    ),
    "recipe-channel": ((f"{J}.inputs.s3={{recipe: s3://b/}}",), "E374", f"{J}.inputs.s3.recipe", "another name"),
    "same-channel": (
        (f"{J}.inputs.s3={{a: s3://b/}}", f"+{J}.inputs.channels.a={{s3: s3://b/}}"),
        "E374",
        f"{J}.inputs.channels.a",
        "another channel",
    ),
    "fifo-clash": (
        (f"{J}.inputs.s3={{a_0: s3://b/}}", f"+{J}.inputs.channels.a={{s3: s3://b/, mode: Pipe}}"),
        "E374",
        f"{J}.inputs.s3.a_0",
        "FIFO 0",
    ),
    "efs-no-vpc": (
        (f"{J}.inputs.file_system={{id: fs-01234567, type: EFS, directory_path: /x}}",),
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
    "no-such-group": (
        (f"+{J}.inputs.channels.a={{s3: s3://b/, instance_groups: [x]}}",),
        "E378",
        f"{J}.inputs.channels.a.instance_groups",
        "no such group",
    ),
    "unknown-type": (("instance_type=m5.8xlarge", "training_cfg.run.ntasks_per_node=1"), "E379", "instance_type", "runs"),
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
    "module": (
        ("training_cfg.entry_script=null", "training_cfg.entry_module=a.b"),
        "E385",
        "recipes.training_cfg.entry_module",
        "no modules",
    ),
    "script-path": (("training_cfg.entry_script=/abs/train.py",), "E385", "recipes.training_cfg.entry_script", "relative"),
    "flag": (("training_cfg.script_args=[{--fast: null}]",), "E385", None, "one value"),
    "dash": (("training_cfg.script_args=[{-lr: 1}]",), "E385", None, "two before more"),
    "twice": (("training_cfg.script_args=[{--a: 1}, {--a: 2}]",), "E385", None, "twice"),
    "processes": (("training_cfg.run.ntasks_per_node=4",), "E386", "recipes.training_cfg.run.ntasks_per_node", "starts 8"),
    "overrides": ((f"{J}.recipe_overrides={{trainer: {{devices: 2}}}}",), "E387", None, "recipes.trainer"),
    "given-twice": (
        (f"{J}.max_retries=2", f"+{J}.additional_estimator_kwargs.max_retry_attempts=3"),
        "E388",
        f"{J}.additional_estimator_kwargs.max_retry_attempts",
        "one of them",
    ),
    "sdk-typo": ((f"+{J}.additional_estimator_kwargs.max_runs=3",), "E101", None, "did you mean max_run"),
    "member": ((f"{J}.request={{TrainingJobName: x}}",), "E389", f"{J}.request.TrainingJobName", "not for this key"),
    "member-typo": (
        (f"{J}.request={{RemoteDebugConfig: {{Enable: true}}}}",),
        "E389",
        f"{J}.request.RemoteDebugConfig.Enable",
        "EnableRemoteDebug",
    ),
    "member-value": (
        (f"{J}.request={{ExperimentConfig: {{ExperimentName: -}}}}",),
        "E389",
        f"{J}.request.ExperimentConfig.ExperimentName",
        "form",
    ),
    "isolated": (
        (f"{J}.network_isolation=true", f"{J}.source_dir=s3://b/s.tar.gz"),
        "E390",
        f"{J}.source_dir",
        "without a network",
    ),
    "source": ((f"{J}.source_dir=./code",), "E391", f"{J}.source_dir", "tar.gz"),
    "tag-aws": ((f"{J}.tags={{'aws:x': y}}",), "E102", None, "Amazon's own"),
    "tag-form": ((f"{J}.tags={{'a?': y}}",), "E102", None, "Tags.Key"),
    "tag-count": ((f"{J}.tags={{{', '.join(f't{i}: a' for i in range(51))}}}",), "E102", f"{J}.tags", "50"),
    "metric": ((f"{J}.metric_definitions=[{{name: a, regex: {LONG}}}]",), "E102", None, "1 to 500"),
    "entrypoint": ((f"{J}.container_entrypoint=[{LONG}]",), "E102", f"{J}.container_entrypoint.0", "256"),
    "region": ((f"{J}.region=Frankfurt",), "E102", f"{J}.region", ""),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_names_its_rule(name, problems):
    overrides, code, path, says = FAULTS[name]
    found = problems(*SCRIPT, *overrides)
    assert [problem.code for problem in found] == [code]
    assert path in (None, found[0].path)
    assert says in str(found[0])


def test_faults_of_different_kinds_come_together(problems):
    some = ["role-form", "mode", "spot-no-wait", "half-vpc", "variable-value", "kms-form", "source", "retries", "member"]
    found = problems(*SCRIPT, *(each for name in some for each in FAULTS[name][0]))
    assert sorted({p.code for p in found}) == sorted({FAULTS[name][1] for name in some})
    assert len(found) == len(some)


def test_a_training_job_is_not_elastic(problems):
    (found,) = problems(*TINY, "recipes.elastic_policy.is_elastic=true")
    assert found.code == "E211"


def test_what_no_rule_has_seen_is_refused_as_a_whole(prepare):
    job = dataclasses.replace(prepare(*SCRIPT), image="x" * 300)
    (found,) = SageMakerBackend().check(job)
    assert (found.code, found.path) == ("E399", "request.json: AlgorithmSpecification.TrainingImage")


def test_the_recipes_place_follows_from_its_content(requested):
    def place(*overrides):
        found = requested(*RECIPE, *overrides)["InputDataConfig"][-1]
        return found["DataSource"]["S3DataSource"]["S3Uri"]

    assert place() == place(f"{J}.max_retries=3")
    rate = "recipes.training_config.training_args.learning_rate=0.5"
    assert place() != place(rate) and place().startswith("s3://results/out/llama")
    assert place(f"{J}.recipe_path=s3://recipes/here/").startswith("s3://recipes/here/llama")


def test_hyperparameters_are_json_or_as_sdk_3_writes_them(requested):
    assert requested(*RECIPE)["HyperParameters"] == {
        "sagemaker_recipe_local_path": '"/opt/ml/input/data/recipe/config.yaml"'
    }
    bare = requested(*RECIPE, f"{J}.pysdk_launch_executor=model_trainer")["HyperParameters"]
    assert bare == {"sagemaker_recipe_local_path": "/opt/ml/input/data/recipe/config.yaml"}


JAVA = [
    (".*", "a\nb", False),
    (".*", "a\u2028b", False),
    (r"[\S\s]*", "a\nb", True),
    (r"\d{2}", "\u0661\u0662", False),
    (r"([\p{L}\p{Z}\p{N}_.:/=+\-@]*)", "Größe 3 ½", True),
    (r"([\p{L}\p{Z}\p{N}_.:/=+\-@]*)", "a?", False),
    (r"[a-z.]+", "a.b", True),
    (r"arn:[\p{Alnum}\-]+:x", "arn:aws-cn:x", True),
]


@pytest.mark.parametrize(("pattern", "text", "expected"), JAVA, ids=[ascii(f"{p} {t}") for p, t, _ in JAVA])
def test_patterns_mean_what_they_mean_in_java(pattern, text, expected):
    assert bool(constraints.java_pattern(pattern).fullmatch(text)) is expected


TEXTS = st.text(string.ascii_letters + string.digits + "-_./:s3 \n@é", max_size=80)
NAMES = st.from_regex(r"[A-Za-z0-9._-]{1,70}", fullmatch=True)
JOBS = {
    "role": st.one_of(TEXTS, st.just("arn:aws:iam::123456789012:role/train")),
    "output_path": st.one_of(TEXTS, st.just("s3://b/x"), st.integers(1000, 1100).map(lambda n: "s3://b/" + "k" * n)),
    "output_kms_key": st.none() | TEXTS,
    "max_retries": st.none() | st.integers(-1, 40),
    "keep_alive_s": st.none() | st.integers(-1, 22000),
    "volume_size_gb": st.none() | st.integers(-1, 500),
    "tags": st.none() | st.dictionaries(TEXTS, TEXTS, max_size=60),
    "environment": st.none() | st.dictionaries(TEXTS, TEXTS, max_size=4),
    "hyperparameters": st.none() | st.dictionaries(TEXTS, st.one_of(TEXTS, st.integers(), st.booleans()), max_size=4),
    "metric_definitions": st.none()
    | st.lists(st.fixed_dictionaries({"name": TEXTS, "regex": TEXTS}), max_size=45),
    "container_arguments": st.none() | st.lists(TEXTS, max_size=4),
    "inputs": st.fixed_dictionaries(
        {"s3": st.none() | st.dictionaries(NAMES, st.just("s3://b/x/"), max_size=3), "file_system": st.none()}
    ),
    "stopping_condition": st.fixed_dictionaries(
        {
            "max_runtime_s": st.none() | st.integers(-1, 2_500_000),
            "max_wait_s": st.none(),
            "max_pending_s": st.none() | st.integers(0, 2_500_000),
        }
    ),
}


@pytest.fixture(scope="module")
def defaults():
    from launcher import yamlio

    text = (ROOT / "recipes_collection/cluster/sm_jobs.yaml").read_text(encoding="utf-8")
    return yamlio.load(text)["sm_jobs_config"]


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_a_request_that_is_accepted_is_one_that_the_model_takes(defaults, data):
    drawn = data.draw(st.fixed_dictionaries({}, optional=JOBS))
    usual = {"role": "arn:aws:iam::123456789012:role/train", "output_path": "s3://b/x"}
    from launcher.typed import type_problems

    typed, faults = type_problems(Settings, {"sm_jobs_config": {**defaults, **usual, **drawn}, "container_mounts": None}, "cluster")
    assert all(fault.code == "E102" and fault.message for fault in faults)
    blamed = {fault.path.split(".")[2] for fault in faults}
    assert blamed <= set(drawn)
    if faults:
        return
    jobs = typed.sm_jobs_config
    plan = parts.Plan(jobs, {"env_vars": {}}, "llm_finetuning_aws", 1, 8, "ml.p3.16xlarge", "me/image:1")
    built = request.build(plan, "job", {"config.yaml": "a: 1\n"})
    assert [violation for violation in violations(built, model())] == [
        violation for violation in _walked(built)
    ], "the launcher's own walk and botocore's model differ"


def _walked(built):
    """Return the paths that the launcher's walk refuses, in the model's spelling."""
    found = []
    for fault in constraints.faults(built):
        found.append("." + re.sub(r"\.\d+", "[]", fault.member))
    return found


def frozen(folder):
    return pipeline.render(pipeline.prepare(SCRIPT, frozen_context(folder)), frozen_context(folder))


def test_rendering_twice_gives_the_same_bytes(tmp_path):
    assert frozen(tmp_path) == frozen(tmp_path)


def test_nothing_is_accepted_in_silence(problems):
    with pytest.raises(ProblemsFound, match="E101"):
        raise ProblemsFound(problems(*SCRIPT, f"+{J}.spott=true"))
