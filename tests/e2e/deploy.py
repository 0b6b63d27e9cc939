#!/usr/bin/env python3
"""The files under deploy/ against the program: they parse, every flag in them is taken, every metric is there, the probes answer, and a
pod or unit is given longer to stop than the server takes. Each check is shown a planted fault as well.

usage: deploy.py BINARY [TEST...]
"""
import functools
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests/support")]
from live_server import LiveServer, families  # noqa: E402  pylint: disable=wrong-import-position
from suite import run_tests  # noqa: E402  pylint: disable=wrong-import-position

BINARY = sys.argv[1]
DEPLOY = ROOT / "deploy"
METRIC = re.compile(r"\b(?:vllm|tetrad):[a-z0-9_]+|\b(?:http_request|process_)[a-z0-9_]+")


def read(path):
    return (DEPLOY / path).read_text(encoding="utf-8")


def documents(text):
    return [document for document in yaml.safe_load_all(text) if document]


def of_kind(text, kind):
    return next(document for document in documents(text) if document["kind"] == kind)


def container_of(text):
    return of_kind(text, "Deployment")["spec"]["template"]["spec"]["containers"][0]


def value_of(flags, name):
    """Of --name=VALUE or --name VALUE, the last one."""
    found = None
    for index, flag in enumerate(flags):
        if flag == name:
            found = flags[index + 1]
        elif flag.startswith(name + "="):
            found = flag.partition("=")[2]
    return found


def unit_lines(text):
    """[(section, key, value)] of a unit file; anything else in it is an error."""
    section, lines = None, []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if match := re.fullmatch(r"\[(\w+)\]", line):
            section = match.group(1)
        elif (match := re.fullmatch(r"([A-Za-z]+)=(.*)", line)) and section:
            lines.append((section, match.group(1), match.group(2)))
        else:
            raise ValueError(f"line {number} of a unit: {line!r}")
    return lines


def unit_value(text, key):
    return next(value for _, name, value in unit_lines(text) if name == key)


def unit_flags(unit, environment):
    variables = dict(line.split("=", 1) for line in environment.splitlines() if line and not line.startswith("#"))
    words = shlex.split(unit_value(unit, "ExecStart"))
    assert words[:2] == ["tetrad", "serve"], words
    flags = []
    for word in words[2:]:
        flags += variables[word[1:]].split() if word.startswith("$") else [word]
    return flags


def image_flags(dockerfile):
    words = json.loads(re.search(r"^ENTRYPOINT (.*)$", dockerfile, re.MULTILINE).group(1))
    assert words[:2] == ["tetrad", "serve"], words
    return words[2:]


def check_flags(flags, where):
    """The program takes them: it gets as far as looking for the checkpoint, which is not there."""
    model = value_of(flags, "--model")
    flags = flags if model else [*flags, "--model", (model := "/model")]
    assert not pathlib.Path(model).exists(), model
    done = subprocess.run([BINARY, "serve", *flags], capture_output=True, text=True, timeout=60, check=False)
    assert f"{model}: no such directory" in done.stderr, f"{where}: {done.stderr}"


def check_stop_of_pod(text):
    spec = of_kind(text, "Deployment")["spec"]["template"]["spec"]
    container = container_of(text)
    sleep = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    timeout = int(value_of(container["args"], "--shutdown-timeout"))
    grace = spec["terminationGracePeriodSeconds"]
    assert grace > sleep + timeout, f"grace {grace} s, sleep {sleep} s, --shutdown-timeout {timeout} s"
    # Enough for the slowest readiness probe to be noticed before the signal.
    assert sleep > container["readinessProbe"]["periodSeconds"], sleep


def check_stop_of_unit(text):
    timeout = int(value_of(shlex.split(unit_value(text, "ExecStart")), "--shutdown-timeout"))
    assert int(unit_value(text, "TimeoutStopSec")) > timeout, "TimeoutStopSec"


def check_metrics(text, where, known):
    names = set(METRIC.findall(text))
    assert names, f"{where} names no metric"
    for name in names:
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        histogram = base != name and known.get(base, ("",))[0] == "histogram"
        assert histogram or (name in known and known[name][0] != "histogram"), f"{where}: /metrics has no series {name}"


