// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/functions/link.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "compiler/llvm/functions/checks.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/AsmParser/Parser.h>
#include <llvm/IR/DebugInfo.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/Linker/Linker.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/SourceMgr.h>
#include <llvm/Transforms/IPO/AlwaysInliner.h>
#include <llvm/Transforms/IPO/GlobalDCE.h>
#include <llvm/Transforms/Scalar/InferAddressSpaces.h>
#pragma GCC diagnostic pop

namespace kiln::llvm_ir {
namespace {

constexpr size_t kMostNamed = 8;

void Run(llvm::Module& module, llvm::ModulePassManager passes) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager components;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder;
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(components);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, components, modules);
  passes.run(module, modules);
}

std::string NameOf(const llvm::Type& type) {
  std::string name;
  llvm::raw_string_ostream stream(name);
  type.print(stream);
  return name;
}

class Text {
 public:
  Text(const ir::Function& function, const target::Target& target, llvm::Module& out) : function_(function), target_(target), out_(out) {}

  std::expected<llvm::Function*, Fault> Link(std::span<llvm::Type* const> arguments, const std::string& name) {
    if (std::optional<Fault> fault = Parse()) return std::unexpected(*std::move(fault));
    llvm::Function* function = module_->getFunction(function_.symbol);
    if (function == nullptr || function->isDeclaration()) return std::unexpected(Missing());
    if (std::optional<Fault> fault = Mismatch(*function, arguments)) return std::unexpected(*std::move(fault));
    if (module_->getNamedGlobal("llvm.global_ctors") != nullptr) {
      return std::unexpected(Fault{"the text runs constructors of its variables before it is called", "give them constant values"});
    }
    KeepReached(*function);
    if (auto checked = CheckReached(*function, target_); !checked) return std::unexpected(std::move(checked.error()));
    for (llvm::GlobalObject& object : module_->global_objects())
      if (!object.isDeclaration()) object.setName(name + "." + object.getName());
    const std::string linked = function->getName().str();
    llvm::Linker::linkModules(out_, std::move(module_));
    function = out_.getFunction(linked);
    function->setLinkage(llvm::GlobalValue::InternalLinkage);
    return function;
  }

 private:
  std::optional<Fault> Parse() {
    llvm::SMDiagnostic problem;
    const std::string layout = out_.getDataLayoutStr();
    const llvm::MemoryBufferRef buffer(function_.text, "text");
    const bool discards = out_.getContext().shouldDiscardValueNames();
    out_.getContext().setDiscardValueNames(false);  // the parser finds values by their names
    module_ = llvm::parseAssembly(buffer, problem, out_.getContext(), nullptr, [&](llvm::StringRef, llvm::StringRef) { return layout; });
    out_.getContext().setDiscardValueNames(discards);
    if (module_ == nullptr) return Fault{problem.getMessage().str(), "the text is in LLVM 22's language", uint32_t(std::max(problem.getLineNo(), 0))};
    module_->setTargetTriple(out_.getTargetTriple());
    std::string wrong;
    llvm::raw_string_ostream stream(wrong);
    if (llvm::verifyModule(*module_, &stream)) return Fault{"LLVM's verifier refuses the text: " + wrong.substr(0, wrong.find('\n')), "", 0};
    llvm::StripDebugInfo(*module_);
    std::vector<llvm::NamedMDNode*> named;
    for (llvm::NamedMDNode& node : module_->named_metadata()) named.push_back(&node);
    for (llvm::NamedMDNode* node : named) node->eraseFromParent();
    return std::nullopt;
  }

  Fault Missing() const {
    std::vector<std::string> names;
    for (const llvm::Function& other : *module_)
      if (!other.isDeclaration() && names.size() < kMostNamed) names.push_back("'" + other.getName().str() + "'");
    return {fmt::format("the text does not define '{}'", function_.symbol),
            names.empty() ? "it defines no function" : fmt::format("it defines {}", fmt::join(names, ", "))};
  }

  // The line on which the function's definition begins; 0: not found, as names may be written in several ways.
  uint32_t LineOfDefinition() const {
    const std::string_view text = function_.text;
    uint32_t number = 0;
    for (size_t start = 0; start < text.size(); start = std::min(text.find('\n', start), text.size() - 1) + 1) {
      ++number;
      const std::string_view line = text.substr(start, text.find('\n', start) - start);
      const size_t at = line.starts_with("define") ? line.find("@" + function_.symbol + "(") : std::string_view::npos;
      if (at != std::string_view::npos || (line.starts_with("define") && line.contains("@\"" + function_.symbol + "\"("))) return number;
    }
    return 0;
  }

