"""Notices are rules: each is registered once, and a launch prints them in one order."""

from pathlib import Path

from launcher import rules
from launcher.config.compose import compose
from launcher.planning.check import check
from launcher.planning.job_planner import plan

LLAMA_K8S = (
    "recipes=fine-tuning/llama/llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora",
    "cluster=k8s",
    "container=registry.example/image:1",
    "instance_type=ml.p5.48xlarge",
)


def test_every_notice_has_a_code_a_reason_and_its_place_in_the_order():
    found = rules.all_notice_rules()
    assert [each.code for each in found] == list(rules.ORDER)
    assert all(each.code.startswith("N") and each.reason.endswith(".") and each.source for each in found)


def test_a_cluster_has_the_notices_of_its_own_and_of_every_cluster():
    codes = {name: {each.code for each in rules.notice_rules_for(name)} for name in ("local", "k8s", "contract")}
    assert "N165" in codes["local"] & codes["k8s"] & codes["contract"]
    assert "N117" in codes["k8s"] and "N117" not in codes["local"] | codes["contract"]
    assert {"N136", "N170"} <= codes["contract"] and "N136" not in codes["k8s"]


def test_planning_only_plans_and_notices_follow(prepare, context):
    overrides = (*LLAMA_K8S, "recipes.trainer.num_nodes=3", "recipes.trainer.num_nodes=1")
    checked = check(compose(overrides, Path(context.cwd), context.suffix))
    job = plan(checked, context)
    assert job.notices == ()
    found = rules.notices(checked, job)
    assert found == prepare(*overrides).notices
    codes = [notice.code for notice in found]
    assert codes[0] == "N165" and codes == sorted(codes, key=rules.ORDER.index)
