"""The section `checkpointing` from the recipe to the job: rules, notices, configuration, manifest and policies."""

import json

import pytest
from conftest import ELASTIC, LLAMA_K8S, ROOT

from launcher.common import yaml_io
from launcher.common.names import ENV_CHECKPOINTING
from launcher.runtime import model_configs

KEY = "recipes.checkpointing"
SET = f"++{KEY}"
STATIC = "recipes.elastic_policy.is_elastic=false"
RECIPE = "fine-tuning/llama/llmft_llama3_3_70b_instruct_seq4k_gpu_dpo_fft"
LARGE = (f"recipes={RECIPE}", "cluster=k8s")
S3 = f"{SET}.persistent.path=s3://bucket/prefix"
CLAIM = "cluster.persistent_volume_claims=[{claimName: fsx, mountPath: /fsx}]"
READ_ONLY = "cluster.volumes=[{volumeName: data, hostPath: /data, mountPath: /fsx/data, readOnly: true}]"
ROLE = "arn:aws:iam::111122223333:role/training"
OTHER_ACCOUNT = f"{SET}.role_arn={ROLE}"
MEMORY = f"{SET}.memory.frequency=10"


def section(job):
    """Return the compiled section of every size, which is one."""
    first, *others = [point.config.get("checkpointing") for point in job.scales]
    assert all(other == first for other in others)
    return first


KMS_KEY = "arn:aws:kms:us-west-2:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"


def notices(job, code):
    return [notice.message for notice in job.notices if notice.code == code]


def test_the_section_is_compiled_with_every_default(prepare, tmp_path):
    job = prepare(STATIC, f"{SET}.memory={{}}", f"{SET}.persistent.path=checkpoints")
    assert section(job) == {
        "namespace": job.name,
        "memory": {"frequency": 10, "retention": 3},
        "persistent": {"frequency": 100, "retention": 2, "path": str(tmp_path / "checkpoints")},
        "s3_endpoint": None,
        "s3_checksums": True,
        "kms_key": None,
        "patience_s": 600,
        "replicas": 1,
    }


def test_what_the_user_says_is_compiled_as_it_is(prepare):
    words = ("namespace=run_1", "memory={frequency: 5, retention: 2}", "replicas=0", "s3_endpoint=http://h:9000")
    words += ("s3_checksums=false", f"kms_key={KMS_KEY}", "patience_s=60")
    job = prepare(STATIC, S3, f"{SET}.persistent.frequency=50", *(f"{SET}.{word}" for word in words))
    assert section(job) == {
        "namespace": "run_1",
        "memory": {"frequency": 5, "retention": 2},
        "persistent": {"frequency": 50, "retention": 2, "path": "s3://bucket/prefix"},
        "s3_endpoint": "http://h:9000",
        "s3_checksums": False,
        "kms_key": KMS_KEY,
        "patience_s": 60,
        "replicas": 0,
    }


@pytest.mark.parametrize(
    "words", [(), (f"{SET}.estimate.step_s=2",), (f"{SET}.memory=null",)], ids=["", "estimate", "null"]
)
def test_without_a_tier_the_job_is_as_it_was(render, words):
    plain, other = render(ELASTIC), render(ELASTIC, *words)
    changed = {name for name in plain.files if plain.files[name] != other.files.get(name)}
    assert plain.files.keys() == other.files.keys()
    assert changed <= {"recipe.yaml", "bundle.json"}


def test_a_script_of_ones_own_gets_the_section_by_a_variable(prepare):
    from launcher.families.custom import INTERFACES

    job = prepare("training_cfg={entry_module: json.tool, run: {ntasks_per_node: 2}}", S3)
    assert json.loads(INTERFACES[None].workers.env(job)[ENV_CHECKPOINTING]) == section(job)
    plain = prepare("training_cfg={entry_module: json.tool, run: {ntasks_per_node: 2}}")
    assert ENV_CHECKPOINTING not in INTERFACES[None].workers.env(plain)


