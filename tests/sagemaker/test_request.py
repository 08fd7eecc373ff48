"""Requests for training jobs: goldens, every fault's rule, and the API's own bounds as botocore's model has them."""

import dataclasses
import functools
import json
import os
import string
import subprocess

import pytest
from conftest import LLAMA, ROOT, examples, frozen_context
from hypothesis import event, given
from hypothesis import strategies as st
from request_faults import BASE_MODEL, DATASET, DIST, FAULTS, FINE, HUB, ON_BASE_MODEL, PACKAGE, SERVERLESS, VPC, J

from launcher import pipeline
from launcher.backends.sagemaker import constraints, request, submit
from launcher.backends.sagemaker.backend import SageMakerBackend
from launcher.backends.sagemaker.keys import SDK_NAMES
from launcher.backends.sagemaker.training_options import EstimatorArguments, Settings, SmJobs
from launcher.common import yaml_io
from launcher.common.secret_names import is_secret
from launcher.model.instances import table
from launcher.model.validation import type_problems

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
    "container=123456789012.dkr.ecr.us-west-2.amazonaws.com/me:1",
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
GRPO = (
    "recipes=fine-tuning/qwen-0_7_0/verl-grpo-rlvr-qwen-3-dot-5-9b-fft",
    *NEEDED,
    "recipes.trainer.num_nodes=2",
    "recipes.training_config.data.train_files=/opt/ml/input/data/prompts/train.parquet",
    "recipes.training_config.data.val_files=/opt/ml/input/data/prompts/val.parquet",
    "recipes.training_config.trainer.default_local_dir=/opt/ml/checkpoints",
    f"{J}.inputs.s3={{prompts: s3://data/prompts/}}",
    f"{J}.checkpoints.s3_uri=s3://results/checkpoints/",
)
EVERYTHING = (
    *SCRIPT,
    VPC,
    "training_cfg.run.nodes=3",
    "training_cfg.script_args=[{--lr: 0.1}, {--config: 'bundle:configs'}, {-v: true}]",
    "env_vars={B: fromenv, C: 3}",
    f"{J}.environment={{A: '1', B: fromenv}}",
    f"{J}.source_dir=s3://code/job/sourcedir.tar.gz",
    f"{J}.inputs.s3={{train: s3://data/train/}}",
    f"+{J}.inputs.channels.stream={{s3: s3://data/all.manifest, mode: Pipe, s3_data_type: AugmentedManifestFile,"
    " attribute_names: [image-ref, label], distribution: ShardedByS3Key, instance_groups: [fast],"
    " content_type: image/png, compression: Gzip, record_wrapper: RecordIO, shuffle_seed: 7}",
    f"+{J}.inputs.channels.lustre={{file_system: {{id: fs-0123456789abcdef0, type: FSx, directory_path: /mnt/x,"
    " access: rw}}",
    f"{J}.input_mode=FastFile",
    f"{J}.instance_groups=[{{name: fast, instance_type: p3.16xlarge, instance_count: 2}},"
    " {name: other, instance_type: ml.p3dn.24xlarge, instance_count: 1}]",
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
    f"{J}.metrics_time_series=true",
    f"{J}.placement={{multiple_jobs: false, specifications: [{{instance_count: 2, ultra_server_id: us-1}}]}}",
    f"{J}.experiment={{experiment_name: e, trial_name: t, component_name: c, run_name: r}}",
    f"{J}.debugger={{output_path: s3://results/debug, local_path: /opt/ml/output/tensors,"
    " hook_parameters: {save_interval: '50'}, collections: [{name: losses, parameters: {save_interval: '5'}}],"
    " rules: [{name: over, image: me/rules:1, instance_type: ml.m5.large, volume_size_gb: 9, local_path: /opt/rule,"
    " output_path: s3://results/rules, parameters: {patience: '3'}}]}",
    f"{J}.profiler={{disabled: false, output_path: s3://results/profile, interval_ms: 500, parameters: {{a: b}},"
    " rules: [{name: idle, image: me/rules:1, instance_type: ml.m5.large, volume_size_gb: 10, local_path: /opt/rule,"
    " output_path: s3://results/rules, parameters: {threshold: '9'}}]}",
    f"{J}.remote_debug=true",
    f"{J}.infra_check=true",
    f"{J}.session_tag_chaining=false",
    f"{J}.model_package={{group_arn: 'arn:aws:sagemaker:eu-west-1:123456789012:model-package-group/mine',"
    f" source_arn: '{PACKAGE}'}}",
)
SERVERLESS_JOB = (
    *SCRIPT,
    *SERVERLESS,
    f"{J}.serverless={{base_model_arn: '{BASE_MODEL}', accept_eula: true, job_type: FineTuning, technique: SFT,"
    f" peft: LORA, evaluation_type: BenchmarkEvaluation, evaluator_arn: '{HUB}/JsonDoc/score', sequence_length: 8K}}",
    f"+{J}.inputs.channels.train={{dataset_arn: '{DATASET}'}}",
    f"{J}.hyperparameters={{learning_rate: 0.001}}",
)
ONE_TYPE = (
    *SCRIPT,
    f"{J}.volume_kms_key=alias/mine",
    f"{J}.keep_alive_s=60",
    f"{J}.training_plan_arn=arn:aws:sagemaker:eu-west-1:123456789012:training-plan/mine",
    f"{J}.vpc={{subnets: [subnet-1], security_group_ids: [sg-1]}}",
    f"{J}.image_access={{mode: Vpc, credentials_provider_arn: 'arn:aws:lambda:eu-west-1:123456789012:function:f'}}",
    f"{J}.container_entrypoint=[/run]",
    f"{J}.container_arguments=[--fast]",
    f"+{J}.inputs.channels.model={{s3: s3://data/m/, accept_eula: true, hub_content_arn: '{HUB}/Model/m'}}",
)
ALGORITHM = (*SCRIPT, *SERVERLESS, f"{J}.algorithm_name=mine")
GOLDENS = {
    "sm_recipe": RECIPE,
    "sm_script": (*SCRIPT, "++recipes.distribution.mpi.enabled=true"),
    "sm_everything": EVERYTHING,
    "sm_tiny": TINY,
    "sm_grpo": GRPO,
    "sm_serverless": SERVERLESS_JOB,
    "sm_one_type": ONE_TYPE,
    "sm_algorithm": ALGORITHM,
}
WITHOUT_KEY = {
    "ResourceConfig.InstancePreferences": "a plan is of one instance type, which decides processes and batches",
    "ResourceConfig.SelectedInstanceType": "the service's answer about InstancePreferences",
    "ResourceConfig.SelectedInstanceCount": "the service's answer about InstancePreferences",
}
"""Members of CreateTrainingJob that no key sets, and why; what is below them is left out too."""


