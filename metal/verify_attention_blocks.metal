// Puts the blocks of verify_attention.metal together, in their order: verify_attention.py.
//
// A thread has one element of one row, and reads the blocks that begin at or before the row's
// position, so what is behind the row changes nothing.

// body
const int column = thread_position_in_grid.x;
const int row = thread_position_in_grid.y;
const int blocks = (keys + Block - 1) / Block;
const int here = (keys - queries + row % queries) / Block + 1;

float top = tops[row * blocks];
for (int block = 1; block < here; ++block) {
  top = max(top, tops[row * blocks + block]);
}
float sum = 0.0f;
float weight = 0.0f;
for (int block = 0; block < here; ++block) {
  const int at = row * blocks + block;
  const float share = precise::exp2(tops[at] - top);
  sum = fma(sums[at * D + column], share, sum);
  weight = fma(weights[at], share, weight);
}
y[row * D + column] = static_cast<OutT>(sum / weight);
