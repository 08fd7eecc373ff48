"""A real job of which one rank hangs in a line of the user's script."""

import re

import pytest
from test_rehearsal import timeline_of
from whole_jobs import bundle_of, records, run

pytest.importorskip("hyperpod_elastic_agent", reason="pip install --no-deps hyperpod-elastic-agent==1.1.3")
pytestmark = [pytest.mark.whole_job, pytest.mark.usefixtures("store")]

SCRIPT = """\
from launcher.runtime import elastic
import os, pathlib, time
import torch
from torch import nn

def waits_for_ever():
    while True:
        time.sleep(60)  # the line

place = elastic.join()
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sampler = elastic.StepSampler(64, samples_per_step=8, epochs=1)
data = torch.ones(64, 4)
job = elastic.Job(model, optimizer, sampler=sampler, save_every=1)
hung = pathlib.Path(os.environ["RECIPES_RUN_DIR"], "hung")
for indices in job.steps(sampler):
    if place.rank == 1 and job.step == 4 and not hung.exists():
        hung.touch()
        waits_for_ever()
    job.weigh(model(data[indices]).mean()).backward()
    optimizer.step()
    optimizer.zero_grad()
elastic.leave()
"""


def test_the_report_of_a_hang_names_the_rank_that_lags_and_the_line_it_is_at(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    words = ("recipes=training/custom/elastic_script", "training_cfg.entry_script=train.py", "cluster=local")
    one = (
        "recipes.training_cfg.run.ntasks_per_node=2",
        "recipes.trainer.num_nodes=1",
        "recipes.elastic_policy.max_nodes=1",
    )
    own = "recipes.training_config.training_args.train_batch_size=8"
    limit = "+cluster.hang={expectedRecurringFrequencyInSeconds:5}"
    code, out, err = run(*words, *one, own, limit, cwd=tmp_path)
    assert code == 0, err
    line = SCRIPT.splitlines().index("        time.sleep(60)  # the line") + 1
    place = f"{script}:{line} in waits_for_ever"
    (fault,) = [each for each in timeline_of(tmp_path)["events"] if each["kind"] == "fault"]
    assert re.match(r"hang: no new step for \d+ s; 5 s are allowed; rank 1 \(node 0\) lags: ", fault["message"])
    assert f"rank 1 (node 0) lags: {place}; stacks: run/stacks/attempt-0/report.txt" in fault["message"]
    assert place in out
    report = (bundle_of(tmp_path) / "run/stacks/attempt-0/report.txt").read_text()
    assert f"rank 1 (node 0), innermost call first:\n  {place}\n" in report
    assert "rank 0 (node 0), innermost call first:\n" in report
    attempts = [record["attempt"] for record in records(bundle_of(tmp_path) / "run" / "metrics.jsonl")]
    assert attempts == [0] * 4 + [1] * 4
