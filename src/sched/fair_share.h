// Weighted fairness between tenants: start-time fair queueing over virtual token counters.
//
// Every tenant has a counter of the tokens served to it, divided by its weight; who has the
// smallest is served next. A tenant that was idle starts at the virtual time (the smallest counter
// of the active tenants), so idling saves up nothing; and it keeps a counter that is ahead of the
// virtual time, so idling repays nothing either.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "sched/step_plan.h"

namespace tidemill {

class FairShare {
 public:
  struct Tenant {
    double served = 0;  // virtual tokens: tokens / weight
    double weight = 1;
    int64_t requests = 0;  // known to the scheduler; 0: idle
    int64_t waiting = 0;
  };

  // > 0, finite; others are ignored. 1 unless set. Counts from the next charge on.
  void set_weight(TenantId id, double weight);

  // A request of the tenant arrives / has ended. The reference is valid until its leave().
  Tenant& enter(TenantId id);
  void leave(TenantId id);
  static void charge(Tenant& tenant, int64_t tokens) {
    tenant.served += static_cast<double>(tokens) / tenant.weight;
  }

  const Tenant* find(TenantId id) const;
  double virtual_time() const;
  int64_t size() const { return static_cast<int64_t>(tenants_.size()); }

 private:
  void forget_idle();

  std::unordered_map<TenantId, Tenant> tenants_;
  std::unordered_map<TenantId, double> weights_;
  double floor_ = 0;  // the virtual time never falls
};

}  // namespace tidemill
