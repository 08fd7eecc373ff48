"""The container contract before anything runs: what is composed, refused and rendered, and hosts' files."""

import errno
import json
import os
import shutil

import pytest
from background import await_true
from conftest import written
from contract_jobs import TINY, J
from wrong_kinds import of_kind

from launcher.backends.sagemaker_local import artefacts, isolation, optml, program, record, sync
from launcher.backends.sagemaker_local.backend import MACHINE_FILE, ContractBackend
from launcher.backends.sagemaker_local.objects import Object, Stores
from launcher.common.problems import ProblemsFound

OUT = f"{J}.output_path=s3://results/out"
STARTS = f"{J}.container_entrypoint=[python3,/code/train.py]"
SERVERLESS = ("base_model_arn=arn:aws:sagemaker:eu-west-1:aws:hub-content/Hub/Model/a/1.0.0", "job_type=FineTuning")
SCRIPT = ("recipes=training/custom/script", *TINY[1:4], OUT, "training_cfg.entry_script=train.py")


@pytest.mark.slow
def test_the_request_is_that_of_a_training_job(render):
    role = f"{J}.role=arn:aws:iam::123456789012:role/train"
    words = (*TINY, OUT, STARTS, role, "recipes.trainer.num_nodes=2", "container=me/image:1")
    here = render(*words).files["request.json"]
    there = render(*(each for each in words if "contract" not in each and each != "cluster=local"), "cluster=sm_jobs")
    assert here == there.files["request.json"]
    assert "start.sh" not in there.files


def test_what_aws_would_know_is_in_a_file_of_its_own(render):
    words = ("cluster.s3_endpoint=http://127.0.0.1:9000", "cluster.file_systems={fs-01234567: /data}")
    files = render(*TINY, OUT, *words, f"{J}.region=eu-west-1").files
    assert json.loads(files[MACHINE_FILE]) == {
        "region": "eu-west-1",
        "s3_endpoint": "http://127.0.0.1:9000",
        "file_systems": {"fs-01234567": "/data"},
    }
    assert json.loads(files["plan.json"])["backend"] == "contract"


@pytest.mark.slow
def test_64_hosts_are_planned(render, tmp_path):
    request = json.loads(render(*TINY, OUT, "recipes.trainer.num_nodes=64").files["request.json"])
    hosts = optml.hosts(request["ResourceConfig"], tmp_path, is_private=True)
    for host in hosts:
        optml.lay_out(host, hosts, request, {})
    names = sorted(f"algo-{number}" for number in range(1, 65))
    assert names[1] == "algo-10"
    for name in names:
        found = json.loads((tmp_path / name / "ml/input/config/resourceconfig.json").read_text())
        assert (found["current_host"], found["hosts"]) == (name, names)
    lines = (tmp_path / "algo-64/hosts").read_text().splitlines()
    addresses = {line.split()[1]: line.split()[0] for line in lines[2:]}
    assert sorted(addresses) == names and len(set(addresses.values())) == 64
    assert addresses["algo-64"] == "127.1.0.64"


