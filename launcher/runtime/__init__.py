"""What runs inside the training container; of the launcher it imports `common.names` only."""
