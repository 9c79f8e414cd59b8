# SPDX-License-Identifier: Apache-2.0
"""The rules of the house that a machine can check: who may include whom, who may touch the outside world, and form.

    python3 tests/layering/layering.py [ROOT]     prints "file:line: what is wrong, and why"; exits 1 if anything is

Each rule is a row below. A path is always relative to the root of the tree, with "/".
"""

import ast
import os
import re
import subprocess
import sys
from dataclasses import dataclass

# A folder may include itself, those of lower rank, and nothing else. The longest matching prefix counts.
RANK = {
    "cache/": 0,
    "ir/": 0,
    "cache/sqlite/": 1,
    "cache/outside/": 1,
    "cache/redis/": 2,
    "cache/object/": 2,
    "cache/bundle/": 2,
    "cache/testing/": 3,
    "compiler/target/": 1,
    "compiler/options.h": 2,
    "compiler/analysis/": 3,
    "compiler/analysis/threads/": 4,
    "compiler/rules/": 5,
    "compiler/rewrite/": 6,
    "compiler/front/": 7,
    "compiler/regions/": 7,
    "compiler/rows/": 7,
    "compiler/mapping/": 8,
    "compiler/loops/": 9,
    "compiler/grid/": 10,
    "compiler/synchronize/": 11,
    "compiler/accesses/": 12,
    "compiler/plan/": 13,
    "compiler/": 14,
    "clients/runtime/": 20,
    "clients/common/": 25,
    "clients/manifest/": 26,
    "server/system/": 30,
    "server/reply/": 31,
    "server/telemetry/": 32,
    "server/config/": 33,
    "server/access/": 34,
    "server/wire/": 35,
    "server/queue/": 36,
    "server/upstream/": 36,
    "server/door/": 37,
    "server/worker/": 38,
    "server/execute/": 39,
    "server/pool/": 40,
    "server/flow/": 41,
    "server/tune/": 42,
    "server/service/": 43,
    "server/testing/": 44,
    "server/tests/": 45,
    "clients/cpp/": 50,
    "clients/cli/": 51,
    "clients/python/": 51,
    "tests/": 60,
}
# Under these a folder is a room: at most so many files, and a sentence at the head of its CMakeLists.txt that says what it is.
ROOMS = ("cache/", "clients/cli/page/", "clients/common/", "clients/manifest/", "compiler/accesses/", "compiler/analysis/", "compiler/emulator/",
         "compiler/front/", "compiler/grid/", "compiler/llvm/", "compiler/loops/", "compiler/mapping/", "compiler/plan/", "compiler/regions/",
         "compiler/rewrite/", "compiler/rows/", "compiler/rules/", "compiler/synchronize/", "compiler/target/", "ir/", "server/")
MAX_FILES = 30
ROOTS = ("cache/", "ir/", "compiler/", "clients/", "server/", "tests/")

PROTO = r"^kiln/(v1|rpc)/.*\.pb\.h$"
CODE = (".cc", ".h", ".c", ".def", ".inc")
COMMENTED = CODE + (".py", ".pyi", ".proto", ".cmake", ".sh", ".toml", ".yml", ".yaml", ".service", "CMakeLists.txt",
                    "Containerfile")
MAX_LINES = 550
# Of comments in C++, which clang-format leaves alone, and of what users read of Python.
MAX_COLUMNS = 150


@dataclass(frozen=True)
class IncludeRule:
    """Headers that match `header` may be included under `allowed` only."""

    header: str
    allowed: tuple
    why: str


INCLUDES = (
    IncludeRule(r"^(llvm|llvm-c|lld|clang)/", ("compiler/llvm/", "compiler/emulator/"),
                "LLVM is seen by compiler/llvm and compiler/emulator only"),
    IncludeRule(r"^grpc(pp|\+\+)?/|\.grpc\.pb\.h$", ("server/", "clients/cpp/", "clients/cli/", "clients/python/", "tests/"),
                "gRPC is seen by the server and the clients only"),
    IncludeRule(r"^google/protobuf/|" + PROTO,
                ("ir/codec/", "compiler/", "clients/", "server/", "tests/"),
                "in ir only ir/codec sees protobuf, and cache sees bytes"),
    IncludeRule(r"^hiredis/", ("cache/redis/",), "the protocol of the cluster store is seen by cache/redis only"),
    IncludeRule(r"^curl/", ("cache/object/",), "HTTP of the object store is seen by cache/object only"),
    IncludeRule(r"^(cuda|hip/|cuda_runtime|nvml)", (), "no GPU toolkit is needed to build; clients/runtime declares what it "
                "opens at run time"),
)


