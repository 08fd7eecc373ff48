"""Why a job failed: the first error among the lines of all ranks, and its cause by a table of known ones.

causes.find(lines, records)     the Failure in what workers wrote, and in what the cluster or the operator recorded
causes.known()                  the table, `known.yaml`
"""

from launcher.causes.finding import find
from launcher.causes.table import KnownCause, known, matches
from launcher.model.failure import Cause, ErrorLine, Failure, failure_from, to_data

__all__ = ["Cause", "ErrorLine", "Failure", "KnownCause", "failure_from", "find", "known", "matches", "to_data"]
