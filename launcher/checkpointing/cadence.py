"""How often to save: the interval with the least lost work, and the goodput at an interval. Times in seconds."""

import math
from dataclasses import dataclass

RATE_PER_NODE_HOUR = 419 / (54 * 24 * 2048)
"""Failures of one node per hour: 419 in 54 days of 16,384 GPUs, eight per node.

Source: Grattafiori et al., The Llama 3 Herd of Models (2024), section 3.3.4.
"""
DOCUMENT_MTBF_HOURS = 3
"""Hours between two failures of that run. Source: AWS, managed tiered checkpointing, introduction."""
_EXPONENT_LIMIT = 700
"""Largest exponent x for which e**x is a float."""


@dataclass(frozen=True, slots=True)
class Saving:
    """The cost of one way of saving.

    Args:
        blocked_s: Time for which training stops.
        save_s: Time after which the checkpoint can be loaded; at least `blocked_s`.
        restart_s: Time from a failure until training continues.
        mtbf_s: Mean time between two failures of the job.
    """

    blocked_s: float
    save_s: float
    restart_s: float
    mtbf_s: float

    @property
    def interval_s(self) -> float:
        """Training between two saves with the least expected loss; never so short that two saves overlap."""
        return max(daly(self.blocked_s, self.mtbf_s), self.save_s - self.blocked_s, math.ulp(1.0))

    def goodput(self, interval_s: float) -> float:
        """Return the expected fraction of time, 0 to 1, in which training makes lasting progress.

        A failure also loses the work of a save in progress: `save_s` minus the time that training waits for.

        Args:
            interval_s: Training between two saves.

        Source: Daly, A higher order estimate of the optimum checkpoint interval for restart dumps (2006), equation
        of the complete cost function, T = M·e^(R/M)·(e^((τ+δ)/M) − 1)·Ts/τ; the time of a save under way, which that
        model does not have, is added to R.
        """
        mtbf, lost = self.mtbf_s, self.restart_s + self.save_s - self.blocked_s
        exponent = (interval_s + self.blocked_s) / mtbf
        if max(exponent, lost / mtbf) > _EXPONENT_LIMIT:
            return 0.0
        return interval_s / (mtbf * math.exp(lost / mtbf) * math.expm1(exponent))


def young(cost_s: float, mtbf_s: float) -> float:
    """Return the interval of the first order.

    Source: Young, A first order approximation to the optimum checkpoint interval (1974): √(2·δ·M).
    """
    return math.sqrt(2 * cost_s * mtbf_s)


def daly(cost_s: float, mtbf_s: float) -> float:
    """Return the interval of the higher order, the training between two saves.

    Source: Daly (2006), τ = √(2δM)·(1 + ⅓·√(δ/2M) + ⅑·(δ/2M)) − δ where δ < 2M, else M.
    """
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    part = cost_s / (2 * mtbf_s)
    return young(cost_s, mtbf_s) * (1 + math.sqrt(part) / 3 + part / 9) - cost_s


def mtbf_s(rate_per_node_hour: float, nodes: int) -> float:
    """Return the mean time between failures of a job whose nodes fail independently, any one of which stops it."""
    return 3600 / (rate_per_node_hour * nodes)
