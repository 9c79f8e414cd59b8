# SPDX-License-Identifier: Apache-2.0
"""Which source files of a target are compiled together.

    python3 batches.py FILE…     prints the batches, one a line, the files of each with ";" between; paths from the root of the tree

Most of what a file costs is its headers: to parse them, and to instantiate their templates. A batch pays for them once. What a file declares
for itself, in an anonymous namespace or as a macro, is seen by the files after it. So no other file of its batch may declare such a name, nor
may a header of theirs. A file that defines a macro before it includes a header is compiled by itself.
"""

import os
import re
import sys

MOST_FILES = 6
MOST_LINES = 2000

# clang-format puts what a file declares at the start of a line, and indents the members of classes and the bodies of functions.
RAW = re.compile(r'R"(\w*)\(.*?\)\1"', re.S)
TOP = re.compile(r"^[A-Za-z#\[}].*", re.M)
INCLUDE = re.compile(r'#\s*include "([^"]+)"')
MACRO = re.compile(r"#\s*define (\w+)")
TEST = re.compile(r"TEST(?:_F|_P)?\((\w+), (\w+)\)")
NAMESPACE = re.compile(r"namespace (?:([\w:]+) )?{$")
USING = re.compile(r"using [\w:]+::(\w+);")
NOTHING = re.compile(r"#|}|(?:namespace|extern|INSTANTIATE_\w+|static_assert)\b|using [^=]*$")
TEMPLATE = re.compile(r"template ?<.*?> (?=struct|class|union|using|[\w:]+ )")
TYPE = re.compile(r"(?:struct|class|union|enum(?: class)?) (?:\w+\([^)]*\) |\[\[\w+\]\] |alignas\([^)]*\) )*(\w+)")
ALIAS = re.compile(r"using (\w+) =")
FUNCTION = re.compile(r"[^=;{(]*?([\w:]+)\(")
VARIABLE = re.compile(r"[^=;{(]*?([\w:]+)(?:\[[^\]]*\])* ?[=;{]")


def name_of(line):
    """What a line at the left margin declares; None for nothing, and for a member of a class, which has the class's name before its own."""
    test = TEST.match(line)
    if test:
        return f"{test[1]}_{test[2]}"
    if NOTHING.match(line):
        return None
    line = TEMPLATE.sub("", line)
    for form in (TYPE, ALIAS, FUNCTION, VARIABLE):
        found = form.match(line)
        if found:
            return None if "::" in found[1] else found[1]
    return None


class File:
    """What matters of a source or a header. Names are pairs of a namespace and a name in it; `hidden` are those that no other file can mean,
    and `used` has the text of each using-declaration by the name that it brings."""

    def __init__(self, text):
        self.lines, self.includes, self.names, self.hidden, self.used, self.macro_first = text.count("\n"), [], set(), set(), {}, False
        spaces, macros = [], []  # of `namespace {` the name is ""
        for line in TOP.findall(RAW.sub('""', text)):
            macro, include = MACRO.match(line), INCLUDE.match(line)
            if macro:
                macros.append(("", macro[1]))
            elif include and include[1].endswith(".def"):
                macros = []  # a table's, which undefines them
            elif line.startswith("#include"):
                self.macro_first = self.macro_first or bool(macros)
                self.includes += [include[1]] if include else []
            opened = NAMESPACE.match(line)
            if opened:
                spaces.append(opened[1] or "")
            elif line.startswith("}  // namespace") and spaces:
                spaces.pop()
            self.declare(line, "::".join(filter(None, spaces)), "" in spaces)
        self.hidden.update(macros)

    def declare(self, line, space, anonymous):
        using, name = USING.match(line), name_of(line)
        if using:
            self.used[space, using[1]] = line
        elif name:
            of_file = anonymous or line.startswith(("TEST", "static ", "constexpr ", "const ", "using "))
            (self.hidden if of_file else self.names).add((space, name))


def around(space):
    """A namespace and those that it is in."""
    parts = space.split("::")
    return ["::".join(parts[:count]) for count in range(len(parts) + 1)]


def hide(names, visible):
    """Whether one of the names stands before another of the same spelling that would be found otherwise."""
    return any((outer, name) in visible for space, name in names for outer in around(space))


class Tree:
    """The files of a tree, each read once."""

    def __init__(self, read):
        self.read, self.files, self.seen = read, {}, {}

    def file(self, path):
        if path not in self.files:
            text = self.read(path)
            self.files[path] = None if text is None else File(text)
        return self.files[path]

    def visible(self, path):
        """The names that a file and the headers that it reaches declare."""
        if path not in self.seen:
            reached, waiting = {path}, [path]
            while waiting:
                new = [name for name in self.file(waiting.pop()).includes if name not in reached and self.file(name)]
                reached.update(new)
                waiting += new
            self.seen[path] = set().union(*(self.file(name).names | self.file(name).hidden for name in reached))
        return self.seen[path]


class Batch:
    def __init__(self):
        self.files, self.lines, self.hidden, self.visible, self.used, self.closed = [], 0, set(), set(), {}, False

    def fits(self, file, visible):
        return (not self.closed and len(self.files) < MOST_FILES and self.lines + file.lines <= MOST_LINES
                and not hide(self.hidden, visible) and not hide(file.hidden, self.visible)
                and not hide(self.used, visible) and not hide(file.used, self.visible)
                and all(self.used.get(name, text) == text for name, text in file.used.items()))

    def add(self, path, file, visible):
        self.files.append(path)
        self.lines += file.lines
        self.hidden |= file.hidden
        self.visible |= visible
        self.used |= file.used
        self.closed = file.macro_first


def batches(paths, read):
    """Lists of paths. Each file is in the first batch it fits in: the order of the target's list is kept where it can be."""
    tree, made = Tree(read), []
    for path in paths:
        file, visible = tree.file(path), tree.visible(path)
        batch = None if file.macro_first else next((one for one in made if one.fits(file, visible)), None)
        if batch is None:
            batch = Batch()
            made.append(batch)
        batch.add(path, file, visible)
    return [batch.files for batch in made]


def read(path):
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return file.read()


def main():
    for files in batches(sys.argv[1:], read):
        print(";".join(files))


if __name__ == "__main__":
    main()
