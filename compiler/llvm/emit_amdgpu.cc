// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "compiler/llvm/emit.h"
#include "compiler/llvm/emit_base.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <lld/Common/Driver.h>
#pragma GCC diagnostic pop

LLD_HAS_DRIVER(elf)

namespace kiln::llvm_ir {

namespace {

// The write end of a pipe that a thread of its own empties. The linker renames a finished file into place, which needs
// a name; into what is not a regular file it writes.
class Sink {
 public:
  Sink() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return;
    write_end_ = ends[1];
    reader_ = std::thread([this, read_end = ends[0]] { Drain(read_end); });
  }
  ~Sink() { Close(); }
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  bool ok() const { return write_end_ >= 0; }
  std::string Path() const { return "/proc/self/fd/" + std::to_string(write_end_); }
  // Everything written, once the writer has closed its own descriptor.
  std::string Take() {
    Close();
    return std::move(bytes_);
  }

 private:
  void Drain(int read_end) {
    char buffer[65536];
    for (;;) {
      const ssize_t got = read(read_end, buffer, sizeof buffer);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      bytes_.append(buffer, size_t(got));
    }
    close(read_end);
  }
  void Close() {
    if (write_end_ < 0) return;
    close(write_end_);
    write_end_ = -1;
    reader_.join();
  }

  int write_end_ = -1;
  std::string bytes_;  // the reader's until it is joined
  std::thread reader_;
};

}  // namespace

// No file has a name, so none can be left behind, and the linker does not record names.
std::expected<std::string, std::string> EmitHsaco(llvm::Module& module, llvm::TargetMachine& machine) {
  const auto object = Generate(module, machine, llvm::CodeGenFileType::ObjectFile);
  if (!object) return std::unexpected(object.error());
  MemoryFile input("kiln-object");
  Sink output;
  if (!input.ok() || !output.ok() || !input.Write(object->data(), object->size())) {
    return std::unexpected(std::string("no memory file or pipe for the linker: ") + std::strerror(errno));
  }
  const std::string in = input.Path(), out = output.Path();
  const char* args[] = {"ld.lld", "-shared", "--threads=1", in.c_str(), "-o", out.c_str()};
  std::string text;
  llvm::raw_string_ostream stream(text);
  const lld::Result result = lld::lldMain(args, stream, stream, {{lld::Gnu, &lld::elf::link}});
  std::string bytes = output.Take();
  if (result.retCode != 0) return std::unexpected("linking the code object failed: " + text);
  if (bytes.empty()) return std::unexpected("the linker wrote no code object: " + text);
  return bytes;
}

}  // namespace kiln::llvm_ir
