"""A cluster as people see it: whose jobs are on it, one of them followed from here, its nodes, quotas and queues."""

import itertools
import json
import re

import kube_api
import pytest
from test_pods import READS, ROLE, allow

from launcher import pipeline
from launcher.backends.kubernetes.api_objects import path
from launcher.bundle import store as bundles
from launcher.cli import main as cli
from launcher.model import backend_registry

pytest_plugins = ("cluster_fixtures",)

JOB = "HyperPodPyTorchJob"
BACKEND = backend_registry.load_backend("k8s")
KUEUE = "kueue.x-k8s.io/v1beta1"
_names = itertools.count()


@pytest.fixture
def submitted(space, bundle, monkeypatch):
    """The handle of a submitted job."""
    monkeypatch.chdir(space.folder)
    return pipeline.submit(bundle(), BACKEND).handle


def elsewhere(space, monkeypatch, name="elsewhere"):
    """Go to a folder that knows no job, as on another machine."""
    folder = space.folder / name
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def stranger(space, name="theirs", **spec):
    """Make a job that another program submitted: no annotation of ours, a secret in a variable, no labels."""
    secret = {"name": "HF_TOKEN", "value": kube_api.CANARY}
    limits = {"limits": {"nvidia.com/gpu": "4"}}
    container = {"name": "main", "image": "them/image:1", "env": [secret], "resources": limits}
    part = {"name": "workers", "replicas": 2, "template": {"spec": {"containers": [container]}}}
    api = "sagemaker.amazonaws.com/v1"
    return space.make(JOB, name, api, spec={"nprocPerNode": "auto", "replicaSpecs": [part], **spec})


def their_pod(space, job, index):
    metadata, container = job["metadata"], {"name": "main", "image": "them/image:1"}
    owner = {"apiVersion": job["apiVersion"], "kind": JOB, "name": metadata["name"], "uid": metadata["uid"]}
    name = f"{metadata['name']}-workers-{index}"
    spec = {"containers": [container], "nodeName": "node-1"}
    space.make("Pod", name, metadata={"ownerReferences": [owner]}, spec=spec)
    space.cluster.kubelet.start(name)
    running = {"name": "main", "image": "i", "imageID": "", "ready": True, "restartCount": 0}
    running |= {"state": {"running": {}}}
    space.set_status("Pod", name, {"phase": "Running", "containerStatuses": [running]})
    return name


def out(capsys, *words, code=0):
    capsys.readouterr()
    assert cli.run(list(words)) == code, capsys.readouterr().err
    return capsys.readouterr().out


def test_jobs_of_a_cluster_are_everybody_s(space, submitted, capsys, monkeypatch):
    elsewhere(space, monkeypatch)
    theirs = stranger(space)
    their_pod(space, theirs, 0)
    space.conditions("theirs", "Created", "PodsRunning", "Running")
    jobs = json.loads(out(capsys, "jobs", "--cluster", "-n", space.name, "--json"))
    assert [(job["name"], job["user"], job["state"], job["nodes"]) for job in jobs] == [
        (submitted.native_id, "ada", "pending", 0),
        ("theirs", None, "running", 1),
    ]
    table = out(capsys, "jobs", "--cluster", "--namespace", space.name)
    head, first, second = table.splitlines()
    assert head.split() == ["job", "by", "state", "nodes", "age", "message"]
    assert first.split()[:4] == [submitted.native_id, "ada", "pending", "-"]
    assert second.split()[:4] == ["theirs", "-", "running", "1"]
    assert kube_api.CANARY not in table


def test_jobs_of_all_namespaces_are_listed_with_theirs(space, submitted, capsys):
    table = out(capsys, "jobs", "--cluster", "--all-namespaces")
    assert table.splitlines()[0].split()[0] == "namespace"
    assert any(line.split()[:2] == [space.name, submitted.native_id] for line in table.splitlines())


def test_the_namespace_of_the_context_is_the_one_that_is_listed(space, submitted, capsys):
    config = json.loads((space.folder / "kubeconfig.json").read_text())
    config["contexts"][0]["context"]["namespace"] = space.name
    (space.folder / "kubeconfig.json").write_text(json.dumps(config))
    assert submitted.native_id in out(capsys, "jobs", "--cluster")


