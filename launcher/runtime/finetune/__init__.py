"""The open trainer: fine-tunes a language model as a compiled recipe states, inside the training container."""
