# SPDX-License-Identifier: Apache-2.0
"""Types of Triton: of elements (``dtype``), of pointers, and of blocks of either."""

from __future__ import annotations

from dataclasses import dataclass

from ..language.dtypes import DType, as_dtype

BOOL, INT, FLOAT = 0, 1, 2  # kinds, the lower first


class dtype:
    """A type of elements, as ``tl.float32``. ``str`` of it is Triton's name, "fp32". ``kiln``: the tile language's."""

    _known: dict = {}

    def __new__(cls, name: str, *described):
        """By Triton's name alone, the one there is."""
        if described:
            return super().__new__(cls)
        return next(known for known in cls._known.values() if known.name == name)

    def __init__(self, name: str, kiln: str = "", bits: int = 0, kind: int = 0, signed: bool = True):
        if not kiln:
            return
        self.name, self.kiln, self.primitive_bitwidth, self.kind, self.signed = name, as_dtype(kiln), bits, kind, signed
        dtype._known[kiln] = self

    scalar = property(lambda self: self)
    shape = ()
    int_bitwidth = property(lambda self: self.primitive_bitwidth)
    itemsize = property(lambda self: max(self.primitive_bitwidth // 8, 1))

    def is_floating(self): return self.kind == FLOAT
    def is_int(self): return self.kind != FLOAT
    def is_bool(self): return self.kind == BOOL
    def is_int_signed(self): return self.kind == INT and self.signed
    def is_int_unsigned(self): return self.kind == BOOL or self.kind == INT and not self.signed
    def is_standard_floating(self): return self.kind == FLOAT and self.primitive_bitwidth >= 16
    def is_fp8(self): return self.kind == FLOAT and self.primitive_bitwidth == 8
    def is_fp16(self): return self.name == "fp16"
    def is_bf16(self): return self.name == "bf16"
    def is_fp32(self): return self.name == "fp32"
    def is_fp64(self): return self.name == "fp64"
    def is_int1(self): return self.name == "int1"
    def is_int8(self): return self.name == "int8"
    def is_int16(self): return self.name == "int16"
    def is_int32(self): return self.name == "int32"
    def is_int64(self): return self.name == "int64"
    def is_uint8(self): return self.name == "uint8"
    def is_uint16(self): return self.name == "uint16"
    def is_uint32(self): return self.name == "uint32"
    def is_uint64(self): return self.name == "uint64"
    def is_ptr(self): return False
    def is_block(self): return False
    def is_dtype(self): return True

    @property
    def fp_mantissa_width(self) -> int:
        return {"fp16": 10, "bf16": 7, "fp32": 23, "fp64": 52, "fp8e4nv": 3, "fp8e4b8": 3, "fp8e5": 2, "fp8e5b16": 2}[self.name]

    @property
    def exponent_bias(self) -> int:
        return {"fp16": 15, "bf16": 127, "fp32": 127, "fp64": 1023, "fp8e4nv": 7, "fp8e4b8": 8, "fp8e5": 15, "fp8e5b16": 16}[self.name]

    def range(self) -> tuple:
        """The least and the largest integer of an integer type."""
        bits = self.primitive_bitwidth
        return (-1 << (bits - 1), (1 << (bits - 1)) - 1) if self.is_int_signed() else (0, (1 << bits) - 1)

    def __reduce__(self):
        return _named, (str(self.kiln),)

    def __repr__(self):
        return f"triton.language.{self.name if self.is_bool() or self.is_fp8() else self.kiln}"

    def __str__(self):
        return self.name


def _named(kiln: str) -> dtype:
    return dtype._known[kiln]


int1 = dtype("int1", "bool", 1, BOOL)
int8, int16, int32, int64 = (dtype(f"int{n}", f"int{n}", n, INT) for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (dtype(f"uint{n}", f"uint{n}", n, INT, False) for n in (8, 16, 32, 64))
float16, bfloat16 = dtype("fp16", "float16", 16, FLOAT), dtype("bf16", "bfloat16", 16, FLOAT)
float32, float64 = dtype("fp32", "float32", 32, FLOAT), dtype("fp64", "float64", 64, FLOAT)
float8e4nv, float8e5 = dtype("fp8e4nv", "float8_e4m3fn", 8, FLOAT), dtype("fp8e5", "float8_e5m2", 8, FLOAT)
float8e4b8, float8e5b16 = dtype("fp8e4b8", "float8_e4m3fnuz", 8, FLOAT), dtype("fp8e5b16", "float8_e5m2fnuz", 8, FLOAT)


dtype.SINT_TYPES, dtype.UINT_TYPES = ["int8", "int16", "int32", "int64"], ["int1", "uint8", "uint16", "uint32", "uint64"]
dtype.FP_TYPES = ["fp8e4b8", "fp8e4nv", "fp8e5", "fp8e5b16", "fp16", "bf16", "fp32", "fp64"]
dtype.STANDARD_FP_TYPES = ["fp16", "bf16", "fp32", "fp64"]


def str_to_ty(name: str, c=None):
    """The type that Triton calls so: "fp32", "*fp32", "i32", "u8". ``c`` is its compiler's context, which nothing needs here."""
    if name.startswith("*"):
        return pointer_type(str_to_ty(name.removeprefix("*").removeprefix("k")), is_const=name.startswith("*k"))
    long = {"i1": "int1", "u1": "int1"}
    for bits in (8, 16, 32, 64):
        long.update({f"i{bits}": f"int{bits}", f"u{bits}": f"uint{bits}"})
    known = {element.name: element for element in dtype._known.values()}
    return known[long.get(name, name)]


def of(kiln) -> dtype:
    """Triton's type for a type of the tile language, torch or numpy. TypeError where it has none."""
    if isinstance(kiln, dtype):
        return kiln
    name = str(as_dtype(kiln))
    if name not in dtype._known:
        raise TypeError(f"Triton has no element type for {kiln!r}; pass the tensor as integers of that width")
    return dtype._known[name]


@dataclass(frozen=True)
class pointer_type:
    """``*fp32``: the address of an element."""

    element_ty: dtype
    address_space: int = 1
    is_const: bool = False

    name = property(lambda self: f"*{self.element_ty}")
    scalar = property(lambda self: self)
    shape = ()
    primitive_bitwidth = 64

    def is_ptr(self): return True
    def is_block(self): return False
    def is_floating(self): return False
    def is_int(self): return False
    def is_bool(self): return False
    def is_fp8(self): return False

    def __str__(self):
        return self.name


@dataclass(frozen=True)
class block_type:
    """A block of elements or pointers of one type: what ``x.type`` gives."""

    element_ty: object
    shape: tuple

    scalar = property(lambda self: self.element_ty)
    name = property(str)

    def is_block(self): return True
    def is_ptr(self): return False

    def __getattr__(self, name):
        if name.startswith("is_"):
            return getattr(self.element_ty, name)
        raise AttributeError(name)

    def __str__(self):
        return f"<{', '.join(map(str, self.shape))}, {self.element_ty}>" if self.shape else str(self.element_ty)


pi32_t = pointer_type(int32)


def kiln_of(element) -> DType:
    """The type of the expressions that stand for an element; a pointer is the offset from its argument's."""
    return as_dtype("int64") if element.is_ptr() else element.kiln
