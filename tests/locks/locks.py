# SPDX-License-Identifier: Apache-2.0
"""Clang's thread-safety analysis over everything that holds a mutex.

    python3 tests/locks/locks.py BUILD [FILE…]     BUILD: a configured build folder whose .proto files are generated

Checks each file with a mutex, or the FILEs alone, with the flags it is built with. Prints "checked FILE" or "failed FILE" with the errors,
and at last "PASSED FAILED SKIPPED". Where clang-22 is not installed everything is skipped.

The analysis trusts its annotations, so two things are looked for beside it: a mutex that guards nothing, and one of the standard library,
which carries no annotations.
"""

import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

CLANG = "clang++-22"
FOLDERS = ("cache/", "server/", "clients/")
MUTEX_HEADER = "cache/mutex.h"  # which makes the annotated mutex of the standard one
HEAVY = ("grpcpp/grpcpp.h", "grpcpp/alarm.h", "kiln/v1/service.grpc.pb.h")  # parsed once for all that see gRPC
UNCHECKED = "KILN_NO_THREAD_SAFETY_ANALYSIS"
SPDLOG_SINK = "<spdlog/sinks/base_sink.h>"  # whose sinks lock a mutex of their own, of the standard's kind
WARNINGS = ("-Wno-everything", "-Wthread-safety", "-Wthread-safety-beta", "-Werror=thread-safety", "-Werror=thread-safety-beta")

NOT_CHECKED = re.compile(r"_(test|fuzz|bench)\.(cc|h)$|(^|/)(testing|tests)/|(^|/)testing\.h$")
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
MUTEX = re.compile(r"^ *(?:mutable |static )*(?:cache::|kiln::cache::)?Mutex (\w+)(?: KILN_\w+\([^)]*\))*;", re.M)
PLAIN = re.compile(r"\bstd::(?:mutex|shared_mutex|recursive_mutex|timed_mutex|lock_guard|unique_lock|scoped_lock|condition_variable)\b")
TYPE = re.compile(r"^(?:class|struct) (?:KILN_\w+(?:\([^)]*\))? )*((?:\w+::)*\w+)(?: final)?(?: :[^;{]*)? \{", re.M)


def tracked(root):
    """Path → text of the code that is checked."""
    names = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", *FOLDERS],
                           capture_output=True, check=True).stdout.decode().split("\0")
    found = {}
    for name in names:
        path = os.path.join(root, name)
        if name.endswith((".cc", ".h")) and not NOT_CHECKED.search(name) and os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                found[name] = file.read()
    return found


def without_comments(text):
    return re.sub(r"//[^\n]*", "", text)


def mutexes(text):
    return MUTEX.findall(without_comments(text))


def form_problems(path, text):
    """What the analysis cannot see: locks without annotations, and mutexes that no annotation names."""
    bare = without_comments(text)
    for number, line in enumerate(bare.splitlines(), 1):
        if UNCHECKED in line and path != MUTEX_HEADER and "#define" not in line:
            yield f"{path}:{number}: {line.strip()}: only {MUTEX_HEADER} may leave a function out of the analysis"
        if path != MUTEX_HEADER and SPDLOG_SINK not in text and PLAIN.search(line):
            yield f"{path}:{number}: {line.strip()}: use those of {MUTEX_HEADER}, which the analysis knows"
    for name in mutexes(text):
        if not re.search(rf"KILN_(?:GUARDED_BY|REQUIRES)\([^)]*\b{name}\b", bare):
            yield f"{path}: the mutex {name} guards nothing: no KILN_GUARDED_BY or KILN_REQUIRES names it"


def reached(path, code, known):
    """The headers of `code` that a file includes, directly or not."""
    if path not in known:
        known[path] = set()
        for header in INCLUDE.findall(code[path]):
            if header in code:
                known[path] |= {header} | reached(header, code, known)
    return known[path]


def holders(path, text):
    """The types at the head of which a mutex is, as they are named outside."""
    starts = [(match.start(), match.group(1)) for match in TYPE.finditer(text)]
    for match in MUTEX.finditer(text):
        around = [name for start, name in starts if start < match.start()]
        if around:
            yield around[-1]


