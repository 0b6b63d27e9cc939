#!/usr/bin/env python3
"""The embedded page: headers, size, what its files may not hold; and, where Chromium is installed, a conversation in it.

usage: page.py BINARY MODEL_DIRECTORY [FOLDER_FOR_SCREENSHOTS]
"""
import base64
import contextlib
import http.client
import json
import os
import pathlib
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from suite import PATIENCE, run_tests  # noqa: E402  pylint: disable=wrong-import-position

BINARY, MODEL = sys.argv[1], sys.argv[2]
SCREENSHOTS = sys.argv[3] if len(sys.argv) > 3 else ""
FILES = ("", "ui/index.html", "ui/style.css", "ui/app.js", "ui/api.js", "ui/copy.js", "ui/dashboard.js", "ui/markdown.js", "ui/store.js",
         "ui/tools.js")


@contextlib.contextmanager
def server(*flags):
    process = subprocess.Popen([BINARY, "serve", "-m", MODEL, "--port", "0", *flags], stderr=subprocess.PIPE, text=True)
    try:
        line = ""
        while "ready in " not in line:
            line = process.stderr.readline()
            assert line, "no line that says ready"
        yield int(line.rpartition(":")[2])
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def get(port, path, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", path, headers=headers or {})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_files():
    with server("--api-key", "secret") as port:
        total = 0
        for name in FILES:
            response, body = get(port, "/" + name)
            assert response.status == 200, name  # without a key: it is the same for everybody
            total += len(body)
            policy = response.getheader("Content-Security-Policy")
            assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy, policy
            assert response.getheader("X-Content-Type-Options") == "nosniff"
            text = body.decode("ascii")
            # No way from text to markup or code, and nothing from elsewhere.
            for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc", "DOMParser",
                         " onclick=", " onload=", " style=", "localStorage.setItem(KEY"):
                assert word not in text, f"{name}: {word}"
            addresses = [url for url in re.findall(r"https?://[\w.]+", text) if url != "http://www.w3.org"]
            assert not addresses, f"{name}: {addresses}"
        assert total <= 300 * 1024, total
        assert get(port, "/")[0].getheader("Content-Type").startswith("text/html")
        assert get(port, "/ui/app.js")[0].getheader("Content-Type").startswith("text/javascript")
        for name in ("ui/../../etc/passwd", "ui/nothing.js", "ui/%2e%2e/x"):
            assert get(port, "/" + name)[0].status == 404, name
        assert get(port, "/v1/stats")[0].status == 401
    with server("--no-ui") as port:
        assert get(port, "/")[0].status == 404 and get(port, "/ui/app.js")[0].status == 404


class Browser:
    """Chromium without a window, spoken to through a pipe."""

    def __init__(self, program, profile):
        to_read, self.write_end = os.pipe()
        self.read_end, to_write = os.pipe()
        shell = f'exec 3<&{to_read} 4>&{to_write}; exec "$0" "$@"'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", f"--user-data-dir={profile}", "--remote-debugging-pipe", "--window-size=1280,860",
             "about:blank"], pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.buffer, self.number, self.events = b"", 0, []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        self.session = None
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if getattr(self, "session", None):
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            while b"\0" not in self.buffer:
                ready, _, _ = select.select([self.read_end], [], [], max(0, deadline - time.monotonic()))
                more = os.read(self.read_end, 1 << 16) if ready else b""
                assert more, f"{method}: the browser does not answer"
                self.buffer += more
            text, _, self.buffer = self.buffer.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def run(self, code):
        result = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True, userGesture=True)
        assert "exceptionDetails" not in result, f"{code}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def wait(self, code):
        deadline = time.monotonic() + PATIENCE
        while not self.run(code):
            assert time.monotonic() < deadline, f"never: {code}\n" + str(self.run("document.body.innerText"))
            time.sleep(0.1)

    def key(self, key, code, modifiers=0, text=""):
        more = {"text": text} if text else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code, modifiers=modifiers,
                      windowsVirtualKeyCode={"Enter": 13, "Escape": 27}.get(key, ord(key[0].upper())), **(more if kind == "keyDown" else {}))

    def picture(self, name):
        if SCREENSHOTS:
            pathlib.Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            data = self.call("Page.captureScreenshot", format="png")["data"]
            pathlib.Path(SCREENSHOTS, name + ".png").write_bytes(base64.b64decode(data))

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.read_end)
        os.close(self.write_end)


