# SPDX-License-Identifier: Apache-2.0
"""`kiln record` and `kiln.record`: what clients below a command ask for is in the manifest, and the command does not notice."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from daemon import BUILD
from programs import COMPILES, REFUSED, TEXT, TILELANG

EXAMPLE = BUILD.resolve() / "bin" / "kiln-example-client"


def shell(text):
    return ["bash", "-c", text]


def test_every_client_below_the_command_is_recorded(host):
    program = host.folder / "twice.kiln"
    program.write_text(TEXT)
    python = host.script(COMPILES)
    tilelang = host.script(TILELANG, "tilelang_script.py")
    lines = [f"kiln compile {program} -t cuda:sm_80", f"kiln compile {program} -t cuda:sm_75 --local", f"kiln run {program} -t emu:sm_90a",
             f"kiln precompile {program} -t hip:gfx942", f"kiln explain {program} -t cuda:sm_90a", " ".join([*python, "cuda:sm_90a", "2"]),
             " ".join(tilelang)]
    wanted = [("main", "emu:sm_90a", False), ("scale", "cuda:sm_90a", False), ("twice", "cuda:sm_75", False), ("twice", "cuda:sm_80", False),
              ("twice", "emu:sm_90a", False), ("twice", "hip:gfx942", False)]
    if EXAMPLE.exists():
        lines.append(f"{EXAMPLE} {program} cuda:sm_89")
        wanted.append(("twice", "cuda:sm_89", False))
    ran = host.record("app.manifest", *shell("set -e\n" + "\n".join(lines)))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert host.requests("app.manifest") == sorted(wanted)


@pytest.mark.skipif(not EXAMPLE.exists(), reason=f"{EXAMPLE} is not built")
def test_an_address_in_the_code_and_a_daemon_that_is_gone_are_recorded_as_well(hosts):
    host = hosts(running=False)
    program = host.folder / "twice.kiln"
    program.write_text(TEXT)
    ran = host.record("app.manifest", "env", "KILN_ADDRESS=unix:/nowhere/kiln.sock", EXAMPLE, program, "cuda:sm_80")
    assert ran.returncode == 1 and "no kilnd answers" in ran.stderr
    assert host.requests("app.manifest") == [("twice", "cuda:sm_80", False)]


def test_a_request_for_the_gpu_of_this_machine_is_recorded_where_there_is_none(host):
    """As one for the emulator, which the script goes on with; precompiling replaces that by real targets."""
    script = host.script(COMPILES)
    assert host.run(*script, "cuda", "2").returncode != 0, "without a recording it ends here"
    ran = host.record("app.manifest", *script, "cuda", "2", "3")
    assert ran.returncode == 0, ran.stderr
    assert host.requests("app.manifest") == [("scale", "emu:sm_90a", False)] * 2
    done = host.kiln("precompile", "app.manifest", "-t", "cuda:sm_90a", "-t", "hip:gfx942", "--text")
    assert done.returncode == 0 and "4 of 4 kernels" in done.stdout, done.stdout + done.stderr


def test_the_same_requests_give_the_same_bytes_whoever_makes_them(host):
    script = host.script(COMPILES)
    for name, numbers in (("one", "123"), ("other", "3121")):
        assert host.record(name, *script, "cuda:sm_80", *numbers).returncode == 0
    inside = host.script("import kiln, runpy, sys\nwith kiln.record(sys.argv.pop(1)):\n    runpy.run_path(sys.argv[0].replace('inside', 'script'))",
                         "inside.py")
    ran = host.run(*inside, "python", "cuda:sm_80", "1", "2", "3")
    assert ran.returncode == 0, ran.stderr
    one, other, python = ((host.folder / name).read_bytes() for name in ("one", "other", "python"))
    assert one == other == python and len(host.requests("one")) == 3


def test_a_recording_adds_to_the_manifest_and_two_merge(host):
    script = host.script(COMPILES)
    for numbers in ("12", "23"):
        assert host.record("all", *script, "cuda:sm_80", *numbers).returncode == 0
        assert host.record(f"of{numbers}", *script, "cuda:sm_80", *numbers).returncode == 0
    assert host.kiln("manifest", "of23", "of12", "-o", "merged").returncode == 0
    assert (host.folder / "merged").read_bytes() == (host.folder / "all").read_bytes() and len(host.requests("all")) == 3


def test_the_text_reads_back(host):
    assert host.record("app.manifest", *host.script(COMPILES), "cuda:sm_80", "1", "2").returncode == 0
    text = host.kiln("manifest", "app.manifest", "--text").stdout
    assert text.startswith("kiln manifest 1\n") and text.count('request target: "cuda:sm_80"\n  kiln 1\n  func @scale(') == 2
    (host.folder / "app.txt").write_text(text)
    assert host.kiln("manifest", "app.txt", "--text").stdout == text
    assert host.kiln("manifest", "app.txt", "--text", "-o", "again.txt").returncode == 0
    assert (host.folder / "again.txt").read_text() == text
    assert len(host.requests("app.txt")) == 2
    assert host.kiln("manifest", "app.txt", "app.manifest", "-o", "both").returncode == 0 and len(host.requests("both")) == 2, "the same requests"
    known = host.kiln("precompile", "app.txt", "--check", "--text")
    assert known.returncode == 0 and "0 of 2 kernels are missing" in known.stdout, known.stdout + known.stderr
    assert host.record("app.txt", *host.script(COMPILES), "cuda:sm_80", "3").returncode == 0
    assert (host.folder / "app.txt").read_text().startswith("kiln manifest 1\n") and len(host.requests("app.txt")) == 3, "it stays a text"


def test_what_the_compiler_refused_is_told_and_fails_nothing_later(host):
    assert host.record("app.manifest", *host.script(REFUSED)).returncode == 0
    assert host.requests("app.manifest") == [("too_large", "cuda:sm_90a", True)]
    done = host.kiln("precompile", "app.manifest", "--text")
    assert done.returncode == 0 and "it was refused when it was recorded, too" in done.stderr, done.stdout + done.stderr
    assert host.kiln("precompile", "app.manifest", "--check").returncode == 0
    text = host.kiln("manifest", "app.manifest", "--text").stdout
    (host.folder / "plain.txt").write_text(text.replace("refused target", "request target"))
    assert host.kiln("precompile", "plain.txt").returncode == 1, "nobody expected this one"


def test_status_output_and_input_are_the_commands(host):
    ran = subprocess.run(["kiln", "record", "-o", "app.manifest", "--", *shell("cat; echo on stderr >&2; exit 37")], env=host.environment,
                         cwd=host.folder, input="a line\n", capture_output=True, text=True, timeout=60)
    assert ran.returncode == 37 and ran.stdout == "a line\n" and ran.stderr.startswith("on stderr\n")
    assert host.record("app.manifest", *shell("kill -TERM $$")).returncode == 128 + signal.SIGTERM
    words = ["--text", "-o", "x y", "--", "[a,b]", "", "record"]
    ran = host.record("app.manifest", sys.executable, "-c", "import sys; print(sys.argv[1:])", *words)
    assert ran.stdout == f"{words}\n"
    assert host.run(*shell("trap '' CHLD; exec kiln record -o app.manifest -- sh -c 'exit 5'")).returncode == 5
    assert host.record("app.manifest", "no-such-command").returncode == 127
    assert host.record("app.manifest", host.folder).returncode == 126


def test_what_is_wrong_is_told_before_the_command_runs(host):
    (host.folder / "notes").write_text("something else")
    for words, told in ((("-o", "notes", "--", "touch", "ran"), "no manifest"),
                        (("-o", "nowhere/app.manifest", "--", "touch", "ran"), "cannot write"),
                        (("-o", "app.manifest", "touch", "ran"), "write -- before the command"), (("--", "touch", "ran"), "--output is required"),
                        (("-o", "app.manifest", "--"), "required")):
        ran = host.kiln("record", *words)
        assert ran.returncode != 0 and told in ran.stdout + ran.stderr, (words, ran)
    assert not (host.folder / "ran").exists() and (host.folder / "notes").read_text() == "something else"
    assert not (host.folder / "app.manifest").exists()


def started(host, *command):
    return subprocess.Popen(["kiln", "record", "-o", "app.manifest", "--", *command], env=host.environment, cwd=host.folder, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_passed_on_and_the_manifest_is_written(host, number):
    script = host.script(COMPILES + f'''
import os, signal, time
signal.signal({int(number)}, lambda *_: (print("passed on", flush=True), os._exit(9)))
print("ready", flush=True)
time.sleep(60)
''')
    recording = started(host, *script, "cuda:sm_80", "1")
    assert recording.stdout.readline() == "ready\n"
    recording.send_signal(number)
    assert recording.stdout.read() == "passed on\n" and recording.wait(timeout=60) == 9
    assert host.requests("app.manifest") == [("scale", "cuda:sm_80", False)]


def test_a_terminals_interrupt_reaches_the_command_once(host):
    """The terminal sends it to both; what kiln record passed on besides would be a second one."""
    script = host.script('''
import signal, time
count = 0
def note(*_):
    global count
    count += 1
signal.signal(signal.SIGINT, note)
print("ready", flush=True)
end = time.monotonic() + 1.5
while time.monotonic() < end:
    time.sleep(0.05)
print(count, flush=True)
''')
    parent, child = os.openpty()
    pid = os.fork()
    if pid == 0:  # a session of its own, whose terminal this is
        os.setsid()
        import fcntl
        import termios
        fcntl.ioctl(child, termios.TIOCSCTTY, 0)
        for fd in (0, 1, 2):
            os.dup2(child, fd)
        os.chdir(host.folder)
        os.execvpe("kiln", ["kiln", "record", "-o", "app.manifest", "--", *script], host.environment)
    os.close(child)
    said = b""
    try:
        while b"ready" not in said:
            said += os.read(parent, 1024)
        os.write(parent, b"\x03")
        while True:
            try:
                more = os.read(parent, 1024)
            except OSError:  # its end
                break
            if not more:
                break
            said += more
    finally:
        os.close(parent)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, said
    assert said.endswith(b"1\r\nkiln: app.manifest has 0 requests\r\n"), said


def test_children_that_are_killed_and_run_at_once_lose_nothing(host):
    script = host.script(COMPILES + "\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    many = "\n".join(" ".join([*script, "cuda:sm_80", str(n), str(n + 1)]) + " &" for n in range(6)) + "\nwait\nexit 0"
    ran = host.record("app.manifest", *shell(many))
    assert ran.returncode == 0, ran.stderr
    assert len(host.requests("app.manifest")) == 7


def test_forked_children_are_recorded(host):
    script = host.script(COMPILES.split("for factor")[0] + '''
import os
kiln.compile(scale(1.0), target="cuda:sm_80")
if os.fork() == 0:
    kiln.compile(scale(2.0), target="cuda:sm_80")
    os._exit(0)
os.wait()
''')
    assert host.record("app.manifest", *script).returncode == 0
    assert len(host.requests("app.manifest")) == 2


def test_a_recording_inside_another_is_in_both(host):
    inner = ["kiln", "record", "-o", "inner", "--", *host.script(COMPILES), "cuda:sm_80", "1"]
    assert host.record("outer", *inner).returncode == 0
    assert host.requests("inner") == host.requests("outer") == [("scale", "cuda:sm_80", False)]


def test_who_outlives_the_recording_goes_on(host):
    script = host.script("import sys, time\nwhile not __import__('os').path.exists('go'):\n    time.sleep(0.05)\n" + COMPILES)
    ran = host.record("app.manifest", *shell(f"({' '.join(script)} cuda:sm_80 1 && touch late) > late.log 2>&1 &"))
    assert ran.returncode == 0 and host.requests("app.manifest") == []
    (host.folder / "go").touch()
    end = time.monotonic() + 60
    while not (host.folder / "late").exists():
        assert time.monotonic() < end, (host.folder / "late.log").read_text()
        time.sleep(0.05)


def test_two_recordings_at_once_both_reach_one_manifest(host):
    script = host.script(COMPILES)
    both = [started(host, *script, "cuda:sm_80", *numbers) for numbers in ("123", "345")]
    assert [one.wait(timeout=120) for one in both] == [0, 0]
    for one in both:
        one.communicate()
    assert len(host.requests("app.manifest")) == 5


def test_no_folder_is_left(host):
    scratch = host.folder / "tmp"
    scratch.mkdir()
    assert host.record("app.manifest", *host.script(COMPILES), "cuda:sm_80", "1", TMPDIR=str(scratch)).returncode == 0
    assert list(scratch.glob("kiln-record-*")) == []
    for bad, told in ((f"{scratch}:x", "colon"), (str(scratch / "nowhere"), "TMPDIR")):
        if told == "colon":
            pathlib.Path(bad).mkdir()
        ran = host.record("app.manifest", "true", TMPDIR=bad)
        assert ran.returncode == 1 and told in ran.stderr, ran


def test_a_folder_of_a_recording_that_was_killed_is_a_manifest(host):
    folder = host.folder / "folder"
    folder.mkdir()
    assert host.run(*host.script(COMPILES), "cuda:sm_80", "1", KILN_RECORD=str(folder)).returncode == 0
    assert host.requests(folder) == [("scale", "cuda:sm_80", False)]
    assert host.kiln("precompile", folder, "--check").returncode == 0


def test_python_does_not_add_to_what_it_cannot_read(host):
    import kiln

    for text, told in (("something else", "no manifest"), ("kiln manifest 1\n", "text form")):
        path = pathlib.Path(host.folder, "file")
        path.write_text(text)
        with pytest.raises(kiln.KilnError, match=told):
            with kiln.record(path):
                raise AssertionError("it began")
        assert path.read_text() == text


def test_a_request_that_cannot_be_noted_is_not_made(host):
    (host.folder / "file").touch()
    ran = host.run(*host.script(COMPILES), "cuda:sm_80", "1", KILN_RECORD=str(host.folder / "file"))
    assert ran.returncode == 1 and "cannot record into" in ran.stderr and host.compiles() == 0
