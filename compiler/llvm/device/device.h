// SPDX-License-Identifier: Apache-2.0
//
// The operations of one GPU thread, as both families have them: the interface between lowering (lower/, which knows tiles and layouts) and
// the families' intrinsics (device_nvptx.cc, device_amdgpu.cc). Each call appends LLVM IR at the builder's insertion point.
//
// Values of a dtype: bool i1 (i8 in memory); integers iN; f16 half; bf16 bfloat; f32 and tf32 float; f64 double; the 8-bit floats
// i8 holding their bits.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compiler/llvm/llvm_headers.h"
#include "compiler/target/instructions.h"
#include "compiler/target/target.h"
#include "ir/expr/expr.h"

namespace kiln::llvm_ir {

// Address spaces; the numbers agree between NVPTX and AMDGPU.
inline constexpr unsigned kGlobalSpace = 1;
inline constexpr unsigned kSharedSpace = 3;
inline constexpr unsigned kClusterSpace = 7;  // shared memory of any block of the cluster; NVPTX alone

enum class AtomicOp : uint8_t { kAdd, kMax, kMin, kAnd, kOr, kXor, kExchange = 8, kCompareExchange, kLoad };
struct AtomicForm {
  AtomicOp op;
  ir::DType dtype;
  ir::MemoryOrder order = ir::MemoryOrder::kRelaxed;
  bool gives_old = false;  // the element from before
};
enum class VoteOp { kAll, kAny, kBallot };
enum class WarpReduceOp { kAdd, kMin, kMax, kAnd, kOr, kXor };

// The metadata of an instruction whose A is sparse: the lane's word, and which lanes' words count.
struct SparseMetadata {
  llvm::Value* word = nullptr;
  int selector = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  const target::Target& target() const { return *target_; }
  llvm::IRBuilderBase& builder() { return *builder_; }

  // The kernel function: calling convention, exact block size, register limit, the least number of blocks that a multiprocessor shall hold
  // (0: no such wish; `max_registers` takes precedence), cluster shape. `params` may be pointers to global memory, integers, floats, and
  // arrays of 128 bytes by value (tensor maps; the argument is a pointer to one). Pointers are marked noalias only where `noalias[i]`.
  virtual llvm::Function* CreateKernel(llvm::Module& module, std::string_view name, std::span<llvm::Type* const> params, uint32_t threads,
                                       uint32_t max_registers, uint32_t min_blocks) = 0;

  // Start of the block's shared memory, in kSharedSpace, aligned to 1024. Once in a kernel; `name` is unique in the module.
  virtual llvm::Value* SharedMemory(uint64_t bytes, std::string_view name) = 0;

  // Code emitted from here on belongs to the statement with this number (for compiler/emulator; 0: to none).
  virtual void SetLocation(uint32_t) {}

  // For the emulator, which reports registers that are touched too early. UseRegisters: the products started last use registers first …
  // first + count − 1 of a fragment until MmaWait. AssignRegister: a register of a fragment that products use gets a value.
  virtual void UseRegisters(uint32_t /*fragment*/, int64_t /*first*/, int64_t /*count*/) {}
  virtual void AssignRegister(uint32_t /*fragment*/, int64_t /*reg*/, llvm::Value* /*v*/) {}

  virtual llvm::Value* ThreadIndex() = 0;         // i32, linear in the block
  virtual llvm::Value* BlockIndex(int axis) = 0;  // i32
  virtual llvm::Value* GridSize(int axis) = 0;    // i32, blocks
  // `v`, which must have the same value in all lanes, marked as uniform for the backend.
  virtual llvm::Value* Uniform(llvm::Value* v) = 0;
  virtual llvm::Value* AndOr(llvm::Value* v, llvm::Value* mask, llvm::Value* bits);  // (v & mask) | bits, of i32

  // All threads of the block. Orders shared and global memory among them; `shared_only`: nothing waits for accesses of global memory, which
  // need not be ordered.
  virtual void Barrier(bool shared_only = false) = 0;
  // A barrier of lanes first … first + count − 1 of the warp, while its other lanes are elsewhere.
  virtual void LanesBarrier(uint32_t first, uint32_t count) = 0;

