"""The flags of a launch's command line: Hydra's, and overrides that are spelt like flags."""

from launcher.config.hydra_flags import misspelt_keys, serve

__all__ = ["misspelt_keys", "serve"]