@pytest.fixture
def requested(render):
    """Return a function from overrides to the parsed request."""
    return lambda *overrides: json.loads(render(*overrides).files["request.json"])


@functools.cache
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
    if kind == "structure" and (set(shape.required_members) - set(value) or set(value) - set(shape.members)):
        yield path
    for item, inner, name in within(value, shape):
        yield from violations(item, inner, path + name)


def within(value, shape):
    """Yield the values in a value, with their shapes and names."""
    if shape.type_name == "structure":
        yield from ((value[key], shape.members[key], f".{key}") for key in set(value) & set(shape.members))
    elif shape.type_name == "list":
        yield from ((item, shape.member, "[]") for item in value)
    elif shape.type_name == "map":
        yield from ((key, shape.key, "{key}") for key in value)
        yield from ((item, shape.value, "{value}") for item in value.values())


@pytest.mark.parametrize("name", GOLDENS)
def test_requests_are_the_reviewed_ones(name, render, pytestconfig):
    text = render(*GOLDENS[name]).files["request.json"]
    path = ROOT / "tests" / "golden" / f"{name}.json"
    if pytestconfig.getoption("rewrite_goldens"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_member_of_the_api_has_a_key_or_a_reason(requested):
    reached = set()

    def reach(value, shape, path):
        reached.add(path)
        for item, inner, name in within(value, shape):
            reach(item, inner, path + name)

    def walk(shape, path):
        yield path
        below = {
            "structure": lambda: ((f".{key}", inner) for key, inner in shape.members.items()),
            "list": lambda: [("[]", shape.member)],
            "map": lambda: [("{key}", shape.key), ("{value}", shape.value)],
        }
        for name, inner in below.get(shape.type_name, list)():
            yield from walk(inner, path + name)

    for words in GOLDENS.values():
        reach(requested(*words), model(), "")
    members = {path.removeprefix(".") for path in walk(model(), "")} - {""}
    reasoned = {path for path in members if any(path == bare or path.startswith(f"{bare}[") for bare in WITHOUT_KEY)}
    assert set(WITHOUT_KEY) <= reasoned  # each is a member
    missing = members - reasoned - {path.removeprefix(".") for path in reached}
    assert not missing


@pytest.mark.slow
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
    for path in SDK_NAMES.values():
        section, _, key = path.rpartition(".")
        assert key in (SmJobs.model_fields[section].annotation if section else SmJobs).model_fields
    ours = requested(*SCRIPT, VPC, f"{J}.stopping_condition.max_runtime_s=60", f"{J}.keep_alive_s=5")
    sdk = requested(
        *SCRIPT,
        f"+{J}.additional_estimator_kwargs={{max_run: 60, keep_alive_period_in_seconds: 5, subnets: [subnet-1],"
        " security_group_ids: [sg-1]}",
    )
    assert ours == sdk and ours["StoppingCondition"] == {"MaxRuntimeInSeconds": 60}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_names_its_rule(name, problems, reviewed):
    overrides, code, path, says = FAULTS[name]
    found = problems(*SCRIPT, *overrides)
    reviewed(f"sagemaker {name}", found)
    assert [problem.code for problem in found] == [code]
    assert path in (None, found[0].path)
    assert says in str(found[0])


@pytest.mark.parametrize("name", ["group-sum", "isolated-checkpoints", "isolated-tracking"])
def test_the_remedy_of_a_fault_is_accepted(name, problems, prepare):
    words = (*SCRIPT, *FAULTS[name][0])
    (found,) = problems(*words)
    assert prepare(*words, *found.remedy.split()).backend == "sm_jobs"


def test_a_variable_of_the_job_replaces_none_of_the_program(problems):
    words = (
        *("recipes=evaluation/open-source/open_source_deterministic_eval", "cluster=sm_jobs"),
        *("recipes.run.base_model_name=m", "recipes.run.model_name_or_path=s3://data/m/"),
        *("recipes.output.eval_results_dir=s3://data/r/", f"{J}.output_path=s3://data/o"),
        f"{J}.role=arn:aws:iam::123456789012:role/train",
    )
    (fault,) = problems(*words, f"{J}.environment={{CONFIG_FILE_PATH: /x}}")
    assert (
        fault.code == "E383"
        and fault.path == f"{J}.environment.CONFIG_FILE_PATH"
        and "the launcher sets it" in fault.message
    )


def test_a_variable_of_the_job_replaces_a_default(requested):
    words = (*SCRIPT, f"{J}.environment={{NCCL_DEBUG: INFO}}")
    assert requested(*words)["Environment"]["NCCL_DEBUG"] == "INFO"
    assert requested(*words, "env_vars.NCCL_DEBUG=INFO") == requested(*words)
    assert requested(*words, "env_vars.NCCL_DEBUG=null") == requested(*words)


@pytest.mark.parametrize("name", FINE)
def test_what_only_resembles_a_fault_is_accepted(name, prepare):
    assert prepare(*SCRIPT, *FINE[name]).backend == "sm_jobs"


@pytest.mark.parametrize(
    "override",
    [
        f"{J}.network_isolation=true",
        f"+{J}.additional_estimator_kwargs.encrypt_inter_container_traffic=true",
        f"{J}.placement.multiple_jobs=true",
        f"{J}.metric_definitions=[{{name: a, regex: '(b)'}}]",
    ],
)
def test_the_remedy_for_a_serverless_job_s_container_is_accepted(override, problems, prepare):
    words = (*SCRIPT, *SERVERLESS, *ON_BASE_MODEL, override)
    (problem,) = problems(*words)
    assert (problem.code, problem.path) == ("E336", override.lstrip("+").partition("=")[0])
    assert prepare(*words, problem.remedy).name


def test_faults_of_different_kinds_come_together(problems):
    some = [
        "role-form",
        "mode",
        "spot-no-wait",
        "half-vpc",
        "variable-value",
        "kms-form",
        "source",
        "retries",
        "experiment-form",
    ]
    found = problems(*SCRIPT, *(each for name in some for each in FAULTS[name][0]))
    assert sorted({p.code for p in found}) == sorted({FAULTS[name][1] for name in some})
    assert len(found) == len(some)


def test_a_training_job_is_not_elastic(problems):
    (found,) = problems(*TINY, "recipes.elastic_policy.is_elastic=true")
    assert found.code == "E211"


def test_a_disk_that_is_not_the_instances_own_takes_a_key():
    families = {name.split(".")[1] for name in constraints.instance_types() if table()[name].nvme_gb}
    assert families == {
        *("g4dn", "g5", "g6", "g6e", "g7", "g7e", "p3dn", "p4d", "p4de", "p5", "p5e", "p5en", "p6-b200", "p6-b300"),
        *("p6e-gb200", "r5d", "trn1", "trn1n", "trn2"),
    }


def test_what_no_rule_has_seen_is_refused_as_a_whole(prepare):
    job = dataclasses.replace(prepare(*SCRIPT), image="x" * 300)
    (found,) = SageMakerBackend().check(job)
    assert (found.code, found.path) == ("E399", "request.json: AlgorithmSpecification.TrainingImage")


def test_numbers_have_as_many_bits_as_the_services():
    for member, most in (
        ("ResourceConfig.VolumeSizeInGB", 2**31 - 1),
        ("InputDataConfig[].ShuffleConfig.Seed", 2**63 - 1),
    ):
        assert not list(constraints.faults(most, member))
        (fault,) = constraints.faults(most + 1, member)
        assert "bits" in fault.message


def test_a_file_uri_that_names_no_store_is_the_programs_own(requested):
    variables = f"{J}.environment={{TRACKING: 'file:///opt/ml/output/data/runs'}}"
    assert requested(*SCRIPT, variables)["Environment"]["TRACKING"] == "file:///opt/ml/output/data/runs"


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


OWN_PROGRAM = ("training_cfg.script_args=[{--max_depth: 6}]", f"{J}.hyperparameters={{eta: '0.001', num_round: 128}}")
PLAIN = {"max_depth": "6", "eta": "0.001", "num_round": "128"}
"""As in: How Amazon SageMaker Provides Training Information, hyperparameters.json."""


@pytest.mark.parametrize(
    "words",
    [
        pytest.param((f"{J}.toolkit=false", "training_cfg.entry_script=null"), id="the image's own program"),
        pytest.param((f"{J}.container_entrypoint=[python3,/code/train.py]",), id="container_entrypoint"),
        pytest.param((f"+{J}.additional_estimator_kwargs.container_entry_point=[/x]",), id="the SDK's entry point"),
        pytest.param((f"{J}.algorithm_name=a", "container=null", "training_cfg.entry_script=null"), id="algorithm"),
    ],
)
def test_hyperparameters_are_plain_text_for_a_program_without_the_toolkit(words, requested):
    assert requested(*SCRIPT, *OWN_PROGRAM, *words)["HyperParameters"] == PLAIN


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(
            (f"{J}.spot=true", f"{J}.stopping_condition.max_wait_s=86400"),
            [("N170", "checkpoints.s3_uri")],
            id="spot without checkpoints",
        ),
        pytest.param(
            (f"{J}.volume_size_gb=500", "instance_type=g5.12xlarge", "training_cfg.run.ntasks_per_node=4"),
            [("N184", "its local disk of 3800 GB alone")],
            id="a size of a local disk",
        ),
        pytest.param(
            ("container=docker.io/org/image:1",), [("N185", "is not an image of Amazon ECR")], id="registry"
        ),
        pytest.param(("container=123456789012.dkr-ecr.us-west-2.on.aws/me:1",), [], id="registry of two stacks"),
        pytest.param(("container=123456789012.dkr.ecr-fips.us-east-1.amazonaws.com/me:1",), [], id="FIPS registry"),
        pytest.param(
            ("container=registry.example/image", f"{J}.image_access.mode=Vpc", VPC), [], id="private registry"
        ),
        pytest.param(
            (f"{J}.spot=true", f"{J}.stopping_condition.max_wait_s=86400", f"{J}.checkpoints.s3_uri=s3://data/c"),
            [],
            id="spot with checkpoints",
        ),
        pytest.param(
            (f"{J}.inputs.s3={{train: 's3://data/a/'}}", f"+{J}.inputs.channels.Train={{s3: s3://data/b/}}"),
            [("N171", "channels train and Train differ only by case: SM_CHANNEL_TRAIN")],
            id="channels",
        ),
        pytest.param(
            (f"{J}.inputs.s3={{Recipe: 's3://data/a/'}}",), [("N171", "SM_CHANNEL_RECIPE")], id="the recipe's"
        ),
        pytest.param(
            (f"{J}.hyperparameters={{lr: 1, LR: 2}}",),
            [("N171", "hyperparameters lr and LR differ only by case: SM_HP_LR")],
            id="hyperparameters",
        ),
        pytest.param(
            (*SERVERLESS, *ON_BASE_MODEL), [("N172", "the plan's instances have no effect")], id="serverless"
        ),
        pytest.param(
            (f"{J}.hyperparameters={{lr: 1, LR: 2}}", f"{J}.toolkit=false"), [], id="hyperparameters as plain text"
        ),
    ],
)
def test_what_is_likely_a_slip_is_a_notice(words, said, prepare):
    codes = {"N170", "N171", "N172", "N184", "N185"}
    found = [notice for notice in prepare(*SCRIPT, *words).notices if notice.code in codes]
    assert [notice.code for notice in found] == [code for code, _ in said]
    assert all(word in notice.message for notice, (_, word) in zip(found, said, strict=True))


