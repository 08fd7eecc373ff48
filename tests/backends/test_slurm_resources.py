"""What a job on Slurm requests of its nodes, what its batch script runs first, and its release."""

import pytest
from conftest import frozen_context, rendered
from test_slurm_rendering import ELASTIC, OPEN, PUBLISHED, files, problem

from launcher import check, pipeline
from launcher.backends.slurm import requests
from launcher.backends.slurm.demand import demand_of
from launcher.backends.slurm.sbatch_options import header_of, hosts, mebibytes, refuse_unknown
from launcher.backends.slurm.srun_options import refuse_undoing
from launcher.common.problems import ProblemsFound

SCRIPT = (
    *("recipes=training/custom/script", "cluster=slurm", "training_cfg.entry_script=a.py"),
    *("training_cfg.run.ntasks_per_node=2", "training_cfg.run.nodes=2"),
)
CPU, GPU = (*SCRIPT, "instance_type=m5.2xlarge"), (*SCRIPT, "instance_type=ml.p5.48xlarge")
ONE = (*GPU, "training_cfg.run.nodes=1")
P5 = ("recipes.instance_types=[ml.p5.48xlarge]", "instance_type=ml.p5.48xlarge")
SHARED = "cluster.exclusive=false"
MPI = ("++recipes.distribution.mpi.enabled=true", "cluster.mpi=pmi2")
DOCKER = (
    "cluster.slurm_docker_cfg.docker_args=['--shm-size=1g']",
    "cluster.slurm_docker_cfg.post_launch_commands=['pip install x']",
)


def header(folder, *words):
    text = files(folder, *words)["slurm/job.sh"]
    lines = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")]
    own = ("exclusive", "mem", "ntasks-per-node", "cpus-per-task", "gpus-per-node", "gpus-per-task", "gres")
    return [line for line in lines if line.startswith(own)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (CPU, ["exclusive", "mem=0"]),
        (GPU, ["exclusive", "mem=0"]),
        ((*CPU, SHARED), ["ntasks-per-node=2"]),
        ((*CPU, SHARED, "cluster.mem=16GB"), ["ntasks-per-node=2", "mem=16GB"]),
        ((*CPU, SHARED, "cluster.mem=16g"), ["ntasks-per-node=2", "mem=16g"]),
        ((*CPU, SHARED, "cluster.mem=100"), ["ntasks-per-node=2", "mem=100"]),
        (
            (*CPU, SHARED, "cluster.cpus_per_task=3", "cluster.mem_per_cpu=2G"),
            ["ntasks-per-node=2", "cpus-per-task=3", "mem-per-cpu=2G"],
        ),
        ((*GPU, SHARED), ["ntasks-per-node=2", "gpus-per-node=2"]),
        (
            (*GPU, SHARED, "cluster.gpus_per_task=1", "cluster.mem_per_gpu=80GB"),
            ["ntasks-per-node=2", "mem-per-gpu=80GB", "gpus-per-node=2"],
        ),
        ((*CPU, "cluster.cpus_per_task=3"), ["exclusive", "ntasks-per-node=2", "cpus-per-task=3", "mem=0"]),
        ((*CPU, "cluster.mem_per_cpu=2G"), ["exclusive", "mem-per-cpu=2G"]),
    ],
    ids=lambda value: " ".join(word for word in value if word.startswith("cluster.")) if value else None,
)
def test_a_job_requests_what_its_processes_use(tmp_path, words, expected):
    assert header(tmp_path, *words) == expected


def test_the_step_of_mpi_has_the_cpus_of_each_rank(tmp_path):
    step = "--ntasks-per-node=2 --cpus-per-task=3 "
    assert step in files(tmp_path, *CPU, *MPI, SHARED, "cluster.cpus_per_task=3")["slurm/job.sh"]
    assert step not in files(tmp_path, *CPU, SHARED, "cluster.cpus_per_task=3")["slurm/job.sh"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("100", 100), ("1K", 1), ("1025k", 2), ("64G", 65_536), ("64GB", 65_536), ("1tb", 2**20), (None, 0)],
)
def test_memory_is_read_as_slurm_reads_it(text, expected):
    assert mebibytes(text) == expected


