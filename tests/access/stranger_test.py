# SPDX-License-Identifier: Apache-2.0
"""Calls that no client of Kiln makes."""
import grpc
import pytest


@pytest.mark.parametrize("method", ["/kiln.v1.Kiln/Nothing", "/other.Service/Method", "/grpc.health.v1.Health/Nothing"])
def test_methods_that_nobody_serves_are_told_so(daemon, method):
    daemon.start()
    for _ in range(10):
        with grpc.insecure_channel(f"unix:{daemon.socket}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            for make in (channel.unary_unary, channel.stream_stream):
                call = make(method, lambda sent: sent, lambda got: got)
                with pytest.raises(grpc.RpcError) as refused:
                    call(b"x", timeout=20) if make == channel.unary_unary else list(call(iter([b"x"]), timeout=20))
                assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert daemon.process.poll() is None
