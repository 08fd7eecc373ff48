"""Where a batch that cannot be dealt out is at fault, and what to type instead."""

import re
import shlex
from pathlib import Path

import pytest
from conftest import CACHE, ELASTIC, LLAMA_K8S

from launcher.common.problems import Problem
from launcher.config.compose import compose
from launcher.model.base_model import MOST_SAMPLES
from launcher.planning.check import examine

ARGS = "recipes.training_config.training_args"
BATCH, MICRO = f"{ARGS}.train_batch_size", f"{ARGS}.micro_train_batch_size"
AUTO = "++recipes.scale_config=auto plans it"


def at(nodes: int, key: str) -> str:
    return f"recipes.scale_config.{nodes}.training_config.training_args.{key}"


def dealt(path: str, num_small: int, small: int, large: int) -> str:
    """Return the override of an uneven batch."""
    shares = f"small_local_batch_size: {small}, large_local_batch_size: {large}"
    groups = f"num_dp_groups_with_small_batch_size: {num_small}"
    return f'"++{path}uneven_batch={{use_uneven_batch: true, {groups}, {shares}}}"'


REMEDIES = {
    "next batches, or unequal shares": (
        (f"{BATCH}=12",),
        (BATCH, 12),
        f"{BATCH}=8 or {BATCH}=16, or {dealt(f'{ARGS}.', 4, 1, 2)}; or {AUTO}",
    ),
    "fewer samples than ranks": ((f"{BATCH}=3",), (BATCH, 3), f"{BATCH}=8"),
    "the batch divides without the micro batch": ((f"{MICRO}=2",), (BATCH, 8), f"{MICRO}=1; or {AUTO}"),
    "no batch that may be typed": (
        (f"{BATCH}=12", f"{MICRO}={MOST_SAMPLES}"),
        (BATCH, 12),
        f"{dealt(f'{ARGS}.', 4, 1, 2)}; or {AUTO}",
    ),
    "a size's own micro batch": (
        (ELASTIC, f"++{at(2, 'micro_train_batch_size')}=5"),
        (at(2, "train_batch_size"), 128),
        f"{at(2, 'micro_train_batch_size')}=4",
    ),
    "a size without a batch of its own": (
        (ELASTIC, f"++{at(5, 'learning_rate')}=1"),
        ("recipes.scale_config.5", 8),
        f"++{at(5, 'train_batch_size')}=40",
    ),
    "uneven shares of too few samples": (
        (ELASTIC, f"{at(3, 'train_batch_size')}=20"),
        (at(3, "uneven_batch"), None),
        f"{at(3, 'train_batch_size')}=128",
    ),
    "uneven shares where equal ones exist": (
        (ELASTIC, f"{at(3, 'train_batch_size')}=120"),
        (at(3, "uneven_batch"), None),
        f"{at(3, 'uneven_batch')}.use_uneven_batch=false: 120 divides evenly over 24 ranks",
    ),
    "uneven shares of another batch": (
        (ELASTIC, f"{at(3, 'train_batch_size')}=121"),
        (at(3, "uneven_batch"), None),
        f"{dealt(at(3, ''), 23, 5, 6)} gives 121",
    ),
}


@pytest.mark.parametrize(("overrides", "where", "remedy"), REMEDIES.values(), ids=REMEDIES)
def test_a_batch_that_does_not_divide_is_offered_its_remedies(problems, overrides, where, remedy):
    (problem,) = problems(*LLAMA_K8S, *overrides)
    assert ((problem.path, problem.value), problem.remedy) == (where, remedy)


@pytest.mark.parametrize(
    ("micro", "remedy"),
    [
        ((), f"{BATCH}=128; or {AUTO}"),
        ((f"{MICRO}={MOST_SAMPLES}",), f"{BATCH}=128 {MICRO}=1; or {AUTO}"),
    ],
    ids=["a batch for all sizes", "a batch and a micro batch for all sizes"],
)
def test_a_batch_that_divides_at_no_size_is_offered_one_that_does(problems, micro, remedy):
    problem, _ = problems(*LLAMA_K8S, ELASTIC, f"{BATCH}=100", *micro)
    assert problem.remedy == remedy


def test_several_sizes_of_a_batch_that_divides_get_the_base_micro_batch(problems):
    problem, *others = problems(*LLAMA_K8S, ELASTIC, f"{MICRO}=5")
    assert (problem.path, problem.remedy) == (at(1, "train_batch_size"), f"{MICRO}=1; or {AUTO}")


