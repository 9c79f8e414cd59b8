#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A client of its own making that begins messages and never ends them, in HTTP/2's frames, since no client of gRPC's does that.

As a command it floods a kilnd, over TLS or on its socket, until its standard input ends; then it prints what it was told.

    tests/access/half_sender.py HOST:PORT ROOTS.pem [TOKEN]
    tests/access/half_sender.py unix:PATH"""
import collections
import contextlib
import os
import socket
import ssl
import struct
import sys
import threading
import time

MIB = 1 << 20


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name, value):
    assert len(name) < 127 and len(value) < 127
    return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value


def headers(token):
    return b"".join(literal(*pair) for pair in (
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/kiln.v1.Kiln/Compile"), (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"), (b"te", b"trailers"), (b"authorization", b"Bearer " + token.encode())))


class HalfSender:
    """One connection with streams, each with a message that lacks its last byte."""

    def __init__(self, connection, streams, message=8 * MIB, token="kiln_nobody", again=False):
        self.socket, self.streams, self.message, self.again = connection, streams, message, again
        self.headers = headers(token)
        self.socket.settimeout(0.2)
        self.window, self.initial = 65535, 65535
        self.next, self.left, self.windows = 1, {}, {}
        self.buffer = b""
        self.opened, self.ended = 0, collections.Counter()  # how streams ended

    def run(self, seconds, stop=lambda: False):
        with contextlib.suppress(OSError):  # kilnd has closed it
            self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0))
            self.open()
            end = time.monotonic() + seconds
            while time.monotonic() < end and self.left and not stop():
                self.send()
                self.receive()
                if self.again:
                    self.open()
        return self

    def open(self):
        while len(self.left) < self.streams:
            stream, self.next = self.next, self.next + 2
            self.left[stream], self.windows[stream] = self.message - 1, self.initial - 5  # for the message's header
            self.window -= 5
            self.opened += 1
            self.socket.sendall(frame(1, 4, stream, self.headers) + frame(0, 0, stream, b"\0" + struct.pack(">I", self.message)))

    def send(self):
        for stream in list(self.left):
            size = min(16384, self.left[stream], self.window, self.windows[stream])
            while size > 0:
                self.socket.sendall(frame(0, 0, stream, bytes(size)))
                self.left[stream] -= size
                self.window -= size
                self.windows[stream] -= size
                size = min(16384, self.left[stream], self.window, self.windows[stream])

    def receive(self):
        try:
            got = self.socket.recv(65536)
            if not got:
                raise ConnectionError
            self.buffer += got
        except TimeoutError:
            return
        while len(self.buffer) >= 9 and len(self.buffer) >= 9 + (size := int.from_bytes(self.buffer[:3], "big")):
            kind, flags, stream = self.buffer[3], self.buffer[4], int.from_bytes(self.buffer[5:9], "big")
            self.take(kind, flags, stream, self.buffer[9:9 + size])
            self.buffer = self.buffer[9 + size:]

    def take(self, kind, flags, stream, payload):
        if kind == 4 and not flags & 1:
            for at in range(0, len(payload), 6):
                key, value = struct.unpack(">HI", payload[at:at + 6])
                if key == 4:
                    self.windows = {s: w + value - self.initial for s, w in self.windows.items()}
                    self.initial = value
            self.socket.sendall(frame(4, 1, 0))
        elif kind == 6 and not flags & 1:
            self.socket.sendall(frame(6, 1, 0, payload))
        elif kind == 8:
            more = int.from_bytes(payload, "big") & 0x7FFFFFFF
            if stream == 0:
                self.window += more
            elif stream in self.windows:
                self.windows[stream] += more
        elif kind == 3:
            self.end(stream, f"RST_STREAM {int.from_bytes(payload, 'big')}")
        elif kind == 1 and flags & 1:
            self.end(stream, "answered")

    def end(self, stream, how):
        if self.left.pop(stream, None) is not None:
            self.ended[how] += 1
            del self.windows[stream]


def over_tls(host, port, roots):
    context = ssl.create_default_context(cafile=str(roots))
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(socket.create_connection((host, port), timeout=10), server_hostname="localhost")


def on_socket(path):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    return connection


class Flood:
    """Connections that begin again whenever kilnd ends one, each with an idle one and half a handshake beside it."""

    STREAMS, PAUSE = 16, 0.05

    def __init__(self, address, roots=None, token="kiln_nobody", connections=16):
        if address.startswith("unix:"):
            self.connect = self.half = lambda: on_socket(address.removeprefix("unix:"))
        else:
            host, port = address.rsplit(":", 1)
            self.connect, self.half = lambda: over_tls(host, int(port), roots), lambda: socket.create_connection((host, int(port)))
        self.token, self.stopped, self.connections, self.ended = token, False, 0, collections.Counter()
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(connections)]
        for thread in self.threads:
            thread.start()

    def run(self):
        while not self.stopped:
            try:
                with self.connect() as connection, self.half() as half, self.connect():
                    half.sendall(b"\x16\x03\x01\x02\x00\x01\x00")  # the beginning of a ClientHello
                    self.connections += 1
                    sender = HalfSender(connection, self.STREAMS, token=self.token, again=True)
                    sender.run(3600, lambda: self.stopped or time.sleep(self.PAUSE))
                    self.ended.update(sender.ended)
                    self.ended["connection closed"] += not self.stopped
            except OSError:
                self.ended["no connection"] += 1
            time.sleep(self.PAUSE)

    def stop(self):
        self.stopped = True
        for thread in self.threads:
            thread.join(10)


def main():
    os.nice(19)  # whoever floods does so with processors of his own
    flood = Flood(*sys.argv[1:])
    print("flooding", flush=True)
    sys.stdin.read()
    flood.stop()
    print(dict(flood.ended), "connections:", flood.connections, flush=True)


if __name__ == "__main__":
    main()