  // `v` of lane ^ mask, for any value of 8 to 64 bits. All lanes of the warp must take part.
  virtual llvm::Value* ShuffleXor(llvm::Value* v, int mask) = 0;
  // A vote of the warp's lanes on `v` (i1). The result is an i1; for kBallot an i32 with a bit for each lane. Only where warps have 32
  // lanes.
  virtual llvm::Value* Vote(VoteOp op, llvm::Value* v);
  // Combines `v` (i32 of kI32 or kU32) over all lanes; bits and sums are the same for both types. Needs kRedux.
  virtual llvm::Value* WarpReduce(WarpReduceOp op, ir::DType dtype, llvm::Value* v);

  // Math ops of exprs.def (floor … isnan, rule math…) on f16, bf16, f32, f64. Error bounds are stated beside each in math/.
  virtual llvm::Value* Math(ir::ExprOp op, ir::DType dtype, std::span<llvm::Value* const> args, bool fast) = 0;
  // Conversion between any two dtypes as ir/expr/expr.h defines casts.
  virtual llvm::Value* Convert(llvm::Value* v, ir::DType from, ir::DType to) = 0;
  // Loads 16 bytes of global memory that nobody writes while the kernel runs and that are used once: caches need not keep them. A plain
  // load where the target has no such instruction.
  virtual llvm::Value* LoadOnce(llvm::Type* type, llvm::Value* pointer);
  // Stores 16 bytes to global memory; the L2 keeps the line longer than others. A plain store where the target has no such instruction.
  virtual void StoreKept(llvm::Value* v, llvm::Value* pointer);
  // Converts two (or four) floats at once to narrow floats packed in one i32, if the hardware can; v.size() × bits(to) == 32.
  virtual llvm::Value* ConvertPacked(std::span<llvm::Value* const> v, ir::DType from, ir::DType to) = 0;

  // cp.async of 4, 8 or 16 bytes, of which `copied` (i32) are read; the destination gets zeros for the others.
  // Only where target().Has(kCpAsync).
  virtual void CopyAsync(llvm::Value* shared, llvm::Value* global, int bytes, llvm::Value* copied) = 0;
  virtual void AsyncCommit() = 0;
  virtual void AsyncWait(int pending) = 0;

  // ldmatrix: `count` (1, 2, 4) 8×8 matrices of 16-bit elements; `row` is this lane's row address. One i32 for each matrix.
  virtual std::vector<llvm::Value*> LoadMatrix(llvm::Value* row, int count, bool transpose) = 0;
  virtual void StoreMatrix(llvm::Value* row, std::span<llvm::Value* const> words, bool transpose) = 0;  // kStMatrix

  // One matrix instruction. a, b: i32 words in register order; c and the result: one value for each element. `metadata`: of sparse rows.
  virtual std::vector<llvm::Value*> Mma(const target::MmaInstruction& instruction, std::span<llvm::Value* const> a, std::span<llvm::Value* const> b,
                                        std::span<llvm::Value* const> c, const SparseMetadata& metadata = {}) = 0;
  // A 64-bit descriptor of shared memory from its halves.
  virtual llvm::Value* JoinDescriptor(llvm::Value* low, uint32_t high);
  // `standing`: how many descriptors stay the same in loops of the kernel. Told before the first product.
  virtual void ExpectDescriptors(int64_t /*standing*/) {}
  // wgmma (kWgmma), started: MmaWait comes before the result is touched. a: 64-bit descriptors of shared memory, or four i32 words for each;
  // b: descriptors; one of each for every step along k, of one instruction's rows and columns. c and the result: one value for each element.
  // `clear`: c counts as zero. `a_by_rows`, `b_by_rows`: the operand's rows, not k, are contiguous. `metadata`: of sparse rows, for every step.
  virtual std::vector<llvm::Value*> MmaGroup(const target::MmaInstruction& instruction, std::span<llvm::Value* const> a,
                                             std::span<llvm::Value* const> b, std::span<llvm::Value* const> c, bool clear, bool a_by_rows,
                                             bool b_by_rows, std::span<const SparseMetadata> metadata = {});
  // Waits until at most `pending` of the newest groups are unfinished. `c`: results of the older groups; returns their values after the
  // wait.
  virtual std::vector<llvm::Value*> MmaWait(std::span<llvm::Value* const> c, int pending);
  // Returns the same values, computed before whatever is started next. Without this an optimiser may compute them later and keep their
  // inputs alive.
  virtual std::vector<llvm::Value*> Settled(std::span<llvm::Value* const> values) { return {values.begin(), values.end()}; }
  // Orders this thread's earlier writes to shared memory before later reads by wgmma, once a barrier has passed.
  virtual void FenceAsyncProxy();

