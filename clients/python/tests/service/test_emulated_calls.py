# SPDX-License-Identifier: Apache-2.0
"""Which calls are emulated although no target was named: those without a GPU, and those inside kiln.emulation."""

import numpy as np
import pytest

import kiln
import kiln.language as T
from kiln.client import Client
from kiln.examples.add import add
from needs import needs_kilnd as pytestmark  # noqa: F401


@pytest.fixture
def default(address, monkeypatch):
    with Client(address) as client:
        monkeypatch.setattr("kiln.compiler.default_client", lambda: client)
        yield client


@kiln.jit
def doubled(A):
    N = T.const("N")
    A: T.Tensor((N,), T.float32)
    B = T.empty((N,), T.float32)
    with T.Kernel(T.ceildiv(N, 128), threads=128) as bx:
        for i in T.Parallel(128):
            B[bx * 128 + i] = A[bx * 128 + i] * 2
    return B


@pytest.fixture
def devices(monkeypatch):
    """Which GPU is found: None as things begin."""
    from kiln import target

    found = [None]
    device_target = lambda index=0, kind="auto": found[0]  # noqa: E731
    device_target.cache_clear = lambda: None
    monkeypatch.delenv("KILN_TARGET", raising=False)
    monkeypatch.setattr(target, "device_target", device_target)
    monkeypatch.setattr(target, "_said", False)
    return found


def test_without_a_gpu_kernels_of_no_named_target_are_emulated_and_one_line_says_so(default, devices, caplog):
    a = np.arange(3, dtype=np.float32)
    assert np.array_equal(doubled(a), a * 2) and np.array_equal(doubled(a[:2].copy()), a[:2] * 2)
    assert kiln.compile(add(64, 64, "float32")).target == "emu:sm_90a"
    assert [k.target for k in kiln.par_compile([add(64, 64, "float32")])] == ["emu:sm_90a"]
    assert [r.message for r in caplog.records if "no GPU is found" in r.message and "emu:sm_90a" in r.message] == [caplog.records[0].message]


def test_inside_emulation_kernels_of_no_named_architecture_are_emulated(default, devices):
    devices[0] = "hip:gfx942"
    a = np.arange(3, dtype=np.float32)
    with kiln.emulation(check=True):
        assert np.array_equal(doubled(a), a * 2) and doubled.compile(a).target == "emu:gfx942"
        assert [k.target for k in kiln.par_compile([add(64, 64, "float32")], target="hip")] == ["emu:gfx942"]
        assert kiln.compile(add(64, 64, "float32"), target="cuda:sm_80").target == "cuda:sm_80"
    assert doubled.compile(a).target == "hip:gfx942" and kiln.compile(add(64, 64, "float32")).target == "hip:gfx942"


def test_tensors_of_a_gpu_are_never_emulated(default, devices, torch, monkeypatch):
    devices[0] = "cuda:sm_90a"
    tensor = torch.empty(3, dtype=torch.float32, device="cuda")
    with kiln.emulation():
        assert doubled.compile(tensor).target == "cuda:sm_90a"
    devices[0] = None  # torch sees a GPU that Kiln does not find
    with pytest.raises(RuntimeError, match="none is found"):
        doubled.compile(tensor)
    with pytest.raises(RuntimeError, match="name the target"):
        kiln.compile(add(64, 64, "float32"), target="cuda")
