// SPDX-License-Identifier: Apache-2.0
//
// Matrix products with matrix instructions of single warps. The reduction is unrolled; of each step, all operands of a warp's tile are loaded,
// then all products are issued, so that loads of one step run under the products of the one before.
#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>

#include "compiler/analysis/threads/thread_loop.h"
#include "compiler/llvm/lower/ops/metadata.h"
#include "compiler/llvm/lower/ops/products.h"
#include "compiler/rules/gemm.h"

namespace kiln::llvm_ir {

using compiler::GemmShape;
using compiler::WarpGrid;
using ir::DType;
using ir::Layout;
using ir::Place;
using ir::Space;
using target::MmaInstruction;

namespace {

int64_t WordsOf(const Layout& atom, DType dtype) { return atom.Registers() * ir::Bits(dtype) / 32; }

// ldmatrix moves rows of 16 bytes. Along k: a fragment's words are 16-byte halves of 8 rows. Along rows: only 16-bit elements
// transpose.
bool LdMatrixFits(int64_t rows, int64_t k, DType dtype, bool k_contiguous) {
  constexpr int64_t kMostMatrices = 4;
  const int64_t k_bytes = k * ir::Bits(dtype) / 8, matrices = k_bytes / 16;
  return k_bytes % 16 == 0 && std::has_single_bit(uint64_t(matrices)) && rows / 8 * matrices <= kMostMatrices &&
         (k_contiguous || ir::Bits(dtype) == 16);
}

// One operand as the instruction takes it, with rows (m of a, n of b) by k.
struct Operand {
  ir::BufferId buffer;
  const target::MmaInstruction* mma;
  bool is_a;
  ir::Layout layout;                     // (row, k) → (thread, register), the whole block
  ir::Layout atom;                       // of one instruction
  int64_t k;                             // of it, for one instruction
  int64_t steps;                         // instructions along k
  int64_t row_dim, k_dim;                // dimensions of the buffer
  int64_t row_stride = 0, k_stride = 0;  // shared: bytes
  Memory::RegionStart start;
  Values thread_part;                   // (row, k) of the thread's first element
  int64_t alignment = 1;                // bytes, of every row's start; at most 16
  int64_t neighbours = 1;               // instructions that neighbouring rows belong to
  bool by_matrix = false;               // ldmatrix
  bool transposed = false;              // ldmatrix.trans: rows are contiguous
  Value* matrix_offset = nullptr;       // bytes of this lane's row in the four matrices
  Value* matrix_offset_pair = nullptr;  // the same for two neighbouring instructions of b
};

class WarpProducts : Part {
 public:
  WarpProducts(KernelContext& context, Memory& memory) : Part(context), memory_(memory), registers_(memory.registers()), shared_(memory.shared()) {}

  void Lower(const ir::Gemm& gemm, const MmaInstruction& mma);

 private:
  Operand MakeOperand(const ir::Region& region, const Layout& layout, const MmaInstruction& mma, bool is_a, bool k_is_last, const WarpGrid& grid);
  void PlaceMatrices(Operand& operand, const WarpGrid& grid) const;
  std::vector<Values> StepWords(const Operand& operand, int64_t atoms, int64_t step);
  Values OperandWords(const Operand& operand, int64_t atom, int64_t step);
  Values MatrixWords(const Operand& operand, int64_t atom, int64_t step);
  Values GatherWords(const Operand& operand, int64_t first_register);

