// Rows of chosen experts: verify_matmul with a matrix for each slot. The first slot of an expert
// multiplies the rows of all its slots, at most M with one pass over that expert's weights.

// body
const int K = x_shape[1];
const int N = w_shape[1];
const int lane = thread_index_in_simdgroup;
const int slot = threadgroup_position_in_grid.z;
const int out = (threadgroup_position_in_grid.y * simdgroups_per_threadgroup +
                 simdgroup_index_in_threadgroup) *
    RESULTS;
const uint expert = indices[slot];
bool earlier = false;
for (int i = lane; i < slot; i += 32) {
  earlier = earlier || indices[i] == expert;
}
if (simd_any(earlier) || out >= N) {
  return;
}
const long matrix = long(expert) * N;
int next = slot;
while (next < SLOTS) {
  int slots[M];
  int count = 0;
  for (; next < SLOTS && count < M; next++) {
    if (indices[next] == expert) {
      slots[count] = next;
      count++;
    }
  }
  if (count > 0) {
    multiply_rows<T, GROUP, BITS, PACKS, M, RESULTS, TILE, SLOTS_A_ROW>(
        w + matrix * (K * BITS / 32),
        scales + matrix * (K / GROUP),
        biases + matrix * (K / GROUP),
        x, y, slots, count, K, N, out, lane);
  }
}