def test_groups_have_their_own_hosts(tmp_path):
    groups = [
        {"InstanceGroupName": "fast", "InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2},
        {"InstanceGroupName": "slow", "InstanceType": "ml.m5.xlarge", "InstanceCount": 9},
    ]
    hosts = optml.hosts({"InstanceGroups": groups}, tmp_path, is_private=True)
    found = optml.resource_config(hosts[1], hosts)
    assert found["current_host"] == "algo-10" and found["current_group_name"] == "slow"
    assert found["current_instance_type"] == "ml.m5.xlarge"
    fast, slow = found["instance_groups"]
    assert fast == {
        "instance_group_name": "fast",
        "instance_type": "ml.p4d.24xlarge",
        "hosts": ["algo-1", "algo-2"],
    }
    assert slow["hosts"] == ["algo-10", "algo-11", *(f"algo-{number}" for number in range(3, 10))]
    parameters = {"sagemaker_mpi_enabled": "true", "sagemaker_program": '"t.py"'}
    request = {"AlgorithmSpecification": {}, "HyperParameters": parameters, "TrainingJobName": "j"}
    optml.lay_out(hosts[0], hosts, request, {})
    words = program.words(request, hosts, hosts[0])  # groups one after the other, as the toolkit has them
    assert words[words.index("--host") + 1].split(",") == [*fast["hosts"], *slow["hosts"]]
    assert program.words(request, hosts, hosts[1])[0] == "sleep"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "path"),
    [
        pytest.param((*TINY, STARTS), "E370", f"{J}.output_path", id="nowhere to write"),
        pytest.param((*TINY, f"{J}.output_path=file://results"), "E102", f"{J}.output_path", id="no absolute folder"),
        pytest.param(
            (*TINY, OUT, f"{J}.inputs.s3={{t: ftp://x/}}"), "E102", f"{J}.inputs.s3.t", id="no store known here"
        ),
        pytest.param((*TINY, OUT, "cluster.s3_endpoint=nine"), "E102", "cluster.s3_endpoint", id="no endpoint"),
        pytest.param((*TINY, OUT, "cluster.s3_endpoint=http://s3_server"), "E102", "cluster.s3_endpoint", id="name"),
        pytest.param(
            (*TINY, OUT, f"{J}.inputs.s3={{t: https://data.s3.eu-west-1.amazonaws.com/x}}"),
            "E369",
            f"{J}.inputs.s3.t",
            id="a store of AWS's",
        ),
        pytest.param(
            (*TINY, OUT, "cluster.s3_endpoint=http://u:p@host"), "E102", "cluster.s3_endpoint", id="a password"
        ),
        pytest.param((*TINY[:2], "cluster.contract=docker"), "E102", "cluster.contract", id="no contract known here"),
        pytest.param((*TINY, OUT, "cluster.command=[x]"), "E102", "cluster.command", id="an agent's words"),
        pytest.param((*TINY, OUT, "recipes.elastic_policy.is_elastic=true"), "E211", "cluster", id="elastic"),
        pytest.param((*TINY, OUT, "cluster_type=k8s"), "E213", "cluster_type", id="another cluster type"),
        pytest.param(
            (*TINY, OUT, f"{J}.checkpoints={{s3_uri: s3://results/c, local_path: /ckpt}}"),
            "E431",
            f"{J}.checkpoints.local_path",
            id="checkpoints outside of the host",
        ),
        pytest.param(SCRIPT, "E430", "recipes.training_cfg.entry_script", id="a script without the toolkit"),
        pytest.param((*SCRIPT, f"{J}.source_dir=code"), "E391", f"{J}.source_dir", id="a script's relative folder"),
        pytest.param((*SCRIPT, f"{J}.source_dir=/none"), "E430", f"{J}.source_dir", id="a folder without the script"),
        pytest.param(
            (*TINY, OUT, f"{J}.inputs.channels={{c: {{s3: s3://data/c, s3_data_type: Converse}}}}"),
            "E423",
            f"{J}.inputs.channels.c.s3_data_type",
            id="data of AWS's own algorithms",
        ),
        pytest.param(
            (*SCRIPT, "++recipes.distribution.mpi.enabled=true"), "E430", f"{J}.source_dir", id="MPI without a script"
        ),
        pytest.param(
            (*SCRIPT, "++recipes.distribution.smdistributed.dataparallel.enabled=true"),
            "E257",
            "recipes.distribution.smdistributed.dataparallel.enabled",
            id="a library of AWS's images",
        ),
        pytest.param(
            (*SCRIPT, "training_cfg.entry_script=null", *(f"{J}.serverless.{each}" for each in SERVERLESS)),
            *("E336", f"{J}.serverless"),
            id="a serverless job",
        ),
        pytest.param(
            (*TINY, OUT, f"{J}.tags={{a: {'b' * 257}}}"), "E102", f"{J}.tags.a", id="what the API would refuse"
        ),
    ],
)
def test_faults_are_told_before_anything_runs(words, code, path, problems, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name, **_: None if name == "train" else f"/bin/{name}")
    found = problems(*words)
    assert (code, path) in [(problem.code, problem.path) for problem in found], found


def test_folders_of_this_machine_are_refused_for_a_job_of_aws(problems):
    words = [each for each in TINY if "contract" not in each and each != "cluster=local"]
    role = f"{J}.role=arn:aws:iam::123456789012:role/train"
    found = problems(
        *words,
        "cluster=sm_jobs",
        "container=me/image:1",
        role,
        f"{J}.output_path=file:///out",
        f"{J}.inputs.s3={{train: file:///train/}}",
    )
    assert sorted((each.code, each.path) for each in found) == [
        ("E369", f"{J}.inputs.s3.train"),
        ("E369", f"{J}.output_path"),
    ]


def test_keys_of_the_contract_are_placed_for_who_forgets_to_choose_it(problems):
    (found,) = problems("cluster=local", f"{J}.output_path=s3://data/b")
    assert (found.code, found.path) == ("E101", J)
    assert "cluster=sm_local" in found.remedy


