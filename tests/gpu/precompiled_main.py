# SPDX-License-Identifier: Apache-2.0
"""The steps of tests/gpu/precompiled."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
RUN = str(HERE / "run")


class Kiln:
    """The programs of a build or of the bundle, and what kilnd of them is asked."""

    def __init__(self, build, scratch):
        import daemon

        self.place = daemon.Place(argparse.Namespace(build=build, bundle=None), scratch, ptxas=ptxas())

    def command(self, *words):
        return [str(self.place.root / "bin" / "kiln"), *map(str, words)]

    def run(self, *words):
        environment = {**self.place.environment, "KILN_ADDRESS": self.place.address}
        return subprocess.run(self.command(*words), env=environment, capture_output=True, text=True, check=False)


def ptxas():
    return os.environ.get("KILN_GPU_PTXAS", "none")


def build_of(arguments):
    """FOLDER of --build among the arguments of tests/gpu/run."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--build")
    return parser.parse_known_args(arguments)[0].build


def record(kiln, manifest, arguments):
    if not any(word.split("=")[0] == "--seed" for word in arguments):
        return "tests/gpu/precompiled record: give --seed N, so that `run` asks for the same programs"
    return subprocess.run(kiln.command("record", "-o", manifest, "--", RUN, "--ptxas", ptxas(), *arguments), check=False).returncode


def missing(kiln, manifest, targets):
    """How many of its kernels kilnd does not have; the command's status says the same."""
    ran = kiln.run("--json", "precompile", manifest, *targets, "--check")
    if ran.returncode not in (0, 1):
        sys.exit(f"kiln precompile --check ended with {ran.returncode}: {ran.stdout}{ran.stderr}")
    found = json.loads(ran.stdout)
    if (ran.returncode == 1) != bool(found["missing"]):
        sys.exit(f"its status is {ran.returncode}, and {len(found['missing'])} kernels are missing")
    return len(found["missing"]), found["total"]


def compile_all(kiln, manifest, bundle, targets):
    targets = [word for target in targets for word in ("-t", target)]
    kiln.place.start()
    try:
        before = missing(kiln, manifest, targets)
        ran = kiln.run("--json", "--timeout", "inf", "precompile", manifest, *targets, "--bundle", bundle)
        if ran.returncode != 0:
            return f"kiln precompile ended with {ran.returncode}: {ran.stdout[-2000:]}{ran.stderr[-2000:]}"
        after = missing(kiln, manifest, targets)
        from kiln.client import default_client

        pathlib.Path(f"{bundle}.keys").write_text(f"ed25519:{default_client().capabilities().signing_key.hex()} precompiled\n")
    finally:
        kiln.place.stop()
    print(f"# {before[0]} of {before[1]} kernels were missing, {after[0]} are; {bundle} has {os.path.getsize(bundle)} bytes")
    return 1 if after[0] or not before[1] else 0


def run(bundle, arguments):
    return subprocess.run([RUN, "--ptxas", ptxas(), "--precompiled", bundle, *arguments], check=False).returncode


def main(words):
    step = words[0] if words else ""
    needed = {"record": 2, "compile": 4, "run": 2}.get(step)
    if needed is None or len(words) < needed:
        return "tests/gpu/precompiled: record MANIFEST ARGUMENTS…, compile MANIFEST BUNDLE TARGET…, or run BUNDLE ARGUMENTS…"
    build = build_of(words)
    if step == "run":
        return run(words[1], words[2:])
    with tempfile.TemporaryDirectory(prefix="kiln-precompiled-") as scratch:
        kiln = Kiln(build, pathlib.Path(scratch))
        if step == "record":
            return record(kiln, words[1], words[2:])
        targets = [word for word in words[3:] if word not in ("--build", build)]
        return compile_all(kiln, words[1], words[2], targets)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