@dataclass(frozen=True)
class TextRule:
    """Code that matches `pattern` may stand under `allowed` only."""

    pattern: str
    allowed: tuple
    why: str


# The outside world is injected below the server: what a compile or a cache does depends on its arguments alone.
TEXTS = (
    TextRule(r"\b(secure_)?getenv\s*\(", ("server/config/", "clients/common/", "clients/cpp/", "clients/cli/", "clients/python/", "tests/"),
             "the environment is read in the server's configuration and the clients only; pass the value in"),
    TextRule(r"(_clock|\bClock)::now\s*\(|\bclock_gettime\s*\(|\bgettimeofday\s*\(|\btime\s*\(\s*(nullptr|NULL|0)\s*\)",
             # The clients are the outermost part: what they wait for (top's next picture, a call's deadline) is the user's own time, and no test
             # of theirs waits for it. compiler/stage_timer.h reports how long a stage took: a compiler that were given a clock could decide by
             # it, and its results would depend on the time; so the one class that reads the time hands it to nobody but the report.
             ("server/", "clients/cpp/", "clients/cli/", "clients/python/", "tests/", "compiler/stage_timer.h"),
             "clocks are read from the server upwards only; take a clock or a time as an argument"),
    TextRule(r"\b(steady_clock|high_resolution_clock|Clock)::now\s*\(",
             ("server/system/system_clock.h", "clients/cpp/", "clients/cli/", "clients/python/", "tests/", "compiler/stage_timer.h"),
             "the server measures time by the cache::Clock it is given, so that a test can let time pass; only "
             "server/system/system_clock.h asks the system"),
)

KILND_LINKS = "kilnd links neither LLVM nor a driver: server/execute is kiln-worker's"
# Headers that match the pattern may not be included under the folder.
BARRED = (("compiler/emulator/runtime/", r"^compiler/(?!emulator/)", "the emulator is built from the vendors' documents: it must be able "
           "to disagree with what the compiler takes for true"),
          ("server/worker/", r"^grpc|\.grpc\.pb\.h$", "a worker process has no network and so no gRPC"),
          ("server/execute/", r"^grpc|\.grpc\.pb\.h$", "a worker process has no network and so no gRPC"),
          ("server/pool/", r"^server/execute/", KILND_LINKS),
          ("server/flow/", r"^server/execute/", KILND_LINKS),
          ("server/tune/", r"^server/execute/", KILND_LINKS),
          ("server/service/", r"^server/execute/", KILND_LINKS))

PACKAGES = "clients/python/"  # Python's modules lie under it by their names
# Python under the folder, but not under the part of it that follows, may not import the package.
IMPORTS = ((PACKAGES + "kiln/", PACKAGES + "kiln/examples/", "kiln.examples",
            "examples teach and depend on the rest, never the other way; what the library serves calls with is in kiln.library.programs"),)

# Headers one file alone may include.
SINGLE = (("sqlite3.h", "everything SQLite goes through that file"),)

# A test lets time pass by moving the clock it has injected (cache/testing.h, cache/testing/watched_clock.h), or waits for an event. Where its code
# sleeps in spite of that, the end of the line says why, in one of these ways. That the first of them stands in a loop is checked; whether the others
# are true a reader must judge, but nobody can sleep without saying so.
SLEEP = re.compile(r"\b(sleep_for|sleep_until|usleep|nanosleep)\s*\(|::sleep\s*\(")
SLEEP_POLLS = re.compile(r"//\s*between looks\b")
SLEEP_OTHERWISE = re.compile(r"//\s*(late, as|paces|real time of) \S")
LOOP = re.compile(r"^\W*(for|while|do)\b|\bEventually\(")