def test_hyperparameters_are_json_for_the_toolkit(requested):
    found = requested(*SCRIPT, *OWN_PROGRAM)["HyperParameters"]
    assert found["eta"] == '"0.001"' and found["sagemaker_program"] == '"train.py"'
    wrapped = (f"{J}.container_entrypoint=[/bin/bash,-c,'pip install . && train']", f"{J}.toolkit=true")
    assert requested(*SCRIPT, *OWN_PROGRAM, *wrapped)["HyperParameters"] == found


def test_the_launchers_own_program_gets_plain_text_too(requested):
    assert requested(*TINY, f"{J}.hyperparameters={{name: x, rate: 0.5, fast: true}}")["HyperParameters"] == {
        "name": "x",
        "rate": "0.5",
        "fast": "true",
    }


STARTED = {
    "torch_distributed": (
        (f"{DIST}.torch_distributed.enabled=true",),
        {"sagemaker_torch_distributed_enabled": "true", "sagemaker_instance_type": '"ml.p4d.24xlarge"'},
    ),
    "left-out": (
        (),
        {"sagemaker_torch_distributed_enabled": "true", "sagemaker_instance_type": '"ml.p4d.24xlarge"'},
    ),
    "dataparallel": (
        (f"{DIST}.smdistributed.dataparallel.enabled=true",),
        {
            "sagemaker_distributed_dataparallel_enabled": "true",
            "sagemaker_instance_type": '"ml.p4d.24xlarge"',
            "sagemaker_distributed_dataparallel_custom_mpi_options": '""',
        },
    ),
    "dataparallel-options": (
        (f"{DIST}.smdistributed.dataparallel={{enabled: true, custom_mpi_options: '-verbose -x NCCL_DEBUG=INFO'}}",),
        {
            "sagemaker_distributed_dataparallel_enabled": "true",
            "sagemaker_instance_type": '"ml.p4d.24xlarge"',
            "sagemaker_distributed_dataparallel_custom_mpi_options": '"-verbose -x NCCL_DEBUG=INFO"',
        },
    ),
}


