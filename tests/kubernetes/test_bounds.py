"""Bounds of names, quantities, numbers and paths, compared with a real API server: it accepts what we accept, and
refuses what we refuse, unless a node and not the server is the reason."""

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import LLAMA_K8S
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from manifest_schemas import templates
from pydantic import TypeAdapter, ValidationError
from test_manifest_bounds import FINE

from launcher.backends.kubernetes.api_objects import path
from launcher.backends.kubernetes.connection import ApiError
from launcher.backends.kubernetes.job_options import AnyUserId, SecurityContext, Toleration
from launcher.backends.kubernetes.rules import bounds
from launcher.common import yaml_io
from launcher.common.quantities import amount
from launcher.common.syntax import is_dns_label, is_dns_subdomain, is_image, path_fault
from launcher.config.compose import compose
from launcher.model.recipe import SecretKeyRef
from launcher.planning.check import examine

pytest_plugins = ("cluster_fixtures",)

INVALID, MALFORMED = 422, 400
MOUNT = {"name": "extra", "mountPath": "/extra"}


@dataclass(frozen=True, slots=True)
class Bound:
    """One bound.

    Args:
        values: What is tried.
        is_accepted: Our own opinion.
        place: Puts a value into a pod template.
        is_stricter: Whether we refuse more than the server does, as a node or a scheduler would.
    """

    values: st.SearchStrategy[Any]
    is_accepted: Callable[[Any], bool]
    place: Callable[[dict[str, Any], Any], None]
    is_stricter: bool = False


def texts(letters: str, *known: str, longest: int = 10) -> st.SearchStrategy[str]:
    """Return texts of few letters, which often are near a bound, and known ones."""
    return st.one_of(st.text(letters, max_size=longest), st.sampled_from(known or ("a",)))


def container(template):
    return template["spec"]["containers"][0]


def has_type(kind: Any) -> Callable[[Any], bool]:
    adapter = TypeAdapter(kind)

    def fits(value: Any) -> bool:
        try:
            adapter.validate_python(value)
        except ValidationError:
            return False
        return True

    return fits


def put_volume(template, name="extra", path="/a", mount="/extra"):
    template["spec"]["volumes"].append({"name": name, "hostPath": {"path": path}})
    container(template)["volumeMounts"].append({"name": name, "mountPath": mount})


def put_claim(template, name):
    template["spec"]["volumes"].append({"name": "extra", "persistentVolumeClaim": {"claimName": name}})
    container(template)["volumeMounts"].append(MOUNT)


def put_quantity(resource):
    def put(template, text):
        for kind in ("limits", "requests"):
            container(template)["resources"][kind] |= {"memory": "1Gi", resource: text}

    return put


def is_number(text):
    """Return whether a text begins as a number: the server takes a suffix alone for nought, which nobody means."""
    return re.match(r"[+-]?\.?[0-9]", text) is not None


def put_secret(template, reference):
    container(template)["env"].append({"name": "A", "valueFrom": {"secretKeyRef": reference}})


def is_toleration(value):
    """Return whether the types and the rules accept a toleration."""
    if not has_type(Toleration)(value):
        return False
    return not problems(f"cluster.tolerations=[{flow(value)}]")


def is_context(value):
    if not has_type(SecurityContext)(value):
        return False
    return not problems(f"cluster.security_context={flow(value)}")


