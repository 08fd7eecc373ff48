"""Examines a job before its launch: every reason why it would fail, asked of this machine and of its cluster."""
