"""The commands of `recipes`. Slow imports happen inside the command that needs them."""