FAULTS = [
    ((ELASTIC, S3), "E208", f"{KEY}.persistent", "Using elastic training"),
    ((ELASTIC, MEMORY), "E208", f"{KEY}.memory", "Using elastic training"),
    ((MEMORY, S3, f"{SET}.persistent.frequency=25"), "E260", f"{KEY}.persistent.frequency", "frequency=20"),
    ((f"{SET}.memory.frequency=30", S3), "E260", f"{KEY}.persistent.frequency", "frequency=90"),
    (
        (f"{SET}.memory.frequency=30", S3, f"{SET}.persistent.frequency=10"),
        "E260",
        f"{KEY}.persistent.frequency",
        "persistent.frequency=30",
    ),
    ((f"{SET}.persistent.path=s3://Bucket/x",), "E261", f"{KEY}.persistent.path", "'Bucket' is not a valid"),
    (
        (f"{SET}.persistent.path=s3://b/x",),
        "E261",
        f"{KEY}.persistent.path",
        "'b' is not a valid bucket name: 3 to 63",
    ),
    ((f"{SET}.persistent.path=s3:///x",), "E261", f"{KEY}.persistent.path", "no bucket"),
    ((f"{SET}.persistent.path='s3://bucket/*'",), "E261", f"{KEY}.persistent.path", "policy"),
    ((f"{SET}.persistent.path=gs://bucket/x",), "E261", f"{KEY}.persistent.path", "not a supported kind of storage"),
    ((f"{SET}.persistent.path=checkpoints",), "E261", f"{KEY}.persistent.path", "absolute"),
    (
        (f"{SET}.persistent.path=/fsx/x",),
        "E262",
        f"{KEY}.persistent.path",
        "lost with them\n     value: '/fsx/x'\n     allowed: s3://bucket/prefix",
    ),
    (
        (CLAIM, READ_ONLY, f"{SET}.persistent.path=/fsx/data/x"),
        "E262",
        f"{KEY}.persistent.path",
        "is not on a volume that the pods can write to",
    ),
    ((CLAIM, f"{SET}.persistent.path=/fsx2/x"), "E262", f"{KEY}.persistent.path", "/fsx/…"),
    ((CLAIM, f"{SET}.persistent.path=/fsx/../x"), "E262", f"{KEY}.persistent.path", "/fsx/…"),
    ((S3, f"{SET}.role_arn='arn:aws:iam::111122223333:role/*'"), "E102", f"{KEY}.role_arn", "role/"),
    ((S3, f"{SET}.replicas=2"), "E264", f"{KEY}.replicas", "without"),
    ((S3, f"{SET}.memory_percent=20"), "E264", f"{KEY}.memory_percent", "without"),
    ((MEMORY, OTHER_ACCOUNT), "E264", f"{KEY}.role_arn", "without"),
    ((MEMORY, f"{SET}.s3_endpoint=http://h:1"), "E264", f"{KEY}.s3_endpoint", "without"),
    ((MEMORY, f"{SET}.s3_checksums=false"), "E264", f"{KEY}.s3_checksums", "without"),
    ((f"{SET}.patience_s=5",), "E264", f"{KEY}.patience_s", "without"),
    ((S3, f"{SET}.kms_key=alias/mine"), "E102", f"{KEY}.kms_key", "kms"),
    ((f"{SET}.namespace='a b'", MEMORY), "E102", f"{KEY}.namespace", "letters, digits, _ and -"),
    ((f"{SET}.memory.frequency=0",), "E102", f"{KEY}.memory.frequency", "1"),
    ((MEMORY, f"{SET}.memory_percent=101"), "E102", f"{KEY}.memory_percent", "100"),
    ((f"{SET}.persistent={{frequency: 10}}",), "E103", f"{KEY}.persistent.path", "missing"),
    ((f"{SET}.memory.frequncy=10",), "E101", f"{KEY}.memory.frequncy", "frequency"),
    (("++recipes.tiered_checkpointing=true",), "E101", "recipes.tiered_checkpointing", "checkpointing"),
]


