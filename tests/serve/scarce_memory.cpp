#include "serve/scarce_memory.h"

#include <atomic>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CALANDRA_OWNS_NEW 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CALANDRA_OWNS_NEW 0
#endif
#endif
#ifndef CALANDRA_OWNS_NEW
#define CALANDRA_OWNS_NEW 1
#endif

namespace {

std::atomic<bool> is_scarce = false;
thread_local bool is_spared = false;

}  // namespace

#if CALANDRA_OWNS_NEW
// Of the whole test program.
void* operator new(std::size_t size) {
  void* memory = is_scarce && !is_spared ? nullptr : std::malloc(size > 0 ? size : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/) noexcept { std::free(memory); }
#endif

namespace calandra {

ScarceMemory::ScarceMemory() {
  is_spared = true;
  is_scarce = true;
}

ScarceMemory::~ScarceMemory() {
  is_scarce = false;
  is_spared = false;
}

bool ScarceMemory::is_possible() { return CALANDRA_OWNS_NEW != 0; }

}  // namespace calandra
