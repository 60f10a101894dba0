// Level 1 of `tidemill check replay`: inputs of steps, without weights.
#include <algorithm>
#include <map>
#include <random>

#include "base/thread_team.h"
#include "cli/check/replay.h"
#include "ops/backend.h"

namespace tidemill::cli {
namespace {

// Where row t of `rows` reads the window key of `position`: a row of RowSet `all`, or -1 - the
// offset of a ring row.
int64_t key_source(const StateLayout& layout, const StepInput& in, const RowSet& rows, int64_t t,
                   int64_t position) {
  const auto s = static_cast<size_t>(rows.sequence[static_cast<size_t>(t)]);
  if (position < rows.step_start[s]) {
    return -1 - (in.ring_offset[s] + position % layout.ring_rows * layout.window.bytes());
  }
  const int64_t row = rows.step_row[s] + position - rows.step_start[s];
  return &rows == &in.all ? row : in.tail_row[static_cast<size_t>(row)];
}

bool same_entries(const EntrySet& a, const EntrySet& b) {
  return a.position == b.position && a.last_row == b.last_row && a.first_row == b.first_row &&
         a.pending_offset == b.pending_offset && a.entry_store == b.entry_store &&
         a.key_store == b.key_store && a.pending_store == b.pending_store;
}

bool same_rows(const RowSet& a, const RowSet& b) {
  return a.position == b.position && a.sequence == b.sequence && a.window_begin == b.window_begin &&
         a.window_end == b.window_end && a.step_start == b.step_start && a.step_row == b.step_row &&
         a.ring_store == b.ring_store && a.visible[1] == b.visible[1] &&
         a.visible[2] == b.visible[2] && a.image == b.image;
}

// Rows of `all` that a list of tail rows stands for.
std::vector<int64_t> in_all(const StepInput& in, const StepArray<int64_t>& tail_rows) {
  std::vector<int64_t> rows;
  for (const int64_t row : tail_rows) rows.push_back(in.tail_row[static_cast<size_t>(row)]);
  return rows;
}

struct Case {
  int64_t prompt = 0;
  int64_t hit = 0;   // adopted tokens whose windows are missing
  int64_t keep = 0;  // tokens of the prompt that the decoder sees
  std::vector<int64_t> chunks;

  std::string text() const {
    return fmt::format("prompt of {}, hit {}, keep {}, chunks of {}", prompt, hit, keep, chunks[0]);
  }
};

// Follows one sequence through its steps, with a neighbour in each of them.
class Walk {
 public:
  Walk(const Config& config, const EngramHash& engram, const StateLayout& layout,
       const std::vector<int32_t>& tokens, const Case& c, CheckReport& report)
      : config_(config),
        engram_(engram),
        layout_(layout),
        tokens_(tokens),
        case_(c),
        report_(report) {
    sequence_.slot = 3;
    sequence_.adopted = c.hit;
    if (c.hit > 0) sequence_.replay_from = std::max<int64_t>(0, c.hit - layout.window_tokens);
    sequence_.decoder_floor = std::max<int64_t>(0, c.prompt - c.keep);
    encoder_floor_ = std::max<int64_t>(0, sequence_.replay_from);
    decoder_floor_ = std::max(encoder_floor_, sequence_.decoder_floor);
    sequence_.tokens.assign(tokens.begin(), tokens.begin() + encoder_floor_);
    // Block numbers that are not in order.
    for (int64_t i = 0; i <= static_cast<int64_t>(tokens.size()) / kBlockTokens; ++i) {
      sequence_.blocks.push_back(static_cast<int32_t>(900 - 7 * i));
    }
    neighbour_.slot = 1;
    neighbour_.tokens.assign(tokens.begin(), tokens.begin() + 50);
    neighbour_.blocks = {11};
  }

  int64_t steps() const { return steps_; }