def files_to_check(code):
    """What declares a mutex, defines members of what does, or is needed for a header with one to be seen at all."""
    known, chosen = {}, set()
    headers = {path: set(holders(path, text)) for path, text in code.items()
               if path.endswith(".h") and path != MUTEX_HEADER and mutexes(text)}
    sources = sorted(path for path in code if path.endswith(".cc"))
    for path in sources:
        types = set().union(*(headers[h] for h in reached(path, code, known) if h in headers))
        defines = types and re.search(r"^\S[^\n]*?\b(?:%s)(?:::\w+)*::~?\w+\(" % "|".join(sorted(types)), code[path], re.M)
        if mutexes(code[path]) or defines:
            chosen.add(path)
    for header in sorted(headers):
        if not any(header in known[path] for path in chosen):
            chosen.update([path for path in sources if header in known[path]][:1])
    return sorted(chosen)


def sources(path, build, root):
    """The files of a batch (see batches.py), or the file itself; paths from the root."""
    if os.path.join(build, "batches", "") in path:
        with open(path, encoding="utf-8") as file:
            return INCLUDE.findall(file.read())
    return [os.path.relpath(path, root).replace(os.sep, "/")]


def commands(build, root):
    """Path → the flags of its compile command that the analysis needs."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        entries = json.load(file)
    found = {}
    for entry in entries:
        words = shlex.split(entry["command"])
        flags = []
        for at, word in enumerate(words):
            if word == "-isystem":
                flags += [word, words[at + 1]]
            elif word.startswith(("-D", "-I", "-std=")):
                flags.append(word)
        for path in sources(os.path.join(entry["directory"], entry["file"]), build, root):
            found.setdefault(path, flags)
    return found


def sees_grpc(path, code, known):
    return any(re.search(r"^#include [<\"]grpcpp/", code[p], re.M) for p in {path} | reached(path, code, known))


def precompile(flags, root, folder):
    """The flags with which a file need not parse HEAVY."""
    header = os.path.join(folder, f"heavy-{len(os.listdir(folder))}.h")
    with open(header, "w", encoding="utf-8") as file:
        file.writelines(f'#include "{name}"\n' for name in HEAVY)
    done = subprocess.run([CLANG, "-x", "c++-header", *flags, *WARNINGS, header, "-o", header + ".pch"], cwd=root, check=False)
    return [*flags, "-include-pch", header + ".pch"] if done.returncode == 0 else flags


def analyse(path, flags, root):
    """The errors in one file; none where it is right."""
    done = subprocess.run([CLANG, "-fsyntax-only", *flags, *WARNINGS, path], cwd=root, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip() or f"{CLANG} ended with {done.returncode}"


def check(root, build, names=(), show=print):
    """(passed, failed): each file that is checked, and the form of all together, counts as one."""
    code = tracked(root)
    flags = commands(build, root)
    files = list(names) or files_to_check(code)
    form = [problem for path, text in code.items() for problem in form_problems(path, text)]
    count = sum(len(mutexes(text)) for path, text in code.items() if path != MUTEX_HEADER)
    show(f"{count} mutexes; {len(files)} files define what they guard")
    failed = int(bool(form))
    for problem in form:
        show(f"failed {problem}")
    known, heavy = {}, {}
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path in files:
            if sees_grpc(path, code, known):
                same = tuple(flags[path])
                heavy[same] = heavy.get(same) or precompile(flags[path], root, folder)
                flags[path] = heavy[same]
        for path, errors in zip(files, pool.map(lambda path: analyse(path, flags[path], root), files)):
            failed += bool(errors)
            show(f"failed {path}\n{errors}" if errors else f"checked {path}")
    return len(files) + 1 - failed, failed


def main():
    if len(sys.argv) < 2:
        sys.exit("locks.py: name the build folder")
    if not shutil.which(CLANG):
        print(f"skipped every file: no {CLANG}\n0 0 1")
        return 0
    root = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    passed, failed = check(root, os.path.abspath(sys.argv[1]), sys.argv[2:])
    print(passed, failed, 0)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
