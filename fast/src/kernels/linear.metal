// `y = W x` for f32, bf16, f16 and q8 weights (docs/numerics.md section 3): an output is the ordered sum of chunks of 128
// inputs, a chunk one chain of fused multiply-adds. A simdgroup takes one chunk of a panel of 32 outputs, a lane an output;
// the simdgroups of a threadgroup take chunks side by side, and their sums are added in the order of the chunks.
// Panels as the processor packs them: `[panel][input][32]`, zero padded.

#define LINEAR_SIMDS 8u
#define LINEAR_THREADS 256u
#define LINEAR_CHUNK 128u
#define LINEAR_PANEL 32u
// Rows that a threadgroup takes at once, one, few or many; further rows are further groups.
#define LINEAR_FEW 4u
#define LINEAR_MANY 16u

struct LinearArgs {
  uint rows;
  uint inputs;
  uint outputs;  // of this part of a stacked matrix
  uint x_first;
  uint y_first;  // the part's first output in y
  uint y_stride;
  uint group;    // inputs that share a scale (8-bit codes)
};

// Weights that are numbers, and codes with a scale of 8 bits a group, whose product is exact in f32. Both at a panel's lane.
template <typename T>
struct PlainWeights {
  device const T* panel;

  inline float at(uint k) const { return widen(panel[k * LINEAR_PANEL]); }
};

struct CodedWeights {
  device const char* panel;
  device const Bf16* scales;
  uint group;

  inline float at(uint k) const {
    return widen(scales[k / group * LINEAR_PANEL]) * widen(panel[k * LINEAR_PANEL]);
  }
};

