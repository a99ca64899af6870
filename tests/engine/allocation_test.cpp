// A decoding step asks the system for no memory: every way to do so is counted. Not under sanitizers, which have their own.

#include "engine/sampler.h"
#include "engine/session.h"
#include "support/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CALANDRA_COUNTS_ALLOCATIONS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CALANDRA_COUNTS_ALLOCATIONS 0
#endif
#endif
#ifndef CALANDRA_COUNTS_ALLOCATIONS
#define CALANDRA_COUNTS_ALLOCATIONS 1
#endif

#if CALANDRA_COUNTS_ALLOCATIONS

namespace {

std::atomic<int> num_allocations{0};

void* allocate(std::size_t alignment, std::size_t size) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = nullptr;
  return ::posix_memalign(&memory, alignment, size) == 0 ? memory : nullptr;
}

void* allocate_or_throw(std::size_t alignment, std::size_t size) {
  if (void* memory = allocate(alignment, size)) return memory;
  throw std::bad_alloc();
}

}  // namespace

// Of the whole test program: operator new, and what aligned buffers are made of.
void* operator new(std::size_t size) { return allocate_or_throw(alignof(std::max_align_t), size); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate_or_throw(static_cast<std::size_t>(alignment), size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/, std::align_val_t /*alignment*/) noexcept { std::free(memory); }
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t size) { return allocate(alignment, size); }

namespace calandra {
namespace {

/// Allocations of `steps` greedy steps behind a prompt.
int allocations_of(Session& session, std::vector<std::int32_t>& history, int steps) {
  const int before = num_allocations.load();
  for (int step = 0; step < steps; ++step) {
    const std::span<const float> logits = session.logits(history);
    history.push_back(sample(logits, {.temperature = 0}, {.position = std::ssize(history)}));
  }
  return num_allocations.load() - before;
}

TEST(Allocation, ADecodingStepAllocatesNothing) {
  for (const char* name : {"a_tiny_bf16", "c_flash31_fp8", "d_mix_fp4", "f_odd_f32"}) {
    for (const int threads : {1, 2}) {
      ModelOptions options;
      options.threads = threads;
      options.with_mtp = true;
      Model model(golden_path(name).string(), options);
      Session session(model);
      std::vector<std::int32_t> history(10, 7);
      history.reserve(1000);
      // Pages of the latent cache are taken, and listed, when a token is the first on one: steps up to the next are counted.
      const int warm_up = allocations_of(session, history, 5);
      EXPECT_GT(warm_up, 0) << "nothing was counted";
      const std::int64_t page = model.layout().page_tokens;
      ASSERT_GT(page, 4);
      // A thread takes its own buffers when it first gets work of a kind, which may be late: one page without any is enough.
      int least = warm_up;
      for (int round = 0; round < 5 && least > 0; ++round) {
        while (std::ssize(history) % page != 2) allocations_of(session, history, 1);
        least = std::min(least, allocations_of(session, history, static_cast<int>(page) - 2));
      }
      EXPECT_EQ(least, 0) << name << ", " << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace calandra

#endif
