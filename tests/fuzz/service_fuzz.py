#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tenants that behave as badly as they can, with scopes and quotas of their own: a seeded sequence of calls (valid, changed in a few bytes,
cancelled, with the wrong token, with one that is revoked in mid-stream, abandoned, many at one time) to a real kilnd. After each, what must
always hold is asked:

- kilnd lives, and answers Stats;
- a reply that is OK carries the daemon's signature, and the same request always gives the same artifact;
- a caller without `compile` gets hits and refusals; nobody without a token gets anything; nobody gets what the tenant `vault` alone has asked
  for, neither by its key nor by its program; whoever has no seconds left gets hits and refusals;
- a token is worth nothing once it was revoked, for a stream that is under way neither;
- a status is one that the service documents, and comes;
at the end the store holds no more of a tenant than it may keep, kilnd stops in time with status 0, and no sanitizer has said anything.

    tests/fuzz/service_fuzz.py [--seconds 60] [--seed N] [--build build/asan]      prints a line, and the seed where it fails
"""

import argparse
import concurrent.futures
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATIENCE = 20.0  # seconds, of a call that is to be answered
DOCUMENTED = {"OK", "INVALID_ARGUMENT", "UNIMPLEMENTED", "NOT_FOUND", "PERMISSION_DENIED", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED",
              "UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "INTERNAL"}
ORDERS = {"answer": 0, "sleep": 1000, "abort": 2000, "fault": 3000, "refuse": 6000, "unsupported": 7000, "defect": 8000, "garbage": 10000,
          "exit": 11000}


TENANTS = """
[[tenant]]
name = "two"
store-bytes = 60000
requests = 6
[[tenant]]
name = "three"
compile-seconds = 0.0
[[tenant]]
name = "vault"
requests = 64
"""
STORE_BYTES = {"two": 60_000}
WHO = (("maker", "one", "read,compile"), ("spy", "spy", "read"), ("reader", "one", "read"), ("other", "two", "read,compile,run"),
       ("idler", "three", "read,compile,run"), ("keeper", "vault", "read,compile"), ("admin", "default", "admin,read"))


def with_libraries():
    """The environment of kilnd, which has its libraries beside it where tests/fuzz/pack put it. Not Python's: that has its own."""
    return os.environ | ({"LD_LIBRARY_PATH": str(ROOT / "lib")} if (ROOT / "lib").is_dir() else {})


