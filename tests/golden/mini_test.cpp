// The bundled model against an independent program. Single bf16 ulps flip FP8 and FP4 codes, then
// experts and entries: two careful programs differ by what the bounds below allow, which is about
// twice the difference between float32 and float64 sums in one of them.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <set>

#include "base/formats.h"
#include "fixture.h"
#include "torch_order.h"

namespace tidemill {
namespace {

constexpr int64_t kVocabulary = 8192;

struct Golden {
  std::string name;
  Npz npz;
  std::vector<int32_t> ids;
  explicit Golden(const std::string& prompt)
      : name(prompt), npz(vectors("mini/" + prompt + ".npz")), ids(npz.values<int32_t>("ids")) {}
};

const std::vector<std::string> kPrompts = {"p1", "p5", "p129", "p1100", "chat_recall"};

TEST(Mini, OneTokenAgreesExactly) {
  const Golden g("p1");
  Machine machine(mini_model(), Machine::reference());
  Sequence sequence = machine.sequence();
  const auto d =
      compare(machine.run(sequence, g.ids), g.npz.values<float>("logits"), {0}, kVocabulary);
  EXPECT_LT(d.max, 1e-3);
}

TEST(Mini, WithoutRoundingsOnlyTheOrderOfSumsDiffers) {
  const Npz golden(vectors("mini/fp32-no-rounding.npz"));
  for (const std::string name : {"p5", "p129", "p300"}) {
    Machine machine(mini_model(),
                    std::make_unique<TorchOrderBackend>(Machine::team(), *Rounding::parse("none")));
    Sequence sequence = machine.sequence();
    const auto d = compare(machine.run(sequence, golden.values<int32_t>(name + ".ids")),
                           golden.values<float>(name + ".logits"),
                           golden.values<int64_t>(name + ".pos"), kVocabulary);
    EXPECT_LT(d.max, 1e-3) << name;
  }
}

// Share of the wanted entries that were selected, over all rows of one index layer.
double overlap(const Observation& o, const std::vector<int64_t>& positions,
               const std::vector<int32_t>& want) {
  int64_t hits = 0;
  int64_t total = 0;
  const size_t width = want.size() / positions.size();
  for (size_t i = 0; i < positions.size(); ++i) {
    const int32_t* row = o.ids + positions[i] * o.ids_width;
    const std::set<int32_t> selected(row, row + o.ids_width);
    for (size_t k = 0; k < width && want[i * width + k] >= 0; ++k) {
      ++total;
      hits += selected.contains(want[i * width + k]);
    }
  }
  return total == 0 ? 1.0 : static_cast<double>(hits) / static_cast<double>(total);
}

TEST(Mini, ReleasedLogitsStreamsExpertsAndEntries) {
  for (const std::string& name : kPrompts) {
    const Golden g(name);
    Machine machine(mini_model(), Machine::cpu());
    const auto hidden_pos = g.npz.values<int64_t>("hidden_pos");
    const auto hidden = g.npz.values<uint16_t>("hidden");  // [12, positions, 4, 384]
    const auto experts = g.npz.values<int32_t>("expert_ids");
    const auto margin = g.npz.values<float>("expert_margin");
    int64_t sets = 0, same = 0, clear = 0, clear_same = 0;
    machine.forward().observe([&](const Observation& o) {
      if (o.name == "hidden") {
        double difference = 0, size = 0;
        const size_t width = 4 * 384;
        for (size_t i = 0; i < hidden_pos.size(); ++i) {
          const uint16_t* want =
              hidden.data() + (static_cast<size_t>(o.layer) * hidden_pos.size() + i) * width;
          for (size_t k = 0; k < width; ++k) {
            const double w = bf16_to_float(want[k]);
            const double e = o.values.f32(hidden_pos[i])[k] - w;
            difference += e * e;
            size += w * w;
          }
        }
        const double relative = std::sqrt(difference / size);
        EXPECT_LT(relative, o.layer <= 1 ? 0.03 : 0.15) << name << " layer " << o.layer;
      } else if (o.name == "expert_ids") {
        for (int64_t t = 0; t < o.rows->count; ++t) {
          const auto at = static_cast<size_t>(o.layer * o.rows->count + t);
          const std::set<int32_t> a(o.ids + t * 4, o.ids + t * 4 + 4);
          const std::set<int32_t> b(experts.begin() + static_cast<int64_t>(at * 4),
                                    experts.begin() + static_cast<int64_t>(at * 4 + 4));
          ++sets;
          same += a == b;
          clear += margin[at] > 0.05f;
          clear_same += margin[at] > 0.05f && a == b;
        }
      } else if (o.name == "selected") {
        const std::string layer = fmt::format("L{}", o.layer);
        if (!g.npz.has(layer + ".sel")) return;
        EXPECT_GE(overlap(o, g.npz.values<int64_t>(layer + ".sel_pos"),
                          g.npz.values<int32_t>(layer + ".sel")),
                  0.88)
            << name << " " << layer;
      }
    });
    Sequence sequence = machine.sequence();
    const auto logits = machine.run(sequence, g.ids);
    const auto d =
        compare(logits, g.npz.values<float>("logits"), g.npz.values<int64_t>("pos"), kVocabulary);
    EXPECT_LT(d.mean, 0.35) << name;
    EXPECT_LT(d.kl, 0.05) << name;
    EXPECT_GE(d.argmax, 0.88) << name;
    EXPECT_TRUE(d.argmax_by_gap) << name;
    EXPECT_GE(static_cast<double>(same), 0.90 * static_cast<double>(sets)) << name;
    EXPECT_GE(static_cast<double>(clear_same), 0.98 * static_cast<double>(clear)) << name;
    RecordProperty(name + "_mean", std::to_string(d.mean));
  }
}

TEST(Mini, EngramRowsAreEqual) {
  for (const std::string& name : kPrompts) {
    const Golden g(name);
    const auto want = g.npz.values<int64_t>("engram_rows");  // [2, T, 12]
    for (size_t t = 0; t < g.ids.size(); ++t) {
      std::vector<int32_t> newest_first;
      for (size_t back = 0; back < 4 && back <= t; ++back) newest_first.push_back(g.ids[t - back]);
      for (size_t table = 0; table < 2; ++table) {
        int64_t rows[12];
        mini_model().engram().rows(static_cast<int64_t>(table), newest_first, rows);
        ASSERT_TRUE(std::equal(rows, rows + 12, want.data() + (table * g.ids.size() + t) * 12))
            << name << " table " << table << " position " << t;
      }
    }
  }
}

TEST(Mini, DecodeAndDraftsTeacherForced) {
  size_t all_drafts = 0, all_steps = 0;
  for (const std::string name : {"p5", "p129", "chat_recall"}) {
    const Golden g(name);
    Machine machine(mini_model(), Machine::cpu());
    const auto greedy = g.npz.values<int32_t>("greedy");
    const auto top = g.npz.values<int32_t>("greedy_top8_ids");
    const auto top_logits = g.npz.values<float>("greedy_top8_logits");
    const auto drafts = g.npz.values<int32_t>("drafts");
    const auto confidence = g.npz.values<float>("conf");
    Sequence sequence = machine.sequence();
    auto row = machine.run(sequence, g.ids, Logits::kLast);
    size_t same = 0, first_draft = 0, any_draft = 0;
    double confidence_difference = 0;
    for (size_t step = 0; step < greedy.size(); ++step) {
      const bool equal = argmax(row) == top[step * 8];
      same += equal;
      if (top_logits[step * 8] - top_logits[step * 8 + 1] > 4) {
        EXPECT_TRUE(equal) << name << step;
      }
      const auto draft = machine.draft(sequence, greedy[step]);
      for (size_t k = 0; k < 5; ++k) {
        any_draft += draft.ids[k] == drafts[step * 5 + k];
        if (k == 0) first_draft += draft.ids[0] == drafts[step * 5];
        confidence_difference += std::fabs(draft.confidence[k] - confidence[step * 5 + k]);
      }
      row = machine.run(sequence, {&greedy[step], 1}, Logits::kLast);
    }
    const auto steps = static_cast<double>(greedy.size());
    EXPECT_GE(static_cast<double>(same), 0.88 * steps) << name;
    EXPECT_GE(static_cast<double>(first_draft), 0.70 * steps) << name;
    // Once one draft differs, those behind it follow another text.
    EXPECT_GE(static_cast<double>(any_draft), 0.70 * 5 * steps) << name;
    EXPECT_LT(confidence_difference, 0.3 * 5 * steps) << name;
    all_drafts += any_draft;
    all_steps += greedy.size();
  }
  EXPECT_GE(static_cast<double>(all_drafts), 0.75 * 5 * static_cast<double>(all_steps));
}

TEST(Mini, BoundedReplay) {
  for (const std::string name : {"p129", "p1100"}) {
    const Golden g(name);
    Machine machine(mini_model(), Machine::cpu());
    Sequence sequence = machine.sequence();
    sequence.decoder_floor = static_cast<int64_t>(g.ids.size()) - 128;
    auto row = machine.run(sequence, g.ids, Logits::kLast);
    const auto d = compare(row, g.npz.values<float>("replay_last_logits"), {0}, kVocabulary);
    EXPECT_LT(d.mean, 0.35) << name;
    EXPECT_LT(d.kl, 0.05) << name;
    const auto greedy = g.npz.values<int32_t>("replay_greedy16");
    size_t same = 0;
    for (const int32_t id : greedy) {
      same += argmax(row) == id;
      row = machine.run(sequence, {&id, 1}, Logits::kLast);
    }
    EXPECT_GE(same, 14u) << name;
  }
}

// One window of the held-out text; the whole text is scored by `tidemill score`.
TEST(Mini, PerplexityOfAWindow) {
  std::ifstream in(vectors("mini/heldout_20k.u16"), std::ios::binary);
  std::vector<uint16_t> all(20480);
  in.read(reinterpret_cast<char*>(all.data()), 40960);
  ASSERT_TRUE(in);
  const std::vector<int32_t> ids(all.begin(), all.begin() + 2048);
  Machine machine(mini_model(), Machine::cpu());
  Sequence sequence = machine.sequence();
  const auto logits = machine.run(sequence, ids);
  double nll = 0;
  int64_t tokens = 0;
  for (size_t t = 0; t + 1 < ids.size(); ++t) {
    if (ids[t + 1] == 0) continue;  // BOS is never predicted
    const float* row = logits.data() + t * kVocabulary;
    double largest = -1e30;
    for (int64_t v = 0; v < kVocabulary; ++v) largest = std::max<double>(largest, row[v]);
    double total = 0;
    for (int64_t v = 0; v < kVocabulary; ++v) total += std::exp(row[v] - largest);
    nll += largest + std::log(total) - row[ids[t + 1]];
    ++tokens;
  }
  EXPECT_NEAR(nll / static_cast<double>(tokens), 3.2906, 0.005);  // the independent program's value
}

// Every kernel set of this machine against the reference, end to end, bit for bit.
TEST(Backends, AgreeBitForBit) {
  const Golden g("p129");
  std::vector<std::pair<std::string, std::unique_ptr<Backend>>> backends;
  for (const auto& [name, isa] :
       {std::pair{"avx2", CpuIsa::kAvx2}, std::pair{"avx512", CpuIsa::kAvx512}}) {
    if (!cpu_supports(isa)) {
      std::printf("%s: not on this machine\n", name);
      continue;
    }
    backends.emplace_back(name, std::move(*make_cpu_backend(Machine::team(), isa)));
  }
  Machine reference(mini_model(), Machine::reference());
  Sequence sequence = reference.sequence();
  auto want = reference.run(sequence, g.ids);
  const auto state = reference.pool().snapshot(sequence);
  const auto draft = reference.draft(sequence, 17);
  for (auto& [name, backend] : backends) {
    Machine machine(mini_model(), std::move(backend));
    Sequence other = machine.sequence();
    const auto got = machine.run(other, g.ids);
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0) << name;
    EXPECT_EQ(machine.pool().snapshot(other), state) << name;
    const auto drafted = machine.draft(other, 17);
    EXPECT_EQ(drafted.ids, draft.ids) << name;
    EXPECT_EQ(drafted.confidence, draft.confidence) << name;
  }
}

}  // namespace
}  // namespace tidemill