  std::optional<Fault> Mismatch(const llvm::Function& function, std::span<llvm::Type* const> arguments) const {
    const auto fault = [&](std::string message, std::string hint) { return Fault{std::move(message), std::move(hint), LineOfDefinition()}; };
    if (function.getCallingConv() == llvm::CallingConv::PTX_Kernel || function.getCallingConv() == llvm::CallingConv::AMDGPU_KERNEL) {
      return fault(fmt::format("'{}' is a kernel", function_.symbol), "name a device function");
    }
    if (function.arg_size() != arguments.size()) {
      return fault(fmt::format("'{}' takes {} parameters, and the call gives {}", function_.symbol, function.arg_size(), arguments.size()),
                   "give each parameter one argument");
    }
    for (const llvm::Argument& parameter : function.args()) {
      const llvm::Type& given = *arguments[parameter.getArgNo()];
      const bool by_memory = parameter.hasPassPointeeByValueCopyAttr() || parameter.hasStructRetAttr();
      if (!by_memory && Suits(*parameter.getType(), given)) continue;
      return fault(fmt::format("parameter {} of '{}' is {}{}, and the call gives {}", parameter.getArgNo() + 1, function_.symbol,
                               NameOf(*parameter.getType()), by_memory ? " to a value" : "", NameOf(given)),
                   "give it an argument of its type, or change the function");
    }
    return std::nullopt;
  }

  static bool Suits(const llvm::Type& parameter, const llvm::Type& given) {
    if (&parameter == &given) return true;
    if (parameter.isPointerTy()) return given.isPointerTy() && parameter.getPointerAddressSpace() == 0;
    return given.isIntegerTy(1) && parameter.isIntegerTy(8);
  }

  // Drops what the function does not need, and what its compiler said of its target.
  void KeepReached(llvm::Function& function) {
    for (const char* list : {"llvm.used", "llvm.compiler.used"})
      if (llvm::GlobalVariable* used = module_->getNamedGlobal(list)) used->eraseFromParent();
    for (llvm::GlobalObject& object : module_->global_objects()) {
      object.setComdat(nullptr);
      object.setSection("");
      if (!object.isDeclaration() && &object != &function) object.setLinkage(llvm::GlobalValue::InternalLinkage);
    }
    for (llvm::Function& other : *module_) Rid(other);
    function.setLinkage(llvm::GlobalValue::ExternalLinkage);
    function.setVisibility(llvm::GlobalValue::DefaultVisibility);
    llvm::ModulePassManager passes;
    passes.addPass(llvm::GlobalDCEPass());
    Run(*module_, std::move(passes));
  }

  static void Rid(llvm::Function& function) {
    if (function.isDeclaration()) return;
    const bool convergent = function.isConvergent();
    function.setAttributes(function.getAttributes().removeFnAttributes(function.getContext()));
    function.addFnAttr(llvm::Attribute::AlwaysInline);
    function.addFnAttr(llvm::Attribute::NoUnwind);
    if (convergent) function.setConvergent();
    for (llvm::Instruction& instruction : llvm::instructions(function))
      if (auto* call = llvm::dyn_cast<llvm::CallBase>(&instruction)) call->removeFnAttr(llvm::Attribute::NoInline);
  }

  const ir::Function& function_;
  const target::Target& target_;
  llvm::Module& out_;
  std::unique_ptr<llvm::Module> module_;
};

}  // namespace

std::expected<llvm::Function*, Fault> LinkText(const ir::Function& function, std::span<llvm::Type* const> arguments, const target::Target& target,
                                               const std::string& name, llvm::Module& out) {
  return Text(function, target, out).Link(arguments, name);
}

void InlineLinked(llvm::Module& module, bool emulated) {
  llvm::ModulePassManager passes;
  passes.addPass(llvm::AlwaysInlinerPass());
  passes.addPass(llvm::GlobalDCEPass());
  // GPUs' backends find out for themselves where a generic pointer leads.
  if (emulated) passes.addPass(llvm::createModuleToFunctionPassAdaptor(llvm::InferAddressSpacesPass(/*AddressSpace=*/0)));
  Run(module, std::move(passes));
}

std::string LineOf(std::string_view text, uint32_t line) {
  constexpr size_t kMost = 120;
  for (; line > 1 && !text.empty(); --line) text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  return std::string(text.substr(0, std::min(text.find('\n'), kMost)));
}

}  // namespace kiln::llvm_ir
