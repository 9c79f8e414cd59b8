# SPDX-License-Identifier: Apache-2.0
"""PrimFunc → Kernel, through the daemon."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor

from . import _proto, notices
from . import target as targets
from .client import default_client
from .errors import describe
from .kernel import Kernel
from .language.program import PrimFunc
from .options import from_compile_flags, from_pass_configs
from .remote import emulation_asked


def compile(func: PrimFunc, out_idx=None, execution_backend=None, target=None, target_host=None, verbose=None, pass_configs=None,
            compile_flags=None, *, allow_tf32=False, client=None, config=None, priority="INTERACTIVE", timeout=None) -> Kernel:
    """Compiles a traced tile function. ``out_idx``: parameters (negative: from the end) that calls allocate and return.
    ``target``: None means $KILN_TARGET, else the current GPU; where there is none, and inside ``kiln.emulation``, the emulator.
    ``compile_flags``: nvcc's, of which --use_fast_math and --maxrregcount act. ``allow_tf32``: of every product of float32, as T.gemm takes it.
    ``execution_backend`` and ``target_host`` have no effect, with a warning."""
    no_backends(execution_backend, target_host)
    func, options = prepared(func, out_idx, pass_configs, compile_flags, allow_tf32)
    target = targets.runnable(target, emulation_asked())

    def ask(explain=None, **more):
        return (client or default_client()).compile(func, target, {**options, **more}, explain=explain, priority=priority, timeout=timeout)

    def run(arguments, more, **how):
        return (client or default_client()).run(func, target, arguments, {**options, **more}, **how)

    reply = ask()
    for diagnostic in reply.diagnostics:
        warnings.warn(describe(diagnostic).strip(), stacklevel=2)
    kernel = Kernel(func, reply, config, ask, run, asked=options)
    if verbose:
        print(f"kiln: {kernel!r}, " + ", ".join(f"{t.stage} {t.milliseconds:.1f} ms" for t in reply.timings))
    return kernel


def unpickled(func: PrimFunc, reply: bytes, config: dict | None, asked: dict, by_address: bool = False) -> Kernel:
    """A kernel in another process: it is not compiled again, and what it asks the daemon for later goes through that process's own client."""
    message = _proto.messages().CompileReply.FromString(reply)
    target = message.artifact.target

    def ask(explain=None, **more):
        return default_client().compile(func, target, {**asked, **more}, explain=explain)

    def run(arguments, more, **how):
        return default_client().run(func, target, arguments, {**asked, **more}, **how)

    return Kernel(func, message, config, ask, run, asked=asked, by_address=by_address)


def prepared(func: PrimFunc, out_idx=None, pass_configs=None, compile_flags=None, allow_tf32=False) -> tuple[PrimFunc, dict]:
    """(the function with its outputs, the compile options), of arguments as ``compile`` takes them."""
    if not isinstance(func, PrimFunc):
        raise TypeError(f"kiln.compile takes a T.prim_func, not {func!r}; call a kiln.jit function to get a kernel")
    if out_idx is not None:
        if func.outputs and list(func.with_outputs(out_idx).outputs) != func.outputs:
            raise ValueError(f"Out index conflict: {func.name} returns T.empty tensors, which out_idx={out_idx} contradicts; give one of the two")
        func = func.with_outputs(out_idx)
    if allow_tf32:
        func = func.with_tf32()
    return func, {**from_compile_flags(_words(compile_flags) + _words(func.compile_flags)),
                  **from_pass_configs({**(pass_configs or {}), **func.pass_configs})}


def _words(flags) -> list:
    return [flags] if isinstance(flags, str) else list(flags or ())


def no_backends(execution_backend, target_host) -> None:
    """Of the arguments of TileLang's that name parts which Kiln does not have."""
    notices.unused("jit", execution_backend=(execution_backend, (None, "auto"), "kernels are launched through kiln._runtime; leave it out"),
                   target_host=(target_host, (None,), "nothing is generated for the host; leave it out"))


def par_compile(funcs, num_workers=None, ignore_error=False, *, labels=None, **keywords) -> list:
    """Compiles many functions at once; with ``ignore_error``, None stands for those that failed, and a warning tells why, by ``labels`` or
    the functions' names."""
    functions = list(funcs)

    def one(func, label):
        try:
            return compile(func, **keywords)
        except Exception as failure:
            if not ignore_error:
                raise
            warnings.warn(f"{label}: {failure}", stacklevel=2)
            return None

    if not functions:
        return []
    keywords["target"] = targets.runnable(keywords.get("target"), emulation_asked())  # the threads are not inside kiln.emulation
    with ThreadPoolExecutor(num_workers or min(16, len(functions))) as pool:
        return list(pool.map(one, functions, labels or [getattr(f, "name", f) for f in functions]))
