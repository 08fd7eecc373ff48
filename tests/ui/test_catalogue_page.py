"""The catalogue: what filters select, and what is suggested for a search without results."""

import html
import re
import statistics
import time
from urllib.parse import urlencode

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from launcher.api import listing
from launcher.ui import catalogue
from launcher.ui.app import app_of
from launcher.ui.rendering import page
from launcher.ui.state import Ui


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    return TestClient(app_of(Ui.of(tmp_path_factory.mktemp("results"), may_write=False)))


def names(text):
    return re.findall(r'<th scope="row"><a href="/recipes/([^"]+)">', text)


def total(text):
    found = re.search(r"of (\d+) recipes?", text)
    return int(found[1]) if found else 0


@pytest.mark.slow
def test_every_recipe_is_listed_a_hundred_at_a_time(client):
    found = [name for number in range(1, 6) for name in names(client.get("/recipes", params={"page": number}).text)]
    assert sorted(found) == sorted(entry.name for entry in listing.every())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("filters", "conditions"),
    [
        ({"technique": "dpo"}, {"technique": "dpo"}),
        ({"family": "llama", "elastic": "elastic"}, {"family": "llama", "elastic": True}),
        ({"hardware": "p5.48xlarge", "origin": "own"}, {"instance": "p5.48xlarge", "own": True}),
        ({"technique": "lora"}, {"technique": "lora"}),
    ],
)
def test_filters_select_what_the_listing_of_commands_does(client, filters, conditions):
    expected = listing.recipes(**conditions)
    assert total(client.get("/parts/recipes", params=filters).text) == len(expected) > 0


def test_a_choice_has_the_number_of_recipes_that_it_selects(client):
    text = client.get("/recipes", params={"family": "llama"}).text
    technique = re.search(r'<select name="technique">(.*?)</select>', text, re.S)[1]
    for value, count in re.findall(r'<option value="(\w+)">\w+ \((\d+)\)', technique):
        chosen = client.get("/parts/recipes", params={"family": "llama", "technique": value}).text
        assert total(chosen) == int(count) > 0


def test_the_size_of_a_model_is_read_from_its_names():
    sizes = {entry.name.rpartition("/")[2]: catalogue.billions(entry) for entry in listing.every()}
    assert sizes["llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora"] == 8
    assert sizes["llmft_deepseek_r1_distilled_qwen_1_dot_5b_seq4k_gpu_dpo"] == 1.5
    known = [size for size in sizes.values() if size]
    assert len(known) > 200
    assert all(0.1 <= size <= 1000 for size in known)


def test_hardware_is_an_instance_type_or_its_accelerator(client):
    of_type = names(client.get("/parts/recipes", params={"hardware": "p4d.24xlarge", "family": "llama"}).text)
    of_device = names(client.get("/parts/recipes", params={"hardware": "A100 40GB", "family": "llama"}).text)
    assert of_type == of_device != []


@pytest.mark.slow
def test_a_model_is_chosen_by_its_weights(client):
    model = "meta-llama/Llama-3.1-8B-Instruct"
    found = names(client.get("/parts/recipes", params={"model": model}).text)
    assert found == [each.name for each in listing.every() if each.model_name_or_path == model] != []


@pytest.mark.parametrize(
    ("filters", "said", "address"),
    [
        ({"q": "mistrall"}, "“mistral” for “mistrall”", {"q": "mistral"}),
        ({"q": "lora mistrall"}, "“mistral” for “mistrall”", {"q": "lora mistral"}),
        ({"q": "mistrall lora", "family": "llama"}, "“mistral lora” alone", {"q": "mistral lora"}),
        ({"q": "mistral", "family": "llama"}, "without family", {"q": "mistral"}),
        ({"q": "mistral", "family": "llama"}, "without “mistral”", {"family": "llama"}),
    ],
)
def test_a_search_without_results_suggests_others_that_have_some(client, filters, said, address):
    text = html.unescape(client.get("/parts/recipes", params=filters).text)
    assert "No recipe meets" in text
    found = {
        label: (query, int(count))
        for query, label, count in re.findall(r'\?([^"]*)">([^<]*)</a>: (\d+) recipe', text)
    }
    query, count = found[said]
    assert query == urlencode(address)
    assert total(client.get(f"/parts/recipes?{query}").text) == count > 0


@pytest.mark.slow
def test_the_list_is_shown_at_once(client):
    took = []
    for _ in range(9):
        began = time.process_time()
        client.get("/recipes")
        took.append(time.process_time() - began)
    print(f"\nlist of recipes: {1000 * statistics.median(took):.0f} ms")
    assert statistics.median(took) < 2


@pytest.mark.parametrize(
    "word", ["<script>alert(1)</script>", '"><img src=x>', "\x1b[31m", "a" * 10_000, "%00", "\ud800"]
)
def test_hostile_words_are_shown_as_text(client, word):
    reply = client.get(
        "/recipes",
        params={
            "q": word.encode("utf-8", "surrogatepass"),
            "technique": word.encode("utf-8", "surrogatepass"),
            "model": word.encode("utf-8", "surrogatepass"),
            "hardware": word.encode("utf-8", "surrogatepass"),
            "page": word.encode("utf-8", "surrogatepass"),
        },
    )
    assert reply.status_code == 200
    assert "<script>alert" not in reply.text and "<img src=x" not in reply.text and "\x1b" not in reply.text


def test_a_page_cannot_replace_a_value_that_every_page_has(tmp_path):
    app = app_of(Ui.of(tmp_path, may_write=False))
    request = Request({"type": "http", "app": app, "path": "/jobs", "query_string": b"", "headers": []})
    with pytest.raises(ValueError, match="error.html: every page has its own may_write, query"):
        page(request, "error.html", title="", said="", found=(), may_write=True, query="")
