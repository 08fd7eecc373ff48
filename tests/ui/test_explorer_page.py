"""The plan explorer: fields move the plan, and the command line that is shown makes the same one."""

import html
import re
import shlex

import pytest
from starlette.testclient import TestClient

import launcher
from launcher.api import listing
from launcher.api.knobs import knobs
from launcher.api.session import Session
from launcher.ui.app import app_of
from launcher.ui.state import Ui

LLAMA = "fine-tuning/llama/llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora"
TINY = "training/tiny/tiny_lm_cpu"


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    return TestClient(app_of(Ui.of(tmp_path_factory.mktemp("results"), may_write=True)))


def explored(client, recipe=TINY, **fields):
    reply = client.get(f"/parts/explore/{recipe}", params=fields)
    assert reply.status_code == 200
    return html.unescape(reply.text)


def command(text):
    return shlex.split(re.search(r'<pre id="command"[^>]*>(.*?)</pre>', text, re.S)[1])


def codes(text):
    return re.findall(r"<strong>(E\d{3})</strong>", text)


FAMILIES = {entry.model_type: entry.name for entry in listing.every()}


@pytest.mark.parametrize("name", sorted(FAMILIES.values()))
def test_a_recipe_of_every_family_opens(client, name):
    reply = client.get(f"/recipes/{name}")
    assert reply.status_code == 200
    assert 'id="command"' in reply.text


@pytest.mark.parametrize(
    ("recipe", "fields"),
    [
        (TINY, {}),
        (TINY, {"nodes": "3"}),
        (
            TINY,
            {"rate": "0.01", "further": "recipes.scale_config=auto\nrecipes.training_config.training_args.seed=3"},
        ),
        (LLAMA, {"cluster": "k8s", "batch": "24", "micro": "3", "nodes": "1"}),
        (TINY, {"elastic": "false", "nodes": "2"}),
        (TINY, {"max": "2"}),
        (LLAMA, {"cluster": "k8s", "elastic": "true", "max": "8"}),
        (LLAMA, {"cluster": "slurm", "instance": "ml.p4d.24xlarge", "further": "recipes.run.name=mine"}),
    ],
)
def test_the_command_line_makes_the_plan_that_is_shown(client, recipe, fields):
    text = explored(client, recipe, **fields)
    assert codes(text) == []
    words = command(text)
    assert words[:2] == ["python", "main.py"]
    plan = launcher.compile(recipe, words[3:])
    shown = [cells for cells in re.findall(r"<tr[^>]*><th[^>]*>(.*?)</th>", text) if cells.strip("* ").isdigit()]
    assert [int(each.strip("* ")) for each in shown] == [size["nodes"] for size in plan.as_json["scales"]]


def test_the_python_that_is_shown_makes_it_too(client):
    text = explored(client, nodes="2", rate="0.01")
    code = re.search(r"In Python</summary><pre[^>]*>(.*?)</pre>", text, re.S)[1]
    found = {}
    exec(code, found)
    assert found["plan"].config.training_config.training_args.learning_rate == 0.01


def test_uneven_sizes_are_named_and_drawn(client):
    text = explored(client, LLAMA, cluster="k8s", elastic="true")
    assert "5 on 16, 6 on 8" in text
    assert "<svg" in text and "uneven" in text
    assert "USD" in text


def test_what_was_moved_is_explained(client):
    text = explored(client, rate="0.5")
    changed = text[text.index("What was changed") :]
    assert (
        "training_args.learning_rate" in changed
        and "++recipes.training_config.training_args.learning_rate=0.5" in changed
    )


def test_every_problem_is_shown_with_its_remedy_and_the_command_stays(client):
    text = explored(client, min="40", max="2", nodes="abc", further="recipes.trainr.num_nodes=1")
    assert len(codes(text)) >= 2
    assert "remedy" in text
    assert "min_nodes=40" in command(text)[-1] + " ".join(command(text))


@pytest.mark.parametrize("field", ["nodes", "instance", "batch", "rate", "elastic", "step", "cluster", "further"])
@pytest.mark.parametrize(
    "typed",
    [
        "<script>alert(1)</script>",
        "'; rm -rf / #",
        "${oc.env:HOME}",
        "a\nb=c",
        "[1,2",
        "9" * 400,
        "1e999",
        "NaN",
        "\x1b[31mred",
        "x" * 30_000,
        "☃",
    ],
)
def test_whatever_is_typed_is_data(client, field, typed):
    reply = client.get(f"/parts/explore/{TINY}", params={field: typed})
    assert reply.status_code == 200
    assert "<script>alert" not in reply.text
    assert "\x1b" not in reply.text


def test_a_secret_of_the_environment_is_not_shown(client, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "hf_abcdefghijklmnopqrstuvwxyz012345")
    for fields in ({"further": "++recipes.run.name=${oc.env:MY_TOKEN}"}, {"rate": "${oc.env:MY_TOKEN}"}):
        assert "abcdefghijklmnopqrstuvwxyz" not in explored(client, **fields)


@pytest.mark.parametrize(
    "name", ["nothing", "../pyproject", "/etc/passwd", "training/tiny/tiny_lm_cpu.yaml", TINY + "@2"]
)
def test_only_recipes_of_the_collection_open(client, name):
    assert client.get(f"/recipes/{name}").status_code == 404
    assert client.get(f"/parts/explore/{name}").status_code == 404


def test_a_bundle_is_written_and_shown(client):
    fields = {"recipe": TINY, "override": ["recipes.trainer.num_nodes=2"], "what": "write"}
    reply = client.post("/actions/launch", data=fields, follow_redirects=False)
    assert reply.status_code == 303
    shown = client.get(reply.headers["location"])
    assert shown.status_code == 200 and "rendered" in shown.text
    refused = client.post("/actions/launch", data=fields | {"override": ["recipes.trainer.num_nodes=x"]})
    assert refused.status_code == 422 and codes(refused.text)


def test_the_fields_of_a_recipe_are_its_own():
    found = {each.name: each for each in knobs(LLAMA, "k8s", Session())}
    assert found["batch"].key == "recipes.training_config.training_args.train_batch_size"
    assert (found["elastic"].value, found["max"].value) == ("false", "16")
    assert found["instance"].choices[0] == "ml.p4de.24xlarge"
    assert (found["nodes"].override("3"), found["rate"].override("1e-4"), found["nodes"].override("x")) == (
        3,
        1e-4,
        "x",
    )
