# SPDX-License-Identifier: Apache-2.0
"""What deploy/ gives to those who operate Kiln: alert rules, dashboard, units, against the daemon as it is."""

import json
import os
import re
import shutil
import subprocess
import urllib.request

import pytest

from daemon import BUILD, ROOT, TARGET, program

DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "observability" / "kiln.rules.yml"
DASHBOARD = DEPLOY / "observability" / "kiln.dashboard.json"
METRIC = re.compile(r"\b((?:kiln|process)_[a-z_]+)\b")
NOT_OURS = {"up"}


def tool(name, package):
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} here: what it checks is NOT CHECKED. It is in Debian's package {package}")
    return found


def run(*command, **keywords):
    done = subprocess.run(command, capture_output=True, text=True, **keywords)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The names of all metrics of a daemon that has compiled, hit and refused something."""
    from daemon import Daemon, socket_folder
    from kiln.errors import CompileError

    with socket_folder() as sockets:
        daemon = Daemon(tmp_path_factory.mktemp("state") / "state", sockets)
        try:
            daemon.start("--metrics-listen=127.0.0.1:0")
            client = daemon.client()
            client.compile(program(1), TARGET)
            client.compile(program(1), TARGET)
            with pytest.raises(CompileError):
                client.compile("kernel of no kind", TARGET)
            address = re.search(r'event=monitoring listen="([^"]+)"', daemon.log.read_text()).group(1)
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
                text = reply.read().decode()
        finally:
            daemon.end()
    names = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M):
        names |= {name} if kind != "histogram" else {name + suffix for suffix in ("_bucket", "_sum", "_count")}
    return names, text


def named_in_rules():
    """Metrics in the expressions of the rules, not in their words."""
    expressions, inside = [], False
    for line in RULES.read_text().splitlines():
        start = re.match(r"\s+expr: (.*)", line)
        inside = bool(start) or (inside and not re.match(r"\s+(for|labels|annotations|- \w+|record|alert):", line))
        if inside:
            expressions.append(start.group(1) if start else line)
    return set(METRIC.findall("\n".join(expressions)))


def expressions_of_dashboard():
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def test_the_daemon_exports_what_rules_and_dashboard_name(exported):
    names, _ = exported
    rules = named_in_rules()
    dashboard = {m for _, e in expressions_of_dashboard() for m in METRIC.findall(e)}
    assert len(rules) > 12 and len(dashboard) > 25, "the expressions were not found"
    assert rules - names - NOT_OURS == set()
    assert dashboard - names - NOT_OURS == set()


def test_each_metric_is_on_the_dashboard(exported):
    names, _ = exported
    shown = {re.sub(r"_(bucket|sum|count)$", "", m) for _, e in expressions_of_dashboard() for m in METRIC.findall(e)}
    assert {re.sub(r"_(bucket|sum|count)$", "", n) for n in names} - shown == set()


def test_promtool_likes_the_metrics(exported):
    promtool = tool("promtool", "prometheus")
    done = subprocess.run([promtool, "check", "metrics"], input=exported[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_likes_the_rules_and_each_alert_rings_when_it_should():
    promtool = tool("promtool", "prometheus")
    assert run(promtool, "check", "rules", RULES)[0] == 0
    assert run(promtool, "check", "config", DEPLOY / "observability" / "prometheus.yml")[0] == 0
    status, text = run(promtool, "test", "rules", RULES.with_name("kiln.rules.test.yml"))
    assert status == 0, text


def test_each_alert_has_a_test():
    alerts = set(re.findall(r"- alert: (\w+)", RULES.read_text()))
    tested = set(re.findall(r"alertname: (\w+)\n\s+exp_alerts", RULES.with_name("kiln.rules.test.yml").read_text()))
    assert alerts - tested == set()


def test_promtool_parses_each_expression_of_the_dashboard(tmp_path):
    promtool = tool("promtool", "prometheus")
    rules = []
    for number, (_, expression) in enumerate(expressions_of_dashboard()):
        text = expression.replace("$__rate_interval", "5m").replace("$instance", ".*")
        rules.append({"record": f"dashboard:expression:{number}", "expr": text})
    file = tmp_path / "dashboard.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML
    status, text = run(promtool, "check", "rules", file)
    assert status == 0, text


def test_the_unit_is_hardened():
    analyze = tool("systemd-analyze", "systemd")
    status, text = run(analyze, "security", "--offline=true", "--threshold=20", str(DEPLOY / "systemd" / "kilnd.service"))
    exposure = float(re.search(r"exposure level for kilnd.service: ([0-9.]+)", text).group(1))
    assert status == 0 and exposure <= 2.0, text


def test_systemd_understands_every_line_of_the_units(tmp_path):
    analyze = tool("systemd-analyze", "systemd")
    for unit in ("kilnd.service", "kilnd.socket"):
        text = (DEPLOY / "systemd" / unit).read_text().replace("/opt/kiln/bin/kilnd", str(BUILD / "bin" / "kilnd"))
        (tmp_path / unit).write_text(text)
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    _, text = run(analyze, "verify", "--man=no", str(tmp_path / "kilnd.service"), str(tmp_path / "kilnd.socket"), env=environment)
    ours = [line for line in text.splitlines() if "kilnd." in line and "not found" not in line]
    assert ours == [], text


def test_python_hands_a_trace_on(daemon):
    from kiln.client import trace_parent

    daemon.start()
    token = trace_parent.set("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    try:
        daemon.client().compile(program(2), TARGET)
    finally:
        trace_parent.reset(token)
    daemon.client().compile(program(2), TARGET)
    daemon.stop()
    lines = [line for line in daemon.log.read_text().splitlines() if 'event=request method="Compile"' in line]
    assert len(lines) == 2
    traced = [line for line in lines if "trace=" in line]  # lines of two calls may change places
    assert len(traced) == 1 and 'trace="0af7651916cd43dd8448eb211c80319c"' in traced[0]


def spans_of(file):
    """Those of each call, the call's own first; each line is OTLP."""
    calls = []
    for line in file.read_text().splitlines():
        (resource,) = json.loads(line)["resourceSpans"]
        (scope,) = resource["scopeSpans"]
        assert resource["resource"]["attributes"] == [{"key": "service.name", "value": {"stringValue": "kilnd"}}]
        call, *stages = scope["spans"]
        for span in scope["spans"]:
            assert span["traceId"] == call["traceId"] and int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
            assert re.fullmatch("[0-9a-f]{16}", span["spanId"])
        assert all(stage["parentSpanId"] == call["spanId"] for stage in stages)
        assert len({span["spanId"] for span in scope["spans"]}) == len(scope["spans"])
        calls.append(scope["spans"])
    return calls


