# SPDX-License-Identifier: Apache-2.0
"""The process that measures. It is told a workload and its artifacts, and tells what it begins and what it has found, so that whoever listens
knows which candidate was under way when it ended."""

import hashlib
import pathlib
import random
import statistics
import time

FLUSH_BYTES = 256 << 20
ROUNDS, LAUNCHES = 5, 3
IDLE_SECONDS = 0.002  # between bursts, so that the card's power does not bind
HOPELESS = 4.0  # times the fastest: measured in the first round only
TOLERANCE = 0.03  # of the largest element, by which results may differ: they are summed in different orders


class Gpu:
    """The first GPU."""

    def __init__(self):
        import torch
        from kiln import _runtime

        self.torch, self.runtime = torch, _runtime
        self.flushed = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
        self.clean = torch.zeros_like(self.flushed)

    def facts(self) -> dict:
        device = self.runtime.devices()[0]
        one = self.torch.zeros(1, device="cuda")
        source = self.torch.empty(1 << 30, dtype=self.torch.uint8, device="cuda")
        copy = self.torch.empty_like(source)
        return {"device": device["name"], "driver": str(device["driver_version"]),
                "launch_us": round(statistics.median(self.burst(lambda: one.zero_(), 20)), 2),
                "copy_bytes_per_us": round(2 * source.numel() / statistics.median(self.burst(lambda: copy.copy_(source), 9)))}

    def tensors(self, shapes) -> list:
        torch, result = self.torch, []
        torch.manual_seed(0)
        for shape, dtype in shapes:
            kind = getattr(torch, dtype)
            if dtype in ("int8", "int32"):
                result.append(torch.randint(-8, 8, shape, device="cuda", dtype=kind))
            else:
                result.append(torch.randn(shape, device="cuda").to(kind))
        return result

    def output(self, shape, dtype):
        return self.torch.empty(shape, device="cuda", dtype=getattr(self.torch, dtype))

    def load(self, path: str):
        return self.runtime.load(pathlib.Path(path).read_bytes(), 0)

    def resources(self, kernel) -> dict:
        return {"registers": max(r["registers"] for r in kernel.resources), "local": max(r["local_bytes"] for r in kernel.resources)}

    def burst(self, call, launches: int) -> list[float]:
        """Microseconds of each launch, behind a flush: what remains in the L2 is clean."""
        torch, events = self.torch, []
        for _ in range(launches):
            self.flushed.zero_()
            torch.amax(self.clean)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            call()
            end.record()
            events.append((start, end))
        torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e3 for start, end in events]

    def result(self, kernel, arguments, output):
        """What the kernel writes, summed over parts that the candidates choose for themselves."""
        output.fill_(0)
        kernel(*arguments, output)
        self.torch.cuda.synchronize()
        return output.float().sum(0) if output.dtype == self.torch.float32 and output.shape[0] <= 64 else output.clone()

    def differs(self, ours, reference) -> bool:
        """Compared in strips, which take less memory."""
        worst = most = 0.0
        for a, b in zip(ours.flatten().split(1 << 24), reference.flatten().split(1 << 24)):
            worst = max(worst, (a.float() - b.float()).abs().max().nan_to_num(float("inf")).item())
            most = max(most, b.float().abs().max().item())
        return worst > TOLERANCE * most


class Fake:
    """Times made up from the sizes."""

    def facts(self):
        return {"device": "fake", "driver": "", "launch_us": 2.0, "copy_bytes_per_us": 1}

    def tensors(self, shapes):
        return list(shapes)

    def output(self, shape, dtype):
        return shape, dtype

    def load(self, path):
        data = pathlib.Path(path).read_bytes()
        return 10 + hashlib.sha256(data).digest()[0] / 8

    def resources(self, kernel):
        return {"registers": 0, "local": 0}

    def burst(self, call, launches):
        return [call()] * launches

    def result(self, kernel, arguments, output):
        return output

    def differs(self, ours, reference):
        return False


def measure(device, name: str, jobs: dict, seconds: float, tell) -> None:
    """jobs: index → (sizes, path of the artifact)."""
    from workloads import by_name

    workload, until = by_name(name), time.monotonic() + seconds
    first = next(iter(jobs.values()))[0]
    arguments = device.tensors(workload.shapes(first)[:-1])
    kernels, times, outputs, reference = {}, {}, {}, None
    for index, (sizes, path) in jobs.items():
        tell("begin", index, None)
        what = workload.shapes(sizes)[-1]
        if what not in outputs:
            outputs[what] = device.output(*what)
        output = outputs[what]
        try:
            kernel = device.load(path)
        except Exception as failure:  # the device does not take it; the others decide
            tell("end", index, {"problem": f"{type(failure).__name__}: {failure}"[:300]})
            continue
        result = device.result(kernel, arguments, output)
        reference = result if reference is None else reference
        if device.differs(result, reference):
            tell("end", index, {"problem": "its result differs from the first candidate's"})
            continue
        kernels[index], times[index] = (kernel, output), []
        tell("end", index, device.resources(kernel))
    order = list(kernels)
    for number in range(ROUNDS):
        random.Random(number).shuffle(order)
        best = min((min(values) for values in times.values() if values), default=0.0)
        for index in order:
            if time.monotonic() > until:
                return
            if number > 0 and min(times[index]) > HOPELESS * best:
                continue
            kernel, output = kernels[index]
            tell("begin", index, None)
            time.sleep(IDLE_SECONDS)
            call = (lambda kernel=kernel: kernel) if isinstance(device, Fake) else (lambda: kernel(*arguments, output))
            times[index] += device.burst(call, LAUNCHES)
            tell("end", index, {"times": list(times[index])})


def serve(pipe, fake: bool) -> None:
    """Until the other end is closed."""
    device = Fake() if fake else Gpu()
    pipe.send(device.facts())
    while True:
        try:
            name, jobs, seconds = pipe.recv()
        except EOFError:
            return
        measure(device, name, jobs, seconds, lambda *news: pipe.send(news))
        pipe.send(("done", None, None))
