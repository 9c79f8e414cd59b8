# SPDX-License-Identifier: Apache-2.0
"""An S3 server that others wrote, and which verifies signatures of version 4 as AWS' own library makes them: moto. KILN_MOTO names its command
(moto_server), with what comes before it."""

import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import urllib.parse
import urllib.request

from redis_servers import eventually, free_port

COMMAND = shlex.split(os.environ.get("KILN_MOTO", ""))
POLICY = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}'


class Moto:
    """What a user of it may do is asked from the moment on in which `kilnd`'s user is there."""

    def __init__(self, folder):
        self.folder, self.port = pathlib.Path(folder), free_port()
        self.folder.mkdir(parents=True)
        self.address = f"127.0.0.1:{self.port}"
        self.credentials = self.folder / "credentials"
        self.credentials.touch(mode=0o600)
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen([*COMMAND, "-H", "127.0.0.1", "-p", str(self.port)], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                            start_new_session=True)
        eventually(self._listens, limit=60.0)
        self._call("iam", Action="CreateUser", UserName="kilnd")
        self._call("iam", Action="PutUserPolicy", UserName="kilnd", PolicyName="all", PolicyDocument=POLICY)
        made = self._call("iam", Action="CreateAccessKey", UserName="kilnd")
        self.id, self.secret = (re.search(f"<{field}>(.*?)</{field}>", made)[1] for field in ("AccessKeyId", "SecretAccessKey"))
        self._request("PUT", "/kernels", service="s3")
        self._request("POST", "/moto-api/reset-auth", b"0", service="s3")  # nothing more without a signature that is right
        self.give(self.secret)

    def give(self, secret):
        self.credentials.write_text(f"{self.id}\n{secret}\n")

    def _listens(self):
        assert self.process.poll() is None, (self.folder / "log").read_text()
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
            return True
        except OSError:
            return False

    def _call(self, service, **fields):
        return self._request("POST", "/", urllib.parse.urlencode({**fields, "Version": "2010-05-08"}).encode(), service)

    def _request(self, method, path, body=None, service="s3"):
        request = urllib.request.Request(f"http://{self.address}{path}", body, method=method, headers={
            "Authorization": f"AWS4-HMAC-SHA256 Credential=nobody/20200101/us-east-1/{service}/aws4_request, SignedHeaders=host, Signature=0",
            "Content-Type": "application/x-www-form-urlencoded" if path == "/" else "text/plain"})
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.read().decode()

    def stop(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @property
    def options(self):
        return ["--object-store=s3://kernels/team", f"--object-endpoint=http://{self.address}", f"--object-credentials={self.credentials}"]

    @property
    def puts(self):
        """How many objects it has taken."""
        return len(re.findall(r'"PUT /kernels/team/[0-9a-f]+ HTTP/1.1" 200', (self.folder / "log").read_text()))
