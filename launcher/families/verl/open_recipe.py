"""What the open trainer is given of verl's SFT and DPO recipes."""

from typing import TYPE_CHECKING

from launcher.families.verl.translation import trained
from launcher.model.open_recipe import OpenRecipe

if TYPE_CHECKING:  # few compiles need it
    from launcher.runtime.finetune.key_terms import KeyTable


def _table() -> "KeyTable":
    from launcher.families.verl.open_keys import TABLE  # few compiles need it

    return TABLE


OPEN_RECIPE = OpenRecipe(
    table=_table,
    model="training_config.model.path",
    train="training_config.data.train_files",
    validation="training_config.data.val_files",
    adapters="training_config.model.lora_adapter_path",
    trained=trained,
    own_keys=("training_config.data.assistant_turns", "training_config.data.max_lost_share"),
)