def test_model_and_arguments_are_as_the_toolkit_writes_them():
    values = {"v": True, "lr": 0.1, "mp_parameters": {"b": 2, "a": True}, "name": "x y", "none": None}
    assert list(program.arguments(values)) == [
        *("--lr", "0.1"),
        *("--mp_parameters", "a=True,b=2"),
        *("--name", "x y"),
        *("--none", ""),
        *("-v", "True"),
    ]


def test_what_this_machine_does_not_play_is_told(prepare):
    words = (*TINY, OUT, STARTS, "container=me/image:1", "instance_type=p3.16xlarge", "recipes.instance_types=[]")
    asked = (f"{J}.network_isolation=true", f"{J}.profiler.disabled=true")
    (notice,) = (n for n in prepare(*words, *asked).notices if n.code == "N136")
    assert notice.message == (
        "not simulated on this machine: the 8 accelerators of ml.p3.16xlarge (hosts share this machine's);"
        " me/image:1 (the software installed here replaces it); network_isolation, ProfilerConfig"
    )
    assert not [n for n in prepare(*TINY, OUT, STARTS).notices if n.code == "N136"]


MPI = "++recipes.distribution.mpi.enabled=true"
GROUPS = (
    *("training_cfg.run.nodes=2", MPI),
    f"{J}.instance_groups=[{{name: a, instance_type: p3.16xlarge, instance_count: 1}},"
    " {name: b, instance_type: p2.16xlarge, instance_count: 1}]",
)


