"""What a team gets, held against AWS's example, Kubernetes' and Kueue's schemas; and which jobs a quota refuses."""

import copy
import functools
import json
from fractions import Fraction

import pytest
from conftest import ELASTIC, LLAMA_K8S, ROOT
from hypothesis import given
from hypothesis import strategies as st

from launcher.cli import main as cli
from launcher.common import yaml_io
from launcher.common.problems import ProblemsFound
from launcher.common.quantities import amount
from launcher.governance import team_manifests
from launcher.governance.quotas import Demand, Quota, exceeds, limits_growth
from launcher.model import instances

P5 = ("team=research", "instance_type=ml.p5.48xlarge", "nodes=8")
SHARED = (*P5, "cohort=shared", "borrow_nodes=4", "weight=3")
HARMFUL = ("/", "/etc", "/var/lib/kubelet/pods", "/proc", "/var", "fsx", "/fsx/", "/fsx/../etc", "//fsx", "/dev/shm")
ONE_OF_EACH_SIZE = sorted({(each.vcpus, each.memory_gib): name for name, each in instances.table().items()}.values())
CRDS = ROOT.parent / "shared" / "facts" / "kueue-crds"
"""Kueue's own CRDs, config/components/crd/bases of its repository, which are not part of this one."""


@pytest.fixture(scope="module", params=team_manifests.KUEUE_VERSIONS)
def schemas(request):
    """Return a version of Kueue's API, and its schemas by kind."""
    if not CRDS.is_dir():
        pytest.skip(f"Kueue's CRDs are not there: {CRDS.name}")
    specs = [yaml_io.load(file.read_text(encoding="utf-8"))["spec"] for file in CRDS.glob("*.yaml")]
    return request.param, {
        spec["names"]["kind"]: version["schema"]["openAPIV3Schema"]
        for spec in specs
        for version in spec["versions"]
        if version["name"] == request.param
    }


@functools.cache
def parsed(words):
    files = team_manifests.files(team_manifests.read(words))
    assert list(files) == sorted(files)
    return [each for text in files.values() for each in yaml_io.load_documents(text)]


def objects(*words):
    """Return the objects for a team, which the caller may change; those of the same words are parsed once."""
    return copy.deepcopy(parsed(words))


def one(kind, *words, ends=""):
    (found,) = [o for o in objects(*words) if o["kind"] == kind and o["metadata"]["name"].endswith(ends)]
    return found


def problems(*words):
    with pytest.raises(ProblemsFound) as caught:
        team_manifests.read(words)
    return {problem.path: problem for problem in caught.value.problems}


def test_the_quota_of_the_elastic_document_comes_out_exactly():
    assert one("ResourceQuota", *P5, ends="-compute")["spec"]["hard"] == {
        "nvidia.com/gpu": "64",
        "vpc.amazonaws.com/efa": "256",
        "requests.cpu": "1536",
        "requests.memory": "5120Gi",
        "limits.cpu": "1536",
        "limits.memory": "5120Gi",
    }


def test_devices_are_also_counted_under_the_names_that_kubernetes_enforces():
    hard = one("ResourceQuota", *P5, "storage_gib=100", "hugepages_mib_per_node=5120", ends="-objects")["spec"][
        "hard"
    ]
    assert hard == {
        "requests.nvidia.com/gpu": "64",
        "requests.vpc.amazonaws.com/efa": "256",
        "requests.hugepages-2Mi": "40960Mi",
        "requests.storage": "100Gi",
        "pods": "32",
        "persistentvolumeclaims": "50",
        "services": "50",
        "services.loadbalancers": "0",
        "services.nodeports": "0",
        "count/hyperpodpytorchjobs.sagemaker.amazonaws.com": "100",
        "count/pytorchjobs.kubeflow.org": "100",
        "count/rayjobs.ray.io": "100",
    }


