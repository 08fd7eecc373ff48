"""Comparisons on the page: two jobs, two recipes, one of each, many jobs; and names that open nothing."""

import html
import json
import random
import re
import shutil
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from result_folders import a_job
from starlette.testclient import TestClient

import launcher
from launcher.api import reproducing
from launcher.ui import compare
from launcher.ui.app import app_of
from launcher.ui.state import Ui

RATE = "recipes.training_config.training_args.learning_rate"
TINY = "training/tiny/tiny_lm_cpu"
HOSTILE = "\"><img src=x onerror=alert(1)><script>alert(2)</script>\x1b]0;owned\x07'"
SECTIONS = re.compile(r'id="section-(\w+)"')


def a_bundle(results: Path, name: str, rate: float, losses=()) -> Path:
    session = launcher.Session(suffix=lambda: "aaaaa", user="ada", clock=lambda: "2026-01-02T03:04:05+00:00")
    settings = {"base_results_dir": str(results), "run.name": name, RATE: rate}
    folder = launcher.compile("tiny_lm_cpu", settings, session=session).write()
    if losses:
        (folder / "run").mkdir()
        lines = [json.dumps({"step": step, "loss": loss, "attempt": 0}) for step, loss in enumerate(losses)]
        (folder / "run" / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return a results folder with three bundles, two of which have metrics."""
    folder = tmp_path_factory.mktemp("site") / "results"
    a_bundle(folder, "first", 1e-3, [3.0, 2.0, 1.0])
    a_bundle(folder, "second", 2e-3, [3.0, 2.5, 2.0])
    a_bundle(folder, "third", 2e-3)
    a_job(folder, "stub")
    return folder


@pytest.fixture(scope="module")
def client(results):
    return TestClient(app_of(Ui.of(results, may_write=False)))


def shown(client, **query) -> str:
    reply = client.get("/compare", params=query)
    assert reply.status_code == 200, reply.text
    return reply.text


def plain(text: str) -> str:
    body = text.partition("</form>")[2]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", body.replace("</t", " </t"))).split())


def rows(text: str) -> dict[str, list[str]]:
    """Return the values of each key of all tables."""
    found = re.findall(r'<tr><th scope="row" class="pinned"><code>(.*?)</code></th>(.*?)</tr>', text, re.S)
    return {
        key: [plain(f"</form>{cell}") for cell in re.findall(r"<td>(.*?)</td>", cells, re.S)] for key, cells in found
    }


def codes(text: str) -> list[str]:
    return re.findall(r"<strong>(E\d{3})</strong>", text)


@pytest.mark.slow
def test_two_jobs_show_what_differs_and_how_much_is_equal(client, results):
    text = shown(client, a="first-aaaaa", b="second-aaaaa")
    found = rows(text)
    assert found[RATE] == ["0.001", "0.002"]
    assert found["loss.last"] == ["1", "2"]
    assert "loss.highest" not in found
    assert "<del>0.001</del>" in text
    assert "<ins>0.002</ins>" in text
    assert text.count("<svg") - text.count('aria-hidden="true"') == 1
    comparison = reproducing.of_jobs(results / "first-aaaaa", results / "second-aaaaa")
    assert SECTIONS.findall(text) == [name for name in compare.SECTIONS if comparison.equal.get(name)]
    assert f"Configuration: 2 differences, {comparison.equal['configuration']} equal" in plain(text)
    assert 'href="/jobs/first-aaaaa"' in text


def test_a_comparison_counts_what_is_equal(results):
    first, second = results / "first-aaaaa", results / "second-aaaaa"
    same, other = reproducing.of_jobs(first, first), reproducing.of_jobs(first, second)
    assert same.changes == ()
    for name, number in same.equal.items():
        assert number == other.equal[name] + len(other.sections[name])
    assert other.equal["metrics"] == 1  # the highest loss


def test_a_job_equals_itself(client):
    text = shown(client, a="first-aaaaa", b="first-aaaaa")
    assert "Nothing differs" in text
    assert rows(text) == {}


def test_metrics_of_long_jobs_are_those_of_the_picture(client, monkeypatch):
    full = rows(shown(client, a="first-aaaaa", b="second-aaaaa"))
    monkeypatch.setattr(compare, "_MOST_BYTES", 10)
    found = rows(shown(client, a="first-aaaaa", b="second-aaaaa"))
    assert found["loss.last"] == full["loss.last"]
    assert full.keys() - found.keys() == {"loss.lowest"}


def test_a_swap_keeps_the_overrides(client):
    text = shown(client, a="first-aaaaa", b="tiny_lm_cpu", further=f"{RATE}=0.5")
    link = html.unescape(re.search(r'<a class="button" href="([^"]*)">Swap', text)[1])
    assert rows(text)[RATE] == ["0.001", "0.5"]
    assert rows(client.get(link).text)[RATE] == ["0.5", "0.001"]


def test_notes_name_jobs_not_folders(client, results):
    text = shown(client, a="first-aaaaa", b="third-aaaaa")
    assert "third-aaaaa: this machine has no metrics" in text
    assert str(results) not in plain(text.partition("<footer")[0])


def test_overrides_of_two_jobs_are_reported_as_unused(client):
    assert "the overrides were not used" in shown(client, a="first-aaaaa", b="second-aaaaa", further="x=1")


def test_two_recipes_are_compared_by_their_names(client):
    both = {"a": "tiny_lm_cpu", "b": "llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora"}
    text, _, faults = shown(client, **both).partition('<details id="faults">')
    assert codes(text) == []
    assert "E116" in codes(faults)
    assert len(rows(text)) > 20
    assert f'href="/recipes/{TINY}"' in text
    one = shown(client, a=TINY, b="tiny_lm_cpu", further=f"{RATE}=0.5\n\n")
    assert "Nothing differs" in one


def test_a_recipe_that_composes_and_does_not_compile_shows_why(client):
    words = "recipes.trainer.num_nodes=zero\ncluster=k8s"
    text = shown(client, a=TINY, b=TINY, further=words).partition('id="faults"')[0]
    assert "E102" in codes(text)
    assert codes(shown(client, a=TINY, b=TINY, further=f"{words}\nrecipes.nothing=1")) == ["E101"]


def test_many_jobs_are_one_table_with_the_first_as_baseline(client):
    text = shown(client, job=["first-aaaaa", "second-aaaaa", "third-aaaaa"])
    assert rows(text)[RATE] == ["0.001", "0.002", "0.002"]
    assert rows(text)["loss.last"] == ["1", "2", "absent"]
    assert "first-aaaaa</a> (baseline)" in text
    again = shown(client, job=["first-aaaaa", "second-aaaaa", "first-aaaaa"])
    assert rows(again)[RATE] == ["0.001", "0.002", "the same"]
    assert text.count('name="job"') == 3


def test_at_most_twenty_jobs_are_compared(client):
    assert codes(shown(client, job=["first-aaaaa"] * 20)) == []
    text = shown(client, job=["first-aaaaa"] * 2000)
    assert codes(text) == ["E801"]
    assert text.count('name="job"') == 20


BAD = {
    "unknown": ({"a": "first-aaaaa", "b": "nothing"}, ["E703"]),
    "both unknown": ({"a": "x", "b": "y"}, ["E703", "E703"]),
    "not a bundle": ({"a": "first-aaaaa", "b": "stub"}, ["E703"]),
    "many with a recipe": ({"job": ["first-aaaaa", "second-aaaaa", TINY]}, ["E801"]),
    "many with a stub": ({"job": ["first-aaaaa", "second-aaaaa", "stub"]}, ["E703"]),
    "no such choice": ({"a": TINY, "b": TINY, "further": "cluster=moon"}, ["E005"]),
    "no grammar": ({"a": TINY, "b": TINY, "further": '"[{'}, ["E001"]),
    "another recipe": ({"a": TINY, "b": TINY, "further": "recipes=/etc/passwd.yaml"}, ["E801"]),
    "another folder": ({"a": TINY, "b": TINY, "further": "hydra.searchpath=[file:///etc]"}, ["E801"]),
    "an option": ({"a": TINY, "b": TINY, "further": "--config-dir=/etc"}, ["E801"]),
}


@pytest.mark.parametrize("case", BAD)
def test_faults_are_problems_of_the_page(client, case):
    query, expected = BAD[case]
    text = shown(client, **query)
    assert codes(text) == expected
    assert rows(text) == {}


@pytest.mark.parametrize(
    "name",
    ["../beside", "{beside}", "{recipe}", "./first-aaaaa", "results/first-aaaaa", "tiny_lm_cpu@2",
     f"recipes/{TINY}.yaml", "\0", "a\nb", "..", "/", "~", pytest.param("x" * 5000, id="long")],
)  # fmt: skip
def test_only_names_of_the_results_folder_and_the_collection_open_something(client, results, name, monkeypatch):
    beside = results.parent / "beside"
    if not beside.exists():
        shutil.copytree(results / "first-aaaaa", beside)
    collected = Path(launcher.__file__).parents[1] / "recipes_collection" / "recipes" / f"{TINY}.yaml"
    monkeypatch.chdir(results)
    name = name.replace("{beside}", str(beside)).replace("{recipe}", str(collected))
    assert codes(shown(client, a="first-aaaaa", b=name)) == ["E703"]
    assert codes(shown(client, job=["first-aaaaa", "second-aaaaa", name])) == ["E703"]


def test_an_empty_form_suggests_names(client):
    for query in ({}, {"a": "first-aaaaa"}, {"a": " ", "b": "\t"}):
        text = shown(client, **query)
        assert '<option value="third-aaaaa">' in text
        assert f'<option value="{TINY}">' in text
        assert "Name two jobs" in text


@pytest.mark.slow
def test_a_job_that_was_removed_or_damaged_is_a_problem(tmp_path):
    results = tmp_path / "results"
    folders = [a_bundle(results, name, 1e-3) for name in ("one", "two")]
    client = TestClient(app_of(Ui.of(results, may_write=False)))
    assert codes(shown(client, a="one-aaaaa", b="two-aaaaa")) == []
    (folders[1] / "recipe.yaml").write_text(": {")
    assert codes(shown(client, a="one-aaaaa", b="two-aaaaa")) == ["E704"]
    shutil.rmtree(folders[1])
    assert codes(shown(client, a="one-aaaaa", b="two-aaaaa")) == ["E703"]


@pytest.mark.slow
def test_damaged_metrics_are_left_out_and_what_is_no_file_is_refused(tmp_path):
    results = tmp_path / "results"
    one, two, _ = (a_bundle(results, name, 1e-3) for name in ("one", "two", "three"))
    (one / "run" / "metrics.jsonl").mkdir(parents=True)
    (two / "run").mkdir()
    (two / "run" / "metrics.jsonl").write_bytes(b'{"step": 1, "loss": "low"}\n\xff\n[1]\n{"step": 2, "loss": NaN}\n')
    client = TestClient(app_of(Ui.of(results, may_write=False)))
    assert codes(shown(client, a="one-aaaaa", b="two-aaaaa")) == ["E711"]
    assert rows(shown(client, job=["two-aaaaa", "three-aaaaa", "two-aaaaa"]))["loss.last"][0] == "nan"


@pytest.mark.slow
def test_hostile_names_and_values_are_escaped(tmp_path):
    results = tmp_path / "results"
    name = "<img src=x>"
    for each in ("one", "two"):
        folder = a_bundle(results, each, 1e-3)
        (folder / "run").mkdir()
        (folder / "run" / "metrics.jsonl").write_text(
            json.dumps(
                {"step": 1, "loss": len(each), "attempt": 0, "further": {HOSTILE: len(each) + folder.name.count("w")}}
            )
        )
        (folder / "run" / "metrics.jsonl").open("a").write("\n")
    (results / "two-aaaaa").rename(results / name)
    client = TestClient(app_of(Ui.of(results, may_write=False)))
    for query in (
        {"a": "one-aaaaa", "b": name},
        {"a": HOSTILE, "b": name, "further": HOSTILE},
        {"a": TINY, "b": TINY, "further": f"recipes.run.name='{HOSTILE}'"},
        {"job": ["one-aaaaa", name, HOSTILE]},
        {"job": ["one-aaaaa", name, name]},
    ):
        text = shown(client, **query)
        assert "<img" not in text
        assert "<script>" not in text
        assert "\x1b" not in text
    assert quote(name, safe="") in text
    assert any("img" in key for key in rows(text))


def words(before: str | None, after: str | None) -> list[str]:
    return ["".join(f"[{each.text}]" if each.is_changed else each.text for each in cell.pieces)
            for cell in compare.Marker().cells((before, after))]  # fmt: skip


def test_the_words_that_differ_in_long_values_are_marked():
    assert words("--rate 0.1 --batch 64 --seed 1 --fast", "--rate 0.25 --batch 64 --seed 1 --fast --deep") == [
        "--rate[ 0.1] --batch 64 --seed 1 --fast",
        "--rate[ 0.25] --batch 64 --seed 1 --fast[ --deep]",
    ]
    assert words("0.001", "0.002") == ["[0.001]", "[0.002]"]
    assert words("x" * 300, None) == [f"[{'x' * 300}]", ""]
    assert words("a " * 30, "b! " * 30) == [f"[{'a ' * 30}]", f"[{'b! ' * 30}]"]


def test_the_pieces_of_a_value_are_the_value():
    draw = random.Random(0)
    for _ in range(200):
        before, after = (
            "".join(draw.choices(["ab", " ", "cd.e", "/", "\n"], k=draw.randrange(60))) for _ in range(2)
        )
        cells = compare.Marker().cells((before, after))
        assert ["".join(piece.text for piece in cell.pieces) for cell in cells] == [before, after]


def test_long_values_are_shortened_around_what_differs():
    before, after = words("same " * 1000 + "one" + " rest" * 1000, "same " * 1000 + "two" + " rest" * 1000)
    assert "[ one]" in before
    assert "[ two]" in after
    assert len(before) < 500
    whole, _ = words("x" * 100_000, "y" * 100_000)
    assert "and 98000 more characters" in whole


@pytest.mark.slow
def test_the_time_of_comparing_words_is_bounded():
    started = time.process_time()
    marker = compare.Marker()
    for number in range(500):
        marker.cells(("a b " * 95 + str(number), "b a a " * 60 + f"x{number}"))
    assert time.process_time() - started < 5
