# SPDX-License-Identifier: Apache-2.0
"""The process of inductor_main.py that has torch and one package called ``triton``. It reads a JSON line for each case, and writes one for each
result. A model is timed when it is asked for again, so that nothing else runs then."""

import json
import os
import sys
import time
import traceback

import torch


def flattened(x) -> list:
    return [y for part in x for y in flattened(part)] if isinstance(x, (tuple, list)) else [x]


def difference(got, wanted, tolerance) -> str:
    """What is wrong, or "". ``tolerance`` None: 1e-5 for float32, and equal where nothing is rounded."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return f"{got.dtype} {tuple(got.shape)}, wanted {wanted.dtype} {tuple(wanted.shape)}"
    if not wanted.dtype.is_floating_point:
        return "" if torch.equal(got, wanted) else f"{int((got != wanted).sum())} of {got.numel()} differ"
    tolerance = tolerance or {torch.float32: 1e-5, torch.float64: 1e-10}.get(wanted.dtype, 1e-2)
    a, b = got.double(), wanted.double()
    wrong = ~torch.isclose(a, b, rtol=tolerance, atol=tolerance * max(1.0, float(b[b.isfinite()].abs().max()) if b.isfinite().any() else 1.0) * 0.5,
                           equal_nan=True)
    return f"{int(wrong.sum())} of {wrong.numel()} are off by up to {float((a - b)[wrong].abs().max()):.3e}" if wrong.any() else ""


def copies(inputs) -> list:
    return [x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in inputs]


def outcome(function, inputs, backward) -> list:
    """Results, then the gradients, then the inputs, which the function may have changed."""
    torch.manual_seed(0)
    result = flattened(function(*inputs))
    if backward:
        sum((y.float() * torch.linspace(0.5, 1.5, y.numel(), device=y.device).view(y.shape)).sum() for y in result).backward()
        result += [x.grad for x in inputs if x.requires_grad]
    return [x.detach() for x in result] + [x.detach() for x in inputs]


class Kernels:
    """How many kernels were launched: none where Inductor left all to a library."""

    def __init__(self):
        from torch._inductor import metrics

        self.metrics = metrics
        self.before = metrics.generated_kernel_count

    def made(self) -> int:
        return self.metrics.generated_kernel_count - self.before


def run_case(name: str, device: str) -> dict:
    import torch._inductor.config as config
    from inductor_cases import CASES, Inputs

    case = CASES[name]
    given = case.inputs(Inputs(device))
    patch = {key: value for key, value in case.patch.items() if _known(config, key)}
    wanted = outcome(case.function, copies(given), case.backward)
    torch._dynamo.reset()
    kernels = Kernels()
    with config.patch(patch):
        if case.elsewhere:
            _open_pool()
        compiled = torch.compile(case.function, dynamic=case.dynamic, fullgraph=not name.startswith("flex"))
        got = outcome(compiled, copies(given), case.backward)
    notes = [note for a, b in zip(got, wanted) if (note := difference(a, b, case.tolerance))]
    if len(got) != len(wanted):
        notes.append(f"{len(got)} results, wanted {len(wanted)}")
    return {"ok": not notes, "note": "; ".join(notes)[:300], "kernels": kernels.made()}


def _open_pool() -> None:
    from torch._inductor.async_compile import AsyncCompile

    AsyncCompile.warm_pool()
    AsyncCompile.wait_pool_ready()
    if not AsyncCompile.use_process_pool():
        raise RuntimeError("there are no other processes to compile in")


def _known(config, key: str) -> bool:
    """Whether this torch has the setting."""
    try:
        config.get_config_copy()[key]
        return True
    except KeyError:
        return False


class Models:
    """Models that were compiled, to be timed later."""

    def __init__(self, device: str):
        self.device, self.kept = device, {}

    def run(self, name: str) -> dict:
        from inductor_models import made

        model, x = made(name, self.device)
        wide, wide_x = made(name, self.device)
        wide, wide_x = wide.double(), wide_x.double()
        kernels = Kernels()
        compiled = torch.compile(model)

        def step():
            model.zero_grad(set_to_none=True)
            compiled(x).float().square().mean().backward()

        step()
        gradient = next(model.parameters()).grad.double()
        with torch.no_grad():
            y = compiled(x).double()
        model.zero_grad(set_to_none=True)
        plain = model(x)
        plain.float().square().mean().backward()
        plain_gradient = next(model.parameters()).grad.double()
        exact = wide(wide_x)
        exact.square().mean().backward()
        exact_gradient = next(wide.parameters()).grad
        errors = {"result": (_error(y, exact), _error(plain.double(), exact)),
                  "gradient": (_error(gradient, exact_gradient), _error(plain_gradient, exact_gradient))}
        ok = all(mine <= max(1.5 * eager, 1e-5) for mine, eager in errors.values())
        self.kept[name] = (compiled, model, x, step)
        return {"ok": ok, "note": "" if ok else f"{errors}: compiled, eager", "errors": errors, "kernels": kernels.made()}

    def time(self, name: str) -> dict:
        """Milliseconds of a forward pass, and of one with the backward pass, by events around ten of them."""
        compiled, model, x, step = self.kept[name]

        def forward():
            with torch.no_grad():
                compiled(x)

        def eager():
            with torch.no_grad():
                model(x)

        return {"ok": True, "forward_ms": _timed(forward), "step_ms": _timed(step), "eager_ms": _timed(eager), "forward_us": _kernels(forward),
                "step_us": _kernels(step)}


def _error(got, wanted) -> float:
    return float((got - wanted).norm() / wanted.norm())


def _timed(call) -> float:
    for _ in range(5):
        call()
    rounds = []
    for _ in range(5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(4_000_000)
        start.record()
        for _ in range(10):
            call()
        end.record()
        torch.cuda.synchronize()
        rounds.append(start.elapsed_time(end) / 10)
    return sorted(rounds)[2]


def _kernels(call, times: int = 5) -> list:
    """[(name, microseconds)] of what the device does in one call, in its order."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(times):
            call()
        torch.cuda.synchronize()
    events = sorted((e for e in found.events() if e.device_type == DeviceType.CUDA and e.device_time > 0), key=lambda e: e.time_range.start)
    each = len(events) // times
    return [(events[i].name, round(sum(e.device_time for e in events[i::each][:times]) / times, 2)) for i in range(each)]


def main():
    device = sys.argv[1]
    import torch._inductor.config as config

    import inductor_cases

    config.force_disable_caches, config.compile_threads = True, 1  # workers are many; one case has processes of its own
    if device == "cpu":
        config.cpu_backend = "triton"
    inductor_cases.prepare()
    models = Models(device)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes elsewhere
    print(json.dumps({"ready": _package()}), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        begin = time.monotonic()
        try:
            do = {"case": lambda name: run_case(name, device), "model": models.run, "time": models.time}[asked["kind"]]
            result = do(asked["name"])
        except BaseException as problem:  # also what refuses by leaving
            last = "".join(traceback.format_exception_only(problem)).strip().replace("\n", " ")
            result = {"ok": False, "note": last[:600], "where": traceback.format_exc()[-2500:]}
        print(json.dumps({**asked, **result, "seconds": round(time.monotonic() - begin, 1)}), file=out, flush=True)


def _package() -> str:
    import triton

    return f"{triton.__version__}{' of Kiln' if 'kiln' in sys.modules else ''}"


if __name__ == "__main__":
    main()
