// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower.h"

#include <fmt/format.h>

#include "compiler/analysis/access.h"
#include "compiler/artifact.h"
#include "compiler/emulator/device_emulator.h"
#include "compiler/llvm/emit.h"
#include "compiler/llvm/kernel_lowering.h"
#include "ir/visit.h"

namespace kiln::llvm_ir {

using ir::Space;

KernelLowering::KernelLowering(const ir::Module& module, const ir::Kernel& kernel, const compiler::Context& context, llvm::Module& out,
                               ir::Diagnostics& diagnostics, int64_t code_before)
    : module_(module),
      kernel_(kernel),
      context_(context),
      out_(out),
      diagnostics_(diagnostics),
      builder_(out.getContext()),
      code_before_(code_before),
      facts_(module),
      divergence_(module, kernel) {
  const target::Target& target = *context.target;
  device_ = target.emulated                           ? emulator::MakeEmulatorDevice(target, builder_)
            : target.family == target::Family::kNvptx ? MakeNvptxDevice(target, builder_)
                                                      : MakeAmdgpuDevice(target, builder_);
  llvm::FastMathFlags flags;
  flags.setAllowContract();
  if (context.options.fast_math()) {
    flags.setAllowReciprocal();
    flags.setApproxFunc();
  }
  builder_.setFastMathFlags(flags);
}

KernelLowering::~KernelLowering() = default;

bool KernelLowering::Run(std::string_view entry) {
  std::vector<llvm::Type*> types;
  for (const compiler::KernelParam& param : compiler::KernelParams(module_)) {
    types.push_back(param.is_pointer ? llvm::PointerType::get(llvm(), kGlobalSpace) : ValueType(llvm(), param.dtype));
  }
  maps_ = compiler::TensorMapsOf(module_);
  for (size_t i = 0; i < maps_.size(); ++i) types.push_back(llvm::ArrayType::get(b().getInt8Ty(), 128));
  function_ = device_->CreateKernel(out_, entry, types, kernel_.threads + kernel_.producers, context_.options.max_registers(), kernel_.min_blocks);
  if (context_.options.fast_math()) FlushSubnormals(*function_);
  MarkReadOnly();
  builder_.SetInsertPoint(llvm::BasicBlock::Create(llvm(), "entry", function_));
  // Allocas stay in this block; the code follows in another.
  llvm::BasicBlock* body = NewBlock("body");
  b().SetInsertPoint(b().CreateBr(body)->getParent());
  b().SetInsertPoint(body);
  thread_ = block_thread_ = device_->ThreadIndex();
  threads_ = {0, kernel_.threads};
  if (kernel_.shared_bytes > 0) {
    shared_ = device_->SharedMemory(uint64_t(kernel_.shared_bytes), fmt::format("{}_shared", entry));
  }
  ir::Walk(kernel_.body, [&](const ir::Stmt& stmt) {
    const auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
    if (gemm != nullptr && compiler::RowOf(*gemm).in_flight) {
      has_wgmma_ = true;
      in_products_.insert({gemm->a.buffer, gemm->b.buffer, gemm->c.buffer});
    }
    const auto* copy = std::get_if<ir::Copy>(&stmt.op);
    has_stores_ |= copy != nullptr && copy->plan && copy->plan->instruction == ir::CopyInstruction::kTensor && !copy->plan->ring;
  });
  FindRings();
  facts_.EnterKernel(kernel_);
  if (!ElementsAreWhole(kernel_.body)) return false;
  BindParameters(function_);
  BindBlocks();
  for (uint32_t id = 0; id < module_.buffers.size(); ++id) Allocate(ir::BufferId(id));
  InitExchanges();
  if (kernel_.producers > 0) {
    LowerRoles();
  } else {
    LowerBlock(kernel_.body);
    FinishStores();
  }
  b().CreateRetVoid();
  return !diagnostics_.HasErrors();
}

// Nothing but this kernel touches a tensor that it only reads (ir/module.h), so LLVM may move loads of it across stores. The emulator reads
// such tensors through its own view of memory.
void KernelLowering::MarkReadOnly() {
  if (context_.target->emulated) return;
  std::set<uint32_t> written;
  ir::Walk(kernel_.body, [&](const ir::Stmt& stmt) {
    for (const compiler::Access& access : compiler::AccessesOf(module_, stmt))
      if (access.write) written.insert(ir::Index(access.buffer));
    if (const auto* sum = std::get_if<ir::StreamSum>(&stmt.op)) written.insert({ir::Index(sum->partials), ir::Index(sum->flags)});
  });
  unsigned i = 0;
  for (const compiler::KernelParam& param : compiler::KernelParams(module_)) {
    const unsigned argument = i++;
    if (!param.is_pointer || written.contains(param.index)) continue;
    function_->addParamAttr(argument, llvm::Attribute::NoAlias);
    function_->addParamAttr(argument, llvm::Attribute::ReadOnly);
  }
}

// Whether all elements are whole bytes: smaller ones have no address.
bool KernelLowering::ElementsAreWhole(const ir::Block& body) {
  std::set<ir::BufferId> seen;
  ir::Walk(body, [&](const ir::Stmt& stmt) {
    loc_ = stmt.loc;
    for (const compiler::Access& access : compiler::AccessesOf(module_, stmt)) {
      const ir::Buffer& buffer = module_[access.buffer];
      if (ir::Bits(buffer.dtype) >= 8 || !seen.insert(access.buffer).second) continue;
      Unsupported(fmt::format("'{}' has elements of {}, which share bytes", buffer.name, ir::Name(buffer.dtype)),
                  "pass the packed bytes as u8 and unpack them with shifts");
    }
  });
  return !diagnostics_.HasErrors();
}

void KernelLowering::BindParameters(llvm::Function* function) {
  unsigned i = 0;
  for (const compiler::KernelParam& param : compiler::KernelParams(module_)) {
    Value* argument = function->getArg(i++);
    if (param.is_pointer) {
      memory_[param.index] = argument;
    } else {
      vars_[param.index] = argument;
    }
  }
  for (size_t map = 0; map < maps_.size(); ++map) map_arguments_.push_back(function->getArg(i++));
}

void KernelLowering::BindBlocks() {
  std::vector<Value*> index;
  for (size_t axis = 0; axis < kernel_.grid.size(); ++axis) index.push_back(device_->BlockIndex(int(axis)));
  if (kernel_.raster_panel > 0 && index.size() >= 2) {
    // Panels of rows; inside of one, rows first, columns back and forth: neighbours in time share operands in L2.
    Value *x_size = device_->GridSize(0), *y_size = device_->GridSize(1), *panel = I32(kernel_.raster_panel);
    Value* linear = b().CreateAdd(index[0], b().CreateMul(index[1], x_size));
    Value* area = b().CreateMul(panel, x_size);
    Value *number = b().CreateUDiv(linear, area), *inside = b().CreateURem(linear, area);
    Value* first = b().CreateMul(number, panel);
    Value* rows = b().CreateBinaryIntrinsic(llvm::Intrinsic::umin, panel, b().CreateSub(y_size, first));
    Value* column = b().CreateUDiv(inside, rows);
    Value* back = b().CreateSub(b().CreateSub(x_size, I32(1)), column);
    Value* odd = b().CreateTrunc(number, b().getInt1Ty());
    index[0] = b().CreateSelect(odd, back, column);
    index[1] = b().CreateAdd(first, b().CreateURem(inside, rows));
  }
  for (size_t axis = 0; axis < kernel_.block_vars.size(); ++axis) vars_[ir::Index(kernel_.block_vars[axis])] = index[axis];
  for (uint32_t id = 0; id < module_.vars.size(); ++id)
    if (module_.vars[id].kind == ir::VarKind::kThread) vars_[id] = block_thread_;
}

void KernelLowering::Allocate(ir::BufferId id) {
  const ir::Buffer& buffer = module_[id];
  if (buffer.space != Space::kFragment && buffer.space != Space::kLocal) return;
  if (ir::Bits(buffer.dtype) < 8) return;  // never touched
  int64_t count = 1;
  if (buffer.space == Space::kFragment) {
    if (!buffer.layout) return;  // of another kernel, or never used
    count = buffer.layout->Registers();
  } else {
    for (int64_t extent : module_.ShapeOf(id)) count *= extent;
  }
  Value* memory = memory_[ir::Index(id)] = Alloca(MemoryType(llvm(), buffer.dtype), count, buffer.name.c_str());
  if (!context_.target->emulated) return;
  // Fills registers with NaN, in any type, so that results computed from unset registers show.
  b().CreateMemSet(memory, b().getInt8(0xff), uint64_t(count) * uint64_t(ir::Bits(buffer.dtype)) / 8, llvm::MaybeAlign());
}

void KernelLowering::Unsupported(std::string message, std::string hint) { diagnostics_.Unsupported(std::move(message), std::move(hint), loc_); }

llvm::BasicBlock* KernelLowering::NewBlock(const char* name) { return llvm::BasicBlock::Create(llvm(), name, function_); }

void TooMuchCode(const compiler::Context& context, ir::Diagnostics& diagnostics, ir::SourceLoc loc) {
  diagnostics.Error(fmt::format("the program becomes more than {} LLVM instructions (a branch counts as {}), the limit of max_code",
                                context.max_code(), kCodeOfBlock),
                    "use smaller tiles, more threads, and loops in place of statements or unrolled loops; with a larger max_code (kiln compile "
                    "--max-code, kiln.max_code of pass_configs) LLVM may take longer than kilnd lets a compile take",
                    loc);
}

bool Lower(const ir::Module& module, const compiler::Context& context, llvm::Module& out, ir::Diagnostics& diagnostics) {
  int64_t code = 0;
  for (size_t i = 0; i < module.kernels.size(); ++i) {
    KernelLowering lowering(module, module.kernels[i], context, out, diagnostics, code);
    if (!lowering.Run(compiler::EntryName(i))) return false;
    code = lowering.Code();
  }
  if (int64_t(CodeOf(out)) > context.max_code()) {
    TooMuchCode(context, diagnostics, {});
    return false;
  }
  std::string problem;
  llvm::raw_string_ostream stream(problem);
  if (llvm::verifyModule(out, &stream)) {
    diagnostics.Internal("lowering produced invalid LLVM IR: " + problem);
    return false;
  }
  return true;
}

}  // namespace kiln::llvm_ir
