#include "cli/inspect_report.h"

#include <gmock/gmock.h>

namespace tidemill::cli {
namespace {

TEST(KindOfTensor, FollowsTheNames) {
  EXPECT_EQ(kind_of_tensor("embed.weight"), "embedding");
  EXPECT_EQ(kind_of_tensor("head.weight"), "output head");
  EXPECT_EQ(kind_of_tensor("norm.weight"), "norms");
  EXPECT_EQ(kind_of_tensor("layers.3.attn.q_norm.weight"), "norms");
  EXPECT_EQ(kind_of_tensor("layers.3.attn.wq_a.scale"), "attention");
  EXPECT_EQ(kind_of_tensor("layers.2.attn.compressor.norm.weight"), "compressor, indexer");
  EXPECT_EQ(kind_of_tensor("layers.2.attn.indexer.wk.weight"), "compressor, indexer");
  EXPECT_EQ(kind_of_tensor("layers.3.ffn.experts.7.w1.scale"), "routed experts");
  EXPECT_EQ(kind_of_tensor("layers.3.ffn.shared_experts.w1.weight"), "shared experts");
  EXPECT_EQ(kind_of_tensor("layers.3.ffn.gate.bias"), "router");
  EXPECT_EQ(kind_of_tensor("layers.1.engram.embed.weight"), "Engram tables");
  EXPECT_EQ(kind_of_tensor("layers.1.engram.q_weight"), "Engram mixing");
  EXPECT_EQ(kind_of_tensor("layers.1.hc_attn_fn"), "hyper-connections");
  EXPECT_EQ(kind_of_tensor("mtp.0.ffn.experts.1.w2.weight"), "drafter");
  EXPECT_EQ(kind_of_tensor("something"), "other");
}

TEST(TokensThatFit, CountsWeightsAndSequencesFirst) {
  InspectReport report;
  report.total.bytes = 1000;
  report.state_sequence_bytes = 100;
  report.state_token_bytes = 10;
  EXPECT_EQ(tokens_that_fit(report, 1299, 2), 9);
  EXPECT_EQ(tokens_that_fit(report, 1100, 1), 0);
  EXPECT_EQ(tokens_that_fit(report, 1099, 1), -1);
}

}  // namespace
}  // namespace tidemill::cli
