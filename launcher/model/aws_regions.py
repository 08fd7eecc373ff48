"""Regions of AWS, and the one that an image's address names."""

import re
from collections.abc import Iterator

_KNOWN = frozenset(
    f"{area}-{place}-{number}"
    for area, places in {
        "af": {"south": 1},
        "ap": {"east": 2, "northeast": 3, "south": 2, "southeast": 7},
        "ca": {"central": 1, "west": 1},
        "cn": {"north": 1, "northwest": 1},
        "eu": {"central": 2, "north": 1, "south": 2, "west": 3},
        "eu-isoe": {"west": 1},
        "eusc-de": {"east": 1},
        "il": {"central": 1},
        "me": {"central": 1, "south": 1},
        "mx": {"central": 1},
        "sa": {"east": 1},
        "us": {"east": 2, "west": 2},
        "us-gov": {"east": 1, "west": 1},
        "us-iso": {"east": 1, "west": 1},
        "us-isob": {"east": 1, "west": 1},
        "us-isof": {"east": 1, "south": 1},
    }.items()
    for place, count in places.items()
    for number in range(1, count + 1)
)
"""Source: botocore 1.44.5, data/endpoints.json, November 2026. A newer botocore beside this program adds to it."""


def of_image(image: str) -> str | None:
    """Return the region that an image's address names; None for an image of another registry.

    Source: Amazon ECR, Private registries: registry endpoints.
    """
    pattern = r"(?:https://)?\d{12}\.dkr[.-]ecr(?:-fips)?\.([a-z0-9-]+)\.(?:amazonaws\.|on\.aws)"
    found = re.match(pattern, image) if "ecr" in image else None
    return found[1] if found else None


def exists(region: str) -> bool:
    """Return whether a region exists, as far as is known here."""
    return region in _KNOWN or region in _of_botocore()


def known() -> list[str]:
    """Return the regions known here."""
    return sorted(_KNOWN)


def _of_botocore() -> Iterator[str]:
    try:
        import botocore.session  # optional, and read only for a region that is not in the table
    except ImportError:
        return
    session = botocore.session.Session()
    for partition in session.get_available_partitions():
        yield from session.get_available_regions("ec2", partition)