  Memory& memory_;
  Registers& registers_;
  SharedMemory& shared_;
};

Operand WarpProducts::MakeOperand(const ir::Region& region, const Layout& layout, const MmaInstruction& mma, bool is_a, bool k_is_last,
                                  const WarpGrid& grid) {
  const int64_t rank = int64_t(region.extents.size());
  Operand operand{.buffer = region.buffer,
                  .mma = &mma,
                  .is_a = is_a,
                  .layout = layout,
                  .atom = is_a ? mma.a_layout : mma.b_layout,
                  .k = is_a ? mma.KeptK() : mma.k,
                  .steps = layout.Extent(1) / (is_a ? mma.KeptK() : mma.k),
                  .row_dim = k_is_last ? rank - 2 : rank - 1,
                  .k_dim = k_is_last ? rank - 1 : rank - 2,
                  .neighbours = is_a ? grid.rows : grid.columns};
  const ir::Buffer& buffer = module()[region.buffer];
  if (buffer.space != Space::kShared) return operand;
  operand.row_stride = compiler::SharedStride(buffer, int(operand.row_dim)) * ir::Bytes(buffer.dtype);
  operand.k_stride = compiler::SharedStride(buffer, int(operand.k_dim)) * ir::Bytes(buffer.dtype);
  operand.start = memory_.StartOf(region);
  operand.thread_part = ThreadParts(layout);
  operand.alignment = std::gcd(int64_t{16}, k_is_last ? operand.row_stride : operand.k_stride);
  for (size_t d = 0; d < region.offsets.size(); ++d) {
    const int64_t bytes = compiler::SharedStride(buffer, int(d)) * ir::Bytes(buffer.dtype);
    operand.alignment = std::gcd(operand.alignment, facts().DivisorOf(region.offsets[d]) * bytes);
  }
  operand.by_matrix =
      target().Has(target::Feature::kLdMatrix) && LdMatrixFits(is_a ? mma.m : mma.n, operand.k, buffer.dtype, k_is_last) && operand.alignment == 16;
  operand.transposed = !k_is_last;
  if (!operand.by_matrix) return operand;
  PlaceMatrices(operand, grid);
  return operand;
}

// Where ldmatrix finds the operand.
void WarpProducts::PlaceMatrices(Operand& operand, const WarpGrid& grid) const {
  const DType dtype = module()[operand.buffer].dtype;
  // Lane l gives the address of row l % 8 of matrix l / 8. The matrices come in the order of the words: for a, rows first, then k; for b, k
  // first.
  const int64_t half = 16 * 8 / ir::Bits(dtype);  // k of one word's matrix
  Value *lane = b().CreateURem(thread(), I32(grid.warp_size)), *row = b().CreateURem(lane, I32(8)), *matrix = b().CreateUDiv(lane, I32(8));
  const int64_t row_blocks = operand.is_a ? operand.mma->m / 8 : 1;
  Value *row_block = b().CreateURem(matrix, I32(row_blocks)), *k_block = b().CreateUDiv(matrix, I32(row_blocks));
  const auto offset = [&](Value* in_rows, Value* in_k) {
    // Non-transposed matrices have the operand's rows as rows; transposed ones have k as rows.
    Value* r = b().CreateMul(in_rows, I32(8));
    Value* k = b().CreateMul(in_k, I32(half));
    (operand.transposed ? k : r) = b().CreateAdd(operand.transposed ? k : r, row);
    return b().CreateAdd(b().CreateMul(r, I32(operand.row_stride)), b().CreateMul(k, I32(operand.k_stride)));
  };
  const int64_t k_blocks = operand.k * int64_t(ir::Bits(dtype)) / 128;
  // The part of a thread's row that selects its warp's rows, beyond those of one instruction.
  Value* warp = device().Uniform(b().CreateUDiv(thread(), I32(grid.warp_size)));
  Value* first_row = operand.is_a ? b().CreateMul(b().CreateURem(warp, I32(grid.warps_m)), I32(operand.mma->m))
                                  : b().CreateMul(b().CreateURem(b().CreateUDiv(warp, I32(grid.warps_m)), I32(grid.warps_n)),
                                                  I32(operand.layout.Extent(0) / grid.warps_n));
  Value* warp_offset = b().CreateMul(first_row, I32(operand.row_stride));
  operand.matrix_offset = AddTo(b().CreateAdd(warp_offset, offset(row_block, b().CreateURem(k_block, I32(k_blocks)))), operand.start.before);
  if (!operand.is_a) {
    Value *pair_k = b().CreateURem(matrix, I32(k_blocks)), *pair_row = b().CreateURem(b().CreateUDiv(matrix, I32(k_blocks)), I32(2));
    operand.matrix_offset_pair = AddTo(b().CreateAdd(warp_offset, offset(pair_row, pair_k)), operand.start.before);
  }
}

void WarpProducts::Lower(const ir::Gemm& gemm, const MmaInstruction& mma) {
  const GemmShape shape = compiler::ShapeOf(gemm);
  const WarpGrid grid = compiler::GridOf(gemm, threads().range.Count(), target());
  const Operand a = MakeOperand(gemm.a, compiler::OperandALayout(mma, shape, grid, gemm.plan->as_sums), mma, true, !gemm.transpose_a, grid);
  const Operand w = MakeOperand(gemm.b, compiler::OperandBLayout(mma, shape, grid), mma, false, gemm.transpose_b, grid);
  const int64_t atoms_m = shape.m / mma.m / grid.warps_m, atoms_n = shape.n / mma.n / grid.warps_n, steps = shape.k / mma.k;
  const int64_t registers = mma.c_layout.Registers();
  std::optional<Metadata> metadata;
  if (mma.IsSparse()) metadata.emplace(context(), memory_, gemm, mma, grid);
  Values c;
  for (int64_t r = 0; r < registers * atoms_m * atoms_n; ++r) {
    c.push_back(gemm.clear_accum ? llvm::Constant::getNullValue(MemoryType(llvm(), mma.c)) : registers_.Load(gemm.c.buffer, r));
  }
  for (int64_t step = 0; step < steps; ++step) {
    const std::vector<Values> rows = StepWords(a, atoms_m, step), columns = StepWords(w, atoms_n, step);
    for (int64_t m = 0; m < atoms_m; ++m) {
      const SparseMetadata places = metadata ? metadata->At(m, step) : SparseMetadata{};
      for (int64_t n = 0; n < atoms_n; ++n) {
        const auto first = c.begin() + ptrdiff_t(registers * (n + atoms_n * m));
        const Values in(first, first + ptrdiff_t(registers));
        std::ranges::copy(device().Mma(mma, rows[size_t(m)], columns[size_t(n)], in, places), first);
      }
    }
  }
  for (int64_t r = 0; r < int64_t(c.size()); ++r) registers_.Store(gemm.c.buffer, r, c[size_t(r)]);
}

// The words of each instruction along rows.
std::vector<Values> WarpProducts::StepWords(const Operand& operand, int64_t atoms, int64_t step) {
  std::vector<Values> all;
  for (int64_t atom = 0; atom < atoms;) {
    const Values words = OperandWords(operand, atom, step);
    const size_t each = size_t(WordsOf(operand.atom, operand.is_a ? operand.mma->a : operand.mma->b));
    for (size_t at = 0; at < words.size() && atom < atoms; at += each, ++atom) {
      all.emplace_back(words.begin() + ptrdiff_t(at), words.begin() + ptrdiff_t(at + each));
    }
  }
  return all;
}

// The words of instruction `atom` along rows and `step` along k, and of further ones that are read at the same time: for b by ldmatrix the
// next, if there is one; where neighbouring rows belong to several instructions, theirs.
Values WarpProducts::OperandWords(const Operand& operand, int64_t atom, int64_t step) {
  const int64_t first = operand.atom.Registers() * (step + operand.steps * atom);
  if (module()[operand.buffer].space == Space::kFragment) return registers_.Words(operand.buffer, first, operand.atom.Registers());
  return operand.by_matrix ? MatrixWords(operand, atom, step) : GatherWords(operand, first);
}

Values WarpProducts::MatrixWords(const Operand& operand, int64_t atom, int64_t step) {
  const MmaInstruction& mma = *operand.mma;
  const int64_t words = WordsOf(operand.atom, module()[operand.buffer].dtype);
  const int64_t row = operand.layout.RegisterPart(operand.atom.Registers() * operand.steps * atom)[0];
  // The next instruction's rows must follow directly in memory; for b's instructions of one warp they do.
  const bool pair = !operand.is_a && words == 2 && (atom + 1) * mma.n < operand.layout.Extent(0) &&
                    operand.layout.Registers() > operand.atom.Registers() * operand.steps * (atom + 1);
  SplitOffset offset{pair ? operand.matrix_offset_pair : operand.matrix_offset, row * operand.row_stride + step * operand.k * operand.k_stride};
  return device().LoadMatrix(shared_.Pointer(operand.buffer, offset, operand.start.after), int(pair ? 4 : words), operand.transposed);
}

// Element by element, in the widest pieces that lie together in memory.
Values WarpProducts::GatherWords(const Operand& operand, int64_t first) {
  const ir::Buffer& buffer = module()[operand.buffer];
  const DType dtype = buffer.dtype;
  const int64_t bytes = ir::Bytes(dtype), count = operand.atom.Registers();
  Value* variable = AddTo(Scaled(operand.thread_part[0], operand.row_stride), Scaled(operand.thread_part[1], operand.k_stride));
  variable = AddTo(variable, operand.start.before);
  // Registers that are neighbours in k, as many as one access may take.
  int64_t run = 1;
  if (operand.k_stride == bytes) {
    const auto& digits = operand.atom.dim(1);
    if (!digits.empty() && digits[0].place == Place::kRegister && digits[0].stride == 1) run = digits[0].size;
    run = std::min<int64_t>(run, 16 / bytes);
    while (operand.row_stride % (run * bytes) != 0 || operand.alignment % (run * bytes) != 0) run /= 2;
  }
  // Or neighbouring rows, which belong to instructions that follow each other.
  int64_t rows = operand.row_stride == bytes ? operand.neighbours : 1;
  const ir::Swizzle& swizzle = buffer.layout->swizzle();
  while (rows > 1 && (operand.alignment % (rows * bytes) != 0 || (swizzle.bits > 0 && (int64_t{1} << swizzle.base) % (rows * bytes) != 0))) rows /= 2;
  llvm::Type* type = MemoryType(llvm(), dtype);
  std::vector<Values> elements(size_t(operand.neighbours), Values(size_t(count)));  // by instruction and register
  for (int64_t atom = 0; atom < operand.neighbours; atom += rows) {
    for (int64_t r = 0; r < count; r += run) {
      const ir::Indices part = operand.layout.RegisterPart(first + operand.atom.Registers() * operand.steps * atom + r);
      const SplitOffset offset{variable, part[0] * operand.row_stride + part[1] * operand.k_stride};
      Value* pointer = shared_.Pointer(operand.buffer, offset, operand.start.after);
      const int64_t size = std::max(run, rows);  // one of them is 1
      llvm::Type* piece = size == 1 ? type : llvm::FixedVectorType::get(type, unsigned(size));
      Value* loaded = b().CreateAlignedLoad(piece, pointer, llvm::Align(uint64_t(size * bytes)));
      for (int64_t i = 0; i < size; ++i) {
        Value*& element = rows == 1 ? elements[size_t(atom)][size_t(r + i)] : elements[size_t(atom + i)][size_t(r)];
        element = size == 1 ? loaded : b().CreateExtractElement(loaded, uint64_t(i));
      }
    }
  }
  const int64_t each = 32 / ir::Bits(dtype);
  Values words;
  for (const Values& atom : elements)
    for (int64_t r = 0; r < count; r += each) words.push_back(registers_.Word({atom.data() + r, size_t(each)}, dtype));
  return words;
}

}  // namespace

void LowerWarpProduct(KernelContext& context, Memory& memory, const ir::Gemm& gemm) {
  WarpProducts(context, memory).Lower(gemm, RowOf(gemm, context.target()));
}

}  // namespace kiln::llvm_ir
