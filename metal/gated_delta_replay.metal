// The recurrent state after the first rows of a forward, from its tape: gated_delta.py.
//
// Each element of the state is by itself, so nothing is added across lanes and no order has to be
// kept. A thread has four neighbours of one row. The arithmetic of an element is that of
// gated_delta.metal: a rounded product with the decay, then one fused multiply-add.

// body
constexpr int width = 4;

const int index = thread_position_in_grid.z;
const int batch = index / Hv;
const int head = index % Hv;
const int key_head = head / (Hv / Hk);
const int first = thread_position_in_grid.x * width;
const int row = thread_position_in_grid.y;

float state[width];
const int state_at = (index * Dv + row) * Dk + first;
for (int i = 0; i < width; ++i) {
  state[i] = state_in[state_at + i];
}
for (int t = 0; t < keep; ++t) {
  const int at = batch * T + t;
  if (Masked && !mask[at]) {
    continue;
  }
  const float decay = g[at * Hv + head];
  const float delta = deltas[(at * Hv + head) * Dv + row];
  const auto key = k + (at * Hk + key_head) * Dk + first;
  for (int i = 0; i < width; ++i) {
    state[i] = fma(static_cast<float>(key[i]), delta, state[i] * decay);
  }
}
for (int i = 0; i < width; ++i) {
  state_out[state_at + i] = state[i];
}
