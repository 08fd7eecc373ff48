"""What runs inside the training container: torch, yaml, the standard library, `launcher.common.names`."""
