"""The flags of `recipes run` and `main.py`: `--multirun` and `--config-dir` are served here, the others by Hydra."""

import argparse
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from launcher.common import console
from launcher.common.paths import COLLECTION
from launcher.common.problems import Problem, ProblemsFound, fail, first_line, shown
from launcher.common.process import USER_ERROR, check_output_is_read
from launcher.common.secret_forms import holds_token, secrets_at, values_of
from launcher.common.suggestions import nearest
from launcher.config import choices, hydra_overrides, multirun, overrides, parsing, search_space
from launcher.config.collection import CONFIG, ENDINGS, USER_RECIPE, recipe_file, user_place
from launcher.config.composed_files import CompositionCache
from launcher.config.hydra_compose import register
from launcher.config.overrides import SEARCH_PATH, typed_key

_UNSUPPORTED = ("experimental_rerun", "config_name", "config_path")
"""Flags of Hydra's that choose another program or configuration than this one."""
_ALONE = ("help", "hydra_help", "cfg", "info", "shell_completion", "run", "multirun")
"""Flags that each choose an action."""
_BY_HYDRA = _ALONE[:-2]
_REFUSALS = (
    *(HydraException, OmegaConfBaseException),
    *(AttributeError, FileNotFoundError, LookupError, NotADirectoryError, RecursionError, TypeError, ValueError),
)
"""Exceptions that Hydra raises for input that it cannot compose: its own, and Python's that it lets through."""


def serve(
    run: Callable[[list[list[str]], CompositionCache], int],
    search: Callable[[list[str]], int],
    check: Callable[[list[str]], object],
    words: Sequence[str],
) -> int:
    """Serve a command line that has flags.

    Args:
        run: Called with the overrides of each job that the flags request, and with a cache for all of them.
        search: Called with the words of a sweep that a sweeper of Hydra's runs.
        check: Called with overrides that Hydra refuses; raises the Problems that their launch would have.
        words: The command line, without the program.

    Returns:
        The exit code: the highest of the jobs', 2 if the flags, or what Hydra composes by them, are faulty.
    """
    try:
        flags = _read(words)
        if any(getattr(flags, name, None) for name in _BY_HYDRA):
            return _by_hydra(flags, check)
        added = _added(flags)
        if flags.multirun and search_space.is_search(flags.overrides):
            return search([*flags.overrides, *added])
        jobs = multirun.jobs(flags.overrides) if flags.multirun else [flags.overrides]
    except ProblemsFound as error:
        console.show_problems(error.problems)
        return USER_ERROR
    return run([[*job, *added] for job in jobs], CompositionCache())


def _read(words: Sequence[str]) -> argparse.Namespace:
    """Return the flags and overrides of a command line.

    Raises:
        ProblemsFound: A flag that does not exist, lacks its value, or does not go with the others.
    """
    if problems := misspelt_keys(words):
        raise ProblemsFound(problems)
    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]  # Hydra makes the parser, and argparse asks for its method
    flags, unknown = parser.parse_known_intermixed_args(list(words))
    if problems := (
        *_repeated(parser, words),
        *_faults(flags, unknown),
        *filter(None, map(overrides.unreadable, flags.overrides)),
    ):
        raise ProblemsFound(problems)
    if problems := (*parsing.joined(flags.overrides)[1], *_refused(flags.overrides)):
        raise ProblemsFound(problems)
    flags.overrides = list(parsing.spelled(flags.overrides, Path.cwd()))
    return flags


def misspelt_keys(words: Sequence[str]) -> tuple[Problem, ...]:
    """Return a Problem for each flag that is a key of a launch, as `--recipes llama` or `--dry-run`."""
    found = [_flag(word, after) for word, after in zip(words, [*words[1:], ""], strict=True) if word.startswith("-")]
    return tuple(problem for problem in found if problem)