// Grid: panels, ceil(rows / R). `sums` has LINEAR_SIMDS * R * 32 floats, `totals` R * 32.
template <uint R, typename W>
static inline void linear(W weights, device const float* x, device float* y, LinearArgs a, uint3 group, uint thread_index,
                          threadgroup float* sums, threadgroup float* totals) {
  uint lane = thread_index % LINEAR_PANEL, simd = thread_index / LINEAR_PANEL, first_row = group.y * R;
  uint chunks = (a.inputs + LINEAR_CHUNK - 1u) / LINEAR_CHUNK;
  // Rows beyond the last read it again and are not written.
  device const float* rows[R];
  UNROLL
  for (uint r = 0u; r < R; ++r) {
    uint row = first_row + r < a.rows ? first_row + r : a.rows - 1u;
    rows[r] = x + a.x_first + row * a.inputs;
  }
  for (uint first = 0u; first < chunks; first += LINEAR_SIMDS) {
    uint chunk = first + simd;
    if (chunk < chunks) {
      uint start = chunk * LINEAR_CHUNK;
      uint end = a.inputs - start < LINEAR_CHUNK ? a.inputs : start + LINEAR_CHUNK;
      float sum[R];
      UNROLL
      for (uint r = 0u; r < R; ++r) sum[r] = 0.0f;
      for (uint k = start; k < end; ++k) {
        float w = weights.at(k);
        UNROLL
        for (uint r = 0u; r < R; ++r) sum[r] = fused(w, rows[r][k], sum[r]);
      }
      UNROLL
      for (uint r = 0u; r < R; ++r) sums[(simd * R + r) * LINEAR_PANEL + lane] = sum[r];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint here = chunks - first < LINEAR_SIMDS ? chunks - first : LINEAR_SIMDS;
    for (uint i = thread_index; i < R * LINEAR_PANEL; i += LINEAR_THREADS) {
      // The first chunk is the output, later ones are added to it.
      float total = first == 0u ? sums[i] : totals[i] + sums[i];
      for (uint s = 1u; s < here; ++s) total = total + sums[s * R * LINEAR_PANEL + i];
      totals[i] = total;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (uint i = thread_index; i < R * LINEAR_PANEL; i += LINEAR_THREADS) {
    uint row = first_row + i / LINEAR_PANEL, output = group.x * LINEAR_PANEL + i % LINEAR_PANEL;
    if (row < a.rows && output < a.outputs) y[row * a.y_stride + a.y_first + output] = totals[i];
  }
}

template <typename T>
static inline PlainWeights<T> plain(device const T* w, LinearArgs a, uint panel, uint lane) {
  PlainWeights<T> weights;
  weights.panel = w + panel * a.inputs * LINEAR_PANEL + lane;
  return weights;
}

static inline CodedWeights coded(device const char* codes, device const Bf16* scales, LinearArgs a, uint panel, uint lane) {
  uint groups = (a.inputs + a.group - 1u) / a.group;
  CodedWeights weights;
  weights.panel = codes + panel * a.inputs * LINEAR_PANEL + lane;
  weights.scales = scales + panel * groups * LINEAR_PANEL + lane;
  weights.group = a.group;
  return weights;
}

kernel void linear_f32_one(device const float* w [[buffer(0)]], device const float* x [[buffer(1)]],
                           device float* y [[buffer(2)]], constant LinearArgs& a [[buffer(3)]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float sums[LINEAR_SIMDS * 1u * LINEAR_PANEL];
  TG_MEM float totals[1u * LINEAR_PANEL];
  linear<1u>(plain(w, a, group.x, thread_index % LINEAR_PANEL), x, y, a, group, thread_index, sums, totals);
}

kernel void linear_bf16_one(device const Bf16* w [[buffer(0)]], device const float* x [[buffer(1)]],
                            device float* y [[buffer(2)]], constant LinearArgs& a [[buffer(3)]],
                            uint3 group [[threadgroup_position_in_grid]],
                            uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float sums[LINEAR_SIMDS * 1u * LINEAR_PANEL];
  TG_MEM float totals[1u * LINEAR_PANEL];
  linear<1u>(plain(w, a, group.x, thread_index % LINEAR_PANEL), x, y, a, group, thread_index, sums, totals);
}

kernel void linear_f16_one(device const F16* w [[buffer(0)]], device const float* x [[buffer(1)]],
                           device float* y [[buffer(2)]], constant LinearArgs& a [[buffer(3)]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float sums[LINEAR_SIMDS * 1u * LINEAR_PANEL];
  TG_MEM float totals[1u * LINEAR_PANEL];
  linear<1u>(plain(w, a, group.x, thread_index % LINEAR_PANEL), x, y, a, group, thread_index, sums, totals);
}

kernel void linear_q8_one(device const char* codes [[buffer(0)]], device const Bf16* scales [[buffer(1)]],
                          device const float* x [[buffer(2)]], device float* y [[buffer(3)]],
                          constant LinearArgs& a [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                          uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float sums[LINEAR_SIMDS * 1u * LINEAR_PANEL];
  TG_MEM float totals[1u * LINEAR_PANEL];
  linear<1u>(coded(codes, scales, a, group.x, thread_index % LINEAR_PANEL), x, y, a, group, thread_index, sums, totals);
}

kernel void linear_f32_few(device const float* w [[buffer(0)]], device const float* x [[buffer(1)]],
                           device float* y [[buffer(2)]], constant LinearArgs& a [[buffer(3)]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float sums[LINEAR_SIMDS * LINEAR_FEW * LINEAR_PANEL];
  TG_MEM float totals[LINEAR_FEW * LINEAR_PANEL];
  linear<LINEAR_FEW>(plain(w, a, group.x, thread_index % LINEAR_PANEL), x, y, a, group, thread_index, sums, totals);
}

kernel void linear_bf16_few(device const Bf16* w [[buffer(0)]], device const float* x [[buffer(1)]],
                            device float* y [[buffer(2)]], constant LinearArgs& a [[buffer(3)]],
                            uint3 group [[threadgroup_position_in_grid]],
                            uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float sums[LINEAR_SIMDS * LINEAR_FEW * LINEAR_PANEL];
  TG_MEM float totals[LINEAR_FEW * LINEAR_PANEL];
  linear<LINEAR_FEW>(plain(w, a, group.x, thread_index % LINEAR_PANEL), x, y, a, group, thread_index, sums, totals);
}

kernel void linear_f16_few(device const F16* w [[buffer(0)]], device const float* x [[buffer(1)]],
                           device float* y [[buffer(2)]], constant LinearArgs& a [[buffer(3)]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float sums[LINEAR_SIMDS * LINEAR_FEW * LINEAR_PANEL];
  TG_MEM float totals[LINEAR_FEW * LINEAR_PANEL];
  linear<LINEAR_FEW>(plain(w, a, group.x, thread_index % LINEAR_PANEL), x, y, a, group, thread_index, sums, totals);
}

kernel void linear_q8_few(device const char* codes [[buffer(0)]], device const Bf16* scales [[buffer(1)]],
                          device const float* x [[buffer(2)]], device float* y [[buffer(3)]],
                          constant LinearArgs& a [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                          uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float sums[LINEAR_SIMDS * LINEAR_FEW * LINEAR_PANEL];
  TG_MEM float totals[LINEAR_FEW * LINEAR_PANEL];
  linear<LINEAR_FEW>(coded(codes, scales, a, group.x, thread_index % LINEAR_PANEL), x, y, a, group, thread_index, sums, totals);
}

kernel void linear_f32_many(device const float* w [[buffer(0)]], device const float* x [[buffer(1)]],
                            device float* y [[buffer(2)]], constant LinearArgs& a [[buffer(3)]],
                            uint3 group [[threadgroup_position_in_grid]],
                            uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float sums[LINEAR_SIMDS * LINEAR_MANY * LINEAR_PANEL];
  TG_MEM float totals[LINEAR_MANY * LINEAR_PANEL];
  linear<LINEAR_MANY>(plain(w, a, group.x, thread_index % LINEAR_PANEL), x, y, a, group, thread_index, sums, totals);
}

kernel void linear_bf16_many(device const Bf16* w [[buffer(0)]], device const float* x [[buffer(1)]],
                             device float* y [[buffer(2)]], constant LinearArgs& a [[buffer(3)]],
                             uint3 group [[threadgroup_position_in_grid]],
                             uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float sums[LINEAR_SIMDS * LINEAR_MANY * LINEAR_PANEL];
  TG_MEM float totals[LINEAR_MANY * LINEAR_PANEL];
  linear<LINEAR_MANY>(plain(w, a, group.x, thread_index % LINEAR_PANEL), x, y, a, group, thread_index, sums, totals);
}

kernel void linear_f16_many(device const F16* w [[buffer(0)]], device const float* x [[buffer(1)]],
                            device float* y [[buffer(2)]], constant LinearArgs& a [[buffer(3)]],
                            uint3 group [[threadgroup_position_in_grid]],
                            uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float sums[LINEAR_SIMDS * LINEAR_MANY * LINEAR_PANEL];
  TG_MEM float totals[LINEAR_MANY * LINEAR_PANEL];
  linear<LINEAR_MANY>(plain(w, a, group.x, thread_index % LINEAR_PANEL), x, y, a, group, thread_index, sums, totals);
}

kernel void linear_q8_many(device const char* codes [[buffer(0)]], device const Bf16* scales [[buffer(1)]],
                           device const float* x [[buffer(2)]], device float* y [[buffer(3)]],
                           constant LinearArgs& a [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                           uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float sums[LINEAR_SIMDS * LINEAR_MANY * LINEAR_PANEL];
  TG_MEM float totals[LINEAR_MANY * LINEAR_PANEL];
  linear<LINEAR_MANY>(coded(codes, scales, a, group.x, thread_index % LINEAR_PANEL), x, y, a, group, thread_index, sums, totals);
}