@pytest.mark.parametrize(
    ("more", "shares", "is_toolkits"),
    [
        ((), ["8 accelerators of ml.p3.16xlarge"], True),
        ((MPI,), ["8 accelerators of ml.p3.16xlarge"], False),
        (GROUPS, ["8 accelerators of ml.p3.16xlarge", "16 accelerators of ml.p2.16xlarge"], False),
    ],
    ids=["toolkit", "MPI", "groups"],
)
def test_hosts_share_the_accelerators_of_this_machine(more, shares, is_toolkits, prepare, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/bin/{name}")
    (tmp_path / "train.py").touch()
    instance = ("instance_type=p3.16xlarge", "training_cfg.run.ntasks_per_node=8")
    job = prepare(*SCRIPT, *instance, f"{J}.source_dir={tmp_path}", *more)
    (message,) = (notice.message for notice in job.notices if notice.code == "N136")
    starts = "; the toolkit starts one process for each, else one per host" if is_toolkits else ""
    shared = f"(hosts share this machine's{starts})"
    expected = "; ".join(f"the {each} {shared}" for each in shares)
    assert message == f"not simulated on this machine: {expected}"


def test_words_are_mapped_only_where_they_name_opt_ml(tmp_path):
    host = optml.Host("algo-1", "g", "ml.m5.xlarge", tmp_path, is_private=False)
    root = str(tmp_path / "ml")
    for word, mapped in (
        ("/opt/ml", root),
        ("/opt/ml/model", f"{root}/model"),
        ("--dir=/opt/ml/model:/opt/ml/x", f"--dir={root}/model:{root}/x"),
        ("/opt/mlflow", "/opt/mlflow"),
        ("/mnt/opt/ml", "/mnt/opt/ml"),
    ):
        assert host.mapped(word) == mapped


@pytest.fixture
def hosts(tmp_path):
    found = tuple(
        optml.Host(f"algo-{n}", "g", "ml.m5.xlarge", tmp_path / f"algo-{n}", is_private=True) for n in (1, 2)
    )
    for host in found:
        optml.lay_out(host, found, {}, {})
    return found


def test_output_of_all_hosts_is_one_and_clashes_are_told(hosts, tmp_path):
    first, second = (host.root / "model" for host in hosts)
    for folder in (first, second):
        (folder / "shared").mkdir()
    (first / "shared/a").write_text("1")
    (second / "shared/b").write_text("2")
    (first / "same").write_text("mine")
    (second / "same").write_text("other")
    (second / "link").symlink_to("same")
    os.mkfifo(first / "fifo")
    entries, clashes = artefacts.gather(hosts, "model")
    assert list(entries) == ["fifo", "link", "same", "shared", "shared/a", "shared/b"]
    assert entries["same"][1].read_text() == "mine"
    assert clashes == ["model/same is on algo-1 and on algo-2: the first is kept"]
    artefacts.archive(entries, tmp_path / "a.tar.gz")
    shutil.unpack_archive(tmp_path / "a.tar.gz", tmp_path / "out", filter="data")
    assert sorted(os.listdir(tmp_path / "out")) == ["link", "same", "shared"]


@pytest.mark.parametrize("compression", ["NONE", "GZIP"])
def test_entries_that_are_not_files_are_named_and_left_out_of_the_output(hosts, tmp_path, compression):
    model, data, out = hosts[0].root / "model", hosts[0].root / "output/data", tmp_path / "out"
    data.mkdir(parents=True, exist_ok=True)
    for kind, name in (("pipe", "model.safetensors"), ("socket", "socket")):
        of_kind(kind, model / name)
    of_kind("pipe", data / "log")
    (model / "weights").write_text("w")
    output = {"S3OutputPath": f"file://{out}", "CompressionType": compression}
    notes = artefacts.publish({"OutputDataConfig": output, "TrainingJobName": "j"}, hosts, Stores(), tmp_path)
    assert [" ".join(note.split()[:4]).rstrip(",") for note in notes] == [
        "model/model.safetensors is a FIFO",
        "model/socket is a socket",
        "output/data/log is a FIFO",
    ]
    assert all("left out" in note for note in notes)


def test_entries_of_a_kept_folder_that_are_not_files_are_named(hosts, tmp_path):
    kept = sync.Kept("/opt/ml/checkpoints", f"file://{tmp_path}/store/", is_brought=False)
    top = hosts[0].root / "checkpoints"
    (top / "step-1").write_text("1")
    for kind in ("pipe", "socket", "link to nothing", "link to a device", "loop"):
        of_kind(kind, top / kind.replace(" ", "-"))
    syncing = sync.Syncing([sync.Sync(kept, hosts, Stores(), tmp_path)], 60.0)
    notes = syncing.finish()
    assert [note.partition(" is ")[2].partition(",")[0] for note in notes] == [
        *("a device", "a link to no file", "a link to no file", "a FIFO", "a socket")
    ]
    assert all("algo-1" in note and "/opt/ml/checkpoints/" in note for note in notes)
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["step-1"]


def test_a_fifo_in_the_folder_of_the_script_is_named_and_left_out(hosts, tmp_path, logged):
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text("")
    os.mkfifo(source / "pipe")
    parameters = {"sagemaker_mpi_enabled": "true", "sagemaker_submit_directory": json.dumps(str(source))}
    request = {"AlgorithmSpecification": {}, "HyperParameters": parameters}
    program.bring_code(request, hosts[0])
    assert os.listdir(hosts[0].real(program.CODE)) == ["train.py"]
    assert f"{source}/pipe is not a file" in logged.getvalue()


def test_what_is_a_file_on_one_host_and_a_folder_on_another_can_be_unpacked(hosts, tmp_path):
    first, second = (host.root / "model" for host in hosts)
    (first / "w").write_text("1")
    (second / "w/deep").mkdir(parents=True)
    (second / "w/deep/x").write_text("2")
    (second / "w-2").write_text("2")
    entries, clashes = artefacts.gather(hosts, "model")
    assert list(entries) == ["w", "w-2"]
    assert clashes == ["model/w is on algo-1 and on algo-2: the first is kept"]
    artefacts.archive(entries, tmp_path / "a.tar.gz")
    shutil.unpack_archive(tmp_path / "a.tar.gz", tmp_path / "out", filter="data")


def test_a_failure_that_is_no_file_is_not_waited_for(hosts):
    os.mkfifo(hosts[0].root / "output/failure")
    assert artefacts.failure_reason(hosts, 3) == "AlgorithmError: , exit code: 3"


def test_a_failure_counts_whichever_host_wrote_it(hosts):
    (hosts[1].root / "output/failure").write_text("no luck")
    assert artefacts.failure_reason(hosts, 3) == "no luck"


def test_links_are_followed_as_the_hosts_program_does(hosts, tmp_path):
    model, out = hosts[0].root / "model", tmp_path / "out"
    (model / "step-1").mkdir()
    (model / "step-1/w").write_text("w")
    for name, target in (("far", "/opt/ml/model/near"), ("near", "step-1/w"), ("folder", "step-1"), ("loop", "loop")):
        (model / name).symlink_to(target)
    output = {"S3OutputPath": f"file://{out}", "CompressionType": "NONE"}
    notes = artefacts.publish({"OutputDataConfig": output, "TrainingJobName": "j"}, hosts, Stores(), tmp_path)
    found = {str(p.relative_to(out / "j/output/model")): p.read_text() for p in out.rglob("*") if p.is_file()}
    assert found == dict.fromkeys(("far", "near", "step-1/w"), "w")
    assert [note.split(" is a link")[0] for note in notes] == ["model/folder", "model/loop"]


def test_a_checkpoint_that_is_a_link_is_kept_as_a_file(hosts, tmp_path):
    kept = sync.Kept("/opt/ml/checkpoints", f"file://{tmp_path}/store/", is_brought=False)
    (hosts[0].root / "checkpoints/step-1").write_text("1")
    (hosts[0].root / "checkpoints/latest").symlink_to("/opt/ml/checkpoints/step-1")
    sync.Sync(kept, hosts, Stores(), tmp_path).send()
    assert {p.name: p.read_text() for p in (tmp_path / "store").iterdir()} == {"step-1": "1", "latest": "1"}


def test_names_that_are_no_text_are_told_of_all_the_same(tmp_path):
    told = record.begin(tmp_path, {"TrainingJobName": "j"}, "us-east-1")
    told.enter("Uploading", "model/a\udcff is on algo-1 and on algo-2")
    assert record.read(tmp_path)["SecondaryStatusTransitions"][0]["StatusMessage"].count("a?") == 1


def test_a_folder_that_cannot_be_read_now_is_looked_at_again():
    class Folder:
        looks, notes = 0, ()

        def left_out(self):
            return []

        def send(self, settled=None):
            self.looks += 1
            if self.looks == 1:
                raise PermissionError(errno.EACCES, "not now")
            return {}

    syncing = sync.Syncing([folder := Folder()], 0.001)
    await_true(lambda: folder.looks > 2)
    syncing.finish()


def test_mpi_without_namespaces_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/bin/{name}")
    words = ("training_cfg.run.ntasks_per_node=1", "++recipes.distribution.mpi.enabled=true")
    (tmp_path / "train.py").touch()
    bundle = written(tmp_path, *SCRIPT, f"{J}.source_dir={tmp_path}", *words)
    with pytest.raises(ProblemsFound, match="E432"):
        ContractBackend(chosen=isolation.FOLDERS).submit(bundle)


def test_checkpoints_are_sent_once_settled_and_only_their_first_hosts(hosts, tmp_path):
    store = tmp_path / "store"
    kept = sync.Kept("/opt/ml/checkpoints", f"file://{store}/", is_brought=True)
    folder = sync.Sync(kept, hosts, Stores(), tmp_path)
    folder.bring()
    first, second = (host.root / "checkpoints" for host in hosts)
    (first / "step").write_text("half")
    look = folder.send(settled={})
    assert not store.exists()  # it may still be written to
    (first / "step").write_text("whole now")
    look = folder.send(settled=look)
    assert not store.exists()
    (second / "own").write_text("2")
    look = folder.send(settled=look)
    assert (sorted(os.listdir(store)), (store / "step").read_text()) == (["step"], "whole now")
    (second / "step").write_text("another")
    folder.send()
    assert (sorted(os.listdir(store)), (store / "step").read_text()) == (["own", "step"], "whole now")
    assert folder.notes == ["/opt/ml/checkpoints/step is on algo-1 and on algo-2: the first is kept"]
    assert not list(tmp_path.glob("synced*"))


def test_a_stored_key_that_leaves_the_checkpoints_folder_is_refused(hosts, tmp_path, monkeypatch):
    kept = sync.Kept("/opt/ml/checkpoints", "s3://bucket/ckpt/", is_brought=True)
    stores = Stores()
    monkeypatch.setattr(Stores, "list", lambda stores, uri: iter([Object(f"{uri}../../../evil", 1)]))
    with pytest.raises(ProblemsFound, match="not a path below a folder"):
        sync.Sync(kept, hosts, stores, tmp_path).bring()
    assert not list(tmp_path.rglob("evil"))


def test_a_kernel_without_namespaces_is_found_out(monkeypatch, tmp_path):
    (tmp_path / "unshare").write_text("#!/bin/sh\necho refused >&2\nexit 1\n")
    (tmp_path / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert isolation.probe() is isolation.FOLDERS
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert isolation.probe() is isolation.FOLDERS


def test_a_job_on_this_machine_has_no_server_to_be_tried_on(render):
    (found,) = ContractBackend().validate(render(*TINY, OUT))
    assert found.code == "E416"
