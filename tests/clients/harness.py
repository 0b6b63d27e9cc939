"""Servers for the client suites, and what the suites share: arguments, the server's counts, ways to leave."""
import argparse
import json
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from suite import PATIENCE, HttpClient, read_until, run_tests  # noqa: E402,F401  pylint: disable=wrong-import-position,unused-import


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tetrad", required=True, help="the binary")
    parser.add_argument("--scripted", required=True, help="tetrad_scripted_server")
    parser.add_argument("--model", required=True, help="models/tetrad-tiny")
    parser.add_argument("tests", nargs="*", help="names; default: all")
    return parser.parse_args()


ARGS = arguments()


class Server(HttpClient):
    """A running `tetrad serve`; leaves no process behind."""

    def __init__(self, *flags, command=None):
        if "--port" not in flags:
            flags = ("--port", "0", *flags)
        self.process = subprocess.Popen([*(command or [ARGS.tetrad, "serve"]), "-m", ARGS.model, *flags],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines = []
        self.port = None
        self.key = flags[flags.index("--api-key") + 1] if "--api-key" in flags else "none"
        ready = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(ready,), daemon=True)
        self._reader.start()
        if not ready.wait(PATIENCE) or self.port is None:
            self.close()
            raise AssertionError(f"no server: {self.lines}")

    def _read(self, ready):
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"ready in .* on http://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found[1])
                ready.set()
        ready.set()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()

    def stop(self):
        """As a user stops it; what it printed of sanitizers comes with the failure."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE)
        assert code == 0, (code, "".join(self.lines)[-4000:])

    def metrics(self):
        return self.call("GET", "/metrics", headers={"Authorization": f"Bearer {self.key}"})[1]

    def metric(self, name, **labels):
        total, found = 0.0, False
        for line in self.metrics().splitlines():
            match = re.fullmatch(rf"{re.escape(name)}(?:{{(.*)}})? (\S+)", line)
            if match and all(f'{key}="{value}"' in (match[1] or "") for key, value in labels.items()):
                total += float(match[2])
                found = True
        return total if found else 0.0

    def idle(self):
        return self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting") == 0

    def expect_all_free(self):
        """Nothing runs, nothing waits, and what is taken is the prefix cache's."""
        self.wait_for(self.idle)
        text = self.metrics()
        values = {name: float(value) for name, value in re.findall(r"^(\S+?)(?:{[^}]*})? (\S+)$", text, re.MULTILINE)}
        assert values["vllm:kv_cache_usage_perc"] == 0, text
        assert values["tetrad:sequences_running"] == 0 and values["tetrad:waiting_prompt_tokens"] == 0, text
        assert values["tetrad:pages_taken"] == values["tetrad:prefix_cache_pages"], text


class Scripted(Server):
    """A server whose answers are plans: a prompt with `plan:NAME` is answered by PLANS[NAME] (scripted_server.cpp)."""

    def __init__(self, plans, *flags):
        self._plans = tempfile.NamedTemporaryFile("w", suffix=".json")
        json.dump(plans, self._plans)
        self._plans.flush()
        super().__init__("--plans", self._plans.name, *flags, command=[ARGS.scripted])

    def close(self):
        super().close()
        self._plans.close()

    def tell(self, command):
        """hold, go, step N, delay US; in force when this returns."""
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ok\n"


def read_to_end(connection):
    pieces = []
    while pieces[-1:] != [b""]:
        pieces.append(connection.recv(1 << 20))
    return b"".join(pieces)


def gone(connection, how):
    """Leaves: "close", "reset", or "half" closed and reading on until the server ends it."""
    if how == "half":
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass
    elif how == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def user(text):
    return [{"role": "user", "content": text}]


def raises(kind, call, **attributes):
    """The exception, which must be of that kind and have these attributes."""
    try:
        call()
    except kind as error:
        for name, value in attributes.items():
            assert getattr(error, name) == value, (name, getattr(error, name), error)
        return error
    raise AssertionError(f"no {kind.__name__}")


def main(module):
    run_tests(module, ARGS.tests)
