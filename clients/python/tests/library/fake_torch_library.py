# SPDX-License-Identifier: Apache-2.0
"""torch.library for ``fake_torch``: operators that are defined, implemented for a device, and differentiated, as far as the library's own
use goes."""

import types


class Operator:
    """``torch.ops.NAMESPACE.NAME``."""

    def __init__(self, schema):
        self.schema, self.kernels, self.fake, self.backward, self.save = schema, {}, None, None, None

    @property
    def default(self):
        return self

    def __call__(self, *arguments):
        device = arguments[0].device.type
        output = self.fake(*arguments) if device == "meta" else self.kernels[{"cuda": "CUDA", "cpu": "CPU"}[device]](*arguments)
        context = Context(arguments)
        if self.save is not None:
            self.save(ctx=context, inputs=arguments, output=output)  # by keyword, as torch does
        for result in output if isinstance(output, tuple) else (output,):
            result._backward = lambda *gradients: self.backward(context, *gradients)
        return output


class Context:
    def __init__(self, arguments):
        self.needs_input_grad, self.saved_tensors, self.constant = tuple(hasattr(a, "backward") for a in arguments), (), ()

    def save_for_backward(self, *tensors):
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors):
        self.constant = tensors


def install(torch):
    """Gives the fake torch what ``kiln.library.torch_operators`` registers with."""
    operators = types.SimpleNamespace()
    torch.ops = types.SimpleNamespace(kiln=operators)
    torch.are_deterministic_algorithms_enabled = lambda: False
    torch.is_grad_enabled = lambda: True
    torch.Tag = types.SimpleNamespace(pt2_compliant_tag="pt2_compliant_tag")

    def named(qualified):
        namespace, name = qualified.split("::")
        assert namespace == "kiln"
        return getattr(operators, name)

    class Library:
        def __init__(self, namespace, kind):
            assert (namespace, kind) == ("kiln", "FRAGMENT")

        def define(self, schema, *, tags=()):
            assert tags == ("pt2_compliant_tag",)
            setattr(operators, schema.split("(")[0], Operator(schema))

        def impl(self, name, function, key):
            getattr(operators, name).kernels[key] = function

    def register_fake(qualified, function, *, lib):
        named(qualified).fake = function

    def register_autograd(qualified, backward, *, setup_context, lib):
        named(qualified).backward, named(qualified).save = backward, setup_context

    torch.library = types.SimpleNamespace(Library=Library, register_fake=register_fake, register_autograd=register_autograd)
    return operators
