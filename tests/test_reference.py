"""The pages made from the code, and the codes they list."""

import ast
import re
from pathlib import Path

import pytest
import typer
from conftest import shipped

from launcher.api.generated import reference
from launcher.api.generated.codes import SUBJECTS, all_codes, elsewhere
from launcher.cli import main as cli
from launcher.model import backend_registry, family_registry
from launcher.rules import all_notice_rules, all_rules

ROOT = Path(__file__).resolve().parent.parent
GROUP = typer.main.get_command(cli.app)
CODE = re.compile(r"[EN](?!000)\d{3}")
RECIPES, KEYS, RULES, COMMANDS = (
    Path("docs") / name for name in ("RECIPES.md", "reference/keys.md", "reference/rules.md", "reference/commands.md")
)


@pytest.fixture(scope="module")
def pages():
    return reference.pages(GROUP)


def codes_in_source() -> set[str]:
    """Return every code that the launcher's source mentions."""
    files = (ROOT / "launcher").rglob("*.py")
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in [*files, ROOT / "main.py"]]
    nodes = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return {value for value in nodes if isinstance(value, str) and CODE.fullmatch(value)}


@pytest.mark.slow
def test_every_code_in_use_is_registered_and_every_registered_code_is_in_use():
    registered = [code.code for code in all_codes()]
    assert len(registered) == len(set(registered))
    assert set(registered) == codes_in_source()


def test_no_code_stands_for_two_things():
    codes = [code.code for code in elsewhere()]
    assert len(codes) == len(set(codes))
    rules = [rule.code for rule in (*all_rules(), *all_notice_rules())]
    assert len(rules) == len(set(rules))


def test_every_code_has_a_reason_a_source_and_a_subject():
    for code in all_codes():
        assert code.reason.endswith(".") and len(code.reason.split()) > 3, code
        assert code.source, code
        assert code.subject in SUBJECTS.values()


def test_every_rule_is_listed_with_its_own_docstring():
    listed = {code.code: code for code in all_codes()}
    assert all_rules() and all_notice_rules()
    for rule in (*all_rules(), *all_notice_rules()):
        assert listed[rule.code].reason == rule.reason
        assert listed[rule.code].source == rule.source
        assert listed[rule.code].cluster == (" or cluster=".join(rule.clusters) or None)


def test_a_code_that_applies_to_every_cluster_names_none():
    assert {code.cluster for code in all_codes() if not code.cluster} == {None}


def test_sources_in_this_repository_exist():
    own = [code.source for code in all_codes() if code.source.startswith(("docs/", "launcher/"))]
    assert own
    for source in own:
        name, _, section = source.partition(", ")
        assert (ROOT / name).exists(), source
        if name.endswith(".md") and section:
            assert section.partition(":")[0] in (ROOT / name).read_text(encoding="utf-8"), source


def test_codes_in_the_hand_written_docs_are_known():
    known = {code.code for code in all_codes()}
    found = {
        code
        for path in [*ROOT.glob("docs/*.md"), ROOT / "README.md"]
        for code in re.findall(r"\b[EN]\d{3}\b", path.read_text(encoding="utf-8"))
    }
    assert found
    assert found <= known


@pytest.mark.slow
def test_committed_pages_are_what_the_code_says(pages):
    committed = {path: (ROOT / path).read_text(encoding="utf-8") for path in pages}
    assert committed == pages, "run `recipes docs`"


@pytest.mark.parametrize("path", [RECIPES, KEYS, RULES, COMMANDS], ids=lambda path: path.stem)
def test_tables_are_whole(path, pages):
    widths, rows = [], 0
    for line in pages[path].splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        if cells and widths and widths[-1]:
            assert cells == widths[-1], line
            rows += 1
        widths.append(cells)
    assert rows > 5
    assert "\n\n\n" not in pages[path]
    assert pages[path].endswith("\n") and not pages[path].endswith("\n\n")


@pytest.mark.slow
def test_recipes_page_has_every_recipe_and_its_links_lead_somewhere(pages):
    links = re.findall(r"^\| \[(.+?)\]\((.+?)\)( `own`)? \|", pages[RECIPES], re.M)
    listed = [(entry.name.rpartition("/")[2], entry.is_published) for entry in shipped()]
    assert [(name, not mark) for name, _, mark in links] == listed
    assert all((ROOT / "docs" / link).is_file() for _, link, _ in links)


def test_recipes_page_has_the_elastic_sizes(pages):
    line = next(
        line for line in pages[RECIPES].splitlines() if "llama3_1_8b_instruct_seq4k_gpu_sft_lora.yaml" in line
    )
    assert "| 1, 2, 3, 4, 6, 8, 16 |" in line


def test_keys_page_has_every_family_and_cluster(pages):
    titles = re.findall(r"^## (.+)$", pages[KEYS], re.M)
    assert {f"Recipes: {name}" for name in family_registry.names()} <= set(titles)
    assert {f"cluster={path.stem}" for path in (ROOT / "recipes_collection/cluster").glob("*.yaml")} <= set(titles)


def test_pages_name_each_cluster_and_the_references_to_secrets_that_its_jobs_take(pages):
    row = next(line for line in pages[KEYS].splitlines() if line.startswith("| `cluster` |"))
    concepts = Path(ROOT, "docs/concepts.md").read_text(encoding="utf-8").partition("## Secrets")[2]
    table = [line for line in concepts.partition("## ")[0].splitlines() if line.startswith("| `")]
    for each in backend_registry.descriptions():
        assert re.search(rf"\b{each.choice}\b", row)
        (named,) = (line.split("|")[2] for line in table if f"`{each.choice}`" in line.split("|")[1])
        assert tuple(re.findall(r"{(\w+):(?! NAME, )", named)) == each.secrets.sources


def test_keys_page_tells_default_and_bounds(pages):
    assert "| `micro_train_batch_size` | whole number, ≥ 1, ≤ 2147483647 | `1` |" in pages[KEYS]
    assert re.search(r"\| `trainer_type` \| `sft` or `dpo` \| differs: `dpo`, `sft` \|", pages[KEYS])


def test_commands_page_has_every_command_with_its_help(pages):
    assert {"render", "launch", "logs"} <= set(re.findall(r"^## recipes (.+)$", pages[COMMANDS], re.M))
    assert "Launch a bundle that was rendered earlier and follow the job." in pages[COMMANDS]


@pytest.mark.slow
def test_stale_tells_missing_and_changed_pages_and_write_mends_them(tmp_path, pages):
    assert reference.write(tmp_path, GROUP) == [*pages, reference.ARCHITECTURE]
    (tmp_path / RULES).write_text("old", encoding="utf-8")
    assert reference.stale(tmp_path, GROUP) == [RULES]
    assert reference.write(tmp_path, GROUP) == [RULES]
    readme = tmp_path / reference.README
    readme.write_text("# Launcher\n- **1 recipes** (list)\n", encoding="utf-8")
    assert reference.stale(tmp_path, GROUP) == reference.write(tmp_path, GROUP) == [reference.README]
    assert readme.read_text("utf-8") == f"# Launcher\n- **{len(shipped())} recipes** (list)\n"
    assert reference.stale(tmp_path, GROUP) == []
