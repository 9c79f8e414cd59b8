# SPDX-License-Identifier: Apache-2.0
"""A server that answers what a test wants, and speaks like an empty one that holds everything otherwise."""

import socket
import threading


class LyingServer:
    """`answer(words)` gives the bytes for a command, or None. It runs on the connection's own thread, and may take its time."""

    def __init__(self, answer):
        self.answer = answer
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.sockets = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.sockets.append(connection)
            threading.Thread(target=self._speak, args=(connection,), daemon=True).start()

    def _speak(self, connection):
        file = connection.makefile("rb")
        try:
            while line := file.readline():
                words = [file.read(int(file.readline()[1:]) + 2)[:-2] for _ in range(int(line[1:]))]
                connection.sendall(self.answer(words) or self._usual(words))
        except (OSError, ValueError):
            pass

    @staticmethod
    def _usual(words):
        answers = {b"CLUSTER": b"-ERR This instance has cluster support disabled\r\n", b"PING": b"+PONG\r\n", b"HMGET": b"*2\r\n$-1\r\n$-1\r\n",
                   b"PTTL": b":-2\r\n"}
        return answers.get(words[0], b"+OK\r\n")

    def end(self):
        for one in (self.listener, *self.sockets):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            one.close()
