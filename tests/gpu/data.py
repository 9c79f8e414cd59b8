# SPDX-License-Identifier: Apache-2.0
"""Inputs, poisoned outputs, float64 references and the error measure, with torch on the device."""

import torch

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "tfloat32": torch.float32, "int8": torch.int8,
          "int32": torch.int32, "int64": torch.int64, "float8_e4m3fn": getattr(torch, "float8_e4m3fn", None)}
GUARD = 256  # elements on each side of an output that must stay as they were
POISON = {True: 0xFF, False: 0x7B}  # bytes; NaN in every float type


def random_tensor(shape, dtype, generator):
    device = generator.device
    if dtype == "int8":
        return torch.randint(-128, 128, shape, generator=generator, device=device, dtype=torch.int8)
    return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(DTYPES[dtype])


def at_offset(tensor, elements):
    """The same values, starting that many elements into a larger allocation."""
    if elements == 0:
        return tensor
    flat = torch.zeros(tensor.numel() + elements, dtype=tensor.dtype, device=tensor.device)
    flat[elements:] = tensor.reshape(-1)
    return flat[elements:].view(tensor.shape)


def with_row_gap(tensor, before, after):
    """The same values as a view into a wider tensor."""
    wide = torch.zeros((tensor.shape[0], before + tensor.shape[1] + after), dtype=tensor.dtype, device=tensor.device)
    wide[:, before : before + tensor.shape[1]] = tensor
    return wide[:, before : before + tensor.shape[1]]


class Output:
    """A tensor full of NaN inside a larger one full of NaN, `offset` elements further on; `row` > 0: its rows lie that many elements
    apart."""

    def __init__(self, shape, dtype, device, row=0, before=0, offset=0):
        torch_type = DTYPES[dtype]
        self.byte = POISON[torch_type.is_floating_point]
        columns = shape[-1] if shape else 1
        rows = 1
        for extent in shape[:-1]:
            rows *= extent
        self.span = rows * (row or columns)
        self.start = GUARD + offset
        self.storage = torch.empty(self.span + 2 * self.start, dtype=torch_type, device=device)
        self.storage.view(torch.uint8).fill_(self.byte)
        inner = self.storage[self.start : self.start + self.span]
        self.tensor = inner.view(rows, row)[:, before : before + columns] if row else inner.view(shape)
        self.before, self.row, self.columns = before, row, columns

    def intact(self):
        """Nothing beside the output was written."""
        size = self.storage.element_size()
        raw = self.storage.view(torch.uint8)
        begin, end = self.start * size, (self.start + self.span) * size
        edges = torch.cat([raw[:begin], raw[end:]])
        if not bool((edges == self.byte).all()):
            return False
        if not self.row:
            return True
        rows = raw[begin:end].view(-1, self.row * size)
        outside = torch.cat([rows[:, : self.before * size], rows[:, (self.before + self.columns) * size :]], dim=1)
        return bool((outside == self.byte).all())


def relative_error(result, reference):
    """The larger of max|r-x| / max|x| and ‖r-x‖ / ‖x‖; NaN where the result has one, so that no bar is met."""
    result, reference = result.double(), reference.double()
    if result.numel() == 0:
        return 0.0
    difference = (result - reference).abs()
    if not bool(torch.isfinite(result).all()):
        return float("nan")
    largest, norm = float(reference.abs().max()), float(reference.norm())
    if largest == 0:
        return float(difference.max())
    return max(float(difference.max()) / largest, float(difference.norm()) / norm)


def activate(name, x):
    if name == "relu":
        return x.clamp_min(0)
    if name == "gelu":
        return x * 0.5 * (1 + torch.erf(x * 0.5**0.5))
    return x * torch.sigmoid(x) if name == "silu" else x


def gemm(case, generator):
    d = case["data"]
    m, n, k = d["M"], d["N"], d["K"]
    a = at_offset(random_tensor((k, m) if d["trans_a"] else (m, k), d["in"], generator), d["offset"])
    b = at_offset(random_tensor((n, k) if d["trans_b"] else (k, n), d["in"], generator), d["offset"])
    reference = (a.double().T if d["trans_a"] else a.double()) @ (b.double().T if d["trans_b"] else b.double())
    inputs = [a, b]
    if d["bias"]:
        inputs.append(random_tensor((n,), d["out"], generator))
        reference = reference + inputs[2].double()
    return inputs, Output((m, n), d["out"], a.device, offset=d["offset"]), activate(d["activation"], reference)


def gemm_strided(case, generator):
    d = case["data"]
    m, n, k = d["M"], d["N"], d["K"]
    gaps = torch.randint(1, 40, (6,), generator=torch.Generator().manual_seed(m * 31 + n * 17 + k)).tolist()
    a = with_row_gap(random_tensor((m, k), d["in"], generator), gaps[0] * 16, gaps[1])
    b = with_row_gap(random_tensor((k, n), d["in"], generator), gaps[2] * 16, gaps[3] * 16)
    out = Output((m, n), d["out"], a.device, row=n + 16 * gaps[4] + gaps[5], before=16 * gaps[4])
    return [a, b], out, a.double() @ b.double()


def attention(case, generator):
    d = case["data"]
    shape = (d["batch"], d["seq_len"], d["heads"], d["dim"])
    q, k, v = (random_tensor(shape, d["out"], generator) for _ in range(3))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()) / d["dim"] ** 0.5
    if d["causal"]:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    reference = torch.einsum("bhqk,bkhd->bqhd", torch.softmax(scores, dim=-1), v.double())
    return [q, k, v], Output(shape, d["out"], q.device), reference


def rms_norm(case, generator):
    d = case["data"]
    x, w = random_tensor((d["M"], d["N"]), d["out"], generator), random_tensor((d["N"],), d["out"], generator)
    wide = x.double()
    reference = wide * torch.rsqrt((wide * wide).mean(dim=-1, keepdim=True) + 1e-6) * w.double()
    return [x, w], Output((d["M"], d["N"]), d["out"], x.device), reference


def softmax(case, generator):
    d = case["data"]
    x = random_tensor((d["M"], d["N"]), d["out"], generator)
    return [x], Output((d["M"], d["N"]), d["out"], x.device), torch.softmax(x.double(), dim=-1)


def quotients(case, generator):
    n, divisor = case["data"]["N"], case["data"]["divisor"]
    words = torch.randint(-2, 3, (2, n), generator=generator, device=generator.device)
    a = words[0] + (words[1] << 32)  # the lower word of one in five is 0
    return [a], Output((n,), "int64", a.device), torch.arange(n, device=a.device) // divisor - a


MAKERS = {"gemm": gemm, "gemm_strided": gemm_strided, "attention": attention, "rms_norm": rms_norm, "softmax": softmax,
          "softmax_online": softmax, "overhead": gemm, "quotients": quotients}
