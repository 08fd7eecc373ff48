"""Names, quantities, numbers and paths that the API server, the kubelet and the container runtime accept. Pure.

Documented bounds only, each with its source. tests/kubernetes/test_bounds.py compares them with an API server.
"""

import re

from launcher.common.quantities import UnreadableQuantity, amount
from launcher.common.syntax import is_dns_subdomain, mount_fault

_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""Source: Kubernetes, Labels and Selectors: Syntax and character set."""

ANNOTATIONS_LIMIT = 256 << 10
"""Bytes of an object's annotations, keys and values. Source: Kubernetes, ValidateAnnotations."""
OWN_ANNOTATIONS = 1 << 10
"""Bytes reserved for the launcher's own annotations; the longest holds a user's name. Our own choice."""

_HUGE_PAGE = 2 << 20
"""Bytes of a page of hugepages-2Mi."""

_LEAST_BYTES = 1 << 20
"""Of memory: no program starts with less, and who asks for less has left out the unit."""

_UNMOUNTABLE = ("/proc", "/config")
"""Folders that cannot hold a mount: the runtime refuses the first, and the second is the job's, mounted read-only.

Source: runc, checkProcMount.
"""


def is_label_key(text: str) -> bool:
    """Return whether a text is `[dns-prefix/]name`."""
    prefix, slash, name = text.rpartition("/")
    return bool(_LABEL_NAME.fullmatch(name)) and (not slash or is_dns_subdomain(prefix))


def is_label_value(text: str) -> bool:
    """Return whether a text is a label value, which may be empty."""
    return not text or bool(_LABEL_NAME.fullmatch(text))


def is_annotation_key(text: str) -> bool:
    """Return whether a text is a label key in any case: the API converts it to lower case first."""
    return is_label_key(text.lower())


def quantity_fault(resource: str, text: str | int) -> str | None:
    """Return what is wrong with the quantity of a resource; None if nothing is.

    Args:
        resource: `cpu`, `memory` or `hugepages`.
        text: The quantity.

    Source: Kubernetes, Resource Management for Pods and Containers; Manage HugePages.
    """
    try:
        value = amount(text)
    except UnreadableQuantity:
        return "is not a Kubernetes quantity, e.g. 5120Mi"
    if value < 0:
        return "is negative"
    if resource != "cpu" and 0 < value < _LEAST_BYTES:
        return "is less than 1 MiB: without a unit, such as Gi, a quantity is in bytes"
    if resource == "hugepages" and value % _HUGE_PAGE:
        return f"is not a multiple of the page size, 2 MiB; the next one is {-(-value // _HUGE_PAGE) * 2}Mi"
    return None


def mount_path_fault(path: str) -> str | None:
    """Return what is wrong with a mount path in the container; None if nothing is."""
    return mount_fault(path, _UNMOUNTABLE)
