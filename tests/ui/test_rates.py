"""What the page shows of the price of a job."""

import pytest

import launcher
from launcher.api import rates
from launcher.api.job_index import JobIndex
from launcher.job_store import prices, registry
from launcher.model.backend_registry import described
from launcher.model.job_spec import JobHandle, JobState, JobStatus
from launcher.ui import job_page

LLAMA = "fine-tuning/llama/llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora"


@pytest.mark.slow
def test_a_training_job_costs_its_nodes_and_one_here_nothing(tmp_path):
    results = tmp_path / "results"
    words = ["container=me/image:1", "instance_type=ml.p5.48xlarge", f"base_results_dir={results}"]
    paid = launcher.compile(LLAMA, [*words, *described("sm_jobs").examples], cluster="sm_jobs")
    here = launcher.compile("tiny_lm_cpu", {"base_results_dir": str(results)})
    for plan, backend in ((paid, "sm_jobs"), (here, "local")):
        folder, time = plan.write(), "2026-01-02T03:04:05+00:00"
        registry.write(folder, registry.JobRecord(JobHandle(backend, folder.name, folder), "0", time, "ada"))
    rows = {row.cluster: row for row in JobIndex(results).rows()}
    price = prices.shipped("training").per_hour["ml.p5.48xlarge"]
    assert rates.rate(rows["sm_jobs"]) == (price, "USD") and rates.rate(rows["local"]) is None
    status = JobStatus(JobState.RUNNING, 3)
    assert job_page._cost(rows["sm_jobs"], status, None) == [("cost per hour", f"{3 * price:,.2f} USD")]
    assert job_page._cost(rows["local"], status, None) == []
