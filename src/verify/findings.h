#pragma once
// What the comparison of one path with the answers alone has shown.

#include "verify/script.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace calandra {

/// A row of logits that is not what it is alone.
struct RowDifference {
  std::string request;        // VerifyCase::name
  std::int64_t position = 0;  // tokens before it
  std::int32_t token = 0;     // whose logit is furthest from what it is alone
  float expected = 0, found = 0;
};

/// Rows beside those of the same answers alone. Two are the same if all their bits are: 0 and -0 differ.
class RowTally {
 public:
  /// `logits` are what token `i` of the answer was drawn from. Throws nothing.
  void compare(const VerifyCase& alone, std::int64_t i, std::span<const float> logits);
  void add(const RowTally& other);

  std::int64_t rows() const { return rows_; }
  std::int64_t different() const { return different_; }
  const std::optional<RowDifference>& first() const { return first_; }
  /// Of two logits of one token; infinite where one is no number or the lengths differ.
  float largest() const { return largest_; }

 private:
  std::int64_t rows_ = 0, different_ = 0;
  float largest_ = 0;
  std::optional<RowDifference> first_;
};

/// Of one path, over all rounds.
struct PathFindings {
  std::string_view name, about;
  std::int64_t requests = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;  // of these, not computed
  RowTally rows;
  std::int64_t other_tokens = 0;         // answers that part from what they are alone. Rows after that are not compared
  std::optional<std::string> failure;    // the first request that was not answered
  std::optional<std::string> not_taken;  // what was to happen on the path and did not

  bool differs() const { return rows.different() > 0 || other_tokens > 0; }
  bool holds() const { return rows.rows() > 0 && !differs() && !failure && !not_taken; }
  /// The same path in another round.
  void add(const PathFindings& other);
};

}  // namespace calandra
