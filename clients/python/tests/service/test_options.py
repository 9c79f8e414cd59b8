# SPDX-License-Identifier: Apache-2.0
"""Pass configurations and compile flags: what each does, and what is said of those that do nothing."""

import warnings

import pytest

import kiln
import kiln.language as T
from kiln.options import from_compile_flags, from_pass_configs

ACTS = {
    "tl.enable_fast_math": (True, {"fast_math": True}),
    "tl.disable_warp_specialized": (True, {"disable_warp_specialization": True}),
    "tl.disable_tma_lower": (True, {"disable_tma": True}),
    "tl.disable_wgmma": (True, {"disable_wgmma": True}),
    "tl.enable_async_copy": (False, {"disable_async_copy": True}),
    "tirx.use_async_copy": (False, {"disable_async_copy": True}),
    "tl.device_compile_flags": ("--use_fast_math --maxrregcount 96", {"fast_math": True, "max_registers": 96}),
}
ACTS["kiln.entry_name"] = ("mine", {"entry_name": "mine"})
ACTS |= {f"kiln.{limit}": (7, {limit: 7}) for limit in ("max_fragment_registers", "max_unrolled", "max_code", "max_crowding")}
INVERTED = {"tl.if_stmt_binding_inline_replayable_binds", "tl.disable_out_of_bound_warning", "tirx.enable_equiv_terms_in_cse_tir",
            "tirx.Simplify",
            "tirx.merge_static_smem", "tirx.noalias"}  # true is what they are anyway


def program(flags=None):
    @T.prim_func
    def double(A: T.Tensor((8,), "float32")):
        if flags is not None:
            T.annotate_compile_flags(flags)
        with T.Kernel(8) as bx:
            A[bx] = A[bx] * 2

    return double


def quiet(function, *args, **keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return function(*args, **keywords)


@pytest.mark.parametrize("key", [key.value for key in kiln.PassConfigKey])
def test_every_key_acts_or_is_warned_of_by_name(key):
    if key in ACTS:
        value, options = ACTS[key]
        assert quiet(from_pass_configs, {key: value}) == options
        assert quiet(from_pass_configs, {key: not value if isinstance(value, bool) else None}) == {}
        return
    if key == "tl.disable_fast_math":
        assert quiet(from_pass_configs, {key: True}) == {}
        with pytest.raises(ValueError, match="'tl.enable_fast_math': True"):
            from_pass_configs({key: False})
        with pytest.raises(ValueError, match="contradict"):
            from_pass_configs({key: True, "tl.enable_fast_math": True})
        return
    value = key not in INVERTED
    with pytest.warns(kiln.NoEffectWarning, match=f"the pass configuration {key}: {value} has no effect in Kiln: ") as said:
        assert from_pass_configs({kiln.PassConfigKey(key): value}) == {}
    assert len(said) == 1 and said[0].filename == __file__
    assert quiet(from_pass_configs, {key: None}) == {}


@pytest.mark.parametrize("key, value", [("tl.config_index_bitwidth", 32), ("tl.disable_thread_storage_sync", False), ("tl.Simplify", {}),
                                        ("tir.noalias", True),
                                        ("tl.pass_profile_threshold_ms", 0), ("cuda.kernels_output_dir", ""),
                                        ("tl.disable_out_of_bound_warning", True)])
def test_values_that_ask_for_nothing_are_silent(key, value):
    assert quiet(from_pass_configs, {key: value}) == {}


@pytest.mark.parametrize("value", [-1, 1 << 32, "7", True, 7.0])
def test_a_limit_is_a_number(value):
    with pytest.raises(ValueError, match="'kiln.max_code' is .*; it must be an int from 0"):
        from_pass_configs({"kiln.max_code": value})


@pytest.mark.parametrize("value", ["no", 2, 3.0, [], "False"])
def test_a_switch_is_on_or_off(value):
    assert from_pass_configs({"tl.enable_fast_math": 1}) == from_pass_configs({"tl.enable_fast_math": True})
    for key in ("tl.disable_tma_lower", "tl.enable_fast_math", "tir.use_async_copy"):
        with pytest.raises(ValueError, match=f"'{key.replace('tir.', 'tirx.')}' is .*; it must be True or False, or 1 or 0"):
            from_pass_configs({key: value})


@pytest.mark.parametrize("key, says", [("tl.no_such_key", "'tl.no_such_key' is not known; the keys are kiln.PassConfigKey's"),
                                       ("enable_fast_math", "'tl.enable_fast_math' is")])
def test_a_key_that_nobody_knows_is_refused(service, torch, key, says):
    with pytest.raises(ValueError, match=says):
        kiln.compile(program(), target="sm_90", pass_configs={key: 1})
    assert not service.requests


@pytest.mark.parametrize("flags, options", [
    ("--use_fast_math", {"fast_math": True}), (["-use_fast_math"], {"fast_math": True}), (["-O3", "--use_fast_math -O3"],
                                                                                          {"fast_math": True}),
    ("--maxrregcount=128", {"max_registers": 128}), (["-maxrregcount", "64"], {"max_registers": 64}), ("-O3 --fmad=true --ftz=false", {}),
    (None, {}), ([], {}),
])
def test_flags_that_can_be_followed_are(flags, options):
    assert quiet(from_compile_flags, flags) == options


@pytest.mark.parametrize("flags, says", [
    (["-DX=1", "-I", "/include", "-U__CUDA_NO_HALF_OPERATORS__"],
     "the compile flags -DX=1 -I /include -U__CUDA_NO_HALF_OPERATORS__ has no effect in Kiln: there is no CUDA source"),
    ("-lineinfo", "the compile flag -lineinfo .*calls no nvcc"), ("-arch=sm_80", "-arch=sm_80 .*target="), ("--prec-div=false",
        "all or nothing"),
    ("--ptxas-options=-v,--register-usage-level=10", "resource_usage"), ("-O1", "-O1"),
])
def test_other_flags_are_warned_of_by_name(flags, says):
    with pytest.warns(kiln.NoEffectWarning, match=says) as said:
        assert from_compile_flags(flags) == {}
    assert len(said) == 1


@pytest.mark.parametrize("flags, says", [("--fmad=false", "rounds once"), ("-maxrregcount", "takes the number"), ("--maxrregcount=many",
    "takes the number")])
def test_flags_that_would_change_results_are_refused(flags, says):
    with pytest.raises(ValueError, match=says):
        from_compile_flags(flags)


@pytest.mark.parametrize("ways", [{"compile_flags": ["--use_fast_math"]}, {"compile_flags": "--use_fast_math"},
                                  {"annotated": ["--use_fast_math"]},
                                  {"annotated": "-O3 --use_fast_math"}])
def test_flags_reach_the_compiler(service, torch, ways):
    func = program(ways.pop("annotated", None))
    quiet(kiln.compile, func, target="sm_90", **ways)
    assert service.requests[0].options == {"fast_math": True}
    service.requests.clear()
    kiln.jit(func, target="sm_90", **ways)
    assert service.requests[0].options == {"fast_math": True}


@pytest.mark.parametrize("argument, value", [("execution_backend", "cython"), ("target_host", "llvm")])
def test_parts_that_kiln_does_not_have(service, torch, argument, value):
    with pytest.warns(kiln.NoEffectWarning, match=rf"jit\({argument}='{value}'\) has no effect") as said:
        kiln.compile(program(), target="sm_90", **{argument: value})
    assert len(said) == 1 and said[0].filename == __file__
    quiet(kiln.compile, program(), target="sm_90", execution_backend="auto", target_host=None)
