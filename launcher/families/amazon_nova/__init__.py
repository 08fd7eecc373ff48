"""Amazon Nova: models whose weights and programs are closed. A recipe is the configuration of a program in an image.

There is one program for each technique, which the sections of a recipe name.
"""

from launcher.families.amazon_nova.programs import interfaces
from launcher.families.amazon_nova.recipe import Recipe

__all__ = ["Recipe", "interfaces"]
