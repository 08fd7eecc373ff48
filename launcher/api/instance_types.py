"""Instance types that meet some conditions, with their dated prices."""

from collections.abc import Sequence

from launcher.api.arguments import checked
from launcher.common.problems import fail
from launcher.job_store import prices
from launcher.job_store.prices import Prices
from launcher.model.instances import Instance, table

__all__ = ["Instance", "Prices", "selected", "table"]
_USES = ("training", "hyperpod")


@checked("E801", has_texts=True)
def selected(
    words: Sequence[str] = (),
    *,
    accelerator: str | None = None,
    memory_gib: float | None = None,
    has_efa: bool = False,
    use: str | None = None,
    max_price: float | None = None,
) -> tuple[list[Instance], Prices]:
    """Return the instance types that meet every condition, and the prices of all.

    Args:
        words: Parts of its name.
        accelerator: Part of the accelerator's name.
        memory_gib: Minimum of each accelerator.
        use: `training` or `hyperpod`.
        max_price: Per hour, in USD; a type without a known price does not meet it.

    Raises:
        ProblemsFound: `use` is not one.
    """
    if use not in (None, *_USES):
        raise fail("E801", "--use", "is not a use of instances", value=use, allowed=" or ".join(_USES))
    known = prices.shipped(use or "training")
    found = [
        each
        for each in table().values()
        if all(word.lower() in each.name for word in words)
        and (accelerator is None or accelerator.lower() in each.accelerator.lower())
        and (memory_gib is None or each.accelerator_memory_gib >= memory_gib)
        and (not has_efa or each.efa > 0)
        and (use is None or use in each.use)
        and (max_price is None or known.per_hour.get(each.name, float("inf")) <= max_price)
    ]
    return found, known
