"""Nothing that a recipe holds leaves its place in a manifest: any text comes back as it was."""

import dataclasses

import pytest
import yaml
from conftest import ELASTIC, LLAMA_K8S, examples, frozen_context
from hypothesis import example, given
from hypothesis import strategies as st
from manifest_schemas import arrives

from launcher import pipeline
from launcher.backends.kubernetes.backend import BACKEND
from launcher.backends.kubernetes.job_options import (
    LabelSelector,
    LogMonitor,
    RunPolicy,
    SecurityContext,
    Toleration,
)
from launcher.common import yaml_io
from launcher.model.config_tree import replaced

pytestmark = pytest.mark.slow

SNIPPETS = [
    "{{ 7 * 7 }}", "{% raw %}", "{# #}", "---", "...", "--- a", "\n---\n", "\n...\n", "\n- x", "- x", "a: b",
    "\na: b", "*a", "&a b", "!!python/object:os.system", "<<", "~", "null", "yes", "0o17", "1e3", "1_000", "0x1f",
    "2001-01-01", "12:30:45", "=", " a", "a ", "# c", "a # c", "'", '"', "\\", "\\n", "\n", "\n\n", "a\n", "a\n\n",
    "\na", " \n", "\t", "\r", "a\rb", "a\x85b", "a\u2028b", "a\u2029", "\ufeff", "\x00", "\x1b[0m", "\x7f",
    "\x0b\x0c\x1c", "%YAML 1.1", "|", ">-", "}", "]", ",", "?", "? a", "\U0001f600\n", "a\nb\n  c\n",
    "x" * 1200 + " y",
]  # fmt: skip
TEXT = st.one_of(
    st.sampled_from(SNIPPETS),
    st.text(st.sampled_from("\n\r\x85\u2028\u2029\ufeff\t '\"{}%#:-|>&*!?[],`$\\\x00\x7f\U0001f600ab0"), min_size=1),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
)
KEY = TEXT.filter(lambda text: len(text) < 150)
"""A text that is a key of YAML in one line, with every character escaped."""


def every_text(text):
    """Yield what YAML readers, one of them ours and one in pure Python, make of a manifest that is one document."""
    for documents in yaml_io.load_documents(text), list(yaml.load_all(text, Loader=yaml.SafeLoader)):
        (document,) = documents
        yield document


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Return a planned job of each kind."""
    context = frozen_context(tmp_path_factory.mktemp("jobs"))
    kubeflow = pipeline.prepare((*LLAMA_K8S, "cluster.use_hyperpod_pytorch_job=false"), context)
    return pipeline.prepare((*LLAMA_K8S, ELASTIC), context), kubeflow


def hostile(job, text):
    """Return a job with a text in every place that a recipe or a cluster key fills."""
    monitor = LogMonitor.model_construct(name=text, logPattern=text, stopPattern=text)
    update = {
        "namespace": text,
        "custom_labels": {text: text},
        "annotations": {text: text},
        "service_account_name": text,
        "priority_class_name": text,
        "queue_name": text,
        "node_selector": {text: text},
        "label_selector": LabelSelector.model_construct(required={text: [text]}, preferred={text: [text]}),
        "tolerations": [Toleration.model_construct(key=text, value=text)],
        "command": [text, text],
        "run_policy": RunPolicy.model_construct(workloadMode=text, logMonitoringConfiguration=[monitor]),
        "security_context": SecurityContext.model_construct(procMount=text),
    }
    config = replaced(job.config, "env_vars", {text: text})
    changed = job.settings.model_copy(update=update)
    return dataclasses.replace(job, settings=changed, config=config, image=text, name=text, recipe=text)


@given(text=TEXT)
@example(text="a\x85b")
@example(text="a\u2028b\n")
@example(text="a\n\n")
@example(text=" a\nb\n")
@examples(80)
def test_any_text_stays_in_its_place(jobs, text):
    for job in jobs:
        for found in every_text(BACKEND.render(hostile(job, text), {"config.yaml": "a: 1\n"})["manifests/job.yaml"]):
            check(found, job, text)


def check(found, job, text):
    spec = found["spec"]
    is_kubeflow = "pytorchReplicaSpecs" in spec
    template = (spec["pytorchReplicaSpecs"]["Master"] if is_kubeflow else spec["replicaSpecs"][0])["template"]
    pod = template["spec"]
    (container,) = pod["containers"]
    assert (found["metadata"]["name"], found["metadata"]["namespace"]) == (text, text)
    for metadata in (found["metadata"], template["metadata"]):
        own = {"recipe-launcher/job": text}
        assert metadata["labels"] == {"app": text, "kueue.x-k8s.io/queue-name": text, text: text} | own
        assert metadata["annotations"] == {text: text}
    assert (pod["serviceAccountName"], pod["priorityClassName"]) == (text, text)
    assert pod["nodeSelector"] == {"beta.kubernetes.io/instance-type": job.resources.instance_type, text: text}
    assert pod["tolerations"] == [{"key": text, "value": text}]
    affinity = pod["affinity"]["nodeAffinity"]
    term = {"matchExpressions": [{"key": text, "operator": "In", "values": [text]}]}
    assert affinity["requiredDuringSchedulingIgnoredDuringExecution"] == {"nodeSelectorTerms": [term]}
    assert (container["image"], container["command"]) == (text, [text, text])
    (value,) = (each["value"] for each in container["env"] if each["name"] == text)
    assert arrives(value, {text: "another"}) == text
    assert container["securityContext"] == {"procMount": text}
    assert {"name": "config", "configMap": {"name": f"training-config-{text}"}} in pod["volumes"]
    if not is_kubeflow:
        assert spec["runPolicy"]["workloadMode"] == text
        (monitor,) = spec["runPolicy"]["logMonitoringConfiguration"]
        assert monitor == {"name": text, "logPattern": text, "stopPattern": text}
    assert spec.keys() <= {"nprocPerNode", "elasticPolicy", "runPolicy", "replicaSpecs", "pytorchReplicaSpecs"}


@given(name=TEXT, text=TEXT)
@examples(150)
def test_any_configuration_comes_back_as_it_was(jobs, name, text):
    configs = {"first": text, f"n{name}": text, "last": "a: 1\n"}
    for found in every_text(BACKEND.render(hostile(jobs[0], name), configs)["manifests/configmap.yaml"]):
        assert found["data"].pop("start.sh").startswith("#!")
        assert found["data"] == configs
        assert found.keys() == {"apiVersion", "kind", "metadata", "data"}


@given(
    value=st.dictionaries(
        TEXT.filter(lambda key: len(key) < 150), st.lists(st.one_of(TEXT, st.integers(), st.booleans(), st.none()))
    )
)
@examples(200)
def test_a_value_in_one_line_is_json_and_yaml(value):
    line = yaml_io.dump_flow(value)
    assert len(line.splitlines()) == 1
    for found in every_text(line):
        assert found == value
