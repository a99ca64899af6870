#pragma once
// What the random numbers of one seed are for (loadtest/draws.h): a purpose of its own for each, so that a path more changes none of the
// others.

#include <cstdint>

namespace calandra {

enum VerifyDraws : std::uint64_t { kScriptDraws = 2000, kPathDraws, kControlDraws, kServerDraws };

}  // namespace calandra