  // --- kTma: what warps of different roles exchange ---
  // An mbarrier is 8 bytes of shared memory. Its phase ends when `arrivals` threads have arrived and every byte expected in the
  // phase has come; phases alternate between parity 0 and 1, the first is 0.
  virtual void PhaseInit(llvm::Value* mbarrier, uint32_t arrivals);
  virtual void PhaseInitFence();  // called by the threads that called PhaseInit, before a barrier of all who use the mbarrier
  virtual void PhaseArrive(llvm::Value* mbarrier, llvm::Value* when);  // if `when` (i1; nullptr: always); releases what this thread did before
  // Arrives once what this thread has begun to copy asynchronously is there, and does not wait for that. `after_accesses`: and releases what else
  // it did.
  virtual void PhaseArriveAfterCopies(llvm::Value* mbarrier, bool after_accesses);
  // The same of block `rank` (i32) of the cluster, whose threads see what this thread did with `releases`; else it only counts.
  virtual void PhaseArriveAt(llvm::Value* mbarrier, llvm::Value* rank, llvm::Value* when, bool releases = false);
  virtual void PhaseExpect(llvm::Value* mbarrier, llvm::Value* bytes);      // arrives, and expects bytes (i32) more in this phase
  virtual void PhaseExpectMore(llvm::Value* mbarrier, llvm::Value* bytes);  // expects them, and does not arrive
  // Until the phase of this parity (i32) has ended; acquires, with `of_cluster` also what threads of the cluster's other blocks did.
  virtual void PhaseWait(llvm::Value* mbarrier, llvm::Value* parity, bool of_cluster = false);

  // Tensor copies, by one thread. `map`: a 128-byte tensor map, the kernel's parameter. `at`: where the box starts, i32 each, innermost
  // dimension first. `multicast`: i16, the blocks of the cluster that get the box at the same place; nullptr: this one.
  virtual void TensorPrefetch(llvm::Value* map);  // of the map itself: the first copy finds it there
  virtual void TensorLoad(llvm::Value* shared, llvm::Value* map, std::span<llvm::Value* const> at, llvm::Value* mbarrier, llvm::Value* multicast);
  virtual void TensorStore(llvm::Value* map, std::span<llvm::Value* const> at, llvm::Value* shared);
  virtual void TensorReduce(AtomicOp op, llvm::Value* map, std::span<llvm::Value* const> at, llvm::Value* shared);
  virtual void TensorStoreCommit();
  // Until at most `pending` of the thread's groups have not yet read their source (read_only), or not yet written.
  virtual void TensorStoreWait(int pending, bool read_only);

  // Barrier `id` (1 … 15) of `threads` threads, a multiple of the warp; Arrive does not wait.
  virtual void NamedBarrier(int id, uint32_t threads);
  virtual void NamedBarrierArrive(int id, uint32_t threads);
  // Sets the number of registers of each thread from here on. All warps of a warp group must call it; a multiple of 8 in 24 … 256.
  virtual void SetRegisters(int count, bool more);
  virtual llvm::Value* ElectOne();  // i1: true in one lane of the warp, all of which take part