HOSTILE = "<img src=x onerror=\"window.pwned=1\"><script>window.pwned=1</script> [x](javascript:window.pwned=1) ![y](https://evil.example/z.png)"


@contextlib.contextmanager
def opened_page(*flags):
    """A browser at the page of a server: (browser, port), or None where there is no Chromium. At the end nothing was wrong in it."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        print("skipped: no Chromium: the page was not opened")
        yield None
        return
    with server(*flags) as port, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(program, profile)
        try:
            yield browser, port
            faults = [event for event in browser.events if event["method"] == "Runtime.exceptionThrown" or
                      event["method"] == "Log.entryAdded" and "Content Security Policy" in event["params"]["entry"]["text"]]
            assert not faults, faults
            asked = {event["params"]["request"]["url"] for event in browser.events if event["method"] == "Network.requestWillBeSent"}
            elsewhere = [url for url in asked if not url.startswith((f"http://127.0.0.1:{port}/", "data:"))]
            assert not elsewhere, elsewhere
        finally:
            browser.close()


def import_file(browser, content):
    browser.run(f"""(() => {{
      const files = new DataTransfer();
      files.items.add(new File([{json.dumps(json.dumps(content))}], "x.json"));
      const input = document.getElementById("import-file");
      input.files = files.files;
      input.dispatchEvent(new Event("change"));
    }})()""")


def test_in_a_browser():
    with opened_page("--api-key", "secret") as opened:
        if opened:
            browser, port = opened
            browser.call("Page.navigate", url=f"http://127.0.0.1:{port}/")
            browser.wait("document.getElementById('phase')?.textContent.startsWith('401')")
            browser.run("(() => { const key = document.getElementById('api-key'); key.value = 'secret'; key.dispatchEvent(new Event('change')); })()")
            browser.wait("document.getElementById('model').textContent !== 'tetrad'")
            browser.wait("document.getElementById('sampling-temperature').value !== ''")
            assert browser.run("sessionStorage.length === 1 && !JSON.stringify(localStorage).includes('secret')")
            # By keyboard alone: ask, and read the answer.
            browser.run("document.getElementById('sampling-max_tokens').value = 40; document.getElementById('prompt').focus()")
            browser.call("Input.insertText", text="What is 12 + 30?")
            browser.key("Enter", "Enter", text="\r")
            browser.wait("document.querySelectorAll('.message.assistant').length === 1 && document.getElementById('stop').hidden")
            browser.wait("/tok\\/s.*tokens.*first after.*prompt/s.test(document.querySelector('.message.assistant .facts').innerText)")
            assert browser.run("document.querySelector('.thinking summary').textContent.match(/^Thought for [0-9.]+ s, [0-9]+ tokens$/) !== null")
            assert browser.run("/^[0-9]+ of [0-9,]+ tokens of context$/.test(document.getElementById('gauge-text').textContent)")
            browser.picture("chat")
            # Another answer is a branch of its own; an edited question too.
            browser.key("r", "KeyR", modifiers=1)
            browser.wait("document.getElementById('stop').hidden && document.querySelector('.message.assistant .facts').innerText.includes('2/2')")
            browser.key("e", "KeyE", modifiers=1)
            browser.run("document.querySelector('.message.user textarea').value = 'And 1 + 1?'")
            browser.run("document.querySelector('.message.user .body button').click()")
            browser.wait("document.getElementById('stop').hidden && document.querySelector('.message.user .facts').innerText.includes('2/2')")
            # Stopping reaches the server.
            browser.run("document.getElementById('sampling-max_tokens').value = ''; document.getElementById('prompt').focus()")
            browser.call("Input.insertText", text="Count to a million.")
            browser.key("Enter", "Enter", text="\r")
            browser.wait("!document.getElementById('stop').hidden && document.querySelectorAll('.message.assistant').length === 2")
            browser.key("Escape", "Escape")
            browser.wait("document.getElementById('stop').hidden")
            def stats():
                return json.loads(get(port, "/v1/stats", {"Authorization": "Bearer secret"})[1])
            deadline = time.monotonic() + PATIENCE
            while stats()["requests"]["running"]:
                assert time.monotonic() < deadline, "the stopped answer runs on"
                time.sleep(0.1)
            # A conversation that somebody else wrote: text stays text, and nothing is fetched.
            file = {"format": "tetrad-conversations-1", "conversations": [{"title": HOSTILE, "leaf": "b", "nodes": {
                "a": {"id": "a", "parent": None, "role": "user", "content": HOSTILE},
                "b": {"id": "b", "parent": "a", "role": "assistant", "content": HOSTILE + "\n\n```html\n" + HOSTILE, "reasoning": HOSTILE}}}]}
            import_file(browser, file)
            browser.wait("document.querySelectorAll('#history li').length === 2")
            browser.run("[...document.querySelectorAll('#history button')].find((b) => b.textContent.startsWith('<img')).click()")
            browser.wait("document.querySelectorAll('.message').length === 2")
            assert browser.run("document.querySelector('.message.assistant .body').textContent.includes('<script>')")
            assert browser.run("window.pwned === undefined && document.querySelectorAll('main img, main script').length === 0")
            assert browser.run("[...document.querySelectorAll('main a')].every((a) => a.protocol === 'https:')")
            browser.picture("hostile")
            # Kept by the browser, not by the server.
            browser.call("Page.reload")
            browser.wait("document.querySelectorAll('#history li').length === 2")
            browser.wait("document.getElementById('model').textContent !== 'tetrad'")
            browser.key("2", "Digit2", modifiers=1)
            browser.wait("!document.getElementById('view-board').hidden && document.querySelectorAll('#recent tbody tr').length >= 4")
            assert browser.run("document.querySelectorAll('.tile').length >= 12 && document.querySelectorAll('#memory .bar').length >= 2")
            browser.picture("dashboard")
            browser.run("document.getElementById('theme').click(); document.getElementById('theme').click()")
            assert browser.run("document.documentElement.dataset.theme") == "dark"
            browser.picture("dashboard-dark")


SMALL = [{"type": "function", "function": {"name": "save", "strict": True, "parameters": {
    "type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "kind": {"enum": ["sum", "other"]}},
    "required": ["n", "kind"], "additionalProperties": False}}}]


def test_tools_in_a_browser():
    """Tools from the settings, a call that the model must make, its result typed and sent on, another result on a branch."""
    with opened_page() as opened:
        if not opened:
            return
        browser, port = opened
        browser.call("Page.navigate", url=f"http://127.0.0.1:{port}/")
        browser.wait("document.getElementById('sampling-temperature')?.value > ''")
        browser.run("document.getElementById('tools-part').open = true; document.getElementById('tools').focus()")
        # What is wrong is said at once, and nothing is asked without what was meant.
        browser.call("Input.insertText", text='[{"type": "function"}]')
        assert browser.run("document.getElementById('tools-problem').textContent") == "[0].function: expected an object"
        assert browser.run("document.getElementById('tools').getAttribute('aria-invalid')") == "true"
        browser.run("document.getElementById('prompt').focus()")
        browser.call("Input.insertText", text="What is 12 + 30?")
        browser.key("Enter", "Enter", text="\r")
        browser.wait("document.getElementById('notice').textContent.startsWith('Tools: [0].function')")
        assert browser.run("document.querySelectorAll('.message').length") == 0
        assert browser.run("document.getElementById('prompt').value") == "What is 12 + 30?"
        browser.run(f"""(() => {{
          const set = (id, value) => {{ const field = document.getElementById(id); field.value = value; field.dispatchEvent(new Event("input", {{ bubbles: true }}));
                                        field.dispatchEvent(new Event("change", {{ bubbles: true }})); }};
          set("tools", {json.dumps(json.dumps(SMALL))});
          set("tool-choice", "required");
          set("budget", "10");
          set("sampling-temperature", "0");
          document.getElementById("prompt").focus();
        }})()""")
        assert browser.run("document.getElementById('tools-count').textContent") == "1 offered: save"
        browser.key("Enter", "Enter", text="\r")
        browser.wait("document.querySelectorAll('.call').length >= 1 && document.getElementById('stop').hidden")
        # Name, id and arguments are those of the request that goes on with it; the field for the result has the focus.
        name, call_id, arguments = browser.run("""(() => { const call = document.querySelector('.call');
          return [call.querySelector('b').textContent, call.querySelector('.id').textContent, call.querySelector('pre').textContent]; })()""")
        assert name == "save" and call_id and json.dumps(json.loads(arguments), indent=2) == arguments, (name, call_id, arguments)
        assert json.loads(arguments)["kind"] in ("sum", "other"), arguments
        calls = browser.run("document.querySelectorAll('.call').length")
        assert browser.run("document.querySelectorAll('.results textarea').length") == calls
        assert browser.run("document.activeElement === document.querySelector('.results textarea')")
        browser.picture("call")
        browser.run("(() => { const choice = document.getElementById('tool-choice'); choice.value = 'none'; choice.dispatchEvent(new Event('change', {bubbles: true})); })()")
        browser.run("document.getElementById('sampling-max_tokens').value = 40")
        browser.call("Input.insertText", text='{"saved": <b>true</b>}')
        browser.key("Enter", "Enter", modifiers=2)
        browser.wait("document.querySelectorAll('.message.assistant').length === 2 && document.getElementById('stop').hidden")
        assert browser.run("document.querySelectorAll('.message.tool').length") == calls
        assert browser.run("document.querySelector('.message.tool .body').textContent") == '{"saved": <b>true</b>}'
        assert browser.run("document.querySelectorAll('.results:not([hidden])').length") == 0
        assert browser.run("document.querySelector('.message:last-child .failed').textContent") in (
            "", "cut off: the limit of tokens was reached")
        sent = [json.loads(event["params"]["request"]["postData"]) for event in browser.events
                if event["method"] == "Network.requestWillBeSent" and event["params"]["request"]["url"].endswith("/v1/chat/completions")]
        assert [message["role"] for message in sent[-1]["messages"]] == ["user", "assistant"] + ["tool"] * calls, sent[-1]
        made = sent[-1]["messages"][1]["tool_calls"][0]
        assert made["id"] == call_id == sent[-1]["messages"][2]["tool_call_id"] and sent[-1]["messages"][2]["content"] == '{"saved": <b>true</b>}'
        assert made["function"]["name"] == "save" and json.loads(made["function"]["arguments"]) == json.loads(arguments), made
        assert sent[-1]["tools"] == SMALL and (sent[0]["tool_choice"], sent[-1]["tool_choice"]) == ("required", "none"), sent
        browser.picture("result")
        # Another result is a branch; both are kept, with the calls.
        browser.run("[...document.querySelectorAll('.message.tool button')].find((b) => b.textContent === 'Edit').click()")
        browser.run("document.querySelector('.message.tool textarea').value = 'no'")
        browser.run("document.querySelector('.message.tool .body button').click()")
        browser.wait("document.getElementById('stop').hidden && document.querySelector('.message.tool .facts').innerText.includes('2/2')")
        assert browser.run("document.querySelectorAll('.message.tool').length") == calls
        browser.call("Page.reload")
        browser.wait("document.querySelectorAll('#history li').length === 1")
        browser.run("document.querySelector('#history button').click()")
        browser.wait("document.querySelectorAll('.message.tool').length >= 1")
        assert browser.run("document.querySelector('.call pre').textContent") == arguments
        assert browser.run("document.querySelector('.message.tool .body').textContent") == "no"
        browser.wait("document.getElementById('tools').value.includes('save')")
        # A call that broke off is shown as such and asks for no result; what somebody else wrote stays text.
        file = {"format": "tetrad-conversations-1", "conversations": [{"title": "broken", "leaf": "b", "nodes": {
            "a": {"id": "a", "parent": None, "role": "user", "content": "q"},
            "b": {"id": "b", "parent": "a", "role": "assistant", "content": "", "calls": [
                {"id": "c1", "name": HOSTILE, "arguments": '{"x": "' + HOSTILE.replace('"', '\\"') + '"}'}, {"id": "c2", "name": "g", "arguments": '{"y": ['},
                5]}}}]}
        import_file(browser, file)
        browser.wait("document.querySelectorAll('#history li').length === 2")
        browser.run("[...document.querySelectorAll('#history button')].find((b) => b.textContent === 'broken').click()")
        browser.wait("document.querySelectorAll('.call').length === 3")
        assert browser.run("[...document.querySelectorAll('.call .state')].map((n) => n.textContent)") == ["", "broke off", "broke off"]
        assert browser.run("document.querySelectorAll('.results textarea').length") == 1
        assert browser.run("window.pwned === undefined && document.querySelectorAll('main img, main script').length === 0")
        browser.picture("broken")



if __name__ == "__main__":
    run_tests("__main__")