def _flag(word: str, after: str) -> Problem | None:
    name, equals, value = word.lstrip("-").partition("=")
    key = _key_of(name)
    if key is None:
        return None
    if not equals:
        is_switch = key in overrides.switches()
        value = "true" if is_switch else after if re.match("[^=-]", after) and overrides.is_bare(after) else "…"
    text = shown(f"{key}={value}")
    message = "is not a flag: a key is set by key=value"
    return Problem("E801", word.partition("=")[0], message, remedy=text)


def _key_of(name: str) -> str | None:
    """Return the key that a flag's name spells; None for Hydra's own flags and for words that resemble no key."""
    key = name.replace("-", "_")
    if key in overrides.top_level() or overrides.DOTTED.fullmatch(key):
        return key
    flags = [option.lstrip("-") for action in get_args_parser()._actions for option in action.option_strings]
    is_flag = any(flag.startswith(name) for flag in flags)  # argparse takes the beginning of one for it
    near = [] if is_flag else nearest(key, overrides.top_level(), count=1, cutoff=0.8)
    return near[0] if near else None


def _refuse(message: str) -> NoReturn:
    found = re.fullmatch(r"argument (\S+): (.*)", message, re.S)
    name, what = found.groups() if found else ("the command line", message)
    raise fail("E801", name, what, remedy="recipes run --hydra-help")


def _repeated(parser: argparse.ArgumentParser, words: Sequence[str]) -> Iterator[Problem]:
    """Yield a Problem for each flag whose value is given more than once: argparse would keep only the last."""
    given = [word.partition("=")[0] for word in words if word.startswith("-")]
    for action in parser._actions:
        names = action.option_strings
        if action.nargs == 0 or not names:
            continue
        # argparse accepts the beginning of a long flag
        found = [w for w in given if w in names or (len(w) > 3 and any(name.startswith(w) for name in names))]
        if len(found) > 1:
            yield Problem("E801", names[0], f"is given {len(found)} times", allowed="once")


def _faults(flags: argparse.Namespace, unknown: Sequence[str]) -> Iterator[Problem]:
    for word in [word for word in unknown if word.startswith("-")] or unknown:  # not their values
        yield Problem("E801", shown(word), "is not a flag of Hydra", remedy="recipes run --hydra-help")
    for name in _UNSUPPORTED:
        if getattr(flags, name) is not None:
            yield Problem("E801", _spelled(name), "is not supported: the configuration is the launcher's own")
    asked = [_spelled(name) for name in _ALONE if getattr(flags, name, None)]
    if len(asked) > 1:
        yield Problem("E801", " ".join(asked), "cannot be given together", allowed="one of them")
    yield from _misused(flags)


def _misused(flags: argparse.Namespace) -> Iterator[Problem]:
    """Yield a Problem for each flag without the one that it belongs to, or with a faulty value."""
    if flags.resolve and not (flags.cfg or flags.help):
        yield Problem("E801", "--resolve", "has an effect only with --cfg or --help", remedy="--cfg job --resolve")
    if flags.package and not flags.cfg:
        yield Problem("E801", "--package", "has an effect only with --cfg", remedy="--cfg job --package NAME")
    if flags.config_dir is not None and not os.path.isdir(flags.config_dir):
        yield Problem("E801", "--config-dir", "no such folder", value=flags.config_dir)
    if flags.shell_completion and not _is_completion(flags.overrides):
        allowed = "install=SHELL, uninstall=SHELL or query=SHELL, SHELL one of bash, zsh, fish"
        yield Problem("E801", "--shell-completion", "is not understood", allowed=allowed)


def _refused(words: Sequence[str]) -> Iterator[Problem]:
    """Yield what Hydra must not see: it prints its configuration, repeats it in errors and writes it to files."""
    for word in words:
        if _has_secret(word):
            message = "a secret is named, never written: its value would end up in files and logs"
            yield Problem("E601", shown(word), message, allowed="{secretKeyRef: {name: …, key: …}} or {env: NAME}")
        elif typed_key(word) == "hydra.output_subdir":
            message = "would write the configuration beside the bundle, unchecked"
            yield Problem("E009", "hydra.output_subdir", message, remedy="leave it out")


