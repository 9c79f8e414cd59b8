# SPDX-License-Identifier: Apache-2.0
"""What is refused: the text names the file, the line and what to use."""

import inspect
import pathlib
import re

import numpy as np
import pytest
import triton
import triton.language as tl

DAEMON = False
WIDTH = 32
SIZE = tl.constexpr(32)


@triton.jit
def helper(x):
    y = tl.inline_asm_elementwise("bar.sync 0;", "=r,r", [x], tl.int32, True, 1)  # here: Write what it computes in the language
    return y


def plain(x):
    return x


# Each kernel has a comment "here:" in the line that is refused, and what the text must hold. It is launched with a tensor of float32, one of
# int32, and a number.


@triton.jit
def block_pointer(x, i, n):
    p = tl.make_block_ptr(x, (n,), (1,), (0,), (n,), (0,))  # here: integers that are known when the kernel is compiled are needed
    tl.store(p, 1)


@triton.jit
def descriptor(x, i, n):
    d = tl.make_tensor_descriptor(x, [n], [1], [2])  # here: must have at least 16 bytes in the last dimension
    d.store([0], 1)


@triton.jit
def atomic(x, i, n):
    tl.atomic_and(x, 1.0)  # here: tl.atomic_and to float32


@triton.jit
def atomic_order(x, i, n):
    tl.atomic_add(i, 1, sem="sc")  # here: known are relaxed, acquire, release, acq_rel


@triton.jit
def none_is_less(x, i, n):
    if None < 1:  # here: compare it with `is None`
        tl.store(x, 1.0)


@triton.jit
def axis_that_is_none(x, i, n):
    tl.store(x + tl.expand_dims(tl.arange(0, 4), 3), 1.0)  # here: invalid axis 3 of tl.expand_dims; it counts from -2 to 1


@triton.jit
def mask_of_a_block(x, i, n):
    tl.store(x, tl.sum(tl.load(x, mask=tl.arange(0, 4) < n), 0))  # here: a mask of a block is given with a single pointer


@triton.jit
def python_fails(x, i, n):
    tl.store(x, tl.zeros_like(3))  # here: AttributeError


@triton.jit
def atomic_of_the_system(x, i, n):
    tl.atomic_max(x, 1.0, scope="sys")  # here: Kiln's atomics are those of one device


@triton.jit
def scan(x, i, n):
    tl.store(x, tl.cumsum(tl.load(x + tl.arange(0, 32)), 0))  # here: tl.cumsum is not part of Kiln


@triton.jit
def random(x, i, n):
    tl.store(x + tl.arange(0, 32), tl.map_elementwise(products, n, n))  # here: write what it computes in the language


@triton.jit
def method(x, i, n):
    tl.store(x, tl.load(x + tl.arange(0, 32)).cumsum(0))  # here: tl.cumsum is not part of Kiln


@triton.jit
def assembly(x, i, n):
    tl.inline_asm_elementwise("mov.b32 $0, %clock;", "=r,r", [n], tl.int32, True, 1)  # here: the special register %clock


@triton.jit
def unknown_name(x, i, n):
    tl.store(x, something)  # here: something is not defined  # noqa: F821


@triton.jit
def unknown_function(x, i, n):
    tl.store(x, tl.exponential(1.0))  # here: exponential is not part of Kiln's Triton front end


@triton.jit
def global_number(x, i, n):
    tl.store(x + tl.arange(0, WIDTH), 1.0)  # here: the global WIDTH is 32; kernels see globals that are constants: write WIDTH = tl.constexpr


@triton.jit
def python_function(x, i, n):
    tl.store(x, plain(1.0))  # here: a kernel calls function plain, which is not Triton's; decorate it with @triton.jit


@triton.jit
def in_a_call(x, i, n):
    tl.store(x, helper(tl.load(x + tl.arange(0, 32))))


@triton.jit
def breaking(x, i, n):
    for k in range(n):
        if k > 3:
            break  # here: break; make the bound of the loop the smaller one


@triton.jit
def returning_in_a_loop(x, i, n):
    for k in range(n):  # here: return inside a loop
        return


