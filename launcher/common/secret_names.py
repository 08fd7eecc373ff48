"""Names of secrets. The forms of their values are in `secret_forms`; masking is in `redaction`."""

import re
from functools import lru_cache

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
"""The words of a name in any spelling: HF_TOKEN, hf-token, hfToken, HFToken."""
NAME = re.compile(r"[A-Za-z_][\w-]*")
"""A name within a text."""
NOTIFY = "notify"
"""The key whose values are secrets: addresses to post to, which contain their token."""


def words_in(text: str) -> frozenset[str]:
    """Return the words of a text; written so, a table of words is easier to read."""
    return frozenset(text.split())


_CERTAIN = words_in(
    "password passwd passphrase passcode pswd secret credential cred authorization bearer jwt apikey accesskey"
    " secretkey privatekey sshkey wandbkey cookie sshpass pgpass dbpass dbpwd mysqlpwd githubpat pw rootpw dbpw"
    " userpw sas connectionstring webhook dsn authkey dockerconfigjson mnemonic"
    " pfx signingkey totp unseal"
)
"""Words that always make a name a secret's."""
_PAIRS = frozenset(
    {("api", "key"), ("access", "key"), ("private", "key"), ("secret", "key")}
    | {("connection", "string"), ("conn", "string"), ("conn", "str"), ("access", "signature"), ("seed", "phrase")}
    | {("docker", "auth"), ("set", "cookie")}
    | {(service, "hook") for service in ("discord", "incoming", "slack", "teams")}
)
"""Pairs of words that make a name a secret's. A connection string contains its account's password."""
_ADDRESSES = words_in("address dsn endpoint uri url")
"""Last words of a webhook's name: whoever knows its address can post to it."""
_ENDINGS = (
    *("password", "passwd", "passphrase", "secret", "credential", "token", "webhook"),
    *("accesskey", "accountkey", "apikey", "authkey", "licensekey", "masterkey", "privatekey", "secretkey"),
)
"""Ends of words written together, as in PGPASSWORD."""
_MISSPELT = ("token", "secret", "password", "passwd", "passphrase", "credential", "authorization", "webhook")
"""Words that are recognized with one letter wrong, added, missing or swapped."""
_OTHER_WORDS = words_in("taken woken passed")
"""English words that differ from one of those by one letter."""

_KEYS = words_in(
    "access account admin anthropic api app application auth aws azure client clearml comet crypto datadog db"
    " decryption deploy encrypt encryption gcp git github gitlab google gpg hf hmac"
    " huggingface ingestion instrumentation integration kaggle license master"
    " minio mlflow neptune openai pgp private root rsa secret sentry service session shared sign signing"
    " ssh ssl storage subscription swanlab tls trackio user wandb webhook"
)
"""Words before `key` in a secret's name, in any spelling: WANDB_KEY, wandb_key."""
_PLAIN_KEYS = words_in(
    "answer batch cache column data dataset dict extra field foreign group image index input join kms label"
    " lookup map message metric object output partition primary prompt public query question response row sort"
    " target template text"
)
"""Words before `key` in names of columns or mappings. Any other NAME_KEY in capitals is a secret."""
_PATS = words_in("access ado azure databricks devops gh git github gitlab snowflake")
_AUTHS = words_in("basic docker http npm proxy redis rediscli registry")
_PASSES = words_in(
    "all backward bi by data each first forward high last low multi must num one optimizer per second single two"
)
"""Words before `pass` where it is not a password."""

_VOCABULARY = words_in(
    "add additional answer audio avg begin bos chunk class cls completion consumed context count decoder"
    " disable end eos extra first generated generation global ignore image input label last mask max mean min"
    " model n new next num number output pad padding per prev prompt question response sample seen sep"
    " separator seq sequence source special start stop subword target text think thinking total train trained"
    " unk val video vision vocab"
)
"""Words before `token` where it is one of a model's vocabulary."""
_MEASURES = words_in(
    "acc accuracy batch budget classification count dim dropout embedding id index indices init label length"
    " level limit loss mask merging num per probs rate shape size split type"
)
"""Words after `token` for measures and lists of such tokens."""
_PLACES = words_in(
    "arn column count dir directory enabled endpoint env event expiry field file folder host interval length name"
    " path port provider ref required size stdin timeout ttl type uri url var variable"
)
"""Last words of names that give a secret's location or another property of it."""


def is_secret(path: str) -> bool:
    """Return whether a value at a dotted path must not be printed."""
    return path.partition(".")[0] == NOTIFY or any(map(names_secret, path.split(".")))


@lru_cache(maxsize=16384)
def names_secret(name: str) -> bool:
    """Return whether a name, in any spelling, is that of a secret."""
    words = words_of(name)
    while words and words[-1].isdigit():
        words.pop()
    if words and words[-1] in _ADDRESSES and any(_is_certain(word) and word.endswith("webhook") for word in words):
        return True
    if not words or (words[-1] in _PLACES and len(words) > 1):
        return False
    pairs = zip(words, words[1:], strict=False)
    is_pair = not _PAIRS.isdisjoint(pairs)
    # `imagePullSecrets` only names Kubernetes Secrets.
    is_certain = is_pair or ("pull" not in words and any(map(_is_certain, words)))
    return is_certain or _is_token(words) or _is_ambiguous(words, name)


def words_of(name: str) -> list[str]:
    """Return the words of a name in any spelling, in small letters and singular."""
    return [_singular(word.lower()) for word in _WORD.findall(name)]


def _singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 3 else word


def _is_certain(word: str) -> bool:
    if word in _CERTAIN or (word.endswith(_ENDINGS) and not word.endswith("token")):
        return True
    return any(_is_misspelt(word, right) for right in _MISSPELT if right != "token")


def _is_token(words: list[str]) -> bool:
    for i, word in enumerate(words):
        if not (word.endswith("token") or _is_misspelt(word, "token")):
            continue
        prefix = word.removesuffix("token") if word.endswith("token") else ""
        before = prefix or (words[i - 1] if i else "")
        if before not in _VOCABULARY and not _MEASURES.intersection(words[i + 1 :]):
            return True
    return False


def _is_ambiguous(words: list[str], name: str) -> bool:
    """Return whether the last word, ambiguous by itself, is a secret's here: DB_PASS, GITHUB_PAT, WANDB_KEY."""
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    is_variable = name.isupper()
    match last:  # one case for each ambiguous word
        case "key":
            return before in _KEYS or bool(is_variable and before and before not in _PLAIN_KEYS)
        case "pass":
            return before not in _PASSES
        case "pwd":
            return before != "old" if before else not is_variable
        case "pat":
            return before in _PATS or is_variable
        case "auth":
            return not before or before in _AUTHS or (is_variable and before != "tracking")
        case _:
            return False


@lru_cache(maxsize=16384)
def _is_misspelt(word: str, right: str) -> bool:
    """Return whether a word equals another except for one letter wrong, added or missing, or two swapped."""
    if word == right or word in _OTHER_WORDS or abs(len(word) - len(right)) > 1 or len(word) < 4:
        return word == right
    begin = 0
    while begin < min(len(word), len(right)) and word[begin] == right[begin]:
        begin += 1
    rest, wanted = word[begin:], right[begin:]
    is_swapped = rest[:2] == wanted[:2][::-1] and rest[2:] == wanted[2:]
    return is_swapped or rest[1:] in (wanted[1:], wanted) or rest == wanted[1:]
