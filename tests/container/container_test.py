# SPDX-License-Identifier: Apache-2.0
"""What deploy/container/Containerfile takes for granted: the archive that deploy/bundle makes, the user and folders that it makes itself,
and the settings that it gives kilnd. Nothing is built: that takes a container engine and a registry."""

import os
import re
import subprocess

import pytest

import containerfile
from daemon import BUILD, ROOT

KILND = BUILD / "bin" / "kilnd"


@pytest.fixture(scope="module")
def steps():
    return containerfile.steps()


def test_it_takes_the_archive_that_the_bundle_makes(steps):
    version = re.search(r"project\(kiln VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    bundle = (ROOT / "deploy/bundle").read_text()
    name = re.search(r"^name=(.*)$", bundle, re.M)[1].replace("$version", version)
    archive = re.search(r"^archive=(.*)$", bundle, re.M)[1].replace("$name", name)
    assert containerfile.only(steps, "ADD").split() == [archive, "/opt/"]
    assert ["mv", f"/opt/{name}", "/opt/kiln"] in containerfile.commands(steps), "ADD unpacks the archive's one folder"
    assert containerfile.only(steps, "ENTRYPOINT") == '["/opt/kiln/bin/kilnd"]'
    assert "for program in kilnd " in bundle and '"$stage/bin/$program"' in bundle


def test_the_user_and_folders_are_made(steps):
    user = containerfile.only(steps, "USER")
    useradd = next(words for words in containerfile.commands(steps) if words[0] == "useradd")
    number = useradd[useradd.index("--uid") + 1]  # files of the host are given to a number
    assert useradd[-1] == user and ["groupadd", "--gid", number, user] in containerfile.commands(steps)
    install = next(words for words in containerfile.commands(steps) if words[:2] == ["install", "-d"])
    assert install[install.index("-o") + 1] == install[install.index("-g") + 1] == user
    settings = dict(word.split("=", 1) for word in containerfile.only(steps, "ENV").split())
    folders = {containerfile.only(steps, "VOLUME"), settings["KILN_STATE_DIR"], os.path.dirname(settings["KILN_LISTEN"].removeprefix("unix:"))}
    assert folders <= set(install), "kilnd's user cannot write what is not its own"
    names = [name for name, _ in steps]
    assert names.index("RUN") < names.index("USER"), "only root makes users"


@pytest.mark.parametrize("options", [[], ["--metrics-listen=127.0.0.1:0"]])
def test_kilnd_takes_its_settings(steps, tmp_path, sockets, options):
    settings = dict(word.split("=", 1) for word in containerfile.only(steps, "ENV").split())
    settings |= {"KILN_STATE_DIR": str(tmp_path), "KILN_LISTEN": f"unix:{sockets}/kiln.sock"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KILN_")} | settings
    checked = subprocess.run([KILND, "--check-config", *options], env=environment, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    wrong = subprocess.run([KILND, "--check-config"], env=environment | {"KILN_SOCKET_MODE": "nonsense"}, capture_output=True, text=True, check=False)
    assert wrong.returncode != 0, "are the settings looked at?"


def test_the_base_has_the_glibc_that_the_bundle_needs(steps):
    needed = re.search(r"^readonly max_glibc=(.*)$", (ROOT / "deploy/bundle").read_text(), re.M)[1]
    assert (containerfile.only(steps, "FROM"), needed) == ("debian:12-slim", "2.36"), "Debian 12 has glibc 2.36: look at both"
