// SPDX-License-Identifier: Apache-2.0
#include "ir/codec/decode.h"

#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <bit>
#include <optional>

#include "ir/codec/op_codec.h"
#include "ir/codec/wire_size.h"
#include "ir/decisions.h"
#include "ir/expr/numeric.h"
#include "ir/limits.h"
#include "ir/text/parse.h"
#include "kiln/v1/ir.pb.h"

namespace kiln::ir {
namespace {

// A name for people: letters, digits and '_', of bounded length; empty where nothing is left.
std::string CleanName(std::string_view name) {
  std::string clean;
  for (char c : name.substr(0, 64)) clean += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  if (!clean.empty() && std::isdigit(static_cast<unsigned char>(clean[0]))) clean.insert(0, "_");
  return clean;
}

std::string CleanPath(std::string_view path) {
  std::string clean;
  for (char c : path.substr(0, 1024)) clean += c >= ' ' && c != 0x7f && c != '"' && c != '\\' ? c : '_';
  return clean;
}

template <typename Strings>
std::string NameAt(const Strings& names, int i) {
  return i < names.size() ? CleanName(names.Get(i)) : std::string();
}

class Decoder {
 public:
  Decoder(const v1::Module& wire, Diagnostics& diagnostics) : wire_(wire), diagnostics_(diagnostics), reader_(wire, module_, exprs_, diagnostics) {}

  std::expected<Module, Failed> Run() {
    size_t errors = diagnostics_.errors();
    CheckVersion();
    if (size_t(wire_.outputs_size()) > kMaxParams) {
      diagnostics_.Error(fmt::format("{} outputs; a module may have {}", wire_.outputs_size(), kMaxParams), "split the program");
      return std::unexpected(Failed{});
    }
    reader_.SetPlace("module", 0);
    reader_.RefuseUnknownFields(wire_);
    ReadDebug();
    ReadVars();
    DeclareBuffers();
    ReadExprs();
    ReadShapes();
    ReadParams();
    for (int i = 0; i < wire_.functions_size(); ++i) ReadFunction(i);
    for (int i = 0; i < wire_.kernels_size(); ++i) ReadKernel(i);
    if (diagnostics_.errors() > errors) return std::unexpected(Failed{});
    return std::move(module_);
  }

 private:
  void CheckVersion() {
    if (wire_.version() == 0) {
      diagnostics_.Error("the module does not say its format version", "set Module.version to 1; are these bytes a kiln.v1.Module?");
    } else if (wire_.version() > kFormatVersion) {
      diagnostics_.Unsupported(fmt::format("the module's format is version {}, this compiler knows up to {}", wire_.version(), kFormatVersion),
                               "update the daemon, or use a client of its version");
    }
  }

  void ReadDebug() {
    for (const std::string& file : wire_.debug().files()) module_.files.push_back(CleanPath(file));
    module_.name = CleanName(wire_.debug().module_name());
  }

  std::optional<DType> ReadDType(int number) {
    std::optional<DType> type = DTypeFromNumber(uint32_t(number));
    if (type) return type;
    if (number == 0) reader_.Problem("the dtype is not given");
    else reader_.Newer(fmt::format("dtype {} is not known here", number));
    return std::nullopt;
  }

  void ReadVars() {
    for (int i = 0; i < wire_.vars_size(); ++i) {
      const v1::Var& wire = wire_.vars(i);
      reader_.SetPlace("vars", i);
      reader_.RefuseUnknownFields(wire);
      if (wire.kind() < 1 || wire.kind() > int(VarKind::kLet)) reader_.Newer(fmt::format("variable kind {} is not known here", int(wire.kind())));
      if (wire.axis() > 2) reader_.Problem(fmt::format("axis {}; a grid has x, y and z: 0 to 2", wire.axis()));
      module_.AddVar({VarKind(std::clamp(int(wire.kind()), 1, int(VarKind::kLet))), ReadDType(wire.dtype()).value_or(DType::kI32),
                      uint8_t(std::min(wire.axis(), 2u)), NameAt(wire_.debug().var_names(), i)});
    }
  }

