"""Hydra's basic sweeper, without the complete configuration in the file that it writes."""

from collections.abc import Sequence
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.plugins import Plugins
from omegaconf import OmegaConf

from launcher.problems import shown

_BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


class Sweeper(BasicSweeper):
    """Hydra's sweeper, but for multirun.yaml: it gets the overrides, not the values of every file."""

    def setup(self, **arguments: Any) -> None:
        super().setup(**arguments)
        self._composed = self.config
        self.config = OmegaConf.create(
            {
                "hydra": {
                    "sweep": {"dir": self._composed.hydra.sweep.dir},
                    "overrides": {"task": [shown(word) for word in self._composed.hydra.overrides.task]},
                }
            }
        )

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        reduced, self.config = self.config, self._composed
        try:
            super().validate_batch_is_legal(batch)
        finally:
            self.config = reduced


def register() -> None:
    """Make Hydra use this sweeper where it would use its own. Idempotent."""
    Plugins.instance().class_name_to_class[_BASIC] = Sweeper