@pytest.mark.parametrize(("words", "code", "path", "says"), FAULTS, ids=[f"{f[1]}-{f[0][-1]}" for f in FAULTS])
def test_a_section_that_cannot_work_is_refused(problems, words, code, path, says):
    (found,) = problems(*LLAMA_K8S, *words)
    assert (found.code, found.path) == (code, path)
    assert says in str(found) and found.where


def test_training_jobs_have_no_memory_tier(problems):
    found = problems(LLAMA_K8S[0], "cluster=sm_jobs", MEMORY)
    assert f"{KEY}.memory" in {p.path for p in found if p.code == "E263"}


def test_training_jobs_keep_checkpoints_only_where_the_service_does(problems, prepare):
    jobs = "cluster.sm_jobs_config"
    words = [LLAMA_K8S[0], "cluster=sm_jobs", f"{jobs}.role={ROLE}", f"{jobs}.output_path=s3://bucket/out"]
    (found,) = problems(*words, f"{SET}.persistent.path=/opt/ml/checkpoints")
    assert (found.code, found.path) == ("E265", f"{KEY}.persistent.path") and "s3_uri=" in found.remedy
    words.append(f"{jobs}.checkpoints.s3_uri=s3://bucket/kept")
    job = prepare(*words, f"{SET}.persistent.path=/opt/ml/checkpoints/a")
    assert section(job)["persistent"]["path"] == "/opt/ml/checkpoints/a" and notices(job, "N133")
    (found,) = problems(*words, f"{SET}.persistent.path=/opt/ml/checkpoints/../a")
    assert found.code == "E265" and found.allowed == "/opt/ml/checkpoints/…"
    words.append(f"{jobs}.checkpoints.local_path=/tmp/x")
    (found,) = problems(*words, f"{SET}.persistent.path=/opt/ml/checkpoints")
    assert (found.code, found.remedy) == ("E265", f"{KEY}.persistent.path=/tmp/x")
    assert prepare(*words, f"{SET}.persistent.path=/opt/ml/checkpoints", found.remedy)


DATA = "/opt/ml/input/data"


@pytest.mark.parametrize(
    ("access", "path", "allowed"),
    [
        ("rw", f"{DATA}/fs/a", None),
        ("rw", f"{DATA}/s3/a", f"{DATA}/fs/…"),
        ("ro", f"{DATA}/fs/a", "s3://bucket/prefix"),
    ],
    ids=["kept", "of S3", "read-only"],
)
def test_a_path_in_a_file_system_outlives_a_training_job(access, path, allowed, problems, prepare):
    jobs = "cluster.sm_jobs_config"
    system = f"{{id: fs-01234567, type: EFS, directory_path: /x, access: {access}}}"
    words = (
        *(LLAMA_K8S[0], "cluster=sm_jobs", f"{jobs}.role={ROLE}", f"{jobs}.output_path=s3://bucket/out"),
        f"{jobs}.vpc={{subnets: [subnet-1], security_group_ids: [sg-1]}}",
        f"+{jobs}.inputs.channels.s3={{s3: s3://bucket/a}}",
        f"+{jobs}.inputs.channels.fs={{file_system: {system}}}",
        f"{SET}.persistent.path={path}",
    )
    if allowed is None:
        assert section(prepare(*words))["persistent"]["path"] == path
    else:
        (found,) = problems(*words)
        assert (found.code, found.value, found.allowed) == ("E265", path, allowed)


def test_a_folder_below_a_mount_is_taken(prepare):
    assert section(prepare(*LLAMA_K8S, CLAIM, f"{SET}.persistent.path=/fsx/a"))["persistent"]["path"] == "/fsx/a"


