"""The overrides that `rehearse` stands for: keys below it mean a rehearsal, and its ranks are those of the job."""

from collections.abc import Sequence

from launcher.config.overrides import Override
from launcher.config.parsed_overrides import parse

MOST_RANKS = 1024
_KEY = "rehearse"
_RANKS = f"{_KEY}.ranks"
_IS_ELASTIC = "recipes.elastic_policy.is_elastic"


def completed(parsed: Sequence[Override]) -> list[Override]:
    """Return overrides with those that a number of ranks stands for; `rehearse=true` beside its keys is left out."""
    ranks: object = None
    surplus: list[Override] = []  # rehearse=true, where keys below it say the same
    pending: list[Override] = []
    has_keys = False
    for each in parsed:
        key, value = each.key, None if each.is_delete else each.value
        if key.startswith(f"{_KEY}.") or (key == _KEY and isinstance(value, dict)):
            has_keys = True
            ranks = value if key == _RANKS else value.get("ranks", ranks) if isinstance(value, dict) else ranks
        elif key == _KEY and value is True:
            pending.append(each)
        elif key == _KEY:  # undoes what came before
            ranks, has_keys, pending = None, False, []
        if has_keys:
            surplus, pending = [*surplus, *pending], []
    kept = [each for each in parsed if not any(each is other for other in surplus)]
    # What is no number of ranks is reported where it is typed, and ranks of an elastic job by a rule.
    is_number = isinstance(ranks, int) and not isinstance(ranks, bool) and 0 < ranks <= MOST_RANKS
    if not is_number or any(each.key == _IS_ELASTIC and each.value is True for each in parsed):
        return kept
    return [*kept, *parse(("recipes.trainer.num_nodes=1", f"recipes.trainer.devices={ranks}"))]
