"""The scripts of a job on Slurm, and the tables behind them."""

import json
import os
import subprocess

import pytest
from conftest import LLAMA, frozen_context, rendered

from launcher import pipeline
from launcher.backends.slurm import programs, queue, requests, states
from launcher.backends.slurm.sbatch_options import minutes, quoted
from launcher.common.problems import ProblemsFound
from launcher.common.templating import render_template
from launcher.model.job_spec import JobState

PUBLISHED = (
    *(f"recipes={LLAMA}", "cluster=slurm", "instance_type=ml.p5.48xlarge", "recipes.trainer.num_nodes=2"),
    "recipes.training_config.training_args.train_batch_size=16",
)
OPEN = ("cluster.trainer=open", "rehearse=true", "container=null")
PARAMETERS = "cluster.additional_parameters"
SCRIPTS = ("slurm/job.sh", "slurm/node.sh", "slurm/variables.sh")


def files(folder, *words):
    return rendered(folder, *words).files


def problem(folder, *words):
    with pytest.raises(ProblemsFound) as error:
        pipeline.prepare(words, frozen_context(folder))
    (found,) = error.value.problems
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("container=me/image:1",), "docker run --name"),
        (("container=/fsx/image.sqsh",), "--container-image=/fsx/image.sqsh"),
        (("container=/fsx/i.sif", "cluster.container_runtime=apptainer"), "exec apptainer exec --nv"),
        (("container=/fsx/i", "cluster.container_runtime=charliecloud"), "exec ch-run --write"),
        (OPEN, "--rehearse --config-path"),
    ],
    ids=["docker", "pyxis", "apptainer", "charliecloud", "none"],
)
def test_every_way_to_start_a_node_is_a_sound_script(tmp_path, words, expected, shellcheck):
    mounts = "cluster.container_mounts=['/fsx/a b']"
    commands = ("++recipes.pre_script=['echo before']", "++recipes.post_script=['echo after']")
    made = files(tmp_path, *PUBLISHED, mounts, *commands, *words)
    text = "".join(made[name] for name in SCRIPTS)
    assert expected in text and "--privileged" not in text
    shellcheck(*(made[name] for name in SCRIPTS))


@pytest.mark.parametrize("name", ["run", "send", "fetch"])
def test_scripts_for_the_login_node_are_sound(name, shellcheck):
    own = {"growing": (".jsonl", ".log"), "prefixes": programs.PREFIXES, "kept": programs.KEPT}
    text = render_template(f"slurm/ssh_{name}.sh.j2", **own)
    shellcheck(text, exclude="SC2154")  # variables that `read` sets by name


def test_a_folder_that_is_copied_appears_complete_or_not_at_all(tmp_path):
    (tmp_path / "file").write_text("new")
    archive = subprocess.run(("tar", "-C", tmp_path, "-cz", "file"), capture_output=True, check=True).stdout
    script = render_template("slurm/ssh_send.sh.j2")
    target = tmp_path / "there" / "it's one"
    for content, mode, is_sent in (
        (archive[:-20], "once", False),
        (archive, "once", True),
        (archive, "once", True),
        (archive[:-20], "again", False),
        (archive, "again", True),
    ):
        done = subprocess.run(("bash", "-c", script, "bash", target, mode), input=content, capture_output=True)
        assert (done.returncode == 0) is is_sent, done.stderr
        is_there = content is archive or mode == "again"
        assert os.listdir(target.parent) == (["it's one"] if is_there else [])
    assert (target / "file").read_text() == "new" and target.stat().st_mode & 0o077 == 0


def test_variables_of_nccl_and_efa_are_set_for_several_nodes_and_may_be_overridden(tmp_path):
    several = files(tmp_path, *PUBLISHED, "env_vars={NCCL_IGNORE_DISABLED_P2P: 0}")["slurm/variables.sh"]
    assert "export FI_PROVIDER=efa" in several and "export NCCL_SOCKET_IFNAME='^lo,docker0" in several
    assert "export NCCL_IGNORE_DISABLED_P2P=0" in several and "P2P=1" not in several
    assert "FI_PROVIDER" not in files(tmp_path, *PUBLISHED, "recipes.trainer.num_nodes=1")["slurm/variables.sh"]


