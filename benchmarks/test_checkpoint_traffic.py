"""What a restore moves, as a multiple of the checkpoint: from S3, counted in its answers, and between nodes."""

import sys

import pytest
from conftest import ROOT

for place in ("runtime", "engines"):
    sys.path.insert(0, str(ROOT / "tests" / place))
pytest_plugins = ("s3_server",)

MOST = 1.1
SAME, OTHER = [(2, 2), (4, 4), (8, 8), (16, 16)], [(4, 8), (8, 2), (16, 4)]
"""Ranks that write and ranks that read."""


@pytest.mark.parametrize("strategy", ["fsdp2", "ddp"])
@pytest.mark.parametrize(("writers", "readers"), SAME + OTHER)
def test_bytes_from_s3(writers, readers, strategy, tmp_path, bucket, tap, report):
    from traffic import measure

    from launcher.runtime.tiers.s3_store import Bucket

    url, counted = tap
    traffic = measure(tmp_path / "run", writers, readers, lambda: Bucket(bucket.name, "ns/", url), strategy=strategy)
    moved = sum(count for name, count in counted.read.items() if name.endswith(".shard"))
    requests = sum(method == "GET" and ".shard" in path for method, path in counted.requests)
    assert moved == traffic.record["num_bytes"] and traffic.sent == traffic.record["sent_bytes"]
    report(
        f"S3, {strategy:5}, {writers:2} -> {readers:2} ranks, {traffic.size / 1e6:.1f} MB: "
        f"read {moved / traffic.size:.2f} in {requests} requests, sent {traffic.sent / traffic.size:.2f}"
    )
    assert moved <= MOST * traffic.size


@pytest.mark.parametrize(("writers", "readers"), [*SAME, (4, 8)])
def test_bytes_between_nodes(writers, readers, tmp_path, report):
    from traffic import measure

    traffic = measure(tmp_path / "run", writers, readers)
    assert traffic.sent == traffic.record["sent_bytes"]
    report(f"memory, fsdp2, {writers:2} -> {readers:2} nodes: sent {traffic.sent / traffic.size:.2f}")
    assert traffic.sent <= MOST * traffic.size
