# SPDX-License-Identifier: Apache-2.0
"""An object store that others wrote: s3rver, of npm. KILN_S3RVER names its command; it reads signatures of version 4, and does not verify them."""

import os
import pathlib
import socket
import subprocess

from redis_servers import eventually, free_port

COMMAND = os.environ.get("KILN_S3RVER")


class S3rver:
    """Start and stop as often as wanted; what it holds stays."""

    KEY = "S3RVER"  # its key's id, and the secret

    def __init__(self, folder):
        self.folder, self.port, self.process = pathlib.Path(folder), free_port(), None
        self.folder.mkdir(parents=True)
        self.address = f"127.0.0.1:{self.port}"
        self.credentials = self.folder / "credentials"
        self.credentials.touch(mode=0o600)
        self.credentials.write_text(f"{self.KEY}\n{self.KEY}\n")
        self.start()

    def start(self):
        command = [COMMAND, "-d", str(self.folder / "data"), "-a", "127.0.0.1", "-p", str(self.port), "--no-vhost-buckets",
                   "--configure-bucket", "kernels"]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        eventually(self._listens)

    def _listens(self):
        assert self.process.poll() is None, (self.folder / "log").read_text()
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
            return True
        except OSError:
            return False

    def stop(self):
        self.process.terminate()
        self.process.wait()

    @property
    def options(self):
        return ["--object-store=s3://kernels/team", f"--object-endpoint=http://{self.address}", f"--object-credentials={self.credentials}"]

    @property
    def count(self):
        """How many objects it holds."""
        return sum(1 for _ in (self.folder / "data" / "kernels" / "team").glob("*_object"))