def _has_secret(word: str) -> bool:
    """Return whether an override has a secret in it; one that cannot be parsed has, if it names one."""
    override = hydra_overrides.parsed(word)
    if override is None:
        return shown(word) != word
    value = override.value()
    values = [getattr(each, "text", each) for each in getattr(value, "list", [value])]
    names = re.split(r"[.@]", override.key_or_group + (f"@{override.package}" if override.package else ""))
    found = (secret for path, each in values_of(values, ".".join(names)) for secret in secrets_at(path, each))
    return holds_token(word) or any(True for _ in found)


def _spelled(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _is_completion(overrides: Sequence[str]) -> bool:
    """Return whether `--shell-completion` has what Hydra's code assumes."""
    found = [match for word in overrides if (match := re.match(r"(install|uninstall|query)=(bash|zsh|fish)$", word))]
    return len(found) == 1 and (found[0][1] != "query" or {"COMP_LINE", "COMP_POINT"} <= os.environ.keys())


def _by_hydra(flags: argparse.Namespace, check: Callable[[list[str]], object]) -> int:
    """Let Hydra print the output that the flags request.

    Raises:
        ProblemsFound: It does not compose the choice.
    """
    register()
    before = sys.argv, os.environ.get("HYDRA_FULL_ERROR"), logging.raiseExceptions
    level, handlers = logging.root.level, list(logging.root.handlers)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors are raised to here, instead of printed
    logging.raiseExceptions = False  # `--info` prints by it: a closed pipe is met when the output is flushed
    try:
        program = before[0][0] if os.path.basename(before[0][0]) == "main.py" else "recipes run"  # its help names it
        sys.argv = [program, *_for_hydra(flags)]
        hydra.main(config_path=str(COLLECTION), config_name=CONFIG, version_base="1.3")(lambda _config: None)()
        check_output_is_read()
    except SystemExit as stop:
        return USER_ERROR if stop.code else 0
    except _REFUSALS as error:
        check([*flags.overrides, *_added(flags)])
        raise fail("E003", " ".join(map(shown, flags.overrides)), first_line(error)) from error
    finally:
        sys.argv, variable, logging.raiseExceptions = before
        logging.root.setLevel(level)  # `--info` lets every logger of the process print
        logging.root.handlers[:] = handlers
        if variable is None:
            del os.environ["HYDRA_FULL_ERROR"]
    return 0


def _added(flags: argparse.Namespace) -> list[str]:
    """Return the overrides that flags stand for."""
    return [f"hydra.searchpath=[{overrides.quoted(flags.config_dir)}]"] if flags.config_dir else []


def _for_hydra(flags: argparse.Namespace) -> Iterator[str]:
    """Yield the command line as Hydra understands it: a recipe's file on the search path, no log of its own."""
    for name in ("cfg", "package", "info", "config_dir"):
        if (value := getattr(flags, name)) is not None:
            yield f"{_spelled(name)}={value}"
    yield from (
        _spelled(name) for name in ("resolve", "help", "hydra_help", "shell_completion") if getattr(flags, name)
    )
    yield "--"
    yield from (f"hydra/{log}=none" for log in ("job_logging", "hydra_logging"))
    search: list[str] = []
    parsed = [hydra_overrides.unchecked(text) for text in flags.overrides]
    decisive = set(map(id, choices.chosen_files(parsed).values()))
    for override in parsed:
        value = override.value
        if override.key == SEARCH_PATH and isinstance(value, list):
            search += map(str, value)
        elif not override.is_choice or override.is_hydra:
            yield override.text
        elif id(override) not in decisive:
            continue
        elif override.key == "recipes" and str(value).endswith(ENDINGS):
            file = recipe_file(str(value), Path.cwd()) or Path.cwd() / str(value)
            search.append(user_place(file))
            yield f"recipes={USER_RECIPE}"
        else:
            yield choices.word(override, parsed)
    yield f"hydra.searchpath=[{','.join(map(overrides.quoted, search))}]"
