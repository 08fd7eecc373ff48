"""Multi-turn reinforcement learning of adapters, and its evaluation, by the closed program of SageMaker's image.

Source: the published recipes of multi-turn RL and their parameters.
"""

from launcher.families.mtrl.recipe import Recipe
from launcher.model.interface import WORKERS, Entry, Interface, Role

__all__ = ["INTERFACES", "Recipe"]

INTERFACES = {None: Interface(roles=(Role(WORKERS),), takes_config_path=False, accelerator="gpu", entry=Entry.IMAGE)}
