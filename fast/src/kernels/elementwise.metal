// Operations without a sum: additions, gates, SwiGLU, the delta rule's decay and strength. One thread an element.

#define ELEMENTS_THREADS 256u

struct AddArgs {
  uint len;
  uint period;  // `delta` repeats: the length of a bias, or `len`
};

// `x = x + delta`.
kernel void add(device float* x [[buffer(0)]], device const float* delta [[buffer(1)]], constant AddArgs& a [[buffer(2)]],
                uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  uint i = group.x * ELEMENTS_THREADS + thread_index;
  if (i < a.len) x[i] = x[i] + delta[i % a.period];
}

struct SigmoidGateArgs {
  uint vectors;
  uint dim;
  Place x;
  Place gate;
};

// `x = x * sigmoid(gate)`.
kernel void sigmoid_gate(device float* x [[buffer(0)]], device const float* gate [[buffer(1)]],
                         constant SigmoidGateArgs& a [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_index_in_threadgroup]]) {
  uint i = group.x * ELEMENTS_THREADS + thread_index;
  if (i >= a.vectors * a.dim) return;
  uint at = start_of(a.x, i / a.dim) + i % a.dim;
  x[at] = x[at] * straw_sigmoid(gate[start_of(a.gate, i / a.dim) + i % a.dim]);
}

struct SwigluArgs {
  uint rows;
  uint dim;
};

// `out = silu(gate) * up` for rows `[gate | up]`.
kernel void swiglu(device const float* gate_up [[buffer(0)]], device float* out [[buffer(1)]],
                   constant SwigluArgs& a [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]],
                   uint thread_index [[thread_index_in_threadgroup]]) {
  uint i = group.x * ELEMENTS_THREADS + thread_index;
  if (i >= a.rows * a.dim) return;
  uint gate = i / a.dim * 2u * a.dim + i % a.dim;
  out[i] = straw_silu(gate_up[gate]) * gate_up[gate + a.dim];
}

struct DeltaGateArgs {
  uint rows;
  uint heads;
  uint stride;  // of the rows that hold a and b
  uint a_first;
  uint b_first;
};

// `alpha = exp(neg_a * softplus(a + dt_bias))`, `beta = sigmoid(b)`; both `[rows, heads]`.
kernel void delta_gates(device const float* rows [[buffer(0)]], device const float* neg_a [[buffer(1)]],
                        device const float* dt_bias [[buffer(2)]], device float* alpha [[buffer(3)]],
                        device float* beta [[buffer(4)]], constant DeltaGateArgs& a [[buffer(5)]],
                        uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  uint i = group.x * ELEMENTS_THREADS + thread_index;
  if (i >= a.rows * a.heads) return;
  uint row = i / a.heads * a.stride, head = i % a.heads;
  float decay = neg_a[head] * straw_softplus(rows[row + a.a_first + head] + dt_bias[head]);
  alpha[i] = straw_exp(decay);
  beta[i] = straw_sigmoid(rows[row + a.b_first + head]);
}

struct ApplyArgs {
  uint len;
  uint function;  // 0 exp, 1 log, 2 sigmoid, 3 silu, 4 softplus, 5 rsqrt
};

// A function of the prelude on every element: what the selftest compares first.
kernel void apply(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], constant ApplyArgs& a [[buffer(2)]],
                  uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  uint i = group.x * ELEMENTS_THREADS + thread_index;
  if (i >= a.len) return;
  float value = x[i];
  y[i] = a.function == 0u   ? straw_exp(value)
         : a.function == 1u ? straw_log(value)
         : a.function == 2u ? straw_sigmoid(value)
         : a.function == 3u ? straw_silu(value)
         : a.function == 4u ? straw_softplus(value)
                            : straw_rsqrt(value);
}
