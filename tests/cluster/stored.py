# SPDX-License-Identifier: Apache-2.0
"""Entries as the store has them (cache/entry.h, cache/outside/packed_entry.h, cache/redis/names.h): taken apart, changed, and sealed again."""

import ctypes
import ctypes.util
import hashlib
import struct

_zstd = ctypes.CDLL(ctypes.util.find_library("zstd"))
_zstd.ZSTD_compressBound.restype = _zstd.ZSTD_compress.restype = _zstd.ZSTD_decompress.restype = ctypes.c_size_t
_FIXED = struct.Struct("<8sIIIIQ32s")


def compress(data):
    out = ctypes.create_string_buffer(_zstd.ZSTD_compressBound(ctypes.c_size_t(len(data))))
    size = _zstd.ZSTD_compress(out, ctypes.c_size_t(len(out)), data, ctypes.c_size_t(len(data)), 1)
    return out.raw[:size]


def decompress(frame, size):
    out = ctypes.create_string_buffer(size)
    assert _zstd.ZSTD_decompress(out, ctypes.c_size_t(size), frame, ctypes.c_size_t(len(frame))) == size
    return out.raw


def name_of(key):
    return f"kiln:1:{{{key.hex()}}}"


def open_entry(head, frame):
    """key, metadata, the name of its one blob, the blob."""
    _, _, count, metadata, names, body, key = _FIXED.unpack_from(head)
    assert count == 1
    at = _FIXED.size + 44
    return key, head[at:at + metadata], head[at + metadata:at + metadata + names], decompress(frame, body)


def seal_entry(key, metadata, name, blob):
    """head, frame: an entry whose digests are right."""
    head = _FIXED.pack(b"KILNENT\n", 1, 1, len(metadata), len(name), len(blob), key)
    head += struct.pack("<QI", len(blob), len(name)) + hashlib.sha256(blob).digest() + metadata + name
    return head + hashlib.sha256(head).digest(), compress(blob)


def size_of_head(packed):
    """Of an object of an object store: its head, and its frame behind that."""
    _, _, count, metadata, names, _, _ = _FIXED.unpack_from(packed)
    return _FIXED.size + 44 * count + metadata + names + 32


def spoilt(rng, pb, entry, foreign, others):
    """What must not be served in place of `entry` (key, head, frame): its kind, head and frame. `foreign`: key → what a stranger has sealed."""
    key, head, frame = entry
    kind = rng.choice(("damaged head", "damaged body", "swapped", "swapped body", "unsigned", "changed", "re-signed", "empty", "twice", "warned",
                       "durable", "another tenant's"))
    if kind == "damaged head":
        at = rng.randrange(len(head))
        head = head[:at] + bytes([head[at] ^ (1 << rng.randrange(8))]) + head[at + 1:]
    elif kind == "damaged body":
        frame = frame[:rng.randrange(len(frame))]
    elif kind == "swapped":
        head, frame = rng.choice(others)
    elif kind == "swapped body":
        frame = rng.choice(others)[1]
    elif kind == "empty":
        head = b""
    elif kind == "re-signed":
        head, frame = foreign[key]
    else:
        _, metadata, name, blob = open_entry(head, frame)
        reply = pb.SealedReply.FromString(blob)
        artifact = pb.Artifact.FromString(reply.artifact)
        artifact.code = b"planted" + artifact.code
        reply.artifact = artifact.SerializeToString()
        if kind == "unsigned":
            reply.ClearField("seal")
        head, frame = seal_entry(key, metadata, name, reply.SerializeToString())
    return kind, head, frame
