"""Values that look random, and the names under which that is harmless: ids, digests, revisions, paths.

Words consist of letters of one case; in random text letters of both cases and digits alternate.
"""

import re
from collections.abc import Iterator

from launcher.common.secret_names import words_in, words_of

_LEAST, _LEAST_HEX = 20, 32
"""Characters of a value of letters and digits, and of one of hexadecimal digits alone, which hold less each.

Source: detect-secrets, HexHighEntropyString and Base64HighEntropyString; NIST SP 800-63B, 5.1.2: 112 bits are 19
letters and digits, or 28 hexadecimal digits.
"""
_CHANGES = 5
"""Characters per change between digits, capitals and small letters, at most: random text has 2.3, names 8 or more."""
_WORD = re.compile(rf"[A-Za-z0-9+/=_-]{{{_LEAST},}}")
_RUN = re.compile(r"[A-Za-z0-9]{16,}")
"""Names consist of shorter ones, with `-`, `_` or `/` between them."""
_BASE64 = re.compile(r"[A-Za-z0-9+/]{32,}={0,2}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_CHANGE = re.compile(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[0-9])(?=[A-Za-z])|(?<=[A-Z])(?=[0-9])")
_HEX = re.compile(r"(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]+|(?=[0-9A-F]*\d)(?=[0-9A-F]*[A-F])[0-9A-F]+")
_AMAZON = r"\S+\.(?:amazonaws\.com|dkr\.ecr)\S*"
_HARMLESS = re.compile(
    r"\bsha(?:1|256|384|512)[:-]\S+|@[0-9a-f]{40}\b|/[0-9a-f]{40}(?=/|$)"
    r"|\barn:aws[\w-]*:\S+|\b(?!https?\b)[a-z][a-z0-9+]*://[^\s?@]+|(?<!\S)(?:~|\.{0,2})/\S+"
    r"|\b(?:[a-z]{1,12}-){1,3}(?:[0-9a-f]{8}|[0-9a-f]{17})\b"
    # From the begin of a word only: a search from each of its characters takes quadratic time.
    rf"|\$\{{?\w+\}}?(?:{_AMAZON})?|(?<!\S){_AMAZON}"
)
"""Digests, revisions of a repository, ARNs, places in a store, paths, ids of AWS resources, variables.

Source: AWS, Resource IDs; Git, gitrevisions.
"""
_PLAIN_NAMES = words_in(
    "account arn branch bucket checksum commit digest dir directory etag file folder hash id ids image name path"
    " prefix revision run seed sha subnet suffix tag uid uuid version"
)
"""Words of names whose values may look random without being secrets."""


def is_plain_name(path: str) -> bool:
    """Return whether the last name of a dotted path is known for values that are not secrets."""
    return not _PLAIN_NAMES.isdisjoint(words_of(path.rpartition(".")[2]))


def random_parts(text: str) -> Iterator[str]:
    """Yield the words of a text that look random and are not digests, paths, references or ids by their form."""
    if _WORD.search(text) is None:
        return
    yield from filter(_is_random, _WORD.findall(_HARMLESS.sub(" ", text)))


def _is_random(word: str) -> bool:
    if _UUID.search(word) or (_BASE64.fullmatch(word) and _is_random_run(re.sub(r"[+/=]", "", word))):
        return True
    return any(_is_random_run(run) for run in _RUN.findall(word))


def _is_random_run(run: str) -> bool:
    if _HEX.fullmatch(run):
        return len(run) >= _LEAST_HEX
    has_both = any(each.isdigit() for each in run) and not run.isdigit()
    return has_both and len(_CHANGE.findall(run)) * _CHANGES >= len(run)
