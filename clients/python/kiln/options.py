# SPDX-License-Identifier: Apache-2.0
"""Pass configurations and flags for nvcc, as scripts give them, to kiln.v1.CompileOptions. Every key acts, or has no effect and is warned
of; one that nobody knows is an error."""

from __future__ import annotations

import enum
import shlex

from . import notices


class PassConfigKey(str, enum.Enum):
    """The keys that scripts pass in ``pass_configs``. Those in ``_EFFECT`` and the ``kiln.*`` change what Kiln does; what the others control
    is inferred. ``kiln.max_fragment_registers``, ``kiln.max_unrolled``, ``kiln.max_code``, ``kiln.max_crowding``: the limits of those names;
    0 is the default. ``kiln.entry_name``: what the kernels' names begin with, as profilers show them (KILN_ENTRY_NAMES=1: the function's name)."""

    KILN_MAX_FRAGMENT_REGISTERS = "kiln.max_fragment_registers"
    KILN_MAX_UNROLLED = "kiln.max_unrolled"
    KILN_MAX_CODE = "kiln.max_code"
    KILN_MAX_CROWDING = "kiln.max_crowding"
    KILN_ENTRY_NAME = "kiln.entry_name"
    TL_SIMPLIFY = "tl.Simplify"
    TL_DISABLE_BUFFER_INIT_CHECK = "tl.disable_buffer_init_check"
    TL_DISABLE_DATA_RACE_CHECK = "tl.disable_data_race_check"
    TL_DISABLE_PRELOWER_SEMANTIC_CHECK = "tl.disable_prelower_semantic_check"
    TL_DISABLE_WARP_SPECIALIZED = "tl.disable_warp_specialized"
    TL_ENABLE_FAST_MATH = "tl.enable_fast_math"
    TL_DISABLE_FAST_MATH = "tl.disable_fast_math"
    TL_PTXAS_REGISTER_USAGE_LEVEL = "tl.ptxas_register_usage_level"
    TL_ENABLE_PTXAS_VERBOSE_OUTPUT = "tl.enable_ptxas_verbose_output"
    TL_DEVICE_COMPILE_FLAGS = "tl.device_compile_flags"
    TL_EMIT_LINE_DIRECTIVES = "tl.emit_line_directives"
    TL_CONFIG_INDEX_BITWIDTH = "tl.config_index_bitwidth"
    TL_ENABLE_REDUCER_PLAN_VERBOSE = "tl.enable_reducer_plan_verbose"
    TL_LAYOUT_COST_MODEL = "tl.layout_cost_model"
    TL_REDUCER_FORCE_BASELINE = "tl.reducer_force_baseline"
    TL_DISABLE_TMA_LOWER = "tl.disable_tma_lower"
    TL_DISABLE_SAFE_MEMORY_ACCESS = "tl.disable_safe_memory_legalize"
    TL_DISABLE_VECTORIZE_256 = "tl.disable_vectorize_256"
    TL_ENABLE_ASYNC_COPY = "tl.enable_async_copy"
    TL_ENABLE_LOWER_LDGSTG = "tl.enable_lower_ldgstg"
    TL_ENABLE_LOWER_LDGSTG_PREDICATED = "tl.enable_lower_ldgstg_predicated"
    TL_ENABLE_VECTORIZE_PLANNER_VERBOSE = "tl.enable_vectorize_planner_verbose"
    TL_DISABLE_WGMMA = "tl.disable_wgmma"
    TL_DEBUG_MERGE_SHARED_MEMORY_ALLOCATIONS = "tl.debug_merge_shared_memory_allocations"
    TL_ENABLE_AGGRESSIVE_SHARED_MEMORY_MERGE = "tl.enable_aggressive_shared_memory_merge"
    TL_DISABLE_SHARED_MEMORY_REUSE = "tl.disable_shared_memory_reuse"
    TL_DISABLE_SHUFFLE_ELECT = "tl.disable_shuffle_elect"
    TL_DISABLE_LOOP_UNSWITCHING = "tl.disable_loop_unswitching"
    TL_LOOP_UNSWITCHING_ALLOW_NON_TRIVIAL_ELSE = "tl.loop_unswitching_allow_non_trivial_else"
    TL_IF_STMT_BINDING_INLINE_REPLAYABLE_BINDS = "tl.if_stmt_binding_inline_replayable_binds"
    TL_DISABLE_THREAD_STORAGE_SYNC = "tl.disable_thread_storage_sync"
    TL_FORCE_LET_INLINE = "tl.force_let_inline"
    TL_AST_PRINT_ENABLE = "tl.ast_print_enable"
    TL_LAYOUT_VISUALIZATION_ENABLE = "tl.layout_visualization_enable"
    TL_LAYOUT_VISUALIZATION_FORMATS = "tl.layout_visualization_formats"
    TL_STORAGE_REWRITE_DETECT_INPLACE = "tl.storage_rewrite_detect_inplace"
    TL_DISABLE_OUT_OF_BOUND_WARNING = "tl.disable_out_of_bound_warning"
    TL_ENABLE_DUMP_IR = "tl.enable_dump_ir"
    TL_DUMP_IR_PATH = TL_DUMP_IR_DIR = "tl.dump_ir_path"
    TL_PASS_PROFILE = "tl.pass_profile"
    TL_PASS_PROFILE_THRESHOLD_MS = "tl.pass_profile_threshold_ms"
    CUDA_KERNELS_OUTPUT_DIR = "cuda.kernels_output_dir"
    TIR_ENABLE_EQUIV_TERMS_IN_CSE = "tirx.enable_equiv_terms_in_cse_tir"
    TIR_DISABLE_CSE_TIR = TIR_DISABLE_CSE = "tirx.disable_cse_tir"
    TIR_SIMPLIFY = "tirx.Simplify"
    TIR_DISABLE_STORAGE_REWRITE = "tirx.disable_storage_rewrite"
    TIR_DISABLE_VECTORIZE = "tirx.disable_vectorize"
    TIR_USE_ASYNC_COPY = "tirx.use_async_copy"
    TIR_ENABLE_DEBUG = "tirx.enable_debug"
    TIR_MERGE_STATIC_SMEM = "tirx.merge_static_smem"
    TIR_ADD_LOWER_PASS = "tirx.add_lower_pass"
    TIR_NOALIAS = "tirx.noalias"


