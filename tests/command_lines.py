"""Command lines that nobody would write, over `main.py` and `recipes`, and what becomes of each.

`python tests/command_lines.py SEED COUNT` runs COUNT of them in one process, in a folder of its own, and prints as
JSON which ended with exit code 1, with a traceback or too late. Nothing is submitted: every `main.py` line is a dry
run, and no cluster can be reached.
"""

import functools
import importlib.util
import json
import logging
import os
import random
import re
import resource
import shlex
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 60
"""Seconds of processor time after which a command line counts as one that does not answer."""
_MOST_MEMORY = 6 << 30
"""Bytes of address space: a command line that wants more fails instead of filling the machine."""
LLAMA = "fine-tuning/llama/llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora"
_TINY = "training/tiny/tiny_lm_cpu"
_RECIPES = (
    *(LLAMA, _TINY, "training/custom/script", "fine-tuning/llama/llmft_llama3_1_8b_instruct_seq4k_gpu_dpo"),
    *("own.yaml", "größe.yaml", "it's {my}, (1) = recipe.yaml", "bad.yaml", "odd.yaml", "sub", "absent.yaml", ""),
)
_NEEDED = ("cluster=sm_jobs", "cluster.sm_jobs_config.role=arn:aws:iam::123456789012:role/train")
_SCRIPT = ("recipes=training/custom/script", "container=img:1", "training_cfg.entry_module=json.tool")
_SIZED = "training_cfg.run.ntasks_per_node=2"
_ELASTIC = "++recipes.elastic_policy.is_elastic=true"
JOBS = (
    (f"recipes={LLAMA}", "cluster=k8s"),
    (f"recipes={LLAMA}", "cluster=k8s", _ELASTIC),
    (f"recipes={LLAMA}", "cluster=k8s", _ELASTIC, "++recipes.scale_config=auto"),
    (f"recipes={LLAMA}", *_NEEDED, "cluster.sm_jobs_config.output_path=s3://results/out"),
    ("recipes=own.yaml", "cluster=k8s", _ELASTIC),
    (f"recipes={_TINY}", "cluster=local"),
    (f"recipes={_TINY}", "cluster=k8s", "container=img:1", "instance_type=m5.2xlarge"),
    (*_SCRIPT, _SIZED, "cluster=k8s", "instance_type=m5.2xlarge"),
    (*_SCRIPT[:1], *_SCRIPT[2:], _SIZED, "cluster=local"),
)
"""Command lines without fault."""
_CLUSTERS = (
    *("k8s", "local", "sm_jobs", "sm_local", "slurm", "k8s", "local", "contract/sagemaker", "K8S", "null", "[k8s]"),
    *("", "../k8s"),
)
_PLAIN = (
    *("0", "1", "2", "3", "8", "16", "100", "0.1", "1e-4", "true", "false", "null", "x", "[]", "{}", "[x]", "{a: 1}"),
    *("/data",),
)
_NUMBERS = (
    *("0", "-1", "1", "2", "3", "7", "16", "100", "4096", "5001", "20000", "100000", "1000000000", "2147483648"),
    *("9223372036854775807", "9223372036854775808", "9" * 60, "9" * 4500, "-" + "9" * 400, "1e400", "-1e400"),
    *("1e-400", "0.5", "1e4", "1e300", "nan", "inf", "-inf", "0x10", "0b1", "1_000", "007", "+5", "1.", ".5", "1:30"),
)
_TEXTS = (
    *("", "null", "~", "???", "true", "False", "yes", "auto", "x", "a b", "'a, b'", '"', "'", "\\", "\\n", "\n"),
    *("\t", "\r", "größe", "gro\u0308ße", "\u202e", "\u2028", "\x85", "\x07", "\x1b[31m", "🦙", "\ufeff", "\udcff"),
    *("日本", "a" * 5000, "/", "..", "../../etc/passwd", "~", "-", "--", "=", "a=b", "@", "$", "$HOME", "${", "${}"),
    *("${x}", "${recipes}", "${recipes.run.name}", "${oc.env:HOME}", "${oc.env:NOT_SET}", "${multiply:2,x}"),
    *("${divide_ceil:1,0}", "${add:}", "${.name}", "${..name}", "${....x}", "${a.b", "$${x}", "${oc.decode:'['}"),
    *("${oc.select:recipes.run,1}", "s3://b/k", "${oc.create:{a:1}}", "${oc.dict.keys:recipes}"),
    *("${hydra:runtime.cwd}", "${now:%Y}", "${nosuch:1}", "%s", "%d", "{{x}}", "{% raw %}", "ml.p5.48xlarge"),
    *("ml.m5.2xlarge", "p5.48xlarge", "ml.zz.1xlarge", "hf_" + "a" * 34, "-1e", "1 2", "a,b", "#", "!x", "&a", "*a"),
    *("|", ">", "[", "]", "{", "}", "(", ")", "a:b", "a: b", ":", "::", ";"),
)
_SWEEPS = (
    *("1,2", "a,b,c", "range(1,4)", "range(0,1,0.1)", "range(1,1000000000)", "range(0,1,1e-9)", "range(1,2,0)"),
    *("glob(*)", "choice(a,b)", "choice()", "interval(0,1)", "sort(3,2,1)", "shuffle(1,2,3)", "tag(x,1,2)"),
    *("int(3.5)", "str(3)", "float(x)", "bool(maybe)", "json_str({a:1})", "nosuch(1)", "range(a,b)", "interval(1)"),
    *("1,", ",", "cast(1)", "choice(a,b),c", "sort(a,1)", "range(1,9999999999999999999999)", "extend_list(1,2)"),
    *("list(1)", "dict(1)"),
)
_KEYS = (
    *("recipes", "cluster", "hydra", "hydra.run.dir", "hydra.searchpath", "hydra/launcher", "hydra.verbose"),
    *("dry_run", "recipes.scale_config", "recipes.scale_config.3", "recipes.scale_config.x"),
    *("recipes.scale_config.3.trainer", "recipes.elastic_policy", "recipes.elastic_policy.max_nodes"),
    *("recipes.elastic_policy.min_nodes", "recipes.elastic_policy.replica_increment_step"),
    *("recipes.elastic_policy.is_elastic", "recipes.planner", "recipes.elastic_policy.preemption"),
    *("recipes.planner.sizes", "recipes.planner.learning_rate", "recipes.planner.max_micro_batch_size"),
    *("recipes.extra_keys", "recipes.resources", "recipes.resources.memory", "recipes.checkpointing"),
    *("recipes.checkpointing.tiers", "recipes.distribution", "recipes.training_cfg", "training_cfg.entry_script"),
    *("training_cfg.entry_module", "training_cfg.script_args", "training_cfg.run"),
    *("training_cfg.run.ntasks_per_node", "training_cfg", "recipes.trainer", "recipes.run"),
    *("recipes.training_config", "recipes.training_config.training_args"),
    *("recipes.training_config.training_args.uneven_batch", "env_vars", "env_vars.X", "env_vars.HF_TOKEN"),
    *("git.token", "git.repo_url_or_path", "cluster.namespace", "cluster.command", "cluster.volumes"),
    *("cluster.volumes.0", "cluster.volumes.0.hostPath", "cluster.persistent_volume_claims", "cluster.run_policy"),
    *("cluster.custom_labels", "cluster.annotations", "cluster.label_selector", "cluster.x", "cluster.contract"),
    *("cluster.contract.inputs", "cluster.sm_jobs_config", "cluster.sm_jobs_config.inputs"),
    *("cluster.sm_jobs_config.additional_estimator_kwargs", "cluster.scenario", "cluster.log_monitoring_config"),
    *("cluster.cleanPodPolicy", "cluster.pod_config", "cluster.tolerations", "cluster.security_context", "defaults"),
    *("base_results_dir", "instance_type", "container", "cluster_type", "server_dry_run", "wait", "debug", "a"),
    *("a.b", "a.b.c.d.e", "0", "recipes.0", "recipes.run.name.x", "größe", "recipes/x", "cluster/contract"),
    *("recipes@x", "x@y", "@", ".", "..", "recipes.", ".recipes", "recipes..run", "recipes[run]"),
    *("recipes.run[name]", "", "a b", "-x", "1.5"),
)
_FLAGS = (
    *(
        ["--cfg", "job"],
        ["--cfg", "all"],
        ["--cfg", "hydra"],
        ["-c", "job"],
        ["--cfg"],
        ["--cfg", "x"],
        ["--resolve"],
    ),
    *(["--cfg", "job", "--resolve"], ["--cfg", "job", "--package", "recipes.run"], ["--cfg", "job", "-p", "x.y"]),
    *(["--info"], ["--info", "all"], ["--info", "config"], ["--info", "defaults"], ["--info", "defaults-tree"]),
    *(["--info", "plugins"], ["--info", "searchpath"], ["--info", "x"], ["-i"], ["--help"], ["-h"], ["--hydra-help"]),
    *(["--version"], ["--run"], ["-r"], ["--multirun"], ["-m"], ["--multirun", "--cfg", "job"], ["--run", "-m"]),
    *(
        ["--shell-completion", "install=bash"],
        ["-sc", "query=bash"],
        ["-sc", "install=x"],
        ["-sc"],
        ["-sc", "query=zsh"],
    ),
    *(["--config-dir", "."], ["--config-dir", "absent"], ["-cd", "sub"], ["--config-dir"], ["--config-name", "x"]),
    *(["--config-name", "config"], ["--config-path", "."], ["-cp", "/x"], ["--experimental-rerun", "own.yaml"]),
    *(["--experimental-rerun", "absent"], ["--resol"], ["--nosuch"], ["-x"], ["--"], ["-"], ["--help", "--resolve"]),
    *(["--package", "x"], ["--dry-run"], ["--recipes", "x"], ["-m", "-m"], ["--cfg=job"], ["--info=all"], ["-mc"]),
)
_MORE = re.compile(r"(^| )-|debug=true|server_dry_run")
"""Words of `main.py` that are not overrides, or do more than compile."""
_FILES = {
    "own.yaml": f"defaults:\n  - /recipes/{LLAMA}@_here_\n  - _self_\nrun: {{name: mine}}\n",
    "größe.yaml": f"defaults:\n  - /recipes/{_TINY}@_here_\n  - _self_\n",
    "it's {my}, (1) = recipe.yaml": f"defaults:\n  - /recipes/{_TINY}@_here_\n  - _self_\n",
    "bad.yaml": "defaults: [absent@_here_, _self_]\nrun: [x\n",
    "prices.yaml": "ml.p5.48xlarge: 98.3\nml.m5.2xlarge: x\n",
    "config.json": '{"hidden_size": 99999999999, "num_hidden_layers": 1000000000, "vocab_size": -1}',
    "sub/recipes/team/mine.yaml": f"defaults:\n  - /recipes/{_TINY}@_here_\n  - _self_\n",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one command line.

    Args:
        program: `main.py` or `recipes`.
        words: What follows it.
        code: Its exit code; 1 for an exception that nothing caught.
        seconds: How long it took.
        fault: The traceback, or what else is wrong with how it ended; empty where nothing is.
        file: The recipe file `odd.yaml` at that time, where the words name it.
    """

    program: str
    words: tuple[str, ...]
    code: int
    seconds: float
    fault: str
    file: str = ""


class TooSlow(BaseException):
    """A command line has not ended within its limit."""


class CommandLines:
    """Random command lines: a valid one, of which some words are replaced, or others added.

    Args:
        seed: Of the random numbers: the same seed gives the same command lines.
        known: Dotted path and value of every leaf of each of `JOBS`.
        bundles: Folders of bundles that the commands about jobs may name.
    """

    def __init__(self, seed: int, known: list[dict[str, Any]], bundles: list[str]):
        self._random = random.Random(seed)
        self._known = known
        self._values = known[0]  # of the command line under way
        self._bundles = bundles

    def __iter__(self) -> Iterator[tuple[str, list[str]]]:
        while True:
            if self._random.random() < 0.4:
                Path("odd.yaml").write_text(self.file(), encoding="utf-8", errors="surrogatepass")
            yield ("main.py", self.launch()) if self._random.random() < 0.6 else ("recipes", self.command())

    def values(self) -> tuple[Any, dict[Any, Any]]:
        """Return a recipe and overrides as a program gives them to the Python API."""
        import api_lines

        self._values = self._pick(self._known)
        recipe = self._pick(api_lines.RECIPES if self._chance(0.1) else _RECIPES[:4])
        overrides = api_lines.hostile(self._random, self._values, self.data)
        return recipe, overrides | ({"cluster": self._pick(_CLUSTERS)} if self._chance(0.7) else {})

    def _pick(self, choices):
        return self._random.choice(choices)

    def _chance(self, part: float) -> bool:
        return self._random.random() < part

    def launch(self) -> list[str]:
        """Return the words of one `main.py`; a dry run."""
        number = self._random.randrange(len(JOBS))
        self._values = self._known[number]
        words = [word for word in JOBS[number] if self._chance(0.98)]
        words = [self.recipe() if word.startswith("recipes=") and self._chance(0.1) else word for word in words]
        if self._chance(0.05):
            words.append(f"cluster={self._pick(_CLUSTERS)}")
        words += self.overrides(4)
        if self._chance(0.03):
            self._random.shuffle(words)
        if self._chance(0.06):
            words += self._pick(_FLAGS)
            if words[-1] in ("--multirun", "-m") and self._chance(0.7):
                words.append(f"{self._pick(list(self._values))}={self._pick(_SWEEPS)}")
        if self._chance(0.97):
            words.append("++recipes.training_config.mlflow.enabled=false")
        return [*words, "dry_run=true"]

    def recipe(self) -> str:
        """Return a choice of a recipe, as a rule of one that exists."""
        name = self._pick(_RECIPES[:4] if self._chance(0.6) else _RECIPES)
        if self._chance(0.15):
            name = "odd.yaml"
        if self._chance(0.05):
            name = self.text()
        return f"recipes='{name}'" if self._chance(0.5) else f"recipes={name}"

    def overrides(self, most: int) -> list[str]:
        """Return up to `most` overrides of every form."""
        return [self.override() for _ in range(min(most, self._pick((0, 1, 1, 1, 2, 2, 3, 4))))]

    def override(self) -> str:
        """Return one override, or something like it."""
        sign = self._pick(("", "", "", "+", "++", "++", "++", "~"))
        key = self._pick(list(self._values)) if self._chance(0.8) else self._pick(_KEYS)
        if self._chance(0.05):
            key += self._pick(
                (".x", ".0", ".9999999999", "[0]", "@x", "/y", ".größe", ".a.b.c", "@:x", ".", "=", " ")
            )
        if key in ("dry_run",) or (sign == "~" and self._chance(0.8)):
            return f"~{'a' if key == 'dry_run' else key}"
        if self._chance(0.02):
            return self.text()
        return f"{sign}{key}={self.like(self._values.get(key)) if self._chance(0.6) else self.value()}"

    def like(self, value: Any) -> str:
        """Return what may stand behind the `=` in place of a value, of the same type as a rule."""
        if isinstance(value, bool):
            return self._pick(("true", "false", "null"))
        if isinstance(value, int):
            return self._pick((str(value), str(value + 1), str(2 * value), *_NUMBERS[:12]))
        if isinstance(value, float):
            return self._pick(("0.1", "1e-4", "1", "0", "-1", "1e300", "nan"))
        if isinstance(value, str):
            return self._pick(("x", "/data/x", "x-1", "a/b", value if value.isalnum() else "x", self.text()))
        if isinstance(value, list):
            return self._pick(("[]", "[x]", "[1,2]", "[a b]", "null", self.value()))
        return self._pick(("x", "1", "true", "[x]", "{}", "{a: x}", "null", self.value()))

    def value(self, depth: int = 0) -> str:
        """Return what stands behind the `=`."""
        if self._chance(0.4):
            return self._pick(_PLAIN)
        kind = self._random.random()
        if kind < 0.3:
            return self._pick(_NUMBERS)
        if kind < 0.65 or depth > 3:
            return self.text()
        if kind < 0.68:
            return self._pick(_SWEEPS)
        if kind < 0.71:
            return self.nested()
        parts = [self.value(depth + 1) for _ in range(self._random.randint(0, 3))]
        if kind < 0.85:
            return f"[{','.join(parts)}]"
        keys = (
            "a",
            "name",
            "3",
            "0",
            "1.5",
            "true",
            "null",
            "x y",
            "'q'",
            "größe",
            "trainer",
            "key",
            "enabled",
            "path",
        )
        return f"{{{', '.join(f'{self._pick(keys)}: {part}' for part in parts)}}}"

    def text(self) -> str:
        """Return a text, at times between quotes."""
        text = self._pick(_TEXTS)
        return self._pick(("{}", "'{}'", "'{}'", '"{}"')).replace("{}", text)

    def nested(self) -> str:
        """Return something nested."""
        depth = self._pick((5, 65, 70, 200, 1000, 20_000))
        opening, closing = self._pick((("[", "]"), ("{a:", "}"), ("(", ")"), ("[{a:", "}]"), ("${", "}"), ("[", "")))
        return opening * depth + "1" + closing * depth

    def file(self) -> str:
        """Return the text of a recipe's file: valid YAML with odd values, as a rule."""
        lines = [f"defaults: [/recipes/{self._pick(_RECIPES[:4])}@_here_, _self_]"] if self._chance(0.9) else []
        tree: dict = {}
        for _ in range(self._random.randint(0, 4)):
            node, path = (
                tree,
                self._pick(list(self._values) if self._chance(0.9) else _KEYS).removeprefix("recipes.").split("."),
            )
            for part in path[:-1]:
                node = node.setdefault(part, {})
                if not isinstance(node, dict):
                    break
            else:
                node[path[-1]] = self.data()
        lines += [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in tree.items()]
        if self._chance(0.1):
            lines.insert(self._random.randint(0, len(lines)), f"x: {self.value()}")
        return "\n".join(lines) + "\n"

    def data(self, depth: int = 0):
        """Return a value as JSON has it."""
        kind = self._random.random()
        if kind < 0.3:
            return self._pick((0, -1, 1, 3, 16, 100, 0.5, 10**9, 2**63, 10**60, 1e300, -2.5, True, False, None))
        if kind < 0.7 or depth > 3:
            return self._pick((*_TEXTS, "\0", "a\0b", "\ud800"))
        if kind < 0.85:
            return [self.data(depth + 1) for _ in range(self._random.randint(0, 3))]
        keys = ("a", "3", "0", "", "name", "x.y", "größe", "3.trainer")
        return {self._pick(keys): self.data(depth + 1) for _ in range(self._random.randint(0, 3))}

    def command(self) -> list[str]:
        """Return the words of one `recipes`."""
        name = self._pick(list(_COMMANDS))
        words = [name, *(word for word in (self._argument(each) for each in _COMMANDS[name]) if word is not None)]
        words += self._options(name)
        if self._chance(0.05):
            words.insert(
                self._random.randint(0, len(words)), self._pick((*_TEXTS, "--help", "-x", "--nosuch=1", "--json"))
            )
        if self._chance(0.02):
            words[0] = self._pick((*_TEXTS, "plam", "--version"))
        return words

    def _options(self, name: str) -> list[str]:
        found = []
        for option, values in _OPTIONS.get(name, {}).items():
            if self._chance(0.2):
                found.append(option)
                if values is not None:
                    found.append(self._pick(values) if self._chance(0.8) else self._pick((*_NUMBERS, *_TEXTS)))
        return found

    def _argument(self, kind: str) -> str | None:
        if kind == "words":
            return self._pick(_TEXTS) if self._chance(0.5) else None
        if kind == "override":
            return self.override() if self._chance(0.5) else None
        if kind == "cluster":
            return "cluster=k8s" if self._chance(0.8) else f"cluster={self._pick(_CLUSTERS)}"
        if kind == "key":
            return self._pick(list(self._values) if self._chance(0.8) else _KEYS)
        if kind == "bundle":
            return self._pick((*self._bundles, *_TEXTS[:20], ".", "sub", "/", "results"))
        if kind == "recipe":
            name = self.recipe().removeprefix("recipes=").strip("'") if self._chance(0.7) else self._pick(_TEXTS)
            return name + (f"@{self._pick(_NUMBERS)}" if self._chance(0.1) else "")
        if kind == "team":
            key = self._pick(
                ("team", "instance_type", "nodes", "namespace", "x", "weight", "quota", "users", "borrowing")
            )
            return f"{key}={self.value()}" if self._chance(0.8) else f"team={self._pick(('a', 'b-c'))}"
        return self.text()


_RECIPE_WORDS = ("recipe", "cluster", "override", "override", "override")
_COMMANDS: dict[str, tuple[str, ...]] = {
    "list": ("words", "words", "override"),
    "show": _RECIPE_WORDS,
    "explain": ("recipe", "key", "cluster", "override", "override"),
    "diff": ("recipe", "recipe", "cluster", "override"),
    "check": _RECIPE_WORDS,
    "plan": _RECIPE_WORDS,
    "ranks": _RECIPE_WORDS,
    "checkpoint": _RECIPE_WORDS,
    "render": _RECIPE_WORDS,
    "new": ("text",),
    "launch": ("bundle",),
    "jobs": ("bundle",),
    **{name: ("bundle",) for name in ("status", "logs", "events", "wait", "scale", "cancel", "timeline", "pods")},
    "exec": ("bundle", "words"),
    "port-forward": ("bundle", "text"),
    "adopt": ("text",),
    "cluster": (),
    "governance": ("team", "team", "team", "team"),
    "container": (),
    "schema": ("words",),
    "rules": ("words", "words"),
}
_FLAG = None
_WHERE = {"--context": ("x",), "--namespace": ("x", "A_B"), "--json": _FLAG}
_PICTURES = ("p.svg", "p.png", "p.txt", "absent/p.svg", "sub")
_OPTIONS: dict[str, dict[str, tuple[str, ...] | None]] = {
    "list": {"--family": ("llama",), "--model": ("x",), "--technique": ("dpo",), "--elastic": _FLAG, "--json": _FLAG},
    "show": {"--full": _FLAG, "--json": _FLAG},
    "explain": {"--json": _FLAG},
    "check": {"--json": _FLAG, "--github": _FLAG},
    "plan": {"--picture": _PICTURES, "--prices": ("prices.yaml", "own.yaml"), "--hours": ("1",), "--json": _FLAG},
    "ranks": {
        **{name: ("1", "2", "8", "1000000000") for name in ("--hosts", "--processes", "--partitions", "--tensor")},
        **{"--strategy": ("cluster", "spread", "PTD", "XYZ"), "--picture": _PICTURES, "--json": _FLAG},
    },
    "checkpoint": {
        **{"--parameters": ("70e9",), "--config": ("config.json", "own.yaml"), "--failures-per-node-hour": ("0.1",)},
        **{"--mtbf-hours": ("5",), "--bandwidth": ("storage=1", "x", "copy=0"), "--restart-s": ("1",)},
        **{"--step-s": ("1",), "--picture": _PICTURES, "--json": _FLAG},
    },
    "render": {"--stdout": _FLAG},
    "new": {"--from": (_TINY, LLAMA, "own.yaml")},
    "jobs": {"--cluster": _FLAG, "--all-namespaces": _FLAG, **_WHERE},
    **{name: {"--json": _FLAG} for name in ("status", "events", "cancel", "timeline", "pods")},
    "wait": {"--timeout": ("0", "0.1"), "--json": _FLAG},
    "logs": {
        **{"--rank": ("0", "99"), "--all-ranks": _FLAG, "--attempt": ("0",), "--stderr": _FLAG, "--json": _FLAG},
        "--operator": _FLAG,
    },
    "scale": {"--nodes": ("1", "3"), "--min-nodes": ("1",), "--json": _FLAG},
    "exec": {"--rank": ("0",)},
    "port-forward": {"--rank": ("0",)},
    "adopt": {"--kind": ("PyTorchJob",), "--as": ("x",), "--context": ("x",), "--namespace": ("x",)},
    "cluster": _WHERE,
    "governance": {"--out": ("out",), "--json": _FLAG, "--cluster": _FLAG},
    "container": {"--base": ("img:1",), "--out": ("image",)},
    "schema": {"--out": ("schema.json", "absent/x")},
    "rules": {"--json": _FLAG},
}


def known_values(jobs: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Return the dotted path and value of every leaf of each job."""
    from launcher.config.compose import compose
    from launcher.model.config_tree import leaves

    trees = (compose(words, Path.cwd()).tree for words in jobs)
    return [{path: value for path, value in leaves(tree) if path != "dry_run"} for tree in trees]


def prepare_folder() -> list[str]:
    """Write recipe files, bundles and damaged bundles into the current folder; return the bundles."""
    for name, text in _FILES.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    Path("odd.yaml").write_text(_FILES["own.yaml"], encoding="utf-8")
    _make_store()
    run("main.py", [f"recipes={_TINY}", "cluster=local", "dry_run=true"], limit_s=0)
    bundles = []
    for words in JOBS:
        outcome = run("main.py", [*words, "++recipes.training_config.mlflow.enabled=false", "dry_run=true"])
        assert outcome.code == 0, outcome
    for folder in sorted(manifest.parent for manifest in Path("results").glob("*/bundle.json")):
        for damage in ("", "bundle.json", "job.json", "resolved.yaml"):
            bundles.append(_damaged(folder, damage))
    return bundles


def _make_store() -> None:
    """Make an MLflow store where launches look for one: it takes longer than a command may."""
    from mlflow import MlflowClient

    Path("results").mkdir()
    MlflowClient(tracking_uri="sqlite:///results/mlflow.db").search_experiments()


def _damaged(folder: Path, name: str) -> str:
    import shutil

    other = Path("results", f"{folder.name[:5]}-{name.partition('.')[0] or 'sound'}")
    shutil.copytree(folder, other, dirs_exist_ok=True)
    if name:
        (other / name).write_text('{"backend": "k8s", "x": [1]}', encoding="utf-8")
    return str(other)


@functools.cache
def _main_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("main_of_launcher", ROOT / "main.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(program: str, words: Sequence[str], limit_s: int = LIMIT_S) -> Outcome:
    """Run one command line in this process, its output kept from the terminal; 0 for `limit_s` sets no limit."""
    streams = [tempfile.TemporaryFile("w+", encoding="utf-8") for _ in range(2)]  # noqa: SIM115
    before = sys.argv, sys.stdout, sys.stderr
    sys.argv, sys.stdout, sys.stderr = [program, *words], *streams
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    began, fault = time.perf_counter(), ""
    try:
        code = _called(program, words)
    except TooSlow:
        code, fault = 1, f"no answer within {limit_s} s of processor time\n{traceback.format_exc(limit=-6)}"
    except BaseException:  # whatever it is, the program would have ended with it
        code, fault = 1, traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.argv, sys.stdout, sys.stderr = before
    seconds = time.perf_counter() - began
    texts = list(map(_read, streams))
    written = "".join(texts)
    if not fault and ("Traceback (most recent call last)" in written and "debug=true" not in " ".join(words)):
        fault = written[written.index("Traceback (most") :]
    if not fault and code not in (0, 2, 3):
        fault = f"exit code {code}"
    if not fault and program == "main.py" and words[0].startswith("recipes=") and not _MORE.search(" ".join(words)):
        import api_lines

        fault = api_lines.fault_of_words(words, code, texts[1])
    file = Path("odd.yaml").read_bytes().decode("utf-8", "replace") if "odd.yaml" in " ".join(words) else ""
    return Outcome(program, tuple(words), code, seconds, fault, file if fault else "")


def _read(stream: TextIO) -> str:
    with stream:
        stream.seek(0)
        return stream.buffer.read().decode("utf-8", "replace")


def _called(program: str, words: list[str]) -> int:
    from launcher.common import process

    process.begin()
    try:
        if program == "main.py":
            return _main_module().main()
        from launcher.cli import main as cli

        return cli.run(words)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)


def alone() -> None:
    """Keep this process from any cluster, cloud or settings of the user's, and from all of the machine's memory."""
    from launcher.cli import launch as launching

    home = Path.cwd() / "home"
    home.mkdir(exist_ok=True)
    os.environ |= {"HOME": str(home), "KUBECONFIG": str(home / "absent"), "AWS_EC2_METADATA_DISABLED": "true"}
    os.environ |= {"AWS_CONFIG_FILE": str(home / "aws"), "AWS_SHARED_CREDENTIALS_FILE": str(home / "credentials")}
    launching.launch = lambda bundle, backend_name, *, wait=False, is_again=False: 0
    logging.raiseExceptions = False  # handlers that libraries keep write to a stream of an earlier command line
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))

    def stop(*_):
        raise TooSlow

    signal.signal(signal.SIGPROF, stop)


def outcomes(seed: int, count: int, folder: Path) -> Iterator[Outcome]:
    """Run `count` random command lines in a folder."""
    os.chdir(folder)
    alone()
    bundles = prepare_folder()
    random_lines = CommandLines(seed, known_values(JOBS), bundles)
    lines = iter(random_lines)
    for number in range(count):
        program, words = next(lines)
        yield run(program, [word.replace("\0", "") for word in words])
        if number % 2:
            yield run_values(*random_lines.values())


def run_values(recipe: Any, overrides: dict[Any, Any]) -> Outcome:
    """Compile by the Python API, and check the same by a command line."""
    import api_lines

    from launcher.cli import main as cli
    from launcher.common.texts import object_text

    began = time.perf_counter()
    fault = api_lines.fault_of_values(recipe, overrides, cli.run)
    shown = tuple(map(object_text, (recipe, overrides, *(fault and [*overrides, *overrides.values()]))))
    return Outcome("compile", shown, 0, time.perf_counter() - began, fault)


def main() -> None:
    seed, count = map(int, sys.argv[1:3])
    codes, faults, slowest = Counter(), [], []
    with tempfile.TemporaryDirectory() as folder:
        for outcome in outcomes(seed, count, Path(folder)):
            codes[outcome.code] += 1
            slowest = sorted([*slowest, (outcome.seconds, f"{outcome.program} {shlex.join(outcome.words)[:300]}")])[
                -5:
            ]
            if outcome.fault:
                faults.append(asdict(outcome))
                print(json.dumps(faults[-1]), file=sys.stderr, flush=True)
        os.chdir(ROOT)
    print(json.dumps({"codes": codes, "faults": faults, "slowest": slowest}))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
