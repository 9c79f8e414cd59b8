# SPDX-License-Identifier: Apache-2.0
"""The daemon over gRPC. Generic stubs: no generated code.

A Client may be used from several threads. It does not survive fork: a child makes its own (``default_client`` sees to that)."""

from __future__ import annotations

import contextlib
import contextvars
import math
import os
import pathlib
import random
import re
import threading
import time

from . import _manifest, _proto, _seal, daemon, measured, ranking, recording, remote
from .errors import CompileError, DeadlineExceeded, KilnError, ServiceUnavailable

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 1 << 20),
)
_PAGE = 10_000  # entries of the cache in one call: fewer than a kilnd lists at once
_LONGEST = 365 * 86400.0  # seconds that anything is waited for; gRPC takes some more than these for none
_TRANSFER = 120.0  # seconds beside a run itself: its tensors there and back, for each of which kilnd waits a minute (--run-transfer)
_METADATA = (("kiln-details-bytes", str(256 << 10)),)

# The W3C traceparent that calls of this thread or task carry to the daemon: ``trace_parent.set("00-…")``. Without one, $TRACEPARENT.
trace_parent: contextvars.ContextVar[str | None] = contextvars.ContextVar("trace_parent", default=None)

_PROGRAM_CODES = ("INVALID_ARGUMENT", "UNIMPLEMENTED", "INTERNAL", "FAILED_PRECONDITION", "ABORTED")


def _file(variable: str) -> bytes | None:
    """The contents of the file that the environment variable names; None if it names none."""
    name = os.environ.get(variable)
    if not name:
        return None
    try:
        if pathlib.Path(name).is_fifo() and os.path.exists(os.path.realpath(name)):  # not of a pipe, which has a writer
            raise KilnError(f"{variable}: cannot read {name}: it is a FIFO; a regular file is needed")
        return pathlib.Path(name).read_bytes()
    except OSError as failure:
        raise KilnError(f"{variable}: {failure}") from None


def _authorization(token: str | None) -> tuple:
    token = token or os.environ.get("KILN_TOKEN") or (_file("KILN_TOKEN_FILE") or b"").decode(errors="replace").strip()
    if not all("!" <= character <= "~" for character in token):
        raise KilnError("the token has characters that no token has; give one as `kilnd token new` printed it (token=, KILN_TOKEN or "
                        "KILN_TOKEN_FILE)")
    return (("authorization", f"Bearer {token}"),) if token else ()


def _metadata(authorization: tuple) -> tuple:
    parent = trace_parent.get() or os.environ.get("TRACEPARENT")
    return _METADATA + authorization + (("traceparent", parent),) if parent else _METADATA + authorization


class CompileOptions:
    """Fields of kiln.v1.CompileOptions by name: fast_math, disable_async_copy, disable_tma, disable_wgmma, …"""

    def __new__(cls, **fields):
        return _proto.messages().CompileOptions(**fields)


