// Weights as typed views into memory that somebody else owns: the mapped checkpoint on a CPU, an
// upload on a device. Nothing here is converted.
#pragma once

#include <cstdint>
#include <vector>

namespace tidemill {

enum class WeightFormat {
  kF32,
  kBf16,
  kFp8Block,  // E4M3 [rows, cols], E8M0 scale per 32 x 32 block [ceil(rows/32), ceil(cols/32)]
  kFp4Row,    // E2M1, two per byte, low nibble = even column; E8M0 per 32 columns [rows, cols/32]
  kFp8Row,    // E4M3 [rows, cols], E8M0 per 32 columns of a row [rows, cols/32] (Engram tables)
};

// y = W x with W stored [rows = out, cols = in], row major, no padding.
struct Matrix {
  WeightFormat format = WeightFormat::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  const void* data = nullptr;       // kF32 and kBf16: aligned to the element; fp8, fp4: to a byte
  const uint8_t* scales = nullptr;  // null for kF32 and kBf16

  // Bytes of one row without its scales.
  int64_t row_bytes() const {
    switch (format) {
      case WeightFormat::kF32:
        return cols * 4;
      case WeightFormat::kBf16:
        return cols * 2;
      case WeightFormat::kFp4Row:
        return cols / 2;
      default:
        return cols;
    }
  }
  int64_t scale_columns() const { return (cols + 31) / 32; }
};

// bf16 vector, e.g. a norm weight; f32 vector, e.g. a bias. Aligned to their element: the loader
// copies the few small ones that a file misaligns.
struct Bf16Vector {
  const uint16_t* data = nullptr;
  int64_t size = 0;
};
struct F32Vector {
  const float* data = nullptr;
  int64_t size = 0;
};

// Coefficients of one sublayer's hyper-connection mix. fn: f32 [(2 + hc) * hc, hc * hidden].
struct HcWeights {
  Matrix fn;
  F32Vector base;   // (2 + hc) * hc
  F32Vector scale;  // 3
};

struct CompressorWeights {
  Matrix wkv;    // bf16 [head_dim, hidden]
  Matrix wgate;  // bf16 [head_dim, hidden]; data null for ratio 1
  Bf16Vector norm;
  Matrix index_wk;  // bf16 [index_head_dim, head_dim]
  Bf16Vector index_k_norm;
};

struct IndexerWeights {
  Matrix wq_b;          // fp8 [index_n_heads * index_head_dim, q_lora_rank]
  Matrix weights_proj;  // bf16 [index_n_heads, hidden]
};

struct AttentionWeights {
  Matrix wq_a;
  Bf16Vector q_norm;
  Matrix wq_b;
  Matrix wkv;
  Bf16Vector kv_norm;
  F32Vector sink;  // per head
  Matrix wo_a;     // fp8 [o_groups * o_lora_rank, heads / o_groups * head_dim]
  Matrix wo_b;
};

struct ExpertWeights {
  Matrix w1;  // gate branch [inter, hidden]
  Matrix w3;  // up branch [inter, hidden]
  Matrix w2;  // down [hidden, inter]
};

struct MoeWeights {
  Matrix gate;        // bf16 [experts, hidden]
  F32Vector bias;     // selection only
  F32Vector bias_vl;  // for image tokens; data null when the checkpoint has none
  std::vector<ExpertWeights> experts;
  const ExpertWeights* table = nullptr;  // the same in the memory of a device; null on a host
  ExpertWeights shared;
};

struct EngramWeights {
  Matrix table;     // kFp8Row [rows, engram_head_dim]
  Matrix wkv;       // fp8 [(hc + 1) * hidden, columns * engram_head_dim]
  Matrix q_weight;  // bf16 [hc, hidden]
  Matrix k_weight;  // bf16 [hc, hidden]
};

// A backbone layer or a DSpark stage. Parts that a layer does not have keep null data.
struct LayerWeights {
  Bf16Vector attn_norm;
  Bf16Vector ffn_norm;
  HcWeights hc_attn;
  HcWeights hc_ffn;
  AttentionWeights attention;
  CompressorWeights compressor;
  IndexerWeights indexer;
  MoeWeights moe;
  EngramWeights engram;
};

struct DraftWeights {
  std::vector<LayerWeights> stages;
  Matrix main_proj;  // fp8 [hidden, taps * hidden]
  Bf16Vector main_norm;
  Bf16Vector norm;
  Matrix markov_embed;  // bf16 [vocab, rank]
  Matrix markov_head;   // bf16 [vocab, rank]
  Matrix confidence;    // bf16 [1, hidden + rank]
};

struct ModelWeights {
  Matrix embed;  // bf16 [vocab, hidden]
  Bf16Vector norm;
  Matrix head;  // bf16 [vocab, hidden]
  std::vector<LayerWeights> layers;
  DraftWeights draft;  // stages empty: no drafter
};

}  // namespace tidemill