def test_every_key_of_the_header_is_an_option_of_sbatch(tmp_path):
    words = (
        *("cluster.partition=main", "cluster.account=team", "cluster.qos=high", "cluster.time=1-2:00:00"),
        *("cluster.exclusive=false", "cluster.mem=100", "cluster.constraint='a&b'", "cluster.nodelist='n[1-2]'"),
        *("cluster.exclude=n3", "cluster.reservation=mine", "cluster.dependency='afterok:1:2,afterany:3'"),
        *("cluster.mail_type=[END,FAIL]", "cluster.mail_user=ada@example.org", "cluster.signal=USR1@60"),
        *("cluster.requeue=false", "cluster.open_mode=truncate", "cluster.comment='a \"b\"'"),
        *("cluster.additional_parameters={nice: 3, contiguous: true}", "cluster.stderr_to_stdout=false"),
    )
    lines = files(tmp_path, *PUBLISHED, *words)["slurm/job.sh"].splitlines()
    header = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")]
    assert header[1:] == [
        *("nodes=2", "ntasks-per-node=8", "mem=100", "partition=main", "account=team", "qos=high"),
        *("time=1-2:00:00", "gpus-per-node=8"),
        *('constraint="a&b"', 'nodelist="n[1-2]"', "exclude=n3", "reservation=mine"),
        *("dependency=afterok:1:2,afterany:3", "mail-type=END,FAIL", "mail-user=ada@example.org", "signal=USR1@60"),
        *("no-requeue", "open-mode=truncate", 'comment="a \\"b\\""', "nice=3", "contiguous"),
        *("output=run/slurm-%j.log", "error=run/slurm-%j.err"),
    ]


@pytest.mark.parametrize(
    ("words", "code", "key", "text"),
    [
        (("cluster.auto_resume=true", "cluster.exclusive=false"), "E440", "cluster.auto_resume", "exclusive=true"),
        (("cluster.gres=gpu:8", "cluster.gpus_per_node=8"), "E441", "cluster.gres", "one of them"),
        (("container=null",), "E442", "container", "cluster.trainer=open"),
        (
            ("cluster.additional_parameters={nicee: 3}",),
            "E102",
            "cluster.additional_parameters",
            "did you mean nice?",
        ),
        (
            ("cluster.additional_parameters={partition: a}",),
            "E102",
            "cluster.additional_parameters",
            "key of its own",
        ),
        (
            ("cluster.additional_parameters={array: 0-3}",),
            "E102",
            "cluster.additional_parameters",
            "Valid ones: batch",
        ),
        (("cluster.dependency='afterok:1; rm'",), "E102", "cluster.dependency", "afterok:1; rm"),
        (("cluster.signal='B:USR1@60'",), "E102", "cluster.signal", "B:USR1@60"),
        (("cluster.mail_type=[NEVER]",), "E102", "cluster.mail_type.0", "TIME_LIMIT_90"),
        (("cluster.job_name_prefix='a,b'",), "E102", "cluster.job_name_prefix", "a,b"),
        (('cluster.comment="a\\nb"',), None, None, None),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else None,
)
def test_a_wrong_key_is_a_problem_that_says_what_is_allowed(tmp_path, words, code, key, text):
    if code is None:  # a backslash and a letter are no line break
        assert 'comment="a\\\\nb"' in files(tmp_path, *PUBLISHED, *words)["slurm/job.sh"]
        return
    found = problem(tmp_path, *PUBLISHED, *words)
    assert (found.code, found.path) == (code, key)
    assert text in str(found)


@pytest.mark.slow
def test_the_script_of_an_array_has_the_options_of_its_tasks(tmp_path, shellcheck):
    shared = (*PUBLISHED, "cluster.time=30", "cluster.array_parallelism=2", "cluster.stderr_to_stdout=false")
    points = [("container=a",), ("container=b",), ("container=c", "recipes.trainer.num_nodes=1")]
    made = [rendered(tmp_path, *shared, *words) for words in points]
    array, alone = requests.grouped(made)
    assert [len(array), len(alone)] == [2, 1]
    assert "but these differ: nodes; cluster.array" in str(requests.notices(made)[0])
    text = requests.request_for(array).text
    name = requests.request_for(array).name
    assert text.splitlines()[1:11] == [
        *(f"#SBATCH --job-name={name}", "#SBATCH --nodes=2", "#SBATCH --exclusive", "#SBATCH --mem=0"),
        *("#SBATCH --time=30", "#SBATCH --requeue", "#SBATCH --open-mode=append", "#SBATCH --array=0-1%2"),
        *("#SBATCH --output=%a/run/slurm-%A_%a.log", "#SBATCH --error=%a/run/slurm-%A_%a.err"),
    ]
    shellcheck(text)
    single = requests.request_for(alone)
    assert (single.is_array, single.file, single.text) == (False, SCRIPTS[0], alone[0].files[SCRIPTS[0]])


def test_jobs_with_a_range_of_sizes_share_no_array(tmp_path):
    made = [rendered(tmp_path, *ELASTIC, f"base_results_dir={place}") for place in "ab"]
    assert "#SBATCH --nodes=1-4" in made[0].files["slurm/job.sh"]
    assert requests.grouped(made) == [[bundle] for bundle in made]
    assert "share no array, since tasks of an array keep their size" in str(requests.notices(made)[0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("46", ["46"]),
        ("46_3", ["46_3"]),
        ("46_[0-2,5%2]", ["46_0", "46_1", "46_2", "46_5"]),
        ("46_[7]", ["46_7"]),
        ("46+1", []),
        ("46_[0-2...]", []),
        ("", []),
    ],
)
def test_ids_of_jobs_and_tasks(text, expected):
    assert list(queue._ids(text)) == expected


def test_auto_resume_is_a_word_of_the_step(tmp_path):
    text = files(tmp_path, *PUBLISHED, "cluster.auto_resume=true", "cluster.srun_args=['--x=a b']")["slurm/job.sh"]
    assert "--auto-resume=1 '--x=a b' \\\n" in text


def test_a_secret_is_a_variable_of_the_launch(tmp_path):
    text = files(tmp_path, *PUBLISHED, "env_vars={HF_TOKEN: {env: MINE}}")["slurm/variables.sh"]
    assert 'export HF_TOKEN="${MINE:?' in text


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, None),
        ("UNLIMITED", None),
        (30, 30),
        ("30:30", 30.5),
        ("2:00:00", 120),
        ("1-2", 1560),
        ("1-2:30", 1590),
        ("1-00:00:30", 1440.5),
    ],
    ids=str,
)
def test_time_limits_are_read_as_slurm_reads_them(limit, expected):
    assert minutes(limit) == expected


