"""A plan as lines of text: title, table of sizes, bars, summary."""

from launcher.planning import plan_report

__all__ = ["plan_report"]
