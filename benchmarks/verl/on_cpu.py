"""Lets verl 0.7 train on the processor: verl imports this module itself, as VERL_USE_EXTERNAL_MODULES names it.

verl knows the device cpu, but neither a collective backend nor an engine for it. The order matters: other modules of
verl copy the backend's function, and its data sets need the reader of images, when they are imported. verl always
computes in bfloat16, whose rounding would hide differences between numbers of nodes: here it computes in 32 bits.
"""

import functools
import sys
from types import ModuleType
from typing import Any

import torch
import verl.utils.device
import verl.utils.import_utils


def _no_images(*_: Any, **__: Any) -> None:
    raise NotImplementedError("text only: reading images and videos needs qwen_vl_utils and torchvision")


class _TextOnly(ModuleType):
    fetch_image = fetch_video = staticmethod(_no_images)


verl.utils.device.get_nccl_backend = lambda: "gloo"
verl.utils.import_utils.is_trl_available = lambda: False  # .venv has a later one, without the class that verl imports
torch.autocast = functools.partial(torch.autocast, enabled=False)
sys.modules["qwen_vl_utils"] = _TextOnly("qwen_vl_utils")

from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead  # noqa: E402

EngineRegistry.register("language_model", ["fsdp", "fsdp2"], "cpu")(FSDPEngineWithLMHead)