@pytest.mark.slow
def test_a_save_longer_than_the_graceful_timeout_is_told_at_each_size(prepare):
    words = (*LARGE, ELASTIC, "++recipes.scale_config=auto", f"{SET}.estimate.persistent_gb_per_s=0.5")
    (message,) = notices(prepare(*words), "N130")
    assert "919.9 GiB" in message and "2000 s at 1, 2, 3 nodes" in message and "=600" in message
    assert not notices(prepare(*words, f"{SET}.estimate.optimizer=none", f"{SET}.estimate.copy_gb_per_s=90"), "N130")
    assert not notices(prepare(*words, "++recipes.elastic_policy.use_graceful_shutdown=false"), "N130")
    (message,) = notices(prepare(*words, "++recipes.elastic_policy.graceful_shutdown_timeout=null"), "N130")
    assert "at 1, 2, 3, 4, 5, 6, 7, 8 nodes" in message and "=15, the agent's own" in message


def test_shared_storage_bounds_every_size(prepare):
    words = (*LARGE, ELASTIC, "++recipes.scale_config=auto", f"{SET}.estimate.storage_gb_per_s=1")
    (message,) = notices(prepare(*words), "N130")
    assert "at 1, 2, 3, 4, 5, 6, 7, 8 nodes" in message


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param((), "4 host copies need up to 2,759.7 GiB", id="whole memory"),
        pytest.param(
            (f"{SET}.memory.retention=1", f"{SET}.memory_percent=40"), "40 % for the tier are 819.2 GiB", id="a part"
        ),
        pytest.param((f"{SET}.memory.retention=2",), "2,299.8 GiB on a node", id="host copies alone do not fit"),
        pytest.param((f"{SET}.memory.retention=1",), None, id="fewer fit"),
        pytest.param((f"{SET}.replicas=0",), None, id="without replicas"),
    ],
)
def test_memory_too_small_for_the_copies_is_told(prepare, words, says):
    found = notices(prepare(*LARGE, MEMORY, *words), "N131")
    assert [says in message for message in found] == ([True] if says else [])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param((S3, "step_s=6", 15), None, id="within"),
        pytest.param((S3, "step_s=12", 15), "24.1 minutes", id="beyond"),
        pytest.param((S3, "step_s=12", 15), "persistent.frequency=50 suffices", id="remedy"),
        pytest.param((S3, "step_s=12", 4), "saving every 10 steps does not suffice", id="no remedy"),
        pytest.param((S3, "restart_s=60", 15), "without recipes.checkpointing.estimate.step_s", id="unknown pace"),
        pytest.param((MEMORY, "step_s=6", 15), "without recipes.checkpointing.persistent", id="memory alone"),
    ],
)
def test_more_work_at_risk_than_allowed_is_told(prepare, words, says):
    tier, estimate, minutes = words
    job = prepare(*LARGE, MEMORY, tier, f"{SET}.estimate.{estimate}", f"{SET}.max_lost_work_minutes={minutes}")
    found = notices(job, "N132")
    assert [says in message for message in found] == ([True] if says else [])


def test_saves_that_follow_too_closely_are_told(prepare):
    found = notices(prepare(*LARGE, MEMORY, S3, f"{SET}.estimate.step_s=2"), "N135")
    assert len(found) == 2 and "memory.frequency=13" in found[0] and "persistent.frequency=124" in found[1]


def test_rights_of_the_node_and_an_image_of_its_own_mind_are_told(prepare):
    job = prepare(*LLAMA_K8S, S3)
    assert notices(job, "N133") and notices(job, "N134")
    assert not notices(prepare(*LLAMA_K8S, S3, "cluster.service_account_name=trainer"), "N134")


