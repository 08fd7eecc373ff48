"""The table of instance types: complete, sourced, and what its rows mean for a job."""

import json

import pytest
from conftest import ROOT

from launcher import instances

TABLE = instances.table()
LINES = [
    line for line in (ROOT / "launcher/instances.csv").read_text(encoding="utf-8").splitlines() if line[0] != "#"
]
HEAD = LINES[0].split(",")
ROWS = [dict(zip(HEAD, line.split(",", len(HEAD) - 1), strict=True)) for line in LINES[1:]]
FACTS = "shared/facts/instances/instances.json"
"""Collected facts that the table was made from, in a folder beside the repository where there is one."""


def facts():
    path = next((parent / FACTS for parent in ROOT.parents if (parent / FACTS).is_file()), None)
    if path is None:
        pytest.skip(f"{FACTS} is not beside this repository")
    return {row["instance_type"]: row for row in json.loads(path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize(
    ("use", "enumeration"), [("training", "TrainingInstanceType"), ("hyperpod", "ClusterInstanceType")]
)
def test_the_table_has_every_instance_type_of_the_api(use, enumeration):
    session = pytest.importorskip("botocore.session", reason="pip install '.[sagemaker]'")
    model = session.get_session().get_service_model("sagemaker")
    listed = set(model.shape_for(enumeration).enum)
    known = {name for name, instance in TABLE.items() if use in instance.use}
    assert known == listed, f"add to launcher/instances.csv: {sorted(listed - known)}"


def test_every_row_has_a_source_that_the_file_explains():
    text = (ROOT / "launcher/instances.csv").read_text(encoding="utf-8").partition("# Sources:")[2]
    explained = {line.split()[1] for line in text.splitlines() if line.startswith("#   ") and line[4] != " "}
    used = {source.partition("[")[0] for row in ROWS for source in row["sources"].split(";")}
    assert len(ROWS) == len(TABLE) == 316
    assert used == explained


def test_the_table_agrees_with_the_collected_facts():
    collected = facts()
    assert set(collected) == set(TABLE)
    for name, fact in collected.items():
        row, kind = TABLE[name], fact["accelerator"] or ""
        assert (row.vcpus, row.memory_gib) == (fact["vcpus"], int(fact["memory_gib"])), name
        assert (row.accelerators, row.accelerator) == (fact["accelerators"], kind), name
        assert row.accelerator_memory_gib == (fact["accelerator_memory_gib"] or 0), name
        assert (row.efa, row.gpudirect_rdma) == (fact["efa_devices"], fact["rdma"]), name
        assert (row.network_gbps, row.nvme_gb) == (fact["network_gbps"], fact["local_nvme_gb"]), name
        assert row.architecture == (fact["arch"] or ""), name
        assert ("training" in row.use, "hyperpod" in row.use) == (fact["training"], fact["hyperpod_cluster"]), name


@pytest.mark.parametrize(
    ("name", "resource", "processes"),
    [
        ("p6-b200.48xlarge", "nvidia.com/gpu", 8),
        ("g7e.12xlarge", "nvidia.com/gpu", 2),
        ("trn1.32xlarge", "aws.amazon.com/neurondevice", 32),
        ("trn2.48xlarge", "aws.amazon.com/neurondevice", 64),
        ("m5.large", None, 0),
    ],
)
def test_a_process_has_a_device(name, resource, processes):
    row = TABLE[f"ml.{name}"]
    assert (row.accelerator_resource, row.processes) == (resource, processes)


def test_rdma_is_of_accelerator_memory():
    assert TABLE["ml.p4d.24xlarge"].gpudirect_rdma is True
    assert TABLE["ml.p5.4xlarge"].gpudirect_rdma is False
    assert TABLE["ml.g6.8xlarge"].gpudirect_rdma is None
    assert not any(row.gpudirect_rdma for row in TABLE.values() if not (row.efa and row.accelerators))
