"""The table of instance types: complete, sourced, and what its rows mean for a job."""

import json

import pytest
from conftest import LLAMA_K8S, ROOT, SCRIPT_K8S

from launcher.common import yaml_io
from launcher.common.problems import ProblemsFound
from launcher.governance import team_manifests
from launcher.model import instances

TABLE = instances.table()
BATCH = "recipes.training_config.training_args.train_batch_size"
SM_JOBS = (
    "cluster=sm_jobs",
    "cluster.sm_jobs_config.role=arn:aws:iam::123456789012:role/train",
    "cluster.sm_jobs_config.output_path=s3://results/out",
)
LINES = [
    line
    for line in (ROOT / "launcher/model/instances.csv").read_text(encoding="utf-8").splitlines()
    if line[0] != "#"
]
HEAD = LINES[0].split(",")
ROWS = [dict(zip(HEAD, line.split(",", len(HEAD) - 1), strict=True)) for line in LINES[1:]]
FACTS = "shared/facts/instances/instances.json"
"""Collected facts that the table was made from, in a folder beside the repository where there is one."""

CONTRACT = ("cluster=local", "cluster.contract=sagemaker")


def facts():
    path = next((parent / FACTS for parent in ROOT.parents if (parent / FACTS).is_file()), None)
    if path is None:
        pytest.skip(f"{FACTS} is not beside this repository")
    return {row["instance_type"]: row for row in json.loads(path.read_text(encoding="utf-8"))}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("use", "enumeration"), [("training", "TrainingInstanceType"), ("hyperpod", "ClusterInstanceType")]
)
def test_the_table_has_every_instance_type_of_the_api(use, enumeration):
    session = pytest.importorskip("botocore.session", reason="pip install '.[sagemaker]'")
    model = session.get_session().get_service_model("sagemaker")
    listed = set(model.shape_for(enumeration).enum)
    known = {name for name, instance in TABLE.items() if use in instance.use}
    assert known == listed, f"add to launcher/model/instances.csv: {sorted(listed - known)}"


def test_every_row_has_a_source_that_the_file_explains():
    text = (ROOT / "launcher/model/instances.csv").read_text(encoding="utf-8").partition("# Sources:")[2]
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


P9 = "{name: p9.48xlarge, accelerators: 16, accelerator: gpu, efa_devices: 32, vcpus: 256, memory_gib: 4096}"
LLAMA_P9 = (*LLAMA_K8S, "instance_type=p9.48xlarge")


def described(spec=P9):
    return f"++recipes.instance_specs=[{spec}]"


def codes(job):
    return {notice.code: notice.message for notice in job.notices}


def test_an_unknown_type_is_refused_with_the_keys_that_describe_it(problems, prepare):
    (problem,) = problems(*LLAMA_P9)
    assert problem.code == "E230" and "ml.p4d.24xlarge" in problem.allowed
    override = problem.allowed.partition("'")[2].rstrip("'")
    assert override.startswith("++recipes.instance_specs=[{name: ml.p9.48xlarge, accelerators: ")
    assert prepare(*LLAMA_P9, override).resources.instance_type == "ml.p9.48xlarge"


def test_a_described_type_is_planned_and_rendered(prepare, render):
    words = (*LLAMA_P9, described(), "recipes.trainer.num_nodes=2", f"{BATCH}=16")
    job = prepare(*words)
    assert (job.resources.accelerators, job.resources.efa, job.nproc_per_node) == (8, 16, 8)
    assert "16 accelerators, 16 processes, 32 EFA devices, 256 vCPUs, 4096 GiB" in codes(job)["N161"]
    bundle = render(*words)
    (spec,) = yaml_io.load(bundle.files["manifests/job.yaml"])["spec"]["replicaSpecs"]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == {
        "nvidia.com/gpu": 8,
        "vpc.amazonaws.com/efa": 16,
        "cpu": "115200m",
        "memory": "1843Gi",
    }
    configs = [text for name, text in bundle.files.items() if name.startswith("configs/")]
    assert configs and not any("instance_specs" in text for text in configs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "code", "path", "says"),
    [
        ("{name: p9.48xlarge}", "E234", "recipes.instance_specs.0", "lacks accelerators, vcpus, memory_gib"),
        (
            "{name: p9.48xlarge, accelerators: 8, vcpus: 1, memory_gib: 1}",
            "E234",
            "recipes.instance_specs.0",
            "lacks accelerator",
        ),
        ("{name: m5.large, accelerators: 2}", "E234", "recipes.instance_specs.0", "lacks accelerator"),
        (f"{P9}, {P9}", "E234", "recipes.instance_specs", "described 2 times"),
        ("{nam: p9.48xlarge}", "E101", "recipes.instance_specs.0.nam", "efa_devices"),
        ("{name: 'a b', accelerators: 8}", "E102", "recipes.instance_specs.0.name", "such as p5.48xlarge"),
        (P9.replace("gpu", "tpu"), "E102", "recipes.instance_specs.0.accelerator", "'gpu' or 'neuron'"),
        (P9.replace("256", "-1"), "E102", "recipes.instance_specs.0.vcpus", "greater than or equal to 1"),
    ],
)
def test_a_description_is_typed_and_complete(problems, spec, code, path, says):
    chosen = f"instance_type={'m5.large' if 'm5' in spec else 'p9.48xlarge'}"
    found = {problem.path: problem for problem in problems(*LLAMA_K8S, chosen, described(spec))}
    assert found[path].code == code and says in str(found[path])
    assert "E230" not in {problem.code for problem in found.values()}


