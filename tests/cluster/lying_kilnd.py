# SPDX-License-Identifier: Apache-2.0
"""Something at the place of an upstream kilnd: it passes calls on to a real one, and changes what comes back as a test wants."""

import concurrent.futures
import threading

import grpc

METHODS = ("Capabilities", "Fetch", "Compile")


class LyingKilnd:
    """`change(method, request, ask)` gets a request's bytes, and gives those of the reply: `ask()` has the real one's. Or it raises a Refusal. It
    may take its time. What the real kilnd refuses is refused."""

    def __init__(self, socket, real, change=lambda method, request, ask: ask()):
        self.change, self.address = change, f"unix:{socket}"
        self.channel = grpc.insecure_channel(real, (("grpc.max_receive_message_length", -1), ("grpc.max_metadata_size", 1 << 20)))
        self.calls, self.lock = {method: 0 for method in METHODS}, threading.Lock()
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(16), options=(("grpc.max_send_message_length", -1),))
        handlers = {method: grpc.unary_unary_rpc_method_handler(self._answer(method)) for method in METHODS}
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("kiln.v1.Kiln", handlers),))
        self.server.add_insecure_port(self.address)
        self.server.start()

    def _answer(self, method):
        ask = self.channel.unary_unary(f"/kiln.v1.Kiln/{method}")

        def answer(request, context):
            with self.lock:
                self.calls[method] += 1
            metadata = tuple((key, value) for key, value in context.invocation_metadata() if key in ("authorization", "kiln-details-bytes"))
            try:
                return self.change(method, request, lambda: ask(request, timeout=30, metadata=metadata))
            except grpc.RpcError as failure:
                context.set_trailing_metadata(tuple((k, v) for k, v in failure.trailing_metadata() or () if k == "grpc-status-details-bin"))
                context.abort(failure.code(), failure.details())
            except Refusal as refusal:
                if refusal.details:
                    context.set_trailing_metadata((("grpc-status-details-bin", refusal.details),))
                context.abort(refusal.code, str(refusal))
            return b""

        return answer

    def end(self):
        self.server.stop(0).wait()
        self.channel.close()


class Refusal(Exception):
    def __init__(self, code, message, details=b""):
        super().__init__(message)
        self.code, self.details = code, details
