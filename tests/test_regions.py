"""Regions of AWS: of a training job, and of an image."""

import pytest
from conftest import LLAMA_K8S

from launcher.model import aws_regions

ROLE = "cluster.sm_jobs_config.role=arn:aws:iam::123456789012:role/train"
SM_JOB = (LLAMA_K8S[0], "cluster=sm_jobs", ROLE, "cluster.sm_jobs_config.output_path=s3://results/out")
REGION = "cluster.sm_jobs_config.region"


def image(region, ending=""):
    return f"container=123456789012.dkr.ecr.{region}.amazonaws.com{ending}/x:1"


@pytest.mark.slow
@pytest.mark.parametrize("region", ["us-east-9", "us-mars-1", "eu-west-33", "xx-east-1"])
def test_a_region_that_does_not_exist_is_a_problem(region, problems):
    (problem,) = problems(*SM_JOB, f"{REGION}={region}", image("us-west-2"))
    assert (problem.code, problem.path, problem.value) == ("E612", REGION, region)


@pytest.mark.slow
@pytest.mark.parametrize("words", [LLAMA_K8S, SM_JOB], ids=["k8s", "sm_jobs"])
def test_an_image_in_a_region_that_does_not_exist_is_a_problem(words, problems):
    (problem,) = problems(*words, image("us-east-9"))
    assert (problem.code, problem.path) == ("E611", "container") and "us-east" in problem.remedy


def test_an_image_of_another_region_than_the_job_s_is_a_problem(problems):
    (problem,) = problems(*SM_JOB, f"{REGION}=eu-west-1", image("us-west-2"))
    assert (problem.code, problem.path) == ("E612", "container") and f"{REGION}=us-west-2" in problem.remedy


@pytest.mark.parametrize("region", ["us-west-2", "eu-central-1", "us-gov-west-1", "ap-southeast-7", "eusc-de-east-1"])
def test_a_region_that_exists_with_its_image_is_accepted(region, prepare):
    prepare(*SM_JOB, f"{REGION}={region}", image(region))
    prepare(*LLAMA_K8S, image(region))
    prepare(*SM_JOB, f"{REGION}={region}", "container=me/x:1")


def test_the_table_is_that_of_botocore():
    session = pytest.importorskip("botocore.session").Session()
    partitions = session.get_available_partitions()
    known = {name for each in partitions for name in session.get_available_regions("ec2", each)}
    assert known <= set(aws_regions.known())
