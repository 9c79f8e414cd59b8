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


def open_head(head):
    """key, metadata, the names and sizes of its blobs."""
    _, _, count, metadata_size, names_size, _, key = _FIXED.unpack_from(head)
    at = _FIXED.size + 44 * count
    metadata, names = head[at:at + metadata_size], head[at + metadata_size:at + metadata_size + names_size]
    blobs = []
    for index in range(count):
        size, name_size = struct.unpack_from("<QI", head, _FIXED.size + 44 * index)
        blobs.append((names[:name_size], size))
        names = names[name_size:]
    return key, metadata, blobs


def open_entry(head, body):
    """key, metadata, its blobs by their names: the reply, and perhaps the program."""
    key, metadata, sizes = open_head(head)
    blobs = {}
    for name, size in sizes:
        blobs[name], body = body[:size], body[size:]
    return key, metadata, blobs


def seal_entry(key, metadata, blobs):
    """head, body: an entry whose digests are right."""
    names, body = b"".join(blobs), b"".join(blobs.values())
    head = _FIXED.pack(b"KILNENT\n", 1, len(blobs), len(metadata), len(names), len(body), key)
    for name, blob in blobs.items():
        head += struct.pack("<QI", len(blob), len(name)) + hashlib.sha256(blob).digest()
    head += metadata + names
    return head + hashlib.sha256(head).digest(), body


def reply_in(blobs):
    """The name of the reply, which may have its tenant's behind it."""
    return next(name for name in blobs if name.startswith(b"reply"))


def size_of_head(packed):
    """Of an object of an object store: its head, and its frame behind that."""
    _, _, count, metadata, names, _, _ = _FIXED.unpack_from(packed)
    return _FIXED.size + 44 * count + metadata + names + 32


def spoilt(rng, pb, entry, foreign, others):
    """What must not be served in place of `entry` (key, head, frame): its kind, head and frame. `foreign`: key → what a stranger has sealed."""
    key, head, frame = entry
    kind = rng.choice(("damaged head", "damaged body", "swapped", "swapped body", "unsigned", "changed", "re-signed", "empty", "twice", "warned",
                       "durable", "another tenant's", "another program"))
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
        size = sum(size for _, size in open_head(head)[2])
        head, body = seal_entry(*forged(kind, pb, *open_entry(head, decompress(frame, size))))
        frame = compress(body)
    return kind, head, frame


def forged(kind, pb, key, metadata, blobs):
    """The parts of an entry whose digests would be right, and which says what nobody has signed."""
    name = reply_in(blobs)
    reply = pb.SealedReply.FromString(blobs[name])
    artifact = pb.Artifact.FromString(reply.artifact)
    artifact.code = b"planted" + artifact.code
    if kind == "unsigned":
        reply.ClearField("seal")
    elif kind == "changed":
        reply.artifact = artifact.SerializeToString()
    elif kind == "warned":
        reply.diagnostics.append(pb.Diagnostic(message="nobody has said so").SerializeToString())
    blobs = blobs | {name: reply.SerializeToString()}
    if kind == "twice":  # of which readers take the last
        blobs[name] += pb.SealedReply(artifact=artifact.SerializeToString()).SerializeToString()
    elif kind == "durable":
        blobs[name] += pb.CompileReply(durable=True).SerializeToString()
    elif kind == "another program":
        blobs[b"module"] = b"kiln 1\nfunc @planted() {}\n"
    elif kind == "another tenant's":
        label = pb.CacheEntry.FromString(metadata)
        label.tenant = "another"
        metadata = label.SerializeToString()
        blobs = {blob.split(b" of ")[0] + b" of another": data for blob, data in blobs.items()}
    return key, metadata, blobs