def test_a_kind_of_accelerator_without_any_is_none(problems):
    (problem,) = problems(*LLAMA_P9, described(P9.replace("accelerators: 16", "accelerators: 0")))
    assert problem.code == "E235"


def test_a_description_corrects_the_table(prepare):
    words = (
        *LLAMA_K8S,
        "recipes.trainer.num_nodes=2",
        f"{BATCH}=16",
        described("{name: p5.48xlarge, efa_devices: 8}"),
    )
    job = prepare(*words)
    assert (job.resources.accelerators, job.resources.efa) == (8, 8)
    assert "8 EFA devices, not 32" in codes(job)["N161"]


@pytest.mark.parametrize(
    ("description", "differs"),
    [
        ("{name: p4d.24xlarge, accelerator: neuron}", "aws.amazon.com/neurondevice accelerators, not nvidia.com/gpu"),
        ("{name: p4d.24xlarge, architecture: arm64}", "arm64 processors, not x86_64"),
        (
            "{name: p4d.24xlarge, efa_devices: 0, architecture: arm64}",
            "0 EFA devices, not 4, arm64 processors, not x86_64",
        ),
        (
            "{name: m5.large, accelerators: 1, accelerator: gpu}",
            "1 accelerators, not 0, 1 processes, not 0, nvidia.com/gpu accelerators",
        ),
    ],
    ids=["kind", "architecture", "two", "a kind where the table has none"],
)
def test_a_notice_names_what_a_description_changes(prepare, description, differs):
    name = description.removeprefix("{name: ").partition(",")[0]
    job = prepare(*SCRIPT_K8S, f"instance_type={name}", "training_cfg.run.ntasks_per_node=1", described(description))
    assert codes(job)["N161"] == f"ml.{name} differs from the table as described: {differs}"


def test_a_training_job_takes_a_type_that_is_newer_than_the_api_file(render):
    files = render(LLAMA_K8S[0], *SM_JOBS, "instance_type=p9.48xlarge", described()).files
    assert json.loads(files["request.json"])["ResourceConfig"]["InstanceType"] == "ml.p9.48xlarge"


def test_governance_takes_a_described_type():
    words = ("team=a", "instance_type=p9.48xlarge", "nodes=2")
    with pytest.raises(ProblemsFound, match="E230"):
        team_manifests.read(words)
    with pytest.raises(ProblemsFound, match="E234"):
        team_manifests.read((*words, "instance_specs=[{name: p9.48xlarge}]"))
    files = team_manifests.files(team_manifests.read((*words, f"instance_specs=[{P9}]")))
    assert "nvidia.com/gpu: '32'" in "".join(files.values()).replace('"', "'")


def test_the_default_type_is_replaced_not_allowed(problems):
    words = ("recipes.instance_types=[p4d.24xlarge]",)
    (problem,) = problems(*LLAMA_K8S, *words)
    assert (problem.code, problem.remedy) == ("E231", "instance_type=ml.p4d.24xlarge")
    (problem,) = problems(*LLAMA_K8S, *words, "instance_type=p5.48xlarge")
    assert problem.remedy == '"recipes.instance_types=[ml.p5.48xlarge]" if you know that it fits'
    (problem,) = problems(*LLAMA_K8S, "recipes.instance_types=[c5.4xlarge,p4d.24xlarge]")
    assert problem.remedy == "instance_type=ml.p4d.24xlarge"  # the other one has no GPUs
    assert problems(*LLAMA_K8S, "recipes.instance_types=[c5.4xlarge]")[0].remedy is None


