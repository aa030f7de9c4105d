// The delta rule's causal convolution along tree paths, and its committed tail. One thread a channel.

#define CONV_THREADS 256u
#define CONV_MAX_TAPS 8u

struct ConvArgs {
  uint rows;
  uint channels;
  uint taps;    // 2 to 8
  uint stride;  // floats from a raw row to the next
};

// A row's window is itself, its ancestors' raw rows, then the committed tail `[taps - 1, channels]`, oldest first. `weights:
// [taps, channels]`, oldest tap first; `parents[r]` is -1 where the committed state comes before. `out: [rows, channels]`.
kernel void conv(device const float* raw [[buffer(0)]], device const float* tail [[buffer(1)]],
                 device const float* weights [[buffer(2)]], device const int* parents [[buffer(3)]],
                 device float* out [[buffer(4)]], constant ConvArgs& a [[buffer(5)]],
                 uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  uint i = group.x * CONV_THREADS + thread_index;
  if (i >= a.rows * a.channels) return;
  uint channel = i % a.channels;
  int row = int(i / a.channels);
  float window[CONV_MAX_TAPS];
  uint before = 0u;
  for (uint tap = a.taps; tap-- > 0u;) {
    if (row >= 0) {
      window[tap] = raw[uint(row) * a.stride + channel];
      row = parents[row];
    } else {
      before += 1u;
      window[tap] = tail[(a.taps - 1u - before) * a.channels + channel];
    }
  }
  float sum = weights[channel] * window[0];
  for (uint tap = 1u; tap < a.taps; ++tap) sum = fused(weights[tap * a.channels + channel], window[tap], sum);
  out[i] = straw_silu(sum);
}

struct ConvKeepArgs {
  uint channels;
  uint taps;
  uint stride;
  uint path_len;
};

// The tail after the raw rows `path` were committed in order.
kernel void conv_keep(device float* tail [[buffer(0)]], device const float* raw [[buffer(1)]],
                      device const uint* path [[buffer(2)]], constant ConvKeepArgs& a [[buffer(3)]],
                      uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  uint channel = group.x * CONV_THREADS + thread_index;
  if (channel >= a.channels) return;
  uint held = a.taps - 1u;
  uint dropped = a.path_len < held ? a.path_len : held;
  // A slot is read before it is written: rows only move towards the oldest.
  for (uint slot = 0u; slot < held; ++slot) {
    uint from = slot + dropped;
    tail[slot * a.channels + channel] = from < held ? tail[from * a.channels + channel]
                                                    : raw[path[a.path_len - held + slot] * a.stride + channel];
  }
}