  // kCluster.
  virtual llvm::Value* ClusterRank();  // i32, of this block in its cluster
  virtual void ClusterBarrier();       // all threads of the cluster; orders their shared memory
  // The same place in the shared memory of block `rank` (i32) of the cluster, in kClusterSpace.
  virtual llvm::Value* ClusterAddress(llvm::Value* shared, llvm::Value* rank);
  // Writes `v`, of 32 or 64 bits, to the same place of block `rank` (i32) of the cluster. The write is asynchronous: that block's mbarrier
  // counts the bytes when they arrive.
  virtual void StoreAsyncAt(llvm::Value* shared, llvm::Value* rank, llvm::Value* v, llvm::Value* mbarrier);
  // All threads of the grid, whose blocks must all be resident (a cooperative launch); orders global memory. `counter` (u32, in global memory):
  // of this launch alone, and 0 at first; a launch leaves in it what the next may begin with.
  virtual void GridBarrier(llvm::Value* counter);
  // A flag (u32) in global memory with which a block passes on data that it wrote there. RaiseFlag, called by one thread: whoever takes the
  // flag sees everything of its block that this thread has seen. TakeFlag: one thread waits until the flag is up, and lowers it. The block
  // that raises it must be running: it has to start no later.
  virtual void RaiseFlag(llvm::Value* flag);
  virtual void TakeFlag(llvm::Value* flag);

  // On the emulator: a shared buffer, given by its index in the module, is allocated anew, as in each iteration of a loop.
  virtual void Allocate(uint32_t) {}

  // On the emulator: `threads` threads of the block begin a statement together. Returns i1: whether this thread declares what they write.
  // Claim declares one element in memory. EndClaim: the thread has done its part of the statement.
  virtual llvm::Value* BeginClaim(uint32_t threads);
  virtual void Claim(llvm::Value* pointer, int bytes);
  virtual void EndClaim();

  // On the emulator: an access to buffer number `buffer` of the module left its bounds, and the thread ends here. `index` (i64): the
  // indices, some of them out of bounds. `bytes`: of an element.
  struct Outside {
    uint32_t buffer;
    std::span<llvm::Value* const> index;
    std::span<const int64_t> shape;
    int bytes;
    bool write;
  };
  virtual void StopOutside(const Outside& outside);
  // On the emulator: the thread reads an element of its own array that nothing has written.
  virtual void ReportUnwritten(const Outside& element);

  // c + Σ a.i8[j] · b.i8[j]; `is_signed` of both. Where !Has(kDp4a): the same by plain arithmetic.
  virtual llvm::Value* Dp4a(llvm::Value* a, llvm::Value* b, llvm::Value* c, bool a_signed, bool b_signed) = 0;

  // Device scope; `ptr` in global or shared memory. `v`: nullptr of kLoad; `compare`: of kCompareExchange. nullptr: nobody wants the result.
  virtual llvm::Value* Atomic(const AtomicForm& form, llvm::Value* ptr, llvm::Value* v, llvm::Value* compare = nullptr) = 0;
  // Orders accesses of global memory before, or with `behind` those after, changes that are relaxed then: as many of them as there are in a row share
  // it. False: the device orders each change by itself, and there is nothing to share.
  virtual bool FenceAtomics(ir::MemoryOrder order, bool behind);

 protected:
  Device(const target::Target& target, llvm::IRBuilderBase& builder) : target_(&target), builder_(&builder) {}

 private:
  const target::Target* target_;
  llvm::IRBuilderBase* builder_;
};

std::unique_ptr<Device> MakeNvptxDevice(const target::Target& target, llvm::IRBuilderBase& builder);
std::unique_ptr<Device> MakeAmdgpuDevice(const target::Target& target, llvm::IRBuilderBase& builder);

// Lets the kernel read and write f32 subnormals as zero: what fast_math allows. After CreateKernel.
void FlushSubnormals(llvm::Function& kernel);
bool FlushesSubnormals(const llvm::Function& kernel);

// The LLVM type of values (not of memory: bool is i1 here and i8 there).
llvm::Type* ValueType(llvm::LLVMContext& context, ir::DType dtype);
llvm::Type* MemoryType(llvm::LLVMContext& context, ir::DType dtype);

}  // namespace kiln::llvm_ir
