#pragma once
// A memory layout small enough to watch: three layers, blocks of kilobytes.

#include "memory/layout.h"

namespace calandra {

/// Two KDA and one MLA layer, 2 heads of 32: blocks of 8 KiB, pages of 64 rows of 16 values.
inline MemoryLayout small_layout(bool mtp) {
  Config config;
  config.hidden = 8;
  config.layers = 3;
  config.heads = 2;
  config.head_dim = 32;
  config.kv_rank = 12;
  config.rope_dim = 4;
  config.mla_layers = {false, false, true};
  return memory_layout(config, CacheType::BF16, mtp);
}

}  // namespace calandra
