"""The proxy that tests put before an S3 server: what it does when either side is gone."""

import http.client
import socket
import threading

from s3_server import tapped


def answered(url: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    connection.request("GET", "/bucket/object")
    return connection.getresponse()


def test_a_server_that_is_gone_drops_the_connection_and_nothing_is_printed(closed_port, capfd):
    with tapped(f"http://127.0.0.1:{closed_port}") as (url, tap):
        try:
            answered(url)
            raise AssertionError("something answered")
        except http.client.RemoteDisconnected:
            pass
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as client:
            client.sendall(b"PUT /bucket/object HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab")
    assert tap.requests == [("GET", "/bucket/object")]
    assert capfd.readouterr().err == ""


def test_its_end_ends_the_connections_that_a_client_keeps(closed_port):
    before = set(threading.enumerate())
    with tapped(f"http://127.0.0.1:{closed_port}") as (url, tap):
        tap.fault = lambda method, path: (503, "SlowDown", {})
        kept = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        kept.request("GET", "/bucket/object")
        assert kept.getresponse().read() and set(threading.enumerate()) > before
    assert set(threading.enumerate()) == before and kept.sock.recv(1) == b""
