// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/python/arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kiln::runtime::py {

const dlpack::ExchangeApi* ExchangeOf(PyObject* type) {
  Ref capsule = Attribute(type, "__dlpack_c_exchange_api__");
  if (!capsule || !PyCapsule_IsValid(capsule.get(), "dlpack_exchange_api")) return nullptr;
  const auto* header = static_cast<const dlpack::ExchangeHeader*>(PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"));
  while (header && header->version.major != 1) header = header->previous;
  const auto* api = reinterpret_cast<const dlpack::ExchangeApi*>(header);
  return api && api->view_of_object ? api : nullptr;
}

namespace {

struct TypeEntry {
  PyTypeObject* type;  // owned
  Source source;
  const dlpack::ExchangeApi* exchange;
};

bool Has(PyObject* type, const char* name) { return bool(Attribute(type, name)); }

TypeEntry Classify(PyTypeObject* type) {
  auto* object = reinterpret_cast<PyObject*>(type);
  const auto entry = [&](Source source) { return TypeEntry{type, source, nullptr}; };
  if (type == GetState().array_type) return entry(Source::kArray);
  if (type == &PyCapsule_Type) return entry(Source::kCapsule);
  if (const auto* api = ExchangeOf(object)) return {type, Source::kExchange, api};
  if (Has(object, "data_ptr") && Has(object, "stride") && Has(object, "is_cuda")) return entry(Source::kTorch);
  if (Has(object, "__cuda_array_interface__")) return entry(Source::kCudaInterface);
  if (Has(object, "__array_interface__")) return entry(Source::kHost);
  if (Has(object, "__dlpack__")) return entry(Source::kDlpack);
  return entry(Source::kUnknown);
}

// Classification costs microseconds and a program uses few types: remembered, with a bound.
const TypeEntry& Lookup(PyTypeObject* type) {
  constexpr size_t kMost = 64;
  static std::vector<TypeEntry>* known = new std::vector<TypeEntry>;
  for (const TypeEntry& entry : *known)
    if (entry.type == type) return entry;
  if (known->size() == kMost) {
    Py_DECREF(reinterpret_cast<PyObject*>(known->back().type));
    known->pop_back();
  }
  const TypeEntry entry = Classify(type);
  Py_INCREF(reinterpret_cast<PyObject*>(type));
  known->push_back(entry);
  return known->back();
}

}  // namespace

bool Arguments::Mismatch(size_t param, const std::string& what) const {
  PyErr_SetString(PyExc_ValueError, fmt::format("{}.{}: {}", kernel_.binder().name(), Proto(param).name, what).c_str());
  return false;
}

bool Arguments::Read(PyObject* args, bool inputs_only) {
  const auto& info = kernel_.binder().info();
  count_ = size_t(info.params.size());
  if (count_ > kInline) {
    more_args_.resize(count_);
    args_ = more_args_.data();
  }
  Py_ssize_t next = 0;
  for (size_t i = 0; i < count_; ++i) {
    if (inputs_only && info.params[i].output) continue;
    if (!ReadOne(i, PyTuple_GetItem(args, next++))) return false;
  }
  return true;
}

bool Arguments::ReadOne(size_t param, PyObject* object) {
  if (object == Py_None) return true;
  return Proto(param).tensor ? ReadTensor(param, object) : ReadScalar(param, object);
}

bool Arguments::ReadScalar(size_t param, PyObject* object) {
  Arg& arg = args_[param];
  if (IsFloat(Proto(param).dtype)) {
    arg.real = PyFloat_AsDouble(object);
    arg.kind = Arg::Kind::kFloat;
    return !(arg.real == -1.0 && PyErr_Occurred());
  }
  Ref index(PyNumber_Index(object));
  if (!index) {
    PyErr_Clear();
    return Mismatch(param, fmt::format("Expect arg[{}] to be {}", param, Proto(param).dtype == DType::kBool ? "boolean" : "int"));
  }
  arg.kind = Arg::Kind::kInt;
  arg.integer = PyLong_AsLongLong(index.get());
  if (arg.integer == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    if (Proto(param).dtype == DType::kU64) arg.integer = int64_t(PyLong_AsUnsignedLongLong(index.get()));
    else return Mismatch(param, "the integer does not fit 64 bits");
    if (PyErr_Occurred()) {
      PyErr_Clear();
      return Mismatch(param, "the integer does not fit uint64");
    }
  }
  return true;
}

bool Arguments::ReadAddress(size_t param, PyObject* address) {
  const uint64_t data = PyLong_AsUnsignedLongLong(address);
  return !PyErr_Occurred() && TakeAddress(param, data);
}

bool Arguments::TakeAddress(size_t param, uint64_t data) {
  static constexpr int64_t kEndless[] = {kEndlessElements};
  if (Proto(param).shape.size() != 1 || !Proto(param).strides.empty())
    return Mismatch(param, "an address is taken where the kernel wants a tensor of one dimension");
  args_[param] = Arg::Of(Tensor{.data = data,
                                .dtype = Proto(param).dtype,
                                .place = kernel_.device().info().kind == DriverKind::kCuda ? Place::kCuda : Place::kHip,
                                .device = kernel_.device().info().index,
                                .shape = kEndless,
                                .strides = nullptr});
  return true;
}

bool Arguments::ReadTensor(size_t param, PyObject* object) {
  if (PyLong_CheckExact(object) && (Proto(param).may_alias || Proto(param).by_address)) return ReadAddress(param, object);
  const TypeEntry& type = Lookup(Py_TYPE(object));
  if (!first_tensor_) {
    first_tensor_ = object;
    first_source_ = type.source;
  }
  switch (type.source) {
    case Source::kExchange: return ReadExchange(param, object, *type.exchange);
    case Source::kTorch: return ReadTorch(param, object);
    case Source::kArray: return ReadArray(param, object);
    case Source::kCudaInterface: return ReadInterface(param, object, false);
    case Source::kHost: return ReadInterface(param, object, true);
    case Source::kDlpack: return ReadDlpack(param, object);
    case Source::kCapsule: return ReadCapsule(param, object);
    case Source::kUnknown: break;
  }
  Ref type_name(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__name__"));
  const auto name = type_name ? Text(type_name.get()) : std::nullopt;
  PyErr_SetString(PyExc_TypeError, fmt::format("{}.{} is expected to be a tensor (torch, numpy, or anything with DLPack or "
                                               "__cuda_array_interface__), but got {}",
                                               kernel_.binder().name(), Proto(param).name, name.value_or("an object"))
                                       .c_str());
  return false;
}

bool Arguments::ReadView(size_t param, const dlpack::Tensor& view, bool read_only) {
  const DTypeInfo* dtype = FindDType(view.dtype.code, view.dtype.bits, view.dtype.lanes);
  if (!dtype)
    return Mismatch(param, fmt::format("dtype is expected to be {}, but got DLPack type code {} of {} bits and {} lanes", Name(Proto(param).dtype),
                                       view.dtype.code, view.dtype.bits, view.dtype.lanes));
  if (read_only && Proto(param).written) return Mismatch(param, "the kernel writes this tensor, but it is read-only");
  if (view.ndim < 0 || view.ndim > Binder::kMaxRank) return Mismatch(param, fmt::format("a tensor of {} dimensions", view.ndim));
  Arg& arg = args_[param];
  arg.kind = Arg::Kind::kTensor;
  Tensor& tensor = arg.tensor;
  tensor.data = view.data ? reinterpret_cast<uint64_t>(view.data) + view.byte_offset : 0;
  tensor.dtype = dtype->dtype;
  tensor.place = Place(view.device.type);
  tensor.device = view.device.index;
  tensor.shape = {view.shape, size_t(view.ndim)};
  tensor.strides = view.strides;
  return true;
}

bool Arguments::ReadExchange(size_t param, PyObject* object, const dlpack::ExchangeApi& api) {
  const bool by_address = Proto(param).by_address;
  dlpack::Tensor view{};
  if (api.view_of_object(object, &view) != 0) {
    // torch refuses what DLPack has no code for; its attributes still say everything.
    if (!PyObject_HasAttrString(object, "data_ptr")) return false;
    PyErr_Clear();
    if (!by_address) return ReadTorch(param, object);
    const Ref address(PyObject_CallMethod(object, "data_ptr", nullptr));
    return address && ReadAddress(param, address.get());
  }
  if (!exchange_) exchange_ = &api;
  if (by_address && IsHere(view.device)) return TakeAddress(param, view.data ? reinterpret_cast<uint64_t>(view.data) + view.byte_offset : 0);
  return ReadView(param, view, false);
}

bool Arguments::IsHere(const dlpack::Device& device) const {
  const DeviceInfo& own = kernel_.device().info();
  return Place{uint8_t(device.type)} == (own.kind == DriverKind::kCuda ? Place::kCuda : Place::kHip) && device.index == own.index;
}

bool Arguments::ReadArray(size_t param, PyObject* object) {
  const ArrayObject::Body& body = *reinterpret_cast<ArrayObject*>(object)->body;
  const DeviceInfo& device = body.device->info();
  args_[param] = Arg::Of(Tensor{.data = body.buffer.address(),
                                .dtype = body.dtype->dtype,
                                .place = device.kind == DriverKind::kCuda ? Place::kCuda : Place::kHip,
                                .device = device.index,
                                .shape = body.shape,
                                .strides = nullptr});
  return true;
}

bool Arguments::ReadDlpack(size_t param, PyObject* object) {
  // 1 asks the producer to make the default stream wait for its work (Python specification of DLPack).
  Ref method(PyObject_GetAttrString(object, "__dlpack__")), none(PyTuple_New(0));
  if (!method || !none) return false;
  Ref kwargs(Py_BuildValue("{s:i}", "stream", 1));
  Ref capsule(PyObject_Call(method.get(), none.get(), kwargs.get()));
  if (!capsule) {
    PyErr_Clear();
    capsule = Ref(PyObject_CallObject(method.get(), nullptr));
  }
  if (!capsule) return false;
  const bool read = ReadCapsule(param, capsule.get());
  keep_.push_back(std::move(capsule));  // its destructor gives the tensor back
  return read;
}

bool Arguments::ReadCapsule(size_t param, PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, "dltensor"))
    return ReadView(param, static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"))->tensor, false);
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    const auto* tensor = static_cast<dlpack::VersionedTensor*>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    if (tensor->version.major != 1) return Mismatch(param, fmt::format("a DLPack tensor of version {}", tensor->version.major));
    return ReadView(param, tensor->tensor, tensor->flags & dlpack::kReadOnly);
  }
  return Mismatch(param, "the capsule holds no DLPack tensor, or one that was consumed already");
}

