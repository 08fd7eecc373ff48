"""What starts a script of the user's own: which key is at fault, its value, and what to type."""

import pytest
from conftest import LLAMA as LLAMA_NAME

LLAMA = f"recipes={LLAMA_NAME}"
VERL = "recipes=fine-tuning/qwen/verl-grpo-rlvr-qwen-3-8b-lora"
J = "cluster.sm_jobs_config"
CFG = "recipes.training_cfg"
D = "recipes.distribution"
DATA = f"{D}.smdistributed.dataparallel.enabled"
ENTRY = "training_cfg.entry_script=a.py"
MODULE = "training_cfg.entry_module=b"
OUT = f"{J}.output_path=s3://results/out"
SCRIPT = ("recipes=training/custom/script", "container=me/image:1", "training_cfg.run.ntasks_per_node=8")
INSTANCE = "instance_type=ml.p3.16xlarge"
CLUSTERS = {
    "sm_jobs": ("cluster=sm_jobs", INSTANCE, f"{J}.role=arn:aws:iam::123456789012:role/train", OUT),
    "sm_local": ("cluster=sm_local", INSTANCE, OUT),
    "k8s": ("cluster=k8s",),
}
TRAIN = "training_cfg.entry_script=train.py"
ITS_OWN = f"{TRAIN}; or {J}.toolkit=false for an image with its own program"


@pytest.fixture
def faults(problems):
    """Return a function from a cluster and overrides to code, path, value and remedy of each Problem."""

    def found(cluster, *overrides):
        all_found = problems(*SCRIPT, *CLUSTERS[cluster], *overrides)
        return [(each.code, each.path, each.value, each.remedy) for each in all_found]

    return found


@pytest.mark.parametrize(("cluster", "remedy"), [("sm_jobs", ITS_OWN), ("sm_local", ITS_OWN), ("k8s", TRAIN)])
def test_a_job_without_a_script_is_told_what_starts_one(faults, cluster, remedy):
    assert faults(cluster) == [("E106", f"{CFG}.entry_script", None, remedy)]


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_script_and_a_module_are_one_too_many(faults, cluster):
    both = ("E106", f"{CFG}.entry_script", "a.py and b", f"{CFG}.entry_module=null")
    assert [fault for fault in faults(cluster, ENTRY, MODULE) if fault[0] == "E106"] == [both]


@pytest.mark.parametrize("cluster", ["sm_jobs", "sm_local"])
def test_an_image_with_a_program_of_its_own_needs_no_script(prepare, cluster):
    assert prepare(*SCRIPT, *CLUSTERS[cluster], f"{J}.container_entrypoint=[python3,-V]").name


@pytest.mark.parametrize(
    ("arguments", "path", "value"),
    [
        ("[{a: 1, b: 2}]", "0", {"a": 1, "b": 2}),
        ("[{a: 1}, {b: {c: 1}}]", "1.b", {"c": 1}),
        ("[{a: [1, {b: 2}]}]", "0.a", [1, {"b": 2}]),
        ("[{a: 'bundle:x'}]", "0.a", "bundle:x"),
    ],
    ids=["two in one", "mapping", "mapping in a list", "another folder of the bundle"],
)
def test_an_argument_is_a_name_and_a_value(faults, arguments, path, value):
    assert faults("k8s", ENTRY, f"training_cfg.script_args={arguments}") == [
        ("E107", f"{CFG}.script_args.{path}", value, None)
    ]


def test_lists_of_plain_values_are_arguments(prepare):
    words = "training_cfg.script_args=[{a: [1, null, x, 2.5, true]}, {b: 'bundle:configs'}, {c: null}]"
    assert prepare(*SCRIPT, *CLUSTERS["k8s"], ENTRY, words).name


