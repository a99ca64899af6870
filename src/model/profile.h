#pragma once
// Where the time of forward passes goes, by family of kernels. A pass marks what it does with a Timed of the family for as long as a
// block lasts; inside it another family may take over, and the time is that family's alone. So the times of all families add up to the
// time that was profiled, and nothing is counted twice. Costs one test of a pointer a mark while nobody profiles.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace calandra {

enum class Family : std::uint8_t {
  Other,          // embedding, norms, residuals: whatever is not marked
  KdaProducts,    // projections of KDA layers
  KdaRecurrence,  // convolutions, gates, recurrence, gated norm
  MlaProducts,    // projections of MLA layers, absorbed ones too
  MlaAttention,   // scores, softmax, weighted latents
  Router,
  Experts,  // routed and shared: they are multiplied together
  DenseMlp,
  Head,
};

inline constexpr std::array<std::string_view, 9> kFamilyNames = {
    "other", "kda_products", "kda_recurrence", "mla_products", "mla_attention", "router", "experts", "dense_mlp", "head"};

class Profile {
 public:
  double seconds(Family family) const { return std::chrono::duration<double>(times_[static_cast<std::size_t>(family)]).count(); }
  /// Of all families: the time for which it was in force.
  double total_seconds() const {
    double sum = 0;
    for (const Clock::duration time : times_) sum += std::chrono::duration<double>(time).count();
    return sum;
  }
  Profile& operator+=(const Profile& other) {
    for (std::size_t i = 0; i < times_.size(); ++i) times_[i] += other.times_[i];
    return *this;
  }

 private:
  friend class Profiling;
  friend class Timed;
  using Clock = std::chrono::steady_clock;

  /// Gives the time since the last change to the family in force.
  Family change_to(Family family) {
    const Clock::time_point now = Clock::now();
    times_[static_cast<std::size_t>(family_)] += now - since_;
    since_ = now;
    return std::exchange(family_, family);
  }

  std::array<Clock::duration, kFamilyNames.size()> times_{};
  Family family_ = Family::Other;
  Clock::time_point since_;
  static inline thread_local Profile* current = nullptr;
};

/// Puts a profile in force, for passes that this thread runs: their helpers' time is that of the thread that waits for them.
class Profiling {
 public:
  explicit Profiling(Profile& profile) : before_(std::exchange(Profile::current, &profile)) {
    profile.since_ = Profile::Clock::now();
  }
  ~Profiling() {
    Profile::current->change_to(Family::Other);
    Profile::current = before_;
  }
  Profiling(const Profiling&) = delete;
  Profiling& operator=(const Profiling&) = delete;

 private:
  Profile* before_;
};

/// Marks what the rest of a block does.
class Timed {
 public:
  explicit Timed(Family family) : profile_(Profile::current) {
    if (profile_ != nullptr) before_ = profile_->change_to(family);
  }
  ~Timed() {
    if (profile_ != nullptr) profile_->change_to(before_);
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  Profile* profile_;
  Family before_ = Family::Other;
};

}  // namespace calandra
