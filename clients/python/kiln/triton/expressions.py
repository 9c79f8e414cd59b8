# SPDX-License-Identifier: Apache-2.0
"""The expressions of a kernel, read from its syntax tree. What is known when the kernel is compiled is a Python object; what is not is a
Value. Names are looked up as objects, so an alias of ``tl.exp`` is ``tl.exp``."""

from __future__ import annotations

import ast
import builtins
import types as python_types

from . import language as tl
from . import types as ty
from .build import Builder, describe, is_number
from .builtin import Absent, Builtin, constexpr, unwrapped
from .errors import CompilationError, CompileTimeAssertionFailure, FailedAssertion, Refusal, at
from .foreign import as_ours
from .graph import PURE, Block, Value

_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**", ast.BitAnd: "&",
              ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>", ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=",
              ast.Gt: ">", ast.GtE: ">="}
_STATIC_FUNCTIONS = {len, int, float, bool, str, abs, isinstance, getattr, hasattr, tuple, list, repr, type, round, divmod, pow, zip, enumerate,
                     reversed, sum, all, any}
_FUNCTION = (python_types.FunctionType, python_types.BuiltinFunctionType, python_types.MethodType)


_CHANGES = (python_types.ModuleType, python_types.SimpleNamespace, type)  # whose attributes a program may set between two launches


class Poison:
    """What a name holds behind an if or a loop that left it without one value; ``why``."""

    def __init__(self, why: str):
        self.why = why


class Bound:
    """A method of a value."""

    def __init__(self, function: Builtin, value):
        self.function, self.value = function, value
        self.__name__ = function.__name__


class StaticFunction:
    """A Python function that kernels call with what is known when they are compiled: triton.constexpr_function."""

    def __init__(self, function, on_values: Builtin | None = None):
        self.function, self.on_values = function, on_values
        self.__name__, self.__doc__, self.__wrapped__ = function.__name__, function.__doc__, function

    def __call__(self, *args, **kwargs):
        return self.function(*(unwrapped(a) for a in args), **{k: unwrapped(v) for k, v in kwargs.items()})


class Frame:
    """A function that is being read: its names, and where it stands. ``constants``: names that a bare annotation made tl.constexpr."""

    def __init__(self, jit, scope: dict):
        self.jit, self.scope, self.file, self.constants = jit, scope, jit.file, set()


def static(x) -> bool:
    """Whether it is known: no Value, and no tuple with one."""
    if isinstance(x, (tuple, list)):
        return all(static(e) for e in x)
    return not isinstance(x, Value)


def known_number(x):
    """The number that a scalar Value certainly is; else the thing itself."""
    return x.op.attrs["value"] if isinstance(x, Value) and x.op is not None and x.op.name == "arith.constant" else x


def _is_argument(pointer: Value) -> bool:
    """Whether it is an argument's pointer, perhaps with something added."""
    while pointer.op is not None and pointer.op.name in ("tt.addptr", "tt.bitcast"):
        pointer = pointer.op.operands[0]
    return pointer.op is None and not pointer.shape and pointer.home is not None and pointer.home.parent is None


def _constant(x):
    """What a tl.constexpr holds; a Python function in one computes with constants."""
    held = unwrapped(x)
    return StaticFunction(held) if held is not x and isinstance(held, python_types.FunctionType) else held