def test_a_program_for_gpus_is_refused_where_there_are_none(problems):
    (listed,) = problems(*LLAMA_K8S, "instance_type=m5.large")
    assert (listed.code, listed.remedy) == ("E231", None) and "has no accelerators" in listed.message
    types = "recipes.instance_types=[m5.large,trn1.32xlarge,p5.48xlarge]"
    for name, has in (("m5.large", "no accelerators"), ("trn1.32xlarge", "AWS Trainium")):
        (problem,) = problems(*LLAMA_K8S, f"instance_type={name}", types)
        assert (problem.code, problem.allowed) == ("E235", "ml.p5.48xlarge") and has in problem.message
    (problem,) = problems(*LLAMA_K8S, "instance_type=m5.large", "recipes.instance_types=[]")
    assert problem.code == "E235" and "recipes instances" in problem.allowed


SCRIPT = ("recipes=training/custom/script", "training_cfg.entry_script=train.py", "container=me/image:1")


@pytest.mark.crossed
@pytest.mark.parametrize("cluster", [("cluster=k8s",), SM_JOBS], ids=["k8s", "sm_jobs"])
@pytest.mark.parametrize(
    ("name", "processes", "expected"),
    [
        ("m5.large", 1, (0, None, 0)),
        ("c5n.18xlarge", 1, (0, None, 0)),
        ("g5.xlarge", 1, (1, "nvidia.com/gpu", 0)),
        ("g7e.12xlarge", 2, (2, "nvidia.com/gpu", 1)),
        ("trn1.32xlarge", 32, (16, "aws.amazon.com/neurondevice", 8)),
        ("p6e-gb200.36xlarge", 4, (4, "nvidia.com/gpu", 4)),
    ],
)
def test_a_script_runs_on_every_kind_of_instance(prepare, cluster, name, processes, expected):
    size = (f"training_cfg.run.ntasks_per_node={processes}", "training_cfg.run.nodes=2")
    job = prepare(*SCRIPT, *cluster, f"instance_type={name}", *size)
    found = job.resources
    assert (found.accelerators, found.accelerator_resource, found.efa) == expected
    assert ("N162" in codes(job)) is ("gb200" in name)
    assert ("N164" in codes(job)) is (name == "g5.xlarge")


def test_a_type_that_hyperpod_lacks_is_a_notice(prepare):
    assert "N163" in codes(prepare(*SCRIPT, "cluster=k8s", "instance_type=m4.xlarge"))
    kubeflow = "cluster.use_hyperpod_pytorch_job=false"
    assert "N163" not in codes(prepare(*SCRIPT, "cluster=k8s", kubeflow, "instance_type=m4.xlarge"))


def test_an_unknown_type_is_a_notice_where_nothing_uses_it(prepare):
    assert "instance_type=p9" in codes(prepare("instance_type=p9"))["N160"]
    assert "N160" not in codes(prepare("instance_type=p5.48xlarge"))
    label = "cluster.label_selector={required: {node.kubernetes.io/instance-type: [ml.p9.48xlarge, ml.p5.48xlarge]}}"
    assert "ml.p9.48xlarge" in codes(prepare(*LLAMA_K8S, label))["N160"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("show", "tiny_lm_cpu"),
        ("show", "tiny_lm_cpu", "cluster=k8s"),
        ("explain", "tiny_lm_cpu", "learning_rate"),
        ("checkpoint", "tiny_lm_cpu"),
        ("diff", "tiny_lm_cpu@1", "tiny_lm_cpu@2"),
        ("check", "tiny_lm_cpu"),
        ("plan", "tiny_lm_cpu"),
        ("render", "tiny_lm_cpu"),
    ],
    ids=" ".join,
)
def test_every_command_says_that_a_type_is_unknown(recipes, words):
    code, out, err = recipes(*words, "instance_type=p9")
    text = " ".join(f"{out} {err}".split())
    assert code == 0 and text.count("N160 instance_type=p9 is not an instance type of the table") == 1
    assert "N160" not in " ".join(recipes(*words)[1:])


