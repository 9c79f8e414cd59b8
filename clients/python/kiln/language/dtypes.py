# SPDX-License-Identifier: Apache-2.0
"""Element types. A DType is a string (its canonical name), so it prints, compares and pickles as one, and it is callable:
``T.float16(x)`` casts ``x`` or makes a constant."""

from __future__ import annotations

import numbers


class DType(str):
    """One element type. It is a string, its canonical name: ``T.DType("half") is T.float16``. Called, it casts: ``T.float16(x)``.
    That of a vector, as ``T.float32x2``, is called with a value for each lane; a T.alloc_var may be of it, and T.extract_lane reads a lane.
    Buffers have elements of one number. An integer type takes a number's last bits: ``T.uint8(-1)`` is 255 and ``T.int8(200)`` is -56; a number
    of more bits than the type has is warned of.
    Shapes: called with a scalar, or as many as it has lanes. Dtypes: the table of this page lists all types and their other names. Targets:
    all. Where a target has no instructions for a type, Kiln computes with a wider one. Errors: TypeError for a name that is no dtype, and for
    another number of values."""

    __slots__ = ("wire", "bits", "kind", "lanes")
    _known: dict[str, "DType"] = {}

    def __new__(cls, name):
        return as_dtype(name)

    def __call__(self, *values):
        from . import expr

        if self.lanes > 1:
            from .lanes import vector

            return vector(self, values or (0,))
        if not values:
            return expr.Var("LET", self, str(self), for_let=True).expr
        (value,) = values
        if self.loses_bits_of(value):
            from .. import notices

            notices.warn(f"T.{self}({value}): {self} has no such number: of its bits the last {self.bits} are kept; use a wider type, or T.cast(…) "
                         "where that is meant")
        return expr.cast(value, self)

    def loses_bits_of(self, number) -> bool:
        """Whether it is an integer of more bits than the type's numbers have; a negative one may stand for an unsigned
        one of its bits, and the other way round."""
        return isinstance(number, numbers.Integral) and self.kind in ("i", "u") and not -(1 << self.bits >> 1) <= number < 1 << self.bits

    def __getnewargs__(self):
        return (str(self),)

    @property
    def bytes(self) -> int:
        return (self.bits + 7) // 8

    itemsize = bytes

    @property
    def element(self) -> "DType":
        """Of a vector, the type of its lanes; else the type."""
        return self if self.lanes == 1 else DType._known[self.rpartition("x")[0]]

    @property
    def stored(self) -> "DType":
        """The type of the IR whose elements have its bits."""
        return DType._known["uint8"] if self == "float8_e8m0fnu" else self

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_int(self) -> bool:
        return self.kind in "iu"

    @property
    def type_code(self) -> int:
        """DLPack's number for the kind of type; 131 for float4_e2m1_unpacked, which is TileLang's own and has none there."""
        if self == _UNPACKED:
            return 131
        return _CODES.get(str(self.element), {"i": 0, "u": 1, "f": 2, "b": 6}[self.kind])

    def is_float4_e2m1fn(self) -> bool:
        return self.element == "float4_e2m1fn"

    def is_float4_e2m1_unpacked(self) -> bool:
        return self == _UNPACKED

    def is_float4(self) -> bool:
        return self.is_float4_e2m1fn() or self.is_float4_e2m1_unpacked()

    def as_torch(self):
        """The torch dtype that holds elements of this type."""
        import torch

        name = {"tfloat32": "float32", "int4": "int8", "uint4": "uint8"}.get(str(self), str(self))
        if self in ("float4_e2m1fn", "float4_e2m1fnx2"):  # torch has pairs of them
            name = "float4_e2m1fn_x2" if hasattr(torch, "float4_e2m1fn_x2") else "int8"
        if not hasattr(torch, name):
            raise TypeError(f"this release of torch ({torch.__version__}) has no dtype for {self}")
        return getattr(torch, name)


def _define(name: str, wire: str, bits: int, kind: str, lanes: int = 1) -> DType:
    dtype = str.__new__(DType, name)
    dtype.wire, dtype.bits, dtype.kind, dtype.lanes = wire, bits, kind, lanes
    DType._known[name] = dtype
    return dtype


_ROWS = (
    # name, DType in ir.proto ("": no such type there), bits, kind
    ("bool", "BOOL", 8, "b"),
    ("int4", "I4", 4, "i"),
    ("int8", "I8", 8, "i"),
    ("int16", "I16", 16, "i"),
    ("int32", "I32", 32, "i"),
    ("int64", "I64", 64, "i"),
    ("uint4", "U4", 4, "u"),
    ("uint8", "U8", 8, "u"),
    ("uint16", "U16", 16, "u"),
    ("uint32", "U32", 32, "u"),
    ("uint64", "U64", 64, "u"),
    ("float16", "F16", 16, "f"),
    ("bfloat16", "BF16", 16, "f"),
    ("tfloat32", "TF32", 32, "f"),
    ("float32", "F32", 32, "f"),
    ("float64", "F64", 64, "f"),
    ("float8_e4m3fn", "F8E4M3", 8, "f"),
    ("float8_e5m2", "F8E5M2", 8, "f"),
    ("float8_e4m3fnuz", "F8E4M3FNUZ", 8, "f"),
    ("float8_e5m2fnuz", "F8E5M2FNUZ", 8, "f"),
    ("float8_e3m4", "", 8, "f"),
    ("float8_e4m3b11fnuz", "", 8, "f"),
    ("float8_e8m0fnu", "", 8, "f"),
    ("float6_e2m3fn", "", 6, "f"),
    ("float6_e3m2fn", "", 6, "f"),
    ("float4_e2m1fn", "F4E2M1", 4, "f"),
)
for _row in _ROWS:
    _define(*_row)

