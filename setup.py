"""Find the packages of the wheel; everything else is in pyproject.toml.

Two folders of a checkout are packages of data inside the wheel. pyproject.toml can either find packages or place such
folders, not both.
"""

from setuptools import find_packages, setup

DATA = {"launcher.recipes_collection": "recipes_collection", "launcher.templates": "templates"}

setup(packages=[*find_packages(include=["launcher", "launcher.*"]), *DATA], package_dir=DATA)
