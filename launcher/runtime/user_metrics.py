"""Further metrics that a script reports, beside those that a job always reports."""

import re
from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch

from launcher.runtime.metric_shipping import METRIC_NAMES

MAX_FURTHER = 100
"""Metrics of one step; a tracking server takes 1000 in a request."""

_SEGMENT = r"[A-Za-z0-9_-][A-Za-z0-9_. -]*"
_NAME = re.compile(rf"(?!.{{201}}){_SEGMENT}(/{_SEGMENT})*")
"""Source: MLflow, mlflow.utils.validation, metric names: these characters, a normal path, at most 250 of them. The
prefix of a launch takes the rest."""

_RESERVED = re.compile(rf"({'|'.join(METRIC_NAMES)})\Z|checkpoint/|launch-\d+/")


class MetricInvalid(ValueError):
    """A metric that cannot be reported: its name, its value, or one too many."""


class UserMetrics:
    """Collects metrics until they are recorded; all ranks use the same names, and the first rank's values count."""

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}

    def add(self, metrics: Mapping[str, object]) -> None:
        """Keep `metrics`; a name that exists already gets the new value. After MetricInvalid none is kept."""
        checked = {_checked_name(name): _number(name, value) for name, value in metrics.items()}
        if len(self._metrics | checked) > MAX_FURTHER:
            raise MetricInvalid(f"more than {MAX_FURTHER} metrics for one step")
        self._metrics |= checked

    def take(self) -> dict[str, float]:
        """Return and forget the metrics. Waits for accelerators that hold a value."""
        noted, self._metrics = self._metrics, {}
        return {name: float(value) for name, value in noted.items()}

    def forget(self) -> None:
        """Forget the metrics."""
        self._metrics = {}


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise MetricInvalid(
            f"metric {name!r}: a name consists of letters, digits, and _ - . / and spaces, at most 200; "
            "its parts between slashes are not empty and do not begin with a dot or a space"
        )
    if _RESERVED.match(name):
        raise MetricInvalid(f"metric {name!r}: the name is the job's own; also checkpoint/… and launch-N/…")
    return name


def _number(name: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex():
        # All ranks together gather a sharded one. Nothing waits for an accelerator before the step has ended.
        full = value.full_tensor() if hasattr(value, "full_tensor") else value
        return full.detach()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise MetricInvalid(f"metric {name!r}: {value!r} is not a number, or a tensor of one")
    return float(value)