  // Expressions refer to buffers and shapes to expressions, so shapes are read last.
  void DeclareBuffers() {
    for (int i = 0; i < wire_.buffers_size(); ++i) {
      const v1::Buffer& wire = wire_.buffers(i);
      reader_.SetPlace("buffers", i);
      reader_.RefuseUnknownFields(wire);
      if (wire.space() < 1 || wire.space() > int(Space::kBarrier)) reader_.Newer(fmt::format("space {} is not known here", int(wire.space())));
      Buffer buffer{.space = Space(std::clamp(int(wire.space()), 1, int(Space::kBarrier))),
                    .dtype = ReadDType(wire.dtype()).value_or(DType::kF32),
                    .workspace = wire.workspace(),
                    .name = NameAt(wire_.debug().buffer_names(), i)};
      if (wire.has_pad_value()) buffer.pad_value = wire.pad_value();
      buffer.may_alias = wire.may_alias();
      ReadArrivals(wire, buffer);
      module_.AddBuffer(std::move(buffer));
    }
  }

  void ReadArrivals(const v1::Buffer& wire, Buffer& buffer) {
    if (size_t(wire.arrivals_size()) > kMaxBarriers) {
      return reader_.Problem(fmt::format("a buffer of {} barriers; at most {} are possible", wire.arrivals_size(), kMaxBarriers));
    }
    buffer.arrivals.assign(wire.arrivals().begin(), wire.arrivals().end());
  }

  void ReadShapes() {
    for (int i = 0; i < wire_.buffers_size(); ++i) {
      reader_.SetPlace("buffers", i);
      module_.buffers[size_t(i)].shape = reader_.Exprs(wire_.buffers(i).shape(), "shape");
      module_.buffers[size_t(i)].strides = reader_.Exprs(wire_.buffers(i).strides(), "strides");
    }
  }

  void ReadExprs() {
    exprs_.reserve(size_t(wire_.exprs_size()));
    for (int i = 0; i < wire_.exprs_size(); ++i) {
      reader_.SetPlace("exprs", i);
      exprs_.push_back(ReadExpr(wire_.exprs(i), uint32_t(i)));
    }
  }

  ExprId ReadExpr(const v1::Expr& wire, uint32_t index) {
    reader_.RefuseUnknownFields(wire);
    std::optional<ExprOp> op = ExprOpFromNumber(uint32_t(wire.op()));
    if (!op) reader_.Newer(fmt::format("expression op {} is not known here", int(wire.op())));
    std::optional<DType> dtype = ReadDType(wire.dtype());
    if (!op || !dtype || !CheckArgs(wire, *op, index) || !CheckRef(wire, *op)) return module_.exprs.Int(0);
    ExprNode node{.op = *op, .dtype = *dtype, .arg_count = uint8_t(wire.args_size())};
    for (int i = 0; i < wire.args_size(); ++i) node.args[size_t(i)] = exprs_[wire.args(i)];
    if (*op == ExprOp::kConstInt) {
      node.int_value = wire.int_value();
      if (IsFloat(*dtype) || WrapTo(*dtype, node.int_value) != node.int_value)
        reader_.Problem(fmt::format("{} is no value of type {}", node.int_value, Name(*dtype)));
    }
    if (*op == ExprOp::kConstFloat) node.int_value = std::bit_cast<int64_t>(wire.float_value());
    if (*op == ExprOp::kVar || *op == ExprOp::kLoad) node.ref = wire.ref();
    // Simplifying needs right types; a node with wrong ones stays as it is for the verifier to name.
    bool typed = TypeProblem(module_.exprs, node).empty();
    ExprId id = typed ? module_.exprs.Simplified(node) : module_.exprs.Intern(node);
    return CheckSize(*op, id) ? id : module_.exprs.Int(0, *dtype);
  }

