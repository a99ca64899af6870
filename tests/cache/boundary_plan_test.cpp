// Where boundaries are taken, by hand.

#include "cache/boundary_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace calandra {
namespace {

using testing::ElementsAre;
using enum BoundaryKind;

constexpr BoundarySpacing kSpacing = {.spaced = 1000, .least = 50};

TEST(BoundaryPlan, EndsSpacesAndForks) {
  EXPECT_THAT(plan_boundaries({.tokens = 2300, .common = 1700}, kSpacing),
              ElementsAre(PlannedBoundary{1000, Spaced}, PlannedBoundary{1700, Fork}, PlannedBoundary{2000, Spaced},
                          PlannedBoundary{2299, End}, PlannedBoundary{2300, End}));
}

TEST(BoundaryPlan, NothingUpToWhereItGoesOn) {
  EXPECT_THAT(plan_boundaries({.tokens = 2300, .resumed_at = 1700, .common = 1700}, kSpacing),
              ElementsAre(PlannedBoundary{2000, Spaced}, PlannedBoundary{2299, End}, PlannedBoundary{2300, End}));
  EXPECT_THAT(plan_boundaries({.tokens = 100, .resumed_at = 99, .common = 100}, kSpacing),
              ElementsAre(PlannedBoundary{100, End}));
  EXPECT_THAT(plan_boundaries({.tokens = 1}, kSpacing), ElementsAre(PlannedBoundary{1, End}));
}

TEST(BoundaryPlan, OfTwoThatAreCloseTheOneWithMoreReasonOrTheLater) {
  const std::array<std::int64_t, 5> messages{20, 200, 230, 400, 990};
  EXPECT_THAT(plan_boundaries({.tokens = 1200, .messages = messages}, kSpacing),
              ElementsAre(PlannedBoundary{230, Message}, PlannedBoundary{400, Message}, PlannedBoundary{990, Message},
                          PlannedBoundary{1199, End}, PlannedBoundary{1200, End}));
}

TEST(BoundaryPlan, WhatTheClientHasMarkedStandsHoweverCloseItIs) {
  const std::array<std::int64_t, 2> marks{10, 195};
  EXPECT_THAT(
      plan_boundaries({.tokens = 200, .asked = marks}, kSpacing),
      ElementsAre(PlannedBoundary{10, Asked}, PlannedBoundary{195, Asked}, PlannedBoundary{199, End}, PlannedBoundary{200, End}));
}

}  // namespace
}  // namespace calandra
