# SPDX-License-Identifier: Apache-2.0
"""Each argument and name that is accepted without effect is warned of at the line that asks: once, by name, with what to use."""

import pathlib
import warnings

import pytest

import kiln
import kiln.language as T

SMALL = (16, 16)


def trace(body):
    """The body in a kernel with tiles of its own; the warnings, which must be of this file and name a line."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")

        @T.prim_func
        def f(A: T.Tensor(SMALL, "float32"), n: T.int32):
            with T.Kernel(1, threads=32):
                tile, other, product = T.alloc_shared(SMALL, "float32"), T.alloc_shared(SMALL, "float32"), T.alloc_fragment(SMALL,
                    "float32")
                row = T.alloc_fragment((16,), "float32")
                body(A, n, tile, other, product, row)

        f.module
    assert all(w.filename == __file__ for w in said)
    return [(w.category, str(w.message)) for w in said]


def loops(kind, **arguments):
    def body(A, n, *_):
        for i in kind(4, **arguments):
            A[i, 0] = 1.0

    return T.macro(body)


@T.macro
def sparse_product(**arguments):
    kept, places = T.alloc_shared((16, 8), "float32"), T.alloc_shared((16, 2), "int16")
    T.gemm_sp(kept, places, T.alloc_shared(SMALL, "float32"), T.alloc_fragment(SMALL, "float32"), **arguments)


LOUD = {
    "T.copy(disable_tma=True)": lambda A, n, s, *_: T.copy(A, s, disable_tma=True),
    "T.copy(eviction_policy='evict_first')": lambda A, n, s, *_: T.copy(A, s, eviction_policy="evict_first"),
    "T.copy(prefer_instruction='sync')": lambda A, n, s, *_: T.copy(A, s, prefer_instruction="sync"),
    "T.copy(annotations={'x': 1})": lambda A, n, s, *_: T.copy(A, s, annotations={"x": 1}),
    "T.copy(loop_layout='x')": lambda A, n, s, *_: T.copy(A, s, loop_layout="x"),
    "T.gemm(k_pack=2)": lambda A, n, s, o, p, r: T.gemm(s, o, p, k_pack=2),
    "T.gemm(wg_wait=-1)": lambda A, n, s, o, p, r: T.gemm(s, o, p, wg_wait=-1),
    "T.gemm(annotations={'x': 1})": lambda A, n, s, o, p, r: T.gemm(s, o, p, annotations={"x": 1}),
    "T.gemm_sp(k_pack=2)": lambda *_: sparse_product(k_pack=2),
    "T.gemm_sp(wg_wait=-1)": lambda *_: sparse_product(wg_wait=-1),
    "T.gemm_sp(annotations={'x': 1})": lambda *_: sparse_product(annotations={"x": 1}),
    "T.reduce_sum(batch=2)": lambda A, n, s, o, p, r: T.reduce_sum(p, r, batch=2),
    "T.reduce_max(annotations={'x': 1})": lambda A, n, s, o, p, r: T.reduce_max(p, r, annotations={"x": 1}),
    "T.reduce_abssum(batch=2)": lambda A, n, s, o, p, r: T.reduce_abssum(p, r, batch=2),
    "T.reduce(batch=2)": lambda A, n, s, o, p, r: T.reduce(p, r, "sum", 1, batch=2),
    "T.atomic_add(use_tma=True)": lambda A, n, s, *_: T.atomic_add(A, s, use_tma=True),
    "T.atomic_max(annotations={'x': 1})": lambda A, n, s, *_: T.atomic_max(A, s, annotations={"x": 1}),
    "T.use_swizzle(order='column')": lambda *_: T.use_swizzle(8, order="column"),
    "T.sync_warp": lambda *_: T.sync_warp(),
    "T.likely": lambda A, n, *_: T.likely(n > 1),
    "T.annotate_layout of tile": lambda A, n, s, *_: T.annotate_layout({s: T.Layout(SMALL, lambda i, j: [i, j])}),
    "T.annotate_l2_hit_ratio": lambda A, *_: T.annotate_l2_hit_ratio({A: 0.5}),
    "T.annotate_producer_reg_dealloc": lambda *_: T.annotate_producer_reg_dealloc(24),
    "T.annotate_consumer_reg_alloc": lambda *_: T.annotate_consumer_reg_alloc(240),
    "T.no_set_max_nreg": lambda *_: T.no_set_max_nreg(),
    "T.disable_warp_group_reg_alloc": lambda *_: T.disable_warp_group_reg_alloc(),
    "T.set_max_nreg": lambda *_: T.set_max_nreg(240, 1),
    "T.inc_max_nreg": lambda *_: T.inc_max_nreg(240),
    "T.dec_max_nreg": lambda *_: T.dec_max_nreg(24),
    "T.pdl_trigger": lambda *_: T.pdl_trigger(),
    "T.pdl_sync": lambda *_: T.pdl_sync(),
    "T.serial(annotations={'x': 1})": loops(T.serial, annotations={"x": 1}),
    "T.unroll(explicit=True)": loops(T.unroll, explicit=True),
    "T.unroll(unroll_factor=2)": loops(T.unroll, unroll_factor=2),
    "T.unroll(annotations={'x': 1})": loops(T.unroll, annotations={"x": 1}),
    "T.vectorized(annotations={'x': 1})": loops(T.vectorized, annotations={"x": 1}),
    "T.Pipelined(order=[0])": loops(T.Pipelined, num_stages=2, order=[0]),
    "T.Pipelined(stage=[0])": loops(T.Pipelined, num_stages=2, stage=[0]),
    "T.Pipelined(sync=[[0]])": loops(T.Pipelined, num_stages=2, sync=[[0]]),
    "T.Pipelined(group=[[0]])": loops(T.Pipelined, num_stages=2, group=[[0]]),
    "T.Pipelined(annotations={'x': 1})": loops(T.Pipelined, num_stages=2, annotations={"x": 1}),
    "T.Parallel(loop_layout='x')": loops(T.Parallel, loop_layout="x"),
    "T.Parallel(prefer_async=True)": loops(T.Parallel, prefer_async=True),
    "T.Parallel(annotations={'x': 1})": loops(T.Parallel, annotations={"x": 1}),
}


@pytest.mark.parametrize("name", LOUD)
def test_it_is_said_once_and_by_name(name):
    said = trace(LOUD[name])
    assert len(said) == 1 and said[0][0] is kiln.NoEffectWarning, said
    what, instead = said[0][1].split(" has no effect in Kiln: ")
    assert what == name and len(instead) > 10


QUIET = [
    lambda A, n, s, o, p, r: T.copy(A, s, disable_tma=False, eviction_policy=None, coalesced_width=4, annotations=None),
    lambda A, n, s, o, p, r: T.gemm(s, o, p, policy=T.GemmWarpPolicy.FullRow, k_pack=1, wg_wait=0),
    lambda A, n, s, o, p, r: (T.reduce_sum(p, r, dim=1, batch=1), T.atomic_add(A, s, use_tma=False), T.use_swizzle(8, order="row")),
    loops(T.Pipelined, num_stages=2, order=None, annotations={}), loops(T.Pipelined, stage=[0, 1]), loops(T.Parallel, coalesced_width=2),
    loops(T.unroll, explicit=False),
]


@pytest.mark.parametrize("body", QUIET)
def test_what_asks_for_nothing_is_silent(body):
    assert trace(body) == []


def test_a_line_is_named_once():
    """By Python's own rule, so that users can filter: by line, category and text."""
    def ask():
        for _ in range(3):
            trace_quietly(LOUD["T.sync_warp"])
            trace_quietly(LOUD["T.pdl_sync"])

    def trace_quietly(body):
        @T.prim_func
        def f(A: T.Tensor((1,), "int32")):
            with T.Kernel(1):
                body()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        ask()
    assert sorted(str(w.message).split()[0] for w in said) == ["T.pdl_sync", "T.sync_warp"]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", kiln.NoEffectWarning)
        ask()
    assert not said


