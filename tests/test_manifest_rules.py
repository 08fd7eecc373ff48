"""What is refused before a manifest is rendered: one fault, one Problem, where the fault is."""

import pytest
from conftest import ELASTIC, LLAMA_K8S

from launcher.common.problems import ProblemsFound

MONITORS = "cluster.run_policy.logMonitoringConfiguration"
STATIC = "recipes.elastic_policy.is_elastic=false"
KUBEFLOW = "cluster.use_hyperpod_pytorch_job=false"


def monitor(**fields):
    words = ", ".join(f"{key}: {value}" for key, value in {"name": "m", "logPattern": "a", **fields}.items())
    return f"cluster.run_policy={{logMonitoringConfiguration: [{{{words}}}]}}"


FAULTS = [
    ((KUBEFLOW, "cluster.run_policy={workloadMode: x}"), "E314", "cluster.run_policy.workloadMode", "Kubeflow"),
    ((KUBEFLOW, "cluster.spares=1", "cluster.queue_name=q"), "E314", "cluster.spares", "HyperPodPyTorchJob"),
    (("cluster.cleanPodPolicy=Running",), "E315", "cluster.cleanPodPolicy", "OnlyComplete"),
    ((KUBEFLOW, "cluster.cleanPodPolicy=OnlyComplete"), "E315", "cluster.cleanPodPolicy", "Running"),
    ((monitor(logPattern="'(a'"),), "E316", f"{MONITORS}.0.logPattern", "missing )"),
    ((monitor(stopPattern="'*'"),), "E316", f"{MONITORS}.0.stopPattern", "nothing to repeat"),
    ((monitor(operator="lt"),), "E316", f"{MONITORS}.0.operator", "metricThreshold"),
    ((monitor(logPattern="'(a)'", metricThreshold=3),), "E316", f"{MONITORS}.0.metricThreshold", "lteq"),
    ((monitor(metricThreshold=3, operator="lt"),), "E316", f"{MONITORS}.0.logPattern", "group"),
    ((monitor(metricEvaluationDataPoints=3),), "E316", f"{MONITORS}.0.metricEvaluationDataPoints", "comparisons"),
    (
        (monitor(logPattern="'(a)'", metricThreshold=2.5, operator="lt"),),
        "E102",
        f"{MONITORS}.0.metricThreshold",
        "whole",
    ),
    ((monitor(logPattern="'(a)'", metricThreshold=2, operator="le"),), "E102", f"{MONITORS}.0.operator", "lteq"),
    ((monitor(logPatern="a"),), "E101", f"{MONITORS}.0.logPatern", "logPattern"),
    (("cluster.run_policy={logMonitoringConfiguration: []}",), "E102", MONITORS, ""),
    (("cluster.run_policy={restartPolicy: {maxFullJobRestarts: 1}}",), "E103", None, "evalPeriodSeconds"),
    (
        ("cluster.run_policy={ttlSecondsAfterFinished: -2}",),
        "E102",
        "cluster.run_policy.ttlSecondsAfterFinished",
        "-1",
    ),
    (("cluster.run_policy={cleanPodPolicy: All}",), "E101", "cluster.run_policy.cleanPodPolicy", "unknown"),
    (("cluster.spares=2",), "E317", "cluster.spares", "queue_name"),
    (("cluster.workload_priority_class=a",), "E317", "cluster.workload_priority_class", "queue_name"),
    (
        ("cluster.preferred_topology=topology.k8s.aws/ultraserver-id",),
        "E317",
        "cluster.preferred_topology",
        "no queue",
    ),
    (("cluster.preferred_topology=rack",), "E102", "cluster.preferred_topology", "ultraserver-id"),
    (
        (
            "cluster.queue_name=q",
            "cluster.preferred_topology=topology.k8s.aws/ultraserver-id",
            "cluster.required_topology=topology.k8s.aws/network-node-layer-1",
        ),
        "E318",
        "cluster.required_topology",
        "topology constraint",
    ),
    (
        (
            "cluster.queue_name=q",
            "cluster.required_topology=topology.k8s.aws/network-node-layer-1",
            "cluster.annotations={kueue.x-k8s.io/podset-unconstrained-topology: 'true'}",
        ),
        "E318",
        "cluster.annotations.kueue.x-k8s.io/podset-unconstrained-topology",
        "leave out",
    ),
    (
        ("cluster.tolerations=[{key: a, operator: Exists, value: b}]",),
        "E319",
        "cluster.tolerations.0.value",
        "Exists",
    ),
    (("cluster.tolerations=[{value: b}]",), "E319", "cluster.tolerations.0.key", "Exists"),
    (
        ("cluster.tolerations=[{key: a, tolerationSeconds: 3, effect: NoSchedule}]",),
        "E319",
        "cluster.tolerations.0.tolerationSeconds",
        "NoExecute",
    ),
    (("cluster.node_selector={node.kubernetes.io/instance-type: ml.p4d.24xlarge}",), "E320", None, "instance_type="),
    (("cluster.node_selector={a b: c}",), "E303", "cluster.node_selector.a b", "label key"),
    (("cluster.node_selector={a: 'b c'}",), "E303", "cluster.node_selector.a", "label value"),
    ((ELASTIC, "cluster.node_selector={karpenter.sh/capacity-type: spot}"), "E209", None, "Spot"),
    (("cluster.run_as_root=true", "cluster.run_as_user=1000"), "E321", "cluster.run_as_user", "root"),
    (
        ("cluster.run_as_user=1000", "cluster.security_context={runAsUser: 5}"),
        "E321",
        "cluster.run_as_user",
        "replaces",
    ),
    (("cluster.run_as_user=0",), "E102", "cluster.run_as_user", "1"),
    (("++recipes.resources={cpu: many}",), "E309", "recipes.resources.cpu", "quantity"),
    (
        tuple(f"+cluster.annotations.{name}={'x' * 65_000}" for name in "abcde"),
        "E304",
        "cluster.annotations",
        "at most 261120",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "code", "path", "says"), FAULTS, ids=[f"{f[1]}-{' '.join(f[0])[:60]}" for f in FAULTS]
)
def test_a_fault_is_one_problem(problems, overrides, code, path, says):
    (problem,) = problems(*LLAMA_K8S, *overrides)
    assert problem.code == code
    assert path is None or problem.path == path
    assert says in str(problem)