@pytest.mark.parametrize(
    ("override", "value", "remedy"),
    [
        ("git.branch=x", "x", "git.branch=null"),
        ("git.entry_script=x", "x", "training_cfg.entry_script=x"),
        ("git.entry_module=x", "x", "training_cfg.entry_module=x"),
        ("++git.token={secretKeyRef: {name: a, key: b}}", None, "git.token=null"),
        ("recipes.pre_script=[a]", ["a"], "recipes.pre_script=null"),
        ("recipes.post_script=[a]", ["a"], "recipes.post_script=null"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_only_other_images_read_is_refused(faults, override, value, remedy):
    path = override.lstrip("+").partition("=")[0]
    assert faults("k8s", ENTRY, override) == [("E108", path, value, remedy)]


@pytest.mark.parametrize(
    ("words", "code", "remedy"),
    [
        ((VERL, "git.commit=abcdef1234"), "E108", "git.commit=null"),
        ((VERL, "git.entry_script=/a.py"), "E108", "git.entry_script=null"),
        ((VERL, "cluster=slurm", "git.entry_module=a.b"), "E108", "git.entry_module=null"),
        (("recipes=training/tiny/tiny_lm_cpu", "git.branch=main"), "E108", "git.branch=null"),
        ((LLAMA, "git.branch=main"), "E123", "git.repo_url_or_path=<repository>, or git.branch=null"),
    ],
)
def test_code_that_a_program_does_not_fetch_is_refused(problems, words, code, remedy):
    found = problems("cluster=k8s", "container=me/image:1", "instance_type=ml.p5.48xlarge", *words)
    found = [each for each in found if each.path.startswith("git.")]
    assert [(each.code, each.remedy) for each in found] == [(code, remedy)]


def test_only_one_launcher_starts_the_script(faults):
    torch = f"{D}.torch_distributed.enabled"
    assert faults("sm_jobs", ENTRY, f"++{D}.mpi.enabled=true", f"++{torch}=true") == [
        ("E256", torch, True, f"++{torch}=false")
    ]
    library = f"++{D}.smdistributed.modelparallel={{enabled: true, parameters: {{partitions: 2}}}}"
    both, *_ = (
        fault
        for fault in faults("sm_jobs", ENTRY, f"++{DATA}=true", library, f"++{D}.mpi.enabled=true")
        if fault[0] == "E256" and "modelparallel" in fault[3]
    )
    assert both[1:3] == (DATA, True)


def test_a_library_alone_is_no_second_launcher(faults):
    library = f"++{D}.smdistributed.modelparallel={{enabled: true, parameters: {{partitions: 2}}}}"
    found = faults("sm_jobs", ENTRY, library, f"++{D}.mpi.enabled=true", "training_cfg.run.ntasks_per_node=x")
    assert "E256" not in {fault[0] for fault in found}


@pytest.mark.parametrize(
    ("cluster", "instance", "path", "value"),
    [
        ("sm_jobs", "instance_type=p5.48xlarge", "instance_type", "ml.p5.48xlarge"),
        ("sm_local", INSTANCE, DATA, True),
        ("k8s", "instance_type=p4d.24xlarge", DATA, True),
    ],
    ids=["another instance", "this machine", "pods"],
)
def test_the_data_parallel_library_runs_in_training_jobs_on_few_instances(faults, cluster, instance, path, value):
    (fault,) = [fault for fault in faults(cluster, ENTRY, instance, f"++{DATA}=true") if fault[0] == "E257"]
    assert fault[1:] == (path, value, f"++{D}.torch_distributed.enabled=true instead")


@pytest.mark.parametrize("cluster", ["sm_jobs", "sm_local"])
@pytest.mark.parametrize("size", [("8", "1"), ("1", "2")], ids=["one host", "two hosts"])
def test_several_processes_need_a_launcher(faults, cluster, size):
    size = (f"training_cfg.run.ntasks_per_node={size[0]}", f"recipes.trainer.num_nodes={size[1]}")
    off = f"++{D}.torch_distributed.enabled=false"
    found = [fault for fault in faults(cluster, ENTRY, *size, off) if fault[0] == "E258"]
    assert found == [("E258", f"{D}.torch_distributed.enabled", False, f"~{D}.torch_distributed")]


def test_one_process_needs_no_launcher(prepare):
    one = ("training_cfg.run.ntasks_per_node=1", f"++{D}.torch_distributed.enabled=false")
    assert prepare(*SCRIPT, *CLUSTERS["sm_jobs"], ENTRY, *one).name
    assert prepare(*SCRIPT, *CLUSTERS["k8s"], ENTRY, f"++{D}.torch_distributed.enabled=false").name


def test_a_section_that_is_not_enabled_has_no_effect_and_is_noticed(prepare):
    library = f"++{D}.smdistributed.modelparallel={{enabled: false, parameters: {{partitions: 2}}}}"
    for given, idle in ((library, ["smdistributed.modelparallel"]), (f"++{D}.mpi.enabled=true", [])):
        notices = prepare(*SCRIPT, *CLUSTERS["sm_jobs"], ENTRY, given).notices
        found = [notice.message.partition(".enabled")[0] for notice in notices if notice.code == "N118"]
        assert found == [f"distribution.{name}" for name in idle]


@pytest.mark.parametrize("key", [f"{CFG}.run.ntasks_per_node", "recipes.trainer.devices"])
def test_processes_without_a_device_are_refused_under_the_key_that_was_typed(faults, key):
    found = faults("k8s", ENTRY, "instance_type=g5.12xlarge", f"{key}=8")
    assert found == [("E232", key, 8, f"{key}=4")]


@pytest.mark.parametrize(("words", "keys"), [(("training_cfg.script_args=[{--aaa: 1}]",), 2), ((), 0)])
def test_a_start_command_replaces_the_arguments_of_a_script(prepare, words, keys):
    job = prepare(*SCRIPT, "cluster=k8s", ENTRY, "cluster.command=[a, b]", *words)
    texts = [notice.message for notice in job.notices if notice.code == "N194"]
    assert [text.count(f"{CFG}.") for text in texts] == ([keys] if keys else [])
