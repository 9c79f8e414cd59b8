// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/testing/fake_driver.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr int kInvalidValue = 1, kOutOfMemory = 2, kInvalidContext = 201, kInvalidPtx = 218, kOperatingSystem = 304, kNotFound = 500;
constexpr int kIllegalAddress = 700, kUnsupportedInCapture = 900;
constexpr size_t kMemory = size_t(1) << 30;
constexpr size_t kMostRecorded = 1 << 16;

struct Function {
  std::string entry;
  std::vector<int> param_bytes;
  std::map<int, int> attributes;
};
struct Module {
  std::map<std::string, std::unique_ptr<Function>> functions;
};
struct Event {
  std::chrono::steady_clock::time_point at;
  bool recorded = false;
};
struct LaunchConfig {  // CUlaunchConfig, written down again so that a mistake in the runtime's is seen
  unsigned gx, gy, gz, bx, by, bz, shared;
  void* stream;
  struct {
    int id;
    int pad;
    unsigned value[16];
  }* attributes;
  unsigned count;
};

struct State {
  std::mutex mutex;
  std::vector<KilnFakeLaunch> launches;
  std::map<std::pair<uint32_t, uint32_t>, KilnFakeTensorMap> launch_maps;  // of launch and parameter
  uint32_t maps_encoded = 0;
  std::map<std::string, int> failures;
  std::set<void*> allocations;
  std::set<Module*> modules;
  int major = 9, minor = 0;
  int capturing = KILN_FAKE_NO_CAPTURE;
  int64_t captured_allocations = 0, captured_fills = 0;
};
State& Fake() {
  static State* state = new State;  // outlives the test's own statics
  return *state;
}
char contexts[2];
thread_local void* current_context = nullptr;
thread_local int current_device = 0;
constexpr int kRelaxed = 2;
thread_local int capture_mode = 0;

int Enter(const char* symbol) {
  auto& failures = Fake().failures;
  const auto found = failures.find(symbol);
  if (found == failures.end()) return 0;
  const int status = found->second;
  failures.erase(found);
  return status;
}

int ParamBytes(const std::string& type) {
  if (type.ends_with("64")) return 8;
  if (type.ends_with("32")) return 4;
  return type.ends_with("16") ? 2 : 1;
}

int LoadImage(void** out, const void* image) {
  const std::string text(static_cast<const char*>(image));
  const std::regex entry(R"(\.entry\s+(\w+)\s*\(([^)]*)\))");
  const std::regex param(R"(\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)(?:\s+\.\w+(?:\s+\d+)?)*\s+\w+(?:\[(\d+)\])?)");
  auto module = std::make_unique<Module>();
  for (std::sregex_iterator e(text.begin(), text.end(), entry), end; e != end; ++e) {
    auto function = std::make_unique<Function>();
    function->entry = (*e)[1];
    const std::string params = (*e)[2];
    for (std::sregex_iterator p(params.begin(), params.end(), param); p != end; ++p)
      function->param_bytes.push_back(ParamBytes((*p)[1]) * ((*p)[2].matched ? std::stoi((*p)[2]) : 1));
    module->functions[function->entry] = std::move(function);
  }
  if (module->functions.empty()) return kInvalidPtx;
  Fake().modules.insert(module.get());
  *out = module.release();
  return 0;
}

int Run(void* f, const unsigned grid[3], const unsigned block[3], unsigned shared, void* stream, const unsigned* cluster, bool cooperative,
        void** params) {
  const Function& function = *static_cast<Function*>(f);
  KilnFakeLaunch launch{};
  std::strncpy(launch.entry, function.entry.c_str(), sizeof launch.entry - 1);
  for (int d = 0; d < 3; ++d) {
    if (grid[d] == 0 || block[d] == 0) return kInvalidValue;
    launch.grid[d] = grid[d];
    launch.block[d] = block[d];
    launch.cluster[d] = cluster ? cluster[d] : 0;
  }
  launch.shared_bytes = shared;
  launch.cooperative = cooperative;
  launch.stream = reinterpret_cast<uint64_t>(stream);
  launch.param_count = uint32_t(function.param_bytes.size());
  for (size_t i = 0; i < function.param_bytes.size() && i < 64; ++i)
    std::memcpy(&launch.params[i], params[i], std::min<size_t>(size_t(function.param_bytes[i]), 8));
  for (size_t i = 0; i < function.param_bytes.size(); ++i)
    if (function.param_bytes[i] == sizeof(KilnFakeTensorMap))
      std::memcpy(&Fake().launch_maps[{uint32_t(Fake().launches.size()), uint32_t(i)}], params[i], sizeof(KilnFakeTensorMap));
  if (function.entry.starts_with("copy_words"))
    std::memcpy(reinterpret_cast<void*>(launch.params[1]), reinterpret_cast<void*>(launch.params[0]), launch.params[2] * 4);
  if (Fake().launches.size() < kMostRecorded) Fake().launches.push_back(launch);
  return 0;
}