  void run() {
    for (size_t i = 0; sequence_.length() < case_.prompt; ++i) {
      step(std::min(case_.chunks[std::min(i, case_.chunks.size() - 1)],
                    case_.prompt - sequence_.length()));
    }
    // Verifications of which a growing part is undone, past the next end of a block.
    const int64_t end = (case_.prompt / kBlockTokens + 1) * kBlockTokens + 2;
    for (int64_t undone = 0; sequence_.length() < std::min(end, case_.prompt + 40); ++undone) {
      step(layout_.rollback);
      sequence_.tokens.resize(sequence_.tokens.size() -
                              static_cast<size_t>(undone % layout_.rollback));
    }
  }

 private:
  void step(int64_t count) {
    const auto next = [&](const Sequence& s, int64_t n) {
      return std::span(tokens_).subspan(s.tokens.size(), static_cast<size_t>(n));
    };
    const StepItem items[] = {{&neighbour_, next(neighbour_, 1), Logits::kLast},
                              {&sequence_, next(sequence_, count), Logits::kAll}};
    build_step_input(config_, engram_, layout_, ReplayForm::kCompact, items, compact_);
    build_step_input(config_, engram_, layout_, ReplayForm::kMask, items, mask_);
    const int64_t start = sequence_.length();
    const auto where = [&] { return fmt::format("{}; step at {}", case_.text(), start); };
    compare_forms(layout_, compact_, mask_, where, report_);
    follow_windows(compact_.all, encoder_floor_, encoder_ring_, where);
    follow_windows(compact_.decoder(), decoder_floor_, decoder_ring_, where);
    follow_entries(where);
    sequence_.tokens.insert(sequence_.tokens.end(), items[1].tokens.begin(), items[1].tokens.end());
    ++steps_;
  }

  // `ring` says which position's row each ring row holds.
  template <typename Where>
  void follow_windows(const RowSet& rows, int64_t floor, std::map<int64_t, int64_t>& ring,
                      const Where& where) {
    for (size_t t = 0; t < static_cast<size_t>(rows.count); ++t) {
      if (rows.sequence[t] != 1) continue;
      const int64_t position = rows.position[t];
      const int64_t begin = std::max(floor, position - layout_.window_tokens + 1);
      report_.expect("a row sees max(floor, i - window + 1) .. i",
                     rows.window_begin[t] == begin && rows.window_end[t] == position + 1, [&] {
                       return fmt::format("{}: token {} sees {} .. {}, not {} .. {}", where(),
                                          position, rows.window_begin[t], rows.window_end[t] - 1,
                                          begin, position);
                     });
      for (int64_t p = rows.window_begin[t]; p < rows.window_end[t]; ++p) {
        const int64_t source = key_source(layout_, compact_, rows, static_cast<int64_t>(t), p);
        bool right = false;
        if (source >= 0) {
          right = source < compact_.all.count &&
                  compact_.all.position[static_cast<size_t>(source)] == p &&
                  compact_.all.sequence[static_cast<size_t>(source)] == 1;
        } else {
          const auto found = ring.find(-1 - source);
          right = found != ring.end() && found->second == p;
        }
        report_.expect("window keys read are those of their position", right, [&] {
          return fmt::format("{}: token {} does not find the key of token {}", where(), position,
                             p);
        });
      }
    }
    for (size_t t = 0; t < static_cast<size_t>(rows.count); ++t) {
      if (rows.sequence[t] == 1 && rows.ring_store[t] >= 0) {
        ring[rows.ring_store[t]] = rows.position[t];
      }
    }
  }

