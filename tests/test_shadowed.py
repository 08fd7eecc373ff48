"""Values of the user's own files against an inherited scale_config: none is replaced in silence."""

import json
import sys
from pathlib import Path

import commands
import pytest
from conftest import ELASTIC, LLAMA, ROOT, shipped

from launcher.model.config_tree import get

RATE = "training_config.training_args.learning_rate"
INHERITED = f"/recipes/{LLAMA}@_here_"
OWN = "training_config: {training_args: {learning_rate: 0.123}}\nelastic_policy: {is_elastic: true}\n"
SIZES = "scale_config: {3: {training_config: {training_args: {learning_rate: 0.3}}}}\n"


def write(path: Path, text: str, *inherited: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"defaults: [{', '.join(inherited)}, _self_]\n{text}" if inherited else text)
    return path


def notices(job, code: str = "N167") -> list[str]:
    return [notice.message for notice in job.notices if notice.code == code]


def rates(job) -> set[float]:
    return {get(point.config, RATE) for point in job.scales}


def test_a_value_of_a_recipe_file_that_scale_config_replaces_is_noticed(prepare, tmp_path):
    file = write(tmp_path / "mine.yaml", OWN, INHERITED)
    job = prepare("recipes=mine.yaml", "cluster=k8s")
    (message,) = notices(job)
    assert rates(job) == {0.0004}
    assert message.startswith(f"learning_rate=0.123 of {file}:2 has no effect at 1 to 4, 6, 8, 16 nodes")
    assert f"recipes.{RATE}=…" in message


@pytest.mark.parametrize(
    "search", ["hydra.searchpath=[team]", "hydra.searchpath=['{}/team']"], ids=["relative", "full"]
)
def test_a_value_of_a_file_on_the_search_path_is_noticed(search, prepare, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "team" / "recipes" / "own.yaml", OWN, INHERITED)
    assert len(notices(prepare(search.format(tmp_path), "recipes=own", "cluster=k8s"))) == 1


def test_a_value_of_a_default_of_the_users_own_is_noticed(prepare, tmp_path):
    part = "training_config: {training_args: {seed: 7}}\n"
    sized = "scale_config: {3: {training_config: {training_args: {seed: 9}}}}\n"
    write(tmp_path / "part.yaml", part)
    write(tmp_path / "sized.yaml", sized, INHERITED)
    write(tmp_path / "mine.yaml", "", "sized@_here_", "part@_here_")
    (message,) = notices(prepare("recipes=mine.yaml", "cluster=k8s", ELASTIC))
    assert message.startswith(f"seed=7 of {tmp_path / 'part.yaml'}:1 has no effect at 3 nodes")


def test_sizes_that_the_same_file_sets_are_meant(prepare, tmp_path):
    write(tmp_path / "mine.yaml", OWN + SIZES, INHERITED)
    (message,) = notices(prepare("recipes=mine.yaml", "cluster=k8s"))
    assert "at 1 to 2, 4, 6, 8, 16 nodes" in message


def test_an_override_ends_the_notice(prepare, tmp_path):
    write(tmp_path / "mine.yaml", OWN, INHERITED)
    job = prepare("recipes=mine.yaml", "cluster=k8s", f"recipes.{RATE}=0.5")
    assert (notices(job), rates(job)) == ([], {0.5}) and notices(job, "N104")


def test_a_static_job_has_the_value_and_no_notice(prepare, tmp_path):
    write(tmp_path / "mine.yaml", OWN, INHERITED)
    job = prepare("recipes=mine.yaml", "cluster=k8s", "recipes.elastic_policy.is_elastic=false")
    assert (notices(job), rates(job)) == ([], {0.123})


def test_planned_sizes_keep_the_value_of_a_file_that_inherits_the_table(prepare, tmp_path):
    write(tmp_path / "mine.yaml", OWN, INHERITED)
    job = prepare("recipes=mine.yaml", "cluster=k8s", "recipes.scale_config=auto")
    assert (notices(job), rates(job)) == ([], {0.123})


@pytest.mark.slow
def test_no_shipped_recipe_gets_the_notice(prepare):
    for entry in shipped():
        if entry.is_elastic and entry.model_type == "llm_finetuning_aws":
            words = [f"recipes={entry.name}", "cluster=k8s", ELASTIC, f"instance_type={entry.instance_types[0]}"]
            assert notices(prepare(*words)) == []


@pytest.mark.slow
def test_a_value_of_a_file_in_config_dir_is_noticed(tmp_path):
    write(tmp_path / "own" / "recipes" / "mine.yaml", OWN, INHERITED)
    words = ["--config-dir", "own", "recipes=mine", "cluster=k8s", "dry_run=true"]
    result = commands.run(
        [sys.executable, ROOT / "main.py", *words], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert result.returncode == 0, result.stderr
    assert "N167 learning_rate=0.123" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("elastic", [(), (ELASTIC,)], ids=["static", "elastic"])
def test_a_file_whose_self_comes_first_loses_and_is_named(elastic, prepare, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"defaults: [_self_, {INHERITED}]\ntraining_config: {{training_args: {{seed: 7, max_epochs: 9}}}}\n"
    )
    (message,) = notices(prepare("recipes=mine.yaml", "cluster=k8s", *elastic), "N168")
    assert message.startswith(f"defaults after _self_ override seed, max_epochs of {file}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        f"defaults: [{INHERITED}, _self_]\ntraining_config: {{training_args: {{seed: 7}}}}\n",
        f"defaults: [{INHERITED}]\ntraining_config: {{training_args: {{seed: 7}}}}\n",
        f"defaults: [_self_, {INHERITED}]\n",
        f"defaults: [_self_, {INHERITED}]\nextra_keys: [training_config.x]\ntraining_config: {{x: 1}}\n",
    ],
    ids=["last", "left_out", "nothing_to_lose", "nothing_lost"],
)
def test_a_file_that_wins_or_loses_nothing_is_not_named(text, prepare, tmp_path):
    (tmp_path / "mine.yaml").write_text(text)
    assert notices(prepare("recipes=mine.yaml", "cluster=k8s"), "N168") == []