// cuda.h's requirements of a tiled map without interleaving.
bool Encodable(const KilnFakeTensorMap& map, const uint64_t* dims, const uint64_t* strides, const uint32_t* box, const uint32_t* steps) {
  static constexpr unsigned kBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4}, kSpan[] = {0, 32, 64, 128};
  if (map.type >= std::size(kBytes) || map.rank < 1 || map.rank > 5 || map.address == 0 || map.address % 16 != 0) return false;
  if (map.interleave != 0 || map.swizzle >= std::size(kSpan) || map.promotion > 3 || map.fill > 1) return false;
  for (unsigned i = 0; i < map.rank; ++i) {
    if (dims[i] < 1 || dims[i] > uint64_t(1) << 32 || box[i] < 1 || box[i] > 256 || steps[i] < 1 || steps[i] > 8) return false;
    if (i > 0 && (strides[i - 1] % 16 != 0 || strides[i - 1] >= uint64_t(1) << 40)) return false;
  }
  const unsigned row = box[0] * kBytes[map.type];
  return row % 16 == 0 && (map.swizzle == 0 || row <= kSpan[map.swizzle]);
}

uint64_t Allocate(size_t bytes) {
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  Fake().allocations.insert(memory);
  return reinterpret_cast<uint64_t>(memory);
}

int Free(uint64_t address) {
  if (!Fake().allocations.erase(reinterpret_cast<void*>(address))) return kInvalidValue;
  std::free(reinterpret_cast<void*>(address));
  return 0;
}

bool MakesSocket() {
  const int made = ::socket(AF_UNIX, SOCK_STREAM, 0);
  if (made >= 0) ::close(made);
  return made >= 0;
}

// Until a process that may write files has used the driver.
bool Fails() {
  const char* mended = std::getenv("KILN_FAKE_DRIVER_MENDED");
  struct stat status{};
  if (mended == nullptr || ::stat(mended, &status) == 0) return false;
  const int made = ::open(mended, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (made >= 0) ::close(made);
  return made < 0;
}

int NeedContext() { return current_context ? 0 : kInvalidContext; }

bool Captured() { return Fake().capturing == KILN_FAKE_CAPTURED; }

// A call that would break a graph that is being captured in the global mode, by whichever thread.
int BesideCaptures() { return Fake().capturing && capture_mode != kRelaxed ? kUnsupportedInCapture : 0; }

}  // namespace

