"""Faults that a scenario injects into a real job, and what the timeline reports of them."""

import pytest
from test_rehearsal import (
    PACED,
    SAMPLES_PER_STEP,
    assert_every_sample_once_an_epoch,
    assert_one_whole_run,
    events,
    sizes_of,
    timeline_of,
)
from whole_jobs import bundle_of, records, run

pytest.importorskip("hyperpod_elastic_agent", reason="pip install --no-deps hyperpod-elastic-agent==1.1.3")
pytestmark = [pytest.mark.whole_job, pytest.mark.usefixtures("store"), pytest.mark.long]

TWO_NODES = ("recipes.trainer.num_nodes=2", "recipes.elastic_policy.faulty_timeout=600")


def faults_of(folder):
    return [each for each in timeline_of(folder)["events"] if each["kind"] == "fault"]


def test_a_hang_and_two_faults_at_one_moment_each_have_their_event_and_cause(tmp_path):
    chain = events(
        "{at:{step:34},hang:{rank:1}}",  # a save, at each tenth step, is given more time
        "{at:{step:80},worker_crash:{rank:0}}",
        "{at:{step:80},node_loss:{node:1,replacement_after:1}}",
    )
    limit = "+cluster.hang={expectedRecurringFrequencyInSeconds:20}"
    code, out, err = run(*PACED, *TWO_NODES, chain, limit, cwd=tmp_path)
    assert code == 0, err
    assert sizes_of(tmp_path) == [(0, 2), (2, 2), (2, 2)]
    first, second = timeline_of(tmp_path)["transitions"][1:]
    assert (first["reason"], first["cause"]) == ("recover", "worker 1 hangs")
    assert second["cause"] == "worker 0 crashes; node 1 is lost; a replacement comes 1 s later"
    causes = {fault["cause"] for fault in faults_of(tmp_path)}
    assert causes >= {"worker 1 hangs", "worker 0 crashes", "node 1 is lost; a replacement comes 1 s later"}
    (hang,) = [fault for fault in faults_of(tmp_path) if fault["cause"] == "worker 1 hangs"]
    assert hang["message"].startswith("hang: no new step for 2")
    assert "fault  hang: no new step for" in out
    assert_every_sample_once_an_epoch(tmp_path)
    assert_one_whole_run(tmp_path)


def test_rows_and_attempts_name_the_same_sizes_when_the_capacity_overtakes_a_stop(tmp_path):
    """4 -> 1 -> 3 within a second: whatever is decided on the way, rows show what was started."""
    chain = events("{at:{step:20},capacity:1}", "{at:{step:22},capacity:3}", "{at:{step:90},capacity:3}")
    code, _, err = run(*PACED, "recipes.trainer.num_nodes=4", chain, cwd=tmp_path)
    assert code == 0, err
    timeline = timeline_of(tmp_path)
    started = [row for row in timeline["transitions"] if row["attempt"] is not None]
    assert [row["to_nodes"] for row in started] == [attempt["nodes"] for attempt in timeline["attempts"]]
    ordered = [
        event["size"]
        for event in records(bundle_of(tmp_path) / "run" / "events.jsonl")
        if event["kind"] == "starting"
    ]
    assert [row["from_nodes"] for row in started] == [0, *ordered[:-1]]


def test_a_job_whose_newest_checkpoint_rots_resumes_from_an_older_one(tmp_path):
    rot = "{at:{step:45},bit_rot:{num_bytes:2000}}"
    code, out, err = run(*PACED, *TWO_NODES, events(rot, "{at:{step:45},worker_crash:{rank:1}}"), cwd=tmp_path)
    assert code == 0, err
    first, second = timeline_of(tmp_path)["attempts"]
    assert first["last_step"] >= 45 and 0 < second["resumed_step"] < 40
    assert timeline_of(tmp_path)["samples_lost"] > SAMPLES_PER_STEP * 5
    assert sizes_of(tmp_path) == [(0, 2), (2, 2)]
    assert_every_sample_once_an_epoch(tmp_path)
    assert_one_whole_run(tmp_path)
