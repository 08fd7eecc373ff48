"""Values that Kubernetes and its operators would refuse: code, key and value of each Problem, and what is fine."""

import pytest
from conftest import ELASTIC, LLAMA_K8S

from launcher.model.instances import INSTANCE_LABELS

MONITORS = "cluster.run_policy.logMonitoringConfiguration"
CLASSES = "recipes.elastic_policy.preemption"
KUBEFLOW = "cluster.use_hyperpod_pytorch_job=false"
QUEUE = "cluster.queue_name=q"
CONTEXT = "cluster.security_context={privileged: false}"
NEAR = "topology.k8s.aws/network-node-layer-1"


def monitors(*given: str) -> str:
    return f"cluster.run_policy={{logMonitoringConfiguration: [{', '.join(f'{{{each}}}' for each in given)}]}}"


def classes(base: str, elastic: str) -> tuple[str, ...]:
    return ELASTIC, f"++{CLASSES}={{base_priority_class: {base}, elastic_priority_class: {elastic}}}"


FAULTS = [
    (("cluster.custom_labels={a b: c}",), "E303", "cluster.custom_labels.a b", "a b"),
    (("cluster.custom_labels={a: b c}",), "E303", "cluster.custom_labels.a", "b c"),
    (("cluster.custom_labels={x.k8s.io/y: c}",), "E303", "cluster.custom_labels.x.k8s.io/y", "x.k8s.io/y"),
    (
        ("cluster.custom_labels={recipe-launcher/job: c}",),
        "E303",
        "cluster.custom_labels.recipe-launcher/job",
        "recipe-launcher/job",
    ),
    (("cluster.node_selector={a b: c}",), "E303", "cluster.node_selector.a b", "a b"),
    (("cluster.node_selector={a: b c}",), "E303", "cluster.node_selector.a", "b c"),
    (("cluster.label_selector={required: {a b: [c]}}",), "E303", "cluster.label_selector.required.a b", "a b"),
    (("cluster.label_selector={preferred: {a: [b, c d]}}",), "E303", "cluster.label_selector.preferred.a", "c d"),
    (("cluster.tolerations=[{key: a b, operator: Exists}]",), "E303", "cluster.tolerations.0.key", "a b"),
    (
        ("cluster.tolerations=[{operator: Exists}, {key: a, operator: Equal, value: b c}]",),
        "E303",
        "cluster.tolerations.1.value",
        "b c",
    ),
    (("cluster.instance_type_label=a b",), "E102", "cluster.instance_type_label", "a b"),
    (("cluster.cpu_instance_type=m5.nope",), "E303", "cluster.cpu_instance_type", "m5.nope"),
    (("cluster.cpu_instance_type=[c5.4xlarge, ' x y']",), "E303", "cluster.cpu_instance_type.1", " x y"),
    (("cluster.annotations={a b: c}",), "E304", "cluster.annotations.a b", "a b"),
    (
        ("cluster.annotations={recipe-launcher/x: c}",),
        "E304",
        "cluster.annotations.recipe-launcher/x",
        "recipe-launcher/x",
    ),
    (
        ("cluster.annotations={kueue.x-k8s.io/elastic-job: c}",),
        "E304",
        "cluster.annotations.kueue.x-k8s.io/elastic-job",
        "kueue.x-k8s.io/elastic-job",
    ),
    (("container=null",), "E305", "container", None),
    (("container=''",), "E305", "container", ""),
    (("container='A b'",), "E305", "container", "A b"),
    (("container='https://u:p@h/x'",), "E305", "container", None),
    (("cluster.service_account_name=A_",), "E307", "cluster.service_account_name", "A_"),
    (("cluster.priority_class_name=A_",), "E307", "cluster.priority_class_name", "A_"),
    (("cluster.queue_name=a_b",), "E307", "cluster.queue_name", "a_b"),
    ((QUEUE, "cluster.workload_priority_class=a_b"), "E307", "cluster.workload_priority_class", "a_b"),
    (classes("A_", "b"), "E307", f"{CLASSES}.base_priority_class", "A_"),
    (classes("a", "B_"), "E307", f"{CLASSES}.elastic_priority_class", "B_"),
    (
        ("cluster.label_selector={preferred: {a: [b]}, weights: [1, 2]}",),
        "E308",
        "cluster.label_selector.weights",
        [1, 2],
    ),
    *(
        (
            (f"cluster.label_selector={{required: {{{label}: [ml.g5.xlarge]}}}}",),
            "E328",
            f"cluster.label_selector.required.{label}",
            ["ml.g5.xlarge"],
        )
        for label in INSTANCE_LABELS
    ),
    (
        ("cluster.label_selector={required: {a: [b]}}", "cluster.node_selector={a: c}"),
        "E328",
        "cluster.label_selector.required.a",
        ["b"],
    ),
    (("cluster.label_selector={weights: [1]}",), "E308", "cluster.label_selector.weights", [1]),
    (
        (KUBEFLOW, "cluster.run_policy={faultDeadlineSeconds: 5}"),
        "E314",
        "cluster.run_policy.faultDeadlineSeconds",
        None,
    ),
    ((KUBEFLOW, QUEUE, "cluster.spares=1"), "E314", "cluster.spares", None),
    (("cluster.cleanPodPolicy=Running",), "E315", "cluster.cleanPodPolicy", "Running"),
    ((KUBEFLOW, "cluster.cleanPodPolicy=OnlyComplete"), "E315", "cluster.cleanPodPolicy", "OnlyComplete"),
    ((monitors("name: a, logPattern: '('"),), "E316", f"{MONITORS}.0.logPattern", "("),
    ((monitors("name: a, logPattern: b, stopPattern: '['"),), "E316", f"{MONITORS}.0.stopPattern", "["),
    ((monitors("name: a, logPattern: b, operator: gt"),), "E316", f"{MONITORS}.0.operator", "gt"),
    ((monitors("name: a, logPattern: '(b)', metricThreshold: 0"),), "E316", f"{MONITORS}.0.metricThreshold", 0),
    (
        (monitors("name: a, logPattern: b, operator: gt, metricThreshold: 0"),),
        "E316",
        f"{MONITORS}.0.logPattern",
        "b",
    ),
    (
        (monitors("name: a, logPattern: b, metricEvaluationDataPoints: 2"),),
        "E316",
        f"{MONITORS}.0.metricEvaluationDataPoints",
        2,
    ),
    (
        (monitors("name: a, logPattern: b", "name: c, logPattern: d", "name: a, logPattern: e"),),
        "E316",
        f"{MONITORS}.2.name",
        "a",
    ),
    (("cluster.workload_priority_class=a",), "E317", "cluster.workload_priority_class", "a"),
    ((f"cluster.preferred_topology={NEAR}",), "E317", "cluster.preferred_topology", NEAR),
    ((f"cluster.required_topology={NEAR}",), "E317", "cluster.required_topology", NEAR),
    (("cluster.spares=1",), "E317", "cluster.spares", 1),
    (
        (QUEUE, f"cluster.preferred_topology={NEAR}", f"cluster.required_topology={NEAR}"),
        "E318",
        "cluster.required_topology",
        None,
    ),
    (
        (
            QUEUE,
            f"cluster.required_topology={NEAR}",
            "cluster.annotations={kueue.x-k8s.io/podset-preferred-topology: x}",
        ),
        "E318",
        "cluster.annotations.kueue.x-k8s.io/podset-preferred-topology",
        None,
    ),
    (("cluster.tolerations=[{key: a, operator: Exists, value: b}]",), "E319", "cluster.tolerations.0.value", "b"),
    (("cluster.tolerations=[{operator: Equal, value: b}]",), "E319", "cluster.tolerations.0.key", None),
    (
        ("cluster.tolerations=[{key: a, operator: Exists, effect: NoSchedule, tolerationSeconds: 5}]",),
        "E319",
        "cluster.tolerations.0.tolerationSeconds",
        5,
    ),
    (
        ("cluster.node_selector={node.kubernetes.io/instance-type: x}",),
        "E320",
        "cluster.node_selector.node.kubernetes.io/instance-type",
        "x",
    ),
    (
        ("cluster.node_selector={beta.kubernetes.io/instance-type: x}",),
        "E320",
        "cluster.node_selector.beta.kubernetes.io/instance-type",
        "x",
    ),
    (("cluster.run_as_root=true", "cluster.run_as_user=5"), "E321", "cluster.run_as_user", 5),
    (("cluster.run_as_root=true", CONTEXT), "E321", "cluster.run_as_root", True),
    (("cluster.run_as_root=false", CONTEXT), "E321", "cluster.run_as_root", False),
    (("cluster.run_as_user=5", CONTEXT), "E321", "cluster.run_as_user", 5),
]


