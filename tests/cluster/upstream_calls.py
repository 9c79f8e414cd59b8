# SPDX-License-Identifier: Apache-2.0
"""Calls of kilnds that ask each other, without a client's own tries, and what they must be answered."""

import contextlib
import pathlib

import grpc

from daemon import TARGET, program
from lying_kilnd import LyingKilnd

NO_WORKERS = "--workers=0"


def below(upstream):
    return f"--upstream=unix:{upstream.socket}" if hasattr(upstream, "socket") else f"--upstream={upstream.address}"


def ask(client, method, request, token=None, timeout=30.0):
    """One call, without the client's own tries: the reply or the failure."""
    metadata = (("kiln-details-bytes", "262144"), *((("authorization", f"Bearer {token}"),) if token else ()))
    try:
        return client._methods[method](request, timeout=timeout, metadata=metadata)
    except grpc.RpcError as failure:
        return failure


def compile_once(host, number, token=None, **keywords):
    client = host.client()
    return ask(client, "Compile", client.request(program(number), TARGET, **keywords), token)


def is_unavailable(client, failure, why):
    assert isinstance(failure, grpc.RpcError), failure
    assert failure.code() == grpc.StatusCode.UNAVAILABLE, failure
    assert why in failure.details(), failure.details()
    retry = client._details(failure, "RetryInfo")
    assert retry is not None and retry.retry_delay.seconds + retry.retry_delay.nanos > 0
    return True


def known(host, key, token=None):
    return not isinstance(ask(host.client(), "Lookup", host.client()._pb.LookupRequest(key=key), token), grpc.RpcError)


def forwards(host):
    return {count.name: count.count for count in host.client().stats().forwards}


@contextlib.contextmanager
def lying(folder, real, change):
    made = LyingKilnd(pathlib.Path(folder) / "lying.sock", f"unix:{real.socket}", change)
    try:
        yield made
    finally:
        made.end()
