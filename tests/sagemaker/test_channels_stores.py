"""Stores: the same calls for S3 and for folders of this machine; results that are there whole or not at all."""

import errno
import os
import random
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from background import serving
from channel_cases import Data
from conftest import ROOT

from launcher.backends.sagemaker_local import files
from launcher.backends.sagemaker_local.objects import Object, Stores
from launcher.common.problems import ProblemsFound

pytest_plugins = ("s3_server",)

PUBLISH = """
import sys
from pathlib import Path
from launcher.backends.sagemaker_local.objects import Stores
print("ready", flush=True)
while True:
    Stores().put(Path(sys.argv[1]), sys.argv[2])
"""


@pytest.fixture(params=["file", "s3"])
def data(request, tmp_path):
    """Return objects of a test, in a store of each kind."""
    return Data.of(request, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 5, 9 << 20], ids=["empty", "small", "in parts"])
def test_an_object_comes_back_as_it_was_put(data, tmp_path, size):
    content = os.urandom(size)
    uri = data.put("deep/er/ü b+%20", content)
    data.stores.fetch(uri, tmp_path / "new/one")
    data.stores.fetch_all([(Object(uri, size), tmp_path / "new/two")])
    for offset in (0, size // 2):
        with data.stores.open(uri, offset) as stream:
            assert stream.read() == content[offset:]
    assert [(tmp_path / "new" / name).read_bytes() for name in ("one", "two")] == [content, content]
    assert list(data.stores.list(f"{data.base}/deep/")) == [Object(uri, size)]


def test_putting_again_replaces(data):
    data.put("a", b"long before")
    assert data.put("a", b"now") == f"{data.base}/a"
    with data.stores.open(f"{data.base}/a") as stream:
        assert stream.read() == b"now"


def test_a_listing_is_in_the_order_of_keys_over_all_pages(data, monkeypatch):
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "3")
    keys = ["a/b", "a", "a-b", "a.b", "ab/c/d", "a0", "é", "z", "b"]
    keys.remove("a")  # no folder of this machine has both a and a/b
    for key in keys:
        data.put(key, b"")
    assert [each.uri for each in data.stores.list(f"{data.base}/")] == [f"{data.base}/{key}" for key in sorted(keys)]
    assert [each.uri for each in data.stores.list(f"{data.base}/a")] == [
        f"{data.base}/{key}" for key in sorted(keys) if key.startswith("a")
    ]


def test_folders_marked_in_s3_are_no_objects(bucket):
    bucket.put("train/", b"")
    bucket.put("train/a", b"")
    found = Stores(endpoint=bucket.endpoint).list(f"{bucket.uri}/train")
    assert [each.uri for each in found] == [f"{bucket.uri}/train/a"]


def test_only_regular_files_are_objects_and_links_are_followed(tmp_path, logged):
    store, stores = tmp_path / "store", Stores()
    (store / "deep").mkdir(parents=True)
    (store / "deep/a").write_text("a")
    (store / "loop").symlink_to(store)
    (store / "linked").symlink_to(store / "deep")
    (store / "dangling").symlink_to("nowhere")
    os.mkfifo(store / "fifo")
    assert [each.uri.rpartition("store/")[2] for each in stores.list(f"file://{store}/")] == ["deep/a", "linked/a"]
    assert set(logged.getvalue().splitlines()) == {
        f"{store}/fifo is a FIFO, so it is left out",
        f"{store}/dangling is a link to no file, so it is left out",
    }
    for name in ("fifo", "deep"):
        with pytest.raises(ProblemsFound, match="regular file"):
            stores.open(f"file://{store}/{name}")
        with pytest.raises(ProblemsFound, match="regular file"):
            stores.fetch(f"file://{store}/{name}", tmp_path / "copy")


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda data: data.stores.open(f"{data.base}/none"), "E420"),
        (lambda data: data.stores.fetch(f"{data.base}/none", data.folder / "x"), "E420"),
        (lambda data: data.stores.fetch_all([(Object(f"{data.base}/none", 1), data.folder / "x")]), "E420"),
        (lambda data: data.stores.open("https://somewhere/none"), "E421"),
        (lambda data: data.stores.put(data.folder / "none", "relative"), "E421"),
        (lambda data: data.stores.put(data.folder / "none", f"{data.base}/x"), "E420"),
    ],
    ids=["open", "fetch", "fetch many", "no store", "no URI", "no file"],
)
def test_what_is_refused_is_a_problem(data, call, code):
    with pytest.raises(ProblemsFound) as raised:
        call(data)
    assert [problem.code for problem in raised.value.problems] == [code]


