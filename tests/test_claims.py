"""What docs and docstrings claim of the code as a whole: a claim that no check holds becomes false."""

import ast
import functools
import itertools
import os
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping

import pytest
from conftest import ROOT

from launcher.model import backend_registry

LAUNCHER = ROOT / "launcher"
MODULES = {path.relative_to(ROOT).as_posix(): path for path in sorted(LAUNCHER.rglob("*.py"))}
PACKAGES = {path.parent.name for path in LAUNCHER.glob("*/__init__.py")}
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]


@functools.cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def package(module: str) -> str:
    """Return the package of a module, as the page of the architecture lists it."""
    return module.split("/")[1].removesuffix(".py")


def functions(module: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree(module)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


# CONTRIBUTING.md, "How code is written"


@pytest.mark.slow
def test_functions_have_at_most_60_lines_few_of_them_more_than_40_and_modules_at_most_500():
    lengths = {
        f"{module}:{each.name}": each.end_lineno - each.lineno + 1 for module in MODULES for each in functions(module)
    }
    assert {name: length for name, length in lengths.items() if length > 60} == {}
    assert sum(length > 40 for length in lengths.values()) / len(lengths) < 0.01
    sizes = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in MODULES.items()}
    assert {module: size for module, size in sizes.items() if size > 500} == {}


MUTABLE = {"launcher/config/hydra_compose.py:LoadedFile"}
"""Values of `config` that are filled once, before anything else has them."""


@pytest.mark.slow
def test_values_that_pass_between_packages_are_frozen():
    stages = PACKAGES - {"backends", "cli", "operator", "runtime"}  # which hold processes, files and windows
    mutable = {
        f"{module}:{node.name}"
        for module in MODULES
        if package(module) in stages
        for node in ast.walk(tree(module))
        if isinstance(node, ast.ClassDef)
        for decorator in map(ast.unparse, node.decorator_list)
        if decorator.startswith("dataclass") and "frozen=True" not in decorator
    }
    assert mutable == MUTABLE