@pytest.mark.crossed
@pytest.mark.parametrize("key", ["mem", "mem_per_cpu", "mem_per_gpu"])
@pytest.mark.parametrize(
    "value", ["64B", "1.5G", "1P", "'64 GB'", "1MX", "-1", "0x10", "'010'", "1025T", "99999999999999", "true", "[1]"]
)
def test_memory_that_slurm_does_not_read_is_one_problem(tmp_path, key, value):
    with pytest.raises(ProblemsFound) as error:
        files(tmp_path, *CPU, SHARED, f"cluster.{key}={value}")
    assert {(each.code, each.path) for each in error.value.problems} == {("E102", f"cluster.{key}")}


@pytest.mark.parametrize(
    ("words", "code", "key"),
    [
        ((*CPU, "cluster.mem=1G", "cluster.mem_per_cpu=1G"), "E473", "cluster.mem"),
        ((*GPU, SHARED, "cluster.mem_per_cpu=1G", "cluster.mem_per_gpu=1G"), "E473", "cluster.mem_per_cpu"),
        ((*CPU, SHARED, "cluster.mem_per_gpu=1G"), "E474", "cluster.mem_per_gpu"),
        ((*GPU, "cluster.mem_per_gpu=1G"), "E474", "cluster.mem_per_gpu"),
        ((*GPU, "cluster.gpus_per_task=1", "cluster.gpus_per_node=2"), "E441", "cluster.gpus_per_task"),
        ((*GPU, "cluster.gpus_per_task=1", "cluster.gres=gpu:2"), "E441", "cluster.gres"),
        ((*GPU, SHARED, "cluster.gpus_per_node=1"), "E475", "cluster.gpus_per_node"),
        ((*GPU, SHARED, "cluster.gres=gpu:h100:1"), "E475", "cluster.gres"),
        ((*GPU, "cluster.gpus_per_node=9"), "E475", "cluster.gpus_per_node"),
        ((*GPU, "cluster.gres=gpu:h100:16"), "E475", "cluster.gres"),
        ((*GPU, "cluster.gpus_per_task=8"), "E475", "cluster.gpus_per_task"),
        ((*ONE, "cluster.additional_parameters={gpus: 16}"), "E475", "cluster.additional_parameters.gpus"),
        ((*GPU, "cluster.additional_parameters={--gpus: 17}"), "E475", "cluster.additional_parameters.--gpus"),
        ((*GPU, "cluster.additional_parameters={gpus: 17}"), "E475", "cluster.additional_parameters.gpus"),
        ((*GPU, "cluster.additional_parameters={gpus: 'h100:3'}"), "E475", "cluster.additional_parameters.gpus"),
        ((*GPU, "cluster.additional_parameters={gpus: 'a:1,b:2'}"), "E475", "cluster.additional_parameters.gpus"),
        ((*CPU, "cluster.gpus_per_node=4"), "E475", "cluster.gpus_per_node"),
        ((*CPU, "cluster.gres=gpu:1"), "E475", "cluster.gres"),
        ((*CPU, "cluster.additional_parameters={gpus: 2}"), "E475", "cluster.additional_parameters.gpus"),
        ((*CPU, "container=a:1", "cluster.container_runtime=none"), "E442", "cluster.container_runtime"),
        ((*GPU, "cluster.cpus_per_task=97"), "E462", "cluster.cpus_per_task"),
        ((*GPU, "cluster.mem=3000G"), "E462", "cluster.mem"),
        ((*GPU, "cluster.cpus_per_task=96", "cluster.mem_per_cpu=11G"), "E462", "cluster.mem_per_cpu"),
        ((*GPU, "cluster.gpus_per_node=8", "cluster.mem_per_gpu=257G"), "E462", "cluster.mem_per_gpu"),
        ((*GPU, SHARED, "cluster.mem_per_gpu=1025G"), "E462", "cluster.mem_per_gpu"),
        ((*CPU, "cluster.limit_notice=60", "cluster.signal=USR1@60"), "E476", "cluster.signal"),
        ((*CPU, "cluster.limit_notice=120", "cluster.time=2"), "E477", "cluster.limit_notice"),
        ((*CPU, "cluster.limit_requeues=1"), "E478", "cluster.limit_requeues"),
        (
            (*CPU, "cluster.limit_requeues=1", "cluster.limit_notice=9", "cluster.requeue=false"),
            *("E478", "cluster.limit_requeues"),
        ),
        ((*ELASTIC, "cluster.release.enabled=false"), "E479", "cluster.release.enabled"),
        ((*ELASTIC, "cluster.cpus_per_task=1"), "E470", "cluster.cpus_per_task"),
        ((*ELASTIC, *P5, "cluster.gpus_per_task=1"), "E470", "cluster.gpus_per_task"),
        ((*ELASTIC, "cluster.limit_notice=60"), "E470", "cluster.limit_notice"),
        ((*ELASTIC, "cluster.limit_requeues=1"), "E470", "cluster.limit_requeues"),
        ((*CPU, "cluster.nodelist='n[1-2]'", "cluster.exclude='n[2-8]'"), "E463", "cluster.exclude"),
        ((*CPU, "cluster.nodelist='n[1-3]'"), "E463", "cluster.nodelist"),
        ((*ELASTIC, f"cluster.nodelist={','.join(f'n{i}' for i in range(99))!r}"), "E463", "cluster.nodelist"),
        (
            (*CPU, "cluster.time=1:00:00", "cluster.additional_parameters={time-min: 61}"),
            *("E464", "cluster.additional_parameters.time-min"),
        ),
        ((*CPU, "cluster.cpus_per_task=0"), "E102", "cluster.cpus_per_task"),
        ((*CPU, "cluster.srun_args=['--label', '--nodes=1']"), "E102", "cluster.srun_args"),
        ((*CPU, "cluster.limit_notice=65536"), "E102", "cluster.limit_notice"),
        ((*CPU, "cluster.additional_parameters={cpus_per_task: 3}"), "E102", "cluster.additional_parameters"),
        ((*CPU, 'cluster.setup=["a\\nb"]'), None, None),
        ((*CPU, "cluster.setup=['#SBATCH --nice=3']"), "E102", "cluster.setup.0"),
        ((*CPU, f"cluster.setup=['{'x' * 4097}']"), "E102", "cluster.setup.0"),
        ((*CPU, "cluster.setup='module load a'"), "E102", "cluster.setup"),
    ],
    ids=lambda value: " ".join(word[:80] for word in value if word.startswith("cluster.")) if value else None,
)
def test_a_contradiction_is_a_problem_of_its_key(tmp_path, words, code, key):
    if code is None:  # Hydra keeps a backslash and a letter
        assert "\na\\nb\n" in files(tmp_path, *words)["slurm/job.sh"]
        return
    found = problem(tmp_path, *words)
    assert (found.code, found.path) == (code, key)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("signal", ["FOO@1", "USR1@65536", "USR1@99999", "RTMIN@1", "0@1", "65", "CHLD"]),
        ("time", ["99999999999999999999", "49711-0", "24855-0:01", 35_791_201, -1]),
        ("nodelist", ["n[1-", "n[3-1]", "n]", ",", "n[a-b]", "n[1-2]x", "[1]", ""]),
        ("exclude", ["n[1-", "n[9,3-1]"]),
        ("gres", ["gpu:-1", "gpu::", ",", "gpu:", "gpu:h100:x", ":1", "gpu:1,", "gpu:1.5", "a b", f"gpu:{'9' * 20}"]),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_value_that_sbatch_refuses_or_misreads_is_one_problem(key, values):
    for value in values:
        assert [(each.code, each.path) for each in faults(key, value)] == [("E102", f"cluster.{key}")], value


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("signal", ["R:USR1@65535", "SIGTERM", "64@0", "XCPU@1"]),
        ("time", [0, "0", "0:00", "24855-0", 35_791_200]),
        ("nodelist", ["n[01-02]", "rack[0-1]_b[1,3]", "n[1-1][2]", "n1,m2.a-b", "./nodes.txt", "/nodes/[b-a]"]),
        ("exclude", ["n1, n2", "n1 n2,", "n1,,n2"]),
        ("gres", ["nic", "nic:2", "shard:1g.5gb:2", "nic:1,disk:ssd", "disk:3090:4", "disk:2K", "none"]),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_value_that_sbatch_takes_is_taken(key, values):
    for value in values:
        assert faults(key, value) == (), value