def test_the_bundle_has_the_policy_of_the_role(render):
    files = render(*LLAMA_K8S, S3).files
    policy = json.loads(files["checkpointing/role-policy.json"])
    find, use = policy["Statement"]
    assert policy["Version"] == "2012-10-17"
    assert find["Action"] == ["s3:ListBucket", "s3:ListBucketMultipartUploads"]
    assert find["Resource"] == "arn:aws:s3:::bucket"
    assert use["Resource"] == "arn:aws:s3:::bucket/prefix/*"
    assert set(use["Action"]) == {
        f"s3:{a}" for a in ("GetObject", "PutObject", "DeleteObject", "AbortMultipartUpload")
    }
    assert {statement["Effect"] for statement in policy["Statement"]} == {"Allow"}
    assert "checkpointing/bucket-policy.json" not in files and "checkpointing/cluster.json" not in files


@pytest.mark.slow
def test_the_policy_is_enough_and_no_more(render, monkeypatch):
    moto = pytest.importorskip("moto", reason="pip install 'moto[s3]'")
    boto3 = pytest.importorskip("boto3")
    from botocore.exceptions import ClientError
    from moto.core import set_initial_no_auth_action_count

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    policy = render(*LLAMA_K8S, S3).files["checkpointing/role-policy.json"]

    def answer(client, operation, **words):
        try:
            getattr(client, operation)(Bucket="bucket", **words)
            return "done"
        except ClientError as error:
            return error.response["Error"]["Code"]

    def answers(client, prefix):
        key = f"{prefix}/run/step_10/rank_0"
        calls = (
            ("put_object", {"Key": key, "Body": b"x"}),
            ("get_object", {"Key": key}),
            ("create_multipart_upload", {"Key": key}),
            ("delete_objects", {"Delete": {"Objects": [{"Key": key}]}}),
            ("delete_object", {"Key": key}),
        )
        return [answer(client, operation, **words) for operation, words in calls]

    def tried(client):
        assert answers(client, "prefix") == ["done"] * 5
        for elsewhere in ("prefix2", "other"):
            refused = answers(client, elsewhere)
            assert refused == ["AccessDenied"] * 3 + ["done", "AccessDenied"], (
                refused
            )  # each key's own answer is within
        assert answer(client, "list_objects_v2", Prefix="prefix/run/") == "done"
        assert answer(client, "get_object", Key="prefix/run/nothing") == "NoSuchKey"
        assert answer(client, "put_bucket_policy", Policy="{}") == "AccessDenied"

    with moto.mock_aws():
        boto3.client("s3").create_bucket(Bucket="bucket")
        role = boto3.client("iam").create_role(RoleName="pods", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
        boto3.client("iam").put_role_policy(RoleName="pods", PolicyName="checkpoints", PolicyDocument=policy)
        keys = boto3.client("sts").assume_role(RoleArn=role, RoleSessionName="session")["Credentials"]
        session = boto3.Session(keys["AccessKeyId"], keys["SecretAccessKey"], keys["SessionToken"])
        set_initial_no_auth_action_count(0)(lambda: tried(session.client("s3")))()


def test_another_accounts_bucket_names_the_role(render):
    files = render(*LLAMA_K8S, S3, f"{SET}.role_arn={ROLE.replace('aws', 'aws-cn')}").files
    own, other = (json.loads(files[f"checkpointing/{name}-policy.json"]) for name in ("role", "bucket"))
    principals = [statement.pop("Principal") for statement in other["Statement"]]
    assert principals == [{"AWS": "arn:aws-cn:iam::111122223333:role/training"}] * 2
    assert own == other and own["Statement"][0]["Resource"] == "arn:aws-cn:s3:::bucket"


def test_a_key_that_is_named_is_in_the_policies_and_unfinished_uploads_have_a_rule(render):
    files = render(*LLAMA_K8S, S3, f"{SET}.kms_key={KMS_KEY}", f"{SET}.role_arn={ROLE}").files
    *_, use = json.loads(files["checkpointing/role-policy.json"])["Statement"]
    assert use["Action"] == ["kms:GenerateDataKey", "kms:Decrypt"] and use["Resource"] == KMS_KEY
    (theirs,) = json.loads(files["checkpointing/key-policy.json"])["Statement"]
    assert theirs["Principal"] == {"AWS": ROLE} and theirs["Action"] == use["Action"]
    assert "kms:" not in files["checkpointing/bucket-policy.json"]
    (rule,) = json.loads(files["checkpointing/lifecycle.json"])["Rules"]
    assert rule["Filter"] == {"Prefix": "prefix/"} and rule["AbortIncompleteMultipartUpload"]
    assert "kms" not in render(*LLAMA_K8S, S3).files["checkpointing/role-policy.json"]


def test_a_bucket_without_a_prefix_is_wholly_the_jobs(render):
    files = render(*LLAMA_K8S, f"{SET}.persistent.path=s3://bucket").files
    find, use = json.loads(files["checkpointing/role-policy.json"])["Statement"]
    assert find["Resource"] == "arn:aws:s3:::bucket" and use["Resource"] == "arn:aws:s3:::bucket/*"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "config"),
    [
        pytest.param((), {"Mode": "Enable"}, id="the cluster's own part"),
        pytest.param(
            (f"{SET}.memory_percent=30",), {"Mode": "Enable", "InstanceMemoryAllocationPercentage": 30}, id="30 %"
        ),
    ],
)
@pytest.mark.parametrize("operation", ["CreateCluster", "UpdateCluster"])
def test_the_cluster_setting_is_one_the_api_takes(render, words, config, operation):
    session = pytest.importorskip("botocore.session", reason="pip install boto3")
    from botocore.validate import ParamValidator

    request = json.loads(render(*LLAMA_K8S, MEMORY, *words).files["checkpointing/cluster.json"])
    assert request == {"TieredStorageConfig": config}
    model = session.get_session().get_service_model("sagemaker").operation_model(operation)
    report = ParamValidator().validate({"ClusterName": "c", **request}, model.input_shape)
    assert not report.has_errors(), report.generate_report()
    allowed = model.input_shape.members["TieredStorageConfig"].members
    assert config["Mode"] in allowed["Mode"].enum
    assert allowed["InstanceMemoryAllocationPercentage"].metadata == {"min": 0, "max": 100}


