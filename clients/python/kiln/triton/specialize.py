# SPDX-License-Identifier: Apache-2.0
"""What a launch's arguments are to the compiler: classes as Triton has them. A class is a hashable thing; kernels are kept by the classes of
their arguments."""

from __future__ import annotations

import struct
import sys

from .. import target as targets
from ..remote import emulation_asked
from . import types as ty
from .blocks import Descriptor, TensorDescriptor
from .builtin import constexpr, unwrapped
from .interpret import Parameter
from .wrapped import is_wrapped, memory_of

ALIGNMENT = 16  # bytes


class TensorWrapper:
    """A tensor whose elements a kernel reads as another type: triton.reinterpret. Of a torch tensor it has what programs ask a tensor for."""

    def __init__(self, base, dtype):
        self.base, self.dtype = base, dtype

    data, device, shape = (property(lambda self, name=name: getattr(self.base, name)) for name in ("data", "device", "shape"))

    def data_ptr(self) -> int:
        return self.base.data_ptr()

    def element_size(self) -> int:
        return self.base.element_size()

    def stride(self, *dims):
        if hasattr(self.base, "stride"):
            return self.base.stride(*dims)
        steps = tuple(step // self.base.itemsize for step in self.base.strides)
        return steps[dims[0]] if dims else steps

    def copy_(self, other) -> None:
        self.base.copy_(other.base)

    def clone(self):
        return TensorWrapper(self.base.clone(), self.dtype)

    def cpu(self):
        return TensorWrapper(self.base.cpu(), self.dtype)

    def to(self, device):
        return TensorWrapper(self.base.to(device), self.dtype)

    def new_empty(self, sizes):
        return TensorWrapper(self.base.new_empty(sizes), self.dtype)

    def __str__(self):
        return f"TensorWrapper[{self.dtype}]({self.base})"


def reinterpret(tensor, dtype):
    """The tensor with elements of another Triton type of the same width, as tl.bfloat16 for the bits in a numpy array of uint16."""
    base = tensor.base if isinstance(tensor, TensorWrapper) else tensor
    if str(dtype).startswith("torch."):
        dtype = ty.of(dtype)
    width = getattr(base, "itemsize", None) or base.element_size()
    if width * 8 != max(dtype.primitive_bitwidth, 8):
        raise TypeError(f"the tensor's elements have {width} bytes, and those of {dtype} have {max(dtype.primitive_bitwidth // 8, 1)}; view it with "
                        "elements of that width first")
    return TensorWrapper(base, dtype)


def is_tensor(x) -> bool:
    """numpy's scalars have the interface of arrays, and are numbers here."""
    if isinstance(x, TensorWrapper) or hasattr(x, "data_ptr") or hasattr(x, "__cuda_array_interface__"):
        return True
    return hasattr(x, "__array_interface__") and not isinstance(x, sys.modules["numpy"].generic)


class Flat:
    """A tensor as kernels see it: all ``count`` elements from its first to the end of its storage. ``value`` goes to the launch."""

    __slots__ = ("value", "address", "end", "count")

    def __init__(self, value, address: int, end: int, count: int):
        self.value, self.address, self.end, self.count = value, address, end, count

    def overlaps(self, other: "Flat") -> bool:
        return self.address < other.end and other.address < self.end


def flat(name: str, tensor) -> Flat:
    if isinstance(tensor, TensorWrapper):
        tensor = _viewed(tensor.base, tensor.dtype)
    if hasattr(tensor, "data_ptr"):
        return _flat_torch(tensor)
    if hasattr(tensor, "__array_interface__"):
        return _flat_numpy(name, tensor)
    raise TypeError(f"argument {name}: a torch tensor or a numpy array is needed, not {type(tensor).__name__}")


def storage_of(tensor) -> tuple:
    """The addresses of the first byte of a tensor's storage, and of the one after its last; of an address alone, all that there are."""
    if hasattr(tensor, "untyped_storage"):
        storage = tensor.untyped_storage()
        begin = storage.data_ptr()
        return begin, begin + storage.nbytes()
    root = tensor.base if isinstance(tensor, TensorWrapper) else tensor
    if hasattr(root, "untyped_storage"):
        return storage_of(root)
    if not hasattr(root, "__array_interface__"):
        return 0, 1 << 64
    root = sys.modules["numpy"].asarray(root)
    while isinstance(root.base, sys.modules["numpy"].ndarray):
        root = root.base
    return _bounds(root)


def _viewed(tensor, element: ty.dtype):
    """The same memory with the elements that a kernel reads; as it is where numpy or torch has no such type. A torch without it has numpy read
    the host's memory, where unsigned integers hold the bits of what numpy does not have either."""
    name = str(element.kiln)
    if hasattr(tensor, "data_ptr"):
        dtype = getattr(sys.modules["torch"], name, None)
        if dtype is None and tensor.device.type == "cpu":
            return _viewed(_memory_of(tensor), element)
        return tensor if dtype is None or tensor.dtype == dtype else tensor.view(dtype)
    numpy = sys.modules["numpy"]
    dtype = getattr(numpy, name if name != "bool" else "bool_", getattr(numpy, f"uint{element.primitive_bitwidth}", None))
    return tensor if dtype is None or tensor.dtype == dtype or not hasattr(tensor, "view") else tensor.view(dtype)


def seen_as(memory, element: ty.dtype):
    """What a launch takes for an argument, as elements of another width: as many as there are whole ones."""
    width = memory.element_size() if hasattr(memory, "element_size") else memory.itemsize
    count = len(memory) * width // element.itemsize * element.itemsize // width
    return _viewed(memory[:count], element)


def _memory_of(tensor):
    """A torch tensor of the host as an array, up to the end of its storage."""
    return _flat_torch(tensor).value.detach().numpy()


def _flat_torch(tensor) -> Flat:
    width = tensor.element_size()
    count = tensor.untyped_storage().nbytes() // width - tensor.storage_offset()
    view = tensor if tensor.dim() == 1 and tensor.shape[0] == count and tensor.stride(0) == 1 else tensor.as_strided((count,), (1,))
    address = tensor.data_ptr()
    return Flat(view, address, address + count * width, count)


def _flat_numpy(name: str, array) -> Flat:
    import numpy

    array = numpy.asarray(array)
    if any(stride < 0 for stride in array.strides):
        raise ValueError(f"argument {name}: an array with negative strides; its pointer is in the middle of its memory. Pass a copy of it")
    root = array
    while isinstance(root.base, numpy.ndarray):
        root = root.base
    address = array.__array_interface__["data"][0]
    first, stop = _bounds(root)
    count = max(stop - address, 0) // array.itemsize if array.size or address else 0
    if array.ndim == 1 and count == array.shape[0] and array.flags.c_contiguous:
        return Flat(array, address, stop, count)
    return Flat(_rest(array, root, address, count), address, address + count * array.itemsize, count)


def _bounds(array):
    """The addresses of an array's first byte, and of the one after its last."""
    first = last = array.__array_interface__["data"][0]
    if array.size == 0:
        return first, first
    for extent, stride in zip(array.shape, array.strides):
        first, last = first + min(0, (extent - 1) * stride), last + max(0, (extent - 1) * stride)
    return first, last + array.itemsize


def _rest(array, root, address: int, count: int):
    """The memory from an address on. The caller's array keeps it alive for the launch."""
    import ctypes

    import numpy

    result = numpy.frombuffer((ctypes.c_char * (count * array.itemsize)).from_address(address) if count else b"", array.dtype)
    if count and not (array.flags.writeable and root.flags.writeable):
        result.flags.writeable = False
    return result


def element_of(name: str, tensor) -> ty.dtype:
    if isinstance(tensor, TensorWrapper):
        return tensor.dtype
    dtype = tensor.dtype
    try:
        return ty.of(getattr(dtype, "name", dtype) if not str(dtype).startswith("torch.") else dtype)
    except TypeError as problem:
        raise TypeError(f"argument {name}: {problem}") from None


def class_of_number(x, by_value: bool, by_alignment: bool):
    """("=", value) of what is compiled in; else the type, and what divides it."""
    if isinstance(x, bool):
        return ("u1", 1)
    if isinstance(x, float):
        return ("fp32", 1)
    if x == 1 and by_value:
        return ("=", 1)
    if -(1 << 31) <= x < 1 << 31:
        kind = "i32"
    elif -(1 << 63) <= x < 1 << 63:
        kind = "i64"
    elif 0 <= x < 1 << 64:
        kind = "u64"
    else:
        raise OverflowError(f"the argument {x} needs more than 64 bits")
    return (kind, ALIGNMENT if by_value and by_alignment and x % ALIGNMENT == 0 else 1)


_NAMED = {dtype.name: dtype for dtype in ty.dtype._known.values()}
_ELEMENTS = {"u1": ty.int1, "fp16": ty.float16, "bf16": ty.bfloat16, "fp32": ty.float32, "fp64": ty.float64,
             **{f"{sign}{bits}": _NAMED[f"{long}{bits}"] for sign, long in (("i", "int"), ("u", "uint")) for bits in (8, 16, 32, 64)}}
_ANNOTATIONS = {"bool": "u1", "int1": "u1", "i1": "u1", "int": "i32", "float": "fp32", "half": "fp16", "double": "fp64",
                **{name: name for name in _ELEMENTS}, **{str(element.kiln): name for name, element in _ELEMENTS.items() if name != "u1"}}


def annotated_type(annotation) -> str:
    """The type that an annotation gives a number, as "i64" of tl.int64, "tl.int64" or int; "" of one that says nothing."""
    if isinstance(annotation, ty.dtype):
        return "u1" if annotation.is_bool() else _ANNOTATIONS.get(str(annotation.kiln), "")
    text = annotation if isinstance(annotation, str) else annotation.__name__ if isinstance(annotation, type) else ""
    return _ANNOTATIONS.get(text.strip().removeprefix("tl."), "")


def annotated_element(annotation):
    """The element type that an annotation gives a pointer, as tl.float16 of "*fp16" or tl.pointer_type(tl.float16); else None."""
    if isinstance(annotation, ty.pointer_type):
        return annotation.element_ty
    if not isinstance(annotation, str) or "*" not in annotation:
        return None
    asked = annotated_type(annotation.strip().removeprefix("const ").strip().strip("*").removeprefix("k"))
    return _ELEMENTS.get(asked)


def number_of_type(name: str, x, kind: str):
    """A number as one of the type that its parameter's annotation asks for."""
    element = _ELEMENTS[kind]
    if element.is_floating():
        return float(x)
    if element.is_bool():
        return bool(x)
    low, high = element.range()
    if isinstance(x, float):
        raise TypeError(f"argument {name} is {x}, and the parameter is annotated {element}")
    if not low <= x <= high:
        raise OverflowError(f"argument {name} is {x}, and the parameter is annotated {element}, which has {low} to {high}")
    return int(x)


def class_of_signature(name: str, source, endless: bool):
    """The class of a parameter as an ASTSource names it. ``endless``: a pointer is an address alone, and what lies behind it has no end."""
    if name in source.constants:
        value = source.constants[name]
        return None if value is None else ("=", value)
    kind = source.signature.get(name)
    if kind is None:
        raise ValueError(f"ASTSource: the signature says nothing of {name}")
    if kind.startswith("*"):
        try:
            return ("*", ty.str_to_ty(kind.removeprefix("*").removeprefix("k")).name, ALIGNMENT if endless else 1)
        except KeyError:
            raise ValueError(f"ASTSource: the parameter {name} has the type {kind!r}, and no element has that") from None
    if kind not in _ELEMENTS:
        raise ValueError(f"ASTSource: the parameter {name} has the type {kind!r}; known are pointers (\"*fp32\") and {', '.join(_ELEMENTS)}")
    divisors = [value for attribute, value in source.attrs.get(name, ()) if attribute == "tt.divisibility"]
    return (kind, max(divisors, default=1))


def emulated() -> bool:
    """Whether launches go to the emulator."""
    return targets.runnable(None, emulation_asked()).startswith("emu:")


class Classes:
    """The classes of one parameter's arguments. ``read(value, run)`` gives the class, and appends what goes to the launch. ``asked``: the type
    that the parameter's annotation gives numbers, or "". ``element``: that which it gives a pointer's elements, or None."""

    def __init__(self, name: str, by_value: bool, by_alignment: bool, asked: str = "", element=None):
        self.name, self.by_value, self.by_alignment, self.asked, self.element = name, by_value, by_alignment, asked, element

    def read(self, x, run: list, within: bool = False):
        """``within``: a tuple, whose parts may be constants and functions."""
        if within and (isinstance(x, (constexpr, str, ty.dtype)) or hasattr(x, "kiln_kernel")):
            return known(unwrapped(x))
        x = unwrapped(x)
        if x is None:
            return None
        if is_tensor(x):
            x = x if self.element in (None, element_of(self.name, x)) else reinterpret(x, self.element)
            if is_wrapped(x):
                return self._wrapped(x, run)
            run.append(flat(self.name, x))
            whole = self.by_value and self.by_alignment and run[-1].count % ALIGNMENT == 0
            return ("*", element_of(self.name, x).name, ALIGNMENT if whole else 1)
        if isinstance(x, TensorDescriptor):
            parts = [self.read(part, run) for part in (x.base, tuple(x.shape), tuple(x.strides))]
            return (Descriptor, *parts, known(tuple(x.block_shape)), known(x.padding))
        if isinstance(x, (tuple, list)):
            return (type(x) if hasattr(x, "_fields") else tuple, *(self.read(part, run, True) for part in x))
        if hasattr(x, "item") and not isinstance(x, (bool, int, float)):
            x = x.item()
        if isinstance(x, (bool, int, float)):
            if self.asked and not within:
                return self._annotated(x, run)
            found = class_of_number(x, self.by_value, self.by_alignment)
            if found[0] != "=":
                run.append(x)
            return found
        if hasattr(x, "kiln_kernel") or isinstance(x, (str, ty.dtype)):
            raise TypeError(f"argument {self.name} is {x!r}; annotate the parameter with tl.constexpr")
        raise TypeError(f"argument {self.name}: kernels take tensors, numbers, None and tuples of these, not {type(x).__name__}")

    def as_compiled(self, x, found, run: list) -> None:
        """Appends what goes to the launch of a kernel that was compiled for the class ``found``."""
        if found[0] == "*":
            element = _NAMED[found[1]]
            if is_wrapped(x):
                self._wrapped(x, run, len(found) == 4)
                return
            run.append(flat(self.name, x if element_of(self.name, x) == element else reinterpret(x, element)))
        elif isinstance(found[0], type):
            for part, one in zip(x, found[1:]):
                self.as_compiled(part, one, run)
        elif found[0] not in ("=", "known", "1"):
            run.append(number_of_type(self.name, x.item() if hasattr(x, "item") else x, found[0]))

    def _wrapped(self, x, run: list, inside: bool | None = None):
        """Of an object that stands for a tensor. ``inside``: whether the kernel takes the place in its memory; None: as is needed."""
        element = element_of(self.name, x)
        memory, address, count = memory_of(self.name, x, element, emulated())
        offset = (x.data_ptr() - address) // element.itemsize
        if inside is None:
            inside = offset > 0
        elif offset and not inside:
            raise ValueError(f"argument {self.name} points into the middle of its memory, and the kernel was compiled for one that does not")
        run.append(Flat(memory, address, address + count * element.itemsize, count))
        divisor = ALIGNMENT if self.by_value and self.by_alignment and count % ALIGNMENT == 0 else 1
        if not inside:
            return ("*", element.name, divisor)
        run.append(offset)
        return ("*", element.name, divisor, "inside")

    def _annotated(self, x, run: list):
        """Of a number whose type is given."""
        x = number_of_type(self.name, x, self.asked)
        counts = self.by_value and isinstance(x, int) and self.asked != "u1"
        if counts and x == 1:
            return ("1", self.asked)
        run.append(x)
        return (self.asked, ALIGNMENT if counts and self.by_alignment and x % ALIGNMENT == 0 else 1)


def known(x):
    """The class of what is compiled in."""
    return ("known", x, frozen(x))


def constant(x):
    """What a parameter that is tl.constexpr holds; numpy's scalars are numbers."""
    x = unwrapped(x)
    return x.item() if "numpy" in sys.modules and isinstance(x, sys.modules["numpy"].generic) else x


def frozen(value):
    """A value that is compiled in as a key: 1, 1.0 and True are three."""
    if isinstance(value, (tuple, list)):
        return (type(value), *map(frozen, value))
    try:
        hash(value)
    except TypeError:
        raise TypeError(f"a tl.constexpr argument is {value!r}, which is not hashable; pass numbers, strings, types, functions or tuples") from None
    if isinstance(value, float):
        return (float, struct.pack("d", value))  # 0.0 and -0.0 are two, and NaN is one
    return (type(value), value) if isinstance(value, (bool, int)) else value


def parameter(found, const: bool = False):
    """What the interpreter makes of a class: a Parameter, a number, None or a tuple."""
    if found is None:
        return None
    if isinstance(found[0], type):
        parts = [parameter(part, const) for part in found[1:]]
        return tuple(parts) if found[0] is tuple else found[0](*parts)
    if found[0] in ("=", "known"):
        return found[1]
    if found[0] == "1":
        return Parameter(_ELEMENTS[found[1]], is_one=True)
    if found[0] == "*":
        return Parameter(ty.pointer_type(_NAMED[found[1]], is_const=const), found[2], is_inside=len(found) == 4)
    return Parameter(_ELEMENTS[found[0]], found[1])
