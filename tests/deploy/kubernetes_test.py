# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes manifests: their objects are Kubernetes', what they name is there, kilnd has the options, and their commands and probes run, as
plain processes."""

import copy
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
import yaml

from compose_test import kilnd_options
from daemon import ROOT, program
from kubernetes_models import complaints
from processes import OWNER, Host, free_port, image_settings, make_secrets, needs_root, redis, workers_memory

sys.path.insert(0, str(ROOT / "tests/cluster"))
from redis_servers import eventually  # noqa: E402

FOLDER = ROOT / "deploy/kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))
OBJECTS = [made for name in KUSTOMIZATION["resources"] for made in yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8"))]
WORKLOADS = {made["metadata"]["name"]: made for made in OBJECTS if made["kind"] in ("DaemonSet", "StatefulSet", "Job")}
PODS = {name: made["spec"]["template"]["spec"] for name, made in WORKLOADS.items()}
NODES = range(6)


def containers(pod, init=True):
    return [*(pod.get("initContainers", ()) if init else ()), *pod["containers"]]


KILND = PODS["kilnd"]["containers"][0]
REDIS = PODS["kiln-redis"]["containers"][0]


def one(kind, name):
    (found,) = [made for made in OBJECTS if (made["kind"], made["metadata"]["name"]) == (kind, name)]
    return found


def test_there_is_nothing_beside():
    assert {path.name for path in FOLDER.iterdir()} == {"kustomization.yaml", *KUSTOMIZATION["resources"]}
    assert set(PODS) == {"kilnd", "kiln-redis", "kiln-redis-cluster"} and WORKLOADS["kilnd"]["kind"] == "DaemonSet"
    version = re.search(r"project\(kiln VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    assert {image["name"]: image["newTag"] for image in KUSTOMIZATION["images"]}["kiln"] == version


@pytest.mark.parametrize("made", OBJECTS, ids=lambda made: f"{made['kind']} {made['metadata']['name']}")
def test_objects_are_kubernetes(made):
    assert complaints(made) == []


def spoilt(change):
    made = copy.deepcopy(WORKLOADS["kilnd"])
    change(made, made["spec"]["template"]["spec"]["containers"][0])
    return complaints(made)


@pytest.mark.parametrize("change, told", [
    (lambda made, kilnd: kilnd.update(readynessProbe=kilnd.pop("readinessProbe")), "readynessProbe"),
    (lambda made, kilnd: kilnd.update(args="--listen=0.0.0.0:7461"), "args is no list"),
    (lambda made, kilnd: kilnd["args"].append(7461), "7461 is no str"),
    (lambda made, kilnd: kilnd["ports"][0].update(containerPort="7461"), "'7461' is no int"),
    (lambda made, kilnd: kilnd["resources"]["limits"].update(memory="16GiB"), "'16GiB' is no quantity"),
    (lambda made, kilnd: kilnd.pop("name"), "`name`"),
    (lambda made, kilnd: made["spec"].pop("selector"), "`selector`"),
    (lambda made, kilnd: made.update(apiVersion="apps/v2"), "there is no apps/v2 DaemonSet"),
    (lambda made, kilnd: made.update(kind="DaemonSets"), "there is no apps/v1 DaemonSets")])
def test_what_is_not_kubernetes_is_found(change, told):
    assert any(told in line for line in spoilt(change)), spoilt(change)


def test_kustomize_takes_them():
    if shutil.which("kubectl") is None:
        pytest.skip("NOT TESTED: kustomize's own reading of the manifests; there is no kubectl")
    ran = subprocess.run(["kubectl", "kustomize", FOLDER], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    made = list(yaml.safe_load_all(ran.stdout))
    assert sorted((o["kind"], o["metadata"]["name"]) for o in made) == sorted((o["kind"], o["metadata"]["name"]) for o in OBJECTS)
    assert {o["metadata"]["namespace"] for o in made} == {"kiln"}
    images = {image["name"]: f"{image['newName']}:{image['newTag']}" for image in KUSTOMIZATION["images"]}
    named = {c["image"] for o in made if "template" in o["spec"] for c in containers(o["spec"]["template"]["spec"])}
    assert named == set(images.values())
    assert [line for o in made for line in complaints(o)] == []


def test_selectors_choose_the_pods():
    for name, made in WORKLOADS.items():
        labels = made["spec"]["template"]["metadata"]["labels"]
        if "selector" in made["spec"]:
            assert made["spec"]["selector"]["matchLabels"].items() <= labels.items(), name
    paths = (("Service", ("selector",)), ("PodDisruptionBudget", ("selector", "matchLabels")), ("NetworkPolicy", ("podSelector", "matchLabels")))
    for kind, path in paths:
        for made in OBJECTS:
            if made["kind"] == kind:
                wanted = made["spec"]
                for step in path:
                    wanted = wanted[step]
                chosen = [name for name, load in WORKLOADS.items() if wanted.items() <= load["spec"]["template"]["metadata"]["labels"].items()]
                assert len(chosen) == 1, f"{kind} {made['metadata']['name']} chooses {chosen}"
    allowed = one("NetworkPolicy", "kiln-redis")["spec"]["ingress"][0]["from"][0]["podSelector"]["matchExpressions"][0]["values"]
    assert set(allowed) == {load["spec"]["template"]["metadata"]["labels"]["app"] for load in WORKLOADS.values()}
    assert one("StatefulSet", "kiln-redis")["spec"]["serviceName"] == one("Service", "kiln-redis")["metadata"]["name"]


@pytest.mark.parametrize("name", PODS)
def test_containers_are_confined(name):
    pod = PODS[name]
    assert pod["automountServiceAccountToken"] is False and pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    for container in containers(pod):
        context = pod["securityContext"] | container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False and context["readOnlyRootFilesystem"] and context["capabilities"]["drop"] == ["ALL"]
        assert context.get("runAsNonRoot") or (container["name"] == "files" and context["runAsUser"] == 0), container["name"]
        for part in ("requests", "limits"):
            assert {"cpu", "memory"} <= set(container["resources"][part]), container["name"]
        assert not re.search(r"[.:]", container["image"]), "kustomization.yaml says which image, and from where"


@pytest.mark.parametrize("name", PODS)
def test_volumes_and_secrets_are_there(name, tmp_path):
    pod = PODS[name]
    made = {path.name for path in make_secrets(tmp_path / "secrets").iterdir()}
    claims = WORKLOADS[name]["spec"].get("volumeClaimTemplates", ())
    volumes = {volume["name"] for volume in pod["volumes"]} | {claim["metadata"]["name"] for claim in claims}
    mounted = {mount["name"] for container in containers(pod) for mount in container["volumeMounts"]}
    assert mounted == volumes
    for volume in pod["volumes"]:
        if "secret" in volume:
            assert volume["secret"]["secretName"] == "kiln"
            assert {item["key"] for item in volume["secret"]["items"]} <= made, "deploy/secrets makes them"
    # No file of the folder is read that is not there.
    given = {item["path"] for volume in pod["volumes"] if "secret" in volume for item in volume["secret"]["items"]}
    read = set(re.findall(r"/(?:etc/kiln|secrets)/([\w-]+\.?\w*)", str(containers(pod))))
    assert read == given, name


def test_options_ports_and_times_are_kilnds():
    options = dict(word.split("=", 1) for word in KILND["args"])
    assert set(options) <= kilnd_options()
    limit = re.fullmatch(r"(\d+)Gi", KILND["resources"]["limits"]["memory"])[1]
    assert workers_memory(options) + (2 << 30) <= int(limit) << 30, "workers would be killed before they reach their own limit"
    ports = {port["name"]: port["containerPort"] for port in KILND["ports"]}
    assert options["--listen"] == f"0.0.0.0:{ports['grpc']}" and options["--metrics-listen"] == f"0.0.0.0:{ports['metrics']}"
    operations = (ROOT / "deploy/OPERATIONS.md").read_text(encoding="utf-8")
    assert all(f":{port}" in operations for port in ports.values())
    service = one("Service", "kilnd")["spec"]["ports"][0]
    assert (service["port"], service["targetPort"]) == (ports["grpc"], "grpc")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert KILND[probe]["httpGet"]["port"] == "metrics" and KILND[probe]["httpGet"]["path"] in ("/healthz", "/readyz")
    grace = float(re.search(r"`--grace` \((\d+) s\)", (ROOT / "server/SETTINGS.md").read_text(encoding="utf-8"))[1])
    assert PODS["kilnd"]["terminationGracePeriodSeconds"] > grace
    assert KILND["securityContext"]["runAsUser"] == KILND["securityContext"]["runAsGroup"] == OWNER
    # The image's folder of state is the mounted one.
    assert image_settings()["KILN_STATE_DIR"] in {mount["mountPath"] for mount in KILND["volumeMounts"]}


@pytest.fixture
def cluster(folder):
    """Loopback addresses for the pods of Redis, a port for all of them, and two hosts for kilnd."""
    needs_root()
    server = redis()
    secrets = make_secrets(folder / "secrets")
    folder.joinpath("secrets").chmod(0o755)
    redis_port = free_port("127.0.75.10", bus=True)
    replaced = {"/secrets": secrets, "kiln-redis-$i.kiln-redis": "127.0.75.1$i", "6379": redis_port}
    replaced |= {f"kiln-redis-{i}.kiln-redis": f"127.0.75.1{i}" for i in NODES}
    made = {"secrets": secrets, "port": redis_port, "redis": [], "kilnd": []}
    for i in NODES:
        (folder / f"redis{i}/data").mkdir(parents=True)
        host = Host(folder / f"redis{i}", replaced | {"/data": folder / f"redis{i}/data", "$(POD_IP)": f"127.0.75.1{i}"})
        host.start([*REDIS["command"], "--bind", f"127.0.75.1{i}"], executable=server)
        made["redis"].append(host)
    # As kubelet mounts them: root's, readable by a group.
    (secret,) = [volume["secret"] for volume in PODS["kilnd"]["volumes"] if "secret" in volume]
    (folder / "mounted").mkdir()
    for item in secret["items"]:
        mounted = folder / "mounted" / item["path"]
        mounted.write_bytes((secrets / item["key"]).read_bytes())
        mounted.chmod(0o440)
    replaced |= {"/secrets": folder / "mounted"}
    for i in range(2):
        (folder / f"kilnd{i}").mkdir()
        paths = {"/etc/kiln": folder / f"kilnd{i}/settings", "/var/cache/kiln": folder / f"kilnd{i}/store", "/run/kiln": folder / f"kilnd{i}",
                 "0.0.0.0:7461": f"localhost:{free_port('127.0.0.1')}", "0.0.0.0:9464": f"127.0.0.1:{free_port('127.0.0.1')}"}
        made["kilnd"].append(Host(folder / f"kilnd{i}", replaced | paths))
    yield made
    for host in made["redis"] + made["kilnd"]:
        host.end()


def answers(host, probe):
    """What kubelet asks of kilnd."""
    try:
        return urllib.request.urlopen(f"http://{host.word('0.0.0.0:9464')}{KILND[probe]['httpGet']['path']}", timeout=2).status == 200
    except (urllib.error.URLError, OSError):
        return False


def test_commands_and_probes_run(cluster, monkeypatch, tmp_path):
    for i, host in enumerate(cluster["redis"]):
        for probe in ("readinessProbe", "livenessProbe"):
            eventually(lambda host=host, i=i, probe=probe: host.run(REDIS[probe]["exec"]["command"], {"POD_IP": f"127.0.75.1{i}"}).returncode == 0)
    wrong = cluster["redis"][0].run(REDIS["readinessProbe"]["exec"]["command"], {"POD_IP": "127.0.75.99"})
    assert wrong.returncode != 0, "the probe tells that nobody answers"
    job = PODS["kiln-redis-cluster"]["containers"][0]["command"]
    for _ in range(2):  # once, and once more on a cluster that is there
        ran = cluster["redis"][0].run(job)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        asks = ["sh", "-c", "REDISCLI_AUTH=$(cat /secrets/redis-credentials) redis-cli -h kiln-redis-0.kiln-redis -p 6379 cluster info"]
        eventually(lambda: "cluster_state:ok" in cluster["kilnd"][0].run(asks).stdout)

    files = PODS["kilnd"]["initContainers"][0]["command"]
    for host in cluster["kilnd"]:
        for _ in range(2):  # a pod that is started again finds them there
            made = host.run(files)
            assert made.returncode == 0, made.stderr
        assert not answers(host, "readinessProbe")
        process = host.start([host.programs / "kilnd", *KILND["args"], "--ptxas=none"], image_settings(), user=OWNER)
        eventually(lambda host=host, process=process: answers(host, "readinessProbe") or process.poll() is not None)
        assert process.poll() is None, host.log()
        assert all(answers(host, probe) for probe in ("startupProbe", "livenessProbe"))

    # A pod's client, with the files of secrets/client; then one of another host, whose kilnd has it from the first.
    client_files = cluster["secrets"] / "client"
    monkeypatch.setenv("KILN_TLS_ROOTS", str(client_files / "ca.crt"))
    monkeypatch.setenv("KILN_TRUSTED_KEYS", str(client_files / "trusted-keys"))
    monkeypatch.setenv("KILN_TOKEN_FILE", str(client_files / "token"))
    from kiln._proto import messages
    from kiln.client import Client

    replies = []
    for host in cluster["kilnd"]:
        client = Client(host.word("0.0.0.0:7461"), timeout=60.0)
        if replies:
            stored = ["sh", "-c", "export REDISCLI_AUTH=$(cat /secrets/redis-credentials); "
                      "for i in 0 1 2 3 4 5; do redis-cli -h kiln-redis-$i.kiln-redis -p 6379 --scan; done"]
            eventually(lambda host=host: "kiln:" in host.run(stored).stdout)
        replies.append(client.compile(program(1), "hip:gfx942"))
        client.close()
    first, second = replies
    assert first.key == second.key and first.artifact.code == second.artifact.code
    names = [messages().enum_name("Origin", reply.origin) for reply in replies]
    assert names == ["COMPILED", "CLUSTER"]

    false = tmp_path / "token"
    false.write_text("kiln_false\n", encoding="utf-8")
    monkeypatch.setenv("KILN_TOKEN_FILE", str(false))
    with pytest.raises(Exception, match="(?i)token|unauthenticated"):
        Client(cluster["kilnd"][0].word("0.0.0.0:7461"), timeout=10.0).compile(program(2), "hip:gfx942")
