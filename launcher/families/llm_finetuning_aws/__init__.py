"""Fine-tuning by an LLMFT recipe, with the published image or with the open trainer.

Both read the same configuration. `None` stands for a start command of the user's own.
"""

from launcher.families.llm_finetuning_aws import open_trainer, published
from launcher.families.llm_finetuning_aws.recipe import Recipe
from launcher.model.job_spec import OPEN, PUBLISHED

__all__ = ["INTERFACES", "Recipe"]

INTERFACES = {None: published.INTERFACE, PUBLISHED: published.INTERFACE, OPEN: open_trainer.INTERFACE}
