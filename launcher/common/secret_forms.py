"""Values that are secrets by their form, regardless of their key: tokens, URLs with credentials, commands.

The names of secrets are in `secret_names`.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from launcher.common import secret_tokens
from launcher.common.secret_names import NAME, names_secret
from launcher.common.syntax import QUOTED, VARIABLE_NAME, is_dns_subdomain, is_secret_key

if TYPE_CHECKING:
    from detect_secrets.plugins.base import RegexBasedDetector

_DETECTORS = (
    *("artifactory.ArtifactoryDetector", "aws.AWSKeyDetector", "azure_storage_key.AzureStorageKeyDetector"),
    *("cloudant.CloudantDetector", "discord.DiscordBotTokenDetector", "github_token.GitHubTokenDetector"),
    *("gitlab_token.GitLabTokenDetector", "ibm_cloud_iam.IbmCloudIamDetector", "ibm_cos_hmac.IbmCosHmacDetector"),
    *("jwt.JwtTokenDetector", "mailchimp.MailchimpDetector", "npm.NpmDetector", "openai.OpenAIDetector"),
    *("private_key.PrivateKeyDetector", "pypi_token.PypiTokenDetector", "sendgrid.SendGridDetector"),
    *("slack.SlackDetector", "softlayer.SoftlayerDetector", "square_oauth.SquareOAuthDetector"),
    *("stripe.StripeDetector", "telegram_token.TelegramBotTokenDetector", "twilio.TwilioKeyDetector"),
)
"""Detectors of detect-secrets, module and class. Omitted: entropy and IP addresses, which match hashes and hosts too;
keywords and basic authentication, for which `secret_names` and `_USER_INFO` cover more spellings."""
_CANDIDATE = re.compile(
    r"(?<![A-Za-z0-9])(?=[A-Za-z0-9]*[0-9])(?=[A-Za-z0-9]*[A-Za-z])[A-Za-z0-9]{12,}"
    r"|[A-Z][A-Z0-9]{15,}|PRIVATE KEY|hooks\.slack"
)
"""Present in every text in which a detector finds anything; importing the detectors takes 0.16 s."""
_IDENTIFIER = re.compile(
    r"\barn:aws[\w-]*:\S*|\bsha(?:256|384|512):[0-9a-f]{64,128}\b|\b[0-9a-f]{40}\b|\b[0-9a-f]{64}\b"
    r"|\b(?:[A-Z][a-z]+\d?){2,}\b"
)
"""ARNs, image digests, revisions and class names, parts of which the detectors mistake for tokens."""

_USER_INFO = r"(?<=://)[^\s/@:'\"]*:[^\s/@'\"]+(?=@)|(?:(?<=https://)|(?<=http://))[^\s/@:'\"$]+(?=@)"
"""User name and password of a URL in a text, or the token alone.