@pytest.mark.parametrize(
    ("word", "reason", "code", "state", "message"),
    [
        ("PENDING", "Resources", (0, 0), JobState.PENDING, "waits: Resources"),
        (
            "PENDING",
            "BeginTime",
            (0, 0),
            JobState.PENDING,
            "waits: BeginTime: until its begin time; Slurm lets a job",
        ),
        ("PENDING", "None", (0, 0), JobState.PENDING, "waits: PENDING: until Slurm has considered it"),
        ("CONFIGURING", "None", (0, 0), JobState.PENDING, "waits: CONFIGURING"),
        ("PENDING", "QOSMaxJobsPerUserLimit", (0, 0), JobState.PENDING, "until your other jobs have ended"),
        ("PENDING", "AssocGrpCpuLimit", (0, 0), JobState.PENDING, "until other jobs of its account"),
        (*("PENDING", "ReqNodeNotAvail, UnavailableNodes:n1", (0, 0)), JobState.PENDING, "may be down, drained"),
        ("PENDING", "SomethingNew", (0, 0), JobState.PENDING, "waits: SomethingNew"),
        ("PENDING", "PartitionTimeLimit", (0, 0), JobState.PENDING, "never starts like this, see cluster.time"),
        ("PENDING", "QOSMaxNodePerJobLimit", (0, 0), JobState.PENDING, "see recipes.trainer.num_nodes"),
        ("PENDING", "AssocMaxWallDurationPerJobLimit", (0, 0), JobState.PENDING, "see cluster.time"),
        (
            *("PENDING", "Job's account not permitted to use this partition (a allows b not c)", (0, 0)),
            *(JobState.PENDING, "see cluster.account"),
        ),
        ("RUNNING", "None", (0, 0), JobState.RUNNING, ""),
        ("COMPLETING", "None", (0, 0), JobState.RUNNING, ""),
        ("CANCELLED by 1000", "None", (0, 15), JobState.CANCELLED, "cancelled"),
        ("FAILED", "NonZeroExitCode", (3, 0), JobState.FAILED, "exit code 3"),
        ("FAILED", "RaisedSignal", (0, 9), JobState.FAILED, "ended by SIGKILL"),
        ("FAILED", "JobLaunchFailure", (0, 53), JobState.FAILED, "could not be started"),
        ("FAILED", "JobLaunchFailure", (0, 9), JobState.FAILED, "ended by SIGKILL"),
        ("TIMEOUT", "TimeLimit", (0, 0), JobState.FAILED, "the time limit was reached"),
        ("OUT_OF_MEMORY", "OutOfMemory", (0, 125), JobState.FAILED, "out of memory"),
        ("NODE_FAIL", "None", (0, 0), JobState.FAILED, "a node failed"),
        ("COMPLETED", "None", (0, 0), JobState.SUCCEEDED, ""),
    ],
)
def test_states_of_slurm(word, reason, code, state, message):
    assert states.state_of(word) is state
    assert message in states.message_of(word, reason, code)


