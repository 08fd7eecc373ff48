"""The manifest of a bundle: its name and its digest. Apart from rendering, so that listing jobs imports less."""

import hashlib
from collections.abc import Mapping

MANIFEST = "bundle.json"


def bundle_digest(hashes: Mapping[str, str]) -> str:
    """Return sha256, hex, over the sorted `<sha256>  <path>` lines of a bundle's files (as sha256sum writes them)."""
    lines = "".join(f"{hashes[path]}  {path}\n" for path in sorted(hashes))
    return hashlib.sha256(lines.encode()).hexdigest()
