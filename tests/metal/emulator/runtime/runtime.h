// What a kernel's translation unit asks of the lane scheduler, and how a dispatch is described.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace emulator {

// Where a lane is: what Metal passes in as [[attributes]]. Sizes of a ragged threadgroup are
// actual, those called dispatch_* are what was asked for.
struct LaneContext {
  uint32_t thread_position_in_grid[3];
  uint32_t thread_position_in_threadgroup[3];
  uint32_t threadgroup_position_in_grid[3];
  uint32_t threads_per_threadgroup[3];
  uint32_t dispatch_threads_per_threadgroup[3];
  uint32_t threadgroups_per_grid[3];
  uint32_t threads_per_grid[3];
  uint32_t thread_index_in_threadgroup;
  uint32_t simdgroup_index_in_threadgroup;
  uint32_t thread_index_in_simdgroup;
  uint32_t simdgroups_per_threadgroup;
  uint32_t dispatch_simdgroups_per_threadgroup;
};

using Entry = void (*)(void** buffers, const LaneContext* context);

enum Schedule : uint32_t { kForward, kBackward, kRandom };
enum SumOrder : uint32_t { kAscending, kDescending, kSequential };

// Mirrored by launch.Dispatch in Python.
struct Dispatch {
  uint32_t grid[3];
  uint32_t threadgroup[3];
  uint32_t schedule;
  uint32_t sum_order;
  uint32_t flush_denormals;
  uint32_t unused;
  uint64_t seed;
};

// Mirrored by launch.Counts in Python.
struct Counts {
  uint64_t lane_switches;
  uint64_t exchanges;
  uint64_t barriers;
  uint64_t threadgroup_bytes;
};

// One value of a lane while it is exchanged with the others of its simdgroup.
constexpr size_t kSlot = 128;
constexpr uint32_t kSimdWidth = 32;

struct Site {
  const char* operation;
  const char* file;
  int line;
};

enum class Wait : uint8_t { kSimd, kSimdgroupBarrier, kThreadgroupBarrier };

}  // namespace emulator

extern "C" {
// Leaves `size` bytes for the others, waits for every lane of the simdgroup, and returns the table
// of all 32 slots; `present` gets one bit for each lane that exists.
const unsigned char* emulator_exchange(const void* value, size_t size, const emulator::Site* site,
                                       uint32_t* present);
void emulator_barrier(emulator::Wait kind, int flags, const emulator::Site* site);
// The block of a `threadgroup` variable, the same for all lanes of a threadgroup. `key` tells
// variables apart.
void* emulator_threadgroup_block(const void* key, size_t size, const char* name);
uint32_t emulator_lane();
uint32_t emulator_sum_order();
[[noreturn]] void emulator_fail(const char* kind, const char* message, const emulator::Site* site);

// Runs a whole grid. Returns 0, or 1 with "kind: message" in `error`.
int emulator_run(emulator::Entry entry, void** buffers, const emulator::Dispatch* dispatch,
                 char* error, size_t error_size, emulator::Counts* counts);
}
