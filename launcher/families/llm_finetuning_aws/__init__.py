"""Fine-tuning by an LLMFT recipe, with the closed program of the published image or with the open trainer.

Both read the same configuration. `None` stands for a start command of the user's own.

Source: the published LLMFT image and recipes.
"""

from pathlib import Path

from launcher.families.llm_finetuning_aws.recipe import Recipe
from launcher.model import open_trainer, start_script
from launcher.model.config_tree import get
from launcher.model.interface import Entry, Interface, OpenRecipe
from launcher.model.job_spec import OPEN, PUBLISHED, JobSpec

__all__ = ["INTERFACES", "OPEN_RECIPE", "Recipe"]

_MODULE = "amzn_awsllm_fine_tuning.train_hp"
"""Source: the published recipes' git.entry_module."""


def _program(job: JobSpec) -> tuple[str, ...]:
    """Return the script or the module that the image's start script would start."""
    if script := get(job.config, "git.entry_script"):
        return (str(Path(job.cwd, script)),)
    return "-m", get(job.config, "git.entry_module") or _MODULE


_PUBLISHED = Interface(
    roles=(start_script.workers(_program, lambda job: f"-m {_MODULE}"),),
    runs_as_root=True,
    accelerator="gpu",
    entry=Entry.RECIPE,
    has_own_checkpoints=True,
)


OPEN_RECIPE = OpenRecipe(
    keys_in="launcher.runtime.finetune.keys",
    model="training_config.model_config.model_name_or_path",
    train="training_config.datasets.train_data.file_path",
    validation="training_config.datasets.val_data.file_path",
    adapters="training_config.model_config.lora_checkpoint_file_path",
    own_keys=(
        "training_config.model_config.model_revision",
        *(f"training_config.training_args.{name}" for name in ("lr_min_ratio", "lr_warmup_steps")),
        *(f"training_config.training_args.{name}" for name in ("max_skipped_steps", "truncation")),
        *(f"training_config.datasets.{name}" for name in ("assistant_turns", "max_lost_share")),
    ),
)
INTERFACES = {None: _PUBLISHED, PUBLISHED: _PUBLISHED, OPEN: open_trainer.interface(OPEN_RECIPE)}
