// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/emit.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <initializer_list>
#include <vector>

#include "compiler/llvm/backend_options.h"
#include "compiler/llvm/emit_base.h"
#include "compiler/llvm/ptx/for_ptxas.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/Bitcode/BitcodeWriter.h>
#include <llvm/Config/llvm-config.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/OptBisect.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/TargetParser/Triple.h>
#pragma GCC diagnostic pop

namespace kiln::llvm_ir {

using target::Family;

void InitializeTargets() {
  LLVMInitializeNVPTXTargetInfo();
  LLVMInitializeNVPTXTarget();
  LLVMInitializeNVPTXTargetMC();
  LLVMInitializeNVPTXAsmPrinter();
  LLVMInitializeAMDGPUTargetInfo();
  LLVMInitializeAMDGPUTarget();
  LLVMInitializeAMDGPUTargetMC();
  LLVMInitializeAMDGPUAsmPrinter();
  LLVMInitializeAMDGPUAsmParser();
  LLVMInitializeX86TargetInfo();
  LLVMInitializeX86Target();
  LLVMInitializeX86TargetMC();
  LLVMInitializeX86AsmPrinter();
}

namespace {

const char* TripleOf(const target::Target& target) {
  if (target.emulated) return "x86_64-unknown-linux-gnu";
  return target.family == Family::kNvptx ? "nvptx64-nvidia-cuda" : "amdgcn-amd-amdhsa";
}

// Leaves some passes of a backend out.
class Without final : public llvm::OptPassGate {
 public:
  explicit Without(std::initializer_list<llvm::StringRef> passes) : passes_(passes) {}
  bool isEnabled() const override { return true; }
  bool shouldRunPass(llvm::StringRef pass, llvm::StringRef) const override { return !llvm::is_contained(passes_, pass); }

