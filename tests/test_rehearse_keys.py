"""The keys below `rehearse`: ranks and steps of a rehearsal, and what a default one leaves out."""

import os

import pytest
from conftest import ELASTIC

LORA = "fine-tuning/llama/llmft_llama3_2_1b_instruct_seq4k_gpu_sft_lora"
LARGE = "fine-tuning/llama/llmft_llama3_3_70b_instruct_seq4k_gpu_sft_fft"
KEY = "recipes.training_config.training_args"


def program(job):
    """Return the words of a job's workers after the module."""
    from launcher.model.family_registry import interface

    return interface(job).workers.program(job)[2:]


def notices(job):
    return {notice.code: notice.message for notice in job.notices}


@pytest.mark.parametrize(
    "words",
    [
        ("rehearse=true", "rehearse.ranks=2"),
        ("rehearse.ranks=2", "rehearse=true"),
        ("rehearse=true", "++rehearse.ranks=2"),
        ("+rehearse.ranks=2",),
        ("rehearse={ranks: 2}",),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("recipe", [LORA, LARGE])
def test_ranks_of_a_rehearsal_are_all_on_one_node(prepare, recipe, words):
    job = prepare(f"recipes={recipe}", *words)
    assert job.is_rehearsal and (job.initial_nodes, job.nproc_per_node) == (1, 2)
    assert job.scales[0].config["trainer"] == {**job.scales[0].config["trainer"], "devices": 2, "num_nodes": 1}
    assert "N165" not in notices(job) and "N146" not in notices(job)


@pytest.mark.parametrize(
    ("words", "trainer", "is_rehearsal"),
    [
        (("rehearse.ranks=2", "rehearse=false"), "published", False),
        (("rehearse=false", "rehearse.steps=9"), "open", True),
        (("rehearse={ranks: 2}", "~rehearse", "+rehearse=true"), "open", True),
    ],
)
def test_the_last_word_decides_and_the_other_one_is_a_notice(prepare, words, trainer, is_rehearsal):
    cluster = ("cluster=k8s", f"cluster.trainer={trainer}", "container=me/image:1")
    job = prepare(f"recipes={LORA}", *cluster, *words)
    assert job.is_rehearsal is is_rehearsal and job.nproc_per_node == 8
    assert "N165" in notices(job)


@pytest.mark.parametrize(
    ("words", "code", "path"),
    [
        (("rehearse.ranks=3",), "E221", f"{KEY}.train_batch_size"),
        (("rehearse.ranks=x",), "E102", "rehearse.ranks"),
        (("rehearse.ranks=0",), "E102", "rehearse.ranks"),
        (("rehearse.ranks=true",), "E102", "rehearse.ranks"),
        (("rehearse={ranks: 2000}",), "E102", "rehearse.ranks"),
        (("rehearse.rank=2",), "E101", "rehearse.rank"),
        (("rehearse.steps=-1",), "E102", "rehearse.steps"),
        (("rehearse=maybe",), "E102", "rehearse"),
        (("rehearse.ranks=2", ELASTIC), "E267", "rehearse.ranks"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_rehearsal_that_cannot_be_is_one_problem(problems, words, code, path):
    (problem,) = problems(f"recipes={LORA}", *words)
    assert (problem.code, problem.path) == (code, path) and problem.where


@pytest.mark.parametrize(
    ("recipe", "words", "steps", "samples"),
    [
        (LORA, (), 15, 26),
        (LARGE, (), 2, 10),
        (LORA, ("rehearse.steps=40",), 40, 71),
        (LORA, ("rehearse.ranks=2",), 30, 53),
        (LORA, ("rehearse.ranks=4", "rehearse.steps=3"), 6, 10),
    ],
)
def test_a_default_rehearsal_is_bounded_and_says_what_it_leaves_out(prepare, recipe, words, steps, samples):
    job = prepare(f"recipes={recipe}", "rehearse=true", *words)
    assert program(job) == ("--rehearse", "--rehearsal-samples", str(samples))
    whole = {LORA: 135, LARGE: 34}[recipe]
    assert notices(job)["N139"].startswith(f"the rehearsal makes {steps} of {whole} steps")


@pytest.mark.parametrize(
    "words",
    [
        ("rehearse.steps=0",),
        ("rehearse.steps=135",),
        ("rehearse=true", ELASTIC),
        ("rehearse=true", "cluster.scenario=worker-crash"),
        ("rehearse=true", "+cluster.events=[{at:{step:20},worker_crash:{rank:0}}]"),
        ("rehearse=true", "cluster=k8s", "cluster.trainer=open", "container=me/image:1"),
    ],
    ids=" ".join,
)
def test_a_rehearsal_that_needs_its_steps_has_no_bound(prepare, words):
    job = prepare(f"recipes={LORA}", *words)
    assert program(job) == ("--rehearse",) and "N139" not in notices(job)


def test_what_is_no_rehearsal_has_no_words_of_one(prepare):
    job = prepare(f"recipes={LORA}", "cluster=k8s")
    assert not job.is_rehearsal and not {"N139", "N146", "N173"} & set(notices(job))


@pytest.mark.parametrize(("cores", "is_slow"), [(1, True), (3, True), (4, False)])
def test_more_ranks_than_twice_the_processors_are_said_to_be_slow_beforehand(prepare, monkeypatch, cores, is_slow):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    found = notices(prepare(f"recipes={LORA}", "rehearse=true"))
    expected = (
        f"8 ranks on {cores} processor{'s' if cores > 1 else ''} are slow: rehearse.ranks=2 rehearses with fewer"
    )
    assert found.get("N146") == (expected if is_slow else None)