def test_a_value_in_the_header_is_quoted_as_sbatch_reads_it():
    assert quoted("n1,n2") == "n1,n2"
    assert quoted('a "b" \\ #') == '"a \\"b\\" \\\\ #"'
    assert quoted("packjob") == '"pack\\job"'


ELASTIC = (
    *("recipes=training/tiny/tiny_lm_cpu", "cluster=slurm", "instance_type=m5.2xlarge", "recipes.trainer.devices=1"),
    "++recipes.scale_config=auto",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("cluster.partition=main", "cluster.requeue=false"),
        ("container=me/image:1",),
        ("container=/fsx/image.sqsh", "cluster.container_mounts=['/fsx/a b']"),
        ("container=/fsx/i.sif", "cluster.container_runtime=apptainer"),
        ("container=/fsx/i", "cluster.container_runtime=charliecloud"),
    ],
    ids=["none", "docker", "pyxis", "apptainer", "charliecloud"],
)
def test_the_scripts_of_an_elastic_job_are_sound(tmp_path, words, shellcheck):
    made = files(tmp_path, *ELASTIC, *words)
    shellcheck(*(made[f"slurm/{name}.sh"] for name in ("job", "agent", "guard", "release", "variables")))
    assert "#SBATCH --nodes=1-4\n" in made["slurm/job.sh"] and "#SBATCH --no-kill\n" in made["slurm/job.sh"]


def test_a_requeued_job_that_must_be_the_only_one_of_its_name_stays_so(tmp_path):
    made = files(tmp_path, *ELASTIC, "cluster.dependency='afterok:7,singleton'")
    assert '"Dependency=singleton,afterany:$SLURM_JOB_ID"' in made["slurm/release.sh"]


def test_a_request_for_more_nodes_asks_for_the_same_nodes(tmp_path):
    made = files(tmp_path, *ELASTIC, "cluster.partition=a b", "cluster.constraint='h100&efa'", "cluster.time=60")
    options = json.loads(made["slurm/elastic.json"])["options"]
    assert options == [
        *("--job-name=sagemaker-tiny-lm-cpu-x068q-nodes", "--mem=0", "--partition=a b", "--constraint=h100&efa")
    ]


@pytest.mark.parametrize(
    ("words", "code", "path"),
    [
        (("cluster.exclusive=false",), "E470", "cluster.exclusive"),
        (("cluster.signal=USR1@60",), "E470", "cluster.signal"),
        (("cluster.auto_resume=true",), "E470", "cluster.auto_resume"),
        (("cluster.master_port=20000",), "E470", "cluster.master_port"),
        (("cluster.time=2",), "E471", "cluster.time"),
        (("cluster.time='0:2:29'",), "E471", "cluster.time"),
    ],
)
def test_an_elastic_job_is_refused_what_it_cannot_have(tmp_path, words, code, path):
    found = problem(tmp_path, *ELASTIC, *words)
    assert (found.code, found.path) == (code, path)


@pytest.mark.parametrize("value", ["1x", "'1:2:3:4'", "-5"])
def test_a_time_limit_that_slurm_does_not_read_is_one_problem(tmp_path, value):
    found = problem(tmp_path, *ELASTIC, f"cluster.time={value}")
    assert (found.code, found.path) == ("E102", "cluster.time")


def test_a_time_limit_in_which_an_elastic_job_can_save_is_accepted(tmp_path):
    assert "#SBATCH --time=0:2:31" in files(tmp_path, *ELASTIC, "cluster.time='0:2:31'")["slurm/job.sh"]


ON_DOCKER, ON_PYXIS, ON_APPTAINER, ON_CHARLIECLOUD = (
    f"cluster.container_runtime={runtime}" for runtime in ("docker", "pyxis", "apptainer", "charliecloud")
)