def test_who_may_list_jobs_only_still_sees_them(space, submitted, capsys):
    jobs = {"apiGroups": ["sagemaker.amazonaws.com"], "resources": ["hyperpodpytorchjobs"], "verbs": ["list"]}
    allow(space, jobs)
    space.kubeconfig(kube_api.USER_TOKEN)
    (job,) = json.loads(out(capsys, "jobs", "--cluster", "-n", space.name, "--json"))
    assert (job["name"], job["nodes"]) == (submitted.native_id, None)


def test_who_may_not_list_jobs_is_told_what_is_missing(space, capsys):
    space.kubeconfig(kube_api.USER_TOKEN)
    out(capsys, "jobs", "--cluster", "-n", space.name, code=2)
    assert cli.run(["jobs", "--cluster", "-n", space.name]) == 2
    told = capsys.readouterr().err
    assert "E344" in told and "hyperpodpytorchjobs" in told


@pytest.mark.parametrize(
    "words",
    [
        ["jobs", "-A"],
        ["jobs", "-n", "x"],
        ["jobs", "--context", "x"],
        ["jobs", "--cluster", "-A", "-n", "x"],
        ["jobs", "x", "--cluster"],
    ],
    ids=" ".join,
)
def test_options_of_a_cluster_go_with_a_cluster(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.run(words) == 2
    assert "E801" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../../secrets", "a/b", "A", "a b", "x%2fy", ""], ids=repr)
def test_names_from_the_command_line_are_only_names(space, capsys, name):
    before = list(space.cluster.proxy.seen)
    for words in (
        ["jobs", "--cluster", "-n", name],
        ["adopt", name],
        ["cluster", "-n", name],
        ["adopt", "x", "--as", name],
    ):
        if words == ["adopt", "x", "--as", ""]:
            continue  # as if it were left out
        assert cli.run(words) == 2
        assert "E386" in capsys.readouterr().err
    asked = space.cluster.proxy.seen[len(before) :]
    assert not any("secrets" in each or "%2f" in each.lower() for each in asked)


def test_a_mistyped_namespace_is_a_problem_and_not_an_empty_list(space, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.run(["jobs", "--cluster", "-n", f"{space.name}x"]) == 2
    assert "E345 --namespace" in capsys.readouterr().err
    assert out(capsys, "jobs", "--cluster", "-n", space.name) == ""


def test_a_job_that_was_launched_from_its_folder_names_its_user(space, bundle, capsys, monkeypatch):
    monkeypatch.chdir(space.folder)
    name = bundle().directory.name
    out(capsys, "launch", name)
    (job,) = json.loads(out(capsys, "jobs", "--cluster", "-n", space.name, "--json"))
    assert job["user"] == "ada"


def odd_part(**fields):
    template = {"spec": {"containers": [{"name": "main", "image": "them/image:1"}]}}
    return {"name": "w", "template": template, **fields}


def test_a_job_with_a_dotted_name_is_adopted(space, capsys, monkeypatch):
    elsewhere(space, monkeypatch)
    stranger(space, "their.job")
    out(capsys, "adopt", "their.job", "-n", space.name)
    assert out(capsys, "status", "their.job").startswith("pending")


def test_a_job_without_containers_or_pods_is_adopted(space, capsys, monkeypatch):
    elsewhere(space, monkeypatch)
    stranger(space, replicaSpecs=[odd_part(template={"spec": {"containers": []}})])
    out(capsys, "adopt", "theirs", "-n", space.name)
    for words in (["logs", "theirs"], ["exec", "theirs", "--", "true"]):
        assert cli.run(words) == 2
        assert "none: the job has no ranks" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("policy", "is_scaled"),
    [({"minReplicas": 1, "maxReplicas": 4}, True), ({"maxReplicas": 4}, True), ({"minReplicas": 2}, False)],
)
def test_an_adopted_job_is_scaled_by_the_sizes_that_it_names(space, capsys, monkeypatch, policy, is_scaled):
    elsewhere(space, monkeypatch)
    stranger(space, elasticPolicy=policy, replicaSpecs=[odd_part(replicas=1, maxReplicas=4)])
    out(capsys, "adopt", "theirs", "-n", space.name)
    out(capsys, "scale", "theirs", "--nodes", "2", code=0 if is_scaled else 2)
    spec = space.get(JOB, "theirs")["spec"]
    assert (spec["elasticPolicy"].get("maxReplicas") == 2) is is_scaled


def test_an_adopted_job_is_followed_looked_into_and_ended(space, submitted, capsys, monkeypatch):
    elsewhere(space, monkeypatch)
    job = stranger(space)
    pod = their_pod(space, job, 0)
    takes(space, "node-1", 1)  # nobody's, and without a label by which it could be told apart
    space.conditions("theirs", "Created", "PodsRunning", "Running")
    told = out(capsys, "adopt", "theirs", "-n", space.name)
    assert f"adopted {JOB}/theirs (namespace {space.name}, context test) as results/theirs" in told
    assert "running  1 node" in told
    space.cluster.kubelet.write(pod, "hello from afar")
    record = json.loads(out(capsys, "status", "theirs", "--json"))
    assert (record["state"], record["user"], record["native"]["uid"]) == (
        "running",
        "unknown",
        job["metadata"]["uid"],
    )
    assert "hello from afar" in out(capsys, "logs", "theirs")
    assert out(capsys, "logs", "theirs", "--rank", "3").splitlines()[1:] == ["hello from afar"]
    (listed,) = json.loads(out(capsys, "pods", "theirs", "--json"))
    assert (listed["name"], listed["ranks"]) == (pod, [0, 3])
    assert "theirs" in out(capsys, "jobs")
    out(capsys, "events", "theirs")
    space.end_container(pod)
    out(capsys, "cancel", "theirs")
    assert space.names(JOB) == [submitted.native_id]
    assert "cancelled" in out(capsys, "status", "theirs")
    assert cli.run(["wait", "theirs"]) == 130


def test_an_adopted_job_s_folder_holds_no_secret_and_no_bundle(space, capsys, monkeypatch):
    folder = elsewhere(space, monkeypatch)
    stranger(space)
    out(capsys, "adopt", "theirs", "-n", space.name)
    files = sorted((folder / "results/theirs").iterdir())
    assert [file.name for file in files] == ["adopted.json", "job.json"]
    assert not any(kube_api.CANARY in file.read_text() for file in files)


@pytest.mark.parametrize("words", [["launch"], ["diff"], ["timeline"]], ids=" ".join)
def test_what_needs_a_bundle_says_that_an_adopted_job_has_none(space, capsys, monkeypatch, words):
    elsewhere(space, monkeypatch)
    stranger(space)
    out(capsys, "adopt", "theirs", "-n", space.name)
    assert cli.run([*words, "results/theirs", *(["results/theirs"] if words == ["diff"] else [])]) == 2
    assert "E713" in capsys.readouterr().err


def test_our_own_job_is_adopted_with_its_user_and_digest_and_scales(space, submitted, capsys, monkeypatch):
    digest = bundles.read(submitted.bundle_dir)[0].digest
    elsewhere(space, monkeypatch)
    out(capsys, "adopt", submitted.native_id, "-n", space.name, "--as", "mine")
    record = json.loads(out(capsys, "status", "mine", "--json"))
    assert (record["user"], record["digest"], record["job"]) == ("ada", digest, "mine")
    space.conditions(submitted.native_id, "Created", "Running")
    out(capsys, "scale", "mine", "--nodes", "2")
    out(capsys, "scale", "mine", "--nodes", "4")
    assert space.get(JOB, submitted.native_id)["spec"]["elasticPolicy"]["maxReplicas"] == 4


def test_an_adopted_job_that_its_cluster_forgets_keeps_its_end(space, capsys, monkeypatch):
    elsewhere(space, monkeypatch)
    job = stranger(space)
    out(capsys, "adopt", "theirs", "-n", space.name)
    space.conditions("theirs", "Completed")
    assert cli.run(["wait", "theirs"]) == 0
    space.admin.delete(path(JOB, space.name, "theirs"), job["metadata"]["uid"])
    assert "succeeded" in out(capsys, "status", "theirs")


def test_a_job_is_adopted_once_and_over_nothing(space, submitted, capsys, monkeypatch):
    assert cli.run(["adopt", submitted.native_id, "-n", space.name]) == 2
    assert "E714" in capsys.readouterr().err
    elsewhere(space, monkeypatch)
    stranger(space)
    out(capsys, "adopt", "theirs", "-n", space.name)
    assert cli.run(["adopt", "theirs", "-n", space.name]) == 2
    told = capsys.readouterr().err
    assert "E714" in told and "already follows this job" in told
    assert cli.run(["adopt", submitted.native_id, "-n", space.name, "--as", "theirs"]) == 2
    assert "another job" in capsys.readouterr().err


def test_a_job_that_is_not_there_is_not_adopted(space, capsys, monkeypatch):
    folder = elsewhere(space, monkeypatch)
    assert cli.run(["adopt", "nothing", "-n", space.name]) == 2
    assert "E386" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_completion_knows_adopted_jobs(space, capsys, monkeypatch):
    from launcher.cli.commands.arguments import complete_job

    elsewhere(space, monkeypatch)
    stranger(space)
    out(capsys, "adopt", "theirs", "-n", space.name)
    assert complete_job("th") == ["theirs"]


@pytest.fixture
def nodes(space):
    """Three nodes with accelerators, of which one is cordoned; taken away again, since they are the cluster's."""
    mine = [f"gpu-{space.name}-{index}" for index in range(3)]
    health = {"sagemaker.amazonaws.com/node-health-status": "Schedulable"}
    for index, name in enumerate(mine):
        labels = {"node.kubernetes.io/instance-type": f"ml.{space.name}.48xlarge", **(health if index == 0 else {})}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        node["spec"] = {"unschedulable": True} if index == 2 else {}
        space.admin.apply(f"/api/v1/nodes/{name}", node, "test")
        amounts = {"nvidia.com/gpu": "8", "cpu": "192"}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
        space.admin.merge(f"/api/v1/nodes/{name}/status", {"status": status}, "test")
    yield mine
    for name in mine:
        uid = space.admin.get(f"/api/v1/nodes/{name}")["metadata"]["uid"]
        space.admin.delete(f"/api/v1/nodes/{name}", uid)


def takes(space, node, count, phase="Running", **more):
    """Make a pod that has accelerators of a node."""
    name = f"p{next(_names)}"
    limits = {"limits": {"nvidia.com/gpu": str(count)}}
    spec = {"containers": [{"name": "c", "image": "i", "resources": limits}], "nodeName": node, **more}
    space.make("Pod", name, spec=spec)
    space.set_status("Pod", name, {"phase": phase})


def test_a_cluster_s_nodes_have_their_free_accelerators_and_health(space, nodes, capsys):
    takes(space, nodes[0], 4)
    takes(space, nodes[0], 2, "Pending")
    takes(space, nodes[0], 8, "Succeeded")
    init = {"name": "i", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "5"}}}
    takes(space, nodes[1], 1, initContainers=[init])
    told = json.loads(out(capsys, "cluster", "-n", space.name, "--json"))
    mine = {node["name"]: node for node in told["nodes"] if node["name"] in nodes}
    assert [mine[name]["free"] for name in nodes] == [2, 3, 8]
    assert [mine[name]["state"] for name in nodes] == ["Ready", "Ready", "Ready, cordoned"]
    assert mine[nodes[0]]["health"] == {"node-health-status": "Schedulable"}
    text = out(capsys, "cluster", "-n", space.name)
    (total,) = [line for line in text.splitlines() if line.startswith(f"total  ml.{space.name}")]
    assert total.endswith("5 of 16 accelerators free; 2 of 3 nodes ready")


