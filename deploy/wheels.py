# SPDX-License-Identifier: Apache-2.0
"""Writes two wheels from the files that deploy/bundle has staged. The same files and the same date give the same bytes.

  SOURCE_DATE_EPOCH=SECONDS deploy/wheels.py STAGE VERSION GLIBC OUT

kiln-VERSION-cp311-abi3-manylinux_GLIBC_x86_64.whl: the package `kiln`, with kilnd, kiln-worker and kiln in its folder `bin`, their
libraries in `lib`, and the commands kiln and kilnd. The extension needs CPython 3.11 or newer and the programs need that glibc, which
the tag says.

kiln_tilelang-VERSION-py3-none-any.whl, kiln_triton-VERSION-py3-none-any.whl: the packages `tilelang` and `triton` that stand in for the real
ones. They are apart, so that installing kiln never hides a real one."""

import base64
import hashlib
import os
import pathlib
import stat
import sys
import time
import zipfile

PYTHON = ">=3.11"
# What the client imports. The least versions are those that the tests run with, on Debian 12; of protobuf, whose message classes the client makes at
# run time (kiln/_proto.py), it is the first release that can.
NEEDS = ("numpy>=1.24", "grpcio>=1.51", "protobuf>=3.20")
COMMANDS = ("kiln", "kilnd")


def metadata(name: str, version: str, summary: str, needs, text: str) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", f"Summary: {summary}", "License: Apache-2.0",
             "Classifier: License :: OSI Approved :: Apache Software License", "Classifier: Operating System :: POSIX :: Linux",
             "Classifier: Programming Language :: Python :: 3", f"Requires-Python: {PYTHON}", *(f"Requires-Dist: {need}" for need in needs),
             "Description-Content-Type: text/markdown"]
    return "\n".join(lines) + "\n\n" + text


def files_below(folder: pathlib.Path, name: str) -> dict[str, pathlib.Path]:
    return {f"{name}/{path.relative_to(folder)}": path for path in sorted(folder.rglob("*")) if path.is_file()}


class Wheel:
    def __init__(self, name: str, version: str, tag: str, pure: bool):
        self.file = f"{name.replace('-', '_')}-{version}-{tag}.whl"
        self.info = f"{name.replace('-', '_')}-{version}.dist-info"
        self.tag, self.pure = tag, pure
        self.content: dict[str, tuple[bytes, bool]] = {}  # its bytes, and whether it is a program

    def add(self, path: str, content: bytes | str, program: bool = False):
        self.content[path] = (content.encode() if isinstance(content, str) else content, program)

    def add_files(self, files: dict[str, pathlib.Path]):
        for path, file in files.items():
            self.add(path, file.read_bytes(), bool(file.stat().st_mode & stat.S_IXUSR))

    def write(self, folder: pathlib.Path, date) -> pathlib.Path:
        self.add(f"{self.info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: kiln\nRoot-Is-Purelib: {str(self.pure).lower()}\nTag: {self.tag}\n")
        record = f"{self.info}/RECORD"
        rows = [f"{path},sha256={digest(content)},{len(content)}" for path, (content, _) in self.content.items()]
        self.add(record, "\n".join([*rows, f"{record},,"]) + "\n")
        target = folder / self.file
        part = target.with_suffix(".part")
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            for path, (content, program) in self.content.items():
                entry = zipfile.ZipInfo(path, date)
                entry.create_system = 3  # Unix: the mode counts
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = (stat.S_IFREG | (0o755 if program else 0o644)) << 16
                archive.writestr(entry, content)
        os.replace(part, target)
        return target


def digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def kiln_wheel(stage: pathlib.Path, version: str, glibc: str) -> Wheel:
    wheel = Wheel("kiln", version, f"cp311-abi3-manylinux_{glibc.replace('.', '_')}_x86_64", pure=False)
    for folder, name in (("python/kiln", "kiln"), ("bin", "kiln/bin"), ("lib", "kiln/lib")):
        wheel.add_files(files_below(stage / folder, name))
    wheel.add(f"{wheel.info}/METADATA", metadata(
        "kiln", version, "A compilation service for tile-level GPU kernels: the Python client, the daemon kilnd and the command kiln", NEEDS,
        "Kiln compiles tile programs for NVIDIA's and AMD's GPUs, without their toolkits, and emulates them where there is no GPU.\n"
        "The first call of a kernel starts the daemon `kilnd`, which this package brings. `kiln --help` and `kilnd --help` say what there is.\n\n"
        "Scripts that import `tilelang` run unchanged where `kiln-tilelang` is installed too, and those that import `triton` with `kiln-triton`.\n"))
    wheel.add(f"{wheel.info}/entry_points.txt", "[console_scripts]\n" + "".join(f"{name} = kiln._programs:{name}\n" for name in COMMANDS))
    wheel.add(f"{wheel.info}/top_level.txt", "kiln\n")
    wheel.add_files({f"{wheel.info}/licenses/LICENSE": stage / "LICENSE", **files_below(stage / "share/licenses", f"{wheel.info}/licenses")})
    return wheel


def stand_in_wheel(stage: pathlib.Path, version: str, folder: str, name: str, real: str) -> Wheel:
    wheel = Wheel(f"kiln-{name}", version, "py3-none-any", pure=True)
    wheel.add_files(files_below(stage / folder / name, name))
    wheel.add(f"{wheel.info}/METADATA", metadata(
        f"kiln-{name}", version, f"The package {name} over Kiln, so that scripts written for {real} run unchanged", [f"kiln=={version}"],
        f"This takes the name `{name}`. Don't install it beside the real {real}: each would overwrite files of the other.\n"))
    wheel.add(f"{wheel.info}/top_level.txt", f"{name}\n")
    wheel.add_files({f"{wheel.info}/licenses/LICENSE": stage / "LICENSE"})
    return wheel


def main(stage: str, version: str, glibc: str, out: str):
    # A zip's dates begin with 1980.
    date = time.gmtime(max(int(os.environ["SOURCE_DATE_EPOCH"]), 315_532_800))[:6]
    folder = pathlib.Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    staged = pathlib.Path(stage)
    for wheel in (kiln_wheel(staged, version, glibc), stand_in_wheel(staged, version, "python-compat", "tilelang", "TileLang"),
                  stand_in_wheel(staged, version, "python-compat-triton", "triton", "Triton")):
        written = wheel.write(folder, date)
        print(f"{written}: {written.stat().st_size / (1 << 20):.1f} MiB")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