Source: RFC 3986, 3.2.1.
"""
_BARE_USER_INFO = r"(?<![\w/@.:-])([\w.+-]+):([^\s:/@'\"$({]+)@(?!sha\d+:)(?=[\w-]+[.:/]|localhost)"
"""The same without a scheme, as `git clone` and `rsync` accept it. `repo:tag@sha256:…` is an image's digest."""
_MAIL = frozenset(("acct", "bcc", "cc", "from", "mailto", "reply-to", "sip", "to", "xmpp"))
"""Words before the colon of a mail address."""
_ASSIGNED = re.compile(
    r"""(?:(?:\B-D|\b)([A-Za-z_][\w-]*)['"]?\s?=(?!=)\s?|(?<![\w-])--([A-Za-z][\w-]*)(?:=|\s+)"""
    r"""|\b([A-Za-z_][\w-]*)['"]?:\s*)(?:(?:bearer|basic|token)\s+)?"""
    r"""(?=("[^"\n]*"|'[^'\n]*'|['"]?[^\s'";&|,}\]]+))""",
    re.I,
)
"""A variable, an option, or a header or member in a command, and its value."""
_SPACED = re.compile(
    r"""\b([A-Za-z_][\w-]*)\s+(?:<<<\s*)?['"]?((?=\S*\d)(?=\S*[A-Za-z])[^\s'";&|/$<>{(-][^\s'";&|/]{5,})"""
)
"""A name in a command and a following word that mixes letters and digits: `setx DB_PASS …`."""
_WITHIN = r"[^|;&\n]{0,200}?"
_VALUE = r"""['"]?([^\s'"]+)"""
_GIVEN = (
    rf"""\b(?:curl|wget|http)\b{_WITHIN}\s(?:-u|--user)[\s=]*['"]?[^\s:'"$]+:([^\s'"]+)"""
    rf"""|\b(?:docker|podman|helm|nerdctl|crane|oras|az)\b{_WITHIN}\blogin\b{_WITHIN}\s-p[\s=]*{_VALUE}"""
    rf"""|\b(?:mysql|mysqldump|mariadb|mongosh?)\b{_WITHIN}\s-p{_VALUE}|\bredis-cli\b{_WITHIN}\s-a\s*{_VALUE}"""
    rf"""|\bwandb\s+login\s+(?:--\S+\s+)*([^\s-]\S*)|\bsshpass\s+-p\s*{_VALUE}|--from-literal[\s=]+[^\s=]+={_VALUE}"""
    rf"""|\b(?:echo|printf)\s+(?:-\w+\s+)*{_VALUE}['"]?\s*(?:\|{_WITHIN}(?:-stdin\b|--with-token\b|\blogin\b)"""
    r"""|>+\s*\S*(?:token|secret|passw|credential|netrc|pgpass|api_?key))"""
    rf"""|\b(?:login|--with-token|-stdin)\b{_WITHIN}<<<\s*{_VALUE}|\bbearer\s+['"]?([^\s'"]{{8,}})"""
    r"|\bjdbc:oracle:\w+:[^/\s@]+/([^@\s/]+)@"
)
"""Commands that take a secret without a name.

Source: the manuals of curl, wandb, sshpass, docker, mysql and huggingface-cli; RFC 6750, 2.1; Oracle JDBC, URLs.
"""
_GIVEN_WORDS = (
    *("login", "bearer", "mysql", "mariadb", "mongo", "redis-cli", "sshpass", "--from-literal", "echo", "printf"),
    *("<<<", "-u", "jdbc:oracle"),
)
"""One of these is in every text in which _GIVEN finds anything. A log is searched for them much faster."""
_LEAST_TOKEN = 12
"""Characters of the shortest token that `secret_tokens` finds, or fewer."""
_LAST_WORDS = 200
"""Characters before an equals sign that are searched for a name. No name is longer; our own choice."""
_OPTION = re.compile(r"--([A-Za-z][\w-]*)")
_NAME_AT_BOUNDARY = re.compile(r"\b[A-Za-z_][\w-]*")
_SIGNS_IN = r"(?i)\blog_?in(?=\s*\()"
"""A call whose texts are secrets, as `wandb.login(key="…")` and `login` of the Hub's library."""
_NEW_PART = ("@@", "diff ")
"""Beginnings of lines of a diff after which other lines of the program follow."""
_AT_END = r"""(?:=|^["'],)\s*\\?\s*$"""
"""After a secret's name: what gives it the value of the next line."""
_TRIPLE_QUOTES = ('"""', "'''")
_BLOCK = r":\s*[|>][-+1-9]*\s*(#.*)?$"
"""After a secret's name: what begins a block of YAML, whose lines have a greater indent."""
_COUNT = re.compile(r"""\s?['"]?[\d.,]+[kMGTB%]?(?=[\s'";&|,}\]]|$)""")