  bool CheckArgs(const v1::Expr& wire, ExprOp op, uint32_t index) {
    int count = ArgCount(op);
    if (count < 0 ? wire.args_size() > kMaxRank : wire.args_size() != count) {
      std::string wanted = count < 0 ? fmt::format("0 to {}", kMaxRank) : std::to_string(count);
      reader_.Problem(fmt::format("{} has {} arguments, it takes {}", Name(op), wire.args_size(), wanted));
      return false;
    }
    for (uint32_t arg : wire.args()) {
      if (arg >= index) {
        reader_.Problem(fmt::format("{} refers to expression {}; an expression may refer only to earlier ones", Name(op), arg));
        return false;
      }
    }
    return true;
  }

  bool CheckSize(ExprOp op, ExprId id) {
    ExprSize size = sizes_.Of(id);
    if (size.depth <= kMaxExprDepth && size.nodes <= kMaxExprNodes) return true;
    reader_.Problem(fmt::format("the expression under {} is {} deep and has {} nodes written out; the limits are {} and {}", Name(op), size.depth,
                                size.nodes, kMaxExprDepth, kMaxExprNodes),
                    "bind parts of it with let");
    return false;
  }

  bool CheckRef(const v1::Expr& wire, ExprOp op) {
    size_t limit = op == ExprOp::kVar ? module_.vars.size() : module_.buffers.size();
    if ((op != ExprOp::kVar && op != ExprOp::kLoad) || wire.ref() < limit) return true;
    reader_.Problem(
        fmt::format("{} refers to {} {}, but the module has {}", Name(op), op == ExprOp::kVar ? "variable" : "buffer", wire.ref(), limit));
    return false;
  }

  void ReadParams() {
    for (int i = 0; i < wire_.params_size(); ++i) {
      const v1::Param& wire = wire_.params(i);
      reader_.SetPlace("params", i);
      reader_.RefuseUnknownFields(wire);
      switch (wire.kind_case()) {
        case v1::Param::kTensor: module_.params.push_back(reader_.Buffer(wire.tensor(), "tensor")); break;
        case v1::Param::kScalar: module_.params.push_back(reader_.Var(wire.scalar(), "scalar")); break;
        case v1::Param::KIND_NOT_SET: reader_.Problem("neither a tensor nor a scalar"); break;
      }
    }
    for (uint32_t output : wire_.outputs()) {
      if (output >= uint32_t(wire_.params_size())) {
        diagnostics_.Error(fmt::format("outputs: parameter {} is named, but there are {}", output, wire_.params_size()), kBroken);
      }
      module_.outputs.push_back(output);
    }
  }

  void ReadFunction(int i) {
    const v1::Function& wire = wire_.functions(i);
    reader_.SetPlace("functions", i);
    reader_.RefuseUnknownFields(wire);
    if (wire.language() < 1 || wire.language() > int(Language::kPtx))
      reader_.Newer(fmt::format("language {} is not known here", int(wire.language())));
    module_.functions.push_back({Language(std::clamp(int(wire.language()), 1, int(Language::kPtx))), wire.symbol(), wire.text()});
  }

  void ReadKernel(int i) {
    const v1::Kernel& wire = wire_.kernels(i);
    reader_.SetPlace("kernels", i);
    reader_.RefuseUnknownFields(wire);
    Kernel kernel;
    kernel.threads = wire.threads();
    kernel.raster_panel = wire.raster_panel();
    kernel.min_blocks = wire.min_blocks();
    kernel.name = NameAt(wire_.debug().kernel_names(), i);
    kernel.grid = reader_.Exprs(wire.grid(), "grid");
    if (wire.cluster_size() > 3 || wire.block_vars_size() > 3) {
      reader_.Problem(
          fmt::format("{} cluster sizes and {} block variables; a grid has at most 3 dimensions", wire.cluster_size(), wire.block_vars_size()));
      return;
    }
    kernel.cluster.assign(wire.cluster().begin(), wire.cluster().end());
    for (uint32_t var : wire.block_vars()) kernel.block_vars.push_back(reader_.Var(var, "block_vars"));
    kernel.body = reader_.ReadBlock(wire.body());
    module_.kernels.push_back(std::move(kernel));
  }