def test_the_memory_tiers_log_has_a_place_to_be_written(render):
    def places(*words):
        pods = yaml_io.load(render(*LLAMA_K8S, *words).files["manifests/job.yaml"])["spec"]["replicaSpecs"][0]
        spec = pods["template"]["spec"]
        mounts = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
        return mounts, {volume["name"] for volume in spec["volumes"]}

    mounts, volumes = places(MEMORY)
    assert mounts["checkpoint-log"] == "/var/log/sagemaker_checkpointing" and "checkpoint-log" in volumes
    mounts, volumes = places(S3)
    assert "checkpoint-log" not in mounts and "checkpoint-log" not in volumes


def test_local_jobs_need_no_policies(render):
    files = render(STATIC, MEMORY, S3).files
    assert not [name for name in files if name.startswith("checkpointing/")]


BF16 = f"{SET}.estimate.dtype=bfloat16"


def test_the_command_tells_sizes_ranks_and_cadence(recipes):
    code, out, err = recipes("checkpoint", RECIPE, LARGE[1], "--step-s", "20")
    assert (code, err) == (0, "")
    assert "70,553,706,496 parameters in bfloat16" in out
    (chosen,) = (line.split() for line in out.splitlines() if "this job" in line and "adam" in line)
    assert chosen[1:5] == ["adam_fp32_master", "14", "919.9", "987.8"]
    assert "4 nodes of 8 ranks" in out and "one failure in 66.0 d" in out
    lines = {line.split("  ")[0].strip(): line.split() for line in out.splitlines()}
    assert lines["fsdp"][1:5] == ["28.7", "28.7", "230.0", "32"]
    assert lines["hsdp"][1:5] == ["115.0", "28.7", "230.0", "32"]
    assert lines["ddp"][1:5] == ["919.9", "919.9", "919.9", "1"]
    assert lines["memory"][-1] == "419"


