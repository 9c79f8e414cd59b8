# SPDX-License-Identifier: Apache-2.0
"""Each of the library's functions compiles for GPUs, at the sizes that are chosen there, and without spilling: at short, odd and long
rows, and at few and many rows of products. Code objects for AMD tell of spills; for two of NVIDIA's architectures ptxas does, which PTXAS names,
and which leaves wgmma asynchronous."""

import os
import re

import pytest
from daemon import Daemon, socket_folder
from library_calls import CASES
from library_testing import needs_kilnd

from kiln import library
from kiln.client import Client
from kiln.errors import CompileError
from kiln.library import Spec, plans, sizes
from kiln.library.operation import OPERATIONS
from kiln.library.programs import layer_norm, norm_gradients

pytestmark = needs_kilnd
TARGETS = ("cuda:sm_80", "cuda:sm_90a", "cuda:sm_100a", "hip:gfx942", "hip:gfx1100")
ONE_OF_EACH = "cuda:sm_100a"  # which tells of no spills here: tests/ptxas has rows, and gradients of attention, assembled for it
SINCE_FLOAT8 = ("cuda:sm_80", "hip:gfx1100", "hip:gfx942")  # gfx942 has other 8-bit floats


ASSEMBLED = TARGETS[:2]


@pytest.fixture(scope="module")
def client(address):
    with Client(address) as client:
        yield client


@pytest.fixture(scope="module")
def assembling(tmp_path_factory):
    """Of a kilnd that makes cubins."""
    with socket_folder() as sockets:
        daemon = Daemon(tmp_path_factory.mktemp("assembling") / "state", sockets)
        daemon.start(ptxas=os.environ.get("PTXAS", "auto"))
        yield daemon.client()
        daemon.end()


def test_ptxas_is_there(assembling):
    plan = library.plan(CASES[0][1], *CASES[0][2], target=ASSEMBLED[0])
    if not assembling.compile(plan.program.trace(), ASSEMBLED[0], options=dict(plan.options)).artifact.cubin:
        pytest.skip("no ptxas on this machine: NOTHING checks here that the library's kernels for CUDA keep to their registers; set PTXAS")


def test_every_operator_is_compiled():
    assert {name for _, name, _ in CASES} == set(OPERATIONS)


@pytest.fixture(autouse=True)
def planner(client, monkeypatch):
    """Sizes of products are this daemon's choice."""
    monkeypatch.setattr(plans, "default_client", lambda: client)


FIRST = {name: label for label, name, _ in reversed(CASES)}  # operator → its first case
WITH_TARGETS = [(target, *case) for case in CASES for target in TARGETS if target != ONE_OF_EACH or FIRST[case[1]] == case[0]]


@pytest.mark.parametrize("target, label, name, given", WITH_TARGETS, ids=[f"{label}-{target}" for target, label, *_ in WITH_TARGETS])
def test_compiles(client, assembling, target, label, name, given):
    plan = library.plan(name, *given, target=target)
    try:
        reply = (assembling if target in ASSEMBLED else client).compile(plan.program.trace(), target, options=dict(plan.options))
    except CompileError as refusal:
        assert refusal.code == "UNIMPLEMENTED" and name in ("scaled_matmul", "quantize_rows") and target in SINCE_FLOAT8, refusal
        return
    spilled = {kernel.entry: kernel.spill_bytes for kernel in reply.artifact.report.kernels if kernel.spill_bytes}
    assert not spilled
    said = [d.message for d in reply.diagnostics if "(C75" in d.message or "code was wrong" in d.message]
    assert not said


@pytest.mark.parametrize("n", (16400, 24576, 33024, 51936, 70016, 131072))
def test_clusters_are_of_as_many_blocks_as_the_compiler_makes_them(client, n):
    for name, program in (("layer_norm_long", layer_norm.layer_norm_long), ("layer_norm_backward_long", norm_gradients.layer_norm_backward_long)):
        blocks = sizes.row_blocks(name, n)
        if blocks > 1:
            reply = client.compile(program(M=512, N=n, dtype="bfloat16", **sizes.rows(name, n)), "cuda:sm_90a")
            assert reply.artifact.launch.launches[0].cluster_x == blocks


@pytest.mark.parametrize("n", (1025, 16392, 38728, 38729, 69448, 77464, 77465, 107624, 131071))
def test_kept_rows_have_as_many_blocks_as_the_compiler_makes_them(client, n):
    x, w = Spec((512, n), "bfloat16"), Spec((n,), "bfloat16")
    for name, arguments in {"softmax": (x,), "quantize_rows": (x,), "rms_norm": (x, w, 1e-6), "layer_norm": (x, w, w, 1e-5)}.items():
        plan = library.plan(name, *arguments, target="cuda:sm_90a")
        if plan.program.build.__name__.endswith("_kept"):
            artifact = client.compile(plan.program.trace(), "cuda:sm_90a", options=dict(plan.options)).artifact
            assert max(1, artifact.launch.launches[0].cluster_x) == sizes.kept(name, n)["blocks"], name
            assert re.search(r"st\.global\S*\.v[24]", artifact.code.decode()), f"{name}: whole vectors are stored"


@pytest.mark.parametrize("n", (41784, 49152, 131072))
@pytest.mark.parametrize("name", ("softmax", "rms_norm", "quantize_rows"))
def test_parts_of_long_rows_are_copied_asynchronously(client, name, n):
    x, w = Spec((512, n), "bfloat16"), Spec((n,), "bfloat16")
    plan = library.plan(name, *{"rms_norm": (x, w, 1e-6)}.get(name, (x,)), target="cuda:sm_90a")
    code = client.compile(plan.program.trace(), "cuda:sm_90a", options=dict(plan.options)).artifact.code.decode()
    assert "cp.async" in code
    assert "st.shared.v4" not in code, "a part of the row goes through registers"
