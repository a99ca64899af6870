#pragma once
// What this machine can do at the moment of asking: bytes it reads from memory and operations it does in a second, with the instructions
// that the kernels use. Measured by threads of their own, each pinned to a core; best of several, since whatever else runs can
// only slow a measurement down. Not a constant of the machine: on a shared one ask again beside whatever is compared with it.

#include "kernels/kernels.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace calandra {

struct MachineOptions {
  int threads = 1;
  Isa isa = Isa::Scalar;
  std::int64_t read_bytes = std::int64_t{2} << 30;  // of all threads together; at most half of the memory that is free
  int tries = 8;
};

struct MachineLimits {
  int threads = 0;
  bool pinned = false;  // every thread could have a core of its own
  int tries = 0;
  Isa isa = Isa::Scalar;

  std::int64_t read_bytes = 0;   // that a try read
  bool short_of_memory = false;  // fewer than were asked for
  double bytes_per_second = 0;

  std::string_view arithmetic;  // "bf16 dot products", "fp32 multiply-adds"
  double operations_per_second = 0;
};

/// Takes about a second. Throws Error if there is no memory to read or no thread to do it.
MachineLimits measure_machine(const MachineOptions& options);

/// What a try reads where `wanted` bytes are asked for: whole steps for every thread, at most half of what is available. Throws Error if
/// that is too little to say something of the memory.
std::int64_t bytes_to_read(std::int64_t wanted, std::int64_t available, int threads);

/// Sum of all words, read in steps of 64 bytes: what measure_machine() times. Throws Error unless they are a multiple of 64 words.
std::uint64_t sum_of_words(Isa isa, std::span<const std::uint64_t> words);

}  // namespace calandra
