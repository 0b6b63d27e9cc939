"""What the Python suites share: running the functions test_* of a module, and a client of a server on this machine."""
import contextlib
import http.client
import json
import os
import socket
import sys
import time
import traceback

PATIENCE = 120 * int(os.environ.get("TETRAD_TEST_SLOWNESS", "1"))  # seconds; a sanitized binary is slow


def run_tests(module, chosen=()):
    """Runs the functions test_* of a module in their order, or those of them that are chosen; leaves with 1 if one failed."""
    tests = {name: test for name, test in vars(sys.modules[module]).items() if name.startswith("test_")}
    unknown = [name for name in chosen if name not in tests]
    if unknown or not tests:
        sys.exit(f"no such tests: {' '.join(unknown)}; there are {' '.join(tests) or 'none'}")
    failed = 0
    for name in chosen or tests:
        started = time.monotonic()
        try:
            tests[name]()
            print(f"ok   {name} ({time.monotonic() - started:.1f} s)")
        except Exception as error:  # pylint: disable=broad-except
            failed += 1
            print(f"FAIL {name}: {type(error).__name__}: {error}")
            traceback.print_exc()
        sys.stdout.flush()
    sys.exit(1 if failed else 0)


def read_until(connection, end):
    data = b""
    while end not in data:
        more = connection.recv(65536)
        assert more, f"the connection ended after {data[-200:]!r}"
        data += more
    return data


class HttpClient:
    """Of the server at 127.0.0.1:self.port; a server under test derives from it."""

    port = None

    def call(self, method, path, body=None, headers=None):
        """(response, its body: parsed where it is JSON)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        connection.request(method, path, data, {**({} if data is None else {"Content-Type": "application/json"}), **(headers or {})})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        with contextlib.suppress(json.JSONDecodeError):
            text = json.loads(text)
        return response, text

    def raw(self, path, body, headers="", buffer=None):
        """A socket on which the request has been sent."""
        data = json.dumps(body).encode()
        connection = socket.socket()
        connection.settimeout(PATIENCE)
        if buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        connection.connect(("127.0.0.1", self.port))
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{headers}"
                           f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        return connection

    def wait_for(self, what):
        deadline = time.monotonic() + PATIENCE
        while not what():
            assert time.monotonic() < deadline, "it did not come to that"
            time.sleep(0.02)