def test_a_goodput_of_0_percent_is_a_notice(recipes):
    words = ("--parameters", "70e9", "--mtbf-hours", "0.001", "--json")
    code, out, _ = recipes("checkpoint", "tiny_lm_cpu@4", *words)
    (message,) = [each["message"] for each in json.loads(out)["notices"] if "at 4 nodes" in each["message"]]
    assert code == 0 and "0 % of the time is lasting progress" in message
    code, out, _ = recipes("checkpoint", "tiny_lm_cpu@4", "--mtbf-hours", "24", "--json")
    assert "N138" not in out


def test_the_commands_json_has_the_documents_numbers(recipes):
    words = ("--parameters", "70e9", "--mtbf-hours", "3", "--restart-s", "60", "--json")
    code, out, _ = recipes("checkpoint", "tiny_lm_cpu@4", BF16, f"{SET}.estimate.optimizer=adam_fp16", *words)
    found = json.loads(out)
    assert code == 0 and found["total_bytes"] == 560 * 10**9 and found["optimizer_bytes"] == 420 * 10**9
    assert [way["mtbf_s"] for way in found["ways"]] == [pytest.approx(3 * 3600)] * 3
    waiting, behind, memory = found["ways"]
    assert waiting["blocked_s"] == waiting["save_s"] and behind["blocked_s"] == memory["blocked_s"]
    assert waiting["goodput"] < behind["goodput"] < memory["goodput"]
    assert [notice["code"] for notice in found["notices"]] == ["N130"]


def test_the_recipes_own_frequencies_are_rated(recipes):
    words = (RECIPE, LARGE[1], MEMORY, S3, f"{SET}.persistent.frequency=500", "--step-s", "20", "--mtbf-hours", "3")
    _, out, _ = recipes("checkpoint", *words, "--json")
    found = json.loads(out)
    memory, persistent = found["configured"]
    assert (memory["steps"], memory["interval_s"], persistent["interval_s"]) == (10, 200, 10_000)
    best = {way["way"]: way["goodput"] for way in found["ways"]}
    assert persistent["goodput"] < memory["goodput"] < best["memory"]
    assert (
        f"this job saves to memory every 10 steps, 3.3 min: goodput {100 * memory['goodput']:.2f} %"
        in (recipes("checkpoint", *words)[1])
    )


def test_copies_with_neighbours_cost_four_parts_of_the_state_and_a_copy_and_a_transfer(recipes):
    known = f"{SET}.estimate={{parameters: 1000000000, dtype: float32, optimizer: none, sharding: fsdp}}"
    words = ("tiny_lm_cpu@4", known, f"{SET}.copy_every=20")
    found = json.loads(recipes("checkpoint", *words, "--json")[1])
    part = 4 * 10**9 // 4
    assert found["copies"]["every"] == 20 and found["copies"]["node_bytes"] == pytest.approx(4 * part)
    assert found["copies"]["blocked_s"] == pytest.approx(part / 40e9 + part / 10e9)
    shown = "to neighbours every 20 steps: 3.7 GiB of each node's memory, training waits 0.125 s"
    assert f"this job copies its rows {shown}" in recipes("checkpoint", *words)[1]
    assert json.loads(recipes("checkpoint", "tiny_lm_cpu@1", *words[1:], "--json")[1])["copies"] is None


@pytest.mark.parametrize(("resize", "is_noticed"), [("restart", True), ("in_place", False)])
def test_copies_that_are_never_made_are_noticed(recipes, resize, is_noticed):
    out = recipes("plan", "tiny_lm_cpu", f"{SET}.copy_every=20", f"recipes.elastic_policy.resize={resize}", "--notes")
    assert ("N199" in "".join(map(str, out))) is is_noticed


