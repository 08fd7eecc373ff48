"""Every code that users may see, with its reason and source: those of the rules, and those of `codes.csv`."""

import csv
from dataclasses import dataclass
from pathlib import Path

from launcher.rules import all_notice_rules, all_rules

SUBJECTS = {
    "E0": "Composition",
    "E1": "Types",
    "E2": "Sizes, batches and hardware",
    "E3": "Kubernetes and SageMaker",
    "E4": "This machine, its rehearsals, and Slurm",
    "E5": "Tracking",
    "E56": "Nova",
    "E57": "Nova",
    "E6": "Secrets",
    "E7": "Bundles, logs and files",
    "E8": "The recipes command",
    "E9": "Not supported yet",
    "N1": "Notices",
    "N4": "Notices",
}
"""Subject of the codes that begin so; the longest beginning counts."""


@dataclass(frozen=True, slots=True)
class Code:
    """A stable code of Problems (E…) or notices (N…).

    Args:
        code: A letter and three digits.
        reason: Why it is an error, or worth knowing.
        source: The document and its section that it is based on, or our decision.
        cluster: The only choice of `cluster` it applies to; None for all.
    """

    code: str
    reason: str
    source: str
    cluster: str | None = None

    @property
    def subject(self) -> str:
        """The subject of the code."""
        return SUBJECTS.get(self.code[:3]) or SUBJECTS[self.code[:2]]


def all_codes() -> tuple[Code, ...]:
    """Return every code, in order; a code that a rule raises, and other code too, is listed as the rule's."""
    found = {code.code: code for code in elsewhere()}
    for rule in (*all_rules(), *all_notice_rules()):
        found[rule.code] = Code(rule.code, rule.reason, rule.source, " or cluster=".join(rule.clusters) or None)
    return tuple(found[code] for code in sorted(found))


def elsewhere() -> tuple[Code, ...]:
    """Return the codes that are raised outside of rules, of which a rule may raise some too."""
    lines = Path(__file__).with_name("codes.csv").read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return tuple(Code(row["code"], row["reason"], row["source"], row["cluster"] or None) for row in rows)
