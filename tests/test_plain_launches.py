"""A launch without Hydra, from what an earlier process composed, beside one with it: the same in every respect."""

import dataclasses
import itertools
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import ELASTIC, LLAMA, LLAMA_K8S, RATE, ROOT, frozen_context, needed_by
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from test_any_override import KEYS, WORDS

from launcher import pipeline
from launcher.common.problems import ProblemsFound
from launcher.config import catalogue, composed_files, hydra_overrides, overrides, plain_values
from launcher.config import compose as composing
from launcher.config.composed_files import CompositionCache
from launcher.config.plain_values import NotPlain

CLUSTERS = ("k8s", "slurm", "sm_jobs", "local", "sm_local")
LONG_AGO = (1_700_000_000, 1_700_000_000)
TINY = "defaults:\n  - /recipes/training/tiny/tiny_lm_cpu@_here_\n  - _self_\nrun:\n  name: {}\n"


@pytest.fixture
def kept(tmp_path_factory, monkeypatch):
    """Return the folder of compositions on disk, empty; whatever was just written may be kept."""
    home = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    monkeypatch.setattr(composed_files, "_SETTLED_NS", -(10**18))
    return home / "recipe-launcher"


def refuse(*_args):
    raise NotPlain


def outcome(words: Sequence[str], folder: Path, *, is_plain: bool, monkeypatch) -> object:
    """Return all that a launch shows and writes: Problems, or origins, notices and the bundle's files."""
    context = frozen_context(folder)
    with monkeypatch.context() as changed:
        if not is_plain:  # Hydra parses, composes and sets every value
            changed.setattr(overrides, "plain", lambda text: None)
            changed.setattr(plain_values, "valued", refuse)
            changed.setattr(composed_files, "read", lambda choices: None)
        try:
            composition = composing.compose(words, context.cwd, context.suffix)
            job = pipeline.prepare(words, context)
            files = pipeline.render(job, context).files
        except ProblemsFound as error:
            return repr(error.problems)  # as text: a value of nan is not equal to itself
    rest = dataclasses.replace(composition, tree={})
    return repr(composition.tree), rest, composition.origins, job.notices, dict(files)


def assert_same(words: Sequence[str], folder: Path, monkeypatch) -> None:
    expected = outcome(words, folder, is_plain=False, monkeypatch=monkeypatch)
    for _ in ("composed", "from disk"):
        assert outcome(words, folder, is_plain=True, monkeypatch=monkeypatch) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "cluster"),
    [
        pytest.param(entry, cluster, id=f"{cluster}-{entry.name.rpartition('/')[2]}")
        for entry, cluster in zip(catalogue.entries(), itertools.cycle(CLUSTERS))
    ],
)
def test_a_recipe_of_the_catalogue_is_the_same_without_hydra(entry, cluster, kept, monkeypatch, tmp_path):
    words = [f"recipes={entry.name}", f"cluster={cluster}", *needed_by(entry)]
    assert_same(words, tmp_path, monkeypatch)
    assert len(list(kept.iterdir())) == 1


PLAIN_VALUES = st.sampled_from(
    ["1", "-3", "0.5", "1e-3", "true", "False", "null", "text", "a/b-c", "auto", "", "'q q'"]
)
PLAIN_WORDS = st.lists(
    st.builds(lambda sign, key, value: f"{sign}{key}={value}", st.sampled_from(["", "++"]), KEYS, PLAIN_VALUES)
    | KEYS.map(lambda key: f"~{key}"),
    max_size=4,
)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.sampled_from([(), (ELASTIC,), (ELASTIC, "recipes.scale_config=auto")]), PLAIN_WORDS | WORDS)
@example((ELASTIC,), [f"{RATE}=0.5", "recipes.run.name=x", "~recipes.extra_keys"])
@example((), ["recipes.elastic_policy.is_elastic=true", "recipes.scale_config.3=null"])
@example((), ["after=nan"])
@example((), ["~recipes.display_name=5"])
@example(
    (), ["++env_vars={A: b}", "env_vars={C: d, A: null}", "env_vars={}", "++recipes.x={y: {}}", "instance_type=[a]"]
)
@example((), ["cluster.annotations={a.b/c: d}", "recipes.training_config.datasets.preprocessor_cfgs={type: A}"])
@example((), ["recipes.scale_config.3.trainer.num_nodes=3", "recipes.scale_config=auto"])
def test_a_random_command_line_is_the_same_without_hydra(start, words):
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert_same([*LLAMA_K8S, *start, *words], Path("/nowhere"), monkeypatch)


