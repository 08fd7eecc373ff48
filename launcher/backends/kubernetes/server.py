"""Identity of the cluster behind a context. A context is only a name: it may lead to another cluster tomorrow."""

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launcher.backends.kubernetes import api_objects, lenient
from launcher.backends.kubernetes.api_errors import ApiError
from launcher.backends.kubernetes.connection import Connection
from launcher.common.problems import fail

_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Server:
    """A cluster's API server, as far as it is known. Recorded as text.

    Args:
        url: URL it was reached at.
        authority: Start of the sha256 of the certificates it is verified by; "" if unknown.
        uid: Uid of the namespace kube-system, which identifies a cluster; "" if it may not be read.
    """

    url: str
    authority: str = ""
    uid: str = ""

    def __str__(self) -> str:
        named = (("ca", self.authority), ("uid", self.uid))
        return " ".join([self.url, *(f"{name}:{value}" for name, value in named if value)])

    @classmethod
    def from_text(cls, text: str) -> "Server":
        """Parse the text of a record."""
        url, *fields = text.split() or [""]
        named = {name: value for name, _, value in (field.partition(":") for field in fields)}
        return cls(url, named.get("ca", ""), named.get("uid", ""))

    def is_same(self, other: "Server") -> bool:
        """Return whether both are one cluster: by uid, else by certificate authority, else by URL."""
        for mine, theirs in ((self.uid, other.uid), (self.authority, other.authority)):
            if mine and theirs:
                return mine == theirs
        return self.url == other.url


def reached(connection: Connection) -> Server:
    """Return the server that a connection leads to. Sends nothing."""
    authority, place = "", connection.api.configuration.ssl_ca_cert
    if place:
        with suppress(OSError):
            authority = hashlib.sha256(b"".join(Path(place).read_bytes().split())).hexdigest()[:_DIGITS]
    return Server(connection.host, authority)


def identified(connection: Connection) -> Server:
    """Return the server that a connection leads to, with the cluster's uid if this user may read it."""
    found = reached(connection)
    with suppress(ApiError):
        metadata = lenient.mapping(connection.get(api_objects.path("Namespace", "", "kube-system")), "metadata")
        return Server(found.url, found.authority, lenient.text(metadata.get("uid")))
    return found


def require(connection: Connection, recorded: str | None, *, is_strict: bool = False) -> None:
    """Raise a Problem if a connection leads to another cluster than the recorded one.

    Args:
        connection: The cluster that answers now.
        recorded: The server in a job's record; None if it has none.
        is_strict: Request the cluster's uid even if URL and certificate authority match the record.

    Raises:
        ProblemsFound: It is another cluster (E348).
    """
    if not recorded:
        return
    then, now = Server.from_text(recorded), reached(connection)
    if is_strict or (then.url, then.authority) != (now.url, now.authority):
        now = identified(connection)
    if not then.is_same(now):
        raise fail(
            "E348",
            "cluster.kube_context",
            f"the job was submitted to {then}; the context now leads to {now}",
            value=connection.context,
            remedy="point the context at the job's cluster again; to run the recipe on this one, render it again",
        )