_ELSEWHERE = (
    r"[$`][\w{(]|<[^>]*>|@[\w./~]|%[(\w]+[)%]|[{\\…]|\*+$|(?:s3|file|secretsmanager|ssm|vault)://|arn:aws"
    r"|(?:~|\.{1,2})?/[\w.@ -]{0,30}(?:/|\.|$)"
)
"""Beginnings of values that only refer to a secret: a variable, a file, a placeholder."""
_NUMBER = re.compile(r"[\d.,]+[kMGTB%]?")
_NOTHING = frozenset(("", "true", "false", "none", "null", "yes", "no", "on", "off", "~", "[]", "{}"))


def is_written(value: object) -> bool:
    """Return whether a value under a secret's name is the secret itself, not a location or a flag.

    A list or a mapping counts if any item does; a reference (`{secretKeyRef: …}`, `{env: NAME}`) does not.
    """
    if isinstance(value, dict):
        return not is_reference(value) and any(map(is_written, value.values()))
    if isinstance(value, list | tuple):
        return any(map(is_written, value))
    if value is None or isinstance(value, bool):
        return False
    text = str(value).strip()
    return text.lower() not in _NOTHING and not re.match(_ELSEWHERE, text)


def is_clear(name: str, value: object) -> bool:
    """Return whether a value is a secret because of its name. A number of `tokens` is a count."""
    if isinstance(value, int | float | str) and name.lower().endswith("tokens") and _NUMBER.fullmatch(str(value)):
        return False
    return names_secret(name) and is_written(value)


def is_reference(value: object) -> bool:
    """Return whether a value is a reference to a secret."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return False
    match value:
        case {"env": str(name)}:
            return bool(re.fullmatch(VARIABLE_NAME, name))
        case {"secretKeyRef": {"name": str(name), "key": str(key), **others}} if not others:
            return is_dns_subdomain(name) and is_secret_key(key)
    return False


def values_of(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of every scalar in a configuration, and of every reference to a secret.

    `path` is that of `tree`.
    """
    if isinstance(tree, Mapping) and not is_reference(tree):
        for key, value in tree.items():
            yield from values_of(value, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, list | tuple):
        for i, value in enumerate(tree):
            yield from values_of(value, f"{path}.{i}" if path else str(i))
    else:
        yield path, tree


def secrets_at(path: str, value: object) -> Iterator[str]:
    """Yield the secrets in a value of a configuration: all of it under a secret's name, otherwise parts of a text."""
    words = path.split(".")
    if is_clear(next(filter(names_secret, words), words[-1]), value):
        yield str(value)
    elif isinstance(value, str) and not value.isalnum():
        yield from secrets_in(value)


def holds_credentials(url: str) -> bool:
    """Return whether a URL contains a password, or a user name that a web server would treat as one."""
    if "://" not in url:
        return holds_user_info(url)
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets without an address: a secret in an invalid URL still counts
        return "@" in url
    has_password = parts.password is not None and is_written(parts.password)
    is_token = parts.username is not None and parts.scheme.removeprefix("git+") in ("http", "https")
    return has_password or (is_token and is_written(parts.username) and parts.password is None)


def holds_token(text: str) -> bool:
    """Return whether a text contains a token, by its form."""
    return secret_tokens.holds(text) or any(_detected(text))


def holds_secret(text: str) -> bool:
    """Return whether a command or another text contains a secret by its position: in a URL, or after a name."""
    return next(_spans(text, has_members=True), None) is not None


def holds_user_info(text: str) -> bool:
    """Return whether a text contains a URL with a password or a token before its host."""
    return next(_user_info_spans(text), None) is not None


def secrets_in(text: str) -> Iterator[str]:
    """Yield the values of a command, a URL or another text that are secrets by their position."""
    yield from (text[slice(*span)] for span in _spans(text, has_members=True))


