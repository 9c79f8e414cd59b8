# SPDX-License-Identifier: Apache-2.0
"""A manifest is compiled on a machine without a GPU, and another machine that imports the bundle compiles nothing. Also the jobs of deploy/ci."""

import base64
import json
import os
import re
import subprocess
import sys

import pytest
from daemon import ROOT
from programs import COMPILES, KILN, TEXT, TILELANG

yaml = pytest.importorskip("yaml", reason="no python3-yaml here: THE JOBS OF deploy/ci ARE NOT CHECKED")


def trusting(hosts, folder, host, *options):
    """Another machine, which takes what `host` signed."""
    keys = folder / "trusted-keys"
    keys.write_text(f"ed25519:{host.daemon.client().capabilities().signing_key.hex()} ci\n")
    return hosts(f"--trusted-keys={keys}", *options)


@pytest.mark.parametrize("text", [KILN, TILELANG], ids=["a Python example", "a script for TileLang"])
@pytest.mark.parametrize("how", ["import", "bundle"])
def test_a_second_run_compiles_nothing(hosts, tmp_path, text, how):
    recorder, compiler = hosts(), hosts()
    script = recorder.script(text)
    ran = recorder.record("app.manifest", *script)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    manifest = recorder.folder / "app.manifest"
    assert recorder.compiles() > 0 and recorder.requests(manifest)

    missing = compiler.kiln("precompile", manifest, "--check")
    assert missing.returncode == 1 and len(json.loads(missing.stdout)["missing"]) == len(recorder.requests(manifest)), missing.stdout
    assert compiler.compiles() == 0, "a check compiles nothing"
    done = compiler.kiln("precompile", manifest, "--bundle", "app.bundle")
    assert done.returncode == 0 and json.loads(done.stdout)["compiled"] > 0, done.stdout + done.stderr
    assert compiler.kiln("precompile", manifest, "--check").returncode == 0

    bundle = compiler.folder / "app.bundle"
    user = trusting(hosts, tmp_path, compiler, *([f"--bundle={bundle}"] if how == "bundle" else []))
    if how == "import":
        imported = user.kiln("cache", "import", bundle)
        assert imported.returncode == 0, imported.stdout + imported.stderr
    assert user.kiln("precompile", manifest, "--check").returncode == 0
    assert user.run(*script).returncode == 0
    assert user.compiles() == 0 and user.daemon.client().stats().hits > 0
    stranger = hosts(f"--bundle={bundle}")  # it trusts nobody
    assert stranger.kiln("precompile", manifest, "--check").returncode == 1
    assert stranger.run(*script).returncode == 0 and stranger.compiles() > 0


def test_a_check_lists_what_is_missing(host):
    assert host.record("app.manifest", *host.script(COMPILES), "cuda:sm_80", "1", "2").returncode == 0
    check = ("precompile", "app.manifest", "--check", "--text")
    known = host.kiln(*check)
    assert known.returncode == 0 and "0 of 2 kernels are missing" in known.stdout, known.stdout + known.stderr
    missing = host.kiln(*check, "-t", "cuda:sm_80", "-t", "hip:gfx942")
    assert missing.returncode == 1 and missing.stdout.count("missing: app.manifest: @scale for hip:gfx942") == 2, missing.stdout
    assert "2 of 4 kernels are missing" in missing.stdout


def test_a_check_that_finds_no_answer_has_another_status(host, hosts):
    assert host.record("app.manifest", *host.script(COMPILES), "cuda:sm_80", "1").returncode == 0
    assert host.kiln("precompile", "app.manifest", "--check", "-t", "cuda:sm_8").returncode == 2
    assert host.kiln("precompile", "nowhere.manifest", "--check").returncode == 2
    assert hosts(running=False).kiln("precompile", host.folder / "app.manifest", "--check").returncode == 2
    assert host.kiln("precompile", "app.manifest", "--check", "--bundle", "x").returncode > 2, "what has no effect is refused"


def test_targets_replace_those_that_were_recorded(host):
    assert host.record("app.manifest", *host.script(COMPILES), "cuda:sm_80", "1").returncode == 0
    assert host.record("app.manifest", *host.script(COMPILES), "cuda:sm_90a", "1").returncode == 0
    done = host.kiln("precompile", "app.manifest", "-t", "hip:gfx942")
    assert done.returncode == 0 and [k["target"] for k in json.loads(done.stdout)["kernels"]] == ["hip:gfx942"], done.stdout


def test_what_was_refused_for_one_target_only_is_expected_of_others(host):
    script = host.script(COMPILES.replace("kiln.compile(", "try:\n        kiln.compile(") + "    except kiln.CompileError:\n        pass\n")
    for target in ("cuda:sm_80", "cuda:sm_8"):
        assert host.record("app.manifest", *script, target, "1").returncode == 0
    assert host.requests("app.manifest") == [("scale", "cuda:sm_8", True), ("scale", "cuda:sm_80", False)]
    assert host.kiln("precompile", "app.manifest").returncode == 0
    assert host.kiln("precompile", "app.manifest", "-t", "cuda:sm_9").returncode == 1


