#pragma once
// The promise as a test: one script of requests, asked alone and along every path; what comes is compared bit for bit, by the
// logits and not only by the tokens.
//
// A test that cannot fail shows nothing. So each round has a control: the same comparison of an answer in whose memory one bit was
// turned on purpose. Only a run that has seen that difference, and no other, has shown that the promise holds.

#include "verify/findings.h"
#include "verify/path.h"
#include "verify/script.h"

#include <cstdint>
#include <string_view>
#include <vector>

namespace calandra {

struct VerifyReport {
  std::int64_t requests = 0, rows = 0;  // computed alone
  std::int64_t width = 0;               // logits of a row
  std::vector<PathFindings> paths;
  /// Every bit turned, whether it was seen.
  RowTally control;
  std::int64_t bits_turned = 0, bits_seen = 0;
  bool is_complete = false;

  bool control_holds() const { return bits_turned > 0 && bits_seen == bits_turned; }
  bool holds() const;
};

class VerifyListener {
 public:
  virtual ~VerifyListener() = default;
  /// Called often; false ends it, and what was found until then is the report.
  virtual bool doing(std::string_view /*what*/, std::int64_t /*done*/, std::int64_t /*total*/) { return true; }
  /// Nothing more comes to this path.
  virtual void finished(const PathFindings& /*path*/) {}
};

/// Computes on `model`, alone. Throws Error for options that check() refuses.
VerifyReport verify(Model& model, const VerifyOptions& options, VerifyListener& listener,
                    const std::vector<VerifyPath>& paths = verify_paths());

/// Answers `alone` again with bit `bit` of the largest number of one head's KDA state turned before the last token of its prompt, and compares
/// the rows with what they are. The prompt has at least two tokens.
RowTally rows_after_a_turned_bit(Model& model, const VerifyCase& alone, Draws& draws, int bit);

/// Which bit the control turns: the first behind the point of a float, half of a number at most.
inline constexpr int kControlBit = 22;

}  // namespace calandra