def test_nodes_of_an_unknown_type_are_a_notice():
    from launcher.rules import hardware

    (notice,) = hardware.unknown_nodes(["ml.p9.48xlarge", "ml.p5.48xlarge", None, "ml.p9.48xlarge"])
    assert "ml.p9.48xlarge" in notice.message and "p5" not in notice.message


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("--accelerator", "h100"), {"p5.48xlarge", "p5.4xlarge"}),
        (("p6",), {"p6-b200.48xlarge", "p6-b300.48xlarge", "p6e-gb200.36xlarge"}),
        (("--accelerator-memory", "96", "--efa", "--max-price", "10"), {"g7e.8xlarge", "trn2.3xlarge"}),
        (("--use", "training", "trn2"), {"trn2.48xlarge"}),
        (("nothing",), set()),
    ],
    ids=lambda value: " ".join(sorted(map(str, value))),
)
def test_types_are_listed_by_what_they_have(recipes, words, names):
    code, out, _ = recipes("instances", *words, "--json")
    assert (code, {each["name"] for each in json.loads(out)}) == (0, {f"ml.{name}" for name in names})


def test_a_listed_price_has_its_date(recipes):
    _, out, err = recipes("instances", "p5.48xlarge", "p6e")
    assert not out and "0 of 316" in err
    _, out, _ = recipes("instances", "gb200")
    assert out.split()[-1] == "?"
    _, out, err = recipes("instances", "p5.48")
    assert "63.30" in out and "SageMaker Studio, us-east-1, 2026-09-24" in out and "1 of 316" in err


def test_a_use_of_instances_is_one_of_two(recipes):
    code, _, err = recipes("instances", "--use", "x")
    assert code == 2 and "training or hyperpod" in err


@pytest.mark.slow
@pytest.mark.parametrize("value", ["[p5]", "{a: 1}", "3", "null", "''", "'a b'"])
@pytest.mark.parametrize(
    "cluster", [("cluster=k8s",), SM_JOBS, (*CONTRACT, SM_JOBS[-1])], ids=["k8s", "sm", "contract"]
)
def test_a_value_that_is_not_a_type_is_a_problem(problems, cluster, value):
    for recipe in (LLAMA_K8S[:1], (*SCRIPT, "training_cfg.run.nodes=2")):
        found = [
            each for each in problems(*recipe, *cluster, f"instance_type={value}") if each.path == "instance_type"
        ]
        assert [each.code for each in found] == [found[0].code] and found[0].code in ("E102", "E230")


def test_a_type_of_the_list_that_is_described_is_known(prepare, problems):
    listed = "recipes.instance_types=[ml.p5.48xlarge, p9.48xlarge, p8.48xlarge]"
    (problem,) = problems(*LLAMA_K8S, listed, described())
    assert (problem.code, problem.path, problem.value) == ("E233", "recipes.instance_types.2", "p8.48xlarge")


def test_types_of_different_names_are_each_described_once(prepare):
    two = described(f"{P9}, {P9.replace('p9.', 'p8.')}")
    assert prepare(*LLAMA_K8S, two).resources.instance_type == "ml.p5.48xlarge"


@pytest.mark.parametrize(("nodes", "is_told"), [(1, False), (2, True)], ids=["one node", "two nodes"])
def test_nodes_without_efa_exchange_over_tcp(prepare, nodes, is_told):
    words = ("instance_type=g5.2xlarge", f"recipes.trainer.num_nodes={nodes}", f"{BATCH}=8")
    codes = [notice.code for notice in prepare(*LLAMA_K8S, "recipes.instance_types=[]", *words).notices]
    assert ("N164" in codes) is is_told


@pytest.mark.parametrize(("devices", "is_told"), [(8, False), (4, True)], ids=["all", "half"])
def test_accelerators_that_no_process_uses_are_noticed(prepare, devices, is_told):
    notices = prepare(*LLAMA_K8S, f"recipes.trainer.devices={devices}").notices
    found = [notice.message for notice in notices if notice.code == "N128"]
    assert bool(found) is is_told and all(text.startswith("4 of 8") for text in found)


def test_a_described_type_that_nothing_uses_is_no_notice(prepare):
    codes = [notice.code for notice in prepare("instance_type=p9.48xlarge", described()).notices]
    assert "N160" not in codes
    codes = [notice.code for notice in prepare("instance_type=p8.48xlarge", described()).notices]
    assert "N160" in codes
