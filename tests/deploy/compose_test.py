# SPDX-License-Identifier: Apache-2.0
"""The Compose file: Compose takes it, what it names is there, and its commands run, as plain processes."""

import copy
import os
import re
import shutil
import subprocess
import sys

import pytest
import yaml

from daemon import BUILD, ROOT, program
from processes import OWNER, Host, free_port, image_settings, make_secrets, needs_root, redis, workers_memory

sys.path.insert(0, str(ROOT / "tests/cluster"))
from redis_servers import eventually  # noqa: E402

COMPOSE = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]
REDIS = [name for name in SERVICES if re.fullmatch(r"redis-\d", name)]


def kilnd_options():
    text = subprocess.run([BUILD / "bin/kilnd", "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^  (?:-\w,)?(--[a-z-]+)", text, re.MULTILINE))


def compose_command():
    """What reads Compose files, and whether it is of version 1, as Debian 12 has it. KILN_DOCKER_COMPOSE names another."""
    command = os.environ.get("KILN_DOCKER_COMPOSE") or shutil.which("docker-compose")
    if command is None:
        pytest.skip("NOT TESTED: whether Compose takes the file; deploy/install-deps installs docker-compose")
    said = subprocess.run([command, "version", "--short"], capture_output=True, text=True, check=True).stdout
    return command, said.strip().removeprefix("v").startswith("1.")


def refusal(folder, document):
    """What Compose says of a document that it does not take; else ""."""
    command, is_old = compose_command()
    if is_old:  # two parts of the specification are newer than it
        document.pop("name")
        for service in document["services"].values():
            service["deploy"]["resources"]["limits"].pop("pids", None)  # one dictionary for several services
    file = folder / "compose.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    more = ROOT / "deploy/compose/gpu.yaml"
    ran = subprocess.run([command, "-f", file, "-f", more, "config", "-q"], capture_output=True, text=True, check=False)
    assert (ran.returncode == 0) == (ran.stderr.strip() == ""), ran.stderr
    return ran.stderr


def test_compose_takes_it(tmp_path):
    assert refusal(tmp_path, copy.deepcopy(COMPOSE)) == ""


@pytest.mark.parametrize("change, told", [
    (lambda kilnd: kilnd.update(healthchek=kilnd.pop("healthcheck")), "healthchek"),
    (lambda kilnd: kilnd.update(read_only="yes, please"), "read_only"),
    (lambda kilnd: kilnd["healthcheck"].update(retries="many"), "retries"),
    (lambda kilnd: kilnd["volumes"].append("nowhere:/nowhere"), "nowhere"),
    (lambda kilnd: kilnd["depends_on"].update(redis={"condition": "service_healthy"}), "redis")])
def test_compose_refuses_what_is_wrong(tmp_path, change, told):
    wrong = copy.deepcopy(COMPOSE)
    change(wrong["services"]["kilnd"])
    assert told in refusal(tmp_path, wrong)


def test_what_services_name_is_defined(tmp_path):
    assert len(REDIS) == 3 and set(SERVICES) == {*REDIS, "redis-cluster", "kilnd"}
    made = {path.name for path in make_secrets(tmp_path / "secrets").iterdir()}
    assert set(COMPOSE["secrets"]) <= made, "deploy/secrets makes them"
    assert {secret["file"] for secret in COMPOSE["secrets"].values()} == {f"secrets/{name}" for name in COMPOSE["secrets"]}
    for name, service in SERVICES.items():
        assert set(service.get("secrets", ())) <= set(COMPOSE["secrets"]), name
        assert set(service.get("depends_on", ())) <= set(SERVICES), name
        named = {volume.split(":")[0] for volume in service.get("volumes", ()) if not volume.startswith("/")}
        assert named <= set(COMPOSE["volumes"]), name
        assert {"cpus", "memory", "pids"} <= set(service["deploy"]["resources"]["limits"]), f"{name} has limits"
        used = set(re.findall(r"/run/secrets/([\w.-]+)", str(service)))
        assert used == set(service.get("secrets", ())), f"{name}: what it reads and what it is given"
        assert "healthcheck" in service or name == "redis-cluster", f"{name} is probed"


def test_a_host_with_gpus_changes_kilnd_alone():
    gpu = yaml.safe_load((ROOT / "deploy/compose/gpu.yaml").read_text(encoding="utf-8"))
    assert set(gpu["services"]) == {"kilnd"}
    assert "gpu" in gpu["services"]["kilnd"]["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"]


