"""Fine-tuning by an LLMFT recipe, with the published image or with the open trainer.

Both read the same configuration. `None` stands for a start command of the user's own.
"""

from typing import TYPE_CHECKING

from launcher.families.llm_finetuning_aws import published
from launcher.families.llm_finetuning_aws.recipe import Recipe
from launcher.model import open_trainer
from launcher.model.job_spec import OPEN, PUBLISHED
from launcher.model.open_recipe import OpenRecipe

if TYPE_CHECKING:  # few compiles need it
    from launcher.runtime.finetune.key_terms import KeyTable

__all__ = ["INTERFACES", "OPEN_RECIPE", "Recipe"]


def _table() -> "KeyTable":
    from launcher.runtime.finetune.keys import TABLE  # few compiles need it

    return TABLE


OPEN_RECIPE = OpenRecipe(
    table=_table,
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
INTERFACES = {None: published.INTERFACE, PUBLISHED: published.INTERFACE, OPEN: open_trainer.interface(OPEN_RECIPE)}
