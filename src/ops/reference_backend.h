// The reference backend: calls the reference version of every operation.
#pragma once

#include "ops/reference.h"

namespace tidemill {

class ReferenceBackend : public Backend {
 public:
  ReferenceBackend(ThreadTeam& team, Rounding rounding,
                   ProductOrder order = ProductOrder::kPairLanes)
      : context_{team, rounding, order} {}

  std::string_view name() const override {
    return context_.order == ProductOrder::kTiles ? "reference-tiles" : "reference";
  }
  Rounding rounding() const override { return context_.rounding; }
  ProductOrder product_order() const override { return context_.order; }
  Result<Buffer> allocate(int64_t bytes) override;
  bool host_memory() const override { return true; }
  void copy(void* to, const void* from, int64_t bytes) override;
  int64_t free_memory() const override;
  Status stage(std::span<const StagedArray> arrays) override;
  Status finish() override { return {}; }
  Status check(const Config&) const override { return {}; }

  void gather(const GatherArgs& a) override { reference::gather(context_, a); }
  void linear(const LinearArgs& a) override { reference::linear(context_, a); }
  void rms_norm(const RmsNormArgs& a) override { reference::rms_norm(context_, a); }
  void rope_table(const RopeTableArgs& a) override { reference::rope_table(context_, a); }
  void rope(const RopeArgs& a) override { reference::rope(context_, a); }
  void hc_mix(const HcMixArgs& a) override { reference::hc_mix(context_, a); }
  void collapse_norm(const CollapseNormArgs& a) override { reference::collapse_norm(context_, a); }
  void expand(const ExpandArgs& a) override { reference::expand(context_, a); }
  void stream_mean(const StreamMeanArgs& a) override { reference::stream_mean(context_, a); }
  void store_rows(const StoreRowsArgs& a) override { reference::store_rows(context_, a); }
  void scatter_rows(const ScatterRowsArgs& a) override { reference::scatter_rows(context_, a); }
  void round_rows(const RoundRowsArgs& a) override { reference::round_rows(context_, a); }
  void select_rows(const SelectRowsArgs& a) override { reference::select_rows(context_, a); }
  void repeat_row(const RepeatRowArgs& a) override { reference::repeat_row(context_, a); }
  void compress_pairs(const CompressPairsArgs& a) override {
    reference::compress_pairs(context_, a);
  }
  void index_select(const IndexSelectArgs& a) override { reference::index_select(context_, a); }
  void attend(const AttendArgs& a) override { reference::attend(context_, a); }
  void route(const RouteArgs& a) override { reference::route(context_, a); }
  void experts(const ExpertsArgs& a) override { reference::experts(context_, a); }
  void engram_gate(const EngramGateArgs& a) override { reference::engram_gate(context_, a); }
  void draw(const DrawArgs& a) override { reference::draw(context_, a); }

 protected:
  reference::Context context_;
};

}  // namespace tidemill
