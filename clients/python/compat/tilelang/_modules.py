# SPDX-License-Identifier: Apache-2.0
"""Modules of TileLang of which scripts import a name or two. They are made when they are imported. A name that Kiln has is Kiln's; one that
it does not have can be imported as well, and says what to use instead where it is called."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types

from . import _absent

_GEMM = "use T.gemm; the compiler chooses the instruction"
_LAYOUTS = "the layouts of tiles are inferred"
_SOURCE = "there is no generated CUDA source to process: Kiln emits PTX"
_TILES = "Kiln chooses tile sizes with kiln.autotune and kiln.rank"

_EMITTERS = {"TensorCoreIntrinEmitter": "tilelang._emitters:TensorCoreIntrinEmitter", "TensorCoreIntrinEmitterWithLadderTransform": (_GEMM,),
             "mma_store_index_map": "tilelang._emitters:mma_store_index_map"}

_SCALARS = {name: f"kiln.language:{name}" for name in (
    "abs bitwise_and bitwise_not bitwise_or bitwise_xor cast ceil ceildiv cos erf exp exp10 exp2 floor floordiv floormod fmod "
    "if_then_else infinity isfinite isinf isnan likely log log10 log1p log2 max max_value min min_value nearbyint pow "
    "reinterpret round rsqrt shift_left shift_right sigmoid sin sqrt tan tanh trunc truncdiv truncmod").split()}

# module: {name: "module:name" of Kiln's, or ("instead",)}
_MODULES = {
    "_ffi_api": {},
    "backend": {},
    "backend.target": {"determine_target": "tilelang.utils.target:determine_target"},
    "carver.matmul_analysis": {"check_sm_version": "tilelang.carver.arch.cuda:check_sm_version"},
    "carver.roller": {name: (_TILES,) for name in ("Edge", "Hint", "OutputNode", "PrimFuncNode")},
    "carver.roller.hint": {"Hint": (_TILES,), "IntrinInfo": "tilelang.carver.templates:IntrinInfo"},
    "carver.roller.rasterization": {
        "NoRasterization": "tilelang.carver.templates:NoRasterization",
        **{name: (_TILES,) for name in ("Rasterization", "Rasterization2DColumn", "Rasterization2DRow")}},
    "carver.template": {f"{name}Template": f"tilelang.carver:{name}Template" for name in (
        "Conv", "Elementwise", "FlashAttention", "GEMV", "GeneralReduction", "Matmul")},
    "contrib": {},
    "contrib.nvcc": {name: f"tilelang._versions:{name}" for name in ("get_cuda_version", "get_target_compute_version", "parse_compute_version")},
    "cuda": {},
    "cuda.intrinsics": {**_EMITTERS, "get_swizzle_layout": "tilelang.layout:get_swizzle_layout",
                        "make_mma_swizzle_layout": "tilelang.layout:make_mma_swizzle_layout"},
    "cuda.intrinsics.layout": {},
    "cuda.intrinsics.layout.mma_layout": {"get_swizzle_layout": "tilelang.layout:get_swizzle_layout",
                                          "make_mma_swizzle_layout": "tilelang.layout:make_mma_swizzle_layout"},
    "cuda.intrinsics.macro": {},
    "cuda.intrinsics.macro.mma_macro_generator": _EMITTERS,
    "cuda.intrinsics.macro.wgmma_macro_generator": {name: (_GEMM,) for name in ("TensorCoreIntrinEmitter", "compute_gmma_descriptor")},
    "cuda.intrinsics.sparse_layout": {name: f"tilelang._sparse:{name}" for name in ("GROUP_CONFIG", "get_e_factor", "get_e_replicate_factor")},
    "cuda.language": {},
    "cuda.language.intrinsics": {
        **{name: (_GEMM,) for name in ("TCGEN05TensorCoreIntrinEmitter", "WGMMATensorCoreIntrinEmitter")}, **_EMITTERS,
        "get_swizzle_layout": "tilelang.layout:get_swizzle_layout"},
    "engine": {"lower": ("use tilelang.compile",)},
    "engine.callback": {name: (_SOURCE,) for name in ("register_cuda_postproc_callback", "register_hip_postproc_callback")},
    "engine.lower": {"lower": ("use tilelang.compile",)},
    "jit": {"jit": "tilelang:jit", "compile": "tilelang:compile", "par_compile": "tilelang:par_compile", "JITKernel": "tilelang:JITKernel"},
    "jit.kernel": {"JITKernel": "tilelang:JITKernel"},
    "intrinsics": _EMITTERS,
    "language.dtypes": {name: f"tilelang._dtypes:{name}" for name in (
        "DType", "dtype", "_TORCH_DTYPE_TO_STR", "_all_dtypes", "is_float4", "is_float4_e2m1_unpacked", "is_float4_e2m1fn",
        "resolve_torch_storage_dtype")},
    "language.eager": {},
    "language.eager.ast": {"mutate": ("functions are traced; T.prim_func and tilelang.jit do it",)},
    "language.tir": {**_SCALARS, "prim_func": "kiln.language:prim_func", "macro": "kiln.language:macro"},
    "language.tir.entry": {"prim_func": "kiln.language:prim_func", "macro": "kiln.language:macro"},
    "language.tir.ir": {**_SCALARS, "Shuffle": "kiln.language:Shuffle", "extract_lane": "kiln.language:extract_lane",
                        "_VALID_CAST_ROUNDING_MODES": "kiln.language.rounding:CAST_ROUNDING_MODES"},
    "language.tir.op": _SCALARS,
    "layout.swizzle": {
        f"make_{part}_bank_swizzled_layout": f"tilelang.layout:make_{part}_bank_swizzled_layout"
        for part in ("full", "half", "quarter")},
    "rocm": {},
    "rocm.target": {name: f"tilelang._versions:{name}" for name in ("check_hip_availability", "target_is_gfx950")},
    "transform.simplify": {"apply_simplify": "tilelang.transform:apply_simplify", "simplify_prim_func": "tilelang.transform:simplify_prim_func"},
    "tvm.script": {},
    "tvm.script.ir_builder": {},
    "tvm.script.ir_builder.base": {"IRBuilderFrame": "tilelang.tvm:IRBuilderFrame"},
    "utils.language": {"to_buffer_region": ("index the buffer: A[i : i + n, j]",)},
}
_PREFIX = __name__.rpartition(".")[0] + "."


def _value(module: str, name: str):
    given = _MODULES[module][name]
    if isinstance(given, tuple):
        return _absent.refused(f"{_PREFIX}{module}.{name}", given[0])
    home, _, attribute = given.partition(":")
    return getattr(importlib.import_module(home), attribute)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes the modules of the table. tilelang.language is kiln.language, and so are the modules in it: else there would be two of each."""

    def find_spec(self, name, path=None, target=None):
        if name.startswith(_PREFIX) and (name.removeprefix(_PREFIX) in _MODULES or self._of_the_language(name)):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    @staticmethod
    def _of_the_language(name):
        part = name.removeprefix(_PREFIX + "language.")
        return part != name and "." not in part and importlib.util.find_spec("kiln.language." + part) is not None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        name = module.__name__.removeprefix(_PREFIX)
        if name not in _MODULES:
            sys.modules[module.__name__] = importlib.import_module("kiln." + name)
            return
        names = _MODULES[name]
        absent = _absent.getter(module.__name__)

        def __getattr__(attribute):
            if attribute not in names:
                return absent(attribute)
            module.__dict__[attribute] = value = _value(name, attribute)
            return value

        module.__dict__.update(__getattr__=__getattr__, __all__=list(names))


class _Alias(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """``import tvm`` and ``import tvm.tirx``, where no TVM is installed: the modules of tilelang.tvm."""

    def find_spec(self, name, path=None, target=None):
        if name != "tvm" and not name.startswith("tvm."):
            return None
        ours = sys.modules.get("tvm") is sys.modules.get(_PREFIX + "tvm", self)
        if not ours and (name != "tvm" or importlib.machinery.PathFinder.find_spec(name)):
            return None
        try:
            importlib.import_module(_PREFIX + name)
        except ModuleNotFoundError:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return types.ModuleType(spec.name)

    def exec_module(self, module):
        sys.modules[module.__name__] = sys.modules[_PREFIX + module.__name__]


def install(keep_attribute) -> None:
    """Lets them be imported. ``keep_attribute``: modules whose name in the package means something else, as the decorator ``jit``."""
    sys.meta_path[:0] = [_Finder(), _Alias()]
    package = sys.modules[_PREFIX[:-1]]
    for name in keep_attribute:
        value = getattr(package, name)
        importlib.import_module(_PREFIX + name)
        setattr(package, name, value)
