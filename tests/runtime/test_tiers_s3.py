"""Uploads to S3: checked before a checkpoint is published, and nothing unfinished stays behind."""

import json

import pytest
import torch
from test_tiers import load, save_steps, settings, steps_in
from test_tiers_order import on

from launcher.common import names
from launcher.runtime.tiers import s3_store
from launcher.runtime.tiers.s3_store import Bucket
from launcher.runtime.tiers.tier_settings import tier_settings
from launcher.runtime.tiers.training import _store

pytest_plugins = ("s3_server",)
pytestmark = pytest.mark.usefixtures("own_folders")


def headers_of(client, operation: str) -> list[dict]:
    found = []
    client.meta.events.register(
        f"before-send.s3.{operation}", lambda request, **_: found.append(dict(request.headers))
    )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("has_checksums", [True, False])
def test_uploads_have_the_sdks_checksums_unless_the_store_refuses_them(bucket, has_checksums):
    store = Bucket(bucket.name, "ns/", bucket.endpoint, has_checksums=has_checksums)
    sent = headers_of(store._client, "PutObject")
    save_steps(on(store), 1)
    shards = [each for each in sent if any(name.lower().startswith("x-amz-checksum-") for name in each)
              or "x-amz-trailer" in {name.lower() for name in each}]  # fmt: skip
    assert bool(shards) is has_checksums and load(on(store))[1] == 1.0


@pytest.mark.slow
def test_an_object_of_another_size_is_not_published(bucket, capsys, monkeypatch):
    store = Bucket(bucket.name, "ns/", bucket.endpoint)
    save_steps(on(store), 1)
    head = store._client.head_object
    monkeypatch.setattr(store._client, "head_object", lambda **place: head(**place) | {"ContentLength": 5})
    save_steps(on(store), 2)
    assert steps_in(store) == [1]
    assert "has 5 bytes, but" in capsys.readouterr().out


def uploads(bucket) -> list[str]:
    return [each["Key"] for each in bucket.client.list_multipart_uploads(Bucket=bucket.name).get("Uploads", ())]


@pytest.mark.slow
def test_unfinished_uploads_are_aborted_after_a_failure_and_at_the_start(bucket, tap, monkeypatch):
    monkeypatch.setattr(s3_store, "PART_BYTES", 5 << 20)
    bucket.client.create_multipart_upload(Bucket=bucket.name, Key="ns/000000000001.x/rank00000.shard")
    bucket.client.create_multipart_upload(Bucket=bucket.name, Key="other/object")
    url, counted = tap
    store = Bucket(bucket.name, "ns/", url)
    manager = on(store)
    save_steps(manager, 1)
    assert uploads(bucket) == ["other/object"]
    # The parts are refused, and s3transfer's own request to abort is lost once.
    lost = iter([True])
    counted.fault = lambda method, path: (
        (403, "AccessDenied", {})
        if method == "PUT" and "partNumber=2" in path or (method == "DELETE" and next(lost, False))
        else None
    )
    manager.save({"w": torch.zeros(3_000_000)}, 2, {})
    manager.wait()
    assert steps_in(store) == [1] and uploads(bucket) == ["other/object"]


@pytest.mark.slow
def test_objects_are_encrypted_with_the_key_that_is_named(bucket):
    key = "arn:aws:kms:us-east-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
    store = Bucket(bucket.name, "ns/", bucket.endpoint, kms_key=key)
    manager = on(store)
    save_steps(manager, 1, 2)
    assert load(on(store))[1] == 2.0
    for name in bucket.keys("ns/"):
        found = bucket.client.head_object(Bucket=bucket.name, Key=name)
        assert (found["ServerSideEncryption"], found["SSEKMSKeyId"]) == ("aws:kms", key)


def test_a_recipes_settings_reach_the_store(monkeypatch):
    section = {
        "namespace": "ns",
        "memory": None,
        "persistent": {"frequency": 1, "retention": 1, "path": "s3://bucket/a"},
        "s3_endpoint": None,
        "replicas": 1,
    }
    plain = tier_settings(section)
    assert (plain.patience_s, plain.kms_key, plain.s3_checksums) == (600, None, True)
    given = tier_settings(json.loads(json.dumps(section | {"patience_s": 30, "kms_key": "k", "s3_checksums": False})))
    store = _store(given)
    assert (store._patience_s, store._kms_key, store._has_checksums) == (30, "k", False)
    monkeypatch.setenv(names.ENV_CHECKPOINT_PATIENCE, "7")
    assert tier_settings(section).patience_s == 7 and settings().patience_s == 7
