// SPDX-License-Identifier: Apache-2.0
#pragma once

// Clang's thread-safety attributes (https://clang.llvm.org/docs/ThreadSafetyAnalysis.html); nothing elsewhere.
#if defined(__clang__)
#define KILN_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define KILN_THREAD_ATTRIBUTE(x)
#endif

#define KILN_CAPABILITY(name) KILN_THREAD_ATTRIBUTE(capability(name))
#define KILN_SCOPED_CAPABILITY KILN_THREAD_ATTRIBUTE(scoped_lockable)
#define KILN_GUARDED_BY(mutex) KILN_THREAD_ATTRIBUTE(guarded_by(mutex))
#define KILN_ACQUIRED_BEFORE(...) KILN_THREAD_ATTRIBUTE(acquired_before(__VA_ARGS__))
#define KILN_REQUIRES(...) KILN_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define KILN_EXCLUDES(...) KILN_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define KILN_ACQUIRE(...) KILN_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define KILN_RELEASE(...) KILN_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define KILN_ASSERT_HELD(...) KILN_THREAD_ATTRIBUTE(assert_capability(__VA_ARGS__))
#define KILN_NO_THREAD_SAFETY_ANALYSIS KILN_THREAD_ATTRIBUTE(no_thread_safety_analysis)
