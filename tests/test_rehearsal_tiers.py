"""A job with tiers loses nodes, with real agents: what it goes on from."""

import json
import uuid

import pytest
from whole_jobs import ARGS, bundle_of, curve, left_behind, losses_in_the_model, records, run, trained_alone

from launcher.common import names

pytest.importorskip("hyperpod_elastic_agent", reason="pip install --no-deps hyperpod-elastic-agent==1.1.3")
pytestmark = [pytest.mark.whole_job, pytest.mark.usefixtures("store")]

STEPS, EVERY, LOST_AT = 50, 20, 27
# Of this run alone: another one may share this machine's memory.
NAMESPACE = f"rehearsed-tiers-{uuid.uuid4().hex[:12]}"
# Saves of a neighbour's replica keep pace with steps of 0.15 s.
PACE = f"{ARGS}.min_step_seconds"
STATIC = (
    "recipes.elastic_policy=null",
    "recipes.scale_config=null",
    "recipes.trainer.num_nodes=2",
    "recipes.training_config.model_config.hidden_size=32",
    f"{PACE}=0.15",
    f"{ARGS}.max_epochs=4",
)
TIERS = (
    f"+recipes.checkpointing={{namespace: {NAMESPACE}, memory: {{frequency: 1, retention: 2}}, "
    f"persistent: {{frequency: {EVERY}, retention: 2, path: kept}}}}"
)


def losing(*nodes):
    events = [f"{{at:{{step:{LOST_AT}}},node_loss:{{node:{node},replacement_after:1}}}}" for node in nodes]
    return f"+cluster.events=[{','.join(events)}]"


def loaded_from(folder):
    """Return tier and step of each load, in order."""
    told = records(bundle_of(folder) / "run" / names.CHECKPOINTS_FILE)
    return [(record["tier"], record["step"], record["detail"]) for record in told if record["event"] == "loaded"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the losses of the same training in a single process."""
    return trained_alone(tmp_path_factory, "rehearsal-tiers", *STATIC, f"{PACE}=0")


def assert_whole(folder, alone):
    assert losses_in_the_model(bundle_of(folder) / "run") == pytest.approx(alone, abs=1e-5)
    assert sorted(step for step, _ in curve(folder)) == list(range(1, STEPS + 1))
    assert left_behind(folder) == []
    timeline = json.loads((bundle_of(folder) / "run" / "timeline.json").read_text())
    assert [(each["from_nodes"], each["to_nodes"]) for each in timeline["transitions"]] == [(0, 2), (2, 2)]
    assert [str(path) for path in names.SHARED_MEMORY.glob(f"recipes-node-*/{NAMESPACE}/**")] == []


def test_after_a_lost_node_the_job_goes_on_from_its_neighbours_replica(tmp_path, alone):
    code, _, err = run(*STATIC, TIERS, losing(1), cwd=tmp_path)
    assert code == 0, err
    ((tier, step, detail),) = loaded_from(tmp_path)
    assert tier == "replica" and LOST_AT - 2 <= step <= LOST_AT + 3 and not detail
    assert_whole(tmp_path, alone)
    assert {step for step, _ in curve(tmp_path, "checkpoint/memory/save_seconds")} >= set(range(1, LOST_AT - 2))
    assert [step for step, _ in curve(tmp_path, "checkpoint/replica/load_seconds")] == [step]


def test_after_both_nodes_are_lost_the_job_goes_on_from_the_persistent_tier_and_says_so(tmp_path, alone):
    code, out, err = run(*STATIC, TIERS, losing(0, 1), cwd=tmp_path)
    assert code == 0, err
    ((tier, step, detail),) = loaded_from(tmp_path)
    assert (tier, step) == ("persistent", EVERY)
    assert "was published, but no tier has it any more" in detail and f"resumes from step {EVERY}" in out
    assert_whole(tmp_path, alone)