def _spans(text: str, *, has_members: bool) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each value that is a secret by its position.

    Args:
        has_members: Whether `name: value` and `name value` in it are members, headers or arguments; in prose they
            are not.
    """
    yield from _user_info_spans(text)
    yield from _assigned_spans(text, has_members=has_members)
    for match in _SPACED.finditer(text) if has_members else ():
        if is_clear(match[1], match[2]):
            yield match.span(2)
    for match in re.finditer(_GIVEN, text, re.I) if _may_be_given(text.lower()) else ():
        if match.lastindex and is_written(match[match.lastindex]):
            yield match.span(match.lastindex)


def _may_be_given(lowered: str) -> bool:
    return any(word in lowered for word in _GIVEN_WORDS)


def _may_be_assigned(text: str) -> bool:
    if "--" in text and any(names_secret(name) for name in _OPTION.findall(text)):
        return True
    before, *rest = text.split("=")
    for after in rest:
        words = before[-_LAST_WORDS:].rsplit(None, 1)
        if words and _names_secret_at_end(words[-1]) and not _is_count(words[-1], after):
            return True
        before = after
    return False


def _is_assigned_in(words: Iterable[str]) -> bool:
    assigned = (word.split("=", 1) for word in words if "=" in word)
    for name, value in assigned:
        if _names_secret_at_end(name) and not _is_count(name, value):
            return True
        if "=" in value and _may_be_assigned(value):
            return True
    return False


def _is_count(name: str, value: str) -> bool:
    """Return whether an assignment is one of a number of tokens."""
    is_number = value.isdigit() or _COUNT.match(value) is not None
    return is_number and name.rstrip("'\"").lower().endswith("tokens")


@lru_cache(maxsize=16384)
def _names_secret_at_end(word: str) -> bool:
    """Return whether a word before an equals sign ends with a secret's name, maybe after `-D`."""
    return "-D" in word or any(map(names_secret, _NAME_AT_BOUNDARY.findall(word)))


def is_clean(text: str, words: Collection[str]) -> bool:
    """Return whether a text of many lines certainly has nothing that `masked` would remove from one of them.

    It is much faster than `masked`, but may return False for a text without any secret.

    Args:
        words: Its words, each once: what is between blanks. Every token is in one of them, or begins with "-----".
    """
    if "@" in text or "-----" in text or _may_be_given("\n".join(words).lower()):
        return False
    is_spaced = "--" in text or any(f"{blank}=" in text for blank in " \t\n")
    if _may_be_assigned(text) if is_spaced else _is_assigned_in(words):
        return False
    return not secret_tokens.holds("\n".join(word for word in words if len(word) >= _LEAST_TOKEN))


def _assigned_spans(text: str, *, has_members: bool) -> Iterator[tuple[int, int]]:
    if not has_members and not _may_be_assigned(text):
        return
    for match in _ASSIGNED.finditer(text):
        name = match[1] or match[2] or (match[3] if has_members else "")
        if name and is_clear(name, match[4].strip("'\"")):
            yield match.span(4)


def _user_info_spans(text: str) -> Iterator[tuple[int, int]]:
    if "@" in text:
        for match in re.finditer(_USER_INFO, text):
            if is_written(match[0].rpartition(":")[2]):
                yield match.span()
        yield from (match.span(2) for match in re.finditer(_BARE_USER_INFO, text) if match[1].lower() not in _MAIL)


def masked(text: str) -> str:
    """Return a text without the secrets that are recognizable by form or position."""
    return secret_tokens.masked(_without(text, _spans(text, has_members=False)))


def masked_code(line: str) -> str:
    """Return a line of a program or a configuration without members, and texts in quotes, after a secret's name.

    Tokens and known secrets are left to `redaction.masked`.
    """
    spans = list(_spans(line, has_members=True))
    if names := _names(line):
        first = names[0].end()  # which may be in quotes itself
        spans += [each.span(2) for each in QUOTED.finditer(line) if each.start() >= first and is_written(each[2])]
    if secret_tokens.holds(line):  # an access key has its secret beside it
        from launcher.common.random_values import random_parts  # start-up time: few texts have a token

        spans += [match.span() for part in random_parts(line) for match in re.finditer(re.escape(part), line)]
    return _without(line, spans)