@pytest.mark.parametrize(
    ("instance_type", "devices"),
    [
        ("trn1.32xlarge", {"aws.amazon.com/neurondevice": "32", "vpc.amazonaws.com/efa": "16"}),
        ("g5.xlarge", {"nvidia.com/gpu": "2"}),
        ("m5.4xlarge", {}),
    ],
    ids=["trainium", "no-efa", "cpu"],
)
def test_a_quota_counts_the_devices_that_an_instance_has(instance_type, devices):
    hard = one("ResourceQuota", "team=a", f"instance_type={instance_type}", "nodes=2", ends="-compute")["spec"][
        "hard"
    ]
    instance = instances.table()[f"ml.{instance_type}"]
    assert {name: text for name, text in hard.items() if "/" in name} == devices
    assert hard["requests.cpu"] == hard["limits.cpu"] == str(2 * instance.vcpus)
    assert hard["requests.memory"] == f"{2 * instance.memory_gib}Gi"


@pytest.mark.parametrize("name", ONE_OF_EACH_SIZE)
def test_a_pod_that_states_nothing_gets_what_fits_on_a_node_and_in_the_quota(name):
    words = ("team=a", f"instance_type={name}", "nodes=1")
    container, pod = one("LimitRange", *words)["spec"]["limits"]
    hard = one("ResourceQuota", *words, ends="-compute")["spec"]["hard"]
    instance = instances.table()[name]
    for resource, has in (("cpu", instance.vcpus), ("memory", instance.memory_gib * 1024**3)):
        requested, limit = amount(container["defaultRequest"][resource]), amount(container["default"][resource])
        assert 0 < requested <= limit <= amount(container["max"][resource]) == amount(pod["max"][resource]) == has
        assert requested <= has * Fraction(9, 10)
        assert requested <= amount(hard[f"requests.{resource}"]) and limit <= amount(hard[f"limits.{resource}"])


def test_names_are_those_of_task_governance():
    assert one("Namespace", *P5)["metadata"]["name"] == "hyperpod-ns-research"
    assert one("LocalQueue", *P5)["metadata"]["name"] == "hyperpod-ns-research-localqueue"
    names = [o["metadata"]["name"] for o in objects(*P5) if o["kind"] == "WorkloadPriorityClass"]
    assert names == ["high-priority", "normal-priority", "low-priority"]


def test_every_recommended_object_is_there():
    assert {o["kind"] for o in objects(*P5)} == {
        *("Namespace", "ResourceQuota", "LimitRange", "ServiceAccount", "Role", "RoleBinding", "PodDisruptionBudget"),
        *("PriorityClass", "WorkloadPriorityClass", "ResourceFlavor", "ClusterQueue", "LocalQueue"),
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    }


def test_what_is_turned_off_is_left_out():
    off = ("kueue=false", "min_available=0", "priorities={}", "pod_security=baseline")
    kinds = {o["kind"] for o in objects(*P5, *off)}
    assert kinds == {"Namespace", "ResourceQuota", "LimitRange", "ServiceAccount", "Role", "RoleBinding"}


def test_borrowed_nodes_are_in_the_quota_and_are_the_borrowing_limit():
    queue = one("ClusterQueue", *SHARED)["spec"]
    assert queue["cohortName"] == "shared"
    assert queue["fairSharing"] == {"weight": 3}
    assert queue["preemption"] == {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}
    (group,) = queue["resourceGroups"]
    (flavor,) = group["flavors"]
    assert flavor["resources"][0] == {"name": "nvidia.com/gpu", "nominalQuota": "64", "borrowingLimit": "32"}
    assert group["coveredResources"] == [each["name"] for each in flavor["resources"]]
    assert one("ResourceQuota", *SHARED, ends="-compute")["spec"]["hard"]["nvidia.com/gpu"] == "96"