@pytest.mark.parametrize(("words", "expected"), STARTED.values(), ids=STARTED)
def test_a_script_is_started_as_its_distribution_says(words, expected, requested):
    """Source: SageMaker Python SDK 2.257.6, Framework._distribution_configuration, PyTorch.hyperparameters."""
    found = requested(*SCRIPT, "instance_type=p4d.24xlarge", "training_cfg.run.nodes=2", *words)["HyperParameters"]
    assert found == {"sagemaker_program": '"train.py"', **expected}


def test_one_process_needs_no_launcher(requested):
    one = (*SCRIPT, "instance_type=m5.xlarge", "training_cfg.run.ntasks_per_node=1")
    assert requested(*one)["HyperParameters"] == {"sagemaker_program": '"train.py"'}
    found = requested(*one, f"{DIST}.torch_distributed.enabled=false")["HyperParameters"]
    assert found["sagemaker_torch_distributed_enabled"] == "false"


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
    "output_path": st.one_of(
        TEXTS, st.just("s3://data/x"), st.integers(1000, 1100).map(lambda n: "s3://data/" + "k" * n)
    ),
    "output_kms_key": st.none() | TEXTS,
    "max_retries": st.none() | st.integers(-1, 40),
    "keep_alive_s": st.none() | st.integers(-1, 22000),
    "volume_size_gb": st.none() | st.integers(-1, 500),
    "tags": st.none() | st.dictionaries(TEXTS, TEXTS, max_size=60),
    "environment": st.none() | st.dictionaries(TEXTS, TEXTS, max_size=4),
    "hyperparameters": st.none() | st.dictionaries(TEXTS, st.one_of(TEXTS, st.integers(), st.booleans()), max_size=4),
    "metric_definitions": st.none() | st.lists(st.fixed_dictionaries({"name": TEXTS, "regex": TEXTS}), max_size=45),
    "container_arguments": st.none() | st.lists(TEXTS, max_size=4),
    "inputs": st.fixed_dictionaries(
        {"s3": st.none() | st.dictionaries(NAMES, st.just("s3://data/x/"), max_size=3), "file_system": st.none()}
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
    text = (ROOT / "recipes_collection/cluster/sm_jobs.yaml").read_text(encoding="utf-8")
    return yaml_io.load(text)["sm_jobs_config"]


@pytest.mark.slow
@given(data=st.data())
@examples(300)
def test_a_request_that_is_accepted_is_one_that_the_model_takes(defaults, data):
    drawn = data.draw(st.fixed_dictionaries({}, optional=JOBS))
    usual = {"role": "arn:aws:iam::123456789012:role/train", "output_path": "s3://data/x"}
    tree = {"sm_jobs_config": {**defaults, **usual, **drawn}, "container_mounts": None}
    typed, faults = type_problems(Settings, tree, "cluster")
    assert all(fault.code == ("E601" if is_secret(fault.path) else "E102") and fault.message for fault in faults)
    blamed = {fault.path.split(".")[2] for fault in faults}
    assert blamed <= set(drawn)
    event("refused" if faults else "accepted")
    if faults:
        return
    jobs = typed.sm_jobs_config
    plan = request.Plan(jobs, {"env_vars": {}}, "llm_finetuning_aws", 1, 8, "ml.p3.16xlarge", "me/image:1")
    built = request.build(plan, "job", {"config.yaml": "a: 1\n"})
    refused = list(submit.request_problems(built))
    assert bool(refused) == bool(list(violations(built, model())))
    assert all(problem.path.startswith("request.json: ") and problem.message for problem in refused)


def frozen(folder):
    return pipeline.render(pipeline.prepare(SCRIPT, frozen_context(folder)), frozen_context(folder))


def test_rendering_twice_gives_the_same_bytes(tmp_path):
    assert frozen(tmp_path) == frozen(tmp_path)


@pytest.mark.slow
def test_the_start_script_tells_each_host_its_place(tmp_path, render, shellcheck):
    recipe, config, bin_dir = tmp_path / "ml/input/data/recipe", tmp_path / "ml/input/config", tmp_path / "bin"
    channels = [recipe.parent / name for name in ("train", "my-data")]
    for folder in (recipe, config, bin_dir, *channels):
        folder.mkdir(parents=True)
    start = recipe / "start.sh"
    start.write_text(render(*TINY, "recipes.trainer.devices=2").files["start.sh"], encoding="utf-8")
    torchrun = bin_dir / "torchrun"
    names = '"$NCCL_SOCKET_IFNAME" "$SM_CHANNEL_TRAIN" "$SM_CHANNEL_MY_DATA" "$SM_MODEL_DIR"'
    torchrun.write_text(f'#!/bin/sh\necho {names} "$@"\n', encoding="utf-8")
    torchrun.chmod(0o755)
    hosts = ["algo-1", "algo-10", "algo-2"]
    resources = {"current_host": "algo-2", "hosts": hosts, "network_interface_name": "eth7"}
    (config / "resourceconfig.json").write_text(json.dumps(resources), encoding="utf-8")
    env = {"PATH": f"{bin_dir}:{os.environ['PATH']}", "RECIPES_RUN_DIR": str(tmp_path / "run")}
    done = subprocess.run(["/bin/bash", str(start)], env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        *("eth7", *map(str, channels), str(tmp_path / "ml/model")),
        *("--nnodes", "3", "--node_rank", "2", "--nproc_per_node", "2"),
        *("--master_addr", "algo-1", "--master_port", "7777"),
        *("-m", "launcher.runtime.entrypoint", "--config-path", str(recipe)),
    ]
    shellcheck(start)


def test_the_request_is_what_render_prints(recipes):
    code, out, _ = recipes("render", RECIPE[0].removeprefix("recipes="), *RECIPE[1:], "--stdout")
    assert code == 0 and json.loads(out)["RoleArn"].endswith("role/train")
