// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/lower.h"

#include <fmt/format.h>

#include <set>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/Transforms/Utils/BasicBlockUtils.h>
#pragma GCC diagnostic pop

#include "compiler/analysis/access.h"
#include "compiler/artifact.h"
#include "compiler/llvm/emit.h"
#include "compiler/llvm/functions/link.h"
#include "compiler/llvm/lower/ops/descriptors.h"
#include "compiler/llvm/lower/ops/roles.h"
#include "compiler/llvm/lower/statements.h"
#include "ir/visit.h"

namespace kiln::llvm_ir {
namespace {

// One kernel: its function, and the parts that lower its body, in the order in which they know each other.
class KernelLowering : Part {
 public:
  explicit KernelLowering(KernelContext& context) : Part(context) {}

  // False where diagnostics say why.
  bool Run(std::string_view entry);

 private:
  llvm::Function* CreateFunction(std::string_view entry);
  void MarkReadOnly(llvm::Function* function) const;
  void BindParameters(llvm::Function* function);
  void BindBlocks();
  void LowerBody();

  Evaluator evaluator_{context()};
  Memory memory_{context(), evaluator_};
  Barriers barriers_{context()};
  Rings rings_{context(), memory_.places()};
  Signals signals_{context(), evaluator_, memory_.places()};
  TensorCopies copies_{context(), evaluator_, memory_, rings_, signals_};
  Reductions reductions_{context(), memory_, barriers_};
  Statements statements_{context(), evaluator_, memory_, barriers_, reductions_, rings_, signals_, copies_};
};

bool KernelLowering::Run(std::string_view entry) {
  llvm::Function* function = CreateFunction(entry);
  context().EnterFunction(function);
  device().ExpectDescriptors(StandingDescriptors(context()));
  memory_.places().AllocateShared(entry);
  context().facts().EnterKernel(kernel());
  BindParameters(function);
  BindBlocks();
  memory_.places().AllocateThread();
  reductions_.Init();
  LowerBody();
  b().CreateRetVoid();
  b().ClearInsertionPoint();
  if (context().diagnostics().HasErrors()) return false;
  // What stands behind a break or continue. SROA (LLVM 22) counts it in: where an element of an array comes to it, each loop around gets a phi for
  // that element, which it compares with those of all the others.
  llvm::EliminateUnreachableBlocks(*function);
  return true;
}

void KernelLowering::LowerBody() {
  const auto compute = [&] {
    signals_.Init();
    statements_.LowerBlock(kernel().body);
    barriers_.FinishStores();
    signals_.Finish();
  };
  if (kernel().producers == 0) return compute();
  LowerRoles(context(), rings_, copies_, [&] { statements_.LowerBlock(kernel().body); }, compute);
}

llvm::Function* KernelLowering::CreateFunction(std::string_view entry) {
  std::vector<llvm::Type*> types;
  for (const compiler::KernelParam& param : compiler::KernelParams(module())) {
    types.push_back(param.is_pointer ? llvm::PointerType::get(llvm(), kGlobalSpace) : ValueType(llvm(), param.dtype));
  }
  for (size_t i = 0; i < copies_.MapCount(); ++i) types.push_back(llvm::ArrayType::get(b().getInt8Ty(), 128));
  const v1::CompileOptions& options = context().request().options;
  llvm::Function* function =
      device().CreateKernel(context().out(), entry, types, kernel().threads + kernel().producers, options.max_registers(), kernel().min_blocks);
  if (options.fast_math()) FlushSubnormals(*function);
  MarkReadOnly(function);
  return function;
}

// Nothing but this kernel touches a tensor that it only reads (ir/module.h), so LLVM may move loads of it across stores. The emulator reads
// such tensors through its own view of memory.
void KernelLowering::MarkReadOnly(llvm::Function* function) const {
  if (target().emulated) return;
  std::set<uint32_t> written;
  ir::Walk(kernel().body, [&](const ir::Stmt& stmt) {
    for (const compiler::Access& access : compiler::AccessesOf(module(), stmt))
      if (access.write) written.insert(ir::Index(module().RootOf(access.buffer)));
    if (const auto* sum = std::get_if<ir::StreamSum>(&stmt.op)) written.insert({ir::Index(sum->partials), ir::Index(sum->flags)});
    if (const auto* barrier = std::get_if<ir::Barrier>(&stmt.op); barrier != nullptr && barrier->counter)
      written.insert(ir::Index(*barrier->counter));
  });
  unsigned i = 0;
  for (const compiler::KernelParam& param : compiler::KernelParams(module())) {
    const unsigned argument = i++;
    if (!param.is_pointer || written.contains(param.index)) continue;
    function->addParamAttr(argument, llvm::Attribute::NoAlias);
    function->addParamAttr(argument, llvm::Attribute::ReadOnly);
  }
}

void KernelLowering::BindParameters(llvm::Function* function) {
  unsigned i = 0;
  for (const compiler::KernelParam& param : compiler::KernelParams(module())) {
    Value* argument = function->getArg(i++);
    if (param.is_pointer) {
      memory_.places().Bind(param.index, argument);
    } else {
      evaluator_.Bind(param.index, argument);
    }
  }
  for (uint32_t id = 0; id < module().buffers.size(); ++id) {
    if (const ir::Buffer& buffer = module().buffers[id]; buffer.view) memory_.places().Bind(id, memory_.places().Of(buffer.view->of));
  }
  for (size_t map = 0; map < copies_.MapCount(); ++map) copies_.BindMap(function->getArg(i++));
}

void KernelLowering::BindBlocks() {
  Values index;
  for (size_t axis = 0; axis < kernel().grid.size(); ++axis) index.push_back(device().BlockIndex(int(axis)));
  if (kernel().raster_panel > 0 && index.size() >= 2) {
    // Panels of rows; inside of one, rows first, columns back and forth: neighbours in time share operands in L2. A cluster moves as a whole.
    const auto wide = [&](size_t axis) { return I32(int(kernel().cluster[axis])); };
    Value *x_size = device().GridSize(0), *y_size = device().GridSize(1), *panel = I32(kernel().raster_panel);
    Values inner;
    for (size_t axis = 0; axis < 2 && !kernel().cluster.empty(); ++axis) {
      inner.push_back(b().CreateURem(index[axis], wide(axis)));
      index[axis] = b().CreateUDiv(index[axis], wide(axis));
      (axis == 0 ? x_size : y_size) = b().CreateUDiv(axis == 0 ? x_size : y_size, wide(axis));
    }
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
    for (size_t axis = 0; axis < inner.size(); ++axis) index[axis] = b().CreateAdd(b().CreateMul(index[axis], wide(axis)), inner[axis]);
  }
  for (size_t axis = 0; axis < kernel().block_vars.size(); ++axis) evaluator_.Bind(kernel().block_vars[axis], index[axis]);
  for (uint32_t id = 0; id < module().vars.size(); ++id)
    if (module().vars[id].kind == ir::VarKind::kThread) evaluator_.Bind(id, context().block_thread());
}

}  // namespace

bool Lower(const ir::Module& module, const compiler::Context& context, llvm::Module& out, ir::Diagnostics& diagnostics) {
  int64_t code = 0;
  for (size_t i = 0; i < module.kernels.size(); ++i) {
    KernelContext kernel(module, module.kernels[i], context, out, diagnostics, code);
    if (!KernelLowering(kernel).Run(compiler::EntryName(context, i))) return false;
    code = kernel.Code();
  }
  if (int64_t(CodeOf(out)) > context.max_code()) {
    TooMuchCode(context, diagnostics, {});
    return false;
  }
  if (!module.functions.empty()) InlineLinked(out, context.target->emulated);
  std::string problem;
  llvm::raw_string_ostream stream(problem);
  if (llvm::verifyModule(out, &stream)) {
    diagnostics.Internal("lowering produced invalid LLVM IR: " + problem);
    return false;
  }
  return true;
}

}  // namespace kiln::llvm_ir
