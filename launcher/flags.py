"""Hydra's own flags: `--cfg`, `--help`, `--multirun`, `--config-dir` and the rest."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig

from launcher import console, redaction, slips
from launcher.chosen import CONFIG
from launcher.paths import COLLECTION
from launcher.problems import Problem, shown
from launcher.secret_forms import holds_token
from launcher.sources import USER_RECIPE, UserRecipe, register

_SIGNALLED = 128
"""Exit codes above this are of a job that a signal ended. Source: Bash manual, Exit Status."""


def serve(run: Callable[[Sequence[str]], int]) -> int:
    """Serve Hydra's own flags (`--cfg`, `--help`, `--multirun`, `--config-dir`, …) from `sys.argv`.

    Args:
        run: Called with the overrides of each job that the flags ask for.

    Returns:
        The exit code: the highest of the jobs', or 2 where Hydra itself refuses (it has said why).
    """
    if problems := (*_refused(sys.argv[1:]), *slips.of_flags(sys.argv[1:])):
        console.show_problems(problems)
        return 2
    known, rest = get_args_parser().parse_known_args(sys.argv[1:])
    if problems := slips.joined(known.overrides)[1]:
        console.show_problems(problems)
        return 2
    if unknown := [word for word in rest if word.startswith("-")]:
        problem = Problem("E801", unknown[0], "is no flag of Hydra's", remedy="python main.py --hydra-help")
        console.show_problems((problem,), "nothing was written or submitted")
        return 2
    register()
    from launcher import hydra_sweeper  # after register(), by which Hydra imports its own sweeper again

    hydra_sweeper.register()
    jobs: list[list[str]] = []
    user_recipes = [word for word in sys.argv[1:] if re.fullmatch(r"recipes=.*\.ya?ml", word)]
    sys.argv = [sys.argv[0], *_for_hydra(sys.argv[1:], user_recipes)]

    def collect(config: DictConfig) -> None:
        settings = HydraConfig.get()
        sources = settings.runtime.config_sources
        added = [_quoted(s.path) for s in sources if s.provider.endswith("command-line") and s.schema == "file"]
        words = [word for word in settings.overrides.task if word != f"recipes={USER_RECIPE}"]
        jobs.append([*words, *user_recipes, *([f"hydra.searchpath=[{','.join(added)}]"] if added else [])])

    try:
        hydra.main(config_path=str(COLLECTION), config_name=CONFIG, version_base="1.3")(collect)()
    except SystemExit as stop:
        return 2 if stop.code else 0
    codes = [0]
    for words in jobs:  # after Hydra's own run: what a job prints is not Hydra's
        codes.append(run(words))
        if codes[-1] > _SIGNALLED:  # the user has ended all of them
            break
    return max(codes)


def _refused(words: Sequence[str]) -> Iterator[Problem]:
    """Yield what Hydra must not see: it prints its configuration, repeats it in errors and writes it to files."""
    for word in words:
        if not word.startswith("-") and _has_secret(word):
            message = "a secret is named, never written: its value would end up in files and logs"
            yield Problem("E601", shown(word), message, allowed="{secretKeyRef: {name: …, key: …}} or {env: NAME}")
        elif word.lstrip("+").partition("=")[0] == "hydra.output_subdir":
            message = "would write the configuration beside the bundle, unchecked"
            yield Problem("E009", "hydra.output_subdir", message, remedy="leave it out")


def _has_secret(word: str) -> bool:
    """Return whether an override has a secret in it; one that cannot be parsed has, if it names one."""
    try:
        override = OverridesParser.create().parse_override(word)
    except (HydraException, RecursionError):
        return shown(word) != word
    value = override.value() if override.value_type else None
    values = [getattr(each, "text", each) for each in getattr(value, "list", [value])]
    names = re.split(r"[.@]", override.key_or_group + (f"@{override.package}" if override.package else ""))
    return holds_token(word) or any(True for _ in redaction.secrets_of(values, ".".join(names)))


def _for_hydra(words: Sequence[str], user_recipes: Sequence[str]) -> list[str]:
    """Return the command line as Hydra understands it: a recipe's file on the search path, no log of its own."""
    cwd, search, kept = Path.cwd(), [], []
    for word in words:
        if word in user_recipes:
            search.append(f"{UserRecipe.scheme()}://{cwd / word.removeprefix('recipes=')}")
            kept.append(f"recipes={USER_RECIPE}")
        elif word.startswith("hydra.searchpath="):
            search += map(str, OverridesParser.create().parse_override(word).value())
        else:
            kept.append(word)
    added = [f"hydra/{logging}=disabled" for logging in ("job_logging", "hydra_logging")]
    added.append(f"hydra.searchpath=[{','.join(map(_quoted, search))}]")
    overrides = [i for i, word in enumerate(kept) if "=" in word and not word.startswith("-")]
    place = overrides[0] if overrides else len(kept)  # argparse takes one run of overrides only
    return [*kept[:place], *added, *kept[place:]]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "\\'") + "'"
