#pragma once
// What happens when memory has run out.

namespace calandra {

/// While it lives operator new fails in every thread but that which made it.
class ScarceMemory {
 public:
  ScarceMemory();
  ~ScarceMemory();
  ScarceMemory(const ScarceMemory&) = delete;
  ScarceMemory& operator=(const ScarceMemory&) = delete;

  /// Not under sanitizers, which have an operator new of their own.
  static bool is_possible();
};

}  // namespace calandra
