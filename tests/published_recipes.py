"""What identifies the values of a published recipe."""

import hashlib
import json

from launcher.model.config_tree import leaves


def digest(tree):
    """Return the sha256 of a recipe's leaves: paths and values, 1, 1.0 and true apart."""
    return hashlib.sha256(json.dumps(sorted(leaves(tree)), sort_keys=True).encode()).hexdigest()