def test_programs_need_a_target_and_manifests_take_no_options(host):
    (host.folder / "twice.kiln").write_text(TEXT)
    assert host.record("app.manifest", "kiln", "compile", "twice.kiln", "-t", "cuda:sm_80", "--fast-math").returncode == 0
    alone = host.kiln("precompile", "twice.kiln")
    assert alone.returncode == 1 and "--target" in alone.stdout
    options = host.kiln("precompile", "app.manifest", "--fast-math")
    assert options.returncode == 1 and "with which they were recorded" in options.stdout
    both = host.kiln("precompile", "app.manifest", "twice.kiln", "-t", "cuda:sm_80")
    assert both.returncode == 0 and (json.loads(both.stdout)["known"], json.loads(both.stdout)["compiled"]) == (1, 1), both.stdout


def test_a_run_on_an_unknown_gpu_needs_a_target(host):
    text = 'kiln manifest 1\n\nrequest\n' + re.sub("^", "  ", TEXT, flags=re.MULTILINE).rstrip() + "\n"
    (host.folder / "app.txt").write_text(text)
    open_ = host.kiln("precompile", "app.txt")
    assert open_.returncode == 1 and "twice" in open_.stdout and "--target" in open_.stdout
    assert host.kiln("precompile", "app.txt", "-t", "cuda:sm_80").returncode == 0


def github():
    job = yaml.safe_load((ROOT / "deploy/ci/github.yml").read_text(encoding="utf-8"))["jobs"]["kernels"]
    return [step["run"] for step in job["steps"] if "run" in step and step["name"] != "Install Kiln"], job["env"]


def gitlab():
    job = yaml.safe_load((ROOT / "deploy/ci/gitlab.yml").read_text(encoding="utf-8"))["kernels"]
    return ["\n".join(job["script"])], job["variables"]


def key_commands():
    """As the page for operators has them: they make signing-key.pem and trusted-keys."""
    (block,) = (b for b in re.findall(r"^```sh\n(.*?)^```$", (ROOT / "deploy/OPERATIONS.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
                if "openssl genpkey" in b)
    return "\n".join(line for line in block.splitlines() if line.startswith("openssl"))


@pytest.mark.parametrize("job", [github, gitlab])
def test_a_job_makes_a_bundle_that_others_trust(hosts, job):
    scripts, variables = job()
    runner = hosts(running=False)
    runner.script(COMPILES.replace("sys.argv[1] or None", "'cuda'").replace("sys.argv[2:]", "[1.0, 2.0]"), "kernels.py")
    assert runner.run("bash", "-eo", "pipefail", "-c", key_commands()).returncode == 0
    pem = (runner.folder / "signing-key.pem").read_text()
    environment = {name: str(value) for name, value in variables.items()} | {
        "COMMAND": variables["COMMAND"].replace("python3", sys.executable),
        "SIGNING_KEY": base64.b64encode(pem.encode()).decode() if job is gitlab else pem.strip(), "KILN_PTXAS": "none"}  # as the other hosts here
    del runner.environment["KILN_ADDRESS"]

    def run():
        for script in scripts:
            ran = runner.run("bash", "-eo", "pipefail", "-c", script, **environment)
            assert ran.returncode == 0, ran.stdout + ran.stderr
        return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]

    targets = variables["TARGETS"].split()
    compiled, checked = run()[-2:]
    assert compiled["compiled"] == 2 * len(targets) and checked == {"total": 2 * len(targets), "missing": []}
    assert os.stat(runner.folder / ".kiln/signing-key.pem").st_mode & 0o777 == 0o600

    user = hosts(f"--trusted-keys={runner.folder / 'trusted-keys'}")
    assert user.kiln("cache", "import", runner.folder / "kernels.bundle").returncode == 0
    for target in targets:
        assert user.kiln("precompile", runner.folder / "kernels.manifest", "-t", target, "--check").returncode == 0
    assert user.compiles() == 0

    stranger = hosts()
    assert stranger.kiln("cache", "import", runner.folder / "kernels.bundle").returncode == 1, "a key that it does not trust"

    subprocess.run(["find", str(runner.folder / ".kiln"), "-name", "kiln.db*", "-delete"], check=True)  # the next pipeline has the bundle alone
    again = run()
    assert again[-2]["compiled"] == 0 and again[-2]["known"] == 2 * len(targets), again


@pytest.mark.parametrize("job", [github, gitlab])
def test_a_job_fails_where_its_command_does(hosts, job):
    scripts, variables = job()
    runner = hosts(running=False)
    runner.script("raise SystemExit(3)", "kernels.py")
    del runner.environment["KILN_ADDRESS"]
    ran = runner.run("bash", "-eo", "pipefail", "-c", "\n".join(scripts), **{name: str(value) for name, value in variables.items()} | {
        "COMMAND": f"{sys.executable} kernels.py", "SIGNING_KEY": ""})
    assert ran.returncode == 3 and not (runner.folder / "kernels.bundle").exists(), ran.stdout + ran.stderr