def queues(space):
    cluster_queue = f"team-{space.name}"
    resources = [{"name": "nvidia.com/gpu", "nominalQuota": 16}]
    group = {"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "h100", "resources": resources}]}
    used = [{"name": "h100", "resources": [{"name": "nvidia.com/gpu", "total": "20", "borrowed": "4"}]}]
    space.make("ClusterQueue", cluster_queue, KUEUE, spec={"resourceGroups": [group]}, status={"flavorsUsage": used})
    own = [{"name": "h100", "resources": [{"name": "nvidia.com/gpu", "total": "12"}]}]
    space.make("LocalQueue", "q", KUEUE, spec={"clusterQueue": cluster_queue}, status={"flavorUsage": own})
    return cluster_queue


def waits(space, name, priority, *, is_admitted=False, **spec):
    owner = {"apiVersion": "sagemaker.amazonaws.com/v1", "kind": JOB, "name": f"job-{name}", "uid": f"u-{name}"}
    shortage = "insufficient unused quota for nvidia.com/gpu in flavor h100, 4 more needed."
    reserved = {"type": "QuotaReserved", "status": "True" if is_admitted else "False", "message": shortage}
    space.make(
        "Workload",
        name,
        KUEUE,
        metadata={"ownerReferences": [owner]},
        spec={"queueName": "q", "priority": priority, **spec},
        status={"conditions": [reserved]},
    )


def test_quotas_and_the_order_of_the_queue_are_shown(space, capsys):
    queue = queues(space)
    waits(space, "second", 10)
    waits(space, "first", 100)
    waits(space, "runs", 1000, is_admitted=True)
    waits(space, "held", 1000, active=False)
    told = json.loads(out(capsys, "cluster", "-n", space.name, "--json"))
    quotas = [quota for quota in told["quotas"] if quota["queue"] in (queue, f"{space.name}/q")]
    assert [(q["queue"], q["used"], q["nominal"], q["borrowed"]) for q in quotas] == [
        (queue, "20", "16", "4"),
        (f"{space.name}/q", "12", None, "0"),
    ]
    waiting = [each for each in told["waiting"] if each["queue"] == queue]
    assert [(each["position"], each["job"], each["priority"]) for each in waiting] == [
        (1, "job-first", 100),
        (2, "job-second", 10),
    ]
    text = out(capsys, "cluster", "-n", space.name)
    assert re.search(rf"{queue} +1 +job-first +{space.name} +100 +\S+ +insufficient unused quota", text)


def test_kueue_s_own_order_counts_where_it_serves_one(space, capsys):
    queue = queues(space)
    waits(space, "a", 100)
    waits(space, "b", 10)
    group = {"kind": "APIGroup", "preferredVersion": {"version": "v1beta1"}}
    empty = {"kind": "PendingWorkloadsSummary", "items": []}
    items = [
        {"metadata": {"namespace": space.name, "name": name}, "positionInClusterQueue": place}
        for place, name in enumerate(("b", "a"))
    ]
    proxy = space.cluster.proxy
    proxy.fail(path=f"visibility.*/{queue}/pendingworkloads", body=json.dumps({**empty, "items": items}).encode())
    proxy.fail(path="visibility.*/pendingworkloads", body=json.dumps(empty).encode(), times=100)
    proxy.fail(path="visibility.kueue.x-k8s.io$", body=json.dumps(group).encode())
    told = json.loads(out(capsys, "cluster", "-n", space.name, "--json"))
    waiting = [(each["position"], each["job"]) for each in told["waiting"] if each["queue"] == queue]
    assert waiting == [(1, "job-b"), (2, "job-a")]


def test_a_person_of_one_namespace_sees_its_queues_and_what_to_ask_for(space, nodes, capsys):
    queue = queues(space)
    waits(space, "mine", 5)
    queue_rights = {"apiGroups": ["kueue.x-k8s.io"], "resources": ["localqueues", "workloads"], "verbs": ["list"]}
    allow(space, READS, queue_rights)
    space.kubeconfig(kube_api.USER_TOKEN)
    assert cli.run(["cluster", "-n", space.name, "--json"]) == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert told["nodes"] is None
    assert [quota["queue"] for quota in told["quotas"]] == [f"{space.name}/q"]
    assert [(each["queue"], each["position"]) for each in told["waiting"]] == [(queue, 1)]
    assert "N150 the nodes cannot be shown: ask for a ClusterRole that allows list on nodes" in captured.err
    assert f"N150 only the LocalQueues of {space.name} are shown" in captured.err


def test_who_may_see_nodes_and_no_pods_sees_no_free_accelerators(space, nodes, capsys):
    for kind, body in (
        ("clusterroles", {"rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]}),
        (
            "clusterrolebindings",
            {
                "roleRef": {"apiGroup": ROLE, "kind": "ClusterRole", "name": f"nodes-{space.name}"},
                "subjects": [{"apiGroup": ROLE, "kind": "User", "name": "ada"}],
            },
        ),
    ):
        metadata = {"apiVersion": f"{ROLE}/v1", "metadata": {"name": f"nodes-{space.name}"}}
        names = {"clusterroles": "ClusterRole", "clusterrolebindings": "ClusterRoleBinding"}
        where = f"/apis/{ROLE}/v1/{kind}/nodes-{space.name}"
        space.admin.apply(where, {**metadata, "kind": names[kind], **body}, "test")
    space.kubeconfig(kube_api.USER_TOKEN)
    try:
        assert cli.run(["cluster", "-n", space.name]) == 0
        captured = capsys.readouterr()
        assert re.search(rf"{nodes[0]} +\S+ +Ready +\? +8 nvidia.com/gpu", captured.out)
        assert "allows list on pods" in captured.err
    finally:
        where = f"/apis/{ROLE}/v1/clusterrolebindings/nodes-{space.name}"
        space.admin.delete(where, space.admin.get(where)["metadata"]["uid"])


def test_a_cluster_without_kueue_says_so(space, capsys):
    space.cluster.proxy.fail(path="/apis/kueue.x-k8s.io", status=404, times=9)
    told = out(capsys, "cluster", "-n", space.name)
    assert "this cluster has no Kueue" in told


def test_paths_of_lists():
    assert path("Pod", None) == "/api/v1/pods"
    assert path("Pod", "a/b") == "/api/v1/namespaces/a%2Fb/pods"
    assert path("ClusterQueue", None, version="v1") == "/apis/kueue.x-k8s.io/v1/clusterqueues"


OPERATOR = "aws-hyperpod"


@pytest.fixture
def operator(space):
    """The name of an operator's pod, which runs and whose log a test writes, in the operator's own namespace."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPERATOR}}
    space.admin.apply(path("Namespace", "", OPERATOR), namespace, "test")
    name = f"hp-training-operator-hp-training-controller-manager-{space.name}"
    body = {"metadata": {"name": name}, "spec": {"containers": [{"name": "manager", "image": "i"}]}}
    body["spec"]["nodeName"] = "node-1"
    space.admin.apply(path("Pod", OPERATOR, name), {"apiVersion": "v1", "kind": "Pod", **body}, "test")
    running = {"name": "manager", "image": "i", "imageID": "", "ready": True, "restartCount": 0}
    running |= {"state": {"running": {}}}
    status = {"phase": "Running", "containerStatuses": [running]}
    space.admin.merge(f"{path('Pod', OPERATOR, name)}/status", {"status": status}, "operator")
    space.cluster.kubelet.start(name)
    yield name
    # At once: no kubelet ends it.
    space.admin._exchange("DELETE", path("Pod", OPERATOR, name), {"gracePeriodSeconds": 0})


def test_the_operator_s_log_is_shown_as_far_as_it_is_about_the_job(space, submitted, operator, capsys):
    name, uid = submitted.native_id, submitted.uid
    own = [f"reconciling {name}", f'"job": "{space.name}/{name}"', f"pod {name}-pods-11 is ready", f"uid={uid}"]
    others = [f"reconciling {name}-2", f"reconciling my-{name}", f"pod {name}-pods-x of none", "starting"]
    others += [f"elsewhere/{name}", f'{{"job": "{name}", "namespace": "elsewhere"}}']
    pairs = itertools.zip_longest(own, others, fillvalue="")
    space.cluster.kubelet.write(operator, *(line for pair in pairs for line in pair))
    assert out(capsys, "logs", name, "--operator").splitlines() == own
    lines = out(capsys, "logs", name, "--operator", "--json").splitlines()
    assert json.loads(lines[0]) == {"kind": "operator", "rank": None, "text": own[0]}


def test_the_operator_s_log_needs_a_role_in_its_namespace_and_names_it(space, submitted, operator, capsys):
    allow(space, READS)
    space.kubeconfig(kube_api.USER_TOKEN)
    assert cli.run(["logs", submitted.native_id, "--operator"]) == 2
    told = capsys.readouterr().err
    assert "E344" in told and f"a Role in {OPERATOR} that allows list and get on pods, and get on pods/log" in told


def test_a_cluster_without_an_operator_says_so(space, submitted, capsys):
    assert cli.run(["logs", submitted.native_id, "--operator"]) == 2
    assert "E385" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["-f"], ["--rank", "1"], ["--all-ranks"], ["--attempt", "0"], ["--stderr"]])
def test_the_operator_s_log_has_no_ranks(submitted, capsys, words):
    assert cli.run(["logs", submitted.native_id, "--operator", *words]) == 2
    assert "E801" in capsys.readouterr().err
