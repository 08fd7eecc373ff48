"""`distribution`: every parameter, every rule, the hyperparameters and the mpirun line of the documents."""

import json
import re
import shlex

import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from launcher.api.generated.schema import descriptions
from launcher.common.problems import ProblemsFound
from launcher.config.compose import compose
from launcher.model.parallelism import mpi, smp
from launcher.model.parallelism.distribution import Distribution, SmpParameters
from launcher.model.parallelism.mpi import MpiRun
from launcher.model.parallelism.ranks import host_names
from launcher.model.parallelism.smp import PARAMETERS
from launcher.model.validation import with_origin
from launcher.planning.check import examine
from launcher.rules import all_rules

D = "++recipes.distribution"
LIBRARY = f"{D}.smdistributed.modelparallel"
P = f"{LIBRARY}.parameters"
EXAMPLE = {
    "microbatches": 4,
    "placement_strategy": "spread",
    "pipeline": "interleaved",
    "optimize": "speed",
    "partitions": 2,
    "ddp": True,
}
"""The document's own parameters."""
MPI_OPTIONS = "--mca btl_vader_single_copy_mechanism none "
TREE = {
    "smdistributed": {"modelparallel": {"enabled": True, "parameters": EXAMPLE}},
    "mpi": {"enabled": True, "processes_per_host": 8, "custom_mpi_options": MPI_OPTIONS},
}
ARGS = "recipes.training_config.training_args"
JOB = (
    "recipes=training/custom/script",
    "training_cfg.entry_script=train.py",
    "training_cfg.run.ntasks_per_node=8",
    "cluster=sm_jobs",
    "instance_type=p3.16xlarge",
    "recipes.instance_types=[]",
)
RULES = sorted(rule.code for rule in all_rules() if "E240" <= rule.code <= "E255")


def grammar(value):
    """Return a value as an override spells it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {grammar(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


WRITTEN = (f"{D}={grammar(TREE)}",)


@pytest.fixture
def found(tmp_path):
    """Return a function from overrides of the document's example to the Problems about its distribution."""

    def problems(*overrides, base=(*JOB, *WRITTEN)):
        composition = compose([*base, *overrides], tmp_path)
        draft, faults = examine(composition)
        assert draft is not None
        about = ("recipes.distribution", "instance_type", ARGS)
        found = with_origin(composition, faults)
        return [fault for fault in found if fault.path.startswith(about) or fault.code in RULES]

    return problems


def parameter(name, value):
    return f"{P}.{name}={json.dumps(value)}"


def test_the_documents_example_is_accepted(found):
    assert found() == []


def test_every_parameter_has_a_type_a_default_and_a_description():
    assert PARAMETERS.keys() == SmpParameters.model_fields.keys() == descriptions(SmpParameters).keys()


def test_the_page_has_every_parameter_with_its_default_framework_and_version():
    page = (ROOT / "docs/model-parallelism.md").read_text(encoding="utf-8")
    rows = {
        cells[0].strip("`"): cells[2:]
        for line in page.splitlines()
        if line.startswith("| `") and len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 5
    }
    assert rows.keys() == PARAMETERS.keys()
    for name, known in PARAMETERS.items():
        default, framework, since = rows[name]
        assert framework == {None: "both", "pytorch": "PyTorch", "tensorflow": "TensorFlow"}[known.framework], name
        assert since == (".".join(map(str, known.since)) if known.since else ""), name
        if known.default is not None:
            assert default.replace(",", "") == f"`{json.dumps(known.default)}`".replace('"', ""), name


RIGHT = {
    "partitions": [1, 8],
    "microbatches": [1, 7],
    "pipeline": ["interleaved", "simple"],
    "optimize": ["memory", "speed"],
    "placement_strategy": ["cluster", "spread", "DPT", "PTD"],
    "auto_partition": [True, False],
    "default_partition": [0, 1],
    "contiguous": [True, False],
    "horovod": [True, False],
    "memory_weight": [0.0, 0.3, 1.0, 1],
    "ddp": [True, False],
    "active_microbatches": [1, 9],
    "deterministic_server": [True, False],
}
WRONG = {
    "partitions": [0, -1, 2.0, "2", True],
    "microbatches": [0, 1.5, "4"],
    "pipeline": ["_only_forward", "Simple", 1],
    "optimize": ["time", True],
    "placement_strategy": ["DP", "DPTT", "Cluster", "DDP"],
    "auto_partition": [1, 0, "true"],
    "default_partition": [-1, 0.0, True],
    "contiguous": ["yes", 1],
    "horovod": [1],
    "memory_weight": [-0.1, 1.1, True, "0.5"],
    "ddp": [1, "True"],
    "active_microbatches": [0, 2.5],
    "deterministic_server": [0],
}
"""For every parameter of the document."""


