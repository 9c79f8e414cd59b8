# SPDX-License-Identifier: Apache-2.0
"""The Debian packages of deploy/debian/build: what is in them, and each installed and used in an empty Debian 12."""

import re
import shlex
import shutil
import subprocess

import pytest

from conftest import README_KERNEL, ROOT, TILELANG_SCRIPT, TRITON_SCRIPT, debian

NAMES = ("kilnd", "kiln", "python3-kiln", "python3-kiln-tilelang", "python3-kiln-triton", "libkiln-dev")
# kiln@localhost stands for whoever publishes the packages (KILN_MAINTAINER); no bug of Debian's asks for them.
UNAVOIDABLE = {"bogus-mail-host", "bogus-mail-host-in-debian-changelog", "initial-upload-closes-no-bugs"}
SOCKET = "/run/kiln/kiln.sock"
PROGRAM = re.search(r"^```kiln\n(.*?)^```$", (ROOT / "ir/IR.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)[1]


def field(name, field):
    return subprocess.run(["dpkg-deb", "-f", debian(name), field], capture_output=True, text=True, check=True).stdout.strip()


def files(name):
    listed = subprocess.run(["dpkg-deb", "-c", debian(name)], capture_output=True, text=True, check=True).stdout
    return {line.split(None, 5)[5].removeprefix(".").split(" -> ")[0]: line.split()[0] for line in listed.splitlines()}


def test_the_versions_are_one():
    version = re.search(r"project\(kiln VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    assert {field(name, "Version") for name in NAMES} == {f"{version}-1"}


def test_no_two_packages_bring_the_same_file():
    seen = {}
    for name in NAMES:
        for path, mode in files(name).items():
            assert mode.startswith("d") or path not in seen, f"{path} is in {seen[path]} and in {name}"
            seen[path] = name


def test_every_package_brings_what_it_is_for():
    assert {"/usr/bin/kilnd", "/usr/lib/kiln/kilnd", "/usr/lib/kiln/kiln-worker", "/etc/kiln/kilnd.toml", "/lib/systemd/system/kilnd.service",
            "/lib/systemd/system/kilnd.socket", "/usr/lib/sysusers.d/kilnd.conf"} <= set(files("kilnd"))
    assert {"/usr/bin/kiln", "/usr/lib/kiln/kiln"} <= set(files("kiln"))
    assert {"/usr/lib/python3/dist-packages/kiln/kiln.desc", "/usr/lib/python3/dist-packages/kiln/_runtime.abi3.so"} <= set(files("python3-kiln"))
    assert not [path for path in files("python3-kiln") if "/tilelang" in path or "/dist-packages/triton" in path]


def test_libraries_are_the_systems_but_for_llvm():
    depends = field("kilnd", "Depends")
    assert re.search(r"libgrpc\+\+\S+ \(", depends) and re.search(r"libsqlite3-0 \(", depends) and "libc6 (>= 2." in depends, depends
    assert "llvm" not in depends.lower(), "an upgrade of LLVM would change results without changing their keys"


def test_no_program_looks_for_libraries_beside_itself(tmp_path):
    subprocess.run(["dpkg-deb", "-x", debian("kilnd"), tmp_path], check=True)
    for program in (tmp_path / "usr/lib/kiln").iterdir():
        dynamic = subprocess.run(["readelf", "-d", program], capture_output=True, text=True, check=True).stdout
        assert "NEEDED" in dynamic and not re.search(r"\((RPATH|RUNPATH)\)", dynamic), program


@pytest.mark.roots
def test_lintian_has_nothing_to_say():
    if shutil.which("lintian") is None:
        pytest.skip("NOT TESTED: there is no lintian; apt-get install lintian")
    ran = subprocess.run(["lintian", "--allow-root", *map(debian, NAMES)], capture_output=True, text=True, check=False)
    said = [line for line in ran.stdout.splitlines() if re.match(r"[EW]: ", line) and line.split()[2] not in UNAVOIDABLE]
    assert not said and ran.returncode in (0, 2), "\n".join(said) + ran.stderr


def unit_command(root, setting):
    text = (root.folder / "lib/systemd/system/kilnd.service").read_text()
    return shlex.split(re.search(rf"^{setting}=(.*)$", text, re.MULTILINE)[1])


def start_as_the_unit_does(root):
    """What systemd does before it starts the unit: its folders, its user."""
    root.shell("install -d -o kiln -g kiln -m 0750 /run/kiln; install -d -o kiln -g kiln -m 0700 /var/cache/kiln")
    root.run(*unit_command(root, "ExecStartPre"), user="kiln")
    root.start(*unit_command(root, "ExecStart"), user="kiln")
    root.await_socket(SOCKET)


@pytest.mark.roots
def test_the_daemon_and_the_clients_in_an_empty_root(root):
    root.install(*map(debian, ("kilnd", "kiln", "python3-kiln")))
    assert root.run("id", "-un", "kiln").stdout == "kiln\n"
    assert (root.folder / "etc/systemd/system/multi-user.target.wants/kilnd.service").is_symlink(), "it starts at boot"
    assert not (root.folder / "etc/systemd/system/sockets.target.wants/kilnd.socket").is_symlink()
    verified = root.run("systemd-analyze", "verify", "--man=no", "/lib/systemd/system/kilnd.service", "/lib/systemd/system/kilnd.socket", check=False)
    complaints = [line for line in verified.stderr.splitlines() if "kilnd" in line]
    assert not complaints, complaints
    start_as_the_unit_does(root)

    # A member of the group; then somebody else.
    root.shell("useradd -m -G kiln alice; useradd -m bob")
    environment = ("env", f"KILN_ADDRESS=unix:{SOCKET}", "KILN_AUTOSTART=0")
    script = root.write("/tmp/first.py", README_KERNEL)
    ran = root.run(*environment, "python3", script, user="alice")
    assert "3." in ran.stdout, ran.stdout + ran.stderr
    program = root.write("/tmp/scale.kiln", PROGRAM)
    compiled = root.run(*environment, "kiln", "compile", program, "-t", "hip:gfx942", "-o", "/home/alice/out", user="alice")
    assert compiled.returncode == 0 and any((root.folder / "home/alice").glob("out*")), compiled.stdout
    root.run("kiln", "compile", "--local", program, "-t", "cuda:sm_80", "-o", "/tmp/local", user="alice")  # it finds kiln-worker
    other = root.run(*environment, "python3", script, user="bob", check=False)
    assert other.returncode != 0 and "kiln" in other.stderr, other.stdout

    # TileLang's name, only now.
    tilelang = root.write("/tmp/tl.py", TILELANG_SCRIPT)
    assert "No module named 'tilelang'" in root.run(*environment, "python3", tilelang, user="alice", check=False).stderr
    root.install(debian("python3-kiln-tilelang"))
    assert "/usr/lib/python3/dist-packages/tilelang" in root.run(*environment, "python3", tilelang, user="alice").stdout
    triton = root.write("/tmp/tri.py", TRITON_SCRIPT)
    assert "No module named 'triton'" in root.run(*environment, "python3", triton, user="alice", check=False).stderr
    root.install(debian("python3-kiln-triton"))
    assert "/usr/lib/python3/dist-packages/triton" in root.run(*environment, "python3", triton, user="alice").stdout


@pytest.mark.roots
def test_removal_keeps_settings_and_purge_takes_them(root):
    root.install(debian("kilnd"))
    root.shell("echo 'workers = 3' >>/etc/kiln/kilnd.toml; install -d -o kiln -g kiln -m 0700 /var/cache/kiln")
    assert "workers" in root.run("kilnd", "--check-config", "--state-dir=/var/cache/kiln", user="kiln").stdout
    root.run("apt-get", "-y", "-qq", "remove", "kilnd")
    assert "workers = 3" in (root.folder / "etc/kiln/kilnd.toml").read_text() and not (root.folder / "usr/bin/kilnd").exists()
    assert (root.folder / "var/cache/kiln").is_dir()
    root.run("apt-get", "-y", "-qq", "purge", "kilnd")
    left = [path for path in ("etc/kiln/kilnd.toml", "var/cache/kiln", "usr/lib/kiln", "etc/systemd/system/multi-user.target.wants/kilnd.service")
            if (root.folder / path).exists() or (root.folder / path).is_symlink()]
    assert not left, left


@pytest.mark.roots
def test_a_program_in_cpp_in_an_empty_root(root):
    root.install(debian("libkiln-dev"), debian("kilnd"), "g++", "cmake", "make")
    root.shell("cp -r /usr/share/doc/libkiln-dev/examples /tmp/example; cd /tmp/example; cmake -B build && cmake --build build", timeout=900)
    start_as_the_unit_does(root)
    program = root.write("/tmp/scale.kiln", PROGRAM)
    ran = root.run("env", f"KILN_ADDRESS=unix:{SOCKET}", "/tmp/example/build/example", program, "hip:gfx942")
    assert "scale.kiln.hsaco" in ran.stdout and (root.folder / "tmp/scale.kiln.hsaco").stat().st_size > 1000
    assert root.run("env", f"KILN_ADDRESS=unix:{SOCKET}", "/tmp/example/build/example", program, "cuda:none", check=False).returncode == 1
