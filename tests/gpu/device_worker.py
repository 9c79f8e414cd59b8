# SPDX-License-Identifier: Apache-2.0
"""Runs on the daemon's own GPU worker, in its sandbox: right results, times, what a kernel does wrong, and that the next run gets a new
worker. numpy is enough."""

import re
import time

from plan import selected

DEVICE = "cuda:0"

# Its rows are taken from where the caller says.
ROW = """kiln 1
func @row(%A: global f32[64, 64], %B: global f32[64, 64], %row: i32) {
  kernel @main grid(1) threads 128 blocks(%bx) {
    %s = alloc shared f32[64, 64]
    copy %A[0, 0; 64, 64] -> %s[0, 0; 64, 64]
    for parallel %i, %j in 64, 64 {
      store %B[%i, %j] = %s[%i + %row, %j]
    }
  }
}
"""

# A temporary tensor of a size that no device has.
TEMPORARY = """kiln 1
func @temporary[%n](%A: global f32[%n], %B: global f32[16]) {
  workspace %huge: global f32[%n * 268435456]
  kernel @main grid(1) threads 64 blocks(%bx) {
    for parallel %i in 16 {
      store %huge[%i] = %A[%i]
    }
    for parallel %j in 16 {
      store %B[%j] = %A[%j]
    }
  }
}
"""


class Cases:
    def __init__(self, place, client):
        import numpy

        self.place, self.client, self.numpy = place, client, numpy

    def _tensor(self, array):
        from kiln.language.dtypes import as_dtype
        from kiln.remote import host_tensor

        return host_tensor(array, as_dtype(array.dtype.name), "an argument")

    def _product(self, m, n, k, **options):
        """(relative error, the RunResult) of a product of random halves."""
        from kiln.examples.gemm import gemm
        from kiln import CompileOptions

        repeat = options.pop("repeat", 0)
        generator = self.numpy.random.default_rng(m * 31 + n * 7 + k)
        a, b = (generator.standard_normal(shape).astype("float16") for shape in ((m, k), (k, n)))
        program = gemm(m, n, k)
        result, outputs = self.client.run(program, DEVICE, [self._tensor(a), self._tensor(b), self._tensor(self.numpy.zeros((m, n), "float16"))],
                                          CompileOptions(**options), repeat=repeat)
        if result.faults:
            raise RuntimeError(f"{result.faults[0].name}: {result.faults[0].message}")
        got = self.numpy.frombuffer(outputs[0], "float16").reshape(m, n).astype("float64")
        wanted = a.astype("float64") @ b.astype("float64")
        return float(abs(got - wanted).max() / abs(wanted).max()), result

    def _right(self, error, note=""):
        return {"ok": error <= 2e-3, "error": error, "note": note}

    def protections(self):
        for _ in range(100):
            found = re.search(r"event=workers devices=.*", (self.place.scratch / "kilnd.log").read_text(errors="replace"))
            if found:
                line = found.group(0)
                return {"ok": "calls=allow-list" in line and "trouble=" not in line, "note": line}
            time.sleep(0.1)
        return {"ok": False, "note": "kilnd has no line about the workers of GPUs"}

    def product(self):
        error, _ = self._product(1024, 1024, 512)
        return self._right(error)

    def times(self):
        error, result = self._product(2048, 2048, 2048, repeat=20)
        times = sorted(result.microseconds)
        return {**self._right(error), "ok": error <= 2e-3 and len(times) == 20 and times[0] > 0, "us": times[len(times) // 2] if times else None}

    def shared_sums(self):
        error, _ = self._product(128, 256, 16384, stream_k=2)
        return self._right(error, "blocks share tiles through memory of their own")

    def _fails(self, program, arguments, name):
        """That fault, and a right product by the next worker."""
        result, _ = self.client.run(program, DEVICE, arguments)
        said = [fault.name for fault in result.faults]
        error, _ = self._product(256, 256, 256)
        return {"ok": any(name in one for one in said) and error <= 2e-3, "error": error, "note": f"{', '.join(said) or 'no fault'}; then a product"}

    def wild_access(self):
        rows = [self._tensor(self.numpy.ones((64, 64), "float32")) for _ in range(2)]
        return self._fails(ROW, [*rows, 1 << 17], "CUDA_ERROR")

    def no_memory(self):
        tensors = [self._tensor(self.numpy.ones(size, "float32")) for size in (4096, 16)]
        return self._fails(TEMPORARY, tensors, "OUT_OF_MEMORY")

    def many(self):
        """More runs than one worker does."""
        a, b = self.numpy.arange(4096, dtype="float32").reshape(64, 64), self.numpy.zeros((64, 64), "float32")
        begin, wrong = time.monotonic(), 0
        for _ in range(250):
            result, outputs = self.client.run(ROW, DEVICE, [self._tensor(a), self._tensor(b), 0])
            wrong += bool(result.faults) or bytes(outputs[0]) != a.tobytes()
        return {"ok": wrong == 0, "note": f"250 runs, {wrong} wrong, {(time.monotonic() - begin) * 4:.1f} ms each"}


def results(place, only):
    """(case, result) of each."""
    from kiln.client import default_client

    cases = Cases(place, default_client())
    for name in ("protections", "product", "times", "shared_sums", "wild_access", "no_memory", "many"):
        case = {"name": f"daemon.{name}", "family": "daemon", "shape": "", "dtype": "", "bar": 2e-3}
        if not selected(case, only):
            continue
        try:
            yield case, getattr(cases, name)()
        except Exception as problem:  # this case's
            yield case, {"ok": False, "note": f"{type(problem).__name__}: {problem}"}
