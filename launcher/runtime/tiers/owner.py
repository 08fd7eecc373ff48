"""Ownership of a namespace: a mark in each tier, so that two live jobs do not remove each other's checkpoints.

The owner renews its mark. A job that finds another job's mark watches it on its own clock: a mark that changes
belongs to a live job, and one that does not change for its lease is taken over. Restarts of a job share its identity
and take the mark over at once.
"""

import atexit
import contextlib
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from launcher.common import names
from launcher.runtime import process_group
from launcher.runtime.tiers.checkpoint_log import CheckpointLog
from launcher.runtime.tiers.rank_group import Ranks
from launcher.runtime.tiers.shards import TierFailure, translated

LEASE_S = 120.0
"""Seconds for which an unchanged mark remains valid. Our own choice: four renewals."""

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""Source: Kubernetes, Accessing the Kubernetes API from a Pod."""

_HOLDERS: dict[int, str] = {}


class NamespaceTaken(RuntimeError):
    """Another live job owns the namespace."""


class MarkPlace(Protocol):
    """The place where a tier keeps its owner's mark. All methods raise TierFailure if it is unreachable."""

    def begin(self) -> None:
        """Called when the mark is taken for the first time."""

    def mark(self) -> bytes | None:
        """Return the mark; None if there is none."""

    def put_mark(self, data: bytes, replaced: bytes | None) -> bool:
        """Replace a mark, or create the first one; return False if another process did so first."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An owner's mark, whose `beat` grows with each renewal.

    Args:
        lease_s: Seconds for which it remains valid without renewal; 0 if the owner released it.
    """

    owner: str
    holder: str
    beat: int
    lease_s: float

    @staticmethod
    def parse(data: bytes | None) -> "Mark | None":
        """Return the mark stored as `data`; None if there is none, or it is not valid."""
        try:
            return Mark(**json.loads(data or b""))
        except (ValueError, TypeError):
            return None

    def text(self) -> bytes:
        """Return the mark in its stored form."""
        return json.dumps(asdict(self)).encode()


def identity() -> str:
    """Return the identity of this job: the same for its restarts and for a relaunch of its bundle."""
    if given := os.environ.get(names.ENV_CHECKPOINT_OWNER):
        return given
    host = os.uname().nodename
    if NAMESPACE_FILE.exists():
        return f"{NAMESPACE_FILE.read_text(encoding='utf-8').strip()}/{re.sub(r'-[0-9]+$', '', host)}"
    return f"{host}:{names.run_dir().resolve()}"


def holder() -> str:
    """Return the identity of this process."""
    pid = os.getpid()
    return _HOLDERS.setdefault(pid, f"{os.uname().nodename}, process {pid}, {secrets.token_hex(4)}")


class Claim:
    """This job's ownership of a namespace in one tier, which are `what` in messages. Threads may share it."""

    def __init__(self, place: MarkPlace, what: str, lease_s: float = LEASE_S):
        self._place, self._what, self._lease_s = place, what, lease_s
        self._owner, self._lock = identity(), threading.Lock()
        self._renewal: threading.Thread | None = None
        self._ended = threading.Event()

    def hold(self) -> None:
        """Take the mark if it is free, this job's own, or a dead job's; NamespaceTaken if a live job holds it."""
        with self._lock:
            if self._renewal is None:
                self._take()
                self._renewal = threading.Thread(target=self._renew, daemon=True, name="namespace-owner")
                self._renewal.start()
                atexit.register(self.release)
                process_group.when_finished(self.release)  # which skips the former
                return
            found = Mark.parse(self._place.mark())
            if found is None:
                self._take()
            elif not self._is_own(found):
                raise NamespaceTaken(self._refusal(found))

    def release(self) -> None:
        """Release the mark, so that another job need not wait for its lease."""
        self._ended.set()
        with contextlib.suppress(TierFailure, OSError):
            data = self._place.mark()
            if self._is_own(Mark.parse(data)):
                self._put(0, 0.0, data)

    def _take(self) -> None:
        while True:
            data = self._place.mark()
            found = Mark.parse(data)
            if found and found.owner != self._owner and not self._is_abandoned(found, data):
                continue
            if self._put(found.beat + 1 if found else 1, self._lease_s, data):
                return

    def _is_abandoned(self, found: Mark, data: bytes | None) -> bool:
        """Watch another job's mark for its lease; return False if the mark is a different one by then."""
        began = time.monotonic()
        while time.monotonic() - began < found.lease_s:
            time.sleep(min(1.0, found.lease_s / 10))
            now = self._place.mark()
            if now != data:
                newer = Mark.parse(now)
                if newer and newer.holder == found.holder and newer.lease_s:
                    raise NamespaceTaken(self._refusal(newer))
                return False
        return True

    def _is_own(self, found: Mark | None) -> bool:
        return found is not None and (found.owner, found.holder) == (self._owner, holder())

    def _put(self, beat: int, lease_s: float, replaced: bytes | None) -> bool:
        return self._place.put_mark(Mark(self._owner, holder(), beat, lease_s).text(), replaced)

    def _refusal(self, found: Mark) -> str:
        return (
            f"{self._what} belongs to a live job: {found.owner} ({found.holder}); "
            "give this job a different namespace, or stop the other job"
        )

    def _renew(self) -> None:
        while not self._ended.wait(self._lease_s / 4):
            with contextlib.suppress(TierFailure, OSError):
                data = self._place.mark()
                found = Mark.parse(data)
                if found is None or not self._is_own(found):
                    return
                self._put(found.beat + 1, self._lease_s, data)


class Ownership:
    """The ownership of all tiers of a namespace; `places` are those whose mark this rank keeps, by name."""

    def __init__(self, places: Mapping[str, MarkPlace], log: CheckpointLog, ranks: Ranks):
        self._log, self._ranks, self._is_taken, self._places = log, ranks, False, places
        self._claims = {
            name: Claim(place, f"the namespace {log.namespace} in {'memory' if name == 'shared' else name}")
            for name, place in places.items()
        }

    def take(self) -> None:
        """Take the namespace in every tier, once; collective, as is NamespaceTaken.

        An unreachable tier is taken when it is saved to.
        """
        if self._is_taken:
            return
        taken = ""
        for name in self._claims:
            try:
                self.hold(name)
                self._places[name].begin()
            except NamespaceTaken as error:
                taken = str(error)
            except TierFailure as error:
                self._log.warn(0, f"the owner of {name} is unknown: {error}")
        if others := [each for each in self._ranks.gather(taken) if each]:
            raise NamespaceTaken(others[0])
        self._is_taken = True

    def hold(self, name: str) -> None:
        """Ensure that this process holds the mark of a tier; see `Claim.hold`."""
        self._claims[name].hold()


class FileMark:
    """A mark in a file, whose folder is created by the first write."""

    def __init__(self, path: Path):
        self._path = path.absolute()  # a program may change its working directory

    def begin(self) -> None:
        """Do nothing: a listing of a folder shows all leftovers."""

    def mark(self) -> bytes | None:
        with translated():
            return self._path.read_bytes() if self._path.exists() else None

    def put_mark(self, data: bytes, replaced: bytes | None) -> bool:
        with translated():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial = self._path.with_name(f"{self._path.name}.{secrets.token_hex(4)}")
            partial.write_bytes(data)
            try:
                if replaced is None:
                    os.link(partial, self._path)
                    return True
                if self.mark() != replaced:
                    return False
                partial.replace(self._path)
                return True
            except FileExistsError:
                return False
            finally:
                partial.unlink(missing_ok=True)
