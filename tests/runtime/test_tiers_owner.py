"""Two jobs with one namespace: the second is refused while the first lives, and adopts what a dead one leaves."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT
from leaving_scripts import ENDS, store_of
from memory_service import memory_service
from test_tiers import alone, load, save_steps, steps_in
from test_tiers_order import on

from launcher.common import names
from launcher.runtime.tiers import owner
from launcher.runtime.tiers.checkpoint_log import CheckpointLog
from launcher.runtime.tiers.checkpoint_manager import CheckpointManager, StoreTier
from launcher.runtime.tiers.memory_service import MemoryService
from launcher.runtime.tiers.owner import Claim, FileMark, Mark, NamespaceTaken
from launcher.runtime.tiers.s3_store import Bucket
from launcher.runtime.tiers.stores import Folder

pytest_plugins = ("s3_server",)
pytestmark = pytest.mark.usefixtures("own_folders")
LEASE_S = 0.4


class OtherJob:
    """Another job's process, as far as marks show it: an identity and a holder of its own."""

    def __init__(self, monkeypatch, name="other"):
        self._monkeypatch, self._name = monkeypatch, name

    def __enter__(self):
        self._patched = self._monkeypatch.context()
        patched = self._patched.__enter__()
        patched.setenv(names.ENV_CHECKPOINT_OWNER, self._name)
        patched.setattr(owner, "holder", lambda: f"elsewhere, {self._name}")

    def __exit__(self, *error):
        self._patched.__exit__(*error)


def live_mark(place, monkeypatch) -> None:
    """Let another job's mark be renewed whenever it is looked at."""
    mark = place.mark
    beats = iter(range(1, 10**6))

    def beating():
        return Mark("bundle-of-theirs", "host-7, process 12, ab", next(beats), 120.0).text()

    assert mark() is None
    monkeypatch.setattr(place, "mark", beating)


@pytest.fixture(params=["folder", "bucket", "service"])
def store(request):
    if request.param == "folder":
        yield Folder(Path("store"))
    elif request.param == "bucket":
        bucket = request.getfixturevalue("bucket")
        yield Bucket(bucket.name, "ns/", bucket.endpoint)
    else:
        pytest.importorskip("amzn_sagemaker_checkpointing")
        with memory_service() as running:
            yield MemoryService("ns", 0, 1, 2, running.address)


@pytest.mark.slow
def test_a_second_live_job_is_refused_and_names_the_owner(store, monkeypatch):
    live_mark(store, monkeypatch)
    manager = CheckpointManager(None, [StoreTier(store, 1, 2)], CheckpointLog("ns", 0))
    for use in (lambda: load(manager), lambda: save_steps(manager, 1), manager.clear):
        with pytest.raises(NamespaceTaken, match="belongs to a live job: bundle-of-theirs .host-7"):
            use()
    assert steps_in(store) == []


@pytest.mark.slow
def test_the_mark_of_a_job_that_is_gone_is_adopted_after_its_lease(store):
    assert store.put_mark(Mark("theirs", "gone", 3, LEASE_S).text(), None)
    assert not store.put_mark(b"late", None)
    manager = CheckpointManager(None, [StoreTier(store, 1, 2)], CheckpointLog("ns", 0))
    save_steps(manager, 1, 2)
    assert load(manager)[1] == 2.0
    assert Mark.parse(store.mark()).owner == owner.identity()


@pytest.mark.slow
@pytest.mark.parametrize("mark", [Mark("theirs", "gone", 3, 0.0).text(), b"torn {"], ids=["given-back", "torn"])
def test_a_mark_that_was_given_back_or_is_torn_is_free_at_once(store, mark):
    assert store.put_mark(mark, None)
    Claim(store, "it").hold()
    assert Mark.parse(store.mark()).owner == owner.identity()


def test_a_restart_of_the_same_job_adopts_at_once_and_its_old_process_saves_no_more(capsys):
    store = Folder(Path("store"))
    first = on(store)
    save_steps(first, 1)
    mark = Mark.parse(store.mark())
    restarted = Mark(mark.owner, "another process", mark.beat + 1, 120.0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, "holder", lambda: restarted.holder)
        began = time.monotonic()
        again = on(store)
        assert load(again)[1] == 1.0 and time.monotonic() - began < owner.LEASE_S
    save_steps(first, 2)
    assert steps_in(store) == [1]
    assert "persistent failed: NamespaceTaken" in capsys.readouterr().out


@pytest.mark.slow
def test_jobs_of_other_nodes_memory_are_refused_too(monkeypatch):
    manager = alone()
    live_mark(manager._memory.memory, monkeypatch)
    with pytest.raises(NamespaceTaken, match="the namespace ns in memory belongs to a live job"):
        save_steps(manager, 1)


def test_a_mark_is_renewed_and_given_back():
    place = FileMark(Path(".ns.owner"))
    claim = Claim(place, "it", lease_s=0.2)
    claim.hold()
    first = Mark.parse(place.mark())
    while Mark.parse(place.mark()).beat == first.beat:
        time.sleep(0.01)
    claim.release()
    assert json.loads(place.mark())["lease_s"] == 0.0
    with OtherJob(pytest.MonkeyPatch()):
        Claim(place, "it").hold()
        assert Mark.parse(place.mark()).owner == "other"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "bucket", "service"])
def test_the_documented_end_of_a_script_gives_the_mark_back_and_a_restart_does_not(kind, request, monkeypatch):
    with contextlib.ExitStack() as running:
        place = str(Path("store").resolve())
        if kind == "bucket":
            bucket = request.getfixturevalue("bucket")
            place = f"{bucket.name} {bucket.endpoint}"
        elif kind == "service":
            pytest.importorskip("amzn_sagemaker_checkpointing")
            place = running.enter_context(memory_service()).address
        folders = (ROOT, ROOT / "tests", ROOT / "tests/engines", ROOT / "tests/runtime")
        ended = subprocess.run(
            [sys.executable, ROOT / "tests/runtime/leaving_scripts.py", kind, place],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))},
            stdout=subprocess.PIPE,
            check=True,
        )
        assert json.loads(ended.stdout.splitlines()[-1]) == [exit_code for exit_code, _ in ENDS]
        stores = [store_of(kind, place, end) for end in range(len(ENDS))]
        assert [Mark.parse(store.mark()).lease_s == 0 for store in stores] == [True, False, False]
        with OtherJob(monkeypatch):
            Claim(stores[0], "the namespace").hold()


def test_managers_of_one_process_share_a_namespace():
    store = Folder(Path("store"))
    first, second = on(store), on(store)
    save_steps(first, 1)
    save_steps(second, 2)
    save_steps(first, 3)
    assert steps_in(store) == [2, 3]
