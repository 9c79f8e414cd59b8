// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/complaints.h"

#include <memory>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/IR/DiagnosticHandler.h>
#include <llvm/IR/DiagnosticInfo.h>
#include <llvm/IR/DiagnosticPrinter.h>
#pragma GCC diagnostic pop

namespace kiln::llvm_ir {
namespace {

bool IsOfResources(const llvm::DiagnosticInfo& info, const std::string& text) {
  switch (info.getKind()) {
    case llvm::DK_RegAllocFailure:
    case llvm::DK_ResourceLimit:
    case llvm::DK_StackSize: return true;
    default:
      // LLVM reports some of these as plain errors, so only the text tells them.
      return text.find("ran out of registers") != std::string::npos || text.find("no registers") != std::string::npos ||
             text.find("stack frame size") != std::string::npos || text.find("scratch") != std::string::npos;
  }
}

class Collector final : public llvm::DiagnosticHandler {
 public:
  explicit Collector(Complaints& complaints) : complaints_(complaints) {}

  bool handleDiagnostics(const llvm::DiagnosticInfo& info) override {
    if (info.getSeverity() != llvm::DS_Error) return true;
    std::string text;
    llvm::raw_string_ostream stream(text);
    llvm::DiagnosticPrinterRawOStream printer(stream);
    info.print(printer);
    std::string& all = IsOfResources(info, text) ? complaints_.resources : complaints_.others;
    if (all.empty()) all = text;  // the first says most
    return true;
  }

 private:
  Complaints& complaints_;
};

}  // namespace

void Collect(llvm::LLVMContext& context, Complaints& complaints) { context.setDiagnosticHandler(std::make_unique<Collector>(complaints)); }

}  // namespace kiln::llvm_ir