def test_the_line_is_that_of_the_program():
    with pytest.warns(kiln.NoEffectWarning) as said:
        @T.prim_func
        def f(A: T.Tensor((8, 8), "float32")):
            with T.Kernel(1):
                s = T.alloc_shared((8, 8), "float32")
                T.copy(A, s, disable_tma=True)  # here

    lines = pathlib.Path(__file__).read_text(encoding="utf-8").splitlines()
    assert lines[said[0].lineno - 1].endswith("# here")


def test_functions(service):
    for arguments in ({"private": True}, {"check_well_formed": False}):
        with pytest.warns(kiln.NoEffectWarning, match=rf"T.prim_func\({list(arguments)[0]}="):
            T.prim_func(**arguments)
    with pytest.raises(TypeError, match="unexpected keyword"):
        T.prim_func(no_such_thing=1)
    with pytest.raises(TypeError, match="unexpected keyword"):
        T.macro(no_such_thing=1)
    with pytest.raises(TypeError, match="return what the caller needs"):
        T.macro(hygienic=False)
    with pytest.raises(TypeError):
        trace(lambda A, n, s, *_: T.copy(A, s, None))


def test_tuning(service, torch):
    from kiln.tuning import AutoTuner, ProfileArgs

    with pytest.warns(kiln.NoEffectWarning, match=r"autotune\(cache_input_tensors="):
        kiln.autotune(kiln.jit(lambda n: None), configs=[{}], cache_input_tensors=True)
    with pytest.warns(kiln.NoEffectWarning, match="backend='cupti'"):
        ProfileArgs(backend="cupti")
    tuner = AutoTuner.from_kernel(lambda block: None, [{"block": 1}])
    with pytest.warns(kiln.NoEffectWarning, match="execution_backend='cython'"):
        tuner.set_compile_args(execution_backend="cython")
    with pytest.raises(TypeError, match="no_such_thing"):
        tuner.set_profile_args(no_such_thing=1)
    with pytest.raises(TypeError, match="no_such_thing"):
        tuner.run(no_such_thing=1)
    for arguments in ({"use_pipeline": True}, {"benchmark_multi_gpu": True}, {"benchmark_devices": [0]}, {"enable_grouped_compile": True},
                      {"group_compile_size": 3}):
        with pytest.warns(kiln.NoEffectWarning, match=rf"AutoTuner.run\({list(arguments)[0]}="), pytest.raises(Exception):
            tuner.run(**arguments)


def test_the_package_that_stands_in_for_tilelang():
    import logging

    import tilelang
    from tilelang import layout, profiler, transform
    from tilelang.utils.target import determine_target

    for function, name in ((tilelang.disable_cache, "tilelang.disable_cache"), (lambda: transform.simplify_prim_func(None),
                                                                                "simplify_prim_func"),
                           (lambda: profiler.Profiler(None).with_default_adapter(None), "Profiler.with_default_adapter"),
                           (lambda: determine_target("sm_90", return_object=True), r"determine_target\(return_object=True\)")):
        with pytest.warns(kiln.NoEffectWarning, match=f"{name} has no effect") as said:
            function()
        assert len(said) == 1 and said[0].filename == __file__
    level = logging.getLogger("kiln").level
    try:
        tilelang.set_log_level("warning")
        assert logging.getLogger("kiln").level == logging.WARNING
        tilelang.set_log_level(logging.DEBUG)
        assert logging.getLogger("kiln").level == logging.DEBUG
    finally:
        logging.getLogger("kiln").setLevel(level)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tilelang.enable_cache()
        layout.make_swizzled_layout(None)
