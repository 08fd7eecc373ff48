"""Where a batch that cannot be dealt out is at fault, and what to type instead."""

import pytest
from conftest import ELASTIC, LLAMA_K8S

from launcher.model.base_model import MOST_SAMPLES

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
        f"{at(2, 'micro_train_batch_size')}=4; or {AUTO}",
    ),
    "a size without a batch of its own": (
        (ELASTIC, f"++{at(5, 'learning_rate')}=1"),
        ("recipes.scale_config.5", 8),
        f"++{at(5, 'train_batch_size')}=40",
    ),
    "uneven shares of too few samples": (
        (ELASTIC, f"{at(3, 'train_batch_size')}=20"),
        (at(3, "uneven_batch"), None),
        f"{at(3, 'train_batch_size')}=24 or more: every rank needs a sample",
    ),
    "uneven shares where equal ones exist": (
        (ELASTIC, f"{at(3, 'train_batch_size')}=120"),
        (at(3, "uneven_batch"), None),
        f"{at(3, 'uneven_batch')}.use_uneven_batch=false: 120 divides evenly over 24 ranks",
    ),
    "uneven shares of another batch": (
        (ELASTIC, f"{at(3, 'train_batch_size')}=121"),
        (at(3, "uneven_batch"), None),
        f"{dealt(at(3, ''), 23, 5, 6)} gives 121; or {AUTO}",
    ),
}


@pytest.mark.parametrize(("overrides", "where", "remedy"), REMEDIES.values(), ids=REMEDIES)
def test_a_batch_that_does_not_divide_is_offered_its_remedies(problems, overrides, where, remedy):
    (problem,) = problems(*LLAMA_K8S, *overrides)
    assert ((problem.path, problem.value), problem.remedy) == (where, remedy)


@pytest.mark.parametrize(
    ("micro", "remedy"),
    [((), f"{BATCH}=128; or {AUTO}"), ((f"{MICRO}={MOST_SAMPLES}",), AUTO)],
    ids=["a batch for all sizes", "no batch that may be typed"],
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
