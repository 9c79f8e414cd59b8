# SPDX-License-Identifier: Apache-2.0
"""The errors of this package, and their texts."""

from __future__ import annotations

import linecache


class KilnError(RuntimeError):
    """Anything that Kiln reports."""


class NoEffectWarning(UserWarning):
    """A program asks for something that Kiln accepts and does not do; results do not depend on it. The text says what to use."""


class ServiceUnavailable(KilnError):
    """No daemon answers."""


class DeadlineExceeded(KilnError):
    """The daemon did not answer in time."""


class UntrustedArtifact(KilnError):
    """An artifact without the signature of a key that is trusted here, or one that was signed for another key, target or options than those
    asked for, or no way to tell whom to trust. It is not loaded."""


class CompileError(KilnError):
    """A program was refused, or the compiler failed on it. ``diagnostics`` are kiln.v1.Diagnostic messages; ``code`` the gRPC status
    ("INVALID_ARGUMENT", "UNIMPLEMENTED", "INTERNAL"); ``reproducer`` a file on the daemon's host for `kiln compile --repro`."""

    def __init__(self, code: str, message: str, diagnostics=(), reproducer: str = ""):
        self.code, self.diagnostics, self.reproducer = code, list(diagnostics), reproducer
        super().__init__(_explain(code, message, self.diagnostics, reproducer))


class KernelFault(KilnError):
    """A kernel that ran did something wrong. ``faults`` are kiln.v1.RunFault messages: what the emulator found, a driver's error, a
    timeout."""

    def __init__(self, kernel: str, target: str, faults, seed: int = 0):
        self.kernel, self.target, self.faults, self.seed = kernel, target, list(faults), seed
        count = f"{len(self.faults)} faults" if len(self.faults) > 1 else "a fault"
        super().__init__("\n".join([f"{kernel} on {target} (seed {seed}): {count}", *map(describe_fault, self.faults)]))


def describe_fault(fault) -> str:
    """One fault: what happened, who did it, and each statement that had to do with it with its place and its source line."""
    lines = [f"  {fault.kind}: {fault.message}"]
    if fault.block:
        lines.append(f"    in thread {fault.thread} of block ({', '.join(map(str, fault.block))})")
    if fault.buffer:
        lines.append(f"    {fault.buffer}: element {_signed(fault.element)}, at byte {_signed(fault.address)}")
    for word, statement in (("at", fault.statement), ("and", fault.other)):
        if not statement.number:
            continue
        if word == "and" and statement.number == fault.statement.number:
            lines.append("    and the same statement")
            continue
        place = f"{statement.file}:{statement.line}: " if statement.line else ""
        lines.append(f"    {word} {place}{statement.text or f'statement {statement.number}'}")
        source = linecache.getline(statement.file, statement.line).strip() if statement.line else ""
        if source:
            lines.append(f"        {source}")
    return "\n".join(lines)


def _signed(place: int) -> int:
    """What lies before the start is given modulo 2^64."""
    return place - (1 << 64) if place >> 63 else place


def _explain(code, message, diagnostics, reproducer) -> str:
    parts = [message or code]
    if diagnostics and parts[0] == diagnostics[0].message:
        parts[0] = "the program is refused" if code != "UNIMPLEMENTED" else "the compiler or the target cannot do this"
    parts += [describe(d) for d in diagnostics]
    if reproducer and reproducer not in parts[0]:
        parts.append(f"  the request is kept on the daemon's host: kiln compile --repro {reproducer}")
    return "\n".join(parts)


_SEVERITY = ("error", "warning", "note")


def describe(diagnostic) -> str:
    """One diagnostic: place, message, the source line, the statement, what to try."""
    place = f"{diagnostic.file}:{diagnostic.line}: " if diagnostic.line else ""
    severity = _SEVERITY[diagnostic.severity] if diagnostic.severity < len(_SEVERITY) else "error"
    lines = [f"  {place}{severity}: {diagnostic.message}"]
    source = linecache.getline(diagnostic.file, diagnostic.line).strip() if diagnostic.line else ""
    if source:
        lines.append(f"      {source}")
    if diagnostic.statement:
        lines.append(f"      statement: {diagnostic.statement}")
    if diagnostic.hint:
        lines.append(f"      try: {diagnostic.hint}")
    return "\n".join(lines)