  template <typename Where>
  void follow_entries(const Where& where) {
    const int64_t start = sequence_.length();
    const int64_t end = compact_.all.position.back() + 1;
    for (const EntrySet& set : compact_.entries) {
      std::vector<int64_t> wanted;  // last tokens of the groups that this step completes
      for (int64_t p = std::max(start, case_.hit); p < end; ++p) {
        if ((p + 1) % set.ratio == 0) wanted.push_back(p);
      }
      std::vector<int64_t> written;
      for (size_t i = 0; i < set.position.size(); ++i) {
        const auto row = static_cast<size_t>(set.last_row[i]);
        if (compact_.all.sequence[row] != 1) continue;
        written.push_back(set.position[i] + set.ratio - 1);
        const int64_t block = sequence_.blocks[static_cast<size_t>(set.position[i] / kBlockTokens)];
        report_.expect("entries go to the block of their tokens",
                       set.entry_store[i] / layout_.block_bytes == block &&
                           set.key_store[i] / layout_.block_bytes == block &&
                           compact_.all.position[row] == written.back(),
                       [&] {
                         return fmt::format("{}: entry of tokens {} to {} goes to block {}, not {}",
                                            where(), set.position[i], written.back(),
                                            set.entry_store[i] / layout_.block_bytes, block);
                       });
      }
      report_.expect("entries written are those after the hit", written == wanted, [&] {
        return fmt::format("{}: {} entries of ratio {} instead of {}, the first ending at token {}",
                           where(), written.size(), set.ratio, wanted.size(),
                           written.empty() ? -1 : written[0]);
      });
    }
  }