@triton.jit
def chained(x, i, n):
    if 0 < n < 5:  # here: write (a < b) & (b < c)
        tl.store(x, 1.0)


@triton.jit
def one_side(x, i, n):
    if n > 5:
        y = 1.0
    tl.store(x, y)  # here: y is assigned on one side of the if in line


@triton.jit
def two_types(x, i, n):
    if n > 5:  # here: Mismatched type for y: a value of type fp32 on one side of the if and a value of type int32 on the other
        y = 1.0
    else:
        y = 1
    tl.store(x, y)


@triton.jit
def loop_changes_type(x, i, n):
    y = 1
    for k in range(n):  # here: y is a value of type int32 before the loop in line
        y = y * 0.5
    tl.store(x, y)


@triton.jit
def only_in_the_loop(x, i, n):
    for k in range(n):
        y = k
    tl.store(x, y)  # here: y is assigned in the loop in line


@triton.jit
def block_condition(x, i, n):
    if tl.load(x + tl.arange(0, 32)) > 0:  # here: tl.where chooses element by element
        tl.store(x, 1.0)


@triton.jit
def runtime_size(x, i, n):
    tl.store(x + tl.arange(0, n), 1.0)  # here: make it a tl.constexpr


@triton.jit
def shapes(x, i, n):
    tl.store(x + tl.arange(0, 32), tl.arange(0, 32) + tl.arange(0, 16))  # here: blocks of shapes [32] and [16] do not fit together


@triton.jit
def half_exp(x, i, n):
    tl.store(x, tl.exp(tl.load(x).to(tl.float16)))  # here: Expected dtype fp32 or fp64 but got fp16


@triton.jit
def float_offset(x, i, n):
    tl.store(x + 0.5, 1.0)  # here: an offset of type fp32 is added to a pointer


@triton.jit
def two_pointers(x, i, n):
    tl.store(x + i, 1.0)  # here: keep offsets, and add each to its pointer


@triton.jit
def pointer_type(x, i, n):
    tl.store((x + tl.arange(0, 4)).to(tl.pointer_type(tl.int64)), 1)  # here: triton.reinterpret(tensor, dtype)


