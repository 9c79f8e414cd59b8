// SPDX-License-Identifier: Apache-2.0
#include "ir/codec/encode.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "ir/codec/decode.h"
#include "ir/codec/op_codec.h"
#include "ir/visit.h"

namespace kiln::ir {
namespace {

void WriteExpr(const ExprNode& node, v1::Expr& out) {
  out.set_op(v1::ExprOp(node.op));
  out.set_dtype(v1::DType(node.dtype));
  for (ExprId arg : node.Args()) out.add_args(Index(arg));
  if (node.op == ExprOp::kConstInt) out.set_int_value(node.int_value);
  if (node.op == ExprOp::kConstFloat) out.set_float_value(node.FloatValue());
  out.set_ref(node.ref);
}

void WriteBuffer(const Buffer& buffer, v1::Buffer& out) {
  out.set_space(v1::Space(buffer.space));
  out.set_dtype(v1::DType(buffer.dtype));
  for (ExprId extent : buffer.shape) out.add_shape(Index(extent));
  for (ExprId stride : buffer.strides) out.add_strides(Index(stride));
  out.set_workspace(buffer.workspace);
  if (buffer.pad_value) out.set_pad_value(*buffer.pad_value);
  out.set_may_alias(buffer.may_alias);
  out.mutable_arrivals()->Add(buffer.arrivals.begin(), buffer.arrivals.end());
}

void WriteKernel(const Kernel& kernel, v1::Kernel& out, v1::DebugInfo& debug) {
  for (ExprId extent : kernel.grid) out.add_grid(Index(extent));
  out.set_threads(kernel.threads);
  for (uint32_t size : kernel.cluster) out.add_cluster(size);
  for (VarId var : kernel.block_vars) out.add_block_vars(Index(var));
  out.set_raster_panel(kernel.raster_panel);
  out.set_min_blocks(kernel.min_blocks);
  WriteBlock(kernel.body, *out.mutable_body(), debug);
  debug.add_kernel_names(kernel.name);
}

void WriteTables(const Module& module, v1::Module& out) {
  v1::DebugInfo& debug = *out.mutable_debug();
  for (const Var& var : module.vars) {
    v1::Var& wire = *out.add_vars();
    wire.set_kind(v1::VarKind(var.kind));
    wire.set_dtype(v1::DType(var.dtype));
    wire.set_axis(var.axis);
    debug.add_var_names(var.name);
  }
  for (const Buffer& buffer : module.buffers) {
    WriteBuffer(buffer, *out.add_buffers());
    debug.add_buffer_names(buffer.name);
  }
  for (uint32_t i = 0; i < module.exprs.size(); ++i) WriteExpr(module.exprs[ExprId(i)], *out.add_exprs());
  for (const std::string& file : module.files) debug.add_files(file);
  debug.set_module_name(module.name);
}

}  // namespace

v1::Module Encode(const Module& module) {
  v1::Module out;
  out.set_version(kFormatVersion);
  WriteTables(module, out);
  for (const Param& param : module.params) {
    if (auto* tensor = std::get_if<BufferId>(&param)) out.add_params()->set_tensor(Index(*tensor));
    if (auto* scalar = std::get_if<VarId>(&param)) out.add_params()->set_scalar(Index(*scalar));
  }
  for (uint32_t output : module.outputs) out.add_outputs(output);
  for (const Function& function : module.functions) {
    v1::Function& wire = *out.add_functions();
    wire.set_language(v1::Language(function.language));
    wire.set_symbol(function.symbol);
    wire.set_text(function.text);
  }
  for (const Kernel& kernel : module.kernels) {
    WriteKernel(kernel, *out.add_kernels(), *out.mutable_debug());
    Walk(kernel.body, [&](const Stmt& stmt) {
      if (uint32_t number = WireNumber(stmt.op)) (*out.mutable_op_names())[number] = std::string(Name(stmt.op));
    });
  }
  return out;
}

std::string EncodeBytes(const Module& module) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);  // op_names is a map
  Encode(module).SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

}  // namespace kiln::ir