def test_an_uneven_batch_names_the_keys_that_it_lacks(problems):
    uneven = "{use_uneven_batch: true, small_local_batch_size: 1, large_local_batch_size: 2}"
    (problem,) = problems(*LLAMA_K8S, f"++{ARGS}.uneven_batch={uneven}")
    assert (problem.code, problem.message) == ("E222", "lacks num_dp_groups_with_small_batch_size")


def test_a_batch_that_fixed_shares_refuse_is_offered_theirs(problems):
    even, uneven = problems(*LLAMA_K8S, ELASTIC, f"{BATCH}=7")
    assert (even.code, uneven.code) == ("E221", "E223")
    assert even.remedy == uneven.remedy == f"{BATCH}=128"


SCRIPT = ("recipes=training/custom/script", "cluster=k8s", "container=img:1", "training_cfg.entry_script=/a.py")
OF_SCRIPT = (*SCRIPT, "training_cfg.run.ntasks_per_node=8")
POLICY, STEP = "recipes.elastic_policy", "++recipes.elastic_policy.replica_increment_step=3"
PLANNED = (ELASTIC, "++recipes.scale_config=auto")
STARTS = {
    "static": LLAMA_K8S,
    "static on three nodes": (*LLAMA_K8S, "recipes.trainer.num_nodes=3"),
    "static uneven": (*LLAMA_K8S, f"++{ARGS}.uneven_batch.use_uneven_batch=true"),
    "elastic": (*LLAMA_K8S, ELASTIC),
    "few sizes": (*LLAMA_K8S, ELASTIC, f"{POLICY}.max_nodes=2"),
    "planned": (*LLAMA_K8S, *PLANNED),
    "planned steps": (*LLAMA_K8S, *PLANNED, STEP, f"{POLICY}.max_nodes=9"),
    "steps": (*LLAMA_K8S, ELASTIC, STEP, "recipes.scale_config=null", f"{POLICY}.max_nodes=9"),
    "other devices": (*LLAMA_K8S[:1], "cluster=k8s", "instance_type=g5.12xlarge", ELASTIC),
    "a typed micro batch": (*LLAMA_K8S, ELASTIC, f"++{at(2, 'micro_train_batch_size')}=5"),
    "a typed batch": (*LLAMA_K8S, ELASTIC, f"{at(3, 'train_batch_size')}=20"),
    "typed shares": (*LLAMA_K8S, ELASTIC, dealt(at(4, ""), 3, 1, 2).strip('"')),
    "shares of all sizes": (*LLAMA_K8S, ELASTIC, dealt(f"{ARGS}.", 3, 1, 2).strip('"')),
    "no complete group": (*LLAMA_K8S, *PLANNED, f"{ARGS}.ring_attn_size=16", f"{POLICY}.max_nodes=1"),
    "groups": (*LLAMA_K8S, ELASTIC, f"{ARGS}.ring_attn_size=4"),
    "a script": OF_SCRIPT,
    "a planned script": (*OF_SCRIPT, *PLANNED),
}


def batch_problems(*overrides: str) -> list[Problem]:
    found = examine(compose(overrides, Path("/nowhere"), cache=CACHE))[1]
    return [problem for problem in found if re.fullmatch("E22[0-9]", problem.code)]


def alternatives(remedy: str | None) -> list[list[str]]:
    """Return the overrides of each alternative that a remedy names."""
    found: list[list[str]] = [[]]
    for word in shlex.split(remedy or ""):
        if word == "or":
            found.append([])
        elif "=" in word:
            found[-1].append(word.rstrip(";,:"))
    return [words for words in found if words]


@pytest.mark.slow
@pytest.mark.sample
@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_remedy_of_a_batch_mends_it_when_it_is_typed(start):
    """All Problems have the same remedy, or each the part of its own."""
    batches = ((), *((f"{BATCH}={number}",) for number in (1, 7, 9, 100, 192)))
    micros = ((), *((f"{MICRO}={number}",) for number in (1, 3, MOST_SAMPLES)))
    for overrides in ((*start, *total, *micro) for total in batches for micro in micros):
        found = batch_problems(*overrides)
        same = len({problem.remedy for problem in found}) == 1
        for problem in found:
            beside = [] if same else [each for each in found if each is not problem]
            others = [word for each in beside for word in alternatives(each.remedy)[0]]
            for words in alternatives(problem.remedy):
                left = batch_problems(*overrides, *words, *others)
                assert not left, f"{overrides}\n{problem}\n{words}\n{left[0]}"