@pytest.mark.parametrize(
    "call",
    [
        *("${multiply:2,3}", "${multiply: -2 , ${..trainer.devices}}", "${add:1,${.two},3}", "${divide_ceil:7,2}"),
        *(
            "${divide_floor:7,0}",
            "${multiply:2}",
            "${add:a,1}",
            "${add:true,1}",
            "${add:1.5,1}",
            "${add:07,1}",
            "${add:}",
        ),
        *("${add:${.call},1}", "${nothing:1}", "${add:[1],2}", "x${add:1,2}", "${add:${.absent},2}", "${add:'1',2}"),
    ],
)
def test_a_function_of_numbers_is_the_same_without_hydra(call, kept, monkeypatch, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(f'{TINY.format("one")}x: {{two: 2, call: "{call}"}}\nextra_keys: [x]\n')
    os.utime(file, LONG_AGO)
    assert_same([f"recipes={file}", "cluster=local"], tmp_path, monkeypatch)


KEY_TEXTS = st.from_regex(r"(\+|\+\+|~)?[A-Za-z_]\w{0,3}(\.(\w{1,3})){0,2}", fullmatch=True)
VALUE_TEXTS = st.one_of(
    st.from_regex(r"-?[0-9eE.+_-]{1,8}", fullmatch=True),
    st.from_regex(r"[A-Za-z_/][\w./:@-]{0,12}", fullmatch=True),
    st.sampled_from(
        ["", "null", "NULL", "True", "nan", "-inf", "Inf", "1_000", "007", "1.", ".5", "1e5", "-0", "0.0"]
    ),
    st.text(alphabet="ab1 .,:'\"[]{}=$\\/~+-", max_size=8),
    st.text(alphabet="ab 1.,:[]{}=/~+-", max_size=8).map(lambda text: f"'{text}'"),
)


@settings(max_examples=400)
@given(KEY_TEXTS, st.one_of(st.none(), VALUE_TEXTS))
def test_a_plain_override_is_what_hydras_grammar_makes_of_it(key, value):
    text = key if value is None else f"{key}={value}"
    found = overrides.plain(text)
    event("plain" if found else "left to the grammar")
    if found is None:
        return
    expected = hydra_overrides.unchecked(text)
    fields = ("text", "sign", "key", "value", "package", "is_sweep")
    assert [repr(getattr(found, name)) for name in fields] == [repr(getattr(expected, name)) for name in fields]


@given(st.text(alphabet="ab'\\\" ", max_size=12))
def test_a_quoted_text_is_read_as_that_text(text):
    from launcher.config.overrides import quoted

    assert OverridesParser.create().parse_override(f"a={quoted(text)}").value() == text


def names_of(folder: Path, words: Sequence[str]) -> str:
    """Return the run.name of a composition in a process's first use of the folder."""
    return composing.compose(words, folder).tree["recipes"]["run"]["name"]


def test_a_second_launch_loads_no_hydra(tmp_path):
    script = (
        "import sys; from pathlib import Path; from launcher.config.compose import compose\n"
        f"compose({[*LLAMA_K8S, ELASTIC, RATE + '=0.5']!r}, Path.cwd())\n"
        "print(sorted({'hydra', 'omegaconf', 'antlr4'} & set(sys.modules)))"
    )
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    runs = [
        subprocess.run(
            [sys.executable, "-c", script], env=env, cwd=tmp_path, check=True, capture_output=True, text=True
        )
        for _ in range(2)
    ]
    assert [run.stdout.strip() for run in runs] == ["['antlr4', 'hydra', 'omegaconf']", "[]"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["recipes=training/custom/script", "cluster=slurm", "training_cfg.entry_module=json.tool"],
        [*LLAMA_K8S, "container='${oc.env:A_PASSWORD,none}'"],
    ],
    ids=["arithmetic", "variable"],
)
def test_a_second_launch_knows_every_function_of_a_reference(tmp_path, words):
    script = (
        "from pathlib import Path; from launcher.common.problems import ProblemsFound\n"
        "from launcher.config.compose import compose\n"
        "try:\n"
        f"    print(compose({words!r}, Path.cwd()).tree)\n"
        "except ProblemsFound as error:\n"
        "    print(error)\n"
    )
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "A_PASSWORD": "x7Gh29aK"}
    command = [sys.executable, "-c", script]
    first, second = (
        subprocess.run(command, env=env, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
        for _ in range(2)
    )
    assert first == second
    assert "Unsupported" not in first and "x7Gh29aK" not in first


def test_a_changed_file_is_composed_anew(kept, tmp_path):
    file = tmp_path / "mine.yaml"
    for name in ("one", "two"):
        file.write_text(TINY.format(name))
        os.utime(file, LONG_AGO)  # and of the same size: its state differs nevertheless
        assert names_of(tmp_path, ["recipes=mine.yaml"]) == name
    assert len(list(kept.iterdir())) == 1


@pytest.mark.slow
def test_a_file_that_newly_shadows_another_is_found(kept, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    words = [f"hydra.searchpath=[{first},{second}]", "recipes=own"]
    for folder in (second, first):
        first.mkdir(exist_ok=True)
        (folder / "recipes").mkdir(parents=True)
        (folder / "recipes" / "own.yaml").write_text(TINY.format(folder.name))
        assert names_of(tmp_path, words) == names_of(tmp_path, words) == folder.name
    (first / "recipes" / "own.yaml").unlink()
    assert names_of(tmp_path, words) == "second"


def test_a_relative_folder_is_that_of_the_current_one(kept, tmp_path, monkeypatch):
    for name in ("one", "two"):
        folder = tmp_path / name
        (folder / "own" / "recipes").mkdir(parents=True)
        (folder / "own" / "recipes" / "mine.yaml").write_text(TINY.format(name))
        monkeypatch.chdir(folder)
        assert names_of(folder, ["hydra.searchpath=[own]", "recipes=mine"]) == name


def test_a_default_of_an_environment_variable_is_not_kept(kept, tmp_path, monkeypatch):
    (tmp_path / "base" / "own").mkdir(parents=True)
    for name in ("one", "two"):
        (tmp_path / "base" / "own" / f"{name}.yaml").write_text(f"run: {{name: {name}}}\n")
    defaults = ["/recipes/training/tiny/tiny_lm_cpu@_here_", "_self_", {"/base/own@_here_": "${oc.env:WHICH}"}]
    (tmp_path / "mine.yaml").write_text(json.dumps({"defaults": defaults}))
    for name in ("one", "two"):
        monkeypatch.setenv("WHICH", name)
        try:
            found = names_of(tmp_path, [f"hydra.searchpath=[{tmp_path}]", "recipes=mine.yaml"])
        except ProblemsFound:  # whether a default may refer to a variable is Hydra's choice
            continue
        assert found == name
    assert not kept.exists()


def test_a_file_of_this_moment_is_not_kept(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(composed_files, "_SETTLED_NS", 2 * 10**9)
    (tmp_path / "mine.yaml").write_text(TINY.format("now"))
    assert names_of(tmp_path, ["recipes=mine.yaml"]) == "now"
    assert not kept.exists()


@pytest.mark.parametrize(
    "secret",
    ["env_vars: {API_TOKEN: sd8f7sd98f7sd9f87}", "extra: https://me:sd8f7sd98f7@host/x", "extra: ghp_" + "a1B2" * 9],
    ids=["by its name", "by its place", "by its form"],
)
def test_a_secret_is_not_kept(kept, tmp_path, secret):
    (tmp_path / "mine.yaml").write_text(TINY.format("mine") + f"{secret}\n")
    names_of(tmp_path, ["recipes=mine.yaml"])
    assert not kept.exists()


def test_what_is_kept_is_readable_by_this_user_only(kept):
    names_of(Path("/nowhere"), LLAMA_K8S)
    (file,) = kept.iterdir()
    assert (kept.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)


DAMAGES = {
    "empty": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-7]),
    "another value": lambda file: file.write_bytes(file.read_bytes().replace(b"llama-3-1-8b", b"llama-3-1-9b")),
    "not text": lambda file: file.write_bytes(b"\xff\xfe\x00" * 99),
    "another shape": lambda file: file.write_bytes(b"\n[]"),
    "writable by others": lambda file: file.chmod(0o666),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "a link": lambda file: (file.rename(file.with_suffix(".x")), file.symlink_to(file.with_suffix(".x"))),
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_or_foreign_composition_counts_as_absent(kept, damage):
    expected = names_of(Path("/nowhere"), LLAMA_K8S)
    (file,) = kept.iterdir()
    damage(file)
    assert composed_files.read(_choices(LLAMA_K8S)) is None
    assert names_of(Path("/nowhere"), LLAMA_K8S) == expected


def _choices(words: Sequence[str]):
    from launcher.config.choices import choose
    from launcher.config.parsing import parse

    return choose(parse(words), Path("/nowhere"))


@pytest.mark.parametrize("place", ["/dev/null", "/proc/nowhere", "relative"], ids=["file", "unwritable", "relative"])
def test_a_launch_without_a_home_composes_each_time(kept, monkeypatch, tmp_path, place):
    monkeypatch.setenv("XDG_CACHE_HOME", place)
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.chdir(tmp_path)
    assert names_of(tmp_path, LLAMA_K8S) == names_of(tmp_path, LLAMA_K8S)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing_behind(kept):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        name = names_of(Path("/nowhere"), LLAMA_K8S)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert name and list(kept.iterdir()) == []


def test_concurrent_launches_see_complete_compositions(kept):
    expected = names_of(Path("/nowhere"), LLAMA_K8S)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = pool.starmap_async(_recomposed, [(expected, kept)] * 2).get()
    assert found == [None, None]
    assert len([file for file in kept.iterdir() if file.suffix == ".json"]) == 1


def _recomposed(expected: str, kept: Path) -> None:
    for i in range(10):
        if i % 3 == 0:
            for file in kept.glob("*.json"):
                file.unlink(missing_ok=True)
        assert names_of(Path("/nowhere"), LLAMA_K8S) == expected


def test_the_oldest_compositions_are_removed(kept, monkeypatch, tmp_path):
    monkeypatch.setattr(composed_files, "_MOST_KEPT", 2)
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.yaml").write_text(TINY.format(name))
        names_of(tmp_path, [f"recipes={name}.yaml"])
    assert len(list(kept.iterdir())) == 2


def test_one_process_reads_a_composition_once(kept, monkeypatch):
    cache = CompositionCache()
    composing.compose(LLAMA_K8S, Path("/nowhere"), cache=cache)
    monkeypatch.setattr(composed_files, "read", lambda choices: pytest.fail("read again"))
    composing.compose([f"recipes={LLAMA}", "cluster=k8s"], Path("/nowhere"), cache=cache)
