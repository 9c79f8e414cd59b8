# SPDX-License-Identifier: Apache-2.0
"""Strangers who send messages and never end them: what kilnd holds for them before it can ask who they are is bounded."""
import os
import pathlib
import socket
import struct
import subprocess
import threading
import time

from daemon import BUILD

MIB = 1 << 20
STREAMS, MESSAGE = 64, 8 * MIB


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name, value):
    return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value


HEADERS = b"".join(literal(*pair) for pair in (
    (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/kiln.v1.Kiln/Compile"), (b":authority", b"localhost"),
    (b"content-type", b"application/grpc"), (b"te", b"trailers"), (b"authorization", b"Bearer kiln_nobody")))


class Stranger:
    """One connection with streams, each with a message that lacks its last byte."""

    def __init__(self, path, streams):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.socket.settimeout(0.2)
        self.window, self.initial = 65535, 65535
        self.left = {1 + 2 * i: MESSAGE - 1 for i in range(streams)}
        self.windows = {stream: 0 for stream in self.left}
        self.buffer = b""

    def run(self, seconds):
        try:
            self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0))
            for stream in self.left:
                self.windows[stream] += self.initial
                self.socket.sendall(frame(1, 4, stream, HEADERS) + frame(0, 0, stream, b"\0" + struct.pack(">I", MESSAGE)))
            end = time.monotonic() + seconds
            while time.monotonic() < end and self.left:
                self.send()
                self.receive()
        except OSError:
            pass  # kilnd has closed it

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
            self.left.pop(stream, None)


def resident(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def growth(folder, sockets, seconds, *options):
    """Bytes that kilnd grows by while strangers send for that long."""
    folder.mkdir()
    path, log = pathlib.Path(sockets) / "kiln.sock", folder / "log"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KILN_")}
    with open(log, "wb") as output:
        kilnd = subprocess.Popen([BUILD / "bin" / "kilnd", f"--listen=unix:{path}", f"--state-dir={folder / 'state'}", "--ptxas=none", "--workers=1",
                                  *options], stdout=output, stderr=output, env=environment)
    try:
        end = time.monotonic() + 30
        while "event=serving" not in log.read_text():
            assert kilnd.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.02)
        before, most = resident(kilnd.pid), 0
        threads = [threading.Thread(target=Stranger(str(path), STREAMS // 8).run, args=(seconds,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            most = max(most, resident(kilnd.pid))
            time.sleep(0.05)
        for thread in threads:
            thread.join()
        assert kilnd.poll() is None
        return most - before
    finally:
        kilnd.terminate()
        kilnd.wait(30)


def test_what_strangers_send_is_bounded(tmp_path, sockets):
    for seconds in (4, 16, 60):  # the strangers need processors too
        free = growth(tmp_path / f"free for {seconds}", sockets, seconds, "--connection-memory=64GiB")
        if free > 200 * MIB:
            break
    bounded = growth(tmp_path / "bounded", sockets, seconds, "--connection-memory=32MiB")
    print(f"bounded: {bounded / MIB:.0f} MiB; free: {free / MIB:.0f} MiB")
    assert free > 200 * MIB, "the strangers get through where there is room"
    assert bounded < 120 * MIB and bounded < free / 2