# Spelt in halves, so that this file passes its own check.
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
TEST_FILE = re.compile(r"_(test|fuzz|bench)\.(cc|h)$|_test_\w+\.h$|/testing/")


def tracked(root):
    """Files git knows or would add; every file where there is no git."""
    git = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                         capture_output=True, check=False)
    if git.returncode == 0 and git.stdout:
        names = git.stdout.decode().split("\0")
        return sorted({n for n in names if n and os.path.isfile(os.path.join(root, n))})
    found = []
    for folder, _, names in os.walk(root):
        found += [os.path.relpath(os.path.join(folder, n), root).replace(os.sep, "/") for n in names]
    return sorted(found)


def rank(path):
    best = max((p for p in RANK if path.startswith(p)), key=len, default=None)
    return (best, RANK[best]) if best else (None, None)


def without_comments(line):
    return re.sub(r"//.*|/\*.*?\*/", "", line)


def check_include(path, header, quoted):
    if header.startswith("../") or header.startswith("./"):
        yield f'"{header}" is relative; headers are included from the root of the tree ("ir/module.h")'
        return
    for rule in INCLUDES:
        if re.search(rule.header, header) and not path.startswith(rule.allowed):
            yield f"{header}: {rule.why}"
    for folder, pattern, why in BARRED:
        if path.startswith(folder) and re.search(pattern, header) and not TEST_FILE.search(path):
            yield f"{header}: {why}"
    if not quoted or not header.startswith(ROOTS):
        return
    (mine, my_rank), (theirs, their_rank) = rank(path), rank(header)
    if mine is None or theirs is None or mine == theirs:
        return
    if TEST_FILE.search(path) and (theirs == "tests/" or TEST_FILE.search(header)):
        return
    if their_rank >= my_rank:
        yield f"{header}: {mine} may not see {theirs} (the order is RANK in tests/layering/layering.py)"


def in_loop(lines, number):
    """Whether that line, which begins with 1, stands in a loop of its function, by the indentation that clang-format gives."""
    if LOOP.search(lines[number - 1]):
        return True
    width = len(lines[number - 1]) - len(lines[number - 1].lstrip())
    for line in reversed(lines[:number - 1]):
        its_width = len(line) - len(line.lstrip())
        if line.strip() and its_width < width:
            width = its_width
            if LOOP.search(line):
                return True
        if line.strip() and its_width == 0:
            return False
    return False


def check_sleep(lines, number):
    line = lines[number - 1]
    if not SLEEP.search(without_comments(line)) or SLEEP_OTHERWISE.search(line):
        return
    if not SLEEP_POLLS.search(line):
        yield ("a test moves its clock or waits for an event; what must sleep says why at the end of the line: // between looks (in a loop), "
               "// late, as …, // paces …, // real time of …")
    elif not in_loop(lines, number):
        yield "between looks at what? This sleep stands in no loop"


def check_code(path, lines):
    for number, line in enumerate(lines, 1):
        include = INCLUDE.match(line)
        if include:
            yield from ((number, m) for m in check_include(path, include.group(2), include.group(1) == '"'))
            continue
        if TEST_FILE.search(path) or "/tests/" in path:
            yield from ((number, m) for m in check_sleep(lines, number))
        bare = without_comments(line)
        for rule in TEXTS:
            if re.search(rule.pattern, bare) and not path.startswith(rule.allowed) and not TEST_FILE.search(path):
                yield number, f"{bare.strip()[:60]}: {rule.why}"
    if path.endswith(".h") and not any(line.startswith("#pragma once") for line in lines):
        yield 1, "a header starts with #pragma once"


def imported(path, text):
    """(line, module) of each import of a module of Python, "from" names included: from .a import b is of package.a.b."""
    package = os.path.dirname(path.removeprefix(PACKAGES)).split("/")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            outer = package[:len(package) + 1 - node.level] if node.level else []
            yield from ((node.lineno, ".".join([*outer, *filter(None, [node.module]), alias.name])) for alias in node.names)


