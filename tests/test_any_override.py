"""Random overrides of every form: each lands, is a Problem, or is noticed to change nothing."""

import time
from pathlib import Path

import pytest
from conftest import ELASTIC, LLAMA_K8S, composed, frozen_context
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher import pipeline
from launcher.common.problems import ProblemsFound, shown
from launcher.config.compose import compose
from launcher.model.config_tree import ABSENT, SCALES, get, is_base, lookup
from launcher.planning.explain import Sizes

CONTEXT = frozen_context(Path("/nowhere"))
ARGS = "recipes.training_config.training_args"
STEPS = "recipes.training_config.datasets.preprocessor_cfgs"
MOST_S = 60.0
"""Of one command line on a loaded machine; some 0.1 s are seen."""
SUITABLE = {
    f"{ARGS}.seed": ["1", "2", "${recipes.trainer.devices}"],
    f"{ARGS}.learning_rate": ["0.5", "1e-3"],
    ARGS: ["{}", "{seed: 3}", "{seed: 3, learning_rate: 0.25}"],
    "recipes.run.name": ["x", "'y'", '"z"', "${recipes.run.model_type}"],
    "recipes.display_name": ["a b", "'a, b'", "null"],
    STEPS: ["[]", "[{type: A}]", "[{type: A}, {type: B}]"],
    f"{STEPS}.0": ["{type: C}", "{}"],
    f"{STEPS}.0.type": ["D"],
    f"{STEPS}.1.chat_template_name": ["e", "null"],
    f"{STEPS}.2.column_names": ["[a]", "[]"],
    f"{STEPS}.2.column_names.0": ["b"],
    f"{SCALES}.3.{ARGS.removeprefix('recipes.')}.learning_rate": ["0.125"],
    f"{SCALES}.3.{STEPS.removeprefix('recipes.')}.0.type": ["F"],
    f"{SCALES}.3.{STEPS.removeprefix('recipes.')}": ["[{type: G}]"],
    f"{SCALES}.3": ["{}"],
    SCALES: ["auto", "{}"],
    "env_vars": ["{A: b}", "{}"],
    "env_vars.A": ["c"],
    "cluster.namespace": ["team", "null"],
    "cluster.annotations": ["{a/b: c}", "{}", "{a.b/c: d}"],
    "container": ["img:1"],
    "recipes.extra_keys": ["[x.y]", "[]"],
    "recipes.x.y": ["1"],
    "recipes.x": ["{y: {}}", "{y: {z: 1}}"],
    "cluster": ["k8s"],
    "+base/elastic@recipes": ["policy"],
    "hydra.searchpath": ["[]", "[/usr]"],
}
"""Keys and values that a job may have."""
KEYS = st.sampled_from(sorted(composed(LLAMA_K8S[0].removeprefix("recipes=")).origins))
WILD_KEYS = st.one_of(
    KEYS,
    KEYS.map(lambda key: key.rpartition(".")[0]),
    st.builds(lambda key, n: key.replace(".", "/", n), KEYS, st.integers(1, 9)),
    st.builds(lambda key, word: f"{key}.{word}", KEYS, st.sampled_from(["0", "1", "-1", "01", "9" * 99, "x", "a.b"])),
    st.builds(lambda key, word: f"{key}@{word}", KEYS, st.sampled_from(["recipes", "x", "", "_global_", "a.b"])),
    KEYS.map(lambda key: key.removeprefix("recipes.")),
    st.sampled_from(["cluster", "recipes", "cluster_type", "cluster/contract", "recipes/training", "hydra.run.dir"]),
    st.sampled_from(
        ["base/elastic", "base/llmft@recipes", "", "a", "a/b", "base", "/x", "x/", "a@b:c", "training_cfg"]
    ),
    st.text(max_size=8),
)
WILD_VALUES = st.one_of(
    st.sampled_from(
        ["1", "-3", "0.5", "true", "null", "text", '"a, b"', "'q'", "[]", "[1,2]", "{}", "{a: {}}", "???"]
    ),
    st.sampled_from(
        ["{3: {a: 1}}", "{a.b: 1}", "[[{x: 1}]]", "${recipes.run}", "${nothing}", "${.name}", "${", "auto"]
    ),
    st.sampled_from(["policy", "k8s", "local", "common", "training/tiny/tiny_lm_cpu", "nan", "²", "a b", "1,2", "["]),
    st.text(max_size=8),
)
SIGNS = st.sampled_from(["", "", "", "+", "++", "~"])