@pytest.mark.slow
def test_arguments_that_a_docstring_explains_are_those_of_its_function_or_class():
    faults = []
    for module, node in ((name, each) for name in MODULES for each in ast.walk(tree(name))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            section = re.search(r"^Args:\n((?:    .*\n|\n)*)", f"{ast.get_docstring(node)}\n", re.M)
            named = re.findall(r"^    \*{0,2}(\w+)(?: \([^)]*\))?:", section[1], re.M) if section else []
            faults += [f"{module}:{node.name}: {name}" for name in named if name not in _accepted(node)]
    assert faults == []


def _accepted(node: ast.AST) -> set[str]:
    """Return the parameters of a function; of a class, those that it is made with, and its fields."""
    if not isinstance(node, ast.ClassDef):
        return {arg.arg for arg in ast.walk(node.args) if isinstance(arg, ast.arg)}
    own = {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            own |= _accepted(each)
            own |= {n.attr for n in ast.walk(each) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    return own


# Names that a mass rename may hit: of modules, files and folders


def text_files() -> Iterator[tuple[str, str]]:
    """Yield the path and text of every file of the repository that is text, but for recorded outputs."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    names = listed.stdout.split("\n") if listed.returncode == 0 else map(str, MODULES)
    for name in filter(None, names):
        if not name.startswith(("tests/golden/", "launcher_scripts/")) and (ROOT / name).is_file():
            try:
                yield name, (ROOT / name).read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


DOTTED = re.compile(r"(?<![\w/.-])launcher(?:\.[a-z]\w*){2,}")
PATH = re.compile(
    r"(?<![\w./-])(?:launcher|tests|benchmarks|recipes_collection|examples)(?:/[\w.-]+)*/[\w-]+\.(?:py|sh|yaml|toml|csv)\b"
)
MADE_UP = {"launcher.families.made_up"}
ELSEWHERE = {"examples/custom_model/custom_pretrain.py"}
"""Paths in other repositories."""


@pytest.mark.slow
def test_every_module_and_file_of_this_repository_that_a_text_names_exists():
    absent = []
    for name, text in text_files():
        absent += [f"{name}: {dotted}" for dotted in set(DOTTED.findall(text)) - MADE_UP if not _exists(dotted)]
        absent += [f"{name}: {path}" for path in set(PATH.findall(text)) - ELSEWHERE if not (ROOT / path).is_file()]
    assert absent == []


def _exists(dotted: str) -> bool:
    """Return whether a name is a module or a package, or a name in one."""
    words = dotted.split(".")
    for count in range(len(words), 0, -1):
        path = ROOT.joinpath(*words[:count])
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                rest = words[count:]
                return not rest or re.search(rf"\b{rest[0]}\b", file.read_text(encoding="utf-8")) is not None
    return False


# docs/architecture.md, "Where a bound belongs"


def test_the_pattern_of_a_key_has_a_form_in_words():
    texts = {module: path.read_text(encoding="utf-8") for module, path in MODULES.items()}
    assert "TextForm(pattern=" in texts["launcher/model/recipe.py"]
    assert [module for module, text in texts.items() if re.search(r"(?<!TextForm)\(([^()]*, )?pattern=", text)] == []


@pytest.mark.slow
def test_rules_are_registered_only_where_the_scheme_places_them():
    places = {
        module
        for module in MODULES
        for each in functions(module)
        for decorator in map(ast.unparse, each.decorator_list)
        if re.match(r"(sm_|notice_)?rule\(", decorator)
    }
    allowed = re.compile(r"launcher/((backends|families)/\w+/)?rules(\.py$|/)")
    assert {each for each in places if not allowed.match(each)} == set()


def test_a_backends_rules_are_those_of_its_package_and_of_one_whose_jobs_it_runs():
    found = {each.name: {rules.split(".")[2] for rules in each.rules()} for each in backend_registry.descriptions()}
    assert found == {
        "local": {"local"},
        "contract": {"sagemaker", "sagemaker_local"},
        "k8s": {"kubernetes"},
        "ray": {"ray"},
        "slurm": {"slurm"},
        "sm_jobs": {"sagemaker"},
    }


@pytest.mark.slow
def test_what_benchmarks_import_exists():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", "benchmarks"]
    # Options that this run was given, such as --no-skips, are of tests/conftest.py alone.
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    collected = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert collected.returncode == 0, collected.stdout


# docs/architecture.md, "The import rule"


def test_the_contracts_about_hydra_hold_for_every_other_package():
    (contract,) = (each for each in CONTRACTS if each["name"] == "Only config imports Hydra")
    assert {name.removeprefix("launcher.") for name in contract["source_modules"]} == {*PACKAGES, "pipeline"} - {
        "config"
    }


def test_commands_import_the_api_and_common_only():
    name = "Commands and the page import the API and common only"
    (contract,) = (each for each in CONTRACTS if each["name"] == name)
    forbidden = {name.removeprefix("launcher.") for name in contract["forbidden_modules"]}
    assert forbidden == {*PACKAGES, "pipeline"} - {"api", "cli", "common", "ui"}


@pytest.mark.slow
def test_the_name_of_a_backend_is_in_its_package_the_registry_and_lists_for_people():
    names = {"k8s", "slurm", "sm_jobs", "sm_local", "local"}
    places = {
        module
        for module in MODULES
        if package(module) != "backends"
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Constant) and node.value in names
    }
    assert places == {
        "launcher/model/backend_registry.py",
        "launcher/config/choices.py",  # words of earlier versions
        "launcher/config/hydra_errors.py",  # words of other programs
    }


def modules_imported(module: str) -> set[str]:
    """Return the project's modules that a module imports, within functions too, but not for types alone."""
    known = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in MODULES}
    found = set()
    for node in _executed(tree(module)):
        if isinstance(node, ast.Import):
            named = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            named = [f"{node.module}.{each.name}" for each in node.names]
        else:
            continue
        for name in named:
            found |= {known[each] for each in (name, name.rpartition(".")[0]) if each in known}
    return {each for each in found if not each.endswith("__init__.py")}


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _executed(child)


def circles(imports: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the sets of modules each of which reaches all others of its set."""
    reached = {}
    for module in imports:
        seen, waiting = set(), [module]
        while waiting:
            for each in imports.get(waiting.pop(), ()):
                if each not in seen:
                    seen.add(each)
                    waiting.append(each)
        reached[module] = seen
    found = defaultdict(set)
    for one, other in itertools.combinations(imports, 2):
        if other in reached[one] and one in reached[other]:
            found[min(one, other)] |= {one, other}
    merged: list[set[str]] = []
    for circle in found.values():
        if not any(circle <= other for other in merged):
            merged.append(circle)
    return merged


@pytest.mark.slow
def test_no_module_imports_itself_through_others():
    assert not circles({module: modules_imported(module) for module in MODULES})


# docs/architecture.md, "The way of a launch": everything up to the bundle is pure

CHANGING = {
    "append",
    "add",
    "update",
    "setdefault",
    "pop",
    "popitem",
    "clear",
    "extend",
    "insert",
    "remove",
    "discard",
}
REMEMBERED = {
    "launcher/rules/__init__.py: _rules",  # filled by decorators, while modules are imported
}


@pytest.mark.slow
def test_no_stage_fills_a_value_of_its_module():
    stages = PACKAGES - {"runtime"}  # which is the training process
    assert {
        each for module in MODULES if package(module) in {*stages, "pipeline"} for each in _filled(module)
    } == REMEMBERED


def _filled(module: str) -> Iterator[str]:
    """Yield the names of a module that one of its functions binds or changes."""
    statements = (node for node in tree(module).body if isinstance(node, ast.Assign | ast.AnnAssign))
    targets = (t for node in statements for t in (node.targets if isinstance(node, ast.Assign) else [node.target]))
    own = {target.id for target in targets if isinstance(target, ast.Name)}
    for function in functions(module):
        nodes = list(ast.walk(function))
        bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        local = {node.arg for node in nodes if isinstance(node, ast.arg)} | bound
        yield from (f"{module}: {name}" for node in nodes if isinstance(node, ast.Global) for name in node.names)
        changed = {_changed(node) for node in nodes} & (own - local)
        yield from (f"{module}: {name}" for name in sorted(filter(None, changed)))


def _changed(node: ast.AST) -> str | None:
    """Return the name of a value that a node changes in place."""
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING
    is_item = isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)
    value = node.func.value if is_call else node.value if is_item else None
    return value.id if isinstance(value, ast.Name) else None


PURE = [
    module
    for module, path in MODULES.items()
    if "Pure" in path.read_text(encoding="utf-8")  # parsing them all takes longer than these tests
    and re.search(r"\bPure\b(?! but| for)", ast.get_docstring(tree(module)) or "")
]
OUTSIDE = {
    *(
        "open",
        "read_text",
        "write_text",
        "read_bytes",
        "write_bytes",
        "exists",
        "is_file",
        "is_dir",
        "iterdir",
        "glob",
    ),
    *("rglob", "mkdir", "unlink", "getenv", "getcwd", "cwd", "home", "time", "monotonic", "perf_counter"),
    *(
        "now",
        "today",
        "sleep",
        "Popen",
        "check_output",
        "urlopen",
        "token_hex",
        "random",
        "randint",
        "choice",
        "uuid4",
    ),
}
"""Calls and values by which a function learns, or changes, anything but its arguments."""


def test_some_modules_are_pure():
    assert len(PURE) > 20


@pytest.mark.parametrize("module", PURE)
def test_a_module_that_calls_itself_pure_reads_and_writes_nothing(module):
    nodes = list(ast.walk(tree(module)))
    called = {
        getattr(node.func, "attr", getattr(node.func, "id", "")) for node in nodes if isinstance(node, ast.Call)
    }
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)} & {"environ"}
    assert (called & OUTSIDE) | read == set()
    assert list(_filled(module)) == []