def check_imports(path, text):
    for folder, exempt, package, why in IMPORTS:
        if path.startswith(folder) and not path.startswith(exempt) and path.endswith(".py"):
            yield from ((number, f"{module}: {why}") for number, module in imported(path, text) if f"{module}.".startswith(f"{package}."))


def is_commented(path, lines):
    return path.endswith(COMMENTED) or (bool(lines) and lines[0].startswith("#!"))


def check_form(path, lines):
    if any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:3]) is False:
        yield 1, 'no "SPDX-License-Identifier: Apache-2.0" line at the head of the file'
    if len(lines) > MAX_LINES:
        yield MAX_LINES, f"{len(lines)} lines; a file has at most {MAX_LINES}: is it one room, or several?"
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_COLUMNS and (path.endswith(".py") or path.endswith((".cc", ".h")) and line.lstrip().startswith("//")):
            yield number, f"{len(line)} columns; a line has at most {MAX_COLUMNS}"
        mark = UNFINISHED.search(line)
        if mark:
            yield number, f"{mark.group(0)}: finish it, or write it into an issue"


def check_rooms(paths, first_lines):
    """Rooms that have become halls, or that nobody can tell what they are. `first_lines`: path → its first lines."""
    count = {}
    for path in paths:
        if path.startswith(ROOMS) and path.endswith(CODE):
            count[os.path.dirname(path)] = count.get(os.path.dirname(path), 0) + 1
    for room, files in sorted(count.items()):
        if files > MAX_FILES:
            yield f"{room}:1: {files} files; a room has at most {MAX_FILES}: is it one sentence, or two?"
    for path in paths:
        if path.startswith(ROOTS) and path.endswith(CODE) and rank(path)[0] is None:
            yield f"{path}:1: this folder has no rank: put the file into a room, or the room into RANK"
    for path, lines in sorted(first_lines.items()):
        if path.startswith(ROOMS) and path.endswith("/CMakeLists.txt") and not (len(lines) > 1 and lines[1].startswith("# ")):
            yield f"{path}:2: a room says in one sentence what it is and what it may see"


def header_cycle(graph):
    """One cycle in the include graph as a list of headers, or None."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return path[path.index(node):] + [node]
        if node in done:
            return None
        path.append(node)
        for other in sorted(graph.get(node, ())):
            cycle = visit(other)
            if cycle:
                return cycle
        path.pop()
        done.add(node)
        return None

    for node in sorted(graph):
        cycle = visit(node)
        if cycle:
            return cycle
    return None


def check(root):
    """(problems, number of files read)."""
    problems, read, graph, single, first_lines = [], 0, {}, {name: [] for name, _ in SINGLE}, {}
    paths = tracked(root)
    for path in paths:
        with open(os.path.join(root, path), "rb") as file:
            data = file.read()
        if b"\0" in data[:4096]:
            continue
        text = data.decode(errors="replace")
        lines = text.splitlines()
        if not is_commented(path, lines):
            continue
        read += 1
        first_lines[path] = lines[:3]
        problems += [f"{path}:{n}: {m}" for n, m in [*check_form(path, lines), *check_imports(path, text)]]
        if not path.endswith(CODE):
            continue
        problems += [f"{path}:{n}: {m}" for n, m in check_code(path, lines)]
        headers = [m.group(2) for m in map(INCLUDE.match, lines) if m]
        for name in single:
            if name in headers:
                single[name].append(path)
        if path.endswith(".h"):
            graph[path] = {h for h in headers if h.startswith(ROOTS)}
    for name, why in SINGLE:
        if len(single[name]) > 1:
            problems += [f"{p}:1: {name} is included by {len(single[name])} files: {why}" for p in single[name]]
    problems += check_rooms(paths, first_lines)
    cycle = header_cycle(graph)
    if cycle:
        problems.append(f"{cycle[0]}:1: headers include each other: {' → '.join(cycle)}")
    return problems, read


def main():
    default = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    problems, read = check(os.path.normpath(sys.argv[1] if len(sys.argv) > 1 else default))
    print("\n".join(problems + [f"layering: {read} files, {len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