class Expressions:
    """``visit`` gives what an expression is. ``used``: (globals, name, value) of each global that was read."""

    def __init__(self, builder: Builder):
        self.b, self.frames, self.used = builder, [], []
        builder.combiner, builder.call = self.combiner, self.call

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    def visit(self, node):
        self.b.line = getattr(node, "lineno", self.b.line)
        method = getattr(self, "expr_" + type(node).__name__, None)
        if method is None:
            raise Refusal(f"{_words(node)} is not part of Triton's language")
        return method(node)

    def failed(self, problem: Refusal) -> CompilationError:
        kind = CompileTimeAssertionFailure if isinstance(problem, FailedAssertion) else CompilationError
        return at(self.frame.file, self.b.line, str(problem), kind)

    # Names.

    def expr_Name(self, node):
        name = node.id
        if name in self.frame.scope:
            value = self.frame.scope[name]
            if isinstance(value, Poison):
                raise Refusal(f"{name} {value.why}")
            return value
        return self._outer(name)

    def _outer(self, name: str):
        """Of the function around the kernel's, of its module, of Python."""
        for names in self.frame.jit.outer_names():
            if name in names:
                return self._global(names, name)
        if hasattr(builtins, name):
            return getattr(builtins, name)
        raise Refusal(f"{name} is not defined")

    def _global(self, names, name: str):
        value = names[name]
        if is_number(value) or isinstance(value, (str, list, dict)) or isinstance(value, tuple) and not isinstance(value, type):
            raise Refusal(f"the global {name} is {describe(value)}; kernels see globals that are constants: write {name} = tl.constexpr(…), or pass "
                          "it as a parameter")
        self.used.append((names, name, value))
        return _constant(as_ours(value))

    def expr_Constant(self, node):
        return node.value

    def expr_Tuple(self, node):
        return tuple(self._elements(node.elts))

    def expr_List(self, node):
        return self._elements(node.elts)

    def _elements(self, nodes) -> list:
        elements = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                elements.extend(self._sequence(self.visit(node.value)))
            else:
                elements.append(self.visit(node))
        return elements

    @staticmethod
    def _sequence(x):
        if not isinstance(x, (tuple, list)):
            raise Refusal(f"*{describe(x)}: a tuple is needed")
        return x

    def expr_Attribute(self, node):
        owner, name = self.visit(node.value), node.attr
        if isinstance(owner, Value) or is_number(owner):
            return self._of_value(owner, name)
        if isinstance(owner, Absent):
            raise owner.refusal()
        methods = getattr(type(owner), "METHODS", {})
        if name in methods:
            return Bound(methods[name], owner)
        try:
            value = getattr(owner, name)
            if isinstance(owner, _CHANGES) and vars(owner).get(name) is value and not getattr(owner, "__name__", "").startswith("kiln."):
                self.used.append((vars(owner), name, value))
            return _constant(as_ours(value))
        except AttributeError as problem:
            if name == "type" and isinstance(owner, (tuple, list)) and static(owner):
                return constexpr(owner)
            if name == "value" and isinstance(owner, (ty.dtype, str, tuple, list)) and static(owner):  # what a tl.constexpr holds
                return owner
            raise Refusal(str(problem)) from None

    def _of_value(self, x, name: str):
        if is_number(x) and name in ("value", "type"):
            return x if name == "value" else constexpr(x)
        if tl.method(name) is not None:
            return Bound(tl.method(name), x)
        if name in tl.ABSENT:
            raise tl.ABSENT[name].refusal()
        x = self.b.value(x)
        if name in ("dtype", "type", "shape", "numel"):
            return {"dtype": x.element, "type": x.type, "shape": x.shape, "numel": x.numel}[name]
        if name == "T":
            return tl.trans.run(self.b, x)
        raise Refusal(f"{describe(x)} has no attribute {name}")

    # Operators.

    def expr_BinOp(self, node):
        a, b = self.visit(node.left), self.visit(node.right)
        self.b.line = node.lineno
        return self._operator(type(node.op), a, b)

    def _operator(self, kind, a, b):
        if kind not in _OPERATORS:
            raise Refusal(f"the operator {kind.__name__} of values; " + ("write tl.dot(a, b)" if kind is ast.MatMult else "it is not Triton's"))
        return self.b.binary(_OPERATORS[kind], a, b)

    def expr_UnaryOp(self, node):
        x = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return not x if static(x) or x.element.is_ptr() and _is_argument(x) else self.b.inverted(self.b.condition(x))
        if isinstance(node.op, ast.UAdd):
            return x
        return self.b.negative(x) if isinstance(node.op, ast.USub) else self.b.inverted(x)

    def expr_Compare(self, node):
        if len(node.ops) > 1:
            raise Refusal("a comparison of more than two values; write (a < b) & (b < c)")
        a, b, op = self.visit(node.left), self.visit(node.comparators[0]), node.ops[0]
        if isinstance(op, (ast.Is, ast.IsNot)):
            return (a is b) == isinstance(op, ast.Is)
        if isinstance(op, (ast.In, ast.NotIn)):
            if not static(a) or not static(b):
                raise Refusal("`in` of values that are known only when the kernel runs")
            return (a in b) == isinstance(op, ast.In)
        if (a is None or b is None) and isinstance(op, (ast.Eq, ast.NotEq)):
            return (a is b) == isinstance(op, ast.Eq)
        if a is None or b is None:
            raise Refusal("None is less or greater than nothing; compare it with `is None`")
        return self.b.binary(_OPERATORS[type(op)], a, b)

    def expr_BoolOp(self, node):
        is_and = isinstance(node.op, ast.And)
        result = self.visit(node.values[0])
        for part in node.values[1:]:
            if static(result):
                if bool(result) != is_and:
                    return result
                result = self.visit(part)
                continue
            other = self.visit(part)
            if not static(other):
                result = self.b.logical("AND" if is_and else "OR", result, other)
            elif bool(other) != is_and:  # which decides, whatever the others are
                return other
        return result

    def expr_NamedExpr(self, node):
        self.frame.scope[node.target.id] = value = self.visit(node.value)
        return value

    def expr_IfExp(self, node):
        condition = self.test(node.test)
        if static(condition):
            return self.visit(node.body if condition else node.orelse)
        blocks, sides = [], []
        for part in (node.body, node.orelse):
            with self.within() as block:
                sides.append(self.visit(part))
            blocks.append(block)
        a, b = sides
        pure = all(op.name in PURE for block in blocks for op in block.ops) and all(isinstance(x, Value) or is_number(x) for x in sides)
        pointers = [x.element for x in sides if isinstance(x, Value) and x.element.is_ptr()]
        if not pure or len(pointers) == 2 and pointers[0] != pointers[1]:
            return self.merged(self.scalar(condition), blocks, [a], [b], ["the conditional expression"])[0]
        for block in blocks:
            self.b.block.take_over(block)
        return self.b.select(self.scalar(condition), a, b)

    def test(self, node):
        """What a branch asks. The pointer of an argument is no null pointer."""
        value = self.visit(node)
        return True if isinstance(value, Value) and value.element.is_ptr() and _is_argument(value) else known_number(value)

    def scalar(self, condition) -> Value:
        condition = self.b.condition(condition)
        if condition.numel == 1:
            return self.b.reshape(condition, ())
        if condition.shape:
            raise Refusal(f"a condition of shape {list(condition.shape)} chooses a branch, and one value is needed; tl.where chooses element by "
                          "element")
        return condition

    # Indexing and calls.

    def expr_Slice(self, node):
        return slice(*(None if part is None else self.visit(part) for part in (node.lower, node.upper, node.step)))

    def expr_Subscript(self, node):
        x, index = self.visit(node.value), self.visit(node.slice)
        if isinstance(x, Value):
            return self._indexed(x, index if isinstance(index, (tuple, list)) else (index,))
        if "[]" in getattr(type(x), "METHODS", {}):
            return type(x).METHODS["[]"].bind(self.b, [x, index], {})
        index = known_number(index)
        if not static(index):
            raise Refusal("an index that is known only when the kernel runs; write the tuple's cases as branches, or load from a tensor")
        try:
            return unwrapped(x[index])
        except (TypeError, IndexError, KeyError) as problem:
            raise Refusal(f"{describe(x)}: {problem}") from None

    def _indexed(self, x: Value, index) -> Value:
        """None is a dimension of the extent 1; a colon takes any that is there, or, as in Triton, none. Of a scalar any None makes a block."""
        for axis, part in enumerate(index):
            if part is None:
                x = self.b.expand(x, axis if x.shape else 0)
            elif not (isinstance(part, slice) and part == slice(None)):
                raise Refusal("unsupported tensor index: a block is indexed with : and None alone; tl.gather takes out elements, or load them")
        return x

    def expr_Call(self, node):
        function = self.visit(node.func)
        args = self._elements(node.args)
        kwargs = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise Refusal("**arguments in a call; write them one by one")
            kwargs[keyword.arg] = self.visit(keyword.value)
        self.b.line = node.lineno
        return self.call(function, args, kwargs)

    def call(self, function, args, kwargs):
        if isinstance(function, Builtin):
            return function.bind(self.b, args, kwargs)
        if isinstance(function, Bound):
            return self.call(function.function, [function.value, *args], kwargs)
        if isinstance(function, Absent):
            raise function.refusal()
        if hasattr(function, "kiln_kernel"):
            return self.inline(function, args, kwargs)
        return self._python(function, args, kwargs)

    def _python(self, function, args, kwargs):
        if isinstance(function, StaticFunction) and function.on_values and not all(map(static, args)):
            return function.on_values.bind(self.b, args, kwargs)
        if function in (min, max):
            return self._extreme(function, args)
        if function is range:
            return tl.range(*args)
        if function is print:
            return tl.device_print.bind(self.b, args, kwargs)
        if function in (tl.range, tl.static_range, ty.pointer_type, constexpr):
            return unwrapped(function(*args, **kwargs))
        if isinstance(function, type) and issubclass(function, tuple) and hasattr(function, "_fields"):
            return function(*args, **kwargs)
        if getattr(function, "__triton_builtin__", False):
            return self._written_in_python(function, args, kwargs)
        owner = getattr(function, "__self__", None)
        allowed = isinstance(function, StaticFunction) or isinstance(owner, (ty.dtype, ty.pointer_type, ty.block_type, str)) or \
            function.__hash__ and function in _STATIC_FUNCTIONS
        if not allowed:
            raise Refusal(f"a kernel calls {describe(function)}, which is not Triton's; decorate it with @triton.jit"
                          + (", or with @triton.constexpr_function if it computes with constants" if isinstance(function, _FUNCTION) else ""))
        return self._static_call(function, args, kwargs)

    def _written_in_python(self, function, args, kwargs):
        """A program's own builtin, as torch.compile has them: it is called while the kernel is compiled, and finds constants as tl.constexpr."""
        def given(x):
            return x if isinstance(x, Value) else constexpr(x)

        try:
            return unwrapped(function(*map(given, args), **{name: given(x) for name, x in kwargs.items()}))
        except Exception as problem:  # the program's own, told with the kernel's line
            raise Refusal(f"{getattr(function, '__name__', function)}: {problem}") from problem

    def _static_call(self, function, args, kwargs):
        args = [known_number(a) for a in args] if function in (int, float, bool) else args
        if function not in (len, isinstance, getattr, hasattr, type, tuple, list) and not all(map(static, (*args, *kwargs.values()))):
            raise Refusal(f"{getattr(function, '__name__', function)} of a value that is known only when the kernel runs"
                          + ("; .to(tl.int32) and its like convert values" if function in (int, float, bool) else ""))
        if function is isinstance and isinstance(args[0], Value):
            return args[1] is Value or isinstance(args[1], tuple) and Value in args[1]
        if function is len and isinstance(args[0], Value):
            return args[0].shape[0] if args[0].shape else 1
        if function in (getattr, hasattr) and isinstance(args[0], Value):
            return self._attribute(function, *args)
        try:
            return unwrapped(function(*args, **kwargs))
        except Exception as problem:  # the kernel's own, told with its line
            raise Refusal(f"{getattr(function, '__name__', function)}: {problem}") from problem

    def _attribute(self, function, x: Value, name: str, *otherwise):
        """getattr and hasattr of a value."""
        try:
            found = self._of_value(x, name)
        except Refusal:
            if function is getattr and not otherwise:
                raise
            return otherwise[0] if function is getattr else False
        return found if function is getattr else True

    def _extreme(self, function, args):
        args = list(args[0]) if len(args) == 1 and isinstance(args[0], (tuple, list)) else args
        if all(is_number(a) for a in args):
            return function(args)
        operation = tl.minimum if function is min else tl.maximum
        result = args[0]
        for other in args[1:]:
            result = operation.run(self.b, result, other)
        return result

    def expr_JoinedStr(self, node):
        return "".join(self.visit(part) if isinstance(part, ast.Constant) else str(self.visit(part.value)) for part in node.values)

    def expr_ListComp(self, node):
        if len(node.generators) != 1 or node.generators[0].ifs or not isinstance(node.generators[0].target, ast.Name):
            raise Refusal("a list comprehension with conditions or several loops; write it out")
        generator, results = node.generators[0], []
        source = self.visit(generator.iter)
        items = source.values if isinstance(source, tl.static_range) else \
            range(*source.bounds, source.step) if isinstance(source, tl.range) and static((*source.bounds, source.step)) else source
        if isinstance(items, tl.range):
            raise Refusal("a list comprehension over a range that is known only when the kernel runs")
        outer = dict(self.frame.scope)
        for item in items:
            self.frame.scope[generator.target.id] = item
            results.append(self.visit(node.elt))
        self.frame.scope = outer
        return results

    def combiner(self, function, element):
        """The one operation that a combining function of tl.reduce is, or None."""
        if isinstance(function, Builtin):
            named = {"maximum": "MAX", "minimum": "MIN", "add": "ADD"}.get(function.__name__)
            if named:
                return named
        block = Block(None, self.b.block)
        a, b = block.argument(element), block.argument(element)
        with self.within(block):
            result = self.call(function, [a, b], {})
        op = result.op if isinstance(result, Value) else None
        if op is None or op.name != "arith.binary" or set(op.operands) != {a, b} or op.attrs["fn"] not in (
                "ADD", "MAX", "MIN", "BIT_AND", "BIT_OR", "BIT_XOR"):
            return None
        return op.attrs["fn"]


def _words(node) -> str:
    return {"Lambda": "a lambda", "Dict": "a dictionary", "Await": "await", "GeneratorExp": "a generator", "SetComp": "a set",
            "DictComp": "a dictionary"}.get(type(node).__name__, f"`{ast.unparse(node)}`")