def test_the_spans_of_each_way_to_a_kernel_are_otlp(daemon):
    file = daemon.log.parent / "spans.json"
    daemon.start()
    key = daemon.client().compile(program(11), TARGET).key
    daemon.stop()
    daemon.start(f"--trace-file={file}")
    client = daemon.client()
    assert client.lookup(key).key == key
    list(client.ensure_kernels([client.request(program(n), TARGET) for n in (11, 12)]))
    client.compile(program(13), TARGET)
    daemon.stop()
    stages = {call["name"].split("/")[1]: [stage["name"] for stage in rest] for call, *rest in spans_of(file)}
    assert stages["Lookup"] == ["cache"]
    assert stages["EnsureKernels"] == ["lookup", "kernel"], "one was known"
    assert {"decode", "key", "cache", "queue", "llvm", "emit", "seal", "put"} <= set(stages["Compile"])


def test_no_word_of_a_program_is_in_the_log(daemon):
    daemon.start("--log-level=debug", f"--trace-file={daemon.log.parent}/spans.json")
    text = program(3)
    daemon.client().compile(text, TARGET)
    passes = daemon.client().capabilities().passes
    daemon.stop()
    written = daemon.log.read_text() + (daemon.log.parent / "spans.json").read_text()
    for name in passes:  # such as scale_sums, which is a word of the compiler's
        written = re.sub(rf"\b{name}(_ms)?\b", "", written)
    assert "event=request" in written and '"name":"llvm"' in written
    for word in ("scale", "float32", "observability_test", "daemon.py"):
        assert not re.search(rf"(?<![A-Za-z]){re.escape(word)}(?![A-Za-z])", written), word  # nor as a part of scale_x


def test_the_container_is_made_of_what_the_bundle_makes():
    version = re.search(r"project\(kiln VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    lines = (DEPLOY / "container" / "Containerfile").read_text()
    assert f"ARG VERSION={version}\n" in lines
    archive = re.search(r"^ADD (\S+) ", lines, re.M).group(1).replace("${VERSION}", version)
    bundle = (DEPLOY / "bundle").read_text()
    name = re.search(r"^name=(\S+)", bundle, re.M).group(1).replace("$version", version)
    assert archive == re.search(r"^archive=(\S+)", bundle, re.M).group(1).replace("$name", name)
    settings = {s.lower().replace("_", "-") for s in re.findall(r"\bKILN_([A-Z_]+)=", lines)}
    status, known = run(str(BUILD / "bin" / "kilnd"), "--help")
    assert status == 0 and all(f"--{s}" in known for s in settings), settings