def test_without_a_cohort_there_is_no_borrowing_limit():
    """Kueue's own rule, in CEL, which a JSON Schema does not evaluate."""
    queue = one("ClusterQueue", *P5)["spec"]
    assert "cohortName" not in queue
    assert all(set(r) == {"name", "nominalQuota"} for r in queue["resourceGroups"][0]["flavors"][0]["resources"])
    assert queue["preemption"]["reclaimWithinCohort"] == "Never"


@pytest.mark.parametrize(
    ("words", "policy"),
    [
        ((), "Never"),
        (("kueue=false",), "Never"),
        (("kueue=false", "scheduler_preempts=true"), "PreemptLowerPriority"),
    ],
    ids=["our-queue", "the-add-on's-queue", "no-kueue-at-all"],
)
def test_the_scheduler_preempts_nothing_beside_kueue(words, policy):
    classes = [o for o in objects(*P5, *words) if o["kind"] == "PriorityClass"]
    assert classes and {each["preemptionPolicy"] for each in classes} == {policy}


def test_a_cohort_is_read_in_both_versions_of_a_queue():
    for version in team_manifests.KUEUE_VERSIONS:
        queue = one("ClusterQueue", *SHARED, f"kueue_version={version}")
        assert Quota.of_queue(queue).hard["requests.nvidia.com/gpu"] == "96"
        del queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["borrowingLimit"]
        assert Quota.of_queue(queue).hard["requests.nvidia.com/gpu"] is None


def test_rights_end_at_the_namespace():
    made = objects(*P5, "groups=[ml-team]")
    assert not {o["kind"] for o in made} & {"ClusterRole", "ClusterRoleBinding"}
    role, binding = one("Role", *P5), one("RoleBinding", *P5, "groups=[ml-team]")
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == "hyperpod-ns-research"
    assert binding["roleRef"]["kind"] == "Role"
    assert [subject["name"] for subject in binding["subjects"]] == ["ml-team"]
    assert not [rule for rule in role["rules"] if "*" in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])]
    written = {r: set(rule["verbs"]) for rule in role["rules"] for r in rule["resources"]}
    assert written["secrets"] == {"create", "delete"}
    of_jobs = ("hyperpodpytorchjobs", "pytorchjobs", "rayjobs", "statefulsets", "services", "configmaps")
    assert all(written[kind] >= {"get", "create", "patch", "delete"} for kind in of_jobs)
    assert written["resourcequotas"] == {"get", "list", "watch"}


def test_the_service_account_acts_as_the_iam_role():
    arn = "arn:aws:iam::123456789012:role/team/train"
    account = one("ServiceAccount", *P5, f"role_arn={arn}")
    assert account["metadata"]["annotations"] == {"eks.amazonaws.com/role-arn": arn}
    assert account["automountServiceAccountToken"] is False
    assert "annotations" not in one("ServiceAccount", *P5)["metadata"]


def test_the_disruption_budget_knows_the_pods_of_our_jobs(render):
    queue = one("LocalQueue", *P5)["metadata"]["name"]
    files = render(*LLAMA_K8S, f"cluster.queue_name={queue}").files
    (part,) = yaml_io.load(files["manifests/job.yaml"])["spec"]["replicaSpecs"]
    labels = part["template"]["metadata"]["labels"]
    selector = one("PodDisruptionBudget", *P5)["spec"]["selector"]["matchLabels"]
    assert selector and selector.items() <= labels.items()


@pytest.mark.slow
@pytest.mark.parametrize("words", [P5, SHARED, ("team=a", "instance_type=m5.xlarge", "nodes=1")], ids="pmc")
def test_objects_pass_the_schemas_of_kubernetes_and_kueue(words, schemas):
    validate = pytest.importorskip("kubernetes_validate").validate
    jsonschema = pytest.importorskip("jsonschema")
    version, schemas = schemas
    seen = set()
    for each in objects(*words, "topology=racks", f"kueue_version={version}"):
        seen.add(each["kind"])
        if each["kind"] in schemas:
            jsonschema.Draft202012Validator(strict(schemas[each["kind"]])).validate(each)
            assert each["apiVersion"] == f"kueue.x-k8s.io/{version}"
        else:
            validate(each, "1.30", strict=True)
    assert seen >= {"ClusterQueue", "LocalQueue", "ResourceFlavor", "WorkloadPriorityClass"} and set(
        schemas
    ) >= seen & {"Cohort", "Topology"}


