# SPDX-License-Identifier: Apache-2.0
"""Message classes made at run time from a descriptor set, so that any protobuf release from 3.20 serves.

The descriptor set is ``$KILN_DESCRIPTOR`` where that is set, else ``kiln.desc`` in this package, where the build and the bundle put it."""

from __future__ import annotations

import functools
import os
import pathlib

PACKAGE = "kiln.v1"

# Older protobuf releases do not tell which methods stream.
SERVER_STREAMING = frozenset(("CompileStream", "EnsureKernels", "CacheList", "CacheHot", "CacheExport", "Run", "Tune", "Rank", "Watch"))
CLIENT_STREAMING = frozenset(("CacheImport", "Run", "Tune"))


class Messages:
    """``messages().Module`` and so on; ``enums["DType"]`` is an enum's descriptor; ``service`` the service's."""

    def __init__(self, serialized: bytes):
        from google.protobuf import descriptor_pb2, descriptor_pool

        self._pool = descriptor_pool.DescriptorPool()
        self.enums = {}
        files = descriptor_pb2.FileDescriptorSet.FromString(serialized).file
        for file in files:
            self._pool.AddSerializedFile(file.SerializeToString())
        for file in files:
            for message in file.message_type:
                setattr(self, message.name, self._class(f"{file.package}.{message.name}"))
            for enum in file.enum_type:
                self.enums[enum.name] = self._pool.FindEnumTypeByName(f"{file.package}.{enum.name}")
        self.service = self._pool.FindServiceByName(f"{PACKAGE}.Kiln")

    def _class(self, name: str):
        descriptor = self._pool.FindMessageTypeByName(name)
        from google.protobuf import message_factory

        if hasattr(message_factory, "GetMessageClass"):
            return message_factory.GetMessageClass(descriptor)
        return message_factory.MessageFactory(self._pool).GetPrototype(descriptor)

    def status_detail(self, status: bytes, name: str):
        """The detail of this message type in a serialized google.rpc.Status, or None."""
        for detail in self.Status.FromString(status).details:
            if detail.type_url.rsplit(".", 1)[-1] == name:
                return getattr(self, name).FromString(detail.value)
        return None

    def enum_name(self, enum: str, number: int) -> str:
        value = self.enums[enum].values_by_number.get(number)
        return value.name if value is not None else str(number)


def descriptor_path() -> pathlib.Path:
    named = os.environ.get("KILN_DESCRIPTOR")
    path = pathlib.Path(named) if named else pathlib.Path(__file__).with_name("kiln.desc")
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}, the description of Kiln's messages, is missing. An installed package has it; in a source tree build the target "
            "kiln_python and put <build>/python on PYTHONPATH, or set KILN_DESCRIPTOR=<build>/proto/kiln.desc"
        )
    return path


@functools.lru_cache(maxsize=1)
def messages() -> Messages:
    return Messages(descriptor_path().read_bytes())