bool Arguments::CurrentStream(void** stream) const {
  *stream = nullptr;
  const DeviceInfo& device = kernel_.device().info();
  if (exchange_ && exchange_->current_stream) {
    const int32_t type = device.kind == DriverKind::kCuda ? int32_t(Place::kCuda) : int32_t(Place::kHip);
    return exchange_->current_stream(type, device.index, stream) == 0;
  }
  if (first_source_ != Source::kTorch && first_source_ != Source::kExchange) return true;
  Ref torch(PyImport_ImportModule("torch._C"));
  if (!torch) return false;
  Ref raw(PyObject_CallMethod(torch.get(), "_cuda_getCurrentRawStream", "i", device.index));
  if (!raw) return false;
  *stream = PyLong_AsVoidPtr(raw.get());
  return !PyErr_Occurred();
}

// Arrays that share memory share a copy where the kernel allows for that; elsewhere each has its own.
void Arguments::JoinHostCopies() {
  std::vector<size_t> order;
  for (size_t i = 0; i < host_.size(); ++i) {
    host_[i].copied = i;
    if (Proto(host_[i].param).may_alias && host_[i].bytes > 0) order.push_back(i);
  }
  std::ranges::sort(order, {}, [&](size_t i) { return host_[i].low; });
  for (size_t n = 1; n < order.size(); ++n) {
    HostCopy& copy = host_[order[n]];
    HostCopy& before = host_[host_[order[n - 1]].copied];
    if (copy.low >= before.low + before.bytes) continue;
    copy.copied = before.copied;
    before.bytes = std::max<uint64_t>(before.bytes, copy.low + copy.bytes - before.low);
    before.back |= std::exchange(copy.back, false);
  }
}

Result<void> Arguments::CopyIn(void* stream) {
  JoinHostCopies();
  for (HostCopy& copy : host_) {
    if (&host_[copy.copied] != &copy) continue;
    auto buffer = DeviceBuffer::Allocate(kernel_.shared_device(), copy.bytes);
    if (!buffer) return std::unexpected(buffer.error());
    if (auto ok = buffer->CopyFrom(copy.low, copy.bytes, stream); !ok) return ok;
    copy.buffer = std::move(*buffer);
  }
  for (const HostCopy& copy : host_) {
    const HostCopy& holder = host_[copy.copied];
    Tensor& tensor = args_[copy.param].tensor;
    tensor.data = copy.bytes ? holder.buffer.address() + (tensor.data - reinterpret_cast<uint64_t>(holder.low)) : 0;
  }
  return {};
}

Result<void> Arguments::CopyOut(void* stream) {
  for (HostCopy& copy : host_) {
    if (!copy.back) continue;
    if (auto ok = copy.buffer.CopyTo(copy.low, copy.bytes, stream); !ok) return ok;
  }
  return SynchronizeStream(kernel_.device(), stream);
}

}  // namespace kiln::runtime::py
