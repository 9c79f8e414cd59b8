# SPDX-License-Identifier: Apache-2.0
"""The conformance program without a GPU: what it makes, and that it tells results apart."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parent / "conformance"
BINARY = pathlib.Path(os.environ.get("KILN_BUILD", "build/release")) / "bin" / "kiln_conformance_forms"
PTXAS = next((p for p in ("/usr/local/cuda/bin/ptxas", "/usr/bin/ptxas") if os.access(p, os.X_OK)), None)


def conformance(*args):
    return subprocess.run([sys.executable, str(SCRIPT), *map(str, args)], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("conformance")
    done = conformance("--make", folder / "a", "--seed", 5, "--step", 7)
    assert done.returncode == 0, done.stderr
    return folder


def forms_of(folder):
    return json.loads((folder / "forms.json").read_text())["forms"]


def test_forms_of_each_family_are_made(made):
    forms = forms_of(made / "a")
    names = [form["name"] for form in forms]
    assert len(names) == len(set(names)) >= 70
    for family in ("mma.", "wgmma", "matrix.x", "shfl.bfly", "cp.async", "tensor.load.", "tensor.store", "tensor.reduce.", "cvt."):
        assert any(family in name for name in names), family
    for form in forms:
        assert form["faults"] or any((made / "a" / f"{form['file']}.out").read_bytes()), f"{form['name']}: results that are all zero show nothing"


@pytest.mark.skipif(PTXAS is None, reason="no ptxas on this host")
def test_ptxas_takes_one_of_each_family(made):
    families = {re.sub(r"[\d ].*", "", form["name"]): form for form in forms_of(made / "a")}
    for form in families.values():
        done = subprocess.run([PTXAS, "-arch=sm_90a", "-o", os.devnull, str(made / "a" / f"{form['file']}.ptx")], capture_output=True, text=True,
                              check=False)
        assert done.returncode == 0, (form["name"], done.stderr)


def test_equal_results_agree_and_others_do_not(made):
    shutil.copytree(made / "a", made / "b")
    done = conformance("--compare", made / "a", "--against", made / "b", "--json", made / "report.json")
    report = json.loads((made / "report.json").read_text())
    assert done.returncode == 0 and report["agree"] == [form["name"] for form in forms_of(made / "a")] and not report["disagree"], done.stdout
    exact = [form for form in forms_of(made / "a") if form["tolerance"] == 0 and not form["faults"]]
    for form in (exact[0], exact[len(exact) // 2], exact[-1]):
        path = made / "b" / f"{form['file']}.out"
        data = bytearray(path.read_bytes())
        data[9] ^= 64
        path.write_bytes(data)
    done = conformance("--compare", made / "a", "--against", made / "b")
    assert done.returncode == 1
    assert f"{len(report['agree']) - 3} of {len(report['agree'])} instruction forms agree" in done.stdout


def test_the_record_of_a_gpu_has_every_form():
    """Forms that no GPU has run yet, or on which it disagreed, are not recorded as agreeing."""
    listed = subprocess.run([BINARY], capture_output=True, text=True, check=True).stdout.splitlines()
    record = json.loads(SCRIPT.with_name("conformance.json").read_text())
    assert not record["disagree"] and "NVIDIA" in record["device"]
    assert sorted(record["agree"]) == sorted(listed), "renew conformance.json: see `conformance --help`"