class Daemon:
    def __init__(self, build, folder):
        self.folder, self.socket, self.log = folder, folder / "kiln.sock", folder / "kilnd.log"
        self.state = folder / "state"
        self.state.mkdir()
        self.build = build
        self.tokens = {name: self.make_token(name, tenant, scopes) for name, tenant, scopes in WHO}
        access = folder / "access.toml"
        access.touch(0o600)
        access.write_text(TENANTS)
        environment = {k: v for k, v in with_libraries().items() if not k.startswith("KILN_")}
        environment |= {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "detect_leaks=1") + ":abort_on_error=0",
                        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1"}
        command = [build / "bin" / "kilnd", f"--listen=unix:{self.socket}", f"--state-dir={self.state}", "--ptxas=none", "--workers=2", "--queue=16",
                   f"--worker-executable={build / 'bin' / 'kiln-fake-worker'}", "--compile-limit=5", "--memory-cache=1MiB", "--disk-cache=32MiB",
                   f"--access={access}"]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log, env=environment)
        end = time.monotonic() + 60
        while not self.socket.exists():
            self.check()
            assert time.monotonic() < end, "kilnd does not listen"
            time.sleep(0.05)

    def _token(self, *words):
        words = [self.build / "bin" / "kilnd", "token", *words, f"--tokens={self.state / 'tokens'}"]
        return subprocess.run([str(w) for w in words], check=True, capture_output=True, text=True, env=with_libraries()).stdout.strip()

    def make_token(self, name, tenant, scopes):
        return self._token("new", name, f"--tenant={tenant}", f"--scopes={scopes}")

    def revoke(self, name):
        self._token("revoke", name)

    def check(self):
        assert self.process.poll() is None, f"kilnd ended with {self.process.returncode}\n{self.tail()}"

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(60)
        text = self.log.read_text(errors="replace")
        for word in ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "runtime error:", "WARNING: ThreadSanitizer"):
            assert word not in text, f"{word}\n{self.tail(80)}"
        assert status == 0, f"kilnd ended with {status}\n{self.tail()}"

    def tail(self, lines=40):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Fuzzer:
    def __init__(self, daemon, seed):
        import grpc
        from kiln import _proto, _seal

        self.grpc, self.seal = grpc, _seal
        self.daemon, self.random, self.pb = daemon, random.Random(seed), _proto.messages()
        self.channel = grpc.insecure_channel(f"unix:{daemon.socket}", (("grpc.max_receive_message_length", -1),))
        self.pool = concurrent.futures.ThreadPoolExecutor(16)
        self.calls, self.statuses, self.artifacts, self.keys = 0, {}, {}, []
        self.methods = {m.name: m for m in self.pb.service.methods}
        corpus = sorted((ROOT / "tests/fuzz/corpus/ir_decode_fuzz").iterdir())
        modules = [path.read_bytes() for path in corpus]
        self.vault, self.modules = self.divided(modules, 3)  # of the first only `keeper` may know
        self.vault_keys, self.found, self.revoked = [], 0, 0
        self.key = self.pb.CapabilitiesReply.FromString(self.raw("Capabilities", b"", "maker")[1]).signing_key

    def divided(self, modules, count):
        """So many programs that compile, and the modules that are none of these: several may be one program, in different words."""
        of_key = {}
        for module in modules:
            request = self.pb.CompileRequest(module=module, target="cuda:sm_80")
            status, reply = self.raw("Compile", request.SerializeToString(), "keeper")
            if status == "OK":
                of_key.setdefault(self.pb.SealedReply.FromString(reply).key, []).append(module)
        assert len(of_key) > count, "the corpus has no programs"
        chosen = self.random.sample(sorted(of_key), count)
        secret = {module for key in chosen for module in of_key[key]}
        return [of_key[key][0] for key in chosen], [module for module in modules if module not in secret]

    def raw(self, method, data, token, timeout=PATIENCE, cancel=None, messages=1):
        """(status name, first reply's bytes or None)."""
        from kiln import _proto

        grpc = self.grpc
        sends, receives = method in _proto.CLIENT_STREAMING, method in _proto.SERVER_STREAMING
        make = getattr(self.channel, ("stream" if sends else "unary") + "_" + ("stream" if receives else "unary"))
        call = make(f"/{self.pb.service.full_name}/{method}")
        metadata = [("authorization", f"Bearer {self.daemon.tokens.get(token, token)}")] if token else []
        request = iter([data] * messages) if sends else data
        self.calls += 1
        try:
            if receives:
                stream, last = call(request, timeout=timeout, metadata=metadata), None
                for index, reply in enumerate(stream):
                    last = reply
                    if cancel is not None and index >= 1:
                        stream.cancel()
                return "OK", last
            future = call.future(request, timeout=timeout, metadata=metadata)
            if cancel is not None:
                time.sleep(cancel)
                future.cancel()
            return "OK", future.result()
        except grpc.FutureCancelledError:
            return "CANCELLED", None
        except grpc.RpcError as failure:
            return failure.code().name, None

    def request(self):
        r = self.random
        order = r.choice(list(ORDERS)) if r.random() < 0.3 else "answer"
        request = self.pb.CompileRequest(module=r.choice(self.modules), target=r.choice(("cuda:sm_80", "cuda:sm_90a", "hip:gfx942", "cuda:sm_1", "")),
                                         priority=r.randrange(3), refresh=r.random() < 0.05)
        request.options.max_registers = ORDERS[order] + r.randrange(40)
        if r.random() < 0.05:
            request.explain.SetInParent()
        return request

    def mutate(self, data):
        r, data = self.random, bytearray(data)
        for _ in range(r.randrange(1, 8)):
            at = r.randrange(len(data) + 1)
            kind = r.random()
            if kind < 0.5 and at < len(data):
                data[at] ^= 1 << r.randrange(8)
            elif kind < 0.7:
                data[at:at] = r.randbytes(r.randrange(1, 16))
            elif kind < 0.9:
                del data[at:at + r.randrange(1, 64)]
            else:
                data += data[:r.randrange(1, 4096)]
        return bytes(data)

    def judge(self, method, data, token, outcome, timeout=PATIENCE):
        status, reply = outcome
        self.statuses[status] = self.statuses.get(status, 0) + 1
        assert status in DOCUMENTED, f"{method} ended with {status}"
        assert status != "DEADLINE_EXCEEDED" or timeout < PATIENCE, f"{method} gave no answer in {timeout} s"
        if token == "kiln_wrong":
            assert status in ("UNAUTHENTICATED", "CANCELLED", "DEADLINE_EXCEEDED"), f"{method} gave {status} to a stranger"
        if token == "keeper" and status == "OK" and reply is not None:
            self.vault_keys.append(self.pb.SealedReply.FromString(reply).key)
        if status != "OK" or reply is None or method not in ("Compile", "CompileStream", "Lookup", "EnsureKernels"):
            return
        if method == "EnsureKernels":
            for kernel in self.pb.EnsureProgress.FromString(reply).kernels:
                assert (len(kernel.key), kernel.code == 0) in ((32, True), (0, False)), f"a kernel that neither is there nor failed: {kernel}"
            return
        assert token != "spy", f"{method} gave a result to a tenant that has none"
        if method == "CompileStream":
            progress = self.pb.SealedProgress.FromString(reply)
            if progress.WhichOneof("event") != "reply":
                return  # cancelled before
            reply = progress.reply.SerializeToString()
        sealed = self.pb.SealedReply.FromString(reply)
        self.seal.check(sealed, {self.key}, self.seal.Asked())
        seen = self.artifacts.setdefault(sealed.key, sealed.artifact)
        assert seen == sealed.artifact, "one key, two artifacts"
        self.keys.append(sealed.key)
        if token in ("reader", "idler"):
            assert self.pb.CompileReply.FromString(reply).origin != 3, f"{token} made the workers work"

    def call(self):
        r = self.random
        token = r.choices(("maker", "reader", "other", "idler", "spy", "admin", "kiln_wrong", None), (6, 2, 3, 2, 1, 1, 1, 3))[0]
        kind = r.random()
        if kind < 0.35:
            method, data = "Compile", self.request().SerializeToString()
        elif kind < 0.5:
            lookup = self.pb.LookupRequest(request=self.request()) if r.random() < 0.5 or not self.keys else \
                self.pb.LookupRequest(key=r.choice(self.keys))
            method, data = "Lookup", lookup.SerializeToString()
        elif kind < 0.6:
            method, data = "CompileStream", self.request().SerializeToString()
        elif kind < 0.68:
            manifest = self.pb.EnsureRequest(requests=[self.request() for _ in range(r.randrange(6))], targets=("cuda:sm_80",) * r.randrange(2))
            method, data = "EnsureKernels", manifest.SerializeToString()
        elif kind < 0.71:
            run = self.pb.RunStart(program=self.request(), device=r.choice(("emu:sm_80", "cuda:0")),
                                   arguments=[{"integer": r.randrange(9)}] * r.randrange(3))
            run.program.target = ""
            method, data = "Run", self.pb.RunRequest(start=run).SerializeToString()
        elif kind < 0.75:
            put = self.pb.PutRequest(request=self.request())
            put.artifact.code = r.randbytes(r.randrange(100))
            put.artifact.target = "cuda:sm_80"
            method, data = "Put", put.SerializeToString()
        else:
            method = r.choice(list(self.methods))
            data = r.randbytes(r.randrange(64)) if r.random() < 0.5 else self.request().SerializeToString()
            if method == "CacheGc":
                data = self.pb.CacheGcRequest(target_bytes=1 << 20).SerializeToString()
        if r.random() < 0.3:
            data = self.mutate(data)
        cancel = r.random() * 0.02 if r.random() < 0.1 else None
        timeout = r.choice((0.01, 0.2, PATIENCE, PATIENCE, PATIENCE))
        return method, data, token, timeout, cancel, r.randrange(1, 4)

    def vault_request(self):
        request = self.pb.CompileRequest(module=self.random.choice(self.vault), target="cuda:sm_80")
        request.options.max_registers = ORDERS["answer"] + self.random.randrange(4)
        return request

    def keep_and_ask(self):
        """The vault's tenant makes something, and another asks for what the vault has."""
        r = self.random
        self.judge("Compile", b"", "keeper", self.raw("Compile", self.vault_request().SerializeToString(), "keeper"))
        if self.vault_keys and r.random() < 0.2:
            status, _ = self.raw("Lookup", self.pb.LookupRequest(key=self.vault_keys[-1]).SerializeToString(), "keeper")
            self.found += status == "OK"  # unless an admin's collection came between
        # A caller who may compile may make the vault's program too, were it told: it asks by keys alone.
        token = r.choice(("maker", "reader", "other", "idler", "spy", "kiln_wrong", None))
        makes = token in ("maker", "other", "idler")
        asked = self.pb.LookupRequest(request=self.vault_request()) if not makes and r.random() < 0.5 or not self.vault_keys else \
            self.pb.LookupRequest(key=r.choice(self.vault_keys))
        status, _ = self.raw("Lookup", asked.SerializeToString(), token)
        # Without a token it is the local user, of the tenant default.
        expected = {"kiln_wrong": ("UNAUTHENTICATED",), "other": ("NOT_FOUND", "RESOURCE_EXHAUSTED")}.get(token, ("NOT_FOUND",))
        assert status in expected, f"{token} asked for what is the vault's and got {status}"
        status, _ = self.raw("CacheExport", self.pb.CacheExportRequest(keys=self.vault_keys[:1]).SerializeToString(), "other")
        assert status in ("PERMISSION_DENIED", "RESOURCE_EXHAUSTED"), f"an export of the vault's gave {status}"

    def revoke_in_mid_stream(self):
        self.revoked += 1
        name = f"fleeting-{self.revoked}"
        self.daemon.tokens[name] = self.daemon.make_token(name, "one", "read,compile")
        end = time.monotonic() + 20
        while self.raw("Capabilities", b"", name)[0] != "OK":
            assert time.monotonic() < end, "a new token is not known"
            time.sleep(0.02)
        request = self.pb.CompileRequest(module=self.random.choice(self.modules), target="cuda:sm_80")
        request.options.max_registers = ORDERS["sleep"] + 300 + self.revoked % 100  # 3 s
        request.refresh = True  # the same may have been made before
        began = time.monotonic()
        stream = self.pool.submit(self.raw, "CompileStream", request.SerializeToString(), name)
        self.daemon.revoke(name)
        while self.raw("Capabilities", b"", name)[0] != "UNAUTHENTICATED":
            assert time.monotonic() < end, "a revoked token is still good"
            time.sleep(0.02)
        early = time.monotonic() - began < 2.0  # the worker is not done yet
        status, _ = outcome = stream.result(timeout=120)
        self.judge("CompileStream", b"", "maker", outcome)
        assert not (early and status == "OK"), "a stream went on with a token that was revoked"
        for method, data in (("Compile", self.request().SerializeToString()),
                             ("Lookup", self.pb.LookupRequest(request=self.request()).SerializeToString())):
            status, _ = self.raw(method, data, name)
            assert status == "UNAUTHENTICATED", f"{method} gave {status} for a revoked token"

    def expect_quotas_kept(self):
        """Once nothing is under way any more."""
        end = time.monotonic() + 30
        for tenant, limit in STORE_BYTES.items():
            while (held := sum(entry.bytes for entry in self.listed() if entry.tenant == tenant)) > limit:
                assert time.monotonic() < end, f"the tenant {tenant} keeps {held} bytes, and may keep {limit}"
                time.sleep(0.1)

    def listed(self):
        call = self.channel.unary_stream(f"/{self.pb.service.full_name}/CacheList", response_deserializer=self.pb.CacheEntry.FromString)
        return list(call(b"", timeout=60, metadata=[("authorization", f"Bearer {self.daemon.tokens['admin']}")]))

    def some(self):
        """One call, or a few at one time."""
        dice = self.random.random()
        if dice < 0.05:
            self.keep_and_ask()
        elif dice < 0.053:
            self.revoke_in_mid_stream()
        plans = [self.call() for _ in range(self.random.choice((1, 1, 1, 2, 16)))]
        futures = [self.pool.submit(self.raw, *plan) for plan in plans]
        for (method, data, token, timeout, *_), future in zip(plans, futures):
            self.judge(method, data, token, future.result(timeout=120), timeout)
        self.daemon.check()
        if self.random.random() < 0.05:
            status, _ = self.raw("Stats", b"", "admin")
            assert status == "OK", f"Stats gave {status}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path(os.environ.get("KILN_BUILD", ROOT / "build" / "asan")))
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "clients" / "python"))
    os.environ.setdefault("KILN_DESCRIPTOR", str(options.build / "proto" / "kiln.desc"))
    os.environ["KILN_AUTOSTART"] = "0"
    with tempfile.TemporaryDirectory(prefix="kiln-fuzz-") as folder:
        daemon = Daemon(options.build, pathlib.Path(folder))
        try:
            fuzzer = Fuzzer(daemon, options.seed)
            end = time.monotonic() + options.seconds
            while time.monotonic() < end:
                fuzzer.some()
            fuzzer.expect_quotas_kept()
            assert fuzzer.found > 0 or len(fuzzer.vault_keys) < 50, "not even the vault's own tenant finds what it has"
            daemon.stop()
        except BaseException:
            print(f"failed with --seed {options.seed}\n{daemon.tail()}", file=sys.stderr)
            daemon.process.kill()
            raise
    print(f"seed {options.seed}: {fuzzer.calls} calls in {options.seconds:.0f} s, {fuzzer.revoked} tokens revoked, "
          f"{len(fuzzer.vault_keys)} secrets kept, " + ", ".join(f"{status} {count}" for status, count in sorted(fuzzer.statuses.items())))


if __name__ == "__main__":
    main()