def test_a_default_of_a_file_of_the_users_own_may_have_its_self_first_too(prepare, tmp_path):
    (tmp_path / "team.yaml").write_text(
        f"defaults: [_self_, {INHERITED}]\ntraining_config: {{training_args: {{seed: 7}}}}\n"
    )
    write(tmp_path / "mine.yaml", "training_config: {training_args: {seed: 8}}\n", "team@_here_")
    (message,) = notices(prepare("recipes=mine.yaml", "cluster=k8s"), "N168")
    assert message.startswith(f"defaults after _self_ override seed of {tmp_path / 'team.yaml'}")


ARGS = {"seed": 7, "max_epochs": 9, "train_batch_size": 3, "micro_train_batch_size": 3, "learning_rate": 0.3}


@pytest.mark.parametrize(
    ("count", "named"),
    [
        (1, "seed"),
        (4, "seed, max_epochs, train_batch_size, micro_train_batch_size"),
        (5, "seed, max_epochs, train_batch_size, micro_train_batch_size and 1 more"),
    ],
)
def test_a_notice_names_at_most_four_keys_that_lose(count, named, prepare, tmp_path):
    lost = dict(list(ARGS.items())[:count])
    (tmp_path / "mine.yaml").write_text(
        f"defaults: [_self_, {INHERITED}]\ntraining_config: {{training_args: {json.dumps(lost)}}}\n"
    )
    (message,) = notices(prepare("recipes=mine.yaml", "cluster=k8s"), "N168")
    assert message.startswith(f"defaults after _self_ override {named} of {tmp_path / 'mine.yaml'}")


def test_a_file_whose_value_its_defaults_repeat_loses_nothing(prepare, tmp_path):
    text = f"defaults: [_self_, {INHERITED}]\ntraining_config: {{training_args: {{seed: 42}}}}\n"
    (tmp_path / "mine.yaml").write_text(text)
    job = prepare("recipes=mine.yaml", "cluster=k8s")
    assert get(job.config, "recipes.training_config.training_args.seed") == 42 and notices(job, "N168") == []


@pytest.mark.parametrize(
    ("sizes", "micro", "count"), [((), 1, 1), (("recipes.scale_config=auto",), 4, 0)], ids=["own", "planned"]
)
def test_a_bound_has_an_effect_on_planned_sizes_only(sizes, micro, count, prepare, tmp_path):
    write(
        tmp_path / "mine.yaml",
        f"training_config: {{training_args: {{micro_train_batch_size: {micro}}}}}\n",
        INHERITED,
    )
    found = notices(prepare("recipes=mine.yaml", "cluster=k8s", ELASTIC, *sizes))
    assert [message.partition(" of ")[0] for message in found] == [f"micro_train_batch_size={micro}"] * count


NOTE = "training_config.training_args.note"
NOTES = f"extra_keys: [{NOTE}]\ntraining_config: {{training_args: {{note: base}}}}\n"
LONG = "b" * 80


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (f"~recipes.{NOTE}", "the removal of note"),
        (f"recipes.{NOTE}=short", "note=short"),
        (f"recipes.{NOTE}={'b' * 60}", f"note={'b' * 60}"),
        (f"recipes.{NOTE}={LONG}", f"note={'b' * 59}…"),
    ],
    ids=["removal", "short", "at most", "long"],
)
@pytest.mark.parametrize(("sizes", "count"), [((3,), "1 size"), ((3, 4), "2 sizes")], ids=["one", "two"])
def test_what_an_override_wins_over_is_noticed(override, says, sizes, count, prepare, tmp_path):
    at_sizes = ", ".join(f"{nodes}: {{training_config: {{training_args: {{note: x}}}}}}" for nodes in sizes)
    write(tmp_path / "mine.yaml", f"{NOTES}scale_config: {{{at_sizes}}}\n", INHERITED)
    job = prepare("recipes=mine.yaml", "cluster=k8s", ELASTIC, override)
    assert notices(job, "N104") == [f"{says} from the command line overrides scale_config at {count}"]


def test_a_long_value_that_sizes_replace_is_cut(prepare, tmp_path):
    at_sizes = ", ".join(f"{nodes}: {{training_config: {{training_args: {{note: x}}}}}}" for nodes in (3, 4, 8))
    write(tmp_path / "sized.yaml", f"{NOTES}scale_config: {{{at_sizes}}}\n", INHERITED)
    file = write(tmp_path / "mine.yaml", NOTES.replace("base", LONG), "sized@_here_")
    (message,) = notices(prepare("recipes=mine.yaml", "cluster=k8s", ELASTIC))
    assert message.startswith(f"note={'b' * 59}… of {file}:3 has no effect at 3 to 4, 8 nodes")
