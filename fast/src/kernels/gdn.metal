// The gated delta rule as a scan (docs/numerics.md section 6). A thread owns one value column, whose state lives in registers:
// both sums over keys are chains in one thread, in the written order, whatever the tree. While a row's output is summed, the
// state decays for the next row and its prediction is summed beside it, so a row costs one chain's latency instead of two.
// Parents of several children are stashed in device memory; no thread reads another's column, so no order is needed there.

#define GDN_THREADS 32u
// Rows of queries and keys in threadgroup memory: the current, the next, and one that others may still read.
#define GDN_STAGES 3u
#define GDN_KEYS 128u
#define GDN_MAX_KEYS 256u

// A step's fields: row, source, save, emit.
#define GDN_STEP 4u
// Sources: the state the thread holds, the committed state; a stash slot otherwise.
#define GDN_HELD -1
#define GDN_COMMITTED -2

struct GdnArgs {
  uint key_heads;
  uint value_heads;
  uint key_dim;
  uint value_dim;
  uint stride;   // floats from a row to the next in qkv
  uint k_first;
  uint v_first;
};

// Steps of one walk: `steps[4 s ..]` = row, source, slot to save the new state in or -1, whether the row's output is wanted.
// `spans[2 w ..]` = first step and number of steps of walk w. Walks share nothing but the committed state: the host may give
// each its own branches, walking common ancestors again. Grid: column blocks, value heads, walks.
struct GdnWalk {
  uint column_block;
  uint head;
  uint first;
  uint steps;
};

// Four consecutive floats of a staged row, which starts on 16 bytes.
static inline void load4(threadgroup const float* from, thread float* to) {
  float4 x = *(threadgroup const float4*)from;
  to[0] = x.x;
  to[1] = x.y;
  to[2] = x.z;
  to[3] = x.w;
}

// Stages q and k of a row, `padded` floats each.
static inline void stage_row(device const float* qkv, threadgroup float* to, GdnArgs a, uint padded, uint row, uint key_head,
                             uint thread_index) {
  device const float* q = qkv + row * a.stride + key_head * a.key_dim;
  device const float* k = q + a.k_first;
  for (uint i = thread_index; i < a.key_dim; i += GDN_THREADS) {
    to[i] = q[i];
    to[padded + i] = k[i];
  }
}