@pytest.mark.parametrize(
    ("image", "runtime", "remedy"),
    [
        ("https://a/b:1", ON_DOCKER, None),
        ("my image", ON_DOCKER, None),
        ("/fsx/x.sif", ON_DOCKER, "cluster.container_runtime=apptainer"),
        ("img.sqsh", "cluster.partition=a", "container=<folder>/img.sqsh"),
        ("my image", ON_PYXIS, None),
        ("a#b#c:1", ON_PYXIS, None),
        ("docker://a/UPPER:1", ON_PYXIS, None),
        ("me/image:a:b", ON_PYXIS, None),
        ("a/b:1", ON_APPTAINER, "container=docker://a/b:1"),
        ("i.sif", ON_APPTAINER, "container=<folder>/i.sif"),
        ("https://a/b:1", ON_CHARLIECLOUD, None),
    ],
)
def test_an_image_that_a_runtime_does_not_take_is_refused(tmp_path, image, runtime, remedy):
    found = problem(tmp_path, *PUBLISHED, f"container='{image}'", runtime)
    assert (found.code, found.path) == ("E436", "container")
    assert (found.remedy or "").startswith(remedy or "") and bool(found.remedy) is bool(remedy)


@pytest.mark.parametrize(
    ("image", "runtime"),
    [
        ("nvcr.io#nvidia/pytorch:24.01-py3", ON_PYXIS),
        ("docker://me@nvcr.io#nvidia/pytorch:24.01-py3", ON_PYXIS),
        (f"a/b@sha256:{'0' * 64}", ON_PYXIS),
        ("/fsx/my image.sqsh", ON_PYXIS),
        ("docker://a/b:1", ON_APPTAINER),
        ("oras://a/b:1", ON_APPTAINER),
        ("docker-archive:/fsx/a.tar", ON_APPTAINER),
        ("a/b:1", ON_CHARLIECLOUD),
    ],
)
def test_every_form_of_a_runtimes_images_is_taken(tmp_path, image, runtime):
    assert pipeline.prepare((*PUBLISHED, f"container='{image}'", runtime), frozen_context(tmp_path))


@pytest.mark.parametrize(
    ("path", "runtime", "remedy"),
    [
        ("/fsx:/data", ON_DOCKER, "cluster.container_mounts.0=/fsx"),
        ("/a:ro", ON_DOCKER, "cluster.container_mounts.0=/a"),
        ("fsx", ON_DOCKER, "cluster.container_mounts.0=/fsx"),
        ("~/data", ON_DOCKER, None),
        ("/../etc", ON_DOCKER, None),
        ("/", ON_DOCKER, None),
        ("/proc/sys", ON_DOCKER, None),
        ("/a,b", ON_PYXIS, None),
    ],
)
def test_a_mount_that_is_not_the_path_of_a_folder_is_refused(tmp_path, path, runtime, remedy):
    words = (*PUBLISHED, "container=a/b:1", f"cluster.container_mounts=['{path}']", runtime)
    found = problem(tmp_path, *words)
    assert (found.code, found.path, found.remedy) == ("E439", "cluster.container_mounts.0", remedy)
    assert remedy is None or pipeline.prepare((*words, remedy), frozen_context(tmp_path))


def test_a_path_may_have_commas_where_they_separate_nothing_and_is_mounted_once(tmp_path):
    words = (*PUBLISHED, "container=a/b:1")
    assert "--volume /a,b:/a,b " in files(tmp_path, *words, "cluster.container_mounts=['/a,b']")["slurm/node.sh"]
    assert problem(tmp_path, *words, "cluster.container_mounts=[/a,/a/]").path == "cluster.container_mounts.1"


def test_a_mount_at_the_same_path_may_name_it_twice(tmp_path):
    words = (*PUBLISHED, "container=a/b:1", "cluster.container_mounts=['/fsx:/fsx/','/data']")
    assert "--volume /fsx:/fsx --volume /data:/data " in files(tmp_path, *words)["slurm/node.sh"]


def test_the_steps_of_an_elastic_job_get_paths_without_quotes(tmp_path):
    words = ("container=/fsx/i.sqsh", "cluster.container_mounts=['/fsx/a b']")
    request = json.loads(files(tmp_path, *ELASTIC, *words)["slurm/elastic.json"])
    assert "--container-mounts={bundle}:{bundle},/fsx/a b:/fsx/a b" in request["srun_words"]
