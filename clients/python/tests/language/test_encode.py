# SPDX-License-Identifier: Apache-2.0
"""The bytes: operands before their users, one location for each statement, equal programs equal bytes."""

import pathlib
import subprocess
import sys

import pytest

import kiln.language as T
from kiln import _proto
from kiln.examples.programs import PROGRAMS
from kiln.language.encode import EncodeError


def statements(block):
    """In preorder."""
    for stmt in block.stmts:
        yield stmt
        op = getattr(stmt, stmt.WhichOneof("op"))
        for name in ("body", "then_body", "else_body"):
            if any(f.name == name for f in op.DESCRIPTOR.fields):
                yield from statements(getattr(op, name))


@pytest.mark.parametrize("name", PROGRAMS)
def test_modules_are_well_formed(name):
    module = PROGRAMS[name]().module
    load, var = (_proto.messages().enums["ExprOp"].values_by_name[n].number for n in ("LOAD", "VAR"))
    for index, expr in enumerate(module.exprs):
        assert expr.op and expr.dtype and all(a < index for a in expr.args)
        if expr.op == load:
            buffer = module.buffers[expr.ref]
            assert len(expr.args) == len(buffer.shape) and expr.dtype == buffer.dtype
        if expr.op == var:
            assert module.vars[expr.ref].dtype == expr.dtype
    stmts = [s for kernel in module.kernels for s in statements(kernel.body)]
    assert len(module.debug.locations) == len(stmts)
    assert all(place.line > 0 for place in module.debug.locations)
    fields = _proto.messages().Stmt.DESCRIPTOR.fields_by_name
    assert dict(module.op_names) == {fields[s.WhichOneof("op")].number: s.WhichOneof("op") for s in stmts}
    assert len(module.debug.var_names) == len(module.vars) and len(module.debug.buffer_names) == len(module.buffers)
    assert len({e.SerializeToString() for e in module.exprs}) == len(module.exprs), "an expression is written twice"
    assert list(module.outputs) == [len(module.params) - 1]


@pytest.mark.parametrize("name", ["attention_f16_causal", "gemm_bf16_symbolic_bias_relu"])
def test_equal_programs_have_equal_bytes_in_every_process(name):
    script = f"from kiln.examples.programs import PROGRAMS; import sys; sys.stdout.buffer.write(PROGRAMS[{name!r}]().serialized)"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, env=environment()).stdout
    assert other == PROGRAMS[name]().serialized == PROGRAMS[name]().serialized


def environment():
    import os

    import kiln

    path = os.pathsep.join([str(pathlib.Path(kiln.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "7"}


def test_locations_are_the_lines_of_the_statements():
    @T.prim_func
    def f(A: T.Tensor((8,), "float32")):
        with T.Kernel(1) as bx:
            for i in T.serial(8):  # loop
                A[
                    i
                ] = 1.0  # store
            T.sync_threads()  # barrier

    source = pathlib.Path(__file__).read_text(encoding="utf-8").splitlines()
    lines = [source[place.line - 1] for place in f.module.debug.locations]
    assert "# loop" in lines[0] and "A[" in lines[1] and "# barrier" in lines[2]
    assert list(f.module.debug.files) == [__file__]


def test_operands_have_one_type():
    """What ir.proto asks of expressions: operands of one type, casts written out."""
    pb = _proto.messages()
    same = {pb.enums["ExprOp"].values_by_name[n].number for n in "ADD SUB MUL DIV MIN MAX EQ NE LT LE GT GE FLOOR_DIV FLOOR_MOD".split()}
    for make in PROGRAMS.values():
        module = make().module
        for expr in module.exprs:
            if expr.op in same:
                assert len({module.exprs[a].dtype for a in expr.args}) == 1
        for kernel in module.kernels:
            for stmt in statements(kernel.body):
                if stmt.HasField("store"):
                    assert module.exprs[stmt.store.value].dtype == module.buffers[stmt.store.buffer].dtype
                if stmt.HasField("fill"):
                    assert module.exprs[stmt.fill.value].dtype == module.buffers[stmt.fill.dst.buffer].dtype


def test_a_deep_expression_needs_no_deep_stack():
    @T.prim_func
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1) as bx:
            A[0] = sum_of(A, 5000)

    assert len(f.module.exprs) > 5000


def sum_of(A, count):
    total = A[1]
    for step in range(count):
        total = (total + step) * A[1]
    return total


@pytest.mark.filterwarnings("ignore:x is bound again")
def test_values_that_grow_are_kept_in_variables():
    @T.prim_func
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(8) as bx:
            x = bx + 1
            for _ in [0] * 40:
                x = x * x + x
            A[bx] = x

    assert 5 < len(f.module.exprs) < 200


def test_what_cannot_be_written_is_named():
    with pytest.raises(EncodeError, match="float6_e2m3fn is not supported"):
        @T.prim_func
        def f(A: T.Tensor((8,), "float6_e2m3fn")):
            with T.Kernel(1) as bx:
                T.sync_threads()

        f.module
    with pytest.raises(EncodeError, match="launches no kernel"):
        @T.prim_func
        def g(A: T.Tensor((8,), "float32")):
            pass

        g.module


def test_strides_pads_outputs_and_scalars():
    m, s = T.dynamic("m, s")

    @T.prim_func
    def f(A: T.StridedTensor((m, 8), (s, 1), "float16"), k: T.int64, B: T.Tensor((m,), "float16")):
        with T.Kernel(m) as bx:
            T.annotate_safe_value({A: -1})
            tx = T.get_thread_binding()
            B[bx] = A[bx, tx]

    module = f.with_outputs([-1]).module
    assert [p.WhichOneof("kind") for p in module.params] == ["tensor", "scalar", "tensor"]
    assert module.buffers[0].pad_value == -1 and len(module.buffers[0].strides) == 2
    assert list(module.outputs) == [2]
    with pytest.raises(ValueError, match="out_idx 3 is outside the 3 parameters"):
        f.with_outputs(3)