 private:
  std::vector<llvm::StringRef> passes_;
};

// AMD's backend takes what strength reduction makes of addresses, but for code with so many sums that comparing all pairs takes seconds.
constexpr size_t kMostSumsToCompare = 768;

// Two passes of NVPTX's take time in proportion to the square of the code. To find the form of an address, CodeGenPrepare tries to widen its sums
// before their extensions, and each trial visits all uses of what it widens. The vectorizer of loads and stores asks of all pairs whether they may
// meet. Code with more sums than this is first rid of those that are equal, and has the wide accesses that Kiln chose.
constexpr size_t kMostSumsToMatch = 2048;

size_t SumsOf(const llvm::Module& module) {
  const auto is_sum = [](const llvm::Instruction& instruction) {
    return instruction.getOpcode() == llvm::Instruction::Add || instruction.getOpcode() == llvm::Instruction::Mul ||
           llvm::isa<llvm::GetElementPtrInst>(instruction);
  };
  size_t most = 0;
  for (const llvm::Function& function : module) most = std::max(most, size_t(llvm::count_if(llvm::instructions(function), is_sum)));
  return most;
}

// MachineSink moves a chain of arithmetic to the block that uses its result, and leaves the loaded values alive until then. Where a block loads no
// more than this, that costs few registers, and AMD's kernels gain some.
constexpr long kMostLoadsToSinkFrom = 256;

bool MaySink(const llvm::Module& module) {
  const auto loads = [](const llvm::BasicBlock& block) { return llvm::count_if(block, llvm::IsaPred<llvm::LoadInst>); };
  return llvm::all_of(module, [&](const llvm::Function& function) {
    return llvm::all_of(function, [&](const llvm::BasicBlock& block) { return loads(block) <= kMostLoadsToSinkFrom; });
  });
}

// NVPTX's pipeline repeats on IR what Optimize has done and what instruction selection, MachineCSE and ptxas do again. Straight-line strength
// reduction compares every pair of addresses, which unrolled code has hundreds of. Without these and MachineSink, ptxas finds as many instructions
// and as many registers.
void LeaveOut(llvm::Module& module) {
  static Without repetition{"slsr", "nary-reassociate", "early-cse", "machine-sink"};
  static Without comparing_pairs{"slsr", "nary-reassociate", "load-store-vectorizer", "machine-sink"};
  static Without reduction{"slsr"};
  static Without sinking{"machine-sink"};
  static Without reduction_and_sinking{"slsr", "machine-sink"};
  const size_t sums = SumsOf(module);
  if (module.getTargetTriple().isNVPTX()) {
    module.getContext().setOptPassGate(sums > kMostSumsToMatch ? comparing_pairs : repetition);
    return;
  }
  const bool reduces = sums <= kMostSumsToCompare, sinks = !module.getTargetTriple().isAMDGPU() || MaySink(module);
  if (!reduces || !sinks) module.getContext().setOptPassGate(sinks ? reduction : reduces ? sinking : reduction_and_sinking);
}

}  // namespace

std::unique_ptr<llvm::TargetMachine> MakeTargetMachine(const target::Target& target) {
  const llvm::Triple triple(TripleOf(target));
  std::string error;
  const llvm::Target* backend = llvm::TargetRegistry::lookupTarget(triple, error);
  if (backend == nullptr) std::abort();  // InitializeTargets was not called, or this LLVM lacks a backend we are built for
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Fast;  // ir/expr/expr.h: a contracted multiply-add is allowed everywhere
  // The emulator names its processor where it runs: the artifact is the same on every host.
  const std::string_view arch = target.emulated ? "x86-64" : target.arch;
  const std::string_view features = target.emulated ? "" : target.llvm_features;
  return std::unique_ptr<llvm::TargetMachine>(backend->createTargetMachine(triple, llvm::StringRef(arch.data(), arch.size()),
                                                                           llvm::StringRef(features.data(), features.size()), options,
                                                                           llvm::Reloc::PIC_, std::nullopt, llvm::CodeGenOptLevel::Default));
}

void Prepare(llvm::Module& module, llvm::TargetMachine& machine, const target::Target& target) {
  module.setTargetTriple(machine.getTargetTriple());
  module.setDataLayout(machine.createDataLayout());
  if (target.family == Family::kAmdgpu && !target.emulated) {
    module.addModuleFlag(llvm::Module::Error, "amdhsa_code_object_version", 500);  // ROCm 5.7 and later load it
  }
}

std::expected<llvm::SmallVector<char, 0>, std::string> Generate(llvm::Module& module, llvm::TargetMachine& machine, llvm::CodeGenFileType type) {
  llvm::SmallVector<char, 0> bytes;
  llvm::raw_svector_ostream stream(bytes);
  SetBackendOptions();
  LeaveOut(module);
  llvm::legacy::PassManager passes;
  if (machine.addPassesToEmitFile(passes, stream, nullptr, type)) {
    return std::unexpected("LLVM cannot emit this kind of file for " + machine.getTargetTriple().str());
  }
  passes.run(module);
  return bytes;
}

std::string EmitBitcode(const llvm::Module& module) {
  std::string bytes;
  llvm::raw_string_ostream stream(bytes);
  llvm::WriteBitcodeToFile(module, stream);
  return bytes;
}

std::expected<std::string, std::string> EmitAssembly(llvm::Module& module, llvm::TargetMachine& machine) {
  const auto text = Generate(module, machine, llvm::CodeGenFileType::AssemblyFile);
  if (!text) return std::unexpected(text.error());
  const std::string_view assembly(text->data(), text->size());
  return machine.getTargetTriple().isNVPTX() ? ForPtxas(assembly) : std::string(assembly);
}

MemoryFile::MemoryFile(const char* name, bool inherited) : fd_(memfd_create(name, inherited ? 0 : MFD_CLOEXEC)) {}

MemoryFile::~MemoryFile() {
  if (fd_ >= 0) close(fd_);
}

std::string MemoryFile::Path() const { return "/proc/self/fd/" + std::to_string(fd_); }

bool MemoryFile::Write(const char* data, size_t size) {
  while (size > 0) {
    const ssize_t written = write(fd_, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    data += written;
    size -= size_t(written);
  }
  return true;
}

std::string MemoryFile::Read() const {
  struct stat status;
  if (fstat(fd_, &status) != 0) return {};
  std::string bytes(size_t(status.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = pread(fd_, bytes.data() + done, bytes.size() - done, off_t(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += size_t(got);
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace kiln::llvm_ir