# key → (field of CompileOptions, whether a true value sets it)
_EFFECT = {
    "tl.enable_fast_math": ("fast_math", True),
    "tl.disable_warp_specialized": ("disable_warp_specialization", True),
    "tl.disable_tma_lower": ("disable_tma", True),
    "tl.disable_wgmma": ("disable_wgmma", True),
    "tl.enable_async_copy": ("disable_async_copy", False),
    "tirx.use_async_copy": ("disable_async_copy", False),
}

_INFERRED = "Kiln infers what it controls; leave it out"
_SHARED = "buffers that are not needed at one time share shared memory; the report of a kernel says where each lies (kiln explain)"
_DUMPS = "`kiln explain` shows the program after each pass"

# key → (values that ask for nothing, why others have no effect and what to use)
_NO_EFFECT = {
    "tl.Simplify": (({},), "every program is simplified; leave it out"),
    "tl.disable_buffer_init_check": ((False,), "nothing warns of reads before writes; kiln.emulation(check=True) finds them"),
    "tl.disable_data_race_check": ((False,), "what certainly clashes is always refused; leave it out"),
    "tl.disable_prelower_semantic_check": ((False,), "every program is checked; leave it out"),
    "tl.ptxas_register_usage_level": ((), "use T.annotate_min_blocks_per_sm, or compile_flags=[\"--maxrregcount=…\"]"),
    "tl.enable_ptxas_verbose_output": ((False,), "Kernel.resource_usage has registers, spills and shared memory"),
    "tl.emit_line_directives": ((False,), "messages name the lines of the program anyway"),
    "tl.config_index_bitwidth": ((32,), "index arithmetic has the types of its operands; where 32 bits are too few, write T.int64(i)"),
    "tl.enable_reducer_plan_verbose": ((False,), _DUMPS),
    "tl.layout_cost_model": ((), _INFERRED),
    "tl.reducer_force_baseline": ((False,), _INFERRED),
    "tl.disable_safe_memory_legalize": ((False,),
                                        "accesses outside of tensors are always safe; T.assume(…) tells the compiler that there are none"),
    "tl.disable_vectorize_256": ((False,), _INFERRED),
    "tl.enable_lower_ldgstg": ((False,), _INFERRED),
    "tl.enable_lower_ldgstg_predicated": ((False,), _INFERRED),
    "tl.enable_vectorize_planner_verbose": ((False,), _DUMPS),
    "tl.debug_merge_shared_memory_allocations": ((False,), _SHARED),
    "tl.enable_aggressive_shared_memory_merge": ((False,), _SHARED),
    "tl.disable_shared_memory_reuse": ((False,), _SHARED),
    "tl.disable_shuffle_elect": ((False,), _INFERRED),
    "tl.disable_loop_unswitching": ((False,), _INFERRED),
    "tl.loop_unswitching_allow_non_trivial_else": ((False,), _INFERRED),
    "tl.if_stmt_binding_inline_replayable_binds": ((True,), _INFERRED),
    "tl.disable_thread_storage_sync": ((False,), "the compiler places each barrier that the program needs, and no other; leave it out"),
    "tl.force_let_inline": ((False,), _INFERRED),
    "tl.ast_print_enable": ((False,), "print the function: PrimFunc.script()"),
    "tl.layout_visualization_enable": ((False,), "`kiln explain --text` prints the layouts"),
    "tl.layout_visualization_formats": ((), "`kiln explain --text` prints the layouts"),
    "tl.storage_rewrite_detect_inplace": ((False,), _INFERRED),
    "tl.disable_out_of_bound_warning": ((True,), "accesses that are certainly outside of a tile are refused"),
    "tl.enable_dump_ir": ((False,), _DUMPS),
    "tl.dump_ir_path": ((), _DUMPS),
    "tl.pass_profile": ((False,), "jit(verbose=True) prints what each stage took"),
    "tl.pass_profile_threshold_ms": ((0,), "jit(verbose=True) prints what each stage took"),
    "cuda.kernels_output_dir": (("",), "use Kernel.export_sources or jit(debug_root_path=…)"),
    "tirx.enable_equiv_terms_in_cse_tir": ((True,), _INFERRED),
    "tirx.disable_cse_tir": ((False,), _INFERRED),
    "tirx.Simplify": ((True, {}), "every program is simplified; leave it out"),
    "tirx.disable_storage_rewrite": ((False,), _INFERRED),
    "tirx.disable_vectorize": ((False,), _INFERRED),
    "tirx.enable_debug": ((False,), "messages name the lines of the program anyway"),
    "tirx.merge_static_smem": ((True,), _SHARED),
    "tirx.add_lower_pass": (([],), "TVM's passes are not part of Kiln"),
    "tirx.noalias": ((True,), "T.annotate_restrict_buffers names the tensors that may overlap"),
}


