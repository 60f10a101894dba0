#include "sched/fair_share.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tidemill {

void FairShare::set_weight(TenantId id, double weight) {
  if (!std::isfinite(weight) || weight <= 0) return;
  weights_[id] = weight;
  if (const auto found = tenants_.find(id); found != tenants_.end()) found->second.weight = weight;
}

FairShare::Tenant& FairShare::enter(TenantId id) {
  floor_ = virtual_time();
  const auto [found, added] = tenants_.try_emplace(id);
  Tenant& tenant = found->second;
  if (added) {
    if (const auto weight = weights_.find(id); weight != weights_.end()) {
      tenant.weight = weight->second;
    }
  }
  if (tenant.requests++ == 0) tenant.served = std::max(tenant.served, floor_);
  return tenant;
}

void FairShare::leave(TenantId id) {
  const auto found = tenants_.find(id);
  if (found == tenants_.end() || --found->second.requests > 0) return;
  forget_idle();
}

const FairShare::Tenant* FairShare::find(TenantId id) const {
  const auto found = tenants_.find(id);
  return found == tenants_.end() ? nullptr : &found->second;
}

double FairShare::virtual_time() const {
  double lowest = std::numeric_limits<double>::infinity();
  double highest = floor_;
  for (const auto& [id, tenant] : tenants_) {
    highest = std::max(highest, tenant.served);
    if (tenant.requests > 0) lowest = std::min(lowest, tenant.served);
  }
  // With nobody left the busy period is over, and all start equal.
  return std::isfinite(lowest) ? std::max(floor_, lowest) : highest;
}

// An idle tenant at or below the virtual time would start there anyway.
void FairShare::forget_idle() {
  floor_ = virtual_time();
  std::erase_if(tenants_, [this](const auto& entry) {
    return entry.second.requests == 0 && entry.second.served <= floor_;
  });
}

}  // namespace tidemill