def flow(value: Any) -> str:
    """Return a value as an override writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def problems(override: str) -> list[Any]:
    return examine(compose([*LLAMA_K8S, override], Path("/nowhere")))[1]


NAMES = "ab-.A_"
KEYS = "aA-_./"
CAPABILITIES = st.lists(st.sampled_from(["SYS_ADMIN", "ALL", "NET_ADMIN"]), min_size=1, max_size=2)
PROFILES = st.fixed_dictionaries(
    {"type": st.sampled_from(["RuntimeDefault", "Localhost", "Unconfined", "Odd"])},
    optional={"localhostProfile": st.sampled_from(["a/b.json", "../a", "/a", "a"])},
)
CONTEXTS = st.fixed_dictionaries(
    {},
    optional={
        "privileged": st.sampled_from([True, False, "maybe"]),
        "allowPrivilegeEscalation": st.booleans(),
        "runAsUser": st.sampled_from([1, 1000, -1, 2**31 - 1, 2**31, 2**63, "root"]),
        "runAsGroup": st.sampled_from([0, -1, 2**31]),
        "runAsNonRoot": st.booleans(),
        "readOnlyRootFilesystem": st.booleans(),
        "capabilities": st.fixed_dictionaries({"add": CAPABILITIES}),
        "seccompProfile": PROFILES,
    },
).filter(bool)
TOLERATIONS = st.fixed_dictionaries(
    {},
    optional={
        "key": st.sampled_from(["a", "example.com/a", "a b", "Example.com/a", "a/b/c", "a" * 64]),
        "operator": st.sampled_from(["Exists", "Equal", "In"]),
        "value": st.sampled_from(["a", "a b", "", "a" * 63, "a" * 64, "-a"]),
        "effect": st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule", "Evict"]),
        "tolerationSeconds": st.sampled_from([0, 5, 2**31, 2**63 - 1, 2**63]),
    },
).filter(bool)

BOUNDS = {
    "label_keys": Bound(
        texts(KEYS, "a" * 63, "a" * 64, f"{'a.' * 126}a/b", f"{'a.' * 127}a/b"),
        bounds.is_label_key,
        lambda template, text: template["metadata"]["labels"].update({text: "a"}),
    ),
    "label_values": Bound(
        texts("aA-_.", "a" * 63, "a" * 64),
        bounds.is_label_value,
        lambda template, text: template["metadata"]["labels"].update({"extra": text}),
    ),
    "annotation_keys": Bound(
        texts(KEYS, "a" * 63, "a" * 64, "Example.com/a"),
        bounds.is_annotation_key,
        lambda template, text: template["metadata"].update(annotations={text: "a b"}),
    ),
    "node_labels": Bound(
        texts("aA-_.", "a" * 64),
        bounds.is_label_value,
        lambda template, text: template["spec"]["nodeSelector"].update({"extra": text}),
    ),
    "volume_names": Bound(
        texts(NAMES, "a" * 63, "a" * 64, "config", "shm").filter(lambda name: name not in ("config", "shm")),
        is_dns_label,
        lambda template, text: put_volume(template, name=text),
    ),
    "service_accounts": Bound(
        texts(NAMES, "a" * 253, "a" * 254).filter(bool),
        is_dns_subdomain,
        lambda template, text: template["spec"].update(serviceAccountName=text),
    ),
    "priority_classes": Bound(
        texts(NAMES, "a" * 253, "a" * 254).filter(bool),
        is_dns_subdomain,
        lambda template, text: template["spec"].update(priorityClassName=text),
    ),
    "claims": Bound(texts(NAMES, "a" * 253), is_dns_subdomain, put_claim, is_stricter=True),
    "host_paths": Bound(
        texts("/.a", "/a/../b", ""),
        lambda place: path_fault(place) is None,
        lambda template, path: put_volume(template, path=path),
        is_stricter=True,
    ),
    "mount_paths": Bound(
        texts("/.a:", "/", "/proc", "").filter(lambda place: place not in ("/config", "/dev/shm")),
        lambda place: bounds.mount_path_fault(place) is None,
        lambda template, path: put_volume(template, mount=path),
        is_stricter=True,
    ),
    **{
        resource: Bound(
            texts("0123.-+eEmkKMGi", "5Mi", "6Mi", "1", "2097152", "1e30", "-1", "0").filter(is_number),
            lambda text, name=name: bounds.quantity_fault(name, text) is None,
            put_quantity(resource),
            # Servers before 1.21 leave a part of a page to the kubelet, and all take a memory without a unit.
            is_stricter=name != "cpu",
        )
        for resource, name in (("cpu", "cpu"), ("memory", "memory"), ("hugepages-2Mi", "hugepages"))
    },
    "images": Bound(
        texts("aA:/@.-_ 1", " a", "a ", "", f"a@sha256:{'a' * 64}"),
        is_image,
        lambda template, text: container(template).update(image=text),
        is_stricter=True,
    ),
    "secrets": Bound(
        st.fixed_dictionaries({"name": texts(NAMES), "key": texts("aA-_.", "..a", ".", ".a", "a" * 253, "a" * 254)}),
        has_type(SecretKeyRef),
        put_secret,
        is_stricter=True,  # in the name: any object that exists has a good one
    ),
    "secret_keys": Bound(
        st.fixed_dictionaries({"name": st.just("a"), "key": texts("aA-_. ", "..a", ".", ".a", "a" * 253, "a" * 254)}),
        has_type(SecretKeyRef),
        put_secret,
    ),
    "variables": Bound(
        st.sampled_from(["A", "_a1", "a", "A-B", "A.B", "1A", "..A", "A B"]),
        lambda name: not problems(f"+env_vars={{{name}: a}}"),
        lambda template, name: container(template)["env"].append({"name": name, "value": "a"}),
        is_stricter=True,  # a shell cannot export names with - and .
    ),
    "groups": Bound(
        st.sampled_from([0, 1, -1, 2**31 - 1, 2**31, 2**63, "a"]),
        has_type(AnyUserId),
        lambda template, group: template["spec"].update(securityContext={"fsGroup": group}),
    ),
    "contexts": Bound(
        CONTEXTS,
        is_context,
        lambda template, context: container(template).update(securityContext=context),
        is_stricter=True,  # SYS_ADMIN allows escalation whatever is said of it; the server reads only CAP_SYS_ADMIN
    ),
    "tolerations": Bound(
        TOLERATIONS, is_toleration, lambda template, one: template["spec"].update(tolerations=[one])
    ),
}


@pytest.fixture
def pod(bundle):
    """Return the pod template of a job."""
    return templates(yaml_io.load(bundle(is_elastic=False).files["manifests/job.yaml"]))[0]


def refusal(connection, space, template):
    """Return why the server refuses a pod template; None if it does not."""
    body = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"generateName": "x-"}, "template": template}
    try:
        connection.ask(f"/api/v1/namespaces/{space.name}/podtemplates", body)
    except ApiError as error:
        assert error.status in (INVALID, MALFORMED), error
        return error.message
    return None


@pytest.mark.parametrize("override", FINE, ids=lambda value: value[:60])
def test_the_server_accepts_values_at_the_bounds(space, bundle, override):
    job = yaml_io.load(bundle(override).files["manifests/job.yaml"])
    connection = space.connection()
    assert [refusal(connection, space, template) for template in templates(job)] == [None]
    connection.apply(path(job["kind"], space.name, job["metadata"]["name"]), job, "test")


@pytest.mark.parametrize("name", BOUNDS)
def test_we_and_the_server_agree(space, pod, name):
    bound, connection = BOUNDS[name], space.connection()

    @settings(max_examples=60, suppress_health_check=list(HealthCheck), database=None)
    @given(bound.values)
    def compare(value):
        template = copy.deepcopy(pod)
        bound.place(template, value)
        ours, theirs = bound.is_accepted(value), refusal(connection, space, template) is None
        assert theirs or not ours, f"the server refuses {value!r}"
        assert ours or not theirs or bound.is_stricter, f"the server accepts {value!r}"

    compare()


def test_the_server_reads_every_quantity_as_the_launcher_does(space):
    numbers = ("0", "1", "1.5", "0.0000000001", "123456789012.78", ".3", "+2.")
    suffixes = ("", *"numkMG", "Ki", "Mi", "e3", "E-2")
    texts = [f"{number}{suffix}" for number in numbers for suffix in suffixes]
    # Not as resources of a container, which the server rounds up to thousandths.
    volumes = [{"name": f"v{i}", "emptyDir": {"sizeLimit": text}} for i, text in enumerate(texts)]
    template = {"spec": {"containers": [{"name": "c", "image": "i"}], "volumes": volumes}}
    where = f"/api/v1/namespaces/{space.name}/podtemplates"
    body = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "quantities"}, "template": template}
    kept = space.admin.ask(where, body)["template"]["spec"]["volumes"]
    read = [each["emptyDir"]["sizeLimit"] for each in kept]
    assert [amount(text) for text in texts] == [amount(text) for text in read]
    assert read != texts  # the server has written them in its own form
