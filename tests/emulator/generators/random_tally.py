# SPDX-License-Identifier: Apache-2.0
"""How random programs ended: by generator, by target, by the forms that they have. What a compiler may refuse has a name here; a form
of which too few programs run is a failure as much as a wrong result."""

import collections

# What a program may ask for that a target lacks, or that the language says a kernel cannot do: part of the message.
REFUSALS = {
    "shared memory": " bytes of shared memory; ",
    "fragments": "fragments take ",
    "registers": "this kernel needs more registers or memory per thread than ",
    "exchange of some threads": "threads exchange data here through memory, under ",
    "both branches": "both branches of if ",
    "barriers": " meet here, and other ranges of threads have taken the ",
    "tile operation of some threads": " that only some threads reach, under ",
    "live registers": "the values of one thread take more than ",
    "deep loops": "the loops are nested too deeply",
    "clusters": " blocks; emu:",
    "halves of bytes": " store elements that share bytes",
    "length": ", the limit of max_code",
}
LEAST_SHARE = 0.5  # of the programs of a generator, and of those that have a form
# Of a generator: on AMD GPUs ranges of several waves have no barrier. Of programs whose threads always exchange data, two fifths run.
LESS = {"ranges": 0.3}
FEW = 40  # programs, of which a share says little


def refusal(message):
    """The name of an expected refusal; None: this message is no such thing."""
    return next((name for name, part in REFUSALS.items() if part in message), None)


class Tally:
    def __init__(self, counts=()):
        """``counts``: those of another one, as ``pairs`` gives them."""
        self.counts = collections.Counter({tuple(key): count for key, count in counts})

    def add(self, generator, target, kind, reason, forms):
        self.counts["target", target, kind] += 1
        self.counts["generator", generator, kind] += 1
        if reason:
            self.counts["reason", generator, reason] += 1
        for form in forms:
            self.counts["form", f"{generator}: {form}", kind] += 1

    def merge(self, other):
        self.counts += other.counts

    def pairs(self):
        """What JSON can hold."""
        return [[list(key), count] for key, count in sorted(self.counts.items())]

    def _table(self, what):
        rows = collections.defaultdict(collections.Counter)
        for (kind_of_row, row, column), count in sorted(self.counts.items()):
            if kind_of_row == what:
                rows[row][column] += count
        return rows

    @property
    def total(self):
        return sum(sum(row.values()) for row in self._table("generator").values())

    def lines(self):
        for what in ("generator", "target", "form"):
            for row, kinds in self._table(what).items():
                number = sum(kinds.values())
                others = "".join(f", {count} {kind}" for kind, count in kinds.items() if kind != "right")
                yield f"{what} {row}: {number}, {100 * kinds['right'] / number:.1f} % right{others}"
        for row, reasons in self._table("reason").items():
            yield f"refused of {row}: {', '.join(f'{count} for {reason}' for reason, count in reasons.items())}"

    def problems(self):
        """What should not be."""
        for generator, kinds in self._table("generator").items():
            yield from (f"{generator}: {count} {kind}" for kind, count in kinds.items() if kind not in ("right", "refused"))
        for what in ("generator", "form"):
            for row, kinds in self._table(what).items():
                number = sum(kinds.values())
                share = LESS.get(row.split(": ")[0], LEAST_SHARE)
                if number >= FEW and kinds["right"] < share * number:
                    yield f"{what} {row}: only {kinds['right']} of {number} programs ran"
