# SPDX-License-Identifier: Apache-2.0
"""What a container image ships with (--bundle) is served from the first request on, and what is wrong with it costs its results alone."""

import json
import os
import re
import subprocess

import pytest

from daemon import BUILD, TARGET, Daemon, compile_many, program, socket_folder


def tier(daemon, name="bundle"):
    return next(t for t in daemon.client().stats().tiers if t.name == name)


def origins(daemon, numbers):
    client = daemon.client()
    names = client._pb.enums["Origin"].values_by_number
    return {names[client.compile(program(n), TARGET).origin].name for n in numbers}


def kiln(daemon, *arguments):
    environment = {**os.environ, "KILN_ADDRESS": f"unix:{daemon.socket}", "KILN_AUTOSTART": "0"}
    return subprocess.run([str(BUILD / "bin" / "kiln"), *arguments], capture_output=True, text=True, check=True, env=environment).stdout


class Image:
    """What `maker`, another host, had compiled: a bundle, and the file that names the maker's key."""

    def __init__(self, maker, folder, numbers):
        self.bundle, self.trusted = folder / "kernels.bundle", folder / "trusted-keys"
        maker.start()
        self.made = compile_many(maker.client(), numbers)
        self.trusted.write_text(f"ed25519:{maker.client().capabilities().signing_key.hex()} CI\n")
        kiln(maker, "cache", "export", str(self.bundle))
        assert maker.stop() == 0

    @property
    def options(self):
        return [f"--bundle={self.bundle}", f"--trusted-keys={self.trusted}"]


@pytest.fixture
def image(tmp_path):
    with socket_folder() as folder:
        maker = Daemon(tmp_path / "maker", folder)
        try:
            yield Image(maker, tmp_path, range(8))
        finally:
            maker.end()


def test_a_new_host_compiles_nothing_that_its_image_has(image, daemon):
    daemon.start(*image.options, "--metrics-listen=localhost:0")
    assert origins(daemon, range(8)) == {"BUNDLE"}
    assert origins(daemon, range(8)) == {"MEMORY"}
    assert compile_many(daemon.client(), range(8)) == image.made
    stats = daemon.client().stats()
    assert stats.compiles == 0
    assert [t.name for t in stats.tiers] == ["memory", "sqlite", "bundle"]
    assert (tier(daemon).entries, tier(daemon).hits, tier(daemon).refused, tier(daemon).state) == (8, 8, 0, "ok")
    assert tier(daemon, "sqlite").entries == 0
    assert [t["state"] for t in json.loads(kiln(daemon, "stats"))["tiers"] if t["name"] == "bundle"] == ["ok"]
    address = re.search(r'event=monitoring listen="([^"]+)"', daemon.log.read_text())[1]
    metrics = subprocess.run(["curl", "-sf", f"http://{address}/metrics"], capture_output=True, text=True, check=True).stdout
    assert 'kiln_store_entries{tier="bundle"} 8' in metrics
    assert 'kiln_results_total{origin="bundle"} 8' in metrics
    assert 'kiln_store_up{tier="bundle"} 1' in metrics
    assert daemon.stop() == 0
    daemon.start(*image.options)
    assert origins(daemon, range(8)) == {"BUNDLE"}, "it is not copied into the store"
    assert origins(daemon, [8]) == {"COMPILED"}


def test_a_base_image_and_one_on_top_of_it(image, daemon, tmp_path):
    daemon.start(*image.options)
    compile_many(daemon.client(), range(6, 12))
    kiln(daemon, "cache", "export", str(tmp_path / "more.bundle"))
    image.trusted.write_text(image.trusted.read_text() + f"ed25519:{daemon.client().capabilities().signing_key.hex()} on top\n")
    assert daemon.stop() == 0
    with socket_folder() as folder:
        third = Daemon(tmp_path / "third", folder)
        try:
            third.start(*image.options, f"--bundle={tmp_path / 'more.bundle'}")
            assert origins(third, range(12)) == {"BUNDLE"}
            assert tier(third).entries == 12
        finally:
            third.end()


def test_a_bundle_is_served_with_a_folder_that_may_not_be_written(image, daemon):
    if os.geteuid() == 0:  # who may write everything otherwise
        daemon.wrapper = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    daemon.state.mkdir()
    daemon.state.chmod(0o500)
    daemon.start(*image.options)
    assert compile_many(daemon.client(), range(8)) == image.made
    assert daemon.client().stats().compiles == 0
    assert 'disk="none"' in daemon.log.read_text()


