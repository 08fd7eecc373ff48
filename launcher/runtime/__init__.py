"""What runs inside the training container, without the launcher's dependencies."""
