"""A fixture: moto's S3 server in a thread; a test module names this one in `pytest_plugins`."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "word", "AWS_EC2_METADATA_DISABLED": "true"}
REGION = "us-east-1"


@dataclass(frozen=True)
class Bucket:
    """A bucket of its own: its server's URL, a client, and its name."""

    endpoint: str
    client: Any
    name: str

    @property
    def uri(self) -> str:
        return f"s3://{self.name}"

    def put(self, key: str, data: bytes) -> str:
        """Make an object; return its URI."""
        self.client.put_object(Bucket=self.name, Key=key, Body=data)
        return f"{self.uri}/{key}"

    def get(self, key: str) -> bytes:
        return self.client.get_object(Bucket=self.name, Key=key)["Body"].read()

    def keys(self, prefix: str = "") -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return [each["Key"] for page in pages for each in page.get("Contents", ())]


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """Return the URL of an S3 server."""
    server = pytest.importorskip(
        "moto.moto_server.threaded_moto_server", reason="needs moto: pip install '.[sagemaker,test]'"
    ).ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """Return a new bucket, for whose server the environment has credentials."""
    boto3 = pytest.importorskip("boto3", reason="needs boto3: pip install '.[sagemaker]'")
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=s3_endpoint, region_name=REGION)
    name = f"bucket-{secrets.token_hex(4)}"
    client.create_bucket(Bucket=name)
    return Bucket(s3_endpoint, client, name)
