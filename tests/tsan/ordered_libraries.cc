// SPDX-License-Identifier: Apache-2.0
//
// What ThreadSanitizer must be told of gRPC, which Debian does not build for it: that it orders things. What is given to gRPC comes before
// what comes out of it, and each lock and unlock of Abseil's mutexes, which gRPC uses throughout, is taken to hand everything before it on to
// everything after it. Races of threads that have not called gRPC in between are found.
//
// Preloaded by tests/tsan/run. Each function stands before that of the same name in gRPC or Abseil (there it is a mangled one), and calls it.
#include <dlfcn.h>

#include <initializer_list>

#include <grpc/grpc.h>
#include <grpc/support/sync.h>

extern "C" {
__attribute__((weak)) void __tsan_acquire(void* address);  // absent in processes without the sanitizer
__attribute__((weak)) void __tsan_release(void* address);
}

namespace {

char handover;  // stands for all that is handed on, by its address

void Order() {
  if (__tsan_acquire == nullptr) return;
  __tsan_acquire(&handover);
  __tsan_release(&handover);
}

// Python loads gRPC where RTLD_NEXT does not look.
template <class Function>
Function* Next(const char* name) {
  void* found = ::dlsym(RTLD_NEXT, name);
  for (const char* library : {"libabsl_synchronization.so.20220623", "libgrpc.so.29", "libgpr.so.29"}) {
    if (found != nullptr) break;
    if (void* const loaded = ::dlopen(library, RTLD_LAZY | RTLD_NOLOAD)) found = ::dlsym(loaded, name);
  }
  return reinterpret_cast<Function*>(found);
}

struct Moment {  // absl::Duration and absl::Time
  long seconds;
  unsigned quarters_of_nanoseconds;
};

}  // namespace

extern "C" {

void _ZN4absl7debian35Mutex4LockEv(void* mutex) {
  static auto* const next = Next<void(void*)>(__func__);
  next(mutex);
  Order();
}

void _ZN4absl7debian35Mutex6UnlockEv(void* mutex) {
  static auto* const next = Next<void(void*)>(__func__);
  Order();
  next(mutex);
}

bool _ZN4absl7debian35Mutex7TryLockEv(void* mutex) {
  static auto* const next = Next<bool(void*)>(__func__);
  const bool locked = next(mutex);
  Order();
  return locked;
}

void _ZN4absl7debian37CondVar4WaitEPNS0_5MutexE(void* condition, void* mutex) {
  static auto* const next = Next<void(void*, void*)>(__func__);
  Order();
  next(condition, mutex);
  Order();
}

bool _ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE(void* condition, void* mutex, Moment timeout) {
  static auto* const next = Next<bool(void*, void*, Moment)>(__func__);
  Order();
  const bool expired = next(condition, mutex, timeout);
  Order();
  return expired;
}

bool _ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE(void* condition, void* mutex, Moment deadline) {
  static auto* const next = Next<bool(void*, void*, Moment)>(__func__);
  Order();
  const bool expired = next(condition, mutex, deadline);
  Order();
  return expired;
}

grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t count, void* tag, void* reserved) {
  static auto* const next = Next<decltype(grpc_call_start_batch)>(__func__);
  Order();
  return next(call, ops, count, tag, reserved);
}

grpc_call_error grpc_server_request_call(grpc_server* server, grpc_call** call, grpc_call_details* details, grpc_metadata_array* metadata,
                                         grpc_completion_queue* bound, grpc_completion_queue* told, void* tag) {
  static auto* const next = Next<decltype(grpc_server_request_call)>(__func__);
  Order();
  return next(server, call, details, metadata, bound, told, tag);
}

grpc_call_error grpc_server_request_registered_call(grpc_server* server, void* method, grpc_call** call, gpr_timespec* deadline,
                                                    grpc_metadata_array* metadata, grpc_byte_buffer** payload, grpc_completion_queue* bound,
                                                    grpc_completion_queue* told, void* tag) {
  static auto* const next = Next<decltype(grpc_server_request_registered_call)>(__func__);
  Order();
  return next(server, method, call, deadline, metadata, payload, bound, told, tag);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline, void* reserved) {
  static auto* const next = Next<decltype(grpc_completion_queue_next)>(__func__);
  Order();
  const grpc_event event = next(queue, deadline, reserved);
  Order();
  return event;
}

// Whoever gives the last reference up comes after all others who gave theirs up.
int gpr_unref(gpr_refcount* count) {
  static auto* const next = Next<decltype(gpr_unref)>(__func__);
  if (__tsan_release != nullptr) __tsan_release(count);
  const int last = next(count);
  if (last != 0 && __tsan_acquire != nullptr) __tsan_acquire(count);
  return last;
}

}  // extern "C"
