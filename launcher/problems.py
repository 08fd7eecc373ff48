"""What is wrong with a user's input, said so that it need not be looked up twice."""

import re
from dataclasses import dataclass
from typing import Any

_SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|PASSWORD|PASSWD|SECRET|CREDENTIALS?|API_?KEY|ACCESS_KEY|PRIVATE_KEY)(_|$)", re.I
)
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{30,}|glpat-[\w-]{20,}"
    r"|sk-[\w-]{32,}|xox[abeprs]-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"
    r"|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+|-----BEGIN [A-Z ]*PRIVATE KEY-----.*)",
    re.S,
)
"""Forms that tokens are told by, whatever they are called: those of Hugging Face, GitHub, GitLab, OpenAI, Slack, AWS,
any JSON Web Token, a private key.

Source: GitHub, Secret scanning, Supported patterns; AWS IAM, Identifiers, Unique ids; RFC 7519, 3.1; RFC 7468, 10.
"""
_KEY_IN_VALUE = re.compile(r"\b(\w+)['\"]?\s*[:=]")


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault in what the user gave. Problems are collected and shown together.

    Args:
        code: Stable code, `E` and three digits.
        path: Dotted path of the faulty key, or the override itself when it names no key.
        message: What is wrong, in one sentence.
        value: The value found; None when there is none to show (or it is a secret).
        allowed: What would be accepted.
        remedy: What to type instead.
        where: Where the value came from: `file:line` or the override.
    """

    code: str
    path: str
    message: str
    value: Any = None
    allowed: str | None = None
    remedy: str | None = None
    where: str | None = None

    def __post_init__(self) -> None:
        for name in ("path", "message", "value", "allowed", "remedy", "where"):
            text = getattr(self, name)
            if text is not None and holds_token(str(text)):
                object.__setattr__(self, name, masked(str(text)))

    def __str__(self) -> str:
        lines = [f"{self.code} {self.path}", f"     {self.message}"]
        if self.value is not None:
            lines.append(f"     value: {self.value!r}")
        for name in ("allowed", "remedy"):
            if text := getattr(self, name):
                lines.append(f"     {name}: {text}")
        if self.where:
            lines.append(f"     set by {self.where}")
        return "\n".join(lines)


def is_secret(path: str) -> bool:
    """Tell whether a value at a dotted path must not be shown."""
    return any(_SECRET_NAME.search(name) for name in path.split("."))


def shown(override: str) -> str:
    """Return an override as it may be shown: without its value where that holds a secret."""
    key, equals, value = override.partition("=" if "=" in override else " ")
    names = (key.lstrip("+~"), *_KEY_IN_VALUE.findall(value))
    return f"{key}{equals}…" if equals and any(map(is_secret, names)) else masked(override)


def holds_token(text: str) -> bool:
    """Tell whether a text has a token in it, by its form."""
    return _TOKEN.search(text) is not None


def masked(text: str) -> str:
    """Return a text as it may be shown: without the tokens in it."""
    return _TOKEN.sub("…", text)


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should know about a job that is otherwise right.

    Args:
        code: Stable code, `N` and three digits.
        message: One line.
    """

    code: str
    message: str

    def __str__(self) -> str:
        return f"note  {self.code} {self.message}"


class ProblemsFound(Exception):
    """Raised by a stage that cannot return its value.

    Args:
        problems: Every fault found, in the order they should be shown.
        outcome: What exists in spite of them, such as a submitted job; None where nothing was done.
    """

    def __init__(self, problems: tuple[Problem, ...], outcome: str | None = None):
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems
        self.outcome = outcome


def fail(code: str, path: str, message: str, **details: Any) -> "ProblemsFound":
    """Return the exception that carries one Problem; `details` are Problem's other fields."""
    return ProblemsFound((Problem(code, path, message, **details),))
