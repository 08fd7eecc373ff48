"""Examines this machine before a training job's simulation: how hosts are isolated, and the channels' content."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

from launcher.backends.sagemaker.request import RECIPE_CHANNEL, REQUEST
from launcher.backends.sagemaker_local import channels, isolation
from launcher.backends.sagemaker_local.objects import Stores
from launcher.backends.sagemaker_local.operator import MACHINE_FILE
from launcher.bundle.store import json_of
from launcher.common.texts import counted
from launcher.model.finding import Answer, Question, ok, warning
from launcher.model.job_spec import Bundle, JobSpec


class ContractDoctor:
    """Examines what the simulation of a training job needs."""

    unanswered: ClassVar[frozenset[str]] = frozenset({"E395", "E396"})

    def examine(self, job: JobSpec, bundle: Bundle) -> Iterator[Answer]:
        """Yield how hosts are isolated, and a question for each channel."""
        best = isolation.probe()
        yield ok("isolation", best.note) if best.is_private else warning("isolation", best.note)
        request, machine = json_of(bundle, REQUEST), json_of(bundle, MACHINE_FILE)
        stores = Stores(machine["s3_endpoint"], machine["region"], machine["file_systems"])
        mode = request["AlgorithmSpecification"]["TrainingInputMode"]
        for channel in request["InputDataConfig"]:
            if channel["ChannelName"] != RECIPE_CHANNEL:
                yield Question("data", partial(_channel, channel, mode, stores))


def _channel(channel: Mapping[str, Any], mode: str, stores: Stores) -> Iterator[Answer]:
    number = channels.num_objects(channel, mode, stores)
    what = "a folder of this machine" if number is None else counted(number, "object")
    yield ok("data", f"channel {channel['ChannelName']}: {what}")