class Client:
    """``Client()`` finds or starts the daemon of this host; ``Client("host:port")`` speaks TLS to another.

    ``root_certificates``, ``private_key`` and ``certificate_chain`` are PEM bytes; their defaults are the files that KILN_TLS_ROOTS (else the
    roots that come with gRPC), KILN_TLS_KEY and KILN_TLS_CERT name. ValueError where one is given for a Unix socket. ``token``, as
    `kilnd token new` printed it: KILN_TOKEN, else what the file KILN_TOKEN_FILE holds."""

    def __init__(self, address: str | None = None, timeout: float = 300.0, root_certificates: bytes | None = None,
                 private_key: bytes | None = None, certificate_chain: bytes | None = None, token: str | None = None):
        import grpc

        self.address, self.timeout = address or daemon.default_address(), timeout
        given = dict(root_certificates=root_certificates, private_key=private_key, certificate_chain=certificate_chain)
        if self.address.startswith("unix:") and any(given.values()):
            raise ValueError(f"{' and '.join(name for name in given if given[name])} of a Client: TLS is for TCP, and {self.address} is a Unix "
                             "socket; leave it out, or give another address")
        self._pb = _proto.messages()
        daemon.ensure(self.address)
        self._authorization = _authorization(token)
        if self.address.startswith("unix:"):
            self._channel = grpc.insecure_channel(self.address, _OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(
                root_certificates or _file("KILN_TLS_ROOTS"), private_key or _file("KILN_TLS_KEY"), certificate_chain or _file("KILN_TLS_CERT"))
            self._channel = grpc.secure_channel(self.address, credentials, _OPTIONS)
        who = self._pb.CapabilitiesRequest(at_once=True)
        self._trust = _seal.Trust(self.address, lambda timeout: self._call("Capabilities", who, timeout).signing_key)
        self._methods = {m.name: self._stub(m) for m in self._pb.service.methods}

    def _stub(self, method):
        read = getattr(self._pb, method.output_type.name).FromString
        if method.output_type.name == "CompileReply":
            read = self._pb.SealedReply.FromString
        elif method.output_type.name == "CompileProgress":
            read = self._pb.SealedProgress.FromString
        ways = ["stream" if method.name in streaming else "unary" for streaming in (_proto.CLIENT_STREAMING, _proto.SERVER_STREAMING)]
        make = getattr(self._channel, "_".join(ways))
        path = f"/{self._pb.service.full_name}/{method.name}"
        return make(path, request_serializer=lambda m: m.SerializeToString(), response_deserializer=read)

    def _artifact(self, method: str, request, timeout: float | None, asked):
        end = self._end(timeout)
        self._trust.learn(_left(end))
        return self._open(self._call(method, request, _left(end)), asked)

    def _open(self, sealed, asked):
        """The CompileReply in a SealedReply, made from the bytes that were verified."""
        self._trust.check(sealed, asked)
        return self._pb.CompileReply.FromString(sealed.SerializeToString())

    def close(self) -> None:
        """Ends the connection; later calls fail. ``with Client() as client:`` does so at its end."""
        self._channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def request(self, program, target: str, options=None, *, explain=None, priority: str = "INTERACTIVE", refresh: bool = False,
                durable: bool = False):
        """A CompileRequest. ``program``: a PrimFunc, a kiln.v1.Module, its bytes, or its text form. ``refresh``: compile even if the result is
        known. ``durable``: the daemon answers once its store has the result, or could not take it; the reply's ``durable`` says which."""
        data = program.encode() if isinstance(program, str) else program
        if not isinstance(data, (bytes, bytearray)):
            data = data.for_target(target).serialized if hasattr(data, "for_target") else data.SerializeToString(deterministic=True)
        request = self._pb.CompileRequest(module=bytes(data), target=target, refresh=refresh, durable=durable,
                                          priority=self._pb.enums["Priority"].values_by_name[priority].number)
        if options is not None:
            request.options.CopyFrom(self._pb.CompileOptions(**options) if isinstance(options, dict) else options)
        if os.environ.get("KILN_ENTRY_NAMES") == "1" and not request.options.entry_name:
            request.options.entry_name = re.sub(r"\W|^(?=\d)", "_", getattr(program, "name", ""), flags=re.ASCII)[:128]
        if explain is not None:
            request.explain.CopyFrom(self._pb.Explain(**explain) if isinstance(explain, dict) else explain)
        return request

    def compile(self, program, target: str, options=None, *, timeout: float | None = None, **keywords):
        """The CompileReply: artifact, key, origin, timings, warnings. CompileError where the program is refused."""
        request = self.request(program, target, options, **keywords)
        with recording.recorded(request):
            return self._artifact("Compile", request, timeout, _seal.Asked(request=request))

    def compile_stream(self, program, target: str, options=None, *, timeout: float | None = None, **keywords):
        """Yields the name of each stage as it begins, and at last the CompileReply. "queued" comes again if the queue was full."""
        request, end = self.request(program, target, options, **keywords), self._end(timeout)
        with recording.recorded(request):
            self._trust.learn(_left(end))
            for progress in self._stream("CompileStream", request, _left(end), lambda progress: progress.stage == "queued"):
                yield progress.stage if progress.WhichOneof("event") == "stage" else self._open(progress.reply, _seal.Asked(request=request))

    def ensure_kernels(self, requests, targets=(), *, timeout: float | None = None):
        """Makes the daemon compile those results of a manifest that it does not know: each of ``requests`` (made by ``request``) for each of
        ``targets``, or for its own target where there are none. Yields kiln.v1.EnsureProgress messages, the last when all are there:
        total, known, compiled, failed, elapsed_seconds, remaining_seconds, and in ``kernels`` what ended since the message before. A manifest
        larger than a message goes in several calls, with one progress."""
        requests, targets = list(requests), list(targets)
        end = self._end(timeout)
        progress = _manifest.Progress(len(requests))
        recording.note(requests, targets)
        for part in _manifest.split([request.ByteSize() for request in requests], len(targets)):
            progress.begin(part)
            request = self._pb.EnsureRequest(requests=[requests[index] for index in part], targets=targets)
            for news in self._stream("EnsureKernels", request, _left(end)):
                progress.note(news)
                recording.note_failures(requests, news.kernels)
                yield news

    def lookup(self, what, target: str | None = None, options=None, *, timeout: float | None = None):
        """The known result of a key (bytes), or of a program and target; None if there is none. Never compiles."""
        if target is None:
            request, asked = self._pb.LookupRequest(key=what), _seal.Asked(key=what)
        else:
            request = self._pb.LookupRequest(request=self.request(what, target, options))
            asked = _seal.Asked(request=request.request)
        try:
            with contextlib.nullcontext() if target is None else recording.recorded(request.request):
                return self._artifact("Lookup", request, timeout, asked)
        except _NotFound:
            return None

    def stats(self, timeout: float | None = None, *, device_states: bool = False):
        """kiln.v1.StatsReply: counts and milliseconds since the daemon started. With ``device_states``, what its GPUs do now, which their drivers
        are asked for: clocks, temperature, power, memory in use and processes, in ``devices[i].state``. ``timeout``, here and below: seconds, None
        for the client's own; DeadlineExceeded after it."""
        return self._call("Stats", self._pb.StatsRequest(device_states=device_states), timeout)

    def capabilities(self, timeout: float | None = None):
        """kiln.v1.CapabilitiesReply: version, targets, passes, operations, the GPUs of the daemon's host, the key it signs with."""
        return self._call("Capabilities", self._pb.CapabilitiesRequest(), timeout)

    def cache_list(self, key_prefix: bytes = b"", target: str = "", limit: int = 0, timeout: float | None = None):
        """Yields a kiln.v1.CacheEntry for each result whose key begins so, of the target if one is named; at most ``limit`` of them
        (0: all). In the order of keys."""
        return self._pages(self._pb.CacheListRequest(key_prefix=key_prefix, target=target, limit=limit), timeout)

    def _pages(self, request, timeout: float | None):
        end, left = self._end(timeout), request.limit or math.inf
        while left > 0:
            request.limit, count = min(_PAGE, left), 0
            for entry in self._stream("CacheList", request, _left(end)):
                if count == 0 and request.after and entry.key <= request.after:
                    raise KilnError(f"the kilnd at {self.address} is older than its client and lists its first entries only")
                count, last = count + 1, entry.key
                yield entry
            if count < request.limit:
                return
            left, request.after = left - count, last

    def cache_hot(self, limit: int = 0, timeout: float | None = None):
        """The programs of the caller's tenant that were used most, of those that another build of the compiler compiled, as
        kiln.v1.CompileRequests; at most ``limit`` of them (0: 1000). ``ensure_kernels`` compiles them anew."""
        return [entry.request for entry in self._stream("CacheHot", self._pb.CacheHotRequest(limit=limit), timeout)]

    def cache_verify(self, timeout: float | None = None):
        """Reads every entry of the cache and evicts those that are damaged or not this daemon's: kiln.v1.CacheVerifyReply counts them."""
        return self._call("CacheVerify", self._pb.CacheVerifyRequest(), timeout)

    def cache_gc(self, target_bytes: int, timeout: float | None = None):
        """Evicts the least recently used entries until at most so many bytes are left: kiln.v1.CacheGcReply says how many were evicted."""
        return self._call("CacheGc", self._pb.CacheGcRequest(target_bytes=target_bytes), timeout)

    def run(self, program, device: str, arguments, options=None, *, key: bytes | None = None, check: bool = False, seed: int = 0,
            timeout: float | None = None, repeat: int = 0):
        """Runs a program (or what is known under ``key``) on a device of the daemon's host ("emu:sm_90a", "cuda:0"). ``arguments``: numbers
        and remote.HostTensor. Returns the kiln.v1.RunResult and the bytes of each of its outputs; what the kernel did wrong is in
        ``result.faults``. ``timeout``: of the run itself, beside which the client's own has two minutes for the tensors; ``repeat``: launches
        that are timed."""
        described, payloads = remote.describe(arguments)
        start = self._pb.RunStart(device=device, arguments=described,
                                  options=self._pb.RunOptions(check=check, seed=seed, timeout_seconds=timeout or 0.0, repeat=repeat))
        if key is not None:
            start.key = key
        else:
            start.program.CopyFrom(self.request(self._for_device(program, device), device if device.startswith("emu:") else "", options))

        def call(left):
            return remote.collect(self._methods["Run"](remote.requests(start, payloads), timeout=left, metadata=_metadata(self._authorization)))

        limit = self.timeout if timeout is None else max(self.timeout, timeout + _TRANSFER)
        try:
            with contextlib.nullcontext() if key is not None else recording.recorded(self._on(device, start.program)):
                return self._retry(call, limit)
        except DeadlineExceeded:
            raise DeadlineExceeded(f"the run at {self.address}, with its transfers and what it waited for, had not ended after {limit:g} s; give it "
                                   "a longer limit of its own (kiln.emulation(timeout=…), Client.run(timeout=…)), or the client a longer "
                                   "timeout") from None

    def tune(self, candidates, device: str, arguments, *, labels=(), reference: int | None = None, budget: float = 0.0,
             budget_candidates: int = 0, candidate_seconds: float = 0.0, measure_on_emulator: bool = False, refresh: bool = False,
             known_only: bool = False, seed: int = 0, mode: str = "wait", on_progress=None, timeout: float | None = None,
             energy_candidates: int | None = None, devices: int = 0):
        """The fastest of several programs that do the same, on a device of the daemon's host ("cuda:0"): the last kiln.v1.TuneProgress, whose
        ``record`` has every measurement. ``record.winner`` counts from 1.

        ``candidates``: programs as ``request`` takes them, or requests; ``labels``: what to call them. ``arguments``: numbers, kiln.Recipe, and
        remote.HostTensor, whose data go there. What wins agrees with the outputs of candidate number ``reference``, else of the first that
        runs, unless two others agree with each other and not with it; ``record.caution`` says why that says little, where it does. ``budget``:
        seconds for all, ``candidate_seconds`` for one measurement; 0: the daemon's. ``budget_candidates``: compile and measure so many, of which
        the planner expects most; 0: all. What the planner expected stands beside each measurement, as ``estimate``. What is known from a record
        is not measured again, unless ``refresh``; with ``known_only`` nothing is measured, and the result is None where nothing is known.
        ``on_progress(progress)`` is told how far it is. Of so many of the fastest as ``energy_candidates`` says (None: a few) the energy is measured
        too, as ``energy``, or ``record.energy_problem`` says why not; the device's clocks are in ``compute_mhz``. With ``devices`` so many GPUs of
        the host that are of the same model measure the first round together; ``record.devices`` says which did.

        ``mode``: "wait" for the record; with "background", "model" and "off" the result has no ``record`` where none is known, but ``choices``:
        candidates from 1, of which the first that compiles is to be run. "background" tunes behind the answer: ``watch`` is for ``watch``, or
        ``untuned`` says why nothing is tuned now. "model" is the planner's word only, "off" takes the candidates as they come.

        ``timeout``: None: as long as the budget, or the daemon, allows. CompileError where no candidate runs. ValueError: another mode."""
        requests = [c if isinstance(c, self._pb.CompileRequest) else self.request(self._for_device(c, device), "", priority="TUNING")
                    for c in candidates]
        described, payloads = measured.describe(arguments)
        start = measured.start(mode, energy_candidates, device=device, arguments=described, candidates=len(requests),
                               reference=0 if reference is None else reference + 1, budget_seconds=budget, budget_candidates=budget_candidates,
                               candidate_seconds=candidate_seconds, measure_on_emulator=measure_on_emulator, refresh=refresh,
                               known_only=known_only, seed=seed, devices=devices)

        def call(left):
            messages = measured.messages(start, requests, labels, payloads)
            for progress in self._methods["Tune"](messages, timeout=left, metadata=_metadata(self._authorization)):
                if on_progress is not None and not progress.HasField("record"):
                    on_progress(progress)
            return progress

        try:
            return self._retry(call, timeout if timeout is not None else max(self.timeout, budget + _TRANSFER) if budget else math.inf)
        except _NotFound:
            if known_only:
                return None
            raise

    def compile_space(self, candidates, target: str, device: str, arguments, options=None, *, mode: str = "background", labels=(),
                      reference: int | None = None, budget: float = 0.0, budget_candidates: int = 0, candidate_seconds: float = 0.0,
                      measure_on_emulator: bool = False, refresh: bool = False, seed: int = 0, priority: str = "INTERACTIVE",
                      durable: bool = False, energy_candidates: int | None = None, on_progress=None, timeout: float | None = None):
        """One of several programs that do the same, compiled: a kiln.Chosen of the CompileReply, the number of the program from 0, and the
        kiln.v1.TuneProgress that says why. One request, which the daemon answers as ``mode`` says: "off" with the first program, "model" with the
        one of which the planner expects most, "background" with the same or with what is known, while the daemon tunes on (``tuned.watch`` is for
        ``watch``), "wait" with the fastest, once it is found. Of those that do not compile the next is taken.

        The rest as ``tune`` takes it, but that ``arguments`` are numbers and kiln.Recipe: data of the caller's travel in a ``tune`` alone."""
        requests = [c if isinstance(c, self._pb.CompileRequest) else self.request(c, target, options, priority=priority) for c in candidates]
        described, payloads = measured.describe(arguments)
        if payloads:
            raise ValueError("a space takes recipes; Client.tune takes data of the caller's")
        start = measured.start(mode, energy_candidates, device=device, arguments=described, reference=0 if reference is None else reference + 1,
                               budget_seconds=budget, budget_candidates=budget_candidates, candidate_seconds=candidate_seconds,
                               measure_on_emulator=measure_on_emulator, refresh=refresh, seed=seed)
        request = measured.space(start, requests, labels)
        request.durable = durable
        limit = timeout if timeout is not None else math.inf if mode == "wait" and not budget else max(self.timeout, budget + _TRANSFER)
        end = self._end(limit)
        self._trust.learn(_left(end))
        sealed = None
        for progress in self._stream("CompileStream", request, _left(end), lambda progress: progress.stage == "queued"):
            if progress.WhichOneof("event") == "reply":
                sealed = progress.reply
            elif progress.WhichOneof("event") == "tuning" and on_progress is not None:
                on_progress(progress.tuning)
        return self._chosen(sealed, requests)

    def _chosen(self, sealed, requests):
        """A reply to a space, verified as that of the program that it says it is of."""
        said = self._pb.CompileReply.FromString(sealed.SerializeToString())
        if not 0 < said.chosen <= len(requests):
            raise KilnError(f"the kilnd at {self.address} is older than its client: it does not choose between programs")
        index = said.chosen - 1
        recording.note(requests[index : index + 1], ())
        return measured.Chosen(self._open(sealed, _seal.Asked(request=requests[index])), index, self._pb.TuneProgress.FromString(said.tuned))

    def watch(self, key: bytes, *, on_progress=None, timeout: float = math.inf):
        """Waits for a tuning that goes on behind its caller (``tune(mode="background").watch``): the last kiln.v1.TuneProgress, with its
        ``record``. None where nothing is tuned under that key and there is no record; a KilnError where the tuning has found nothing."""
        progress = None
        try:
            for progress in self._stream("Watch", self._pb.WatchRequest(key=key), timeout):
                if on_progress is not None and not progress.HasField("record"):
                    on_progress(progress)
        except _NotFound:
            return None
        return progress

    def rank(self, candidates, target: str, *, options=None, board: str = "", symbols=None, space: bytes = b"",
             timeout: float | None = None) -> list:
        """What the planner expects each of several programs to take, the fastest first: kiln.Ranked, of which those that were refused come last.
        Nothing is compiled or measured.

        ``candidates``: programs as ``request`` takes them, requests, or functions that return one of these. ``board``: a GPU as its driver calls it
        ("NVIDIA H200"); empty: the target's usual one; where the planner does not know it, it counts with that one, with a warning. ``symbols``:
        values of the dimensions that only the launch knows, by name; others count as 4096.

        ``space``: what the candidates are called together, by the caller: all of them follow from the first one and from this. The daemon then keeps
        the ranking, without its terms; where it has one, the first candidate alone is made and sent."""
        asked = self._pb.EstimateOptions(board=board, symbols=symbols or {})
        if space and candidates:
            known = self._known_ranking(ranking.request(self, candidates[0], target, options), asked, space, timeout)
            if known is not None and len(known) == len(candidates):
                ranking.warn_of_another(board, known)
                return sorted(known)
        requests = [ranking.request(self, candidate, target, options) for candidate in candidates]
        found: dict = {}
        for part in ranking.parts(requests):
            whole = len(part) == len(requests)  # else the parts would have one name
            message = self._pb.RankRequest(candidates=[requests[index] for index in part], options=asked, space=space if whole else b"")
            for progress in self._stream("Rank", message, timeout):
                found.update((part[c.candidate], ranking.Ranked.of(part[c.candidate], c)) for c in progress.candidates)
        ranking.warn_of_another(board, found.values())
        return sorted(found.values())

    def _known_ranking(self, first, options, space: bytes, timeout: float | None) -> list | None:
        """What the daemon has kept of a space. A daemon that keeps none ranks the first candidate, which is no answer."""
        message = self._pb.RankRequest(candidates=[first], options=options, space=space, known_only=True)
        try:
            told = list(self._stream("Rank", message, timeout))
        except _NotFound:
            return None
        return [ranking.Ranked.of(c.candidate, c) for progress in told for c in progress.candidates] if any(t.known for t in told) else None

    def _target_of(self, device: str) -> str:
        """"" of a device that kilnd does not tell of."""
        return next((d.target for d in self.capabilities().devices if d.name == device), "")

    def _for_device(self, program, device: str):
        """The bytes of a program as the device's target takes it, where programs for other targets differ."""
        if getattr(program, "varies", False):
            return program.for_target(device if device.startswith("emu:") else self._target_of(device)).serialized
        return program

    def _on(self, device: str, program):
        """A run's program as kilnd compiles it, for a recording. Of a device that kilnd does not tell of, the target stays open."""
        if program.target or not recording.active():
            return program
        return recording.of_target(program, self._target_of(device))

    def _call(self, method: str, request, timeout: float | None):
        return self._retry(lambda left: self._methods[method](request, timeout=left, metadata=_metadata(self._authorization)), timeout)

    def _retry(self, call, timeout: float | None):
        import grpc

        end, attempt = self._end(timeout), 0
        while True:
            try:
                return call(_left(end))
            except grpc.RpcError as failure:
                self._wait(failure, attempt, end)
                attempt += 1

    def _stream(self, method: str, request, timeout: float | None, waits=lambda message: False):
        """Yields the daemon's messages. A failed call is repeated, as other calls are, as long as it yielded only messages for which ``waits``
        is true: after these, nothing has begun yet."""
        import grpc

        end, attempt, begun = self._end(timeout), 0, False
        while True:
            try:
                for message in self._methods[method](request, timeout=_left(end), metadata=_metadata(self._authorization)):
                    begun = begun or not waits(message)
                    yield message
                return
            except grpc.RpcError as failure:
                if begun:
                    raise self._error(failure) from None
                self._wait(failure, attempt, end)
                attempt += 1

    def _end(self, timeout: float | None) -> float:
        seconds = self.timeout if timeout is None else timeout
        if math.isnan(seconds):
            raise ValueError("a timeout is a number of seconds, not nan")
        return time.monotonic() + min(seconds, _LONGEST)

    def _wait(self, failure, attempt: int, end: float) -> None:
        """Waits until a failed call may be repeated. Raises the failure's error if that is of no use, or would be after ``end``."""
        pause = self._pause(failure, attempt)
        if pause is None or time.monotonic() + pause >= end:
            raise self._error(failure) from None
        time.sleep(pause)
        if attempt == 0 and _code(failure) == "UNAVAILABLE" and _request_id(failure) is None:
            daemon.ensure(self.address)

    def _pause(self, failure, attempt: int) -> float | None:
        """How long to wait before another try; None: there is no point. A full queue names the time itself. A daemon that restarts, or
        whose connections hold all the memory they may, gets a few seconds."""
        ended_by_transport = "RST_STREAM" in (failure.details() or "")  # before a request was read: it has no id
        if _code(failure) == "RESOURCE_EXHAUSTED" and not ended_by_transport:
            retry = self._details(failure, "RetryInfo")
            return None if retry is None else max(0.0, retry.retry_delay.seconds + retry.retry_delay.nanos * 1e-9) + random.uniform(0, 0.05)
        if _code(failure) in ("UNAVAILABLE", "RESOURCE_EXHAUSTED") and attempt < 6:
            return min(0.05 * 2**attempt, 1.0) * random.uniform(0.5, 1.0)
        return None

    def _details(self, failure, name: str):
        for key, value in failure.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                return self._pb.status_detail(value, name)
        return None

    def _error(self, failure) -> Exception:
        code, text, identity = _code(failure), failure.details() or "", _request_id(failure)
        if code == "NOT_FOUND":
            return _NotFound(text)
        if code == "UNAVAILABLE" and identity is None:
            return ServiceUnavailable(
                f"no Kiln daemon answers at {self.address}: {text}. Start one with `kilnd` or `kiln serve`, or set KILN_ADDRESS"
            )
        if code == "DEADLINE_EXCEEDED":
            return DeadlineExceeded(f"the daemon at {self.address} did not answer in time; pass a larger timeout")
        if identity and code not in ("INVALID_ARGUMENT", "UNIMPLEMENTED"):
            text += f" (request {identity} in the daemon's log)"
        if code == "UNAVAILABLE":
            return ServiceUnavailable(text)
        report = self._details(failure, "CompileFailure")
        if report is not None or code in _PROGRAM_CODES:
            return CompileError(code, text, report.diagnostics if report else (), report.reproducer if report else "")
        return KilnError(f"{code}: {text}")


def _left(end: float) -> float:
    return max(end - time.monotonic(), 0.001)


def _request_id(failure) -> str | None:
    """kilnd's id of the request; None if kilnd did not answer it."""
    return dict(failure.trailing_metadata() or ()).get("kiln-request-id")


def _code(failure) -> str:
    """The status. UNAVAILABLE for a call that was cancelled, but not here: a server does so at the end of its shutdown."""
    code = failure.code().name
    return "UNAVAILABLE" if code == "CANCELLED" and _request_id(failure) is None else code


class _NotFound(KilnError):
    pass


_lock = threading.Lock()
_clients: dict = {}


def default_client() -> Client:
    """The client of this process and address, made on first use."""
    key = (os.getpid(), daemon.default_address())
    with _lock:
        if key not in _clients:
            _clients[key] = Client()
        return _clients[key]
