"""Old name of `launcher.runtime.tiers.tier_settings`, kept for training scripts that import it."""

from launcher.runtime.tiers.tier_settings import Cadence, TierSettings, tier_settings, tier_settings_from_env

__all__ = ["Cadence", "TierSettings", "tier_settings", "tier_settings_from_env"]
