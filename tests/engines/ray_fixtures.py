"""A fixture: a real Ray cluster for a session of tests; a test module names this one in `pytest_plugins`."""

from collections.abc import Iterator

import pytest
import ray_cluster


@pytest.fixture(scope="session")
def ray_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of the dashboard of a cluster with two nodes of eight accelerators."""
    pytest.importorskip("ray", reason="needs Ray: pip install '.[ray]'")
    if reason := ray_cluster.absent():
        pytest.skip(reason)
    with ray_cluster.running(tmp_path_factory.mktemp("ray"), num_nodes=2) as address:
        yield address