def check_labels(text, where, known):
    """Labels that rules select or group by are there; brackets are closed."""
    assert all(text.count(left) == text.count(right) for left, right in ("()", "{}", "[]")), where
    used = set(re.findall(r"[{,]\s*(\w+)[=!]~?\"", text)) | {label.strip() for by in re.findall(r"\bby ?\(([^)]*)\)", text) for label in by.split(",")}
    there = {"job", "instance", "le", "alertname"} | {label for _, _, labels in known.values() for label in labels}
    assert used <= there, f"{where}: no series has the labels {used - there}"


def check_selectors(text):
    deployment, service = of_kind(text, "Deployment"), of_kind(text, "Service")
    assert deployment["spec"]["template"]["spec"]["enableServiceLinks"] is False, "variables of Services look like flags"
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    ports = {port["name"]: port["containerPort"] for port in container_of(text)["ports"]}
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels and service["spec"]["selector"].items() <= labels, labels
    assert all(port["targetPort"] in ports for port in service["spec"]["ports"]), ports
    pool = documents(read("kubernetes/inference-pool.yaml"))[0]["spec"]
    monitor = documents(read("kubernetes/pod-monitor.yaml"))[0]["spec"]
    assert pool["selector"]["matchLabels"].items() <= labels and monitor["selector"]["matchLabels"].items() <= labels
    assert {port["number"] for port in pool["targetPorts"]} == set(ports.values()) == {8000}
    assert all(endpoint["port"] in ports for endpoint in monitor["podMetricsEndpoints"])


def check_board(text):
    panels = json.loads(text)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells


def check_image(dockerfile):
    """What the image copies is there, and it installs what the binary links."""
    ignored = (ROOT / ".dockerignore").read_text().split()
    presets = {preset["name"] for preset in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]}
    assert {"cpu", "cuda"} <= presets
    for source in re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, re.MULTILINE):
        for name in source.split():
            assert (ROOT / name).exists() and (name == "." or f"!{name.split('/')[0]}" in ignored), f"COPY {name}"
    assert re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)[-1] == "debian:12-slim"
    assert re.search(r"^USER 65532", dockerfile, re.MULTILINE) and "HEALTHCHECK" in dockerfile
    if not shutil.which("dpkg-query"):
        print("     not looked at: the packages of the image's libraries, for want of dpkg-query")
        return
    installed = set(re.search(r"no-install-recommends \\\n +(.*) \\\n", dockerfile).group(1).split())
    # libgcc and libc come with libstdc++.
    for library, owners in owners_of_libraries().items():
        assert owners & (installed | {"libc6", "libgcc-s1"}), f"{library} is of {owners or 'no package'}, which the image does not install"


@functools.cache
def owners_of_libraries():
    """{library that the binary links: the Debian packages that have a file of this name}"""
    linked = subprocess.run(["ldd", BINARY], capture_output=True, text=True, check=True).stdout
    owners = {pathlib.Path(path).name: set() for path in re.findall(r"=> (/\S+)", linked)}
    found = subprocess.run(["dpkg-query", "-S", *(f"*/{name}" for name in owners)], capture_output=True, text=True, check=False)
    for line in found.stdout.splitlines():
        packages, _, path = line.partition(": ")
        owners[pathlib.Path(path).name] |= {package.partition(":")[0] for package in packages.split(", ")}
    return owners


def check_unit_by_systemd(text):
    if not shutil.which("systemd-analyze"):
        print("     not run: systemd-analyze, which is not installed")
        return
    with tempfile.TemporaryDirectory() as folder:
        # The program and its manual are looked up where they will be installed.
        unit = pathlib.Path(folder) / "tetrad.service"
        unit.write_text(re.sub(r"^Documentation=.*\n", "", text, flags=re.MULTILINE).replace("ExecStart=tetrad ", f"ExecStart={BINARY} "))
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0 and "tetrad.service" not in done.stderr, done.stderr


def must_fail(check, *arguments):
    try:
        check(*arguments)
    except (AssertionError, ValueError, KeyError, StopIteration, yaml.YAMLError):
        return
    raise AssertionError(f"{check.__name__} passes with a fault in it")