def strict(schema):
    """Return a CRD's schema as one that refuses unknown fields and knows integers-or-strings."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    if isinstance(found.get("properties"), dict) and "additionalProperties" not in found:
        found["additionalProperties"] = False
        if "metadata" in found["properties"]:
            found["properties"]["metadata"] = {"type": "object"}
    return found


def test_the_schemas_refuse_a_field_that_kueue_does_not_know(schemas):
    jsonschema = pytest.importorskip("jsonschema")
    version, schemas = schemas
    (other,) = {*team_manifests.KUEUE_VERSIONS} - {version}
    queue = one("ClusterQueue", *SHARED, f"kueue_version={other}")
    with pytest.raises(jsonschema.ValidationError, match="cohort"):
        jsonschema.Draft202012Validator(strict(schemas["ClusterQueue"])).validate(queue)


def test_every_fault_of_a_team_is_said_at_once():
    found = problems(
        "team=A_b",
        "instance_type=p5.48xlarg",
        "nodes=0",
        "role_arn=x",
        "groups=[system:masters, 'a b']",
        "priorities={Hi: 3}",
        "borrow_nodes=1",
        "wieght=3",
        "max_pods",
    )
    assert {path: problem.code for path, problem in found.items()} == {
        "team": "E361",
        "instance_type": "E230",
        "nodes": "E102",
        "role_arn": "E361",
        "groups.0": "E361",
        "groups.1": "E361",
        "priorities.Hi": "E361",
        "borrow_nodes": "E362",
        "wieght": "E101",
        "max_pods": "E360",
    }
    assert found["instance_type"].remedy == "did you mean ml.p5.48xlarge?"
    assert found["wieght"].remedy == "did you mean weight?"


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ((f"team={'a' * 41}",), "team"),
        (("memory_gib_per_node=2049",), "memory_gib_per_node"),
        (("cohort=c", "kueue=false"), "cohort"),
        (("nodes=9",), "nodes"),
        (("max_pods={",), "max_pods"),
        (("cohort='a: b'",), "cohort"),
        (("pod_security=none",), "pod_security"),
        (("scheduler_preempts=true",), "scheduler_preempts"),
        (("kueue_version=v1beta1", "kueue=false"), "kueue_version"),
        (("kueue_version=v1beta3",), "kueue_version"),
        (("pod_security=baseline", "host_paths=[/fsx]"), "pod_security"),
        (("priorities={system-node: 100}",), "priorities.system-node"),
        ((f"priorities={{{'a' * 55}: 1}}",), f"priorities.{'a' * 55}"),
        (("hugepages_mib_per_node=3",), "hugepages_mib_per_node"),
        (("hugepages_mib_per_node=2097154",), "hugepages_mib_per_node"),
        (("max_pods=7", "borrow_nodes=4", "cohort=c"), "max_pods"),
        (("min_available=33",), "min_available"),
        *((((f"host_paths=[{path}]"),), "host_paths.0") for path in HARMFUL),
    ],
    ids=[
        "label-too-long",
        "more-than-a-node",
        "no-queue",
        "twice",
        "no-yaml",
        "no-name",
        "no-profile",
        *("two-preempt", "no-kueue", "unknown-version", "denied-folder"),
        *("reserved-class", "class-too-long", "half-a-page", "more-pages-than-a-node", "too-few-pods", "no-eviction"),
        *HARMFUL,
    ],
)
def test_a_fault_of_a_team_is_a_problem_at_its_key(words, path):
    given_keys = {word.partition("=")[0] for word in words}
    base = [word for word in P5 if word.partition("=")[0] not in given_keys or path == "nodes"]
    assert list(problems(*base, *words)) == [path]


def test_the_longest_team_has_a_queue_that_is_a_label_value():
    team = team_manifests.read((f"team={'a' * 40}", *P5[1:]))
    assert len(team.queue) == 63


@pytest.mark.parametrize(
    "words",
    [
        (f"priorities={{{'a' * 54}: 1}}",),
        (f"priorities={{{'a' * 55}: 1}}", "kueue=false"),
        ("hugepages_mib_per_node=2097152",),
        ("max_pods=8", "min_available=8", "borrow_nodes=4", "cohort=c"),
        ("min_available=32",),
    ],
    ids=["class", "class-without-label", "pages", "pods", "available"],
)
def test_the_bounds_of_a_team_are_allowed(words):
    assert team_manifests.files(team_manifests.read((*P5, *words)))


@pytest.mark.slow
@given(st.text(max_size=40))
def test_no_group_leaves_its_place_in_the_yaml(group):
    words = (*P5, f"groups={json.dumps([group])}")
    try:
        binding = one("RoleBinding", *words)
    except ProblemsFound:
        return
    assert [subject["name"] for subject in binding["subjects"]] == [group]


def test_the_command_prints_what_kubectl_takes_and_never_overwrites(tmp_path, capsys):
    assert cli.run(["governance", *P5]) == 0
    printed = capsys.readouterr().out
    assert list(map(str, yaml_io.load_documents(printed))) == list(map(str, objects(*P5)))
    assert cli.run(["governance", *P5, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"] == objects(*P5)
    out = str(tmp_path / "gov")
    assert [cli.run(["governance", *P5, "--out", out]) for _ in range(2)] == [0, 0]
    (tmp_path / "gov/2-quotas.yaml").write_text("mine")
    assert cli.run(["governance", *P5, "--out", out]) == 2
    assert "E805" in capsys.readouterr().err
    assert (tmp_path / "gov/2-quotas.yaml").read_text() == "mine"


OTHER = ("team=b", "instance_type=ml.p5.48xlarge", "nodes=2")


@pytest.mark.parametrize(
    ("words", "key", "count"),
    [
        ("priorities={high: 90, normal: 50, low: 10}", "priorities.high", 2),
        ("topology=racks", "topology", 1),
        ("priorities={extra: 1}", None, 0),
        ("cohort=c", None, 0),
    ],
    ids=["value", "topology", "another-class", "its-own-queue"],
)
def test_teams_of_one_command_share_the_clusters_objects(capsys, words, key, count):
    code = cli.run(["governance", *P5, *OTHER, words])
    printed = capsys.readouterr()
    faults = [line.split() for line in printed.err.splitlines() if line.startswith("E")]
    assert faults == [["E363", key]] * count
    assert code == (2 if count else 0)
    assert (printed.out == "") is bool(count)
    if not count:
        names = [o["metadata"]["name"] for o in yaml_io.load_documents(printed.out) if o["kind"] == "Namespace"]
        assert names == ["hyperpod-ns-research", "hyperpod-ns-b"]


def test_a_context_without_the_cluster_option_is_a_problem(capsys):
    assert cli.run(["governance", *P5, "--context", "prod"]) == 2
    assert "E801 --context" in capsys.readouterr().err


def test_words_before_the_first_team_are_every_teams():
    found = team_manifests.read_all(["instance_type=g5.xlarge", "nodes=2", "team=a", "team=b", "weight=3"])
    assert [(team.team, team.nodes, team.weight) for team in found] == [("a", 2, 1), ("b", 2, 3)]


def test_faults_of_several_teams_name_their_team():
    with pytest.raises(ProblemsFound) as caught:
        team_manifests.read_all(
            ["instance_type=g5.xlarge", "team=a", "nodes=0", "team=a", "nodes=1", "team=b", "nodes=x"]
        )
    assert [problem.path for problem in caught.value.problems] == ["team=a nodes", "team=b nodes", "team=a"]


def test_teams_on_disk_share_the_clusters_objects(tmp_path, capsys):
    assert cli.run(["governance", *P5, *OTHER, "--out", str(tmp_path / "teams")]) == 0
    assert sorted(path.name for path in (tmp_path / "teams").iterdir()) == ["b", "research"]
    (tmp_path / "teams/b/2-quotas.yaml").write_text("mine")
    (tmp_path / "teams/research/2-quotas.yaml").unlink()
    assert cli.run(["governance", *P5, *OTHER, "--out", str(tmp_path / "teams")]) == 2
    assert not (tmp_path / "teams/research/2-quotas.yaml").exists()
    (tmp_path / "teams/notes").mkdir()
    (tmp_path / "teams/notes/1-list.yaml").write_text("{ not yaml")
    third = ["governance", "team=c", *P5[1:], "--out", str(tmp_path / "teams/c")]
    assert cli.run([*third, "priorities={low: 11}"]) == 2
    errors = capsys.readouterr().err
    assert "E363 priorities.low" in errors and "teams/b" in errors and "teams/research" in errors
    assert not (tmp_path / "teams/c").exists()
    assert cli.run(third) == 0


def test_the_command_without_a_team_says_what_it_needs(capsys):
    assert cli.run(["governance"]) == 2
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines() if line[0] == "E"] == [
        "team",
        "instance_type",
        "nodes",
    ]


# Jobs against quotas


@pytest.fixture
def job(render):
    """Return a function from overrides to what the rendered job requests."""
    batch = "recipes.training_config.training_args.train_batch_size=128"
    return lambda *words: Demand.of(yaml_io.load(render(*LLAMA_K8S, batch, *words).files["manifests/job.yaml"]))


def quotas_of(nodes, *words):
    made = objects("team=a", "instance_type=p5.48xlarge", f"nodes={nodes}", *words)
    ranges = [o for o in made if o["kind"] == "LimitRange"]
    found = [Quota.of_namespace(o, ranges) for o in made if o["kind"] == "ResourceQuota"]
    return [*found, *(Quota.of_queue(o, ranges) for o in made if o["kind"] == "ClusterQueue")]


SIZED = (
    ELASTIC,
    "recipes.elastic_policy.min_nodes=2",
    "recipes.elastic_policy.max_nodes=8",
    "recipes.trainer.num_nodes=4",
)


def test_a_job_fits_the_quota_that_was_made_for_it(job):
    for quota in quotas_of(8):
        assert exceeds(job(*SIZED), quota) == limits_growth(job(*SIZED), quota) == ()


def test_a_job_whose_smallest_size_is_more_than_the_quota_is_refused(job):
    for quota in quotas_of(1):
        found = exceeds(job(*SIZED), quota)
        gpus = [problem for problem in found if "gpu" in problem.message]
        assert {problem.code for problem in found} == {"E364"}
        assert {problem.path for problem in found} == {"recipes.elastic_policy.min_nodes"}
        assert all(problem.remedy == "recipes.elastic_policy.min_nodes=1" for problem in found)
        assert gpus and gpus[0].message.startswith("2 nodes need 16 requests.nvidia.com/gpu")
        assert gpus[0].allowed == f"{quota.name} allows 8"


@pytest.mark.slow
def test_an_elastic_job_that_cannot_grow_to_its_largest_size_is_a_notice(job):
    for quota in quotas_of(4):
        assert exceeds(job(*SIZED), quota) == ()
        (notice,) = limits_growth(job(*SIZED), quota)
        assert notice.code == "N123" and "holds 4 nodes" in notice.message and "8" in notice.message


def test_a_static_job_needs_all_of_its_nodes(job):
    static = job("recipes.trainer.num_nodes=2")
    assert all(exceeds(static, quota) == () for quota in quotas_of(2))
    for quota in quotas_of(1):
        assert {problem.path for problem in exceeds(static, quota)} == {"recipes.trainer.num_nodes"}


@pytest.mark.slow
def test_both_parts_of_a_job_with_two_priorities_count(job):
    tiers = (
        "++recipes.elastic_policy.preemption={base_priority_class:high-priority,elastic_priority_class:low-priority}"
    )
    for quota in quotas_of(1):
        assert exceeds(job(*SIZED, tiers), quota)
    assert all(exceeds(job(*SIZED, tiers), quota) == () for quota in quotas_of(2))


def test_a_pod_that_does_not_state_what_a_quota_bounds_is_refused(job):
    compute = one("ResourceQuota", *P5, ends="-compute")
    (problem,) = exceeds(job(), Quota.of_namespace(compute))
    assert problem.code == "E365"
    assert "do not state limits.cpu, limits.memory," in problem.message
    (problem,) = exceeds(job("cluster.request_node_share=false"), Quota.of_namespace(compute))
    assert "requests.cpu, requests.memory, limits.cpu, limits.memory" in problem.message


def test_what_a_queue_does_not_cover_is_never_admitted(job):
    huge = job("++recipes.resources={hugepages: 5120Mi, memory: 100Gi}")
    queue = quotas_of(8)[-1]
    (problem,) = exceeds(huge, queue)
    assert (problem.code, problem.path) == ("E365", "cluster.queue_name")
    assert "hugepages-2Mi" in problem.message
    assert exceeds(huge, quotas_of(8, "hugepages_mib_per_node=5120")[-1]) == ()


def test_a_request_above_the_limit_that_the_namespace_gives_is_a_problem(job):
    compute, *_ = quotas_of(8, "memory_gib_per_node=500")
    (problem,) = exceeds(job(), compute)
    assert (problem.code, problem.path) == ("E365", "recipes.resources.memory")
    assert problem.remedy == "recipes.resources.memory=500Gi"
    assert exceeds(job("++recipes.resources.memory=500Gi"), compute) == ()


def test_a_queue_of_accelerators_alone_takes_jobs_that_request_no_part_of_a_node(job):
    queue = quotas_of(8)[-1]
    only_gpus = Quota(queue.name, {"requests.nvidia.com/gpu": "64"}, is_queue=True)
    (problem,) = exceeds(job(), only_gpus)
    assert (problem.code, problem.remedy) == ("E365", "cluster.request_node_share=false")
    assert exceeds(job("cluster.request_node_share=false"), only_gpus) == ()


def test_more_memory_than_the_quota_counts_is_refused_at_that_number_of_nodes(job):
    static = job("recipes.trainer.num_nodes=2", "++recipes.resources.memory=1000Gi")
    (requests, limits), *_ = (exceeds(static, quota) for quota in quotas_of(3))
    assert requests.message.startswith("2 nodes need 2000Gi requests.memory")
    assert requests.remedy == limits.remedy == "recipes.trainer.num_nodes=1"


def test_a_cohort_without_borrowing_limit_may_lend_any_amount(job):
    queue = one("ClusterQueue", *SHARED)
    for resource in queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"]:
        del resource["borrowingLimit"]
    static = job("recipes.trainer.num_nodes=16")
    assert exceeds(static, Quota.of_queue(queue)) == ()
    assert exceeds(static, Quota.of_queue(one("ClusterQueue", *SHARED)))


def test_quotas_with_scopes_and_other_namespaces_of_names_bound_no_job(job):
    scoped = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}, "scopes": ["BestEffort"]}}
    storage = {
        "metadata": {"name": "q"},
        "spec": {"hard": {"gold.storageclass.storage.k8s.io/requests.storage": "0"}},
    }
    assert exceeds(job(), Quota.of_namespace(scoped)) == exceeds(job(), Quota.of_namespace(storage)) == ()
    pods = {"metadata": {"name": "q"}, "spec": {"hard": {"count/pods": "0"}}}
    (problem,) = exceeds(job(), Quota.of_namespace(pods))
    assert "1 node need 1 pods" in problem.message
