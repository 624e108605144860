// Meter of what is allocated, for tests under the address sanitizer, which calls the hooks.
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "../include/regard_engine.h"

// Of sanitizer/allocator_interface.h, which not every compiler's package has.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*, size_t),
                                                         void (*free_hook)(const volatile void*));
extern "C" size_t __sanitizer_get_allocated_size(const volatile void* data);

namespace {

std::atomic<int64_t> live_bytes{0};
std::atomic<int64_t> peak_bytes{0};

void count_allocation(const volatile void*, size_t size) {
  const int64_t live = live_bytes.fetch_add(static_cast<int64_t>(size)) + static_cast<int64_t>(size);
  int64_t peak = peak_bytes.load();
  while (live > peak && !peak_bytes.compare_exchange_weak(peak, live)) {
  }
}

void count_release(const volatile void* data) {
  live_bytes.fetch_sub(static_cast<int64_t>(__sanitizer_get_allocated_size(data)));
}

}  // namespace

// Largest growth of the requested bytes since the last call; installs the hooks at the first.
extern "C" REGARD_API int64_t regard_checked_peak_bytes(void) {
  static const int installed = __sanitizer_install_malloc_and_free_hooks(count_allocation, count_release);
  const int64_t peak = installed ? peak_bytes.load() : -1;
  live_bytes.store(0);
  peak_bytes.store(0);
  return peak;
}
