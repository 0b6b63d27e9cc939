"""A `tetrad serve` of models/tetrad-tiny for scripts and tests that must ask a real one."""
import json
import re
import subprocess
import urllib.error
import urllib.request

PATIENCE = 120  # seconds; a sanitized binary is slow


class LiveServer:
    """With `with`: runs and is ready inside of it, leaves no process behind."""

    def __init__(self, binary, *flags):
        self.process = subprocess.Popen([binary, "serve", "--port", "0", *flags], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.port = 0

    def __enter__(self):
        said = []
        for line in self.process.stderr:
            said.append(line)
            if ready := re.search(r"ready in .* on https?://.*:(\d+)$", line):
                self.port = int(ready.group(1))
                return self
        self.__exit__()
        raise RuntimeError(f"the server did not get ready: {''.join(said)}")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def ask(self, path, body=None, headers=None, method=None):
        """(status, headers, text) of a request; a body becomes JSON unless it is bytes."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json", **(headers or {})},
                                         method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                return response.status, response.headers, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read().decode()

    def metrics(self):
        """/metrics of a server that has answered something, so that series by route are there."""
        question = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 4}
        status, _, text = self.ask("/v1/chat/completions", question)
        assert status == 200, text
        self.ask("/metrics")
        return self.ask("/metrics")[2]


def families(text):
    """{name: (type, help, labels)} of the families of a /metrics text, in its order; labels without those of every engine series."""
    found = {}
    for line in text.splitlines():
        if match := re.match(r"# HELP (\S+) (.*)", line):
            found[match.group(1)] = ("", match.group(2), [])
        elif match := re.match(r"# TYPE (\S+) (\S+)", line):
            name = match.group(1)
            found[name] = (match.group(2), found[name][1], [])
        elif match := re.match(r"([\w:]+)(?:\{(.*)\})? ", line):
            name = match.group(1)
            family = next(f for f in (name, re.sub(r"_(bucket|sum|count)$", "", name)) if f in found)
            for label in re.findall(r'(\w+)="', match.group(2) or ""):
                if label != "le" and label not in found[family][2]:
                    found[family][2].append(label)
    return found
