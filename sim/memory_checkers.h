// What AddressSanitizer, ThreadSanitizer and valgrind must be told about stacks and switches between them. Each
// function does nothing where its tool is absent, so that callers need no conditions.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif
#if __has_include(<valgrind/valgrind.h>)
#include <valgrind/valgrind.h>
#define SHARDPROOF_HAS_VALGRIND 1
#endif

namespace shardproof::sim {

#if defined(__SANITIZE_ADDRESS__)
inline void start_switch(void** fake_stack, const void* low, std::size_t bytes) {
  __sanitizer_start_switch_fiber(fake_stack, low, bytes);
}
inline void finish_switch(void* fake_stack, const void** low, std::size_t* bytes) {
  __sanitizer_finish_switch_fiber(fake_stack, low, bytes);
}
inline void unpoison_memory(const void* low, std::size_t bytes) { ASAN_UNPOISON_MEMORY_REGION(low, bytes); }
#else
inline void start_switch(void**, const void*, std::size_t) {}
inline void finish_switch(void*, const void**, std::size_t*) {}
inline void unpoison_memory(const void*, std::size_t) {}
#endif

#if defined(__SANITIZE_THREAD__)
inline void* create_checked_fiber() { return __tsan_create_fiber(0); }
inline void destroy_checked_fiber(void* fiber) { __tsan_destroy_fiber(fiber); }
inline void* current_checked_fiber() { return __tsan_get_current_fiber(); }
inline void switch_checked_fiber(void* fiber) { __tsan_switch_to_fiber(fiber, 0); }
#else
inline void* create_checked_fiber() { return nullptr; }
inline void destroy_checked_fiber(void*) {}
inline void* current_checked_fiber() { return nullptr; }
inline void switch_checked_fiber(void*) {}
#endif

#if defined(SHARDPROOF_HAS_VALGRIND)
inline unsigned register_stack(const void* low, const void* top) { return VALGRIND_STACK_REGISTER(low, top); }
inline void deregister_stack(unsigned id) { VALGRIND_STACK_DEREGISTER(id); }
#else
inline unsigned register_stack(const void*, const void*) { return 0; }
inline void deregister_stack(unsigned) {}
#endif

}  // namespace shardproof::sim
