# SPDX-License-Identifier: Apache-2.0
"""A kilnd on a port of this host, with an authority that signs certificates. It needs the openssl command and the Python client."""

import os
import socket
import subprocess
import time

from daemon import BUILD

KILND, KILN = BUILD / "bin" / "kilnd", BUILD / "bin" / "kiln"
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("KILN_")}


def openssl(*words, text=""):
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, input=text, text=True)


class Authority:
    """A certificate authority in a folder, and what it signs."""

    def __init__(self, folder, name="authority"):
        self.folder = folder
        self.roots, self.key = folder / f"{name}.pem", folder / f"{name}.key"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                "-keyout", self.key, "-out", self.roots)

    def sign(self, name):
        """(certificate, key) files for a host or client of that name; files of the same name are replaced."""
        certificate, key, request = (self.folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{key}.new",
                "-out", request)
        openssl("x509", "-req", "-in", request, "-CA", self.roots, "-CAkey", self.key, "-CAcreateserial", "-days", "2", "-extfile", "/dev/stdin",
                "-out", f"{certificate}.new", text="subjectAltName=DNS:localhost")
        os.replace(f"{key}.new", key)
        os.replace(f"{certificate}.new", certificate)
        return certificate, key


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Host:
    """A kilnd on a port of this host."""

    def __init__(self, folder):
        self.folder, self.state, self.address = folder, folder / "state", f"localhost:{free_port()}"
        self.authority = Authority(folder)
        self.certificate, self.key = self.authority.sign("server")
        self.log, self.process = folder / "kilnd.log", None

    def command(self, *options):
        return [str(KILND), f"--listen={self.address}", f"--state-dir={self.state}", "--ptxas=none", "--workers=1", *map(str, options)]

    def start(self, *options):
        tls = (f"--tls-cert={self.certificate}", f"--tls-key={self.key}")
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command(*tls, *options), stdout=log, stderr=log, env=ENVIRONMENT)
        end = time.monotonic() + 30
        while "event=serving" not in self.text():
            assert self.process.poll() is None and time.monotonic() < end, self.text()
            time.sleep(0.02)

    def text(self):
        return self.log.read_text() if self.log.exists() else ""

    def token(self, name, **options):
        words = [str(KILND), "token", "new", name, f"--tokens={self.state / 'tokens'}", *(f"--{k}={v}" for k, v in options.items())]
        return subprocess.run(words, check=True, capture_output=True, text=True, env=ENVIRONMENT).stdout.strip()

    def client(self, certificate=None, token=None, roots=None):
        from kiln.client import Client

        chain, key = (file.read_bytes() for file in certificate) if certificate else (None, None)
        return Client(self.address, timeout=20, root_certificates=(roots or self.authority.roots).read_bytes(), certificate_chain=chain,
                      private_key=key, token=token)

    def kiln(self, *words, **environment):
        environment = {**ENVIRONMENT, "XDG_CONFIG_HOME": str(self.folder / "config"), "KILN_TLS_ROOTS": str(self.authority.roots),
                       "KILN_ADDRESS": self.address, **environment}
        return subprocess.run([str(KILN), "--json", "--timeout=20", *words], capture_output=True, text=True, env=environment, timeout=120)
