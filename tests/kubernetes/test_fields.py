"""Every field of a job reaches a real API server and stays: what its schema does not know, it drops or refuses."""

import pytest
from manifest_schemas import EVERYTHING, templates

from launcher.backends.kubernetes.api_objects import path
from launcher.common import yaml_io

pytest_plugins = ("cluster_fixtures",)


def test_a_job_with_every_field_is_kept_as_it_was_sent(space, bundle):
    files = bundle(*EVERYTHING).files
    for kind, name in ("ConfigMap", "configmap"), ("HyperPodPyTorchJob", "job"):
        sent = yaml_io.load(files[f"manifests/{name}.yaml"])
        kept = space.connection().apply(path(kind, space.name, sent["metadata"]["name"]), sent, "test")
        for section in ("spec", "data"):
            assert kept.get(section) == sent.get(section)
        for section in ("labels", "annotations"):
            assert kept["metadata"].get(section) == sent["metadata"].get(section)


@pytest.mark.parametrize(
    ("overrides", "is_elastic"),
    [
        (EVERYTHING, True),
        (("cluster.use_hyperpod_pytorch_job=false",), False),
        (
            (
                "cluster.hostNetwork=true",
                "cluster.volumes=[{volumeName: data, hostPath: /mnt, mountPath: /data, readOnly: true}]",
                "cluster.tolerations=[{operator: Exists}, {key: a, effect: NoExecute, tolerationSeconds: 0}]",
                "cluster.node_selector={zone: ''}",
                "cluster.security_context={privileged: true}",
            ),
            False,
        ),
    ],
    ids=["everything", "kubeflow", "privileged"],
)
def test_pods_are_what_kubernetes_itself_accepts(space, bundle, overrides, is_elastic):
    job = yaml_io.load(bundle(*overrides, is_elastic=is_elastic).files["manifests/job.yaml"])
    for i, template in enumerate(templates(job)):
        body = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": f"x{i}"}, "template": template}
        kept = space.connection().ask(f"/api/v1/namespaces/{space.name}/podtemplates", body)
        assert kept["template"]["spec"]["nodeSelector"] == template["spec"]["nodeSelector"]


def test_pods_whose_image_starts_the_program_are_what_kubernetes_itself_accepts(space, render):
    evaluation = "evaluation/nova/nova_1_0/nova_micro/nova_micro_1_0_p5_48xl_gpu_general_text_benchmark_eval"
    results = "recipes.run.output_s3_path=s3://results/out"
    files = render(f"recipes={evaluation}", "cluster=k8s", f"cluster.namespace={space.name}", results).files
    (template,) = templates(yaml_io.load(files["manifests/job.yaml"]))
    body = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "nova"}, "template": template}
    kept = space.connection().ask(f"/api/v1/namespaces/{space.name}/podtemplates", body)["template"]["spec"]
    for key in ("nodeSelector", "tolerations", "hostNetwork", "automountServiceAccountToken"):
        assert kept[key] == template["spec"][key]
    assert [each for each in template["spec"]["volumes"] if "hostPath" in each] == [
        each for each in kept["volumes"] if "hostPath" in each
    ]
    (first,), (sent,) = kept["initContainers"], template["spec"]["initContainers"]
    assert (first["image"], first["volumeMounts"]) == (sent["image"], sent["volumeMounts"])