@triton.jit
def one_of_two(x, i, n):
    p = x
    q = x + 1
    for k in range(n):
        p = tl.where(k > 2, p, q)
    j = tl.where(n > 2, i, i + 1)
    tl.store(tl.where(n > 3, j, i), 1)
    tl.store(p, tl.load(p).to(tl.int32) // 0.5)  # here: // of floats; write tl.floor(a / b)


@triton.jit
def other_without_mask(x, i, n):
    tl.store(x, tl.load(x, other=0.0))  # here: other= needs mask=


@triton.jit
def block_to_one(x, i, n):
    tl.store(x, tl.arange(0, 32))  # here: a block is stored to a single pointer


@triton.jit
def dot_of_types(x, i, n):
    r = tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
    tl.store(x + r, tl.dot(tl.load(x + r), tl.load(i + r)))  # here: tl.dot of fp32 and int32; cast one of them


@triton.jit
def dot_of_shapes(x, i, n):
    a = tl.zeros((32, 16), tl.float32)
    tl.store(x, tl.sum(tl.dot(a, a)))  # here: the second dimension of the first must be the first of the second


@triton.jit
def signs(x, i, n):
    tl.store(i, tl.load(i) // tl.load(i).to(tl.uint32))  # here: because they have different signedness


@triton.jit
def negative_number(x, i, n):
    tl.store(i, tl.load(i).to(tl.uint32) + -1)  # here: the negative number -1 meets a value of uint32


@triton.jit
def indexed(x, i, n):
    v = tl.load(x + tl.arange(0, 32))
    tl.store(x, v[0])  # here: unsupported tensor index: a block is indexed with : and None alone


@triton.jit
def assigned_element(x, i, n):
    v = tl.load(x + tl.arange(0, 32))
    v[0] = 1.0  # here: memory is written by tl.store


@triton.jit
def failed_assertion(x, i, n):
    tl.static_assert(SIZE == 33, "the size")  # here: static assertion failed: the size


@triton.jit
def powers(x, i, n):
    tl.store(x, tl.load(x) ** n)  # here: write x * x, or tl.exp2(y * tl.log2(x))


@triton.jit
def endless(x, i, n):
    while True:  # here: a while loop whose condition is always True
        tl.store(x, 1.0)


@triton.jit
def lambdas(x, i, n):
    f = lambda a: a  # here: a lambda is not part of Triton's language  # noqa: E731
    tl.store(x, f(1.0))


@triton.jit
def multiplied(x, i, n):
    a = tl.zeros((32, 32), tl.float32)
    tl.store(x, a @ a)  # here: write tl.dot(a, b)


@triton.jit
def products(a, b):
    return a * b, b


@triton.jit
def reduce_of_products(x, i, n):
    tl.store(x, tl.reduce(tl.load(x + tl.arange(0, 32)), 0, products))  # here: the combining function returns 2 values, and 1 are combined


@triton.jit
def again(x):
    return again(x + 1)  # here: none may call itself


@triton.jit
def recursion(x, i, n):
    tl.store(x, again(1.0))


@triton.jit
def volatile(x, i, n):
    tl.store(x, tl.load(x.to(tl.int64).to(tl.pointer_type(tl.int8)), volatile=True))  # here: is read in words of 16 bits and more


@triton.jit
def arguments(x, i, n):
    tl.store(x, tl.load(x, masks=n > 0))  # here: tl.load: got an unexpected keyword argument 'masks'


@triton.jit
def helper_of_nothing(x):
    tl.store(x, no_such_name)  # noqa: F821


KERNELS = [f for f in list(globals().values()) if isinstance(f, triton.JITFunction) and f not in (helper, products, again, helper_of_nothing)]
AT = {"in_a_call": helper, "recursion": again}


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_refusals_name_the_line_and_what_to_use(kernel):
    with pytest.raises(triton.CompilationError) as caught:
        kernel.program(np.zeros(1024, np.float32), np.zeros(1024, np.int32), 7)
    lines, first = inspect.getsourcelines(AT.get(kernel.__name__, kernel).fn)
    (offset, wanted), = [(i, line.split("# here: ")[1].split("  # noqa")[0].strip()) for i, line in enumerate(lines) if "# here: " in line]
    text = str(caught.value)
    assert text.startswith(f"{__file__}:{first + offset}: "), text
    assert wanted in text, text
    assert lines[offset].strip() in text


def test_an_error_has_its_message_without_the_place():
    with pytest.raises(triton.CompilationError) as caught:
        helper_of_nothing.program(np.zeros(32, np.float32))
    assert "no_such_name" in caught.value.error_message and caught.value.error_message in str(caught.value)
    assert not caught.value.error_message.startswith(__file__)


@triton.jit
def plus_one(x, n: tl.constexpr, BLOCK: tl.constexpr = 32):
    tl.store(x + tl.arange(0, BLOCK), n)


X = np.zeros(64, np.float32)


@pytest.mark.parametrize("call, kind, text", [
    (lambda: plus_one(X, 1), RuntimeError, r"launch it as plus_one\[grid\]"),
    (lambda: plus_one[(1,)](X), TypeError, "missing a required argument: 'n'"),
    (lambda: plus_one[(1,)](X, 1, num_warp=4), KeyError, "Keyword argument num_warp was specified but unrecognised"),
    (lambda: plus_one[(1,)](X, 1, num_warps=3), ValueError, "must be a power of 2, from 1 to 32"),
    (lambda: plus_one[()](X, 1), ValueError, "one to three sizes"),
    (lambda: plus_one[(-1,)](X, 1), ValueError, "integers from 0 on"),
    (lambda: plus_one[(1,)](X[::-1], 1), ValueError, "negative strides"),
    (lambda: plus_one[(1,)]("x", 1), TypeError, "annotate the parameter with tl.constexpr"),
    (lambda: plus_one[(1,)](object(), 1), TypeError, "kernels take tensors, numbers, None and tuples"),
    (lambda: plus_one[(1,)](X, [1, []], {}), TypeError, "not hashable"),
    (lambda: plus_one[(1,)](X.astype(np.complex64), 1), TypeError, "argument x: .*complex64"),
    (lambda: triton.reinterpret(X, tl.float16), TypeError, "4 bytes"),
    (lambda: tl.load(X), RuntimeError, "called outside of a kernel"),
    (lambda: tl.ABSENT["float8e4b15"](X), NotImplementedError, "not part of Kiln"),
    (lambda: plus_one[(1,)](X, 1, num_stages=0), ValueError, "num_stages=0"),
    (lambda: triton.autotune([], key=[], reset_to_zero=["m"])(plus_one), ValueError, "autotune names the parameter 'm'"),
    (lambda: triton.autotune([triton.Config({"n": 1}), triton.Config({"n": 2})], key=[])(plus_one)[(1,)](X, 1), ValueError,
     "leave it out of the launch"),
    (lambda: triton.Config({}, ir_override="x"), ValueError, "ir_override"),
    (lambda: triton.compile("kernel.ttir"), TypeError, "takes an ASTSource"),
    (lambda: triton.compile(triton.compiler.ASTSource(plus_one, {"x": "fp9"}, {"n": 1})), ValueError, "fp9"),
    (lambda: triton.tools.tensor_descriptor.TensorDescriptor(X, [64], [1], [8], "one"), ValueError, "padding"),
])
def test_launches_that_are_refused(call, kind, text):
    with pytest.raises(kind, match=text):
        call()


def test_what_has_no_effect_is_warned_of():
    import kiln

    @triton.jit
    def hinted(x):
        tl.store(x, tl.load(x, eviction_policy="evict_last"))

    with pytest.warns(kiln.NoEffectWarning, match="eviction_policy='evict_last'") as caught:
        hinted.program(X)
    assert caught[0].filename == __file__
    with pytest.warns(kiln.NoEffectWarning, match="num_ctas=2"):
        plus_one.program(X, 1, num_ctas=2)
    with pytest.warns(kiln.NoEffectWarning, match="noinline"):
        triton.jit(noinline=True)(plus_one.fn)


def test_a_loop_does_not_move_a_pointer_into_another_tensor():
    @triton.jit
    def either(x, y, n):
        p = x
        for i in range(n):
            tl.store(p, 1.0)
            p = tl.where(i > 2, p, y)

    with pytest.raises(triton.CompilationError, match="a pointer that points into x and y"):
        either.program(X, X.copy(), 7)


def test_the_page_names_all_that_is_refused_by_name():
    page = pathlib.Path(__file__).resolve().parents[2] / "TRITON.md"
    table = page.read_text(encoding="utf-8").split("| --- | --- |")[1].split("\n\n")[0]
    assert set(re.findall(r"`tl\.(\w+)`(?=[^|]*\|[^|]*\|$)", table, re.MULTILINE)) == set(tl.ABSENT)


@triton.jit
def either_of(x, y, n):
    if n > 5:
        return x
    else:
        return y


@pytest.mark.parametrize("how, words", [("ternary", "Ternary expression with dynamic condition has inconsistent types"),
                                        ("call", "Return type mismatch"),
                                        ("if", "Mismatched type for p"), ("direct", "Cannot store to a constant pointer")])
def test_a_constant_pointer_stays_one(how, words):
    @triton.jit
    def kernel(x: tl.const, y, n, HOW: tl.constexpr):
        if HOW == "ternary":
            p = x if n > 5 else y
        elif HOW == "call":
            p = either_of(x, y, n)
        elif HOW == "if":
            if n > 5:
                p = x
            else:
                p = y
        else:
            p = x
        tl.store(p, 1.0)

    with pytest.raises(triton.CompilationError, match=words):
        kernel.program(X, X.copy(), 7, how)


def test_constants_have_a_type_of_their_own():
    @triton.jit
    def kernel(x, N: tl.constexpr, T: tl.constexpr):
        given: tl.constexpr = N
        tl.static_assert(N.type == given.type)
        if T is not None:
            value = N
            tl.static_assert(N.type == tl.constexpr_type(N) and value.type == T)

    for literal, element in ((10, tl.int32), (32.1, tl.float32), ((5, 6, 7), None)):
        kernel.program(X, literal, element)
