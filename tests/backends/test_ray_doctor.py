"""The examination of a Ray cluster: a real one, and dashboards that do not answer."""

import pytest
from test_ray_backend_jobs import GRPO

from launcher.api.plan import compile as compiled

pytest.importorskip("ray", reason="pip install '.[ray]'")
pytest_plugins = ("ray_fixtures",)
DATA = ("recipes.training_config.data.train_files=/fsx/a", "recipes.training_config.data.val_files=/fsx/b")


def examined(*words):
    lines = {}
    for each in compiled(GRPO.removeprefix("recipes="), ["cluster=ray", *DATA, *words]).doctor():
        lines.setdefault(each.subject, []).append((each.state.value, each.code, each.message))
    return lines


@pytest.mark.whole_job
def test_a_cluster_s_nodes_are_compared_with_the_job(ray_address):
    lines = examined(f"cluster.address={ray_address}", "recipes.trainer.num_nodes=2")
    assert lines["cluster"][0][0] == "ok" and ", Ray 2." in lines["cluster"][0][2]
    for subject in ("versions", "nodes", "code", "clock"):
        assert lines[subject][0][:2] == ("ok", None), lines[subject]
    (nodes,) = examined(f"cluster.address={ray_address}", "recipes.trainer.num_nodes=4")["nodes"]
    assert nodes[:2] == ("failure", "E829")


def test_a_dashboard_that_does_not_answer_is_unknown(closed_port):
    lines = examined(f"cluster.address=http://127.0.0.1:{closed_port}")
    assert lines["cluster"][0][:2] == ("unknown", "E823") and "nodes" not in lines


def test_no_address_is_a_failure(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert examined()["cluster"][0][:2] == ("failure", "E823")