// K is the key dimension, or the largest one where it is only known at run time. `rows` holds GDN_STAGES pairs of K floats.
template <uint K, bool FIXED>
static inline void scan(device const float* state, device const float* qkv, device const float* alpha,
                        device const float* beta, device const int* steps, device float* stash, device float* out,
                        device float* final_state, bool keep, GdnArgs a, GdnWalk walk, uint thread_index,
                        threadgroup float* rows) {
  const uint n = FIXED ? K : a.key_dim;
  const uint padded = FIXED ? K : (n + 3u) / 4u * 4u;
  uint key_head = walk.head / (a.value_heads / a.key_heads);
  uint column = walk.column_block * GDN_THREADS + thread_index;
  bool live = column < a.value_dim;
  uint cell = walk.head * n * a.value_dim + (live ? column : 0u);
  uint state_len = a.value_heads * n * a.value_dim;
  device const int* step = steps + walk.first * GDN_STEP;
  if (walk.steps == 0u) return;
  float s[K];
  float m = 0.0f;
  // Whether s is already decayed for the step, and m its prediction.
  bool prepared = false;
  stage_row(qkv, rows, a, padded, uint(step[0]), key_head, thread_index);
  for (uint i_step = 0u; i_step < walk.steps; ++i_step, step += GDN_STEP) {
    uint row = uint(step[0]);
    int source = step[1], save = step[2];
    bool emit = step[3] != 0, more = i_step + 1u < walk.steps;
    threadgroup const float* q = rows + i_step % GDN_STAGES * 2u * padded;
    threadgroup const float* k = q + padded;
    threadgroup float* next = rows + (i_step + 1u) % GDN_STAGES * 2u * padded;
    if (more) stage_row(qkv, next, a, padded, uint(step[GDN_STEP]), key_head, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    if (!prepared) {
      if (source != GDN_HELD) {
        device const float* from = source == GDN_COMMITTED ? state + cell : stash + uint(source) * state_len + cell;
        UNROLL
        for (uint i = 0u; i < n; ++i) s[i] = from[i * a.value_dim];
      }
      float decay = alpha[row * a.value_heads + walk.head];
      m = 0.0f;
      UNROLL
      for (uint i = 0u; i < n; i += 4u) {
        float ks[4];
        load4(k + i, ks);
        UNROLL
        for (uint j = 0u; j < 4u; ++j) {
          if (FIXED || i + j < n) {
            s[i + j] = decay * s[i + j];
            m = fused(ks[j], s[i + j], m);
          }
        }
      }
    }
    float v = live ? qkv[row * a.stride + a.v_first + walk.head * a.value_dim + column] : 0.0f;
    float u = beta[row * a.value_heads + walk.head] * (v - m);
    float o = 0.0f;
    prepared = more && save < 0 && step[GDN_STEP + 1u] == GDN_HELD;
    if (prepared) {
      float decay = alpha[uint(step[GDN_STEP]) * a.value_heads + walk.head];
      m = 0.0f;
      UNROLL
      for (uint i = 0u; i < n; i += 4u) {
        float ks[4], qs[4], next_ks[4];
        load4(k + i, ks);
        load4(q + i, qs);
        load4(next + padded + i, next_ks);
        UNROLL
        for (uint j = 0u; j < 4u; ++j) {
          if (FIXED || i + j < n) {
            float written = fused(ks[j], u, s[i + j]);
            o = fused(qs[j], written, o);
            s[i + j] = decay * written;
            m = fused(next_ks[j], s[i + j], m);
          }
        }
      }
    } else {
      UNROLL
      for (uint i = 0u; i < n; i += 4u) {
        float ks[4], qs[4];
        load4(k + i, ks);
        load4(q + i, qs);
        UNROLL
        for (uint j = 0u; j < 4u; ++j) {
          if (FIXED || i + j < n) {
            s[i + j] = fused(ks[j], u, s[i + j]);
            o = fused(qs[j], s[i + j], o);
          }
        }
      }
      if (save >= 0 && live) {
        device float* to = stash + uint(save) * state_len + cell;
        UNROLL
        for (uint i = 0u; i < n; ++i) to[i * a.value_dim] = s[i];
      }
    }
    if (emit && live) out[(row * a.value_heads + walk.head) * a.value_dim + column] = o;
  }
  if (keep && live) {
    UNROLL
    for (uint i = 0u; i < n; ++i) final_state[cell + i * a.value_dim] = s[i];
  }
}

static inline GdnWalk walk_of(device const uint* spans, uint3 group) {
  GdnWalk walk;
  walk.column_block = group.x;
  walk.head = group.y;
  walk.first = spans[2u * group.z];
  walk.steps = spans[2u * group.z + 1u];
  return walk;
}

// Verification: the committed state is only read. `state: [value_heads, key_dim, value_dim]`, `stash: [slots, state]`,
// `out: [rows, value_heads, value_dim]`.
kernel void gdn_verify_128(device const float* state [[buffer(0)]], device const float* qkv [[buffer(1)]],
                           device const float* alpha [[buffer(2)]], device const float* beta [[buffer(3)]],
                           device const int* steps [[buffer(4)]], device const uint* spans [[buffer(5)]],
                           device float* stash [[buffer(6)]], device float* out [[buffer(7)]],
                           constant GdnArgs& a [[buffer(8)]], uint3 group [[threadgroup_position_in_grid]],
                           uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float4 rows[GDN_STAGES * 2u * GDN_KEYS / 4u];
  scan<GDN_KEYS, true>(state, qkv, alpha, beta, steps, stash, out, stash, false, a, walk_of(spans, group), thread_index,
                       (threadgroup float*)rows);
}

// Any key dimension up to 256.
kernel void gdn_verify_any(device const float* state [[buffer(0)]], device const float* qkv [[buffer(1)]],
                           device const float* alpha [[buffer(2)]], device const float* beta [[buffer(3)]],
                           device const int* steps [[buffer(4)]], device const uint* spans [[buffer(5)]],
                           device float* stash [[buffer(6)]], device float* out [[buffer(7)]],
                           constant GdnArgs& a [[buffer(8)]], uint3 group [[threadgroup_position_in_grid]],
                           uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float4 rows[GDN_STAGES * 2u * GDN_MAX_KEYS / 4u];
  scan<GDN_MAX_KEYS, false>(state, qkv, alpha, beta, steps, stash, out, stash, false, a, walk_of(spans, group),
                            thread_index, (threadgroup float*)rows);
}

// Prefill, plain decoding and commit: one walk, a chain from the committed state, which becomes the state after its last row.
kernel void gdn_advance_128(device float* state [[buffer(0)]], device const float* qkv [[buffer(1)]],
                            device const float* alpha [[buffer(2)]], device const float* beta [[buffer(3)]],
                            device const int* steps [[buffer(4)]], device const uint* spans [[buffer(5)]],
                            device float* out [[buffer(6)]], constant GdnArgs& a [[buffer(7)]],
                            uint3 group [[threadgroup_position_in_grid]],
                            uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float4 rows[GDN_STAGES * 2u * GDN_KEYS / 4u];
  scan<GDN_KEYS, true>(state, qkv, alpha, beta, steps, state, out, state, true, a, walk_of(spans, group), thread_index,
                       (threadgroup float*)rows);
}

// Any key dimension up to 256.
kernel void gdn_advance_any(device float* state [[buffer(0)]], device const float* qkv [[buffer(1)]],
                            device const float* alpha [[buffer(2)]], device const float* beta [[buffer(3)]],
                            device const int* steps [[buffer(4)]], device const uint* spans [[buffer(5)]],
                            device float* out [[buffer(6)]], constant GdnArgs& a [[buffer(7)]],
                            uint3 group [[threadgroup_position_in_grid]],
                            uint thread_index [[thread_index_in_threadgroup]]) {
  TG_MEM float4 rows[GDN_STAGES * 2u * GDN_MAX_KEYS / 4u];
  scan<GDN_MAX_KEYS, false>(state, qkv, alpha, beta, steps, state, out, state, true, a, walk_of(spans, group),
                            thread_index, (threadgroup float*)rows);
}