def masked_program(lines: Iterable[str]) -> list[str]:
    """Return lines of a program, or of its changes, each as `masked_code` returns it.

    A value of a secret's name may be on the next lines: in brackets, after an equals sign, in a text between triple
    quotes, or in an indented block of YAML.
    """
    found: list[str] = []
    depth, is_next, text = 0, False, None
    for line in lines:
        if line.startswith(_NEW_PART):
            depth, is_next, text = 0, False, None
        if text is not None and text.holds(line):
            found.append(f"{line[: _indent(line)]}…")
            text = None if text.ends_with(line) else text
            continue
        is_within = is_next or depth > 0
        texts = (each.span(2) for each in QUOTED.finditer(line) if is_within and is_written(each[2]))
        found.append(masked_code(_without(line, texts)))
        rest = _after_name(line)
        depth = depth + _depth(line) if depth > 0 else _depth(rest.lstrip("'\"")) if re.search("[=:]", rest) else 0
        is_next = re.search(_AT_END, rest) is not None
        text = _Text.after(line, rest)
    return found


class _Text(NamedTuple):
    """The lines of a text: up to `quotes`, or with a greater indent than `indent`."""

    quotes: str
    indent: int

    @classmethod
    def after(cls, line: str, rest: str) -> "_Text | None":
        """Return the text that begins on a line behind the name of a secret, from where on it is `rest`."""
        quotes = next((each for each in _TRIPLE_QUOTES if rest.count(each) % 2), "")
        return cls(quotes, _indent(line)) if quotes or re.search(_BLOCK, rest) else None

    def holds(self, line: str) -> bool:
        return bool(self.quotes) or _indent(line) > self.indent or not line.strip("+- ")

    def ends_with(self, line: str) -> bool:
        return bool(self.quotes) and self.quotes in line


def _indent(line: str) -> int:
    """Return where the words of a line begin, behind the sign of a change and that of a list's item."""
    return len(line) - len(line.lstrip("+- \t"))


def _after_name(line: str) -> str:
    """Return the rest of a line after the first name of a secret; empty if it has none."""
    if not (names := _names(line)):
        return ""
    rest = line[names[0].end() :]
    return rest if names_secret(names[0][0]) else f"={rest}"  # the arguments of a call follow


def _names(line: str) -> list[re.Match[str]]:
    """Return the names of secrets in a line of a program, or else its calls whose texts are secrets."""
    return [match for match in NAME.finditer(line) if names_secret(match[0])] or list(re.finditer(_SIGNS_IN, line))


def _depth(text: str) -> int:
    """Return how many brackets a text leaves open; those that it closes count less than 0."""
    plain = QUOTED.sub("", text)
    return sum(map(plain.count, "([{")) - sum(map(plain.count, ")]}"))


def _without(text: str, spans: Iterable[tuple[int, int]]) -> str:
    kept, first = "", 0
    for begin, end in sorted(spans):
        kept += f"{text[first:begin]}…" if begin >= first else ""
        first = max(first, end)
    return kept + text[first:]


def without_detected(text: str) -> str:
    """Return a text without the detectors' findings; slower than `masked`."""
    for found in sorted(set(_detected(text)), key=len, reverse=True):
        text = text.replace(found, "…")
    return text


def _detected(text: str) -> Iterator[str]:
    """Yield the detectors' findings; the detectors are loaded only for texts that may have some."""
    if _CANDIDATE.search(text) and _CANDIDATE.search(rest := _IDENTIFIER.sub(" ", text)):
        for detector in _detectors():
            if any(detector.analyze_string(rest)):
                yield from (match[0] for form in detector.denylist for match in form.finditer(rest))


@cache
def _detectors() -> tuple["RegexBasedDetector", ...]:
    import importlib

    found = (name.partition(".") for name in _DETECTORS)
    return tuple(getattr(importlib.import_module(f"detect_secrets.plugins.{m}"), name)() for m, _, name in found)
