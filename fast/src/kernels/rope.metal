// Rotary positions from the host's tables of cosines and sines. One thread a pair of channels.

#define ROPE_THREADS 128u

struct RopeArgs {
  uint vectors;
  uint pairs;  // channels i and i + pairs form a pair; later channels pass
  Place x;
};

// `y1 = fma(x1, cos, 0 - x2 * sin)`, `y2 = fma(x2, cos, x1 * sin)`; tables are `[positions, pairs]`.
kernel void rope(device float* x [[buffer(0)]], device const float* cosines [[buffer(1)]],
                 device const float* sines [[buffer(2)]], device const uint* positions [[buffer(3)]],
                 constant RopeArgs& a [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                 uint thread_index [[thread_index_in_threadgroup]]) {
  uint i = group.x * ROPE_THREADS + thread_index;
  if (i >= a.vectors * a.pairs) return;
  uint vector = i / a.pairs, pair = i % a.pairs;
  device float* at = x + start_of(a.x, vector) + pair;
  uint entry = positions[vector / a.x.heads] * a.pairs + pair;
  float x1 = at[0], x2 = at[a.pairs], c = cosines[entry], s = sines[entry];
  at[0] = fused(x1, c, 0.0f - x2 * s);
  at[a.pairs] = fused(x2, c, x1 * s);
}