  const Config& config_;
  const EngramHash& engram_;
  const StateLayout& layout_;
  const std::vector<int32_t>& tokens_;
  const Case& case_;
  CheckReport& report_;
  Sequence sequence_;
  Sequence neighbour_;
  int64_t encoder_floor_ = 0;
  int64_t decoder_floor_ = 0;
  StepInput compact_;
  StepInput mask_;
  std::map<int64_t, int64_t> encoder_ring_;
  std::map<int64_t, int64_t> decoder_ring_;
  int64_t steps_ = 0;
};

// Every prompt length with every hit inside it, keep length and chunking.
std::vector<Case> sweep(const StateLayout& layout) {
  const int64_t window = layout.window_tokens;
  const int64_t tail = layout.recomputed_tail();
  const int64_t block = kBlockTokens;
  const int64_t hit = (window + block - 1) / block * block;
  std::vector<Case> cases;
  for (const int64_t after : {int64_t{1}, int64_t{2}, window - 1, window, tail + 1, block + tail}) {
    for (const int64_t h : {int64_t{0}, hit, hit + block}) {
      for (const int64_t keep : {window, tail, tail + layout.rollback, block + 3, h + after}) {
        for (const auto& chunks : std::vector<std::vector<int64_t>>{
                 {h + after}, {1}, {7}, {window}, {window - 1, 2}, {block, 1}, {block + 1, 5}}) {
          cases.push_back({.prompt = h + after, .hit = h, .keep = keep, .chunks = chunks});
        }
      }
    }
  }
  return cases;
}

Result<EngramHash> some_engram(const Config& config) {
  std::vector<int32_t> map;
  if (!config.engram_layer_ids.empty()) {
    for (int64_t id = 0; id < config.vocab_size; ++id) {
      map.push_back(static_cast<int32_t>(id % config.engram_compressed_vocab_size));
    }
  }
  return EngramHash::build(config, std::move(map));
}

}  // namespace

void compare_forms(const StateLayout& layout, const StepInput& compact, const StepInput& mask,
                   const std::function<std::string()>& where, CheckReport& report) {
  const auto expect = [&](std::string_view property, bool equal, std::string_view what) {
    report.expect(property, equal, [&] { return fmt::format("{}: {}", where(), what); });
  };
  bool same_encoder = compact.ids == mask.ids && same_rows(compact.all, mask.all) &&
                      compact.block_table == mask.block_table &&
                      compact.block_begin == mask.block_begin &&
                      compact.ring_offset == mask.ring_offset &&
                      compact.engram_rows == mask.engram_rows && compact.cut == mask.cut;
  for (size_t i = 0; i < compact.entries.size(); ++i) {
    same_encoder = same_encoder && same_entries(compact.entries[i], mask.entries[i]);
  }
  expect("both forms: the encoder half", same_encoder, "rows or entries");
  expect("both forms: rows with logits",
         in_all(compact, compact.logits_row) == in_all(mask, mask.logits_row), "logits_row");
  expect("both forms: rows for the drafter",
         in_all(compact, compact.draft_row) == in_all(mask, mask.draft_row) &&
             compact.draft_position == mask.draft_position &&
             compact.draft_store == mask.draft_store,
         "draft_row, draft_position or draft_store");
  expect("both forms: a row of the mask for every token",
         mask.tail.count == mask.all.count && mask.tail.position == mask.all.position,
         fmt::format("{} rows for {} tokens", mask.tail.count, mask.all.count));
  if (mask.tail.count != mask.all.count) return;

  const RowSet& a = compact.tail;
  const RowSet& b = mask.tail;
  std::vector<uint8_t> in_tail(static_cast<size_t>(b.count), 0);
  for (size_t t = 0; t < static_cast<size_t>(a.count); ++t) {
    const auto row = static_cast<size_t>(compact.tail_row[t]);
    in_tail[row] = 1;
    const auto at = [&] { return fmt::format("{}: token {}", where(), a.position[t]); };
    report.expect("both forms: metadata of the tail's rows",
                  a.position[t] == b.position[row] && a.sequence[t] == b.sequence[row] &&
                      a.image.empty() == b.image.empty() &&
                      (a.image.empty() || a.image[t] == b.image[row]),
                  at);
    report.expect("both forms: visible entries",
                  a.visible[1][t] == b.visible[1][row] && a.visible[2][t] == b.visible[2][row], at);
    report.expect("both forms: store slots", a.ring_store[t] == b.ring_store[row], [&] {
      return fmt::format("{} goes to {} and {}", at(), a.ring_store[t], b.ring_store[row]);
    });
    bool keys = a.window_begin[t] == b.window_begin[row] && a.window_end[t] == b.window_end[row];
    for (int64_t p = a.window_begin[t]; keys && p < a.window_end[t]; ++p) {
      keys = key_source(layout, compact, a, static_cast<int64_t>(t), p) ==
             key_source(layout, mask, b, static_cast<int64_t>(row), p);
    }
    report.expect("both forms: visible window keys", keys, [&] {
      return fmt::format("{} sees {} .. {} and {} .. {}", at(), a.window_begin[t],
                         a.window_end[t] - 1, b.window_begin[row], b.window_end[row] - 1);
    });
  }
  for (size_t row = 0; row < in_tail.size(); ++row) {
    if (in_tail[row] != 0) continue;
    report.expect("mask: rows outside the tail store nothing", b.ring_store[row] < 0, [&] {
      return fmt::format("{}: token {} goes to {}", where(), b.position[row], b.ring_store[row]);
    });
  }
}

Result<CheckReport> check_replay_inputs(const Config& config) {
  TRY(const Topology topology, Topology::build(config));
  TRY(const EngramHash engram, some_engram(config));
  ThreadTeam team(1);
  const auto backend = make_reference_backend(team);  // only for the formats of the caches
  TRY(const StateLayout layout, StateLayout::build(config, topology, *backend));

  const std::vector<Case> cases = sweep(layout);
  int64_t longest = 0;
  for (const Case& c : cases) longest = std::max(longest, c.prompt);
  std::mt19937 random(1);
  // Far enough for a neighbour that runs one token in every step.
  std::vector<int32_t> tokens(static_cast<size_t>(longest + 4 * kBlockTokens));
  for (int32_t& id : tokens) {
    id = static_cast<int32_t>(random() % static_cast<uint64_t>(config.vocab_size));
  }
  CheckReport report(
      fmt::format("level 1: step inputs of {} requests (config.json only)", cases.size()));
  int64_t steps = 0;
  for (const Case& c : cases) {
    Walk walk(config, engram, layout, tokens, c, report);
    walk.run();
    steps += walk.steps();
  }
  report.note(fmt::format("{} steps; window {}, ring {}, block {} tokens", steps,
                          layout.window_tokens, layout.ring_rows, kBlockTokens));
  return report;
}

}  // namespace tidemill::cli
