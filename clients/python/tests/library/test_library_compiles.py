# SPDX-License-Identifier: Apache-2.0
"""Each of the library's functions compiles for GPUs, at the sizes that are chosen there, and without spilling where the compiler
can tell."""

import pytest
from library_calls import CASES
from library_testing import needs_kilnd

from kiln import library
from kiln.client import Client
from kiln.errors import CompileError
from kiln.library import plans
from kiln.library.operation import OPERATIONS

pytestmark = needs_kilnd
TARGETS = ("cuda:sm_80", "cuda:sm_90a", "cuda:sm_100a", "hip:gfx942", "hip:gfx1100")
SINCE_FLOAT8 = ("cuda:sm_80", "hip:gfx1100", "hip:gfx942")  # gfx942 has other 8-bit floats


@pytest.fixture(scope="module")
def client(address):
    with Client(address) as client:
        yield client


def test_every_operator_is_compiled():
    assert {name for _, name, _ in CASES} == set(OPERATIONS)


@pytest.fixture(autouse=True)
def planner(client, monkeypatch):
    """Sizes of products are this daemon's choice."""
    monkeypatch.setattr(plans, "default_client", lambda: client)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("label, name, given", CASES, ids=[case[0] for case in CASES])
def test_compiles(client, target, label, name, given):
    plan = library.plan(name, *given, target=target)
    try:
        reply = client.compile(plan.program.trace(), target, options=dict(plan.options))
    except CompileError as refusal:
        assert refusal.code == "UNIMPLEMENTED" and name in ("scaled_matmul", "quantize_rows") and target in SINCE_FLOAT8, refusal
        return
    spilled = {kernel.entry: kernel.spill_bytes for kernel in reply.artifact.report.kernels if kernel.spill_bytes}
    assert not spilled
