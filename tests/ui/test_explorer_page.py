"""The plan explorer: fields move the plan, and the command line that is shown makes the same one."""

import html
import re
import shlex
import statistics
import time

import pytest
from starlette.testclient import TestClient

import launcher
from launcher.api import listing
from launcher.api.knobs import knobs, literal, only
from launcher.api.plan_text import plan_report
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


def cells(text):
    """Return the texts of the table of sizes, without the remarks under them."""
    table = re.search(r"Sizes of the job.*?<tbody>(.*?)</tbody>", text, re.S)[1]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)(?:<span.*?)?</t[hd]>", row, re.S) for row in table.split("</tr>")]
    return [row for row in rows if row]


def nodes(text):
    return [int(row[0].strip("* ")) for row in cells(text)]


def codes(text):
    return re.findall(r"<strong>(E\d{3})</strong>", text)


FAMILIES = {entry.model_type: entry.name for entry in listing.every()}


@pytest.mark.slow
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
        (LLAMA, {"cluster": "k8s", "elastic": "true", "planned": "auto", "only": "1, 2 4,5"}),
        (LLAMA, {"cluster": "k8s", "elastic": "true", "planned": "auto", "min": "2", "nodes": "2", "step": "2"}),
        (LLAMA, {"cluster": "k8s", "elastic": "true", "planned": "useful"}),
        (LLAMA, {"cluster": "slurm", "instance": "ml.p4d.24xlarge", "further": "recipes.run.name=mine"}),
    ],
)
def test_the_command_line_makes_the_plan_that_is_shown(client, recipe, fields):
    text = explored(client, recipe, **fields)
    assert codes(text) == []
    words = command(text)
    assert words[:2] == ["python", "main.py"]
    plan = launcher.compile(recipe, words[3:])
    assert nodes(text) == [size["nodes"] for size in plan.as_json["scales"]]
    head, rows = plan_report.table(plan.job, in_full=True, costs=plan.priced().columns)
    remarks = head[-1] == plan_report.REMARKS
    assert cells(text) == [list(row[: len(row) - remarks]) for row in rows]


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


FIELDS = ("nodes", "instance", "batch", "rate", "elastic", "step", "planned", "only", "cluster", "further")


