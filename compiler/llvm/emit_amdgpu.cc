// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <cstring>

#include "compiler/llvm/emit.h"
#include "compiler/llvm/emit_base.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <lld/Common/Driver.h>
#pragma GCC diagnostic pop

LLD_HAS_DRIVER(elf)

namespace kiln::llvm_ir {

// The linker reads and writes files in memory; it does not record their names.
std::expected<std::string, std::string> EmitHsaco(llvm::Module& module, llvm::TargetMachine& machine) {
  const auto object = Generate(module, machine, llvm::CodeGenFileType::ObjectFile);
  if (!object) return std::unexpected(object.error());
  MemoryFile input("kiln-object");
  const MemoryFile output("kiln-hsaco");
  if (!input.ok() || !output.ok() || !input.Write(object->data(), object->size())) {
    return std::unexpected(std::string("no memory file for the linker: ") + std::strerror(errno));
  }
  const std::string in = input.Path(), out = output.Path();
  // One thread: a worker is forked from a process that must have none.
  const char* args[] = {"ld.lld", "-shared", "--threads=1", "--no-mmap-output-file", in.c_str(), "-o", out.c_str()};
  std::string text;
  llvm::raw_string_ostream stream(text);
  const lld::Result result = lld::lldMain(args, stream, stream, {{lld::Gnu, &lld::elf::link}});
  if (result.retCode != 0) return std::unexpected("linking the code object failed: " + text);
  std::string bytes = output.Read();
  if (bytes.empty()) return std::unexpected("the linker wrote no code object: " + text);
  return bytes;
}

}  // namespace kiln::llvm_ir