def test_a_script_says_itself_what_it_saves(recipes):
    script = ("training/custom/script", "training_cfg.entry_module=a", "training_cfg.run.ntasks_per_node=2")
    known = f"{SET}.estimate={{parameters: 1000, dtype: float32, optimizer: none, sharding: fsdp}}"
    code, out, _ = recipes("checkpoint", *script, known, "--json")
    found = json.loads(out)
    assert code == 0 and (found["total_bytes"], found["sharding"]) == (4000, "fsdp")


def test_bandwidths_are_each_tiers_own(recipes):
    def ways(*words):
        _, out, _ = recipes(
            "checkpoint", RECIPE, LARGE[1], "--json", *(w for rate in words for w in ("--bandwidth", rate))
        )
        return {way["way"]: way for way in json.loads(out)["ways"]}

    plain, faster = ways(), ways("persistent=2", "memory=20", "copy=80")
    for way in plain:
        assert faster[way]["save_s"] == pytest.approx(plain[way]["save_s"] / 2)
    assert ways("storage=0.5")["memory"] == plain["memory"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("tiny_lm_cpu", "--bandwidth", "disk=3"), "E801", "copy=GB/S, memory=GB/S"),
        (("tiny_lm_cpu", "--bandwidth", "memory"), "E801", "copy=GB/S"),
        (("tiny_lm_cpu", "--bandwidth", "memory=1", "--bandwidth", "memory=2"), "E801", "two rates"),
        (("tiny_lm_cpu", "--bandwidth", "memory=-1"), "E102", "memory_gb_per_s"),
        (("tiny_lm_cpu", "--bandwidth", "memory=nan"), "E102", "memory_gb_per_s"),
        (("tiny_lm_cpu", "--bandwidth", "memory=1e-320"), "E102", "memory_gb_per_s"),
        (("tiny_lm_cpu", "--parameters", "nan"), "E102", "estimate.parameters"),
        (("tiny_lm_cpu", "--parameters", "1e300"), "E102", "estimate.parameters"),
        *(
            (("tiny_lm_cpu", f"--mtbf-hours={value}"), "E801", "a finite number of hours above 0")
            for value in ("inf", "-inf", "nan", "1e400", "-1", "0", "1e-320")
        ),
        (("tiny_lm_cpu", "--mtbf-hours", "3", "--failures-per-node-hour", "1"), "E801", "one of"),
        (("tiny_lm_cpu", "--parameters", "1e9", "--config", "x.json"), "E801", "one of"),
        (("tiny_lm_cpu@9",), "E803", "1, 2, 3, 4"),
        (("tiny_lm_cpu", "--config", "x.json"), "E807", "cannot be read"),
        (("tiny_lm_cpu", "--config", "list.json"), "E807", "not a model's config.json"),
        (("tiny_lm_cpu", "--config", "mamba.json"), "E807", "'mamba' is not supported"),
        (
            ("training/custom/script", "training_cfg.entry_module=a", "training_cfg.run.ntasks_per_node=2"),
            "E807",
            "8e9",
        ),
        (("tiny_lm_cpu", "--picture", "x.gif"), "E709", ".svg"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, tuple) else "",
)
def test_what_the_command_cannot_tell_is_a_problem(recipes, tmp_path, words, code, says):
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "mamba.json").write_text('{"model_type": "mamba"}')
    exit_code, _, err = recipes("checkpoint", *words)
    assert exit_code == 2 and code in err and says in err


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_picture_is_the_same_bytes_again(recipes, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    for name in (f"a.{suffix}", f"b.{suffix}"):
        assert recipes("checkpoint", "tiny_lm_cpu", STATIC, "--picture", name)[0] == 0
    first, second = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in "ab")
    assert first == second and len(first) > 10_000


def test_every_model_of_the_collection_is_known():
    for path in sorted((ROOT / "recipes_collection/base/llmft/model").glob("*.yaml")):
        tree = yaml_io.load(path.read_text(encoding="utf-8"))
        name = tree["training_config"]["model_config"]["model_name_or_path"] or tree["run"]["name"]
        assert model_configs.known(name), path.stem