@pytest.mark.slow
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    "typed",
    [
        "<script>alert(1)</script>",
        "'; rm -rf / #",
        '"><img src=x onerror=alert(1)>',
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
    reply = client.get(f"/recipes/{TINY}", params={field: typed})  # its part is in it
    assert reply.status_code == 200
    assert "<script>alert" not in reply.text and "<img" not in reply.text
    assert "\x1b" not in reply.text


@pytest.mark.slow
def test_a_field_reads_no_variable_of_the_environment(client, monkeypatch):
    monkeypatch.setenv("PLAIN", "its-value")
    typed = (r"${oc.env:PLAIN}", r"\${oc.env:PLAIN}", r"\\${oc.env:PLAIN}", r"a${oc.env:PLAIN}'b")
    for field in set(FIELDS) - {"further"}:
        assert not [each for each in typed if "its-value" in explored(client, **{field: each, "elastic": "true"})]
    assert "its-value" in explored(
        client, further="recipes.trainer.num_nodes=${oc.env:PLAIN}"
    )  # as on a command line


@pytest.mark.parametrize("text", ["${a}", r"\${a}", r"\\${a} ${b}", "$", "${", r"a\b", "'"])
def test_a_literal_is_read_as_it_was_typed(text):
    name = "recipes.training_config.training_args.training_dir"
    plan = launcher.compile(TINY, {name: literal(text)})
    assert plan.config.training_config.training_args.training_dir == text


@pytest.mark.parametrize(
    "fields",
    [
        {"further": "++recipes.run.name=${oc.env:MY_TOKEN}"},
        {"further": "recipes.trainer.num_nodes=${oc.env:MY_TOKEN}"},
        {"further": "base_results_dir=/tmp/${oc.env:MY_TOKEN}"},
        {"further": "++env_vars.ABC=${oc.env:MY_TOKEN}"},
        {"rate": "${oc.env:MY_TOKEN}"},
        {"cluster": "${oc.env:MY_TOKEN}"},
    ],
    ids=lambda fields: " ".join(fields.values()),
)
def test_a_secret_of_the_environment_is_not_shown(client, monkeypatch, fields):
    monkeypatch.setenv("MY_TOKEN", "Zq8kk2-xyzzy-plugh-99")
    assert "xyzzy" not in explored(client, **fields)
    assert "xyzzy" not in client.get(f"/recipes/{TINY}", params=fields).text


def test_a_secret_that_was_typed_is_neither_shown_nor_launched(client, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "zq8kk2-xyzzy-plugh-99")
    text = explored(client, further="recipes.run.name=zq8kk2-xyzzy-plugh-99")
    assert "xyzzy" not in text and "recipes.run.name=…" in text
    assert "/actions/launch" not in text
    assert "/actions/launch" in explored(client)


def test_unchanged_fields_add_no_override(client):
    fields = {each.name: each.value for each in knobs(LLAMA, "k8s", Session())} | {"rate": "1e-4", "min": "01"}
    assert command(explored(client, LLAMA, cluster="k8s", **fields)) == [
        "python",
        "main.py",
        f"recipes={LLAMA}",
        "cluster=k8s",
    ]


def test_the_fields_of_a_page_keep_what_was_typed(client):
    page = client.get(
        f"/recipes/{LLAMA}", params={"cluster": "k8s", "nodes": "7", "instance": "ml.p5e.48xlarge", "elastic": "true"}
    )
    assert 'name="nodes" value="7"' in page.text
    for chosen in ("k8s", '"ml.p5e.48xlarge"', '"true"'):
        assert re.search(rf"<option[^>]*{chosen}[^>]* selected|<option selected>{chosen}<", page.text), chosen


def test_an_unknown_cluster_is_a_problem(client):
    assert "E005" in codes(explored(client, cluster="nowhere"))
    page = client.get(f"/recipes/{TINY}", params={"cluster": "nowhere"}).text
    assert "<option selected>nowhere</option>" in page and 'name="nodes"' in page


def test_a_file_that_was_edited_is_read_again(client, tmp_path):
    own = tmp_path / "own.yaml"

    def learned(rate):
        own.write_text(
            "defaults:\n  - /recipes/training/tiny/tiny_lm_cpu@_here_\n  - _self_\n"
            f"training_config:\n  training_args:\n    learning_rate: {rate}\n"
        )
        return {row[4] for row in cells(explored(client, further=f"recipes={own}"))}

    assert [learned(rate) for rate in (0.125, 0.25, 0.5)] == [{"0.125"}, {"0.25"}, {"0.5"}]


def test_sizes_are_left_and_added():
    assert only([1, 2, 3, 4], "1, 3") == ["~recipes.scale_config.2", "~recipes.scale_config.4"]
    assert only([1, 2], "1 2;5") == ["++recipes.scale_config.5={}"]
    with pytest.raises(launcher.ProblemsFound):
        only([1], "a=b")


@pytest.mark.slow
def test_a_plan_is_shown_at_once(client):
    took = []
    for number in range(9):
        began = time.process_time()
        explored(client, LLAMA, cluster="k8s", elastic="true", rate=f"0.00{number + 1}")
        took.append(time.process_time() - began)
    print(f"\nplan of {LLAMA}: {1000 * statistics.median(took):.0f} ms")
    assert statistics.median(took) < 2


def test_families_without_a_planned_batch_have_their_own_numbers():
    found = {each.name: each for each in knobs("fine-tuning/qwen/verl-grpo-rlvr-qwen-3-8b-lora", None, Session())}
    rate = found["training_config.actor_rollout_ref.actor.optim.lr"]
    assert (rate.label, rate.value, rate.group) == ("optim.lr", "1e-05", "training")
    assert "batch" not in found and "elastic" not in found


@pytest.mark.parametrize(
    "name", ["nothing", "../pyproject", "/etc/passwd", "training/tiny/tiny_lm_cpu.yaml", TINY + "@2"]
)
def test_only_recipes_of_the_collection_open(client, name):
    assert client.get(f"/recipes/{name}").status_code == 404
    assert client.get(f"/parts/explore/{name}").status_code == 404


def test_a_bundle_is_written_and_shown(client):
    fields = {"recipe": TINY, "override": ["recipes.trainer.num_nodes=2"], "what": "write", "confirmed": "1"}
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
    own = [each.value for each in found["instance"].choices if each.heading == "of the recipe"]
    assert own[:2] == ["ml.p4de.24xlarge", "ml.p4d.24xlarge"]
    assert [each.value for each in found["planned"].choices] == ["table", "auto", "useful"]
    assert found["nodes"].settings("3") == {"recipes.trainer.num_nodes": 3}
    assert found["rate"].settings("1e-4") == {"recipes.training_config.training_args.learning_rate": 1e-4}
    assert found["nodes"].settings("x") == {"recipes.trainer.num_nodes": "x"}
    assert found["elastic"].settings("true") == {"recipes.elastic_policy.is_elastic": True}


@pytest.mark.parametrize("sign", ["", "+", "++", "~"])
def test_the_results_folder_of_the_page_cannot_be_overridden(client, tmp_path, sign):
    word = f"{sign}base_results_dir={tmp_path / 'elsewhere'}"
    text = explored(client, further=word)
    assert "E801" in text and "the page launches into its own results folder" in text
    assert "/actions/launch" not in text
    assert "E801" in client.get(f"/recipes/{TINY}", params={"further": word}).text
    fields = {"recipe": TINY, "override": [word], "confirmed": "1", "what": "write"}
    refused = client.post("/actions/launch", data=fields)
    assert refused.status_code == 422 and "E801" in refused.text
    assert not (tmp_path / "elsewhere").exists()