def faults(key, value):
    job = {"cluster": "slurm", "training_cfg.entry_script": "a.py", "training_cfg.run.nodes": 2}
    given = {**job, "instance_type": "m5.2xlarge", f"cluster.{key}": value}
    (found,) = check("training/custom/script", overrides=given)
    return found.problems


@pytest.mark.parametrize(
    ("parameters", "fault"),
    [
        ({"hold": "yes"}, "hold takes no value: true or false"),
        ({"contiguous": 1}, "contiguous takes no value: true or false"),
        ({"licenses": True}, "licenses needs a value"),
        ({"kill-on-invalid-dep": False}, "kill-on-invalid-dep needs 'yes' or 'no', in quotes"),
        ({"core-spec": 1, "core_spec": 2}, "core-spec and core_spec are the same option"),
        ({"--nice": None, "nice": 2}, "--nice and nice are the same option"),
    ],
    ids=str,
)
def test_an_option_of_sbatch_has_a_value_if_it_needs_one(parameters, fault):
    with pytest.raises(ValueError, match=fault):
        refuse_unknown(parameters)


def test_an_inherited_image_is_no_contradiction_to_a_job_without_a_container():
    given = {"cluster": "slurm", "cluster.container_runtime": "none", "cluster.trainer": "open"}
    (found,) = check("llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora", overrides=given)
    assert [problem.code for problem in found.problems] == ["E116"]  # that the user has given no data


