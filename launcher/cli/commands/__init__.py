"""The commands of `recipes`. Slow imports happen inside the command that needs them.

What a command refuses is raised as ProblemsFound, which `launcher.cli.main` prints.
"""