def test_a_bucket_that_is_not_there_is_a_problem(bucket):
    with pytest.raises(ProblemsFound) as raised:
        list(Stores(endpoint=bucket.endpoint).list("s3://nobodys-bucket/x"))
    assert [(problem.code, problem.path) for problem in raised.value.problems] == [("E420", "s3://nobodys-bucket/x")]


def test_a_name_that_is_no_text_is_no_key(bucket, tmp_path):
    (tmp_path / "x").touch()
    with pytest.raises(ProblemsFound, match="E421") as raised:
        Stores(endpoint=bucket.endpoint).put(tmp_path / "x", f"{bucket.uri}/a\udcff")
    assert "not valid UTF-8" in raised.value.problems[0].message


def test_s3_without_credentials_is_a_problem(bucket, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(ProblemsFound) as raised:
        list(Stores(endpoint=bucket.endpoint).list(bucket.uri))
    assert [problem.code for problem in raised.value.problems] == ["E394"]


@pytest.mark.slow
def test_a_killed_copy_leaves_a_whole_object_or_none(tmp_path):
    source, store = tmp_path / "source", tmp_path / "store"
    store.mkdir()
    content = os.urandom(8 << 20)
    source.write_bytes(content)
    chance = random.Random(5)
    for _ in range(6):
        command = [sys.executable, "-c", PUBLISH, source, f"file://{store}/model.tar.gz"]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as child:
            child.stdout.readline()
            time.sleep(chance.uniform(0, 0.02))
            child.kill()
        for path in store.iterdir():
            assert path.read_bytes() == content


def test_a_file_system_without_nameless_files_is_published_to(tmp_path, monkeypatch):
    real = os.open

    def without(path, flags, *more, **named):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not here")
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", without)
    data = Data(f"file://{tmp_path}/store", Stores(), tmp_path)
    data.put("a", b"1")
    data.put("a", b"2")
    assert [path.read_bytes() for path in (tmp_path / "store").iterdir()] == [b"2"]

    def given_up(_read, write):
        os.write(write, b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "_pour", given_up)
    with pytest.raises(KeyboardInterrupt):
        data.put("b", b"3")
    assert os.listdir(tmp_path / "store") == ["a"]


class _Breaking(BaseHTTPRequestHandler):
    """Serves one object, and breaks off each answer after 1000 bytes."""

    content = os.urandom(3500)
    asked: list = []
    changes = False

    def do_GET(self):
        first = int((self.headers["Range"] or "bytes=0-")[6:-1])
        self.asked.append((first, self.headers["If-Match"]))
        if self.changes and first:
            self.send_error(412)
            return
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(self.content) - first))
        self.send_header("ETag", '"tag"')
        self.end_headers()
        self.wfile.write(self.content[first : first + 1000])

    def log_message(self, *_):
        pass


@pytest.fixture
def breaking(bucket):
    """Return a store whose connections break, and its handler."""
    handler = type("Handler", (_Breaking,), {"asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with serving(server):
        yield Stores(endpoint=f"http://127.0.0.1:{server.server_port}"), handler


def test_a_stream_goes_on_where_its_connection_was_lost(breaking):
    stores, handler = breaking
    with stores.open("s3://b/key") as stream:
        assert b"".join(iter(lambda: stream.read(700), b"")) == handler.content
    assert handler.asked[0] == (0, None)
    assert {tag for _, tag in handler.asked[1:]} == {'"tag"'}
    assert [first for first, _ in handler.asked] == sorted({first for first, _ in handler.asked})


def test_an_object_that_changed_meanwhile_is_a_problem(breaking):
    stores, handler = breaking
    handler.changes = True
    with pytest.raises(ProblemsFound, match="s3://b/key") as raised, stores.open("s3://b/key") as stream:
        while stream.read(700):
            pass
    assert len(raised.value.problems) == 1