def test_an_option_of_sbatch_may_be_left_out_or_have_its_default():
    given = {"hold": True, "contiguous": False, "licenses": False, "core-spec": None, "nice": True, "no-kill": "off"}
    assert refuse_unknown(given) == given


def test_a_header_has_the_lines_of_slurm_not_those_of_unicode():
    options = ['--partition="p\x85q\u2028r\x1cs"', "--nodes=1"]
    assert header_of("#!/bin/sh\n" + "".join(f"#SBATCH {option}\n" for option in options)) == options


def test_an_elastic_job_without_a_time_limit_can_stop_in_time(tmp_path):
    assert "--time=0" in files(tmp_path, *ELASTIC, "cluster.time=0")["slurm/job.sh"]


def test_a_request_for_too_much_names_the_sum(tmp_path):
    assert "makes 16 per node, more than one of" in str(problem(tmp_path, *GPU, "cluster.gpus_per_task=8"))
    assert "makes 600 CPUs per node" in str(problem(tmp_path, *GPU, "cluster.cpus_per_task=300"))


@pytest.mark.parametrize(
    "words",
    [
        ("cluster.nodelist='n[1-2]'", "cluster.exclude='n[3-8]'"),
        ("cluster.time='0:00'", "cluster.additional_parameters={time-min: 61}"),
        ("cluster.time=61", "cluster.additional_parameters={time-min: 61}"),
        ("cluster.gpus_per_task=4", "cluster.cpus_per_task=96", "cluster.mem=2048G"),
        ("cluster.additional_parameters={gpus: 16}", "cluster.mem_per_gpu=256G"),
        ("cluster.additional_parameters={overcommit: true}", "cluster.cpus_per_task=97"),
    ],
    ids=" ".join,
)
def test_what_does_not_exceed_a_limit_may_be_requested(tmp_path, words):
    assert files(tmp_path, *GPU, *words)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n1,m[1-2,07]", {"n1", "m1", "m2", "m07"}),
        ("a-[09-10].x", set()),
        ("/etc/nodes", set()),
        ("n[1-2]-[3-4]", set()),
        ("n[1-999999]", set()),
        ("n[2-1]", set()),
        ("", set()),
    ],
)
def test_nodes_of_a_list(text, expected):
    assert hosts(text) == expected


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--nodes=1"], "--nodes is not"),
        (["--node=1"], "--nodes is not"),
        (["-N1"], "--nodes is not"),
        (["-N", "1"], "--nodes is not"),
        (["-lN1"], "--nodes is not"),
        (["--ntasks", "1"], "--ntasks is not"),
        (["-n", "1"], "--ntasks is not"),
        (["--ntasks-per-node=2"], "--ntasks-per-node is not"),
        (["--export=NONE"], "--export is not"),
        (["--export=ALLOW"], "--export is not"),
        (["--test-only"], "--test-only is not"),
        (["--jobid=1"], "--jobid is not"),
        (["--multi-prog"], "--multi-prog is not"),
        (["--container-image=a"], "--container-image is not"),
        (["-vV"], "--version is not"),
        (["bash"], "a word that is not an option"),
        (["--label", "bash"], "a word that is not an option"),
        (["--unknown", "bash"], "a word that is not an option"),
        (["-K", "1"], "a word that is not an option"),
        (["--"], "a word that is not an option"),
        (["--mpi"], "--mpi lacks its value"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_words_that_undo_what_the_launcher_sets_are_refused(words, fault):
    with pytest.raises(ValueError, match=f"^{fault}[^;]*$"):
        refuse_undoing(words)


@pytest.mark.parametrize(
    "words",
    [
        ["--cpu-bind=none", "--label", "--mem=0", "--kill-on-bad-exit=1", "--mpi=pmix"],
        ["--cpu-bind", "none", "-c", "8", "-lv", "-K1", "-mblock"],
        [
            "--export=ALL",
            "--export=ALL,NCCL_DEBUG=INFO",
            "--container-env",
            "A",
            "--container=/oci",
            "--of-a-plugin=x",
        ],
    ],
    ids=" ".join,
)
def test_other_options_of_srun_are_taken(words):
    assert refuse_undoing(words) == words


@pytest.mark.parametrize("letter", ["\n", "\r", "\0", "\x1b", "\x7f"], ids=repr)
def test_a_command_of_setup_is_one_line(tmp_path, letter):
    with pytest.raises(ProblemsFound) as error:
        files(tmp_path, *CPU, f"cluster.setup=['a{letter}b']")
    assert {each.code for each in error.value.problems} <= {"E102", "E002"}


def notices(folder, *words):
    return [str(each) for each in pipeline.prepare(words, frozen_context(folder)).notices]


def test_all_memory_of_shared_nodes_is_a_notice(tmp_path):
    assert any("N188" in each for each in notices(tmp_path, *CPU, SHARED, "cluster.mem=0"))
    for words in ((SHARED,), ("cluster.mem=0",), (SHARED, "cluster.mem=1G")):
        assert not any("N188" in each for each in notices(tmp_path, *CPU, *words))


def test_an_environment_that_setup_activates_is_not_the_python_of_the_launch(tmp_path):
    setup = "cluster.setup=['source env/bin/activate']"
    assert any("N186" in each for each in notices(tmp_path, *CPU, setup))
    assert not any("N186" in each for each in notices(tmp_path, *CPU, setup, "cluster.python=python"))
    assert not any("N186" in each for each in notices(tmp_path, *CPU, "cluster.setup=['module load cuda']"))


def test_what_shared_nodes_are_asked_for_is_compared_with_limits(tmp_path):
    words = (*GPU, SHARED, "cluster.cpus_per_task=3", "cluster.gpus_per_task=2", "cluster.mem_per_gpu=1GB")
    demand = demand_of(requests.request_for([rendered(tmp_path, *words)]))
    assert (demand.cpus, demand.memory_mib, demand.memory_key) == (6, 4096, "cluster.mem_per_gpu")
    assert demand.least("gres/gpu", [], 2) == 8 and demand.least("cpu", [], 2) == 12
    assert not demand.is_plain


def test_the_release_has_the_job_s_place_or_its_own(tmp_path):
    def placed(*words):
        text = files(tmp_path, *PUBLISHED, *OPEN, *words).get("slurm/release.sh", "")
        return [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")][2:-1]

    own = ("cluster.partition=gpu", "cluster.account=team", "cluster.qos=high", "cluster.reservation=mine")
    assert placed(*own) == ["partition=gpu", "account=team", "qos=high", "reservation=mine"]
    other = ("cluster.release.partition=cpu", "cluster.release.qos=low", "cluster.release.account=ops")
    assert placed(*own, *other) == ["partition=cpu", "account=ops", "qos=low"]
    made = files(tmp_path, *PUBLISHED, *OPEN, "cluster.release.enabled=false")
    assert "slurm/release.sh" not in made and "release" not in made["slurm/job.sh"]
    assert "scontrol requeue" in made["slurm/job.sh"]


@pytest.mark.parametrize(
    ("key", "text", "secret"),
    [
        ("setup", "export HF_TOKEN=hf_aBcDeFgHiJkLmNoPqRsTuVwXyZ012345", "hf_aBc"),
        ("setup", "export DB_PASSWORD=hunter2", "hunter2"),
        ("setup", 'curl -H "Authorization: Bearer abcdef123456" https://example.org', "abcdef123456"),
        ("slurm_docker_cfg.post_launch_commands", "export DB_PASSWORD=hunter2", "hunter2"),
        ("slurm_docker_cfg.docker_args", "--env=DB_PASSWORD=hunter2", "hunter2"),
        ("srun_args", "--container-env=DB_PASSWORD=hunter2", "hunter2"),
    ],
)
def test_a_secret_in_a_command_is_refused(tmp_path, key, text, secret):
    with pytest.raises(ProblemsFound) as error:
        files(tmp_path, *PUBLISHED, f"cluster.{key}=['{text}']")
    assert {each.code for each in error.value.problems} <= {"E608", "E609"}
    assert secret not in str(error.value)


def test_a_command_may_name_a_variable_with_a_secret(tmp_path):
    line = "export DB_PASSWORD=$(< ~/.password)"
    assert line in files(tmp_path, *CPU, f"cluster.setup=['{line}']")["slurm/job.sh"]


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (("container=a/b:1", "cluster.container_runtime=pyxis", *DOCKER), ("docker as the runtime",) * 2),
        (("container=a/b:1", *DOCKER), ()),
        (("cluster.mpi=pmix",), ("recipes.distribution.mpi.enabled=true",)),
        (("cluster.requeue=false", "cluster.release.enabled=true"), ("cluster.requeue=true",)),
        (("cluster.requeue=false", "cluster.release.enabled=false"), ()),
        (("cluster.release.enabled=false", "cluster.release.qos=a"), ("cluster.release.enabled=true",)),
        (("cluster.release.qos=a", "cluster.array_parallelism=2"), ()),
    ],
    ids=["pyxis", "docker", "mpi", "requeue", "neither", "release", "used"],
)
def test_a_setting_of_what_the_job_does_not_do_is_noticed(tmp_path, words, needed):
    found = [each for each in notices(tmp_path, *CPU, *words) if "N187" in each]
    assert tuple(each.rpartition(" without ")[2] for each in found) == needed


def test_a_key_that_needs_another_one_is_noticed_without_it(tmp_path):
    words = ("cluster.container_mounts=[/fsx]", "cluster.growth=requeue", "cluster.ssh_folder=/fsx/x")
    found = [each for each in notices(tmp_path, *CPU, *words) if "N187" in each]
    needed = ("a container", "an elastic job", "cluster.ssh")
    assert [each.rpartition(" without ")[2] for each in found] == list(needed)
    assert not any(
        "N187" in each for each in notices(tmp_path, *CPU, words[2], "cluster.ssh=me@login", "cluster.code=folder")
    )


def test_a_job_without_a_valid_size_has_no_other_fault(tmp_path):
    words = (*GPU, "++recipes.elastic_policy.is_elastic=true", "++recipes.scale_config={}", "cluster.mem_per_gpu=1G")
    with pytest.raises(ProblemsFound) as error:
        files(tmp_path, *words, "cluster.gpus_per_node=8")
    assert {each.code for each in error.value.problems} == {"E110", "E202"}  # about the script, and its sizes
