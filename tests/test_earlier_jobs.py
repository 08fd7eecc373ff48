"""`after=…`: its value, and where it works."""

import pytest
from conftest import LLAMA_K8S

from launcher.model.earlier_jobs import Wait, waits
from launcher.model.job_spec import JobState


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, []),
        ("train", [("ok", "train")]),
        ("any:train", [("any", "train")]),
        ("results/train-x1y2z, notok:b", [("ok", "results/train-x1y2z"), ("notok", "b")]),
        (["a,b", "any:c", "any:c"], [("ok", "a,b"), ("any", "c")]),
        ("never:train", [("ok", "never:train")]),
    ],
    ids=["none", "one", "condition", "text", "list", "part-of-the-name"],
)
def test_the_jobs_to_wait_for(value, expected):
    assert [(each.condition, each.name) for each in waits(value)] == expected


@pytest.mark.parametrize("value", ["", "any:", "a,,b", ["a", ""], "a\nb"])
def test_a_name_that_is_none_is_refused(value):
    with pytest.raises(ValueError, match="must name jobs"):
        waits(value)


@pytest.mark.parametrize(
    ("condition", "states"),
    [("ok", {"succeeded"}), ("any", {"succeeded", "failed", "cancelled"}), ("notok", {"failed", "cancelled"})],
)
def test_an_end_is_as_required_or_not(condition, states):
    ended = [state for state in JobState if state.is_final]
    assert {state.value for state in ended if Wait(condition, "a").is_fulfilled_by(state)} == states


@pytest.mark.parametrize("words", [("recipes=training/tiny/tiny_lm_cpu",), LLAMA_K8S], ids=["local", "k8s"])
def test_without_a_queue_nothing_waits(problems, words):
    (problem,) = problems(*words, "after=train")
    assert (problem.code, problem.path, problem.allowed) == ("E450", "after", "cluster=slurm")


def test_a_faulty_value_is_a_problem(problems):
    (problem,) = problems("recipes=training/tiny/tiny_lm_cpu", "after=[a,'']")
    assert (problem.code, problem.path) == ("E102", "after")
    assert "notok:JOB" in str(problem)
