#include "sched/fair_share.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace tidemill {
namespace {

// Serves `steps` times 10 tokens to the active tenant with the smallest counter.
std::vector<int64_t> serve(std::vector<FairShare::Tenant*> tenants, int steps) {
  std::vector<int64_t> served(tenants.size());
  for (int i = 0; i < steps; ++i) {
    size_t best = 0;
    for (size_t t = 1; t < tenants.size(); ++t) {
      if (tenants[t]->served < tenants[best]->served) best = t;
    }
    FairShare::charge(*tenants[best], 10);
    served[best] += 10;
  }
  return served;
}

TEST(FairShare, ServesByWeight) {
  FairShare share;
  share.set_weight(2, 3.0);
  const auto served = serve({&share.enter(1), &share.enter(2)}, 400);
  EXPECT_NEAR(static_cast<double>(served[1]) / static_cast<double>(served[0]), 3.0, 0.1);
}

TEST(FairShare, AWeightMayChange) {
  FairShare share;
  FairShare::Tenant& a = share.enter(1);
  FairShare::Tenant& b = share.enter(2);
  serve({&a, &b}, 100);
  share.set_weight(1, 4.0);
  const auto served = serve({&a, &b}, 500);
  EXPECT_NEAR(static_cast<double>(served[0]) / static_cast<double>(served[1]), 4.0, 0.1);
  for (const double bad : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity()}) {
    share.set_weight(1, bad);
    EXPECT_EQ(a.weight, 4.0);
  }
}

TEST(FairShare, IdlingSavesNothingUp) {
  FairShare share;
  FairShare::Tenant& a = share.enter(1);
  share.enter(2);
  share.leave(2);
  FairShare::charge(a, 1000);
  FairShare::Tenant& b = share.enter(2);
  EXPECT_EQ(b.served, 1000);
  const auto served = serve({&a, &b}, 100);
  EXPECT_LE(std::abs(served[0] - served[1]), 10);
}

TEST(FairShare, IdlingRepaysNothing) {
  FairShare share;
  FairShare::Tenant& a = share.enter(1);
  FairShare::Tenant& b = share.enter(2);
  FairShare::charge(a, 1000);
  FairShare::charge(b, 100);
  share.leave(1);
  EXPECT_EQ(share.enter(1).served, 1000);
}

TEST(FairShare, AllStartEqualAfterAPause) {
  FairShare share;
  FairShare::charge(share.enter(1), 1000);
  share.leave(1);
  EXPECT_EQ(share.enter(2).served, 1000);
  EXPECT_EQ(share.enter(1).served, 1000);
}

TEST(FairShare, ForgetsTenants) {
  FairShare share;
  for (TenantId t = 0; t < 1000; ++t) {
    FairShare::charge(share.enter(t), 10);
    share.leave(t);
  }
  EXPECT_LE(share.size(), 1);
}

}  // namespace
}  // namespace tidemill