# Vectors: of values that programs pass around, and of T.alloc_var. A buffer of them is refused.
for _name, _, _bits, _kind in _ROWS:
    if _name != "tfloat32":
        for _lanes in (2, 4, 8, 16, 32, 64):
            _define(f"{_name}x{_lanes}", "", _bits * _lanes, _kind, _lanes)

# Four bits in a byte each, as Blackwell's copies leave them in shared memory. Programs may name it; nothing here has elements of it.
_UNPACKED = "custom[float4_e2m1_unpacked]8"
_define(_UNPACKED, "", 8, "f")

_CODES = {"bfloat16": 4, "float8_e3m4": 7, "float8_e4m3b11fnuz": 9, "float8_e4m3fn": 10, "float8_e4m3fnuz": 11, "float8_e5m2": 12,
          "float8_e5m2fnuz": 13, "float8_e8m0fnu": 14, "float6_e2m3fn": 15, "float6_e3m2fn": 16, "float4_e2m1fn": 17}

_ALIASES = {
    "float4_e2m1_unpacked": _UNPACKED,
    "short": "int16",
    "int": "int32",
    "uint": "uint32",
    "long": "int64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "float8_e4m3": "float8_e4m3fn",
    "tf32": "tfloat32",
    "bf16": "bfloat16",
    "boolean": "bool",
}


def as_dtype(value) -> DType:
    """A T.DType from a T.DType, its name, or a dtype of torch, numpy or Python (bool, int and float mean bool, int32 and float32).
    Shapes: none. Dtypes: all. Targets: all. Errors: TypeError for what is no dtype."""
    if isinstance(value, DType):
        return value
    if getattr(value, "is_pointer", False):
        return int64
    if isinstance(value, type):
        name = {bool: "bool", int: "int32", float: "float32"}.get(value) or value.__name__
    else:
        name = str(value)
    name = name.removeprefix("torch.").removeprefix("numpy.")
    name = _ALIASES.get(name, name).replace("_x", "x")
    dtype = DType._known.get(name)
    if dtype is None:
        raise TypeError(f"{value!r} is not a dtype that Kiln knows; known: {', '.join(row[0] for row in _ROWS)}")
    return dtype


dtype = DType  # TileLang's name for the class


def is_dtype_like(value) -> bool:
    try:
        as_dtype(value)
    except TypeError:
        return False
    return True


bool_ = DType._known["bool"]
int8 = DType._known["int8"]
int32 = DType._known["int32"]
int64 = DType._known["int64"]
uint8 = DType._known["uint8"]
uint32 = DType._known["uint32"]
uint64 = DType._known["uint64"]
float16 = DType._known["float16"]
bfloat16 = DType._known["bfloat16"]
float32 = DType._known["float32"]
float64 = DType._known["float64"]

# What `from dtypes import *` gives to the language: T.float16, T.half, …
NAMES = {**DType._known, **{alias: DType._known[name] for alias, name in _ALIASES.items()}}


def is_beyond(value) -> bool:
    """Whether it is an integer of Python or numpy that int64 has no number for."""
    return isinstance(value, numbers.Integral) and not -(1 << 63) <= value < 1 << 63


def of_number(value) -> DType:
    """Of a Python number for which nothing says another: an int's is int32 (int64 where needed), a float's float32, a bool's bool."""
    if isinstance(value, bool):
        return bool_
    if is_beyond(value):
        raise OverflowError(f"{value} is no number of int64, the widest type that an integer gets here; give it a type, as T.uint64(…)")
    if isinstance(value, int):
        return int32 if -(1 << 31) <= value < 1 << 31 else int64
    return float32


def promote(a: DType, b: DType) -> DType:
    """The type in which ``a op b`` is computed: an integer follows a float, the narrower follows the wider, and of a signed
    and an unsigned integer of one width the result is unsigned. Two different floats of one width meet in float32, where scales and other
    types meet, too."""
    if a == b:
        return a
    if "float8_e8m0fnu" in (a, b):
        return promote(*(float32 if t == "float8_e8m0fnu" else t for t in (a, b)))
    if a.kind == "b":
        return b
    if b.kind == "b":
        return a
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.bits != b.bits:
        return a if a.bits > b.bits else b
    if a.is_float:
        return float32
    return a if a.kind == "u" else b
