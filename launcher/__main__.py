"""`python -m launcher`: the `recipes` command."""

from launcher.cli import main

if __name__ == "__main__":
    main()