@pytest.mark.parametrize(
    ("overrides", "code", "path", "value"), FAULTS, ids=[f"{f[1]}-{f[2]}-{i}" for i, f in enumerate(FAULTS)]
)
def test_a_value_that_the_cluster_would_refuse_is_named(problems, overrides, code, path, value):
    found = problems(*LLAMA_K8S, *overrides)
    assert [(problem.code, problem.path, problem.value) for problem in found] == [(code, path, value)]


def test_a_value_under_a_secret_s_name_is_not_shown(problems):
    label, secret = problems(*LLAMA_K8S, "cluster.custom_labels={api_key: b c}")
    assert (label.code, label.value, secret.code) == ("E303", None, "E608")


FINE = [
    ("cluster.custom_labels={k8s.io: c, ak8s.io/y: c, recipe-launcher: c}",),
    ("cluster.annotations={recipe-launcher: c}",),
    ("cluster.tolerations=[{operator: Exists}]",),
    ("cluster.tolerations=[{key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 5}]",),
    ("cluster.label_selector={preferred: {a: [b]}, weights: [1]}",),
    ("cluster.label_selector={preferred: {a: [b]}}",),
    ("cluster.label_selector={required: {a: [b, c]}}", "cluster.node_selector={a: c}"),
    ("cluster.label_selector={required: {node.kubernetes.io/instance-type: [ml.g5.xlarge, ml.p5.48xlarge]}}",),
    (KUBEFLOW, "cluster.cleanPodPolicy=Running"),
    (monitors("name: a, logPattern: '(b)', operator: gt, metricThreshold: 0, metricEvaluationDataPoints: 2"),),
    (QUEUE, f"cluster.preferred_topology={NEAR}", "cluster.spares=1", "cluster.workload_priority_class=a"),
    (
        QUEUE,
        f"cluster.required_topology={NEAR}",
        "cluster.annotations={kueue.x-k8s.io/podset-group-name: x, a-topology: y}",
    ),
    ("cluster.node_selector={a-beta.kubernetes.io/instance-type: x}",),
    ("cluster.run_as_root=false", "cluster.run_as_user=5"),
    classes("a", "b"),
]


@pytest.mark.parametrize("overrides", FINE, ids=lambda overrides: overrides[-1][:60])
def test_what_only_resembles_it_is_taken(prepare, overrides):
    assert prepare(*LLAMA_K8S, *overrides).name
