"""The examination of an AWS account: moto's IAM, ECR, STS and S3, and our stand-in of SageMaker and its quotas."""

import json

import boto3
import pytest
import s3_server
from aws_standin import Aws, AwsError
from contract_jobs import TINY, J
from request_faults import DATASET
from test_request_submit import BASE

from launcher.api.plan import compile as compiled

pytest.importorskip("boto3", reason="pip install '.[sagemaker]'")

REGION = "eu-west-1"
_ASSUMED = {"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}
TRUST = {"Statement": [_ASSUMED]}
IMAGE = {
    "schemaVersion": 2,
    "mediaType": "application/vnd.oci.image.manifest.v1+json",
    "config": {"digest": "sha256:" + "0" * 64, "size": 1, "mediaType": "application/vnd.oci.image.config.v1+json"},
    "layers": [],
}
QUOTA = "ml.m5.2xlarge for training job usage"


class Quotas(Aws):
    """The stand-in of SageMaker, with Service Quotas in pages of one quota."""

    def __init__(self):
        super().__init__()
        self.quotas = {}

    def on_ListServiceQuotas(self, body):
        assert body["ServiceCode"] == "sagemaker"
        start = int(body.get("NextToken", 0))
        named = [{"QuotaName": name, "Value": value} for name, value in self.quotas.items()]
        more = {"NextToken": str(start + 1)} if start + 1 < len(named) else {}
        return {"Quotas": named[start : start + 1]} | more


@pytest.fixture(scope="module")
def account(tmp_path_factory):
    """Return the stand-in; moto answers for the other services."""
    services = Quotas()
    empty = tmp_path_factory.mktemp("aws")
    with s3_server.running() as url, pytest.MonkeyPatch.context() as patch:
        for name, value in {
            **{"AWS_CONFIG_FILE": str(empty / "config"), "AWS_SHARED_CREDENTIALS_FILE": str(empty / "credentials")},
            **{
                "AWS_ACCESS_KEY_ID": "testing",
                "AWS_SECRET_ACCESS_KEY": "testing",
                "AWS_EC2_METADATA_DISABLED": "true",
            },
            **{"AWS_ENDPOINT_URL": url, "AWS_ENDPOINT_URL_SAGEMAKER": services.url},
            "AWS_ENDPOINT_URL_SERVICE_QUOTAS": services.url,
        }.items():
            patch.setenv(name, value)
        clients = {name: boto3.client(name, region_name=REGION) for name in ("iam", "ecr", "s3")}
        clients["iam"].create_role(RoleName="train", AssumeRolePolicyDocument=json.dumps(TRUST))
        clients["iam"].create_role(RoleName="of-ec2", AssumeRolePolicyDocument='{"Statement": []}')
        clients["ecr"].create_repository(repositoryName="trainer")
        clients["ecr"].put_image(repositoryName="trainer", imageManifest=json.dumps(IMAGE), imageTag="1")
        for name in ("inputs", "results"):
            clients["s3"].create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
        clients["s3"].put_object(Bucket="inputs", Key="train/a.jsonl", Body=b"{}")
        yield services
    services.close()


def examined(folder, monkeypatch, *words):
    """Return what is found about a training job, by subject."""
    monkeypatch.chdir(folder)
    image = "container=123456789012.dkr.ecr.eu-west-1.amazonaws.com/trainer:1"
    channel = "cluster.sm_jobs_config.inputs.s3={train: s3://inputs/train}"
    lines = {}
    given = [word for word in (*BASE, image, channel, *words) if not word.startswith("recipes=")]
    for each in compiled("tiny_lm_cpu", given).doctor():
        lines.setdefault(each.subject, []).append(each)
    assert list(folder.iterdir()) == []
    return lines


def of(lines, subject):
    return [(each.state.value, each.code) for each in lines[subject]]


@pytest.mark.slow
def test_a_job_that_would_run_has_a_line_for_each_subject(account, tmp_path, monkeypatch):
    account.quotas = {"ml.p5.48xlarge for training job usage": 0, QUOTA: 4}
    lines = examined(tmp_path, monkeypatch)
    for subject in ("cluster", "request", "role", "registry", "data", "output", "quota"):
        assert of(lines, subject) == [("ok", None)], lines[subject]
    assert account.jobs == {} and "CreateTrainingJob" not in account.calls


@pytest.mark.slow
def test_each_fault_has_its_line(account, tmp_path, monkeypatch):
    account.quotas = {QUOTA: 1}
    lines = examined(
        tmp_path,
        monkeypatch,
        "cluster.sm_jobs_config.role=arn:aws:iam::123456789012:role/of-ec2",
        "container=123456789012.dkr.ecr.eu-west-1.amazonaws.com/trainer:2",
        "cluster.sm_jobs_config.output_path=s3://no-such-bucket/out",
        "cluster.sm_jobs_config.inputs.s3={train: s3://inputs/trian, more: s3://nowhere/x}",
    )
    assert of(lines, "role") == [("failure", "E337")] and of(lines, "registry") == [("failure", "E339")]
    assert of(lines, "data") == [("failure", "E389")] * 2 and of(lines, "output") == [("failure", "E389")]
    assert of(lines, "quota") == [("failure", "E338")] and "is 1, and the job has 2" in lines["quota"][0].message
    gone = examined(tmp_path, monkeypatch, f"{J}.role=arn:aws:iam::123456789012:role/gone")
    assert of(gone, "role") == [("failure", "E337")]


@pytest.mark.slow
def test_each_place_is_named_by_the_key_that_gives_it(account, tmp_path, monkeypatch):
    channels = f"{{listed: {{s3: s3://inputs/none}}, hub: {{dataset_arn: '{DATASET}'}}}}"
    places = (f"+{J}.inputs.channels={channels}", f"{J}.checkpoints.s3_uri=s3://nowhere/c")
    lines = examined(tmp_path, monkeypatch, *places)
    (_, listed, hub), (results, kept) = lines["data"], lines["output"]
    assert listed.message.startswith(f"{J}.inputs.channels.listed.s3=s3://inputs/none:")
    assert hub.state.value == "unknown" and "data set" in hub.message
    assert kept.message.startswith(f"{J}.checkpoints.s3_uri=s3://nowhere/c:") and results.code is None
    sdk = f"+{J}.additional_estimator_kwargs={{checkpoint_s3_uri: s3://nowhere/c}}"
    assert examined(tmp_path, monkeypatch, sdk)["output"][1].message.startswith(
        f"{J}.additional_estimator_kwargs.checkpoint_s3_uri="
    )


@pytest.mark.slow
def test_addresses_of_s3_are_read_as_buckets_and_keys(account, tmp_path, monkeypatch):
    hosts = ("inputs.s3.eu-west-1.amazonaws.com", "s3.eu-west-1.amazonaws.com/inputs")
    channels = ", ".join(f"c{i}: 'https://{host}/train'" for i, host in enumerate(hosts))
    kept = f"{J}.checkpoints.s3_uri=https://results.s3.amazonaws.com/c"
    lines = examined(tmp_path, monkeypatch, f"{J}.inputs.s3={{{channels}}}", kept)
    assert of(lines, "data") == [("ok", None)] * 3 and of(lines, "output") == [("ok", None)] * 2


@pytest.mark.slow
def test_what_the_user_may_not_read_is_unknown(account, tmp_path, monkeypatch):
    denied = "User: ada is not authorized to perform: servicequotas:ListServiceQuotas"
    account.errors["ListServiceQuotas"] = [AwsError("AccessDeniedException", denied)]
    (quota,) = examined(tmp_path, monkeypatch)["quota"]
    assert (quota.state.value, quota.code) == ("unknown", "E395") and "ListServiceQuotas" in quota.message
    assert "permission" in quota.remedy


@pytest.mark.slow
def test_an_account_that_does_not_answer_is_unknown(account, tmp_path, monkeypatch, closed_port):
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{closed_port}")
    monkeypatch.setattr("launcher.backends.sagemaker.client._ATTEMPTS", 1)
    lines = examined(tmp_path, monkeypatch)
    assert of(lines, "cluster") == [("unknown", "E396")] and "quota" not in lines


def test_a_simulated_job_s_channels_are_listed(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text("{}\n")
    monkeypatch.chdir(here)
    settings = [word for word in TINY if not word.startswith("recipes=")]

    def found(uri):
        words = [*settings, f"{J}.output_path=file://{tmp_path}/out", f"{J}.inputs.s3={{train: '{uri}'}}"]
        return [each for each in compiled("tiny_lm_cpu", words).doctor() if each.subject in ("data", "isolation")]

    isolation, data = found(f"file://{tmp_path}/data/")
    assert isolation.state.value in ("ok", "warning")
    assert (data.state.value, data.message) == ("ok", "channel train: 1 object")
    assert found(f"file://{tmp_path}/nothing/")[1].state.value == "failure"
    assert list(here.iterdir()) == []