def written(sign: str, key: str, value: str | None) -> str:
    word = key if key.startswith("+") else f"{sign}{key}"
    return word if value is None or sign == "~" else f"{word}={value}"


SUITABLE_WORDS = st.sampled_from(sorted(SUITABLE)).flatmap(
    lambda key: st.builds(written, SIGNS, st.just(key), st.sampled_from(SUITABLE[key]))
)
WORDS = st.lists(SUITABLE_WORDS, min_size=1, max_size=5) | st.lists(
    SUITABLE_WORDS | st.builds(written, SIGNS, WILD_KEYS, WILD_VALUES | st.none()), min_size=1, max_size=4
)


def swallowed(words: list[str]) -> list[str]:
    """Return the overrides that neither have an effect nor are noticed; none where there are Problems."""
    try:
        composition, job = compose(words, CONTEXT.cwd), pipeline.prepare(words, CONTEXT)
    except ProblemsFound as error:
        assert error.problems and str(error)
        return []
    tree = composition.tree
    kept = composition.corrections if get(tree, SCALES) == "auto" else get(tree, SCALES)
    tree = {**tree, "recipes": {**tree["recipes"], "scale_config": kept}}
    landed = {text for path, text in composition.explicit.items() if lookup(tree, path) is not ABSENT}
    landed |= {"recipes.scale_config=auto" for _ in [0] if composition.explicit.get(SCALES)}
    removed = set(composition.removed.values())
    noticed = [notice.message for notice in job.notices if notice.code == "N165"]
    effective = landed | removed | set(composition.chosen.values())
    return [
        word
        for word in map(shown, words)
        if word not in effective
        and not any(text.startswith(f"{word} changes nothing") for text in noticed)
        and not (word.startswith("hydra.searchpath=[/") and "/usr" not in word)
    ]


def lost(words: list[str]) -> list[str]:
    """Return the keys whose overridden value the job does not have at some size; none where there are Problems."""
    try:
        composition = compose(words, CONTEXT.cwd)
        trees = Sizes(composition).trees if pipeline.prepare(words, CONTEXT).elastic else {}
    except ProblemsFound:
        return []
    of_sizes = [path.split(".", 3)[3] for path in composition.decided if path.count(".") > 2]
    paths = [path.removeprefix("recipes.") for path in composition.decided if is_base(path)]
    free = [path for path in paths if not any(_overlap(path, other) for other in of_sizes)]
    base = composition.tree["recipes"]
    return [path for path in free for tree in trees.values() if lookup(tree, path) != lookup(base, path)]


def _overlap(path: str, other: str) -> bool:
    return f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.")


@pytest.mark.slow
@pytest.mark.parametrize("start", [LLAMA_K8S, (*LLAMA_K8S, ELASTIC), ()], ids=["static", "elastic", "default"])
@settings(max_examples=60)
@given(words=WORDS)
def test_no_override_is_swallowed(start, words):
    started = time.monotonic()
    assert swallowed([*start, *words]) == [] == lost([*start, *words])
    assert time.monotonic() - started < MOST_S


def test_large_overrides_take_bounded_time():
    many = ", ".join(f"k{i}: {i}" for i in range(5000))
    words = [*LLAMA_K8S, ELASTIC, f"++recipes.x={{{many}}}", f"++recipes.x={{{many}}}"]
    started = time.monotonic()
    assert swallowed(words) == []
    assert time.monotonic() - started < MOST_S