def test_a_bundle_that_is_cut_or_overwritten_kills_nobody(image, daemon):
    daemon.start(*image.options)
    assert origins(daemon, [0]) == {"BUNDLE"}
    with open(image.bundle, "r+b") as file:
        file.truncate(500)
    assert origins(daemon, range(1, 8)) == {"COMPILED"}
    assert tier(daemon).state == "disabled"
    assert daemon.process.poll() is None
    assert daemon.stop() == 0
    image.bundle.write_bytes(image.bundle.read_bytes() + os.urandom(5000))
    daemon.start(*image.options, "--memory-cache=1")
    assert compile_many(daemon.client(), range(8)) == image.made


def refusal(daemon, *options):
    """What a kilnd says that does not start with these options; --check-config says the same."""
    command = [str(BUILD / "bin" / "kilnd"), f"--listen=unix:{daemon.socket}", f"--state-dir={daemon.state}", "--ptxas=none", *options]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode != 0
    checked = subprocess.run([*command, "--check-config"], capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 2
    said = [line for line in (ran.stdout + ran.stderr).splitlines() if "--bundle" in line]
    assert len(said) == 1, ran.stdout + ran.stderr
    assert said[0].split("--bundle: ")[1] in checked.stderr
    return said[0]


def test_a_wrong_file_is_refused_at_the_start(image, daemon, tmp_path):
    assert "No such file" in refusal(daemon, f"--bundle={tmp_path / 'missing'}")
    assert "no ordinary file" in refusal(daemon, f"--bundle={tmp_path}")
    (tmp_path / "link").symlink_to(image.bundle)
    assert "symbolic link" in refusal(daemon, f"--bundle={tmp_path / 'link'}")
    (tmp_path / "other").write_text("something else")
    assert "no bundle" in refusal(daemon, f"--bundle={image.bundle}", f"--bundle={tmp_path / 'other'}")
    image.bundle.chmod(0o666)
    assert "written by everybody" in refusal(daemon, *image.options)


def check_config(daemon, *options, **environment):
    command = [str(BUILD / "bin" / "kilnd"), f"--listen=unix:{daemon.socket}", f"--state-dir={daemon.state}", "--check-config", *options]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KILN_")}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env={**clean, **environment})


def test_it_may_be_given_several_times_and_in_four_places(image, daemon, tmp_path):
    other = tmp_path / "other.bundle"
    other.write_bytes(image.bundle.read_bytes())
    both = f'bundle = ["{image.bundle}", "{other}"]'

    def said(*options, **environment):
        ran = check_config(daemon, *options, **environment)
        assert ran.returncode == 0, ran.stderr
        return re.split(r" +# ", next(line for line in ran.stdout.splitlines() if "bundle" in line), maxsplit=1), ran.stdout

    assert said()[0] == ['# bundle = ""', "not set"]
    assert said(f"--bundle={image.bundle}", "--bundle", str(other))[0] == [both, "flag"]
    assert said(KILN_BUNDLE=f"{image.bundle}:{other}")[0] == [both, "environment, KILN_BUNDLE"]
    effective = said(f"--bundle={image.bundle}", f"--bundle={other}")[1]
    file = tmp_path / "kilnd.toml"
    file.write_text(effective)
    assert said(f"--config={file}")[0] == [both, str(file)], "what --check-config prints is a file that means the same"
    file.write_text(f'bundle = "{other}"\n')
    assert said(f"--config={file}")[0][0] == f'bundle = ["{other}"]'
    assert said(f"--config={file}", KILN_BUNDLE=str(image.bundle))[0] == [f'bundle = ["{image.bundle}"]', "environment, KILN_BUNDLE"]
    assert said(f"--config={file}", f"--bundle={other}", KILN_BUNDLE=str(image.bundle))[0] == [f'bundle = ["{other}"]', "flag"]
    file.write_text("bundle = [[1]]\n")
    wrong = check_config(daemon, f"--config={file}")
    assert wrong.returncode == 2 and "an array of these" in wrong.stderr
    file.write_text("queue = [1, 2]\n")
    assert "takes a string, number or boolean\n" in check_config(daemon, f"--config={file}").stderr