def test_files_parse():
    count = 0
    for path in sorted(DEPLOY.glob("**/*.yaml")):
        for document in documents(path.read_text(encoding="utf-8")):
            count += 1
            if document.get("kind") == "ConfigMap":
                for text in document["data"].values():
                    assert documents(text), path
    assert count >= 9, count
    check_board(read("grafana/tetrad.json"))
    for name in ("tetrad.service", "gpu.conf"):
        assert unit_lines(read(f"systemd/{name}"))
    check_unit_by_systemd(read("systemd/tetrad.service"))
    must_fail(documents, "a: [1\n")
    must_fail(unit_lines, "[Service]\nno key\n")
    board = json.loads(read("grafana/tetrad.json"))
    board["panels"][2]["gridPos"] = board["panels"][1]["gridPos"]
    must_fail(check_board, json.dumps(board))


def test_flags():
    pod = read("kubernetes/tetrad.yaml")
    check_flags(container_of(pod)["args"], "kubernetes/tetrad.yaml")
    unit, environment = read("systemd/tetrad.service"), read("systemd/tetrad.env")
    check_flags(unit_flags(unit, environment), "systemd")
    check_flags(image_flags(read("container/Dockerfile")), "container/Dockerfile")
    must_fail(check_flags, container_of(pod.replace("--max-num-seqs", "--max-seqs"))["args"], "planted")
    must_fail(check_flags, unit_flags(unit, environment.replace("8000", "80000")), "planted")


def test_time_to_stop():
    pod, unit = read("kubernetes/tetrad.yaml"), read("systemd/tetrad.service")
    check_stop_of_pod(pod)
    check_stop_of_unit(unit)
    must_fail(check_stop_of_pod, pod.replace("terminationGracePeriodSeconds: 70", "terminationGracePeriodSeconds: 55"))
    must_fail(check_stop_of_unit, unit.replace("TimeoutStopSec=45", "TimeoutStopSec=30"))


def test_selectors_and_image():
    check_selectors(read("kubernetes/tetrad.yaml"))
    must_fail(check_selectors, read("kubernetes/tetrad.yaml").replace("enableServiceLinks: false", ""))
    must_fail(check_selectors, read("kubernetes/tetrad.yaml").replace("targetPort: http", "targetPort: web"))
    dockerfile = read("container/Dockerfile")
    check_image(dockerfile)
    must_fail(check_image, dockerfile.replace("COPY deploy/container/healthcheck", "COPY deploy/container/health"))
    if shutil.which("dpkg-query"):
        must_fail(check_image, dockerfile.replace("libpcre2-8-0 ", ""))


def test_against_a_server():
    with LiveServer(BINARY) as server:
        known = families(server.metrics())
        probes = container_of(read("kubernetes/tetrad.yaml"))
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert server.ask(probes[kind]["httpGet"]["path"])[0] == 200, kind
        health = [str(DEPLOY / "container/healthcheck"), str(server.port)]
        assert subprocess.run(health, check=False, capture_output=True).returncode == 0
    assert subprocess.run(health, check=False, capture_output=True).returncode == 1

    for path in ("grafana/tetrad.json", "prometheus/alerts.yaml", "kubernetes/inference-pool.yaml"):
        check_metrics(read(path), path, known)
    expressions = "\n".join(target["expr"] for panel in json.loads(read("grafana/tetrad.json"))["panels"] for target in panel.get("targets", []))
    rules = documents(read("prometheus/alerts.yaml"))[0]["groups"][0]["rules"]
    for text, where in ((expressions, "grafana"), ("\n".join(rule["expr"] for rule in rules), "alerts")):
        check_labels(text, where, known)
        must_fail(check_labels, text + ")", where, known)
        must_fail(check_labels, text + 'sum by (colour) (x{shade="y"})', where, known)
    must_fail(check_metrics, "vllm:num_requests_swapped", "planted", known)
    must_fail(check_metrics, "vllm:time_to_first_token_seconds", "planted", known)


if __name__ == "__main__":
    run_tests("__main__", sys.argv[2:])
