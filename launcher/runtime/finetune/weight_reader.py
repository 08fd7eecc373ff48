"""The safetensors files of a model as torch.distributed.checkpoint reads them: each rank its own part."""

import os
from collections.abc import Iterable
from pathlib import Path

from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

from launcher.runtime.finetune.weight_files import SavedTensor


class WeightReader(HuggingFaceStorageReader):
    """Reads a model's weights, and none of the other safetensors files of its folder, such as adapters."""

    def __init__(self, folder: Path, tensors: Iterable[SavedTensor]):
        super().__init__(str(folder))
        self.fs: _Files = _Files(sorted({str(tensor.file) for tensor in tensors}))


class _Files(FileSystem):
    def __init__(self, files: list[str]):
        self._files = files

    def ls(self, path: str | os.PathLike[str]) -> list[str]:
        return self._files