def _key(key) -> str:
    name = key.value if isinstance(key, PassConfigKey) else str(key)
    return "tirx." + name.removeprefix("tir.") if name.startswith("tir.") else name


def _fast_math_disabled(value, configs: dict) -> dict:
    """Of the key that TileLang once had: true is Kiln's default, false would be a surprise."""
    if not value:
        raise ValueError("pass configuration 'tl.disable_fast_math': False is no key of TileLang any more; to have fast math, write "
                         "'tl.enable_fast_math': True")
    if any(_key(key) == "tl.enable_fast_math" and other for key, other in configs.items()):
        raise ValueError("the pass configurations tl.enable_fast_math and tl.disable_fast_math contradict each other")
    return {}


def from_pass_configs(configs: dict | None) -> dict:
    """Fields of CompileOptions that differ from their defaults. ValueError for a key that is not known, and for a value that is none of its."""
    configs, options = configs or {}, {}
    for key, value in configs.items():
        name = _key(key)
        if name in _EFFECT:
            field, when = _EFFECT[name]
            if value not in (None, True, False):  # 1 and 0 are equal to these
                raise ValueError(f"pass configuration {name!r} is {value!r}; it must be True or False, or 1 or 0")
            if bool(value) == when:
                options[field] = True
        elif name.startswith("kiln.max_") and name in PassConfigKey._value2member_map_:
            if value is not None and (type(value) is not int or not 0 <= value < 1 << 32):
                raise ValueError(f"pass configuration {name!r} is {value!r}; it must be an int from 0 (the default) to {(1 << 32) - 1}")
            if value:
                options[name.removeprefix("kiln.")] = value
        elif name == "kiln.entry_name":
            if value is not None and not isinstance(value, str):
                raise ValueError(f"pass configuration {name!r} is {value!r}; it must be a str, or None for the default")
            if value:
                options["entry_name"] = value
        elif name == "tl.disable_fast_math":
            options.update(_fast_math_disabled(value, configs))
        elif name == "tl.device_compile_flags":
            options.update(from_compile_flags(value))
        elif name in _NO_EFFECT:
            nothing, instead = _NO_EFFECT[name]
            if value is not None and not any(type(value) is type(known) and value == known for known in nothing):
                notices.no_effect(f"the pass configuration {name}: {value!r}", instead)
        else:
            near = [known.value for known in PassConfigKey if known.value.split(".")[-1].lower() == name.split(".")[-1].lower()]
            hint = f"{near[0]!r} is" if near else "the keys are kiln.PassConfigKey's"
            raise ValueError(f"pass configuration {name!r} is not known; {hint}")
    return options