@pytest.mark.parametrize(
    ("name", "value"), [pytest.param(n, v, id=f"{n}={v!r}") for n, values in RIGHT.items() for v in values]
)
def test_a_value_of_the_documents_range_is_taken(name, value):
    assert getattr(SmpParameters.model_validate({name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value"), [pytest.param(n, v, id=f"{n}={v!r}") for n, values in WRONG.items() for v in values]
)
def test_a_value_outside_the_documents_range_is_refused(name, value):
    with pytest.raises(ValueError, match=name):
        SmpParameters.model_validate({name: value})


FAULTS = [
    # overrides of the example, code, key, a word of the text
    ((parameter("partitons", 2),), "E101", "parameters.partitons", "did you mean partitions"),
    (("~recipes.distribution.mpi.enabled",), "E103", "mpi.enabled", "missing"),
    (("~recipes.distribution.smdistributed.modelparallel.enabled",), "E103", "modelparallel.enabled", "missing"),
    ((f"{LIBRARY}.enabled='true'",), "E102", "modelparallel.enabled", "true or false"),
    ((f"{D}.mpi.enabled=1",), "E102", "mpi.enabled", "true or false"),
    ((f"{D}.mpi.processes_per_host=0",), "E102", "mpi.processes_per_host", "greater than or equal to 1"),
    ((f"{LIBRARY}.version='2.0'",), "E102", "modelparallel.version", "a version of 1, such as '1.3'"),
    ((f"{D}.mpi.enabled=false",), "E241", "mpi.enabled", "needs MPI"),
    (("~recipes.distribution.mpi",), "E241", "mpi", "needs MPI"),
    ((f"~{P[2:]}.partitions",), "E242", "parameters.partitions", "missing"),
    ((parameter("partitions", None),), "E242", "parameters.partitions", "missing"),
    ((f"~{P[2:]}",), "E242", "parameters.partitions", "missing"),
    ((parameter("pipeline_parallel_degree", 2),), "E242", "parameters.partitions", "newer name"),
    ((parameter("partitions", 3),), "E243", "parameters.partitions", "8 ranks (1 × 8)"),
    ((parameter("partitions", 16),), "E243", "parameters.partitions", "a divisor of 8"),
    (
        (f"~{P[2:]}.partitions", parameter("pipeline_parallel_degree", 5)),
        "E243",
        "parameters.pipeline_parallel_degree",
        "5 partitions",
    ),
    (
        (parameter("tensor_parallel_degree", 8),),
        "E243",
        "parameters.partitions",
        "2 partitions × tensor parallel degree 8",
    ),
    (
        (f"{ARGS}.micro_train_batch_size=6", f"{ARGS}.train_batch_size=24"),
        "E244",
        "parameters.microbatches",
        "a batch of 6 does not divide into 4",
    ),
    (
        (parameter("horovod", True),),
        "E245",
        "parameters.horovod",
        "both true",
    ),
    ((parameter("contiguous", False),), "E246", "parameters.contiguous", "of tensorflow"),
    (
        (
            f"{LIBRARY}.framework=tensorflow",
            f"~{P[2:]}.ddp",
            parameter("horovod", True),
            parameter("memory_weight", 1),
        ),
        "E246",
        "parameters.memory_weight",
        "of pytorch",
    ),
    (
        (
            f"{LIBRARY}.framework=tensorflow",
            f"~{P[2:]}.ddp",
            parameter("horovod", True),
            parameter("placement_strategy", "TPD"),
        ),
        "E246",
        "parameters.placement_strategy",
        "allowed: cluster, spread",
    ),
    ((parameter("ddp", False),), "E247", "parameters.ddp", "4 replicas"),
    ((f"~{P[2:]}.ddp",), "E247", "parameters.ddp", "4 replicas"),
    (
        (parameter("ddp", None), parameter("tensor_parallel_degree", 4)),
        "E247",
        "parameters.ddp",
        "tensor parallel degree of 4",
    ),
    ((f"{LIBRARY}.framework=tensorflow", f"~{P[2:]}.ddp"), "E247", "parameters.horovod", "4 replicas"),
    ((parameter("auto_partition", False),), "E248", "parameters.default_partition", "needs it"),
    ((parameter("default_partition", 2),), "E248", "parameters.default_partition", "0 to 1"),
    (
        (parameter("auto_partition", False), parameter("default_partition", 5)),
        "E248",
        "parameters.default_partition",
        "2 partitions",
    ),
    (
        (f"{LIBRARY}.version='1.2'", parameter("active_microbatches", 3)),
        "E249",
        "parameters.active_microbatches",
        "version 1.3",
    ),
    (
        (f"{LIBRARY}.version='1.2.9'", parameter("deterministic_server", True)),
        "E249",
        "parameters.deterministic_server",
        "version 1.3",
    ),
    (
        (f"{LIBRARY}.version='1.5'", parameter("placement_strategy", "PTD")),
        "E249",
        "parameters.placement_strategy",
        "version 1.6",
    ),
    (("instance_type=m5.4xlarge",), "E250", "instance_type", "has no GPUs"),
    (("instance_type=trn1.32xlarge",), "E250", "instance_type", "has no GPUs"),
    (("instance_type=p5.48xlarge",), "E250", "instance_type", "not supported"),
    (("container=me/pytorch-training:2.0.1-gpu-py310-cu121-sagemaker",), "E250", "container", "MPI"),
    (
        ("instance_type=trn1.32xlarge", "~recipes.distribution.smdistributed"),
        "E250",
        "instance_type",
        "torchrun only",
    ),
    ((f"{D}.mpi.processes_per_host=9",), "E251", "mpi.processes_per_host", "1 to 8"),
    # The document's: 4-way model and 2-way data parallelism are 8 processes, and need an instance of 8 GPUs.
    ((parameter("partitions", 4), "instance_type=g5.12xlarge"), "E251", "mpi.processes_per_host", "has 4 GPUs"),
    ((f"{D}.mpi.processes_per_host=4",), "E252", "mpi.processes_per_host", "plans 8 processes"),
    ((f"{D}.mpi.custom_mpi_options='-x A=\"1 2\"'",), "E253", "mpi.custom_mpi_options", "quotes"),
    ((f"{D}.mpi.custom_mpi_options='-np 4'",), "E253", "mpi.custom_mpi_options", "-np would change"),
    ((f"{D}.mpi.custom_mpi_options='--map-by=node'",), "E253", "mpi.custom_mpi_options", "--map-by=node"),
    ((f"{D}.mpi.custom_mpi_options='-nolocal'",), "E253", "mpi.custom_mpi_options", "-nolocal"),
    (
        (f"{D}.mpi.custom_mpi_options='-mca rmaps_base_mapping_policy node'",),
        "E253",
        "mpi.custom_mpi_options",
        "rmaps_base_mapping_policy would change",
    ),
    ((f"{D}.mpi.custom_mpi_options='--NCCL_DEBUG'",), "E253", "mpi.custom_mpi_options", "no value"),
    (
        (f"~{P[2:]}.ddp", parameter("partitions", 8), parameter("ddp_port", 7000)),
        "E254",
        "parameters.ddp_port",
        "needs ddp",
    ),
    (
        (parameter("offload_activations", True), parameter("microbatches", 1)),
        "E255",
        "parameters.microbatches",
        "more than one",
    ),
    (
        (parameter("offload_activations", True), parameter("active_microbatches", 1)),
        "E255",
        "parameters.active_microbatches",
        "more than one",
    ),
    ((parameter("partitions", 3),), "E243", "parameters.partitions", "of 3 partitions\n"),
    ((parameter("pipeline_parallel_degree", 2),), "E242", "parameters.partitions", "remedy: ~recipes.distribution"),
    ((parameter("partitions", None),), "E242", "parameters.partitions", "remedy: ++recipes.distribution"),
    ((parameter("partitions", 4), parameter("ddp", False)), "E247", "parameters.ddp", "2 replicas"),
    (
        (parameter("ddp", None), parameter("tensor_parallel_degree", 2), parameter("partitions", 4)),
        "E247",
        "parameters.ddp",
        "tensor parallel degree of 2",
    ),
    ((f"{D}.mpi.custom_mpi_options='\\\\a'",), "E253", "mpi.custom_mpi_options", "backslashes"),
    (
        (
            "~recipes.distribution.mpi",
            "~recipes.distribution.smdistributed.modelparallel",
            f"{D}.smdistributed.dataparallel={{enabled: true, custom_mpi_options: -np 4}}",
            "instance_type=p4d.24xlarge",
        ),
        "E253",
        "dataparallel.custom_mpi_options",
        "-np would change the planned placement",
    ),
]


@pytest.mark.parametrize(
    ("overrides", "code", "key", "words"),
    [pytest.param(*fault, id=f"{fault[1]}-{fault[2].rpartition('.')[2]}-{i}") for i, fault in enumerate(FAULTS)],
)
def test_a_fault_is_one_problem_that_names_rule_key_and_remedy(overrides, code, key, words, found, reviewed):
    (problem,) = found(*overrides)
    reviewed(f"smp {' '.join(overrides)}", [problem])
    assert problem.code == code
    assert problem.path.endswith(key)
    assert words in str(problem)


@pytest.mark.parametrize("cluster", ["local", "k8s"])
def test_a_cluster_without_mpi_refuses_it(cluster, found):
    container = ("container=me/image:1",) if cluster == "k8s" else ()
    (problem,) = found(f"cluster={cluster}", *container, base=(*JOB[:3], *JOB[4:], *WRITTEN))
    assert (problem.code, problem.path) == ("E240", "recipes.distribution")
    assert f"cluster={cluster}" in problem.message


@pytest.mark.parametrize(
    ("section", "is_refused"),
    [("mpi: {enabled: true}", True), ("mpi: {enabled: false}", False)],
    ids=["enabled", "not enabled"],
)
def test_a_cluster_without_mpi_refuses_mpi_alone(section, is_refused, found):
    problems = found("cluster=local", f"{D}={{{section}}}", base=(*JOB[:3], *JOB[4:]))
    assert [problem.code for problem in problems] == ["E240"] * is_refused


def test_every_rule_has_a_fault_above_that_shows_it():
    assert {"E240", *(fault[1] for fault in FAULTS)} >= set(RULES)
    assert len(RULES) == 16


def test_all_faults_are_told_at_once(found):
    codes = {
        fault.code
        for fault in found(
            f"{D}.mpi.enabled=false",
            parameter("partitions", 3),
            parameter("horovod", True),
            parameter("auto_partition", False),
            parameter("contiguous", True),
            f"{LIBRARY}.version='1.1'",
            parameter("deterministic_server", True),
        )
    }
    assert codes == {"E241", "E243", "E245", "E246", "E248", "E249"}


RIGHT_JOBS = {
    "two-replicas-of-four-parts": (parameter("partitions", 4),),
    "one-replica-needs-no-ddp": (parameter("partitions", 8), parameter("ddp", False)),
    "tensorflow-with-horovod": (f"{LIBRARY}.framework=tensorflow", f"~{P[2:]}.ddp", parameter("horovod", True)),
    "tensorflow-in-a-cluster": (
        f"{LIBRARY}.framework=tensorflow",
        f"~{P[2:]}.ddp",
        parameter("horovod", True),
        parameter("placement_strategy", "cluster"),
    ),
    "placement-of-an-old-version": (f"{LIBRARY}.version='1.2'", parameter("placement_strategy", "cluster")),
    "newer-name": (f"~{P[2:]}.partitions", parameter("pipeline_parallel_degree", 4), f"{LIBRARY}.version='1.6.0'"),
    "tensor-slices": (parameter("tensor_parallel_degree", 4), parameter("placement_strategy", "PDT")),
    "manual-split": (parameter("auto_partition", False), parameter("default_partition", 1)),
    "stated-batch": (f"{ARGS}.micro_train_batch_size=8", f"{ARGS}.train_batch_size=32"),
    "processes-follow-devices": (f"{D}.mpi.processes_per_host=null",),
    "mpi-alone-on-processors": ("~recipes.distribution.smdistributed", "instance_type=m5.4xlarge"),
    "nothing-enabled": (f"{LIBRARY}.enabled=false", f"{D}.mpi.enabled=false"),
    "nccl-debug": (f"{D}.mpi.custom_mpi_options='--NCCL_DEBUG WARN -x A=1'",),
    "port": (parameter("ddp_port", 7000), parameter("ddp_dist_backend", "nccl")),
}


@pytest.mark.parametrize("overrides", RIGHT_JOBS.values(), ids=RIGHT_JOBS)
def test_a_right_distribution_is_accepted(overrides, found):
    assert found(*overrides) == []


@pytest.mark.parametrize(
    ("overrides", "size"),
    [
        pytest.param((), 4, id="partitions"),
        pytest.param((parameter("tensor_parallel_degree", 2),), 4, id="each tensor slice its own batch"),
        pytest.param(
            (parameter("tensor_parallel_degree", 2), parameter("prescaled_batch", True)), 2, id="prescaled batch"
        ),
        pytest.param((f"{LIBRARY}.enabled=false",), 8, id="not split"),
    ],
)
def test_samples_are_dealt_to_whole_replicas(overrides, size, tmp_path):
    draft, _ = examine(compose([*JOB, *WRITTEN, *overrides], tmp_path))
    assert draft.data_parallel_size(draft.scales[0]) == size


def test_sections_that_are_not_enabled_are_idle():
    distribution = Distribution.model_validate(
        {"smdistributed": {"modelparallel": {"enabled": False, "parameters": EXAMPLE}}, "mpi": {"enabled": False}}
    )
    assert distribution.idle_sections == ("smdistributed.modelparallel",)
    assert Distribution.model_validate(TREE).idle_sections == ()


def test_a_section_that_is_not_enabled_is_a_notice(prepare):
    disabled = "++recipes.distribution={mpi:{enabled:false,processes_per_host:1}}"
    script = ("recipes=training/custom/script", "training_cfg.entry_module=json.tool", "cluster=local")
    (notice,) = [each for each in prepare(*script, disabled).notices if each.code == "N118"]
    assert "mpi.enabled=false" in notice.message


@pytest.mark.parametrize(
    ("parameters", "framework", "expected"),
    [
        ({"partitions": 4}, "pytorch", {"memory_weight": 0.8, "active_microbatches": 6, "ddp": False}),
        ({"partitions": 2, "optimize": "speed"}, "pytorch", {"memory_weight": 0.2, "active_microbatches": 4}),
        ({"partitions": 2, "memory_weight": 0.0}, "pytorch", {"memory_weight": 0.0, "microbatches": 1}),
        ({"partitions": 2}, "tensorflow", {"contiguous": True, "horovod": False, "default_partition": 0}),
    ],
    ids=["memory", "speed", "given", "tensorflow"],
)
def test_defaults_are_the_documents(parameters, framework, expected):
    effective = smp.effective(SmpParameters.model_validate(parameters), framework)
    assert effective | expected == effective
    common = {"pipeline": "interleaved", "placement_strategy": "cluster", "auto_partition": True}
    assert effective | common == effective
    other = {"pytorch": "horovod", "tensorflow": "memory_weight"}[framework]
    assert other not in effective


# hyperparameters


def test_hyperparameters_of_the_documents_example_are_the_sdks_to_the_byte():
    assert smp.hyperparameters(TREE, 8, "ml.p3.16xlarge") == {
        "sagemaker_mpi_enabled": "true",
        "sagemaker_mpi_num_of_processes_per_host": "8",
        "sagemaker_mpi_custom_mpi_options": '"--mca btl_vader_single_copy_mechanism none "',
        "mp_parameters": '{"microbatches": 4, "placement_strategy": "spread", "pipeline": "interleaved", '
        '"optimize": "speed", "partitions": 2, "ddp": true}',
        "sagemaker_distributed_dataparallel_enabled": "false",
        "sagemaker_instance_type": '"ml.p3.16xlarge"',
    }


def test_hyperparameters_of_mpi_alone_say_nothing_of_the_library():
    assert smp.hyperparameters({"mpi": {"enabled": True}}, 2, "ml.m5.xlarge") == {
        "sagemaker_mpi_enabled": "true",
        "sagemaker_mpi_num_of_processes_per_host": "2",
        "sagemaker_mpi_custom_mpi_options": '""',
    }


def test_a_parameter_set_to_null_is_left_out():
    tree = {"smdistributed": {"modelparallel": {"enabled": True, "parameters": {"partitions": 2, "ddp": None}}}}
    assert smp.hyperparameters(tree, 8, "ml.p3.16xlarge")["mp_parameters"] == '{"partitions": 2}'


def test_parameters_of_a_library_that_is_not_enabled_are_left_out():
    tree = {"smdistributed": {"modelparallel": {"enabled": False, "parameters": {"partitions": 2}}}}
    assert "mp_parameters" not in smp.hyperparameters(tree, 8, "ml.p3.16xlarge")


# mpirun

LINE = (
    "mpirun --host algo-1:8,algo-2:8 -np 16 --allow-run-as-root --display-map --tag-output"
    " -mca btl_tcp_if_include eth0 -mca oob_tcp_if_include eth0 -mca plm_rsh_no_tree_spawn 1 -bind-to none"
    " -map-by slot -mca pml ob1 -mca btl ^openib -mca orte_abort_on_non_zero_status 1"
    " -mca btl_vader_single_copy_mechanism none -x NCCL_MIN_NRINGS=4 -x NCCL_SOCKET_IFNAME=eth0 -x NCCL_DEBUG={debug}"
    " -x LD_LIBRARY_PATH -x PATH"
    " -x LD_PRELOAD=/lib/gethostname.so{custom} -x FI_PROVIDER=efa -x NCCL_PROTO=simple -x FI_EFA_USE_DEVICE_RDMA=1"
    " -x SM_HOSTS -x SM_HPS{library} /usr/bin/python3 -m mpi4py train.py --epochs 1"
)
"""Source: facts of a run of toolkit 5.1.4 on two ml.p4d.24xlarge."""
PROGRAM = ("/usr/bin/python3", "-m", "mpi4py", "train.py", "--epochs", "1")
RUN = {
    "hosts": ("algo-1", "algo-2"),
    "processes_per_host": 8,
    "instance_type": "ml.p4d.24xlarge",
    "preload": "/lib/gethostname.so",
    "exported": ("SM_HOSTS", "SM_HPS"),
}


@pytest.mark.parametrize(
    ("more", "debug", "custom", "library"),
    [
        pytest.param({}, "INFO", "", "", id="plain"),
        pytest.param(
            {"custom_options": MPI_OPTIONS}, "INFO", " --mca btl_vader_single_copy_mechanism none", "", id="custom"
        ),
        pytest.param({"custom_options": "-x A=1 --NCCL_DEBUG WARN"}, "WARN", " -x A=1", "", id="nccl-debug"),
        pytest.param({"custom_options": "--NCCL_DEBUG=TRACE"}, "TRACE", "", "", id="nccl-debug-in-one-word"),
        pytest.param({"mp_parameters": EXAMPLE}, "INFO", "", "", id="library-without-torch-image"),
        pytest.param(
            {"mp_parameters": EXAMPLE, "torch_version": "1.13.1"}, "INFO", "", " -x NCCL_PROTO=simple", id="torch-1"
        ),
        pytest.param(
            {"mp_parameters": EXAMPLE, "torch_version": "2.0.1", "has_smddpmprun": True},
            "INFO",
            "",
            " -x NCCL_PROTO=simple -x NCCL_ALGO=ring smddpmprun -i ml.p4d.24xlarge --allow-bypass",
            id="torch-2-smddpmprun",
        ),
        pytest.param(
            {"mp_parameters": EXAMPLE | {"ddp_dist_backend": "nccl"}, "has_smddpmprun": True},
            "INFO",
            "",
            "",
            id="nccl",
        ),
    ],
)
def test_the_mpirun_line_is_the_toolkits_word_for_word(more, debug, custom, library):
    expected = LINE.format(debug=debug, custom=custom, library=library)
    assert shlex.join(mpi.command(MpiRun(**RUN | more), PROGRAM)) == shlex.join(expected.split())


def test_one_process_a_host_is_named_without_slots():
    words = mpi.command(MpiRun(host_names(11), 1), ("true",))
    assert words[1:5] == (
        "--host",
        "algo-1,algo-10,algo-11,algo-2,algo-3,algo-4,algo-5,algo-6,algo-7,algo-8,algo-9",
        "-np",
        "11",
    )
    assert not any("FI_" in word for word in words)


@given(hosts=st.integers(1, 64), processes=st.integers(1, 16))
def test_mpirun_starts_all_processes_of_all_hosts(hosts, processes):
    words = mpi.command(MpiRun(host_names(hosts), processes), ("true",))
    slots = [int(host.partition(":")[2] or 1) for host in words[words.index("--host") + 1].split(",")]
    assert int(words[words.index("-np") + 1]) == sum(slots) == hosts * processes


def test_sections_of_the_page_are_the_rules(found):
    page = (ROOT / "docs/model-parallelism.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\bE2[45]\d\b", page)) == set(RULES)


def test_the_pages_example_is_a_recipe_that_passes(tmp_path):
    page = (ROOT / "docs/model-parallelism.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"```yaml\n(.+?)```", page, re.S)
    path = tmp_path / "mine.yaml"
    path.write_text(recipe, encoding="utf-8")
    try:
        composition = compose([f"recipes={path}", "cluster=sm_jobs", "instance_type=p3.16xlarge"], tmp_path)
    except ProblemsFound as error:
        pytest.fail(str(error))
    _, faults = examine(composition)
    assert [fault for fault in faults if fault.code != "E901" and fault.path.startswith("recipes")] == []
