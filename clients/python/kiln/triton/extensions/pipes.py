# SPDX-License-Identifier: Apache-2.0
"""``tle.pipe``: a ring of buffers that one group of warps fills and others read. Turn i is in slot i modulo the capacity. Between groups of
tle.gpu.warp_specialize its barriers make the writer wait until a slot is free, and readers until it is full; where one group does both, each
statement sees what those before it did, and there is nothing to wait for."""

from __future__ import annotations

import functools
from collections import namedtuple
from typing import NamedTuple

from .. import types as ty
from ..build import describe
from ..errors import Refusal
from ..graph import Value
from ..shapes import integer_of
from .buffers import METHODS as BUFFERS
from .buffers import Memory, buffered_tensor
from .tiles import builtin

MOST = 32  # slots


class Ring:
    """What one tle.pipe makes. ``closes``: whether the program says anywhere that no more comes."""

    def __init__(self, capacity: int, readers: tuple, one_shot: bool, name: str):
        self.capacity, self.readers, self.one_shot, self.name, self.closes = capacity, readers, one_shot, name, False


class pipe_of(NamedTuple):
    ring: Ring
    names: tuple
    fields: tuple
    ends: buffered_tensor

    def named(self, name: str) -> None:
        self.ring.name = self.ring.name or name

    def __str__(self):
        return f"{self.ring.name} of {self.ring.capacity} slots"


class writer_of(NamedTuple):
    pipe: pipe_of


class reader_of(NamedTuple):
    pipe: pipe_of
    name: str


@builtin
def pipe(b, capacity, scope="cta", name=None, readers=None, one_shot=False, **fields):
    """``fields``: buffers whose first dimension is the capacity. ``readers``: the names of those that read each slot; without, one does.
    ``one_shot``: each slot is filled once, so that nobody waits until it is free."""
    count = integer_of(capacity, "the capacity of tle.pipe")
    if not 1 <= count <= MOST:
        raise Refusal(f"tle.pipe(capacity={count}); it has from 1 to {MOST} slots")
    if scope != "cta":
        raise Refusal(f"tle.pipe(scope={describe(scope)}): a pipe is one block's; blocks of a cluster exchange data by T.copy_cluster of Kiln's tile "
                      "language")
    if not fields:
        raise Refusal("tle.pipe without fields; give the buffers of its slots by name, as tle.pipe(capacity=2, a=buffer)")
    for field, buffer in fields.items():
        if not isinstance(buffer, buffered_tensor) or buffer.rank < 2 or buffer.shape[0] != count:
            raise Refusal(f"the field {field} of tle.pipe(capacity={count}) is {describe(buffer)}; a buffer of two dimensions or more is needed, the "
                          "first of them the capacity")
        buffer.named(field)
    names = tuple(readers) if isinstance(readers, (tuple, list)) else () if readers is None else (readers,)
    if any(not isinstance(one, str) for one in names) or len(set(names)) < len(names):
        raise Refusal(f"tle.pipe(readers={describe(readers)}); they are different names")
    if name is not None and not isinstance(name, str):
        raise Refusal(f"tle.pipe(name={describe(name)}); a name is a text")
    ring = Ring(count, names or ("",), bool(one_shot), name or "")
    ends = buffered_tensor(Memory((count,), ty.int32), (), (count,))  # which slots say that the pipe is closed
    made = pipe_of(ring, tuple(fields), tuple(fields.values()), ends)
    b.emit("tle.pipe", (), ring=ring, ends=ends)
    return made


@builtin
def _writer(b, pipe):
    return writer_of(pipe)


@builtin
def _reader(b, pipe, name=None, fields=None):
    """``name``: which of the pipe's readers it is. ``fields``: those that its slots have; without, all."""
    if name is None and len(pipe.ring.readers) == 1:
        name = pipe.ring.readers[0]
    if name not in pipe.ring.readers:
        raise Refusal(f"reader({describe(name)}) of a pipe whose readers are {', '.join(map(repr, pipe.ring.readers))}")
    chosen = pipe.names if fields is None else tuple(fields) if isinstance(fields, (tuple, list)) else (fields,)
    unknown = [field for field in chosen if field not in pipe.names]
    if unknown:
        raise Refusal(f"reader(fields=…) names {', '.join(map(describe, unknown))}; the pipe has {', '.join(pipe.names)}")
    parts = dict(zip(pipe.names, pipe.fields))
    return reader_of(pipe._replace(names=chosen, fields=tuple(parts[field] for field in chosen)), name)


@functools.lru_cache(maxsize=None)
def _slots(names: tuple):
    return namedtuple("slot", names)


def _turn(b, pipe: pipe_of, index, kind: str, reader: str = "") -> Value:
    """The slot's number."""
    index = b.value(index, f"the turn of {kind}")
    if index.shape or not index.element.is_int():
        raise Refusal(f"the turn of {kind} is {describe(index)}; a scalar integer is needed")
    index = b.cast(index, ty.int32)
    stage = b.binary("%", index, pipe.ring.capacity)
    b.emit("tle.turn", [index], ring=pipe.ring, kind=kind, reader=reader)
    return stage


def _slot(b, pipe: pipe_of, stage):
    return _slots(pipe.names)(*(BUFFERS["slot"].run(b, field, stage) for field in pipe.fields))


@builtin
def _acquire(b, writer, index):
    """The slot of a turn, when it is free: slot.field is a buffer."""
    return _slot(b, writer.pipe, _turn(b, writer.pipe, index, "acquire"))


@builtin
def _commit(b, writer, index):
    """The slot is filled."""
    _turn(b, writer.pipe, index, "commit")


@builtin
def _close(b, writer, index):
    """From this turn on nothing comes."""
    pipe = writer.pipe
    stage = _turn(b, pipe, index, "acquire")
    pipe.ring.closes = True
    BUFFERS["store"].run(b, BUFFERS["subslice"].run(b, pipe.ends, stage, 1), 1)
    _turn(b, pipe, index, "commit")


@builtin
def _wait(b, reader, index):
    """(the slot of a turn, when it is full; whether the pipe is closed instead)"""
    stage = _turn(b, reader.pipe, index, "wait", reader.name)
    closed = b.emit("tle.is_closed", [stage], [(ty.int1, ())], ring=reader.pipe.ring, ends=reader.pipe.ends).result
    return _slot(b, reader.pipe, stage), closed


@builtin
def _release(b, reader, index):
    """The reader needs the slot no more."""
    _turn(b, reader.pipe, index, "release", reader.name)


pipe_of.METHODS = {"writer": _writer, "reader": _reader}
writer_of.METHODS = {"acquire": _acquire, "commit": _commit, "close": _close}
reader_of.METHODS = {"wait": _wait, "release": _release}
