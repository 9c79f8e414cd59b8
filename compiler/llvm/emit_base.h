// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <expected>
#include <string>

#include "compiler/llvm/llvm_headers.h"

namespace kiln::llvm_ir {

// Code generation of `module` to text or to an object.
std::expected<llvm::SmallVector<char, 0>, std::string> Generate(llvm::Module& module, llvm::TargetMachine& machine, llvm::CodeGenFileType type);

// An anonymous file in memory that child processes and in-process tools open by its path under /proc.
class MemoryFile {
 public:
  // `inherited`: stays open in child processes.
  explicit MemoryFile(const char* name, bool inherited = false);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  bool ok() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  std::string Path() const;
  bool Write(const char* data, size_t size);
  std::string Read() const;

 private:
  int fd_;
};

}  // namespace kiln::llvm_ir
