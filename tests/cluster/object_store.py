# SPDX-License-Identifier: Apache-2.0
"""A small object store over HTTP: a bucket whose requests are signed as for S3, which it verifies by itself, or a folder with a password."""

import base64
import hashlib
import hmac
import http.server
import socket
import ssl
import threading
import time


def _hmac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def wrong_with(method, path, headers, body, key_id, secret, region, now=time.time):
    """AWS, "Create a signed AWS API request": None where the signature is right, else S3's word for what is wrong."""
    given = headers.get("Authorization", "")
    date, digest = headers.get("x-amz-date", ""), headers.get("x-amz-content-sha256", "")
    if not given.startswith("AWS4-HMAC-SHA256 "):
        return "AccessDenied"
    if digest != hashlib.sha256(body).hexdigest():
        return "XAmzContentSHA256Mismatch"
    if abs(time.mktime(time.strptime(date, "%Y%m%dT%H%M%SZ")) - time.timezone - now()) > 900:
        return "RequestTimeTooSkewed"
    fields = dict(part.strip().split("=", 1) for part in given.split(" ", 1)[1].split(","))
    scope = f"{date[:8]}/{region}/s3/aws4_request"
    if fields["Credential"] != f"{key_id}/{scope}":
        return "InvalidAccessKeyId"
    names = fields["SignedHeaders"].split(";")
    if not {"host", "x-amz-date", "x-amz-content-sha256"} <= set(names) or ("If-None-Match" in headers) != ("if-none-match" in names):
        return "SignatureDoesNotMatch"
    canonical = "\n".join([method, path, "", *(f"{name}:{headers.get(name, '').strip()}" for name in names), "", ";".join(names), digest])
    key = _hmac(b"AWS4" + secret.encode(), date[:8])
    for part in (region, "s3", "aws4_request"):
        key = _hmac(key, part)
    text = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    return None if hmac.compare_digest(_hmac(key, text).hex(), fields["Signature"]) else "SignatureDoesNotMatch"


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        self.server.store.connections.add(self.connection)

    def finish(self):
        self.server.store.connections.discard(self.connection)
        super().finish()

    def log_message(self, *_):
        pass

    def do_GET(self):
        store = self.server.store
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        time.sleep(store.delay)
        status, reply, more = store.answer(self.command, self.path, self.headers, body)
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(reply)}\r\n" + "".join(f"{line}\r\n" for line in more) + "\r\n"
        self.wfile.write(head.encode() + (b"" if self.command == "HEAD" else reply))  # at once: no packet waits for another

    do_HEAD = do_PUT = do_DELETE = do_GET


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_):
        pass  # of connections that end


class ObjectStore:
    """`objects`: path → bytes. Start and stop as often as wanted; what it holds stays."""

    REGION, KEY_ID, SECRET, PASSWORD = "eu-central-1", "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "open-sesame"

    def __init__(self, folder, certificate=None):
        folder.mkdir(parents=True, exist_ok=True)
        self.credentials, self.certificate = folder / "object-credentials", certificate
        self.objects, self.asked, self.connections = {}, [], set()
        self.delay, self.conditional = 0.0, True
        self.port = 0
        self.give((self.KEY_ID, self.SECRET) if certificate is None else ("kiln", self.PASSWORD))
        self.start()

    def give(self, lines):
        """Credentials to kilnd: those that it reads from now on."""
        self.credentials.touch(mode=0o600)
        self.credentials.write_text("".join(f"{line}\n" for line in lines))

    def start(self):
        self.server = _Server(("127.0.0.1", self.port), _Handler)
        self.server.store, self.port = self, self.server.server_address[1]
        if self.certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def stop(self):
        if self.server is None:
            return
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
        self.server = None
        for connection in list(self.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    @property
    def options(self):
        credentials = f"--object-credentials={self.credentials}"
        if self.certificate is not None:
            return [f"--object-store=https://127.0.0.1:{self.port}/kiln", f"--object-ca={self.certificate[0]}", credentials]
        return ["--object-store=s3://kernels/team", f"--object-endpoint=http://127.0.0.1:{self.port}", f"--object-region={self.REGION}", credentials]

    def path_of(self, key):
        return ("/kernels/team/" if self.certificate is None else "/kiln/") + key.hex()

    def _refusal(self, method, path, headers, body):
        if self.certificate is None:
            return wrong_with(method, path, headers, body, self.KEY_ID, self.SECRET, self.REGION)
        right = "Basic " + base64.b64encode(f"kiln:{self.PASSWORD}".encode()).decode()
        return None if headers.get("Authorization") == right else "AccessDenied"

    def answer(self, method, path, headers, body):
        """Status, body, and more headers."""
        self.asked.append(method)
        wrong = self._refusal(method, path, headers, body)
        if wrong is not None:
            return 403, f"<Error><Code>{wrong}</Code></Error>".encode(), []
        if method in ("GET", "HEAD"):
            found = self.objects.get(path)
            return (200, found, []) if found is not None else (404, b"<Error><Code>NoSuchKey</Code></Error>", [])
        if method == "DELETE":
            self.objects.pop(path, None)
            return 204, b"", []
        if headers.get("If-None-Match") == "*":
            if not self.conditional:
                return 501, b"<Error><Code>NotImplemented</Code></Error>", []
            if path in self.objects:
                return 412, b"<Error><Code>PreconditionFailed</Code></Error>", []
        self.objects[path] = body
        return 200, b"", []
