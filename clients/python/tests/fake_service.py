# SPDX-License-Identifier: Apache-2.0
"""A client that compiles nothing: it encodes each program, keeps it, and replies with launch information worked out from the program. And an
extension whose kernels return tensors of the right shape."""

import types

from kiln import _proto
from kiln.language import program


class FakeClient:
    def __init__(self):
        self.requests = []
        self.pb = _proto.messages()

    def capabilities(self):
        """It has no device."""
        return self.pb.CapabilitiesReply()

    def rank(self, candidates, target, **_):
        """It expects most of what comes first."""
        from kiln.ranking import Ranked

        return [Ranked(index, float(index)) for index in range(len(candidates))]

    def compile(self, func, target, options=None, **_):
        module = self.pb.Module.FromString(func.serialized)
        self.requests.append(types.SimpleNamespace(func=func, module=module, target=target, options=options))
        artifact = self.pb.Artifact(target=target, kind=1, code=b"// ptx\n.version 8.0\n")
        symbols = {}
        for index, param in enumerate(module.params):
            self._param(module, artifact.launch, symbols, param, func.params[index].name, index in module.outputs)
            artifact.launch.params[index].written = any(func.params[index].buffer is b for k in func.kernels for b in _stored(k.body))
        return self.pb.CompileReply(key=b"\x01" * 32, artifact=artifact, origin=3)

    def _param(self, module, launch, symbols, param, name, output):
        if param.WhichOneof("kind") == "scalar":
            launch.params.add(name=name, dtype=module.vars[param.scalar].dtype)
            return
        buffer = module.buffers[param.tensor]
        message = launch.params.add(name=name, dtype=buffer.dtype, tensor=True, output=output)
        for dim in buffer.shape:
            expr = module.exprs[dim]
            if expr.op == self.pb.enums["ExprOp"].values_by_name["CONST_INT"].number:
                message.shape.add().nodes.add(op=0, value=expr.int_value)
            else:
                symbol = symbols.setdefault(expr.ref, len(symbols))
                if symbol == len(launch.symbols):
                    launch.symbols.add(name=module.debug.var_names[expr.ref], dtype=4)
                message.shape.add().nodes.add(op=1, value=symbol)


def _stored(statements):
    """The buffers to whose elements a value is assigned."""
    for statement in statements:
        if isinstance(statement, program.Store):
            yield statement.buffer
        yield from _stored(getattr(statement, "body", ()))


class FakeKernel:
    """Allocates outputs as the extension does and computes nothing."""

    def __init__(self, artifact, torch):
        self.launch, self.torch = artifact.launch, torch

    def __call__(self, *args, stream=None):
        params = self.launch.params
        inputs = [p for p in params if not p.output]
        if len(args) not in (len(params), len(inputs)):
            raise ValueError(f"num_args should be {len(inputs)}, got {len(args)}")
        if len(args) == len(params):
            return None
        outputs = [self._empty(p, inputs, args) for p in params if p.output]
        return outputs[0] if len(outputs) == 1 else outputs

    def output_shapes(self, *args):
        inputs = [p for p in self.launch.params if not p.output]
        return [(p.name, tuple(self._empty(p, inputs, args).shape), "") for p in self.launch.params if p.output]

    def _empty(self, param, inputs, args):
        from kiln.profiler import _names

        symbols = {}
        for p, tensor in zip(inputs, args):
            for axis, dim in enumerate(p.shape):
                if dim.nodes[0].op == 1:
                    symbols[dim.nodes[0].value] = tensor.shape[axis]
        shape = [d.nodes[0].value if d.nodes[0].op == 0 else symbols[d.nodes[0].value] for d in param.shape]
        dtype = _names()[_proto.messages().enum_name("DType", param.dtype)]
        return self.torch.empty(*shape, dtype=dtype.as_torch(), device="cuda")


def extension(torch):
    """A stand-in for kiln._runtime."""
    module = types.ModuleType("kiln._runtime")
    module.devices = lambda: [{"index": 0, "kind": "cuda", "name": "fake", "arch": "cuda:sm_90a", "memory_bytes": 1, "driver_version": "0"}]
    module.driver_problem = lambda kind: ""
    module.load = lambda data, device=0, name="", by_address=False: FakeKernel(_proto.messages().Artifact.FromString(data), torch)
    return module