# What flags ask for that holds anyway.
_HOLDS = {"-O3", "-dopt=on", "--dopt=on", "--fmad=true", "-fmad=true", "--ftz=false", "-ftz=false", "--prec-div=true", "-prec-div=true",
          "--prec-sqrt=true", "-prec-sqrt=true"}
_WITH_WORD = ("-maxrregcount", "--maxrregcount", "-Xptxas", "--ptxas-options", "-Xcompiler", "--compiler-options", "-include", "-I", "-D",
              "-U", "-L", "-l", "-arch", "--gpu-architecture", "-gencode", "--generate-code", "-O", "-std", "--std", "-diag-suppress",
              "--diag-suppress")
_REASONS = (
    (("-D", "-U", "-I", "-include", "--define-macro", "--include-path", "--pre-include"), "there is no CUDA source that it would be for"),
    (("-arch", "--gpu-architecture", "-gencode", "--generate-code"), "target=\"cuda:sm_90a\" says what to compile for"),
    (("-Xptxas", "--ptxas-options"), "what ptxas is told is Kiln's own; Kernel.resource_usage has registers and spills"),
    (("--ftz", "-ftz", "--prec-div", "-prec-div", "--prec-sqrt", "-prec-sqrt"),
     "--use_fast_math is all or nothing; without it, results are the precise ones"),
)


def _flags(flags) -> list:
    """Each with the word that belongs to it: ["-D", "X"] as "-D X"."""
    words = shlex.split(flags) if isinstance(flags, str) else [word for flag in flags or () for word in shlex.split(str(flag))]
    joined = []
    for word in words:
        if joined and joined[-1] in _WITH_WORD and not word.startswith("-"):
            joined[-1] += f" {word}"
        else:
            joined.append(word)
    return joined


def from_compile_flags(flags) -> dict:
    """What nvcc's flags ask for as fields of CompileOptions: --use_fast_math and --maxrregcount act. What only a strict compiler would do
    is refused (--fmad=false, ValueError); of others a warning says that they have no effect."""
    options, idle = {}, {}
    for flag in _flags(flags):
        name, _, value = flag.replace(" ", "=", 1).partition("=")
        if name in ("--use_fast_math", "-use_fast_math"):
            options["fast_math"] = True
        elif name in ("--maxrregcount", "-maxrregcount"):
            if not value.isdigit():
                raise ValueError(f"compile flag {flag!r}: --maxrregcount takes the number of registers of a thread, as --maxrregcount=128")
            options["max_registers"] = int(value)
        elif name in ("--fmad", "-fmad") and value != "true":
            raise ValueError(f"compile flag {flag!r}: Kiln may join a product and a sum into one operation, which rounds once, and has no option "
                             "against it")
        elif flag not in _HOLDS:
            reason = next((why for names, why in _REASONS if name.startswith(names)), "Kiln calls no nvcc")
            idle.setdefault(reason, []).append(flag)
    for reason, names in idle.items():
        notices.no_effect(f"the compile flag{'s' if len(names) > 1 else ''} {' '.join(names)}",
                          f"{reason}; leave {'them' if len(names) > 1 else 'it'} out")
    return options
