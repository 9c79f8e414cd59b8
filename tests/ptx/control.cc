// SPDX-License-Identifier: Apache-2.0
//
// PTX ISA, "Control Flow Instructions", barriers of a block, and what ends a program.
#include <cstring>

#include "tests/ptx/instructions.h"
#include "tests/ptx/machine.h"

namespace kiln::ptx {
namespace {

void Branch(Thread& t, const Instruction& i) { t.frame().at = i.target; }

// brx.idx a, targets
void BranchIndexed(Thread& t, const Instruction& i) {
  const auto index = uint32_t(t.Read(i.operands[0]));
  if (index >= i.operands[1].parts.size()) throw Failure("no target " + std::to_string(index));
  t.frame().at = uint32_t(i.operands[1].parts[index].value);
}

void Exit(Thread& t, const Instruction&) { t.block->End(t); }

// call {.uni} (result), name, (arguments)
void Call(Thread& t, const Instruction& i) {
  const size_t named = i.operands[0].kind == Operand::Kind::kVector ? 1 : 0;
  const auto& functions = t.block->launch.module->functions;
  const auto it = functions.find(i.operands[named].name);
  if (it == functions.end()) throw Failure("PTX: call of the unknown function " + i.operands[named].name);
  const Function& callee = *it->second;
  const Frame& caller = t.frame();
  Frame frame{.function = &callee,
              .regs = std::vector<uint64_t>(callee.registers, t.block->random()),
              .params = std::vector<std::byte>(callee.frame_bytes),
              .local_begin = uint32_t((caller.local_begin + caller.function->local_bytes + 15) / 16 * 16)};
  if (i.operands.size() > named + 1) {
    const std::vector<Operand>& arguments = i.operands[named + 1].parts;
    for (size_t a = 0; a < arguments.size(); ++a) {
      std::memcpy(frame.params.data() + callee.params.at(a).offset, caller.params.data() + arguments[a].value, callee.params[a].bytes);
    }
  }
  if (t.local.size() < frame.local_begin + callee.local_bytes) t.local.resize(frame.local_begin + callee.local_bytes);
  t.frames.push_back(std::move(frame));
  t.regs = t.frame().regs.data();
}

void Return(Thread& t, const Instruction&) {
  if (t.frames.size() == 1) return t.block->End(t);
  const Frame callee = std::move(t.frames.back());
  t.frames.pop_back();
  Frame& caller = t.frame();
  t.regs = caller.regs.data();
  const Instruction& call = caller.function->code[caller.at - 1];
  if (call.operands[0].kind != Operand::Kind::kVector) return;
  for (size_t r = 0; r < callee.function->results.size(); ++r) {
    const Parameter& result = callee.function->results[r];
    std::memcpy(caller.params.data() + call.operands[0].parts.at(r).value, callee.params.data() + result.offset, result.bytes);
  }
}

// bar.sync a {, b}; bar.arrive a, b. `number`: whether it waits.
void Barrier(Thread& t, const Instruction& i) {
  const auto barrier = uint32_t(t.Read(i.operands[0]));
  const uint32_t expected = i.operands.size() > 1 ? uint32_t(t.Read(i.operands[1])) : 0;
  t.block->Arrive(t, i, barrier, expected, i.number != 0);
}

// Of both halves, as they stand one behind the other, the second does it all.
void ClusterWait(Thread& t, const Instruction& i) { t.block->WaitForCluster(t, i); }

void Trap(Thread&, const Instruction&) { throw Failure("a trap"); }
void Nothing(Thread&, const Instruction&) {}

}  // namespace

Execute DecodeControl(Instruction& i) {
  const std::string& name = i.words[0];
  if (name == "bra") return Branch;
  if (name == "brx") return BranchIndexed;
  if (name == "exit") return Exit;
  if (name == "ret") return Return;
  if (name == "call") return Call;
  if (name == "trap" || name == "brkpt") return Trap;
  if (name == "nanosleep" || name == "pmevent" || name == "setmaxnreg") return Nothing;
  if (name == "barrier" && i.words[1] == "cluster") return i.Has("wait") ? ClusterWait : Nothing;
  if ((name == "bar" || name == "barrier") && i.words[1] != "warp" && i.words[1] != "cluster") {
    if (i.Has("red")) throw Refusal("a barrier with a reduction");
    i.number = i.Has("sync") ? 1 : 0;
    return Barrier;
  }
  return nullptr;
}

void Decode(Instruction& instruction) {
  for (const auto decode :
       {DecodeBits, DecodeConversion, DecodeArithmetic, DecodeAsync, DecodeMemory, DecodeWarp, DecodeGroupProduct, DecodeControl}) {
    instruction.execute = decode(instruction);
    if (instruction.execute != nullptr) return;
  }
  std::string name = instruction.words[0];
  for (size_t w = 1; w < instruction.words.size(); ++w) name += "." + instruction.words[w];
  throw Refusal("the instruction " + name + " is not known");
}

}  // namespace kiln::ptx