#define FAKE(name, ...)                 \
  extern "C" int name(__VA_ARGS__) {    \
    std::lock_guard lock(Fake().mutex); \
    if (int failed = Enter(#name)) return failed;
#define END }

extern "C" {
void kiln_fake_reset() {
  std::lock_guard lock(Fake().mutex);
  Fake().launches.clear();
  Fake().launch_maps.clear();
  Fake().maps_encoded = 0;
  Fake().failures.clear();
  Fake().major = 9;
  Fake().minor = 0;
  Fake().capturing = KILN_FAKE_NO_CAPTURE;
  Fake().captured_allocations = Fake().captured_fills = 0;
}
uint32_t kiln_fake_launch_count() { return uint32_t(Fake().launches.size()); }
const KilnFakeLaunch* kiln_fake_launch(uint32_t index) { return &Fake().launches.at(index); }
const KilnFakeTensorMap* kiln_fake_launch_map(uint32_t index, uint32_t param) {
  const auto found = Fake().launch_maps.find({index, param});
  return found == Fake().launch_maps.end() ? nullptr : &found->second;
}
uint32_t kiln_fake_maps_encoded() { return Fake().maps_encoded; }
void kiln_fake_fail(const char* symbol, int status) { Fake().failures[symbol] = status; }
void kiln_fake_capability(int major, int minor) { Fake().major = major, Fake().minor = minor; }
void kiln_fake_capture(int capturing) { Fake().capturing = capturing; }
int64_t kiln_fake_captured_allocations() { return Fake().captured_allocations; }
int64_t kiln_fake_captured_fills() { return Fake().captured_fills; }
int64_t kiln_fake_live_allocations() { return int64_t(Fake().allocations.size()); }
int64_t kiln_fake_live_modules() { return int64_t(Fake().modules.size()); }
int kiln_fake_function_attribute(const char* entry, int attribute) {
  for (Module* module : Fake().modules) {
    const auto function = module->functions.find(entry);
    if (function == module->functions.end()) continue;
    const auto value = function->second->attributes.find(attribute);
    if (value != function->second->attributes.end()) return value->second;
  }
  return -1;
}
const char* hipGetErrorName(int status) { return status == kOutOfMemory ? "hipErrorOutOfMemory" : "hipErrorUnknown"; }
int cuGetErrorName(int status, const char** name) {
  switch (status) {
    case kOutOfMemory: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return 0;
    case kInvalidContext: *name = "CUDA_ERROR_INVALID_CONTEXT"; return 0;
    case kInvalidPtx: *name = "CUDA_ERROR_INVALID_PTX"; return 0;
    case kOperatingSystem: *name = "CUDA_ERROR_OPERATING_SYSTEM"; return 0;
    case kNotFound: *name = "CUDA_ERROR_NOT_FOUND"; return 0;
    case kIllegalAddress: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; return 0;
    case kInvalidValue: *name = "CUDA_ERROR_INVALID_VALUE"; return 0;
    default: *name = nullptr; return kInvalidValue;
  }
}
}

FAKE(cuInit, unsigned)
const char* delay = std::getenv("KILN_FAKE_DRIVER_DELAY");                                  // in seconds
if (delay != nullptr) std::this_thread::sleep_for(std::chrono::seconds(std::atoi(delay)));  // late, as the test asks
return 0;
END FAKE(cuDriverGetVersion, int* v) * v = std::getenv("KILN_FAKE_DRIVER_VERSION") != nullptr ? std::atoi(std::getenv("KILN_FAKE_DRIVER_VERSION"))
                                                                                              : 13000;
return 0;
END FAKE(cuDeviceGetCount, int* n) * n = 2;
return 0;
END FAKE(cuDeviceGet, int* d, int i) * d = i;
return i < 2 ? 0 : kInvalidValue;
END FAKE(cuDeviceGetName, char* s, int n,
         int d) std::strncpy(s, d == 1 && std::getenv("KILN_FAKE_DRIVER_MODELS") != nullptr ? "Another Fake GPU" : "Fake GPU", size_t(n));
return 0;
END FAKE(cuDeviceGetPCIBusId, char* s, int n, int d) std::strncpy(s, d == 0 ? "0000:0A:00.0" : "0000:0B:00.0", size_t(n));
return 0;
END FAKE(cuDeviceTotalMem_v2, size_t* n, int) * n = size_t(1) << 30;
return 0;
END FAKE(cuDeviceGetAttribute, int* v, int a, int) * v = a == 75 ? Fake().major : a == 76 ? Fake().minor : a == 38 ? 1 << 20 : 0;
return 0;
END FAKE(cuDevicePrimaryCtxRetain, void** c, int d) * c = &contexts[d];
return 0;
END FAKE(cuDevicePrimaryCtxRelease_v2, int) return 0;
END FAKE(cuCtxGetCurrent, void** c) * c = current_context;
return 0;
END FAKE(cuCtxSetCurrent, void* c) current_context = c;
return 0;
END FAKE(cuCtxSynchronize) return NeedContext();
END FAKE(cuModuleLoadDataEx, void** m, const void* image, unsigned n, int* options, void** values) if (NeedContext()) return NeedContext();
if (BesideCaptures()) return BesideCaptures();
const int status = LoadImage(m, image);
const bool unoptimized = std::find(options, options + n, 7) != options + n;
for (unsigned i = 0; i < n; ++i) {
  if (options[i] == 3 && status == 0) {
    std::strcpy(static_cast<char*>(values[i]),
                unoptimized ? "ptxas info    : not optimized" : "ptxas info    : Used 24 registers, 0 bytes spill stores");
  }
  if (options[i] == 5 && status != 0) std::strcpy(static_cast<char*>(values[i]), "ptxas fatal   : no entry\n");
}
return status;
END FAKE(cuThreadExchangeStreamCaptureMode, int* mode) if (NeedContext()) return NeedContext();
std::swap(capture_mode, *mode);
return 0;
END FAKE(cuModuleUnload, void* m) if (BesideCaptures()) return BesideCaptures();
Fake().modules.erase(static_cast<Module*>(m));
delete static_cast<Module*>(m);
return 0;
END FAKE(cuModuleGetFunction, void** f, void* m, const char* name) auto& functions = static_cast<Module*>(m) -> functions;
const auto found = functions.find(name);
if (found == functions.end()) return kNotFound;
*f = found->second.get();
return 0;
END FAKE(cuFuncSetAttribute, void* f, int a, int v) static_cast<Function*>(f) -> attributes[a] = v;
return 0;
END FAKE(cuFuncGetAttribute, int* v, int a, void*) * v = a == 4 ? 24 : a == 0 ? 1024 : 0;
return 0;
END FAKE(cuLaunchKernel, void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void* stream,
         void** params, void**) if (NeedContext()) return NeedContext();
if ((std::getenv("KILN_FAKE_DRIVER_SOCKETS") != nullptr && !MakesSocket()) || Fails()) return kOperatingSystem;
const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
return Run(f, grid, block, shared, stream, nullptr, false, params);
END FAKE(cuLaunchKernelEx, const LaunchConfig* c, void* f, void** params, void**) if (NeedContext()) return NeedContext();
const unsigned grid[] = {c->gx, c->gy, c->gz}, block[] = {c->bx, c->by, c->bz};
const unsigned* cluster = nullptr;
bool cooperative = false;
for (unsigned i = 0; i < c->count; ++i) {
  if (c->attributes[i].id == 4) cluster = c->attributes[i].value;
  cooperative |= c->attributes[i].id == 2 && c->attributes[i].value[0] == 1;
}
return Run(f, grid, block, c->shared, c->stream, cluster, cooperative, params);
END FAKE(cuTensorMapEncodeTiled, void* out, unsigned type, uint32_t rank, void* address, const uint64_t* dims, const uint64_t* strides,
         const uint32_t* box, const uint32_t* steps, unsigned interleave, unsigned swizzle, unsigned promotion,
         unsigned fill) if (NeedContext()) return NeedContext();
if (reinterpret_cast<uint64_t>(out) % 64 != 0 || rank > 5) return kInvalidValue;
KilnFakeTensorMap map{};
map.address = reinterpret_cast<uint64_t>(address);
map.type = uint8_t(type), map.rank = uint8_t(rank), map.interleave = uint8_t(interleave);
map.swizzle = uint8_t(swizzle), map.promotion = uint8_t(promotion), map.fill = uint8_t(fill);
if (!Encodable(map, dims, strides, box, steps)) return kInvalidValue;
for (unsigned i = 0; i < rank; ++i) map.dims[i] = dims[i], map.box[i] = uint16_t(box[i]), map.element_strides[i] = uint8_t(steps[i]);
for (unsigned i = 1; i < rank; ++i) map.strides[i - 1] = strides[i - 1];
std::memcpy(out, &map, sizeof map);
++Fake().maps_encoded;
return 0;
END FAKE(cuMemAlloc_v2, uint64_t* p, size_t n) if (NeedContext()) return NeedContext();
if (BesideCaptures()) return BesideCaptures();
if (n > kMemory) return kOutOfMemory;
*p = Allocate(n);
return 0;
END FAKE(cuMemFree_v2, uint64_t p) return BesideCaptures() ? BesideCaptures() : Free(p);
END FAKE(cuStreamIsCapturing, void*, int* status) * status = Captured();
return 0;
END FAKE(cuMemAllocAsync, uint64_t* p, size_t n, void*) if (!Captured()) return kInvalidValue;
if (n > kMemory) return kOutOfMemory;
++Fake().captured_allocations;
*p = Allocate(n);
return 0;
END FAKE(cuMemFreeAsync, uint64_t p, void*) return Captured() ? Free(p) : kInvalidValue;
END FAKE(cuMemcpyHtoDAsync_v2, uint64_t d, const void* s, size_t n, void*) std::memcpy(reinterpret_cast<void*>(d), s, n);
return NeedContext();
END FAKE(cuMemcpyDtoHAsync_v2, void* d, uint64_t s, size_t n, void*) std::memcpy(d, reinterpret_cast<void*>(s), n);
return NeedContext();
END FAKE(cuMemcpyDtoDAsync_v2, uint64_t d, uint64_t s, size_t n, void*) std::memcpy(reinterpret_cast<void*>(d), reinterpret_cast<const void*>(s), n);
return NeedContext();
END FAKE(cuMemsetD8Async, uint64_t d, unsigned char v, size_t n, void*) std::memset(reinterpret_cast<void*>(d), v, n);
if (Captured()) ++Fake().captured_fills;
return NeedContext();
END FAKE(cuStreamSynchronize, void*) if (Captured()) return kUnsupportedInCapture;
return BesideCaptures() ? BesideCaptures() : NeedContext();
END FAKE(cuEventCreate, void** e, unsigned) * e = new Event;
return NeedContext();
END FAKE(cuEventDestroy_v2, void* e) delete static_cast<Event*>(e);
return 0;
END FAKE(cuEventRecord, void* e, void*) * static_cast<Event*>(e) = { std::chrono::steady_clock::now(), true };
return 0;
END FAKE(cuEventQuery, void* e) return static_cast<Event*>(e) -> recorded ? 0 : 600;
END FAKE(cuEventSynchronize, void*) return 0;
END FAKE(cuEventElapsedTime, float* ms, void* a, void* b) const auto *from = static_cast<Event*>(a), *to = static_cast<Event*>(b);
if (!from->recorded || !to->recorded) return kInvalidValue;
*ms = std::chrono::duration<float, std::milli>(to->at - from->at).count();
return 0;
END

FAKE(hipInit, unsigned) return 0;
END FAKE(hipDriverGetVersion, int* v) * v = 60'342'134;
return 0;
END FAKE(hipGetDeviceCount, int* n) * n = 1;
return 0;
END FAKE(hipDeviceGet, int* d, int i) * d = i;
return 0;
END FAKE(hipDeviceGetName, char* s, int n, int) std::strncpy(s, "gfx look-alike", size_t(n));
return 0;
END FAKE(hipDeviceTotalMem, size_t* n, int) * n = size_t(1) << 30;
return 0;
END FAKE(hipGetDevicePropertiesR0600, void* p, int) std::strcpy(static_cast<char*>(p) + 1160, "gfx942:sramecc+:xnack-");
return 0;
END FAKE(hipGetDevice, int* d) * d = current_device;
return 0;
END FAKE(hipSetDevice, int d) current_device = d;
return 0;
END FAKE(hipDeviceSynchronize) return 0;
END FAKE(hipModuleLoadDataEx, void** m, const void* image, unsigned, int*, void**) return LoadImage(m, image);
END FAKE(hipModuleUnload, void* m) Fake().modules.erase(static_cast<Module*>(m));
delete static_cast<Module*>(m);
return 0;
END FAKE(hipModuleGetFunction, void** f, void* m, const char* name) auto& functions = static_cast<Module*>(m) -> functions;
const auto found = functions.find(name);
if (found == functions.end()) return kNotFound;
*f = found->second.get();
return 0;
END FAKE(hipFuncGetAttribute, int* v, int a, void*) * v = a == 4 ? 32 : 0;
return 0;
END FAKE(hipModuleLaunchKernel, void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void* stream,
         void** params, void**) const unsigned grid[] = {gx, gy, gz},
                                               block[] = {
                                                 bx,
                                                 by,
                                                 bz
                                               };
return Run(f, grid, block, shared, stream, nullptr, false, params);
END FAKE(hipMalloc, uint64_t* p, size_t n) * p = Allocate(n);
return 0;
END FAKE(hipFree, uint64_t p) return Free(p);
END FAKE(hipMemcpyHtoDAsync, uint64_t d, const void* s, size_t n, void*) std::memcpy(reinterpret_cast<void*>(d), s, n);
return 0;
END FAKE(hipMemcpyDtoHAsync, void* d, uint64_t s, size_t n, void*) std::memcpy(d, reinterpret_cast<void*>(s), n);
return 0;
END FAKE(hipMemcpyDtoDAsync, uint64_t d, uint64_t s, size_t n, void*) std::memcpy(reinterpret_cast<void*>(d), reinterpret_cast<const void*>(s), n);
return 0;
END FAKE(hipMemsetD8Async, uint64_t d, unsigned char v, size_t n, void*) std::memset(reinterpret_cast<void*>(d), v, n);
return 0;
END FAKE(hipStreamSynchronize, void*) return 0;
END FAKE(hipEventCreateWithFlags, void** e, unsigned) * e = new Event;
return 0;
END FAKE(hipEventDestroy, void* e) delete static_cast<Event*>(e);
return 0;
END FAKE(hipEventRecord, void* e, void*) * static_cast<Event*>(e) = { std::chrono::steady_clock::now(), true };
return 0;
END FAKE(hipEventQuery, void*) return 0;
END FAKE(hipEventSynchronize, void*) return 0;
END FAKE(hipEventElapsedTime, float* ms, void*, void*) * ms = 1;
return 0;
END