  const v1::Module& wire_;
  Diagnostics& diagnostics_;
  Module module_;
  std::vector<ExprId> exprs_;  // wire index → expression
  ExprSizes sizes_{module_.exprs};
  OpReader reader_;
};

// Checked before memory is allocated for them.
bool CheckSizes(std::string_view bytes, Diagnostics& diagnostics) {
  const ModuleSize size = MeasureModule(bytes);
  struct {
    std::string_view what;
    size_t size;
    size_t limit;
  } tables[] = {{"variables", size.variables, kMaxVars},     {"buffers", size.buffers, kMaxBuffers}, {"expressions", size.expressions, kMaxExprs},
                {"parameters", size.parameters, kMaxParams}, {"kernels", size.kernels, kMaxKernels}, {"functions", size.functions, kMaxFunctions},
                {"source files", size.files, kMaxFiles}};
  const size_t errors = diagnostics.errors();
  for (const auto& table : tables) {
    if (table.size <= table.limit) continue;
    diagnostics.Error(fmt::format("{} {}; a module may have {}", table.size, table.what, table.limit), "split the program");
  }
  if (size.statements > kMaxStmts) {
    diagnostics.Error(fmt::format("{} statements; a module may have {}", size.statements, kMaxStmts),
                      "use loops instead of unrolling in the front end");
  }
  if (diagnostics.errors() > errors) return false;
  if (size.memory <= kMaxModuleMemory) return true;
  diagnostics.Error(fmt::format("the module's {} bytes would take {} in memory; a module may take {}", bytes.size(), size.memory, kMaxModuleMemory),
                    kBroken);
  return false;
}

bool ParseWire(std::string_view bytes, v1::Module& wire) {
  google::protobuf::LogSilencer silencer;  // it would write what it dislikes to stderr; the caller is told
  google::protobuf::io::CodedInputStream stream(reinterpret_cast<const uint8_t*>(bytes.data()), int(bytes.size()));
  stream.SetRecursionLimit(kWireNesting);
  return wire.ParseFromCodedStream(&stream) && stream.ConsumedEntireMessage();
}

}  // namespace

std::expected<Module, Failed> Decode(std::string_view bytes, Diagnostics& diagnostics) {
  if (bytes.size() > kMaxModuleBytes) {
    diagnostics.Error(fmt::format("the module has {} bytes; at most {} are read", bytes.size(), kMaxModuleBytes),
                      "use loops instead of unrolling in the front end");
    return std::unexpected(Failed{});
  }
  if (!CheckSizes(bytes, diagnostics)) return std::unexpected(Failed{});
  v1::Module wire;
  if (!ParseWire(bytes, wire)) {
    diagnostics.Error(fmt::format("these {} bytes are no serialized kiln.v1.Module: malformed, cut off, or nested deeper than {} "
                                  "statements",
                                  bytes.size(), kMaxNesting),
                      "send the output of the client's serializer unchanged, or the text form, which starts with \"kiln 1\"");
    return std::unexpected(Failed{});
  }
  return Decoder(wire, diagnostics).Run();
}

std::expected<Module, Failed> DecodeModule(std::string_view bytes, Diagnostics& diagnostics) {
  if (!bytes.starts_with("kiln ")) return Decode(bytes, diagnostics);
  std::expected<Module, Failed> module = Parse(bytes, diagnostics);
  if (module && !RefuseDecisions(*module, diagnostics)) return std::unexpected(Failed{});
  return module;
}

}  // namespace kiln::ir
