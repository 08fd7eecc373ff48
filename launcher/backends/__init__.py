"""Where jobs run: one package for each choice of `cluster`, behind one protocol."""