def test_options_and_ports_are_kilnds():
    kilnd = SERVICES["kilnd"]
    options = dict(word.split("=", 1) for word in kilnd["command"])
    assert set(options) <= kilnd_options()
    metrics = options["--metrics-listen"].rsplit(":", 1)[1]
    assert kilnd["ports"] == [f"127.0.0.1:{metrics}:{metrics}"] and f":{metrics}" in (ROOT / "deploy/OPERATIONS.md").read_text(encoding="utf-8")
    limit = re.fullmatch(r"(\d+)G", kilnd["deploy"]["resources"]["limits"]["memory"])[1]
    assert workers_memory(options) + (2 << 30) <= int(limit) << 30, "workers would be killed before they reach their own limit"
    container = (ROOT / "deploy/container/Containerfile").read_text(encoding="utf-8")
    assert f"--uid {OWNER} " in container and f"--gid {OWNER} " in container
    assert f"owner={OWNER}\n" in (ROOT / "deploy/secrets").read_text(encoding="utf-8")
    for volume in kilnd["volumes"]:
        assert volume.split(":")[1] in container, "the image makes the folder"


def test_secrets_are_not_overwritten(tmp_path):
    made = make_secrets(tmp_path / "secrets")
    before = (made / "redis-credentials").read_bytes()
    environment = {"PATH": "/usr/bin:/bin", "KILND": str(BUILD / "bin/kilnd")}
    again = subprocess.run([ROOT / "deploy/secrets", made], env=environment, capture_output=True, text=True, check=False)
    assert again.returncode != 0 and "not overwritten" in again.stderr and (made / "redis-credentials").read_bytes() == before


def healthy(host, service):
    kind, *command = SERVICES[service]["healthcheck"]["test"]
    command = ["sh", "-c", command[0].replace("$$", "$")] if kind == "CMD-SHELL" else command
    environment = SERVICES[service].get("environment", {})
    return host.run(command, environment, user=OWNER if service == "kilnd" else None)


@pytest.fixture
def compose(folder):
    needs_root()
    server = redis()
    secrets = make_secrets(folder / "secrets")
    folder.joinpath("secrets").chmod(0o755)  # a secret is mounted by itself: its folder guards nothing in the container
    port = free_port("127.0.74.10", bus=True)
    replaced = {"/run/secrets": secrets, "/opt/kiln": folder / "kiln/opt/kiln", "/run/kiln": folder / "run", "/var/cache/kiln": folder / "store",
                "0.0.0.0:9464": f"127.0.0.1:{free_port('127.0.0.1')}",
                "6379": port} | {f"172.30.74.1{i}": f"127.0.74.1{i}" for i in range(3)}
    (folder / "kiln").mkdir()
    made = {"kilnd": Host(folder / "kiln", replaced)}
    for i, name in enumerate(REDIS):
        (folder / name / "data").mkdir(parents=True)
        made[name] = Host(folder / name, replaced | {"/data": folder / name / "data"})
        command = SERVICES[name]["command"]
        assert command[0] == "redis-server" and not healthy(made[name], name).returncode == 0
        made[name].start([*command, "--bind", f"127.0.74.1{i}", "--port", port], executable=server)
    yield made
    for host in made.values():
        host.end()


def test_its_commands_run(compose, folder):
    for name in REDIS:
        eventually(lambda name=name: healthy(compose[name], name).returncode == 0)
    create = [word.replace("$$", "$") for word in SERVICES["redis-cluster"]["command"]]
    for _ in range(2):  # once, and once more on a cluster that is there
        ran = compose["kilnd"].run(create)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        eventually(lambda: "cluster_state:ok" in compose["kilnd"].run(["sh", "-c", "REDISCLI_AUTH=$(cat /run/secrets/redis-credentials) "
                                                                       "redis-cli -h 172.30.74.10 -p 6379 cluster info"]).stdout)

    (folder / "run").mkdir()
    (folder / "store").mkdir()
    for made in ("run", "store"):
        subprocess.run(["chown", f"{OWNER}:{OWNER}", folder / made], check=True)
    host = compose["kilnd"]
    process = host.start(["/opt/kiln/bin/kilnd", *SERVICES["kilnd"]["command"], "--ptxas=none"], image_settings(), user=OWNER)
    eventually(lambda: healthy(host, "kilnd").returncode == 0 or process.poll() is not None)
    assert process.poll() is None, host.log()

    from kiln.client import Client

    with_socket = Client(f"unix:{folder}/run/kiln.sock", timeout=60.0)
    with_socket.compile(program(1), "hip:gfx942")
    eventually(lambda: any("kiln:" in host.run(["sh", "-c", f"REDISCLI_AUTH=$(cat /run/secrets/redis-credentials) "
                                                f"redis-cli -h 172.30.74.1{i} -p 6379 --scan"]).stdout for i in range(3)))
    with_socket.close()
    process.terminate()
    assert process.wait(timeout=30) == 0, host.log()
    assert healthy(host, "kilnd").returncode != 0, "the probe tells that nobody answers"