def test_monitors_with_one_name_are_one_problem(problems):
    two = "{name: m, logPattern: a}, {name: m, logPattern: b}"
    (problem,) = problems(*LLAMA_K8S, f"cluster.run_policy={{logMonitoringConfiguration: [{two}]}}")
    assert (problem.code, problem.path) == ("E316", f"{MONITORS}.1.name")


def test_all_that_a_kubeflow_job_lacks_is_said_at_once(problems):
    found = problems(
        *LLAMA_K8S,
        KUBEFLOW,
        "cluster.run_policy={startupDeadlineSeconds: 1, faultDeadlineSeconds: 1, workloadMode: x,"
        " restartPolicy: {evalPeriodSeconds: 1}, logMonitoringConfiguration: [{name: m, logPattern: a}]}",
    )
    assert {problem.code for problem in found} == {"E314"}
    assert len(found) == 5


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        (("cluster=k8s", "++recipes.pre_script=[a]", "++recipes.post_script=[b]"), ["pre_script", "post_script"]),
        (("cluster=k8s", "cluster.runtime=launcher", "++recipes.pre_script=[a]"), []),
        (
            ("cluster=k8s", "cluster.runtime=launcher", KUBEFLOW, STATIC, "++recipes.post_script=[a]"),
            ["post_script"],
        ),
    ],
    ids=["agent_alone", "entrypoint", "torchrun"],
)
def test_commands_that_nothing_would_run_are_refused(prepare, overrides, keys):
    base = ("container=me/image:1", "instance_type=ml.m5.2xlarge")
    try:
        prepare(*base, *overrides)
        found = []
    except ProblemsFound as error:
        found = [(problem.code, problem.path) for problem in error.problems]
    assert found == [("E322", f"recipes.{key}") for key in keys]
